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

// MREMAP_DONTUNMAP (Linux 5.7) leaves `from` mapped, so no other thread's mmap can land there.
bool move_run(char* from, char* to, size_t bytes) {
  return !failed(call(SYS_mremap, from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to));
}

enum class Run { kOneMapping, kSeveral, kRefused };

// By asking for a page more in place, which the kernel refuses as something is mapped behind, but first (EFAULT) where
// the run goes beyond one mapping.
Run look(char* address, size_t bytes) {
  const size_t page = page_bytes();
  const long result = call(SYS_mremap, address, bytes, bytes + page, 0);
  if (!failed(result)) {
    call(SYS_mremap, address, bytes + page, bytes, 0);  // nobody had it; no munmap, as huge TLB pages round both sizes
    return Run::kOneMapping;
  }
  if (result == -ENOMEM || result == -EAGAIN) return Run::kOneMapping;  // EAGAIN: of locked pages
  return result == -EFAULT ? Run::kSeveral : Run::kRefused;             // sealed, or by a filter
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

}  // namespace

// By blocks: where a block is zeros and the target has them too, it is left out. (Page by page: 1.3 to 1.8 of the time
// where every other page is of zeros, as an untouched target then faults twice. By runs of pages, of which each is
// looked at first: 1.03 to 1.1 where all is written.)
void copy_filled(char* to, const char* from, size_t bytes) {
  const size_t block = 16 * page_bytes();
  for (size_t at = 0, part; at < bytes; at += part) {
    part = bytes - at < block ? bytes - at : block;
    const bool zero = from[at] == 0 && __builtin_memcmp(from + at, from + at + 1, part - 1) == 0;
    if (!zero || __builtin_memcmp(to + at, from + at, part) != 0) __builtin_memcpy(to + at, from + at, part);
  }
}

namespace {

struct Progress {
  size_t done = 0;   // moved or copied, from the start
  size_t moved = 0;  // of it
  PageRange hole = {nullptr, 0};
};

// Moves what lies in one mapping by one call, as much as there is: such a call moves all or nothing. One over several
// mappings unmaps the target and then fails until Linux 6.17, and since then moves one after the other, and where one
// cannot be moved nothing says which were. What cannot be moved is copied, at most a step; after a move that failed the
// rest. Stops at a hole that it cannot fill, but not on the way `back`: no other place is left for the bytes, so
// a second such hole ends the process by a fault.
Progress move_runs(char* from, char* to, size_t bytes, size_t used, size_t step, bool back) {
  const size_t page = page_bytes();
  Progress p;
  for (size_t end = bytes; p.done < bytes;) {
    char *const source = from + p.done, *const target = to + p.done;
    const size_t run = end - p.done;
    const Run is = run == page ? Run::kOneMapping : look(source, run);
    if (is == Run::kSeveral) {
      const size_t middle = p.done + run / 2, whole = middle / step * step;  // huge pages stay whole
      end = whole > p.done ? whole : p.done + run / 2 / page * page;
      continue;
    }
    size_t part = run;
    if (is == Run::kOneMapping && move_run(source, target, run)) {
      p.moved += run;
    } else {
      const bool refused = is == Run::kRefused;
      if (!refused && !refill(target, run) && !back) {
        p.hole = {target, run};
        return p;
      }
      if (refused && run > step - p.done % step) part = step - p.done % step;
      if (!refused && run != page) part = bytes - p.done;
      if (p.done < used) copy_filled(target, source, part < used - p.done ? part : used - p.done);
    }
    p.done += part;
    end = bytes;
  }
  return p;
}

}  // namespace

size_t move_pages(void* from, void* to, size_t bytes, size_t used, size_t step, PageRange* hole) {
  auto* source = static_cast<char*>(from);
  auto* target = static_cast<char*>(to);
  if (bytes != 0 && !purge(target, bytes)) bytes = 0;  // what is not moved or copied reads as zero
  const Progress p = move_runs(source, target, bytes, used, step, false);
  *hole = p.hole;
  if (p.hole.bytes != 0) {
    move_runs(target, source, p.done, p.done, step, true);
    return 0;
  }
  if (bytes < used) __builtin_memcpy(target + bytes, source + bytes, used - bytes);
  return p.moved;
}

}  // namespace folio::os
