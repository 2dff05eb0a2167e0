// Chunks of a heap that is fresh, and which of their pages are there.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <vector>

#include "os/os.h"
#include "space/huge_pace.h"
#include "store/bin.h"
#include "store/occupancy.h"
#include "store/residency.h"
#include "unit/child.h"
#include "unit/support.h"

namespace folio_test {

inline constexpr size_t kNoLimit = ~size_t{0};
inline constexpr size_t kAheadMost = 64 * kKiB;

inline size_t resident_pages(const char* start, size_t bytes) {
  const size_t page = folio::os::page_bytes();
  std::vector<unsigned char> there(bytes / page);
  EXPECT_EQ(mincore(const_cast<char*>(start), bytes, there.data()), 0);
  return static_cast<size_t>(std::count_if(there.begin(), there.end(), [](unsigned char p) { return p & 1; }));
}

inline bool is_huge(const folio::Descriptor& d) { return d.backing() == folio::Backing::kHuge; }

inline size_t marked_pages(folio::Descriptor& d) {
  size_t count = 0;
  for (unsigned w = 0; w < folio::kPageWords; ++w) count += folio::popcount(d.resident(w).load(folio::order::relaxed));
  return count;
}

// Takes the whole of a new chunk of the bin, a folio at a time, and writes to the first byte of each object. Calls
// check(descriptor, bytes taken so far) after each folio.
template <class Check>
std::vector<void*> take_chunk(folio::BinId bin, Check&& check) {
  std::vector<void*> objects;
  void* some[folio::kFolioObjects];
  unsigned got;
  while ((got = folio::take_objects_in_open_chunks(folio::process_store, bin, some, folio::kFolioObjects)) != 0) {
    objects.insert(objects.end(), some, some + got);
  }
  const size_t before = objects.size();
  while (objects.size() - before < folio::info_of(bin).objects) {
    got = folio::take_objects(folio::process_store, bin, some, folio::kFolioObjects);
    EXPECT_NE(got, 0u);
    for (unsigned i = 0; i < got; ++i) *static_cast<char*>(some[i]) = 1;
    objects.insert(objects.end(), some, some + got);
    check(*folio::place_of(some[0]).descriptor, (objects.size() - before) * folio::info_of(bin).size);
  }
  return objects;
}

inline std::vector<void*> take_chunks(folio::BinId bin, unsigned count) {
  std::vector<void*> objects;
  for (unsigned chunk = 0; chunk < count; ++chunk) {
    folio::note_huge_page(0, true);  // however slow the one before was
    const auto more = take_chunk(bin, [](folio::Descriptor&, size_t) {});
    objects.insert(objects.end(), more.begin(), more.end());
  }
  return objects;
}

inline void give(folio::BinId bin, const std::vector<void*>& objects) {
  for (size_t i = 0; i < objects.size(); i += folio::kFolioObjects) {
    folio::give_objects(bin, &objects[i],
                        static_cast<unsigned>(std::min<size_t>(folio::kFolioObjects, objects.size() - i)), "test");
  }
}

// In children, in which no bin has chunks yet and nothing is left behind.
template <class Body>
int in_fresh_heap(Body&& body) {
  return in_child([&] {
    if (!can_populate()) return kCannot;
    body();
    return ::testing::Test::HasFailure() ? kFailed : kPassed;
  });
}

#define EXPECT_IN_FRESH_HEAP(...)                           \
  do {                                                      \
    const int result = in_fresh_heap(__VA_ARGS__);          \
    if (result == kCannot) GTEST_SKIP() << kCannotPopulate; \
    EXPECT_EQ(result, kPassed);                             \
  } while (false)

}  // namespace folio_test
