// What the unit tests share. They link folio_core: the folio_ names only, beside the libc's (or a sanitizer's) malloc.
#pragma once

#include <gtest/gtest.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <random>
#include <string>
#include <vector>

#include "config/options.h"
#include "config/size_classes.h"
#include "os/os.h"
#include "space/pages.h"
#include "values.h"

#if defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define FOLIO_TEST_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define FOLIO_TEST_SANITIZED 1
#endif

namespace folio_test {

#if defined(FOLIO_TEST_SANITIZED)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Fewer rounds where each takes ten times as long.
constexpr unsigned rounds(unsigned plain) { return kSanitized ? (plain + 9) / 10 : plain; }

// Every bin, for loops and for EXPECT messages.
inline std::vector<folio::BinId> all_bins() {
  std::vector<folio::BinId> bins;
  for (unsigned i = 1; i < folio::kBins; ++i) bins.push_back(folio::bin_id(i));
  return bins;
}

// Keeps a page from being purged, by the raw call: sanitizers make mlock do nothing. False where no memory may be
// locked.
inline bool lock_page(void* address) { return syscall(SYS_mlock, address, size_t{1}) == 0; }
inline void unlock_page(void* address) { syscall(SYS_munlock, address, size_t{1}); }

// Which pages of a page-aligned range are resident: one byte for each, its lowest bit. False if that is not known.
inline bool residency(const void* address, size_t bytes, unsigned char* pages) {
  return mincore(const_cast<void*>(address), bytes, pages) == 0;
}

// Whether pages come ahead of their use: not before Linux 5.14, nor under an emulator.
inline bool can_populate() {
  const size_t page = folio::os::page_bytes();
  void* const space = folio::os::reserve(page, page);
  unsigned char there[16] = {};  // an emulator may count in smaller pages
  const bool can = folio::os::commit(space, page) && folio::os::populate(space, page) && residency(space, page, there);
  folio::os::unreserve(space, page);
  return can && (there[0] & 1) != 0;
}
inline constexpr const char* kCannotPopulate = "this kernel (before 5.14) cannot, or an emulator does not";

// The function that makes the housekeeper, by its type on a POSIX system.
using CreateThread = int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
inline void create_threads_by(CreateThread* create) {
  folio::os::create_threads_by(reinterpret_cast<folio::os::AnyFunction*>(create));
}

inline void sleep_ms(unsigned ms) { usleep(ms * 1000); }

// Programs of another processor run under an emulator, which has threads of its own and answers some calls itself.
#if defined(FOLIO_TEST_EMULATOR)
inline constexpr bool kEmulated = sizeof FOLIO_TEST_EMULATOR > 1;
#endif

// ThreadSanitizer has a thread of its own, and starts none in the child of a process of several threads.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

// Whether this process may read itself through the kernel. Not under qemu-user, which lacks the call, nor under some
// filters.
inline bool can_peek() {
  const char from = 1;
  char to = 0;
  return folio::os::peek(&to, &from, 1);
}
inline constexpr const char* kCannotPeek = "no process_vm_readv here";

// Frees are cached from the first on, but in the tests of the watch.
inline const bool watch_is_off = (folio::options.watch = 0) == 0;

// Options as they were, after a test has changed them.
class SavedOptions {
 public:
  SavedOptions() : before_(folio::options) {}
  ~SavedOptions() { folio::options = before_; }
  SavedOptions(const SavedOptions&) = delete;
  SavedOptions& operator=(const SavedOptions&) = delete;

 private:
  folio::Options before_;
};

// The page accounts relative to the moment it was made.
class PageDelta {
 public:
  int64_t resident() const { return folio::page_counts.resident.get() - resident_; }
  int64_t dirty() const { return folio::page_counts.dirty.get() - dirty_; }
  uint64_t purged() const { return folio::page_counts.purged.get() - purged_; }
  uint64_t calls() const { return folio::page_counts.purge_calls.get() - calls_; }

 private:
  int64_t resident_ = folio::page_counts.resident.get();
  int64_t dirty_ = folio::page_counts.dirty.get();
  uint64_t purged_ = folio::page_counts.purged.get();
  uint64_t calls_ = folio::page_counts.purge_calls.get();
};

}  // namespace folio_test
