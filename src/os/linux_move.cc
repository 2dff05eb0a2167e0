// Linux: moves a huge object's pages from one reservation to another (os.h).
#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "os/linux_call.h"
#include "os/os.h"

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

namespace folio::os {

namespace {

constexpr int kReadWrite = PROT_READ | PROT_WRITE, kMemory = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

// MREMAP_DONTUNMAP (Linux 5.7) leaves `from` mapped and empty, so no other thread's mmap can land there.
bool move_step(char* from, char* to, size_t bytes) {
  return !failed(call(SYS_mremap, from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to));
}

// qemu-user does the same, but then takes `from` for unmapped: it ignores purges of it, and faults where aarch64's
// memset clears whole cache lines. A new mapping of the empty range makes it known again. Whether it is needed shows a
// system call that reads a signal set from there before it rejects an invalid way, which any sandbox allows. (Once for
// all steps: it brings a page, and with one in each step untouched objects that grow to 8 GiB took 1.8 times as long.)
void make_known(char* from, size_t bytes) {
  if (call(SYS_rt_sigprocmask, -1L, from, nullptr, 8) != -EFAULT) return;
  call(SYS_mmap, from, bytes, kReadWrite, kMemory | MAP_FIXED, -1, 0);
}

// By an advice that changes nothing: a part may be reserved only, and is not to be charged.
bool is_mapped(char* address, size_t bytes) { return call(SYS_madvise, address, bytes, MADV_NORMAL) != -ENOMEM; }

// A move to there failed. Until Linux 6.17 the kernel unmaps the target before it looks at the source, so there may be
// a hole: it is filled, unless another thread's mmap came first. False if not all is mapped.
bool refill(char* address, size_t bytes) {
  const long at = call(SYS_mmap, address, bytes, kReadWrite, kMemory | MAP_FIXED_NOREPLACE, -1, 0);
  if (at == reinterpret_cast<long>(address)) {
    mapped(address);
    refuse_huge_pages(address, bytes);
    return true;
  }
  if (!failed(at)) call(SYS_munmap, at, bytes);  // Linux before 4.17 takes the address for a hint
  return is_mapped(address, bytes);
}

// Copies the pages that are not zero. Since Linux 6.17 a move that fails may have moved some of its pages: they read as
// zero at `from`, and are at `to`, where all other pages read as zero.
void copy_filled(char* to, const char* from, size_t bytes) {
  const size_t page = page_bytes();
  for (size_t at = 0; at < bytes; at += page) {
    const size_t part = bytes - at < page ? bytes - at : page;
    const bool zero = from[at] == 0 && __builtin_memcmp(from + at, from + at + 1, part - 1) == 0;
    if (!zero) __builtin_memcpy(to + at, from + at, part);
  }
}

void put_back(char* source, char* target, size_t moved, size_t step) {
  while (moved > 0) {
    moved -= step;
    if (move_step(target + moved, source + moved, step)) continue;
    refill(source + moved, step);
    copy_filled(source + moved, target + moved, step);
  }
}

}  // namespace

size_t move_pages(void* from, void* to, size_t bytes, size_t used, size_t step, bool* destroyed) {
  auto* source = static_cast<char*>(from);
  auto* target = static_cast<char*>(to);
  *destroyed = false;
  if (bytes != 0 && !purge(target, bytes)) bytes = 0;  // copy_filled counts on it
  // Never more than a step in one call. The source lies in several mappings from its second move on, and until Linux
  // 6.17 such a call unmaps all of the target and then fails: another thread's mmap may land there. Since then it moves
  // mapping after mapping, and where one cannot be moved nothing says which were. (A step is what mappings split at,
  // but for what the program does inside its object.)
  size_t moved = 0;
  while (moved < bytes && move_step(source + moved, target + moved, step)) moved += step;
  size_t done = moved;
  if (moved < bytes) {
    if (!refill(target + moved, step)) {
      put_back(source, target, moved, step);
      *destroyed = true;
      return 0;
    }
    done += step;
    if (moved < used) copy_filled(target + moved, source + moved, used < done ? used - moved : step);
  }
  if (moved != 0) make_known(source, moved);
  if (done < used) __builtin_memcpy(target + done, source + done, used - done);
  return moved;
}

}  // namespace folio::os
