// Threads that come and go all the time, and end in every way that a thread can.
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "objects.h"

namespace soak {

namespace {

constexpr unsigned kAtOnce = 12, kStacks = 4;
constexpr size_t kStackBytes = 256 << 10;
constexpr unsigned char kStackData = 0xA7;

enum class End { kReturn, kPthreadExit, kDestructors, kLateDestructor, kRawExit, kCancelled, kDetached, kSilent };

struct Guest {
  pthread_t thread;
  uint64_t seed;
  End end;
  unsigned char* stack;  // the program's, or null
  bool runs;
  // What it holds when it is cancelled.
  Object held[8];
  std::atomic<unsigned> holds;
  std::atomic<bool> ready;
};
Guest guests[kAtOnce];
unsigned char* stacks[kStacks];
bool stack_used[kStacks];
std::atomic<unsigned> detached{0};
pthread_key_t key;

Count& charged() { return counts[kChurner]; }

void few_objects(Random& random, bool may_send) {
  Object objects[24];
  const size_t n = 1 + random.below(24);
  for (size_t i = 0; i < n; ++i) {
    objects[i] = make(random, random.one_in(40) ? big_size(random) / 8 + 1 : small_size(random), charged());
  }
  for (size_t i = 0; i < n; ++i) {
    if (random.one_in(4)) resize(objects[i], small_size(random), charged());
    if (may_send && random.one_in(6) && send(static_cast<unsigned>(random.below(kWorkers)), objects[i])) continue;
    release(random, objects[i], charged());
  }
}

struct Round {
  uint64_t seed;
  unsigned number;
  bool late;
};
thread_local Round round_of_thread;

// Comes again in every round; of a late one the first malloc of all comes in the last.
void destructor(void*) {
  Round& round = round_of_thread;
  const bool last = ++round.number == PTHREAD_DESTRUCTOR_ITERATIONS;
  Random random(round.seed, round.number);
  if (!last) pthread_setspecific(key, &round);
  if (last || !round.late) few_objects(random, !round.late);
}

[[noreturn]] void exit_from_within(Random& random, unsigned depth) {
  if (depth == 0) pthread_exit(nullptr);
  few_objects(random, true);
  exit_from_within(random, depth - 1);
}

void free_held(void* argument) {
  auto& guest = *static_cast<Guest*>(argument);
  Random random(guest.seed, 5);
  for (unsigned i = guest.holds.load(); i > 0; --i) release(random, guest.held[i - 1], charged());
}

void wait_for_cancel(Guest& guest, Random& random) {
  pthread_cleanup_push(free_held, &guest);
  for (unsigned i = 0; i < 8; ++i) {
    guest.held[i] = make(random, small_size(random), charged());
    guest.holds.store(i + 1);
  }
  guest.ready.store(true);
  for (;;) {
    few_objects(random, true);
    pause_us(50);  // a cancellation point
  }
  pthread_cleanup_pop(1);
}

void* be_guest(void* argument) {
  auto& guest = *static_cast<Guest*>(argument);
  const End end = guest.end;
  Random random(guest.seed, 3);
  if (end == End::kLateDestructor) {
    round_of_thread = {guest.seed, 0, true};
    pthread_setspecific(key, &round_of_thread);
    unreported_ends.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  if (end == End::kSilent) {
    pause_us(static_cast<unsigned>(random.below(3000)));
    return nullptr;
  }
  few_objects(random, true);
  if (random.one_in(4)) pause_us(static_cast<unsigned>(random.below(3000)));
  if (settings.with[kFork] && settings.with[kForkThreads] && random.one_in(256)) make_child(random);
  if (end == End::kDestructors) {
    round_of_thread = {guest.seed, 0, false};
    pthread_setspecific(key, &round_of_thread);
  } else if (end == End::kPthreadExit) {
    exit_from_within(random, 1 + static_cast<unsigned>(random.below(3)));
  } else if (end == End::kRawExit) {
    unreported_ends.fetch_add(1, std::memory_order_relaxed);
    syscall(SYS_exit, 0);
  } else if (end == End::kCancelled) {
    wait_for_cancel(guest, random);
  } else if (end == End::kDetached) {
    detached.fetch_sub(1, std::memory_order_release);
  }
  return nullptr;
}

// Those of which each costs memory for good are rarer.
End choose_end(Random& random) {
  const size_t kind = random.below(128);
  if (kind < 2 && settings.with[kRawExit]) return End::kRawExit;
  if (kind < 4 && settings.with[kLateExit]) return End::kLateDestructor;
  if (kind < 30 && settings.with[kDestructors]) return End::kDestructors;
  if (kind < 50 && settings.with[kCancel]) return End::kCancelled;
  if (kind < 60 && settings.with[kDetached]) return End::kDetached;
  if (kind < 70) return End::kSilent;  // without a call, perhaps on the stack of one whose end was not told
  return kind < 90 ? End::kPthreadExit : End::kReturn;
}

void check_stack(const unsigned char* stack) {
  for (size_t i = 0; i < kStackBytes; ++i) {
    if (stack[i] != kStackData) {
      fail("contents: %p has changed, byte %zu of data where the stack of a thread was that has ended",
           static_cast<const void*>(stack + i), i);
    }
  }
}

// In a third of all cases a stack of the program's, which is looked through first: it was data until now.
unsigned char* choose_stack(Random& random, pthread_attr_t& attributes) {
  const size_t i = random.below(kStacks * 3);
  if (!settings.with[kUserStacks] || i >= kStacks || stack_used[i]) return nullptr;
  check_stack(stacks[i]);
  if (pthread_attr_setstack(&attributes, stacks[i], kStackBytes) != 0) fail("pthread_attr_setstack");
  stack_used[i] = true;
  return stacks[i];
}

void start(Guest& guest, Random& random) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  guest.seed = random.next();
  guest.end = choose_end(random);
  guest.holds.store(0);
  guest.ready.store(false);
  guest.stack = guest.end == End::kDetached ? nullptr : choose_stack(random, attributes);
  if (guest.end == End::kDetached) {
    detached.fetch_add(1, std::memory_order_relaxed);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  }
  const int error = pthread_create(&guest.thread, &attributes, be_guest, &guest);
  if (error != 0) fail("pthread_create: %s", strerror(error));
  pthread_attr_destroy(&attributes);
  guest.runs = true;
}

void end(Guest& guest) {
  if (!guest.runs) return;
  guest.runs = false;
  if (guest.end == End::kDetached) {
    while (detached.load(std::memory_order_acquire) != 0) pause_us(100);
    return;
  }
  if (guest.end == End::kCancelled) {
    while (!guest.ready.load()) pause_us(50);
    pthread_cancel(guest.thread);
  }
  pthread_join(guest.thread, nullptr);
  if (guest.stack == nullptr) return;
  memset(guest.stack, kStackData, kStackBytes);
  for (unsigned i = 0; i < kStacks; ++i) {
    if (stacks[i] == guest.stack) stack_used[i] = false;
  }
}

}  // namespace

void prepare_churn() {
  pthread_key_create(&key, destructor);
  for (unsigned char*& stack : stacks) {
    stack = static_cast<unsigned char*>(map_pages(kStackBytes));
    memset(stack, kStackData, kStackBytes);
  }
}

void churn() {
  Random random(settings.seed, 101);
  for (;;) {
    if (should_rest()) {
      for (Guest& guest : guests) end(guest);
      rest(nullptr, 0);
    }
    Guest& guest = guests[random.below(kAtOnce)];
    end(guest);
    start(guest, random);
    if (random.one_in(2)) pause_us(static_cast<unsigned>(random.below(2000)));
    counts[kChurner].steps.fetch_add(1, std::memory_order_relaxed);
  }
}

}  // namespace soak
