// The contract with the operating system: all that Folio asks of it. The build picks one implementation (linux*.cc).
//
// No function allocates, takes a lock of this process, or changes errno, but for those that ask the threads library:
// start_thread, note_stacks, leave_to_ordinary_thread, prepare_thread_end, at_thread_end, at_fork. A failure is a
// returned null, false or 0. Thread-safe, and but for these six safe in a signal handler.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/atomic.h"

namespace folio::os {

// ---- Pages ----

// Bytes of a page: a power of two, at least 4096. Constant after the first call.
size_t learn_page_bytes();
extern Atomic<size_t> known_page_bytes;  // zero until asked; every thread that asks computes the same
inline size_t page_bytes() {
  const size_t bytes = known_page_bytes.load(order::relaxed);  // relaxed: one value only, and nothing hangs on it
  return bytes != 0 ? bytes : learn_page_bytes();
}

// `bytes` of address space at a multiple of `alignment`, both multiples of the page. It is inaccessible, and so costs
// nothing: no limit on data or commit counts it, and locking all memory gives it none. Huge pages come there where
// prefer_huge_pages asks, and `kBySystem` where the system's setting says so too. Null if there is none.
enum class HugePages { kRefused, kBySystem };
void* reserve(size_t bytes, size_t alignment, HugePages pages = HugePages::kRefused);
size_t address_space_limit();  // bytes that the process may reserve in all, the program's own mappings included

// Makes a page-aligned range readable and writable: of reserved address space, which then is zero-filled, or of what
// protect() made readable. Physical pages come when touched. What is there already stays as it is, so two threads may
// do it at once. False if the kernel refuses: some of it may be done then.
bool commit(void* address, size_t bytes);

// Makes a page-aligned range of the library's own data readable only. False if the kernel refuses.
bool protect(void* address, size_t bytes);

// Gives address space from reserve() back. False if the kernel refuses: it then stays as it was.
bool unreserve(void* address, size_t bytes);

// Makes the pages of a page-aligned range resident, as writing to each would, by one system call. False if the kernel
// cannot (Linux before 5.14) or has none: some may be resident then.
bool populate(void* address, size_t bytes);

// Asks for huge pages in an aligned range from reserve(), when it is touched, or for none any more: what is there
// stays. refuse_huge_pages may get neighbouring ranges as one. False if the kernel has none to give.
bool prefer_huge_pages(void* address, size_t bytes);
void refuse_huge_pages(void* address, size_t bytes);

// Makes a huge page of each aligned part of a committed range from reserve(), at once: resident pages are copied, the
// rest becomes zero-filled memory. A thread that touches it meanwhile waits, a fraction of a millisecond for each huge
// page. False if the kernel cannot (Linux before 6.1), or has none to give.
bool collapse(void* address, size_t bytes);

// Whether memory that asks for it comes as huge pages just now: by the system's setting, the process's, and what there
// is. It is tried out on a mapping of its own, as the setting can be read from a file only.
bool huge_pages_come();

// Gives the physical pages of a page-aligned range back; it then reads as zero. False if refused or ignored: contents
// undefined.
bool purge(void* address, size_t bytes);

// The same for several ranges by one system call, which a filter may forbid. Returns how many it did, from the first
// on: fewer than `count` where the kernel refused one, none where it has no such call (Linux before 6.14).
struct PageRange {
  void* start;
  size_t bytes;
};
unsigned purge_some(const PageRange* ranges, unsigned count);

// Copies bytes but for blocks of 16 pages that are zeros in both: so `to` does not become resident where much of `from`
// was never written.
void copy_filled(char* to, const char* from, size_t bytes);

// Moves the first `used` bytes of `from` to `to`, which was reserved and is writable for as long: of the first `bytes`,
// whole steps, the pages, and copies what the kernel does not move. `bytes` is what `to` has at least, and may be 0;
// steps are what mappings split at, but for what the program does inside its object. Returns how many bytes were moved
// as pages. `from` is to be given back then: what is left there is undefined. *hole: where it has bytes, nothing was
// moved or copied, and this part of `to` may be another thread's mapping by now.
size_t move_pages(void* from, void* to, size_t bytes, size_t used, size_t step, PageRange* hole);

// Copies ranges of this process's memory that may be unmapped at any time, by a system call that a filter may forbid:
// for statistics. Returns how many ranges were copied, from the first on: fewer than `count` (at most kPeekMost) where
// one could not be.
struct PeekRange {
  void* to;
  const void* from;
  size_t bytes;
};
inline constexpr unsigned kPeekMost = 8;
unsigned peek_some(const PeekRange* ranges, unsigned count);
inline bool peek(void* to, const void* from, size_t bytes) {
  const PeekRange range{to, from, bytes};
  return peek_some(&range, 1) == 1;
}

// Around a fork, so that no peek is under way in it: the kernel pins the pages that a peek reads, and a fork copies
// pinned pages before others, so that a child of several threads would have memory of two moments. hold_peeks waits for
// other threads' peeks under way, 100 ms at most; until resume_peeks others copy nothing.
void hold_peeks();
void resume_peeks(bool in_child);

// Copies bytes of the thread's own stack, which AddressSanitizer's memcpy would refuse between the frames' variables.
__attribute__((no_sanitize("address"))) inline void copy_unchecked(void* to, const void* from, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) static_cast<char*>(to)[i] = static_cast<const volatile char*>(from)[i];
}

// word_is: whether a word of this process's memory, which may be unmapped at any time, has that value. copy_if_mapped:
// copies 8 bytes or more, where no thread unmaps anything meanwhile. Both by system calls that every filter allows.
// kNotThere: not all of it is mapped, or this thread may not read it. kUnknown: the system does not say.
enum class Answer { kYes, kOther, kNotThere, kUnknown };
Answer word_is(const void* const* word, const void* value);
Answer copy_if_mapped(void* to, const void* from, size_t bytes);

// Where the calling thread's stack ends, as far as that is known: no thread unmaps anything between an address on it
// and this end. On a stack that the program has made itself, or below the bytes that each thread's stack has for sure,
// this is the end of the page in use. note_stacks: the program is about to make a thread with these pthread attributes,
// or, null, with the standard ones: what each one has for sure is at most as much.
uintptr_t stack_end(const void* on_stack);
void note_stacks(const void* attributes);

// ---- Processors, threads, time ----

// A small number that is the same for threads that run on the same CPU: the kernel's concurrency id where there is one,
// else the CPU's number. A hint: the thread may move at any moment.
unsigned cpu();

// Milliseconds of a clock that only goes forward; coarse (some milliseconds), cheap.
uint64_t now_ms();
// Microseconds for which this thread has had a CPU, in the kernel too, exact.
uint64_t cpu_us();

// Sleeps as long as `word` holds `value`, until wake() or the time is up; may end early. False if the system refuses.
bool wait(Atomic<uint32_t>& word, uint32_t value, uint64_t ms);
void wake(Atomic<uint32_t>& word);  // all that sleep on it

// The CPUs on which the process's first thread may run, as they are now: those of threads to be started.
void remember_cpus();

// The function by which start_thread makes threads, in place of the threads library's own: of the type that it has
// there (pthread_create), which only who sets it and the implementation know. Set before the first thread is started.
using AnyFunction = void();
void create_threads_by(AnyFunction* create);

// Runs main(argument) on a new thread, which receives no signals and has the CPUs that were remembered and the ordinary
// scheduling class, whatever its maker has. False if there can be none. Not in a signal handler.
bool start_thread(void (*main)(void*), void* argument);

// For a thread of start_thread that is about to end as the last one: the libc would run all the program's exit handlers
// on it. Starts an ordinary thread in its place, with a stack of the libc's default size and the signal mask of the
// caller of start_thread, which waits until it is the last. If that fails, the calling thread gets this signal mask.
void leave_to_ordinary_thread();

// Asks for a call of `ended(value)` in the calling thread when it ends, `value` not null; `ended` is the same in all
// calls. False if that is impossible: the program may have used up what the system has for this, unless
// prepare_thread_end came before.
void prepare_thread_end(void (*ended)(void*));
bool at_thread_end(void (*ended)(void*), void* value);

// Asks for a call of `before()` before every later fork, and after it of `parent()`, also where it fails, and of
// `child()` in the child. False if that is impossible.
bool at_fork(void (*before)(), void (*parent)(), void (*child)());

// ---- Process ----

// False while the process starts so early that its environment is not known yet.
bool environment_ready();

// The value of an environment variable, or null; always null in a set-user-id program.
const char* environment(const char* name);

void write_error(const char* text, size_t length);  // to standard error, whole if it can be
[[noreturn]] void abort_process();

uint32_t process_id();

// The path of the program's file, without an end mark, as much of it as fits; returns its length, 0 if unknown.
size_t program_path(char* text, size_t bytes);

// How many threads the process has, whoever made them; 0 if unknown. A first thread that has left counts until the
// process ends.
unsigned thread_total();

// The calling thread's number, unique in the process while it lives, and whether a thread of this process has a number.
// Ask the system each time.
uint32_t thread_id();
bool thread_exists(uint32_t id);
bool in_first_thread();  // of the process: main's, or the one that forked

// Whether the process's first thread has left, by pthread_exit. False if unknown.
bool first_thread_left();

// ---- Files of the system ----
//
// All that Folio ever reads, each at the start of the process, or later where it was kept open, or the program asks:
//
//   /proc/self/cgroup, /proc/self/mountinfo      which cgroups the process is in, and where they are mounted
//   memory.max, memory.high                      in the folders of a cgroup (v2): its limits
//   memory.limit_in_bytes                        the same (v1)
//   memory.pressure, or /proc/pressure/memory    how long the threads of the cgroup, or of all, waited for memory
//   memory.events                                how often the cgroup met its limits (v2)
//   /proc/self/statm                             for statistics, see resident_bytes
//   /proc/self/maps                              for the profile's readers: option profile_file, folio_profile_write
//   /proc/self/exe                               its name only, see program_path

inline constexpr size_t kPathMost = 1024;

// Where all paths of these functions begin: "", for "/", but where tests have their own files.
extern const char* files_root;

// Calls visit(context, line, length) for the lines of a file, without their ends, until it returns false; what is
// beyond kLineMost bytes of a line is left out. False if the file cannot be opened. It has the lowest free descriptor
// meanwhile: for the start of the process.
inline constexpr size_t kLineMost = 4096;
bool read_lines(const char* path, bool (*visit)(void* context, const char* line, size_t length), void* context);

// A file that stays open, under a descriptor above those that programs count on, closed by an exec. As read_lines, for
// the start of the process. False if it cannot be opened.
struct KeptFile {
  int descriptor = -1;
  uint64_t device = 0, number = 0;  // whoever closes all descriptors closes this one, and may open another file there
};
bool keep_file(const char* path, KeptFile* file);

// Bytes of the file, as they are now. 0 if it is no longer there.
size_t read_kept(const KeptFile& file, char* text, size_t bytes, size_t offset = 0);

// A new file, for this user only, that stays open as those of keep_file do. What has that name becomes `path`.old.
// False if the system refuses.
bool create_file(const char* path, KeptFile* file);

void remove_file(const char* path);

// The file's bytes from `offset` on, shared with whoever maps or reads the file: of a multiple of the page, for good.
// They read as zero, and the disk has room for them. Null if it has not, or the system refuses.
void* map_file(const KeptFile& file, size_t offset, size_t bytes);

// Physical memory of the machine; 0 if unknown. Opens no file.
size_t physical_bytes();

// Resident bytes of the process, 0 if unknown. Reads a file of the system: for statistics only.
size_t resident_bytes();

}  // namespace folio::os
