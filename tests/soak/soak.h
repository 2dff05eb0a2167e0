// What the parts of the soak share: its settings, its randomness, its counters, and how it fails.
//
// Nothing here allocates: all tables are static or mapped, so that what is checked cannot damage what checks it.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <atomic>

namespace soak {

inline constexpr unsigned kWorkers = 8;

// What may be left out (--without NAME,...), so that what is known to be wrong does not hide what is not.
enum Hazard : unsigned {
  kRawExit,      // threads that end by the raw system call: nobody tells their end
  kLateExit,     // threads whose first malloc of all comes in the last round of their destructors: the same
  kDestructors,  // thread-specific destructors that allocate in every round
  kUserStacks,   // threads on stacks of the program's, which holds data there afterwards
  kCancel,       // threads that are cancelled
  kDetached,     // threads that nobody joins
  kFork,         // children
  kForkThreads,  // a thread of each child's own, and children that short-lived threads make
  kRawFork,      // children by the raw system call, without the libc's handlers
  kVfork,        // vfork and exec
  kVforkMalloc,  // a vfork child that allocates and frees before it goes
  kStatistics,   // a ninth thread that asks for statistics all the time
  kCollect,      // malloc_trim and folio_collect
  kHuge,         // objects above 8 MiB
  kHazards
};
inline constexpr const char* kHazardNames[kHazards] = {
    "raw-exit",     "late-exit", "destructors", "user-stacks",  "cancel",     "detached", "fork",
    "fork-threads", "raw-fork",  "vfork",       "vfork-malloc", "statistics", "collect",  "huge"};

struct Settings {
  uint64_t seed = 1;
  size_t worker_bytes = size_t{48} << 20;  // what a worker may hold
  size_t queued_bytes = size_t{64} << 20;  // what may wait in queues
  bool with[kHazards];
  char sabotage = 0;  // w: writes to an object that is not its own; l: loses memory; h: a worker stops
};
extern Settings settings;

class Random {
 public:
  Random(uint64_t seed, uint64_t stream) : state_(seed * 0x9E3779B97F4A7C15u + stream) {}
  uint64_t next() {  // splitmix64
    uint64_t x = state_ += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
  }
  size_t below(size_t n) { return next() % n; }
  bool one_in(size_t n) { return below(n) == 0; }

 private:
  uint64_t state_;
};

// One line about it to the driver, which looks at the stacks of this process and ends it.
[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* format, ...);
extern std::atomic<bool> failing;  // a thread of this process is in there: the process must stay
// A line to the driver, whole or not at all.
__attribute__((format(printf, 1, 2))) void tell(const char* format, ...);

// Who acts: workers, the maker of threads, the maker of children, who asks for statistics.
enum Actor : unsigned { kChurner = kWorkers, kParent, kAsker, kActors };
struct alignas(64) Count {
  std::atomic<uint64_t> steps{0};
  std::atomic<int64_t> live{0};   // usable bytes of objects made, less those freed; may be negative, the sum is not
  std::atomic<int64_t> spare{0};  // what large ones among them may have beyond that, in granules that nobody asked for
};
extern Count counts[kActors];
extern std::atomic<uint64_t> unreported_ends;  // of threads that Folio is not told of

// What main wants of all actors. Each looks before every step, and says so when it has come to rest.
enum Order : unsigned { kRun, kRest, kDrain, kEmpty, kOrders };
extern std::atomic<unsigned> wanted;   // the number of the order, times kOrders, and the order; kRest at the start
extern std::atomic<unsigned> resting;  // how many actors have followed
// Returns when everybody may run again; the workers follow kDrain and kEmpty by `drain`.
void rest(void (*drain)(unsigned worker, bool everything), unsigned worker);
inline bool should_rest() { return wanted.load(std::memory_order_acquire) % kOrders != kRun; }

void pause_us(unsigned microseconds);
void* map_pages(size_t bytes);  // zero, resident

void work(unsigned worker);
void churn();
void make_children();
void ask();

void prepare_churn();
// A child of the calling thread's, checked and waited for.
void make_child(Random& random);

}  // namespace soak
