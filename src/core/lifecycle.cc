// The constructor, the destructor, the child's fork handler, and the first slow call, which reads the options.
#include "core/lifecycle.h"

#include "cache/cpu_cache.h"
#include "cache/thread_caches.h"
#include "config/options.h"
#include "core/clock.h"
#include "core/ladder.h"
#include "insight/guards.h"
#include "insight/profile_file.h"
#include "os/os.h"
#include "os/report.h"
#include "space/chunk_table.h"
#include "space/housekeeper.h"
#include "space/region.h"
#include "store/collapse.h"

namespace folio {

namespace {

void complain(const char* line, size_t length) {
  os::write_error(line, length);
  os::write_error("\n", 1);
}

void before_fork() {
  collapse_note_fork();
  os::hold_peeks();
}
void after_fork_in_parent() { os::resume_peeks(false); }

// The child has the calling thread, and threads that the program's own handlers, run before this one, have started.
// Folio has no lock that could be held. What other threads were in the middle of is given up; what they cached is
// handed on.
void after_fork_in_child() {
  os::resume_peeks(true);
  // Where the system does not say how many threads there are, each thread that had a cache is looked for.
  const unsigned total = os::thread_total();
  const bool alone = total == 1 || (total == 0 && !housekeeper_is_own() && !thread_caches_others_run());
  seam_after_fork();
  guards_after_fork();
  clock_after_fork(alone);
  const bool idle = alone && cpu_cache_work == 0;
  if (idle) thread_caches_drop_large();
  cpu_caches_after_fork(process_caches, process_fields, idle);
  thread_caches_after_fork(alone);
  clock_start_housekeeper_if_on();
}

// Before main, so that options are read and fork is known even if nothing was allocated yet.
[[gnu::constructor]] void start_early() {
  chunk_table_close();
  start();
  if (options.guard != 0 && guards_start(static_cast<uint64_t>(options.guard))) seam_guard();
  os::remember_cpus();
  os::note_stacks(nullptr);
  modest(0);  // asks the system, if no malloc has, before a filter forbids that
  ladder_start(complain);
  clock_start_housekeeper_if_on();
}

// Validates what the thread that calls exit has freed lately, before it is too late; and ends the profile's file.
[[gnu::destructor]] void validate_at_exit() {
  if (options.errors != kErrorsIgnore) thread_cache_validate("exit");
  profile_file_end();
}

}  // namespace

bool start_slow() {
  // [start] acquire: sees the options, as in start(). unseen: as below
  uint32_t now = seam_mode.load(order::acquire);
  if (now >= kOpen) return now != kOpen;
  // The dynamic linker allocates before the environment is known; those calls run on the defaults.
  if (!os::environment_ready()) return false;
  now = kNotStarted;
  // Relaxed: decides who reads them. unseen: what starts the process asks the libc and the kernel, once for good.
  if (!seam_mode.compare_exchange(now, kStarting, order::relaxed)) return false;
  if (const char* text = os::environment("FOLIO_OPTIONS")) parse_options(text, options, complain);
  os::at_fork(before_fork, after_fork_in_parent, after_fork_in_child);
  os::prepare_thread_end(thread_cache_end);
  const char* path;
  const size_t length = option_path(options.profile_file, &path);
  if (length != 0 && !profile_file_open(path, length)) {
    constexpr char kWhat[] =
        "folio: the file of the profile cannot be made (option profile_file): samples stay in memory (see "
        "docs/options.md)";
    complain(kWhat, sizeof kWhat - 1);
  }
  seam_mode.store(kOpen, order::release);  // [start] release: publishes the options; pairs with start. unseen: as above
  return options.profile != 0 && seam_close(static_cast<uint64_t>(options.profile));
}

}  // namespace folio
