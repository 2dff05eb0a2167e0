// The CPU caches' section with real transactions: begin, abort, the way back to the flag.
//
// On a processor with RTM transactions commit. Elsewhere the program runs itself under qemu, whose CPUID has no RTM but
// which executes xbegin as a transaction that aborts at once; so the instructions, the abort and what follows it are
// run, and only the commit is not. Exit status 77: neither is there.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "sync/try_section.h"

namespace {

using folio::arch::Transaction;

constexpr int kSkipped = 77;
constexpr unsigned kThreads = 4, kRuns = 5000;

// The processor's transactions, counted.
struct Counted {
  static constexpr unsigned kStarted = Transaction::kStarted;
  static constexpr unsigned kMayRetry = Transaction::kMayRetry;
  static inline thread_local unsigned begun, aborted, last_status;

  static unsigned begin() {
    ++begun;
    const unsigned status = Transaction::begin();
    if (status != kStarted) {
      ++aborted;
      last_status = status;
    }
    return status;
  }
  static void commit() { Transaction::commit(); }
  static void abort() { Transaction::abort(); }
};
using Section = folio::BasicTrySection<Counted>;

unsigned failures;

void expect(bool condition, const char* what) {
  if (condition) return;
  printf("FAILED: %s\n", what);
  ++failures;
}

void once() {
  Section section;
  unsigned ran = 0;
  expect(section.run(true, [&] { ++ran; }) && ran == 1, "a free section runs its body once");
  expect(!section.held(), "and is free again");
  expect(Counted::begun >= 1 && Counted::begun <= Section::kAttempts, "it began transactions, but few");
}

// Held by its flag: a transaction that subscribes to it aborts, and then the flag says busy.
void busy() {
  Section section;
  unsigned inner = 0;
  bool inner_ran = true;
  const bool ran = section.run(false, [&] { inner_ran = section.run(true, [&] { ++inner; }); });
  expect(ran && !inner_ran && inner == 0, "a held section is busy for a transaction too");
  expect(!section.held(), "and free afterwards");
}

void together() {
  static Section section;
  static uint64_t counter, other;
  static std::atomic<uint64_t> ran_sum{0}, busy_sum{0}, begun_sum{0}, aborted_sum{0}, torn{0};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kThreads; ++i) {
    threads.emplace_back([i] {
      uint64_t ran = 0, was_busy = 0, seen_torn = 0;
      // Until so many ran, however often it was busy: a preempted holder makes all others' tries fail.
      for (unsigned n = 0; ran < kRuns; ++n) {
        bool equal = true;  // set again by whoever runs it to the end
        // Some without transactions: both ways keep each other out.
        if (section.run((n + i) % 4 != 0, [&] {
              equal = counter == other;
              ++counter;
              if (n % 64 == 0) std::this_thread::yield();  // preempted inside: others find it busy
              ++other;
            })) {
          ++ran;
          seen_torn += equal ? 0 : 1;
        } else {
          ++was_busy;
          std::this_thread::yield();
        }
      }
      ran_sum += ran;
      busy_sum += was_busy;
      torn += seen_torn;
      begun_sum += Counted::begun;
      aborted_sum += Counted::aborted;
    });
  }
  for (std::thread& t : threads) t.join();
  expect(counter == ran_sum && other == ran_sum, "every body that ran had its effect once");
  expect(torn == 0, "no body saw another one half done");
  printf("%lu sections ran, %lu tries were busy; %lu transactions begun, %lu aborted\n", ran_sum.load(),
         busy_sum.load(), begun_sum.load(), aborted_sum.load());
}

int run_all() {
  once();
  printf("CPUID offers RTM: %s; first transaction: %s, status %#x\n", Transaction::has() ? "yes" : "no",
         Counted::aborted == 0 ? "committed" : "aborted", Counted::last_status);
  busy();
  together();
  fflush(stdout);
  return failures == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (Transaction::has() || (argc == 2 && strcmp(argv[1], "emulated") == 0)) return run_all();
  char self[4096] = {};
  if (readlink("/proc/self/exe", self, sizeof self - 1) > 0) {
    execlp("qemu-x86_64", "qemu-x86_64", "-cpu", "max", self, "emulated", nullptr);
  }
  printf("skipped: a processor without RTM, and no qemu-x86_64 (package qemu-user)\n");
  return kSkipped;
}
