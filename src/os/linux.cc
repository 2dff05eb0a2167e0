// Linux: os.h by raw system calls, so that errno is never touched and no libc lock is ever taken.
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "arch/arch.h"
#include "base/atomic.h"
#include "base/bits.h"
#include "config/size_classes.h"
#include "os/linux_call.h"
#include "os/os.h"

// glibc 2.35 and newer registers an rseq area for each thread; others have no such symbols.
extern "C" {
[[gnu::weak]] extern const ptrdiff_t __rseq_offset;
[[gnu::weak]] extern const unsigned __rseq_size;
}

#ifndef AT_RSEQ_FEATURE_SIZE
#define AT_RSEQ_FEATURE_SIZE 27
#endif

namespace folio::os {

namespace {

// <linux/futex.h>, which musl's headers lack: private to the process.
constexpr int kFutexWait = 128, kFutexWake = 129, kFutexCmpRequeue = 132;

// Anywhere, or in place of what is at `fixed`.
void* map(size_t bytes, int protection, void* fixed = nullptr) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (fixed != nullptr ? MAP_FIXED : 0);
  const long at = call(SYS_mmap, fixed, bytes, protection, flags, -1, 0);
  return failed(at) ? nullptr : mapped(reinterpret_cast<void*>(at));
}

}  // namespace

constinit Atomic<size_t> known_page_bytes{0};

size_t learn_page_bytes() {
  const size_t asked = getauxval(AT_PAGESZ), bytes = asked < kPageBytesLeast ? kPageBytesLeast : asked;
  known_page_bytes.store(bytes, order::relaxed);  // relaxed: see page_bytes
  return bytes;
}

size_t address_space_limit() {
  rlimit limit{};
  return failed(call(SYS_prlimit64, 0, RLIMIT_AS, nullptr, &limit)) ? ~size_t{0} : limit.rlim_cur;
}

void* reserve(size_t bytes, size_t alignment, HugePages pages) {
  const size_t slack = alignment > page_bytes() ? alignment - page_bytes() : 0;
  auto* start = static_cast<char*>(map(bytes + slack, PROT_NONE));
  if (start == nullptr) return nullptr;
  auto* aligned = reinterpret_cast<char*>(round_up(reinterpret_cast<uintptr_t>(start), alignment));
  // What cannot be trimmed (a mapping limit) is address space lost, nothing else.
  if (aligned != start) unreserve(start, static_cast<size_t>(aligned - start));
  const size_t tail = slack - static_cast<size_t>(aligned - start);
  if (tail != 0) unreserve(aligned + bytes, tail);
  if ((reinterpret_cast<uintptr_t>(aligned) + bytes - 1) >> arch::kAddressBits != 0) {
    unreserve(aligned, bytes);
    return nullptr;
  }
  // Where huge pages are "always" on, the first touch of a sparse cluster would cost 2 MiB.
  if (pages == HugePages::kRefused) refuse_huge_pages(aligned, bytes);
  return aligned;
}

bool unreserve(void* address, size_t bytes) { return !failed(call(SYS_munmap, unmapping(address), bytes)); }

bool commit(void* address, size_t bytes) { return !failed(call(SYS_mprotect, address, bytes, PROT_READ | PROT_WRITE)); }

bool protect(void* address, size_t bytes) { return !failed(call(SYS_mprotect, address, bytes, PROT_READ)); }

bool populate(void* address, size_t bytes) {
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which the headers of older systems lack
  return !failed(call(SYS_madvise, address, bytes, kPopulateWrite));
}

bool prefer_huge_pages(void* address, size_t bytes) {
  return !failed(call(SYS_madvise, address, bytes, MADV_HUGEPAGE));
}

void refuse_huge_pages(void* address, size_t bytes) { call(SYS_madvise, address, bytes, MADV_NOHUGEPAGE); }

bool collapse(void* address, size_t bytes) {
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, which the headers of older systems lack
  if (!prefer_huge_pages(address, bytes)) return false;
  const bool done = !failed(call(SYS_madvise, address, bytes, kCollapse));
  refuse_huge_pages(address, bytes);  // what is there stays huge
  return done;
}

namespace {

// Faults of this thread that took no input.
long faults() {
  rusage usage{};
  return failed(call(SYS_getrusage, RUSAGE_THREAD, &usage)) ? 0 : usage.ru_minflt;
}

}  // namespace

bool huge_pages_come() {
  constexpr unsigned kTouched = 8;
  auto* const start = static_cast<char*>(reserve(kClusterBytes, kClusterBytes));
  if (start == nullptr) return false;
  bool come = false;
  if (commit(start, kClusterBytes) && prefer_huge_pages(start, kClusterBytes)) {
    const long before = faults();
    for (unsigned i = 0; i < kTouched; ++i) {
      // relaxed: nobody else has it, but see advice_purges
      reinterpret_cast<Atomic<uint8_t>*>(start + i * (kClusterBytes / kTouched))->store(1, order::relaxed);
    }
    come = faults() - before == 1;
  }
  unreserve(start, kClusterBytes);
  return come;
}

namespace {

// Whether the advice purges: emulators accept it and do nothing (qemu-user before 7.1), and then the memory does not
// read as zero. Tried once, on a page of its own. What refuses it does not pretend.
bool advice_purges() {
  constexpr uint8_t kYes = 1, kNo = 2;
  static constinit Atomic<uint8_t> known{0};
  uint8_t is = known.load(order::relaxed);  // relaxed: whoever does not see it tries once more
  if (is == 0) {
    // Atomic: two threads may try in turn at the same address, and ThreadSanitizer does not see these calls.
    auto* const page = static_cast<Atomic<uint8_t>*>(map(page_bytes(), PROT_READ | PROT_WRITE));
    if (page == nullptr) return true;
    page->store(1, order::relaxed);  // relaxed: nobody else has the page
    const bool refused = failed(call(SYS_madvise, page, page_bytes(), MADV_DONTNEED));
    is = refused || page->load(order::relaxed) == 0 ? kYes : kNo;  // relaxed: see above
    call(SYS_munmap, page, page_bytes());
    known.store(is, order::relaxed);  // relaxed: see above
  }
  return is == kYes;
}

}  // namespace

bool purge(void* address, size_t bytes) {
  // Not MADV_FREE: it leaves resident memory looking high until the kernel needs it, which users take for a leak.
  return !failed(call(SYS_madvise, address, bytes, MADV_DONTNEED)) && advice_purges();
}

unsigned purge_some(const PageRange* ranges, unsigned count) {
  static_assert(sizeof(PageRange) == sizeof(iovec) && offsetof(PageRange, bytes) == offsetof(iovec, iov_len));
  constexpr long kProcessMadvise = 440, kSelf = -10000;  // PIDFD_SELF: no descriptor is opened for it
  static constinit Atomic<bool> lacking{false};
  if (lacking.load(order::relaxed)) return 0;  // relaxed: whoever does not see it asks once more
  const long done = call(kProcessMadvise, kSelf, ranges, count, MADV_DONTNEED, 0);
  // Not EINVAL: the first range may be locked.
  if (done == -ENOSYS || done == -EBADF || done == -EPERM) lacking.store(true, order::relaxed);  // relaxed: see above
  auto left = failed(done) ? 0 : static_cast<size_t>(done);
  for (unsigned i = 0; i < count; ++i) {
    if (left < ranges[i].bytes) return i;
    left -= ranges[i].bytes;
  }
  return count;
}

namespace {

// Peeks that are under way; and forks, of the process whose number goes with them: a raw fork runs no handler, so the
// forks that its child has copied are not the child's.
constinit Atomic<uint32_t> peeks{0};
constinit Atomic<uint64_t> forking{0};  // | process : 32 | how many : 32 |
// Of `peeks` those of this thread: one, where a signal's handler that forks has interrupted it. The kernel is not at it
// then, and it goes on only after the fork. Counted after `peeks` and taken off before, so that a handler in between
// waits in vain, and never too little.
constinit thread_local Atomic<uint32_t> own_peeks{0};

uint64_t no_forks() { return static_cast<uint64_t>(call(SYS_getpid)) << 32; }
// How many forks of this process `word` counts.
uint32_t forks_in(uint64_t word) {
  const auto n = static_cast<uint32_t>(word);
  return n != 0 && no_forks() == word - n ? n : 0;
}

unsigned peek_by_kernel(const PeekRange* ranges, unsigned count) {
  iovec local[kPeekMost], remote[kPeekMost];
  for (unsigned i = 0; i < count; ++i) {
    local[i] = {ranges[i].to, ranges[i].bytes};
    remote[i] = {const_cast<void*>(ranges[i].from), ranges[i].bytes};
  }
  // Of this thread, not of the process: its first thread may have left, and has no memory then.
  const long copied = call(SYS_process_vm_readv, call(SYS_gettid), local, count, remote, count, 0);
  auto left = failed(copied) ? 0 : static_cast<size_t>(copied);
  for (unsigned i = 0; i < count; ++i) {
    if (left < ranges[i].bytes) return i;
    left -= ranges[i].bytes;
  }
  return count;
}

}  // namespace

unsigned peek_some(const PeekRange* ranges, unsigned count) {
  peeks.fetch_add(1, order::seq_cst);  // [peek] seq_cst: before the look at forks; pairs with hold_peeks
  own_peeks.store(own_peeks.load(order::relaxed) + 1, order::relaxed);  // relaxed: this thread's own
  // [peek] seq_cst: as above
  const unsigned copied = forks_in(forking.load(order::seq_cst)) != 0 ? 0 : peek_by_kernel(ranges, count);
  own_peeks.store(own_peeks.load(order::relaxed) - 1, order::relaxed);  // relaxed: as above
  // Not below 0: hold_peeks and resume_peeks may have given this one up. (It then may take off another's, if one has
  // begun since: a fork does not wait for that one.)
  uint32_t now = peeks.load(order::relaxed);  // relaxed: the compare_exchange decides
  // [peek] seq_cst: the pages are free again, before the look at forks; pairs with hold_peeks
  while (now != 0 && !peeks.compare_exchange(now, now - 1, order::seq_cst)) {
  }
  // [peek] seq_cst: as above
  if (now == 1 && static_cast<uint32_t>(forking.load(order::seq_cst)) != 0) wake(peeks);
  return copied;
}

void hold_peeks() {
  constexpr uint64_t kWaitMs = 100;  // a peek takes some us, more where its thread waits for a CPU
  const uint64_t none = no_forks();
  const uint32_t own = own_peeks.load(order::relaxed);  // relaxed: this thread's own
  uint64_t now = forking.load(order::relaxed);          // relaxed: the compare_exchange decides
  // [peek] seq_cst: before the look at peeks; pairs with peek_some
  while (!forking.compare_exchange(now, none + forks_in(now) + 1, order::seq_cst)) {
  }
  // By the clock: a wait may end at once, by a signal or as another peek begins, or late, for want of a CPU.
  for (const uint64_t until = now_ms() + kWaitMs;;) {
    const uint32_t left = peeks.load(order::seq_cst);  // [peek] seq_cst: as above
    if (left <= own) return;
    if (now_ms() > until) break;
    wait(peeks, left, 1);
  }
  // Their threads are gone, as in the child of a raw fork, or stand still: not for each fork again. Relaxed: a count.
  peeks.store(own, order::relaxed);
}

void resume_peeks(bool in_child) {
  // Relaxed, all: counts. In the child whoever was in a peek is gone.
  if (in_child) {
    peeks.store(0, order::relaxed);
    forking.store(0, order::relaxed);
    return;
  }
  // Not below 0: where a program's handler in the child has started a thread that forks, it was set to 0 meanwhile.
  uint64_t now = forking.load(order::relaxed);                                             // relaxed: as above
  while (forks_in(now) != 0 && !forking.compare_exchange(now, now - 1, order::relaxed)) {  // relaxed: as above
  }
}

Answer word_is(const void* const* word, const void* value) {
  // A futex call that moves no waiter: before that the kernel compares four bytes there with a value.
  constexpr long kNone = 0;
  static constinit uint32_t other_place = 0;
  const auto wanted = reinterpret_cast<uint64_t>(value);
  const auto* half = reinterpret_cast<const char*>(word);
  const uint32_t parts[] = {static_cast<uint32_t>(wanted), static_cast<uint32_t>(wanted >> 32)};
  for (const uint32_t part : parts) {
    const long result = call(SYS_futex, half, kFutexCmpRequeue, kNone, kNone, &other_place, part);
    if (result == -EAGAIN) return Answer::kOther;
    if (failed(result)) return result == -EFAULT ? Answer::kNotThere : Answer::kUnknown;
    half += sizeof part;
  }
  return Answer::kYes;
}

Answer copy_if_mapped(void* to, const void* from, size_t bytes) {
  // The kernel reads the signal set before it rejects the invalid way to change the mask.
  constexpr long kNoWay = -1, kSetBytes = 8;
  const auto start = reinterpret_cast<uintptr_t>(from), last = start + bytes - kSetBytes;
  for (uintptr_t at = start;; at = last - at < page_bytes() ? last : at + page_bytes()) {
    const long result = call(SYS_rt_sigprocmask, kNoWay, at, nullptr, kSetBytes);
    if (result != -EINVAL) return result == -EFAULT ? Answer::kNotThere : Answer::kUnknown;
    if (at == last) break;
  }
  copy_unchecked(to, from, bytes);
  return Answer::kYes;
}

namespace {

// Offset in the rseq area of the number that cpu() returns; 0 until looked up, kNoRseq if there is no area.
constinit Atomic<unsigned> rseq_field{0};
constexpr unsigned kNoRseq = 1;
constexpr unsigned kRseqCpuId = 4, kRseqMmCid = 24;

unsigned find_rseq_field() {
  unsigned field = kNoRseq;
  const int before = errno;  // getauxval changes it where the kernel does not tell, and free must keep it
  if (&__rseq_size != nullptr && __rseq_size != 0) {
    // mm_cid (Linux 6.3): dense from 0 in a process that is limited to a few of many CPUs.
    field = getauxval(AT_RSEQ_FEATURE_SIZE) >= kRseqMmCid + 4 ? kRseqMmCid : kRseqCpuId;
  }
  errno = before;
  rseq_field.store(field, order::relaxed);  // relaxed: every thread computes the same
  return field;
}

uint32_t rseq_id(unsigned field) {
  return *reinterpret_cast<volatile uint32_t*>(arch::thread_pointer() + __rseq_offset + field);
}

// Apart, so that cpu() needs no stack frame.
FOLIO_NOINLINE unsigned cpu_slow(unsigned field) {
  if (field == 0 && (field = find_rseq_field()) != kNoRseq) {
    const uint32_t number = rseq_id(field);
    if (static_cast<int32_t>(number) >= 0) return number;
  }
  unsigned id = 0;
  call(SYS_getcpu, &id, nullptr, nullptr);
  return id;
}

}  // namespace

unsigned cpu() {
  const unsigned field = rseq_field.load(order::relaxed);  // relaxed: a constant once it is known
  if (__builtin_expect(field > kNoRseq, true)) {
    const uint32_t id = rseq_id(field);
    if (__builtin_expect(static_cast<int32_t>(id) >= 0, true)) return id;
  }
  return cpu_slow(field);
}

uint64_t now_ms() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000 + static_cast<uint64_t>(t.tv_nsec) / 1000000;
}

uint64_t cpu_us() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000 + static_cast<uint64_t>(t.tv_nsec) / 1000;
}

bool wait(Atomic<uint32_t>& word, uint32_t value, uint64_t ms) {
  timespec t{static_cast<time_t>(ms / 1000), static_cast<long>(ms % 1000 * 1000000)};
  const long result = call(SYS_futex, &word, kFutexWait, value, &t, nullptr, 0);
  return !failed(result) || result == -ETIMEDOUT || result == -EAGAIN || result == -EINTR;
}

void wake(Atomic<uint32_t>& word) { call(SYS_futex, &word, kFutexWake, INT_MAX, nullptr, nullptr, 0); }

bool at_fork(void (*before)(), void (*parent)(), void (*child)()) { return pthread_atfork(before, parent, child) == 0; }

bool environment_ready() { return environ != nullptr; }

const char* environment(const char* name) {
  if (environ == nullptr || getauxval(AT_SECURE) != 0) return nullptr;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const char* e = *entry;
    const char* n = name;
    while (*n != '\0' && *e == *n) ++e, ++n;
    if (*n == '\0' && *e == '=') return e + 1;
  }
  return nullptr;
}

// Where standard error is a pipe without a reader, the write sends SIGPIPE to this thread, which would end a program
// that asked to go on after a misuse. So the signal is blocked meanwhile, and discarded if the write has sent it.
void write_error(const char* text, size_t length) {
  constexpr uint64_t kPipe = uint64_t{1} << (SIGPIPE - 1);
  uint64_t before = 0, pending = 0;
  const bool masked = !failed(call(SYS_rt_sigprocmask, SIG_BLOCK, &kPipe, &before, sizeof before));
  const bool blocked = masked && (before & kPipe) != 0;
  if (blocked) call(SYS_rt_sigpending, &pending, sizeof pending);  // one of the program's own stays
  long n = 0;
  while (length != 0) {
    n = call(SYS_write, 2, text, length);
    if (n == -EINTR) continue;
    if (failed(n) || n == 0) break;
    text += n;
    length -= static_cast<size_t>(n);
  }
  const timespec now = {};
  if (masked && n == -EPIPE && (pending & kPipe) == 0) call(SYS_rt_sigtimedwait, &kPipe, nullptr, &now, sizeof kPipe);
  if (masked && !blocked) call(SYS_rt_sigprocmask, SIG_SETMASK, &before, nullptr, sizeof before);
}

void abort_process() { abort(); }

uint32_t process_id() { return static_cast<uint32_t>(call(SYS_getpid)); }

size_t program_path(char* text, size_t bytes) {
  const long length = call(SYS_readlinkat, AT_FDCWD, "/proc/self/exe", text, bytes);
  return failed(length) ? 0 : static_cast<size_t>(length);
}

}  // namespace folio::os
