// Makes, reuses and ends thread caches; reads other threads' cursors; finds caches whose thread is gone.
#include "cache/thread_caches.h"

#include "cache/cpu_cache.h"
#include "cache/depot.h"
#include "os/os.h"
#include "space/housekeeper.h"
#include "space/metadata.h"
#include "sync/relaxed.h"
#include "sync/tagged_stack.h"

namespace folio {

constinit Atomic<ThreadCache*> all_thread_caches{nullptr};

namespace {

constinit TaggedStack<ThreadCache, 6> idle_caches;
constinit Counter<unsigned> threads{0};

// Whether a cursor leads into a magazine. It may come from memory that is something else by now.
bool plausible(const Slot* cursor) {
  const auto address = reinterpret_cast<uintptr_t>(cursor);
  return !closed(cursor) && address % sizeof(Slot) == 0 &&
         address % kMagazineBytes / sizeof(Slot) <= kMagazineObjects &&
         metadata_holds(Magazine::of(cursor), kMagazineBytes);
}

// While a search looks for a cache's thread, the cache's pointer to its cursors is odd.
ThreadCursors* sought(ThreadCursors* cursors) {
  return reinterpret_cast<ThreadCursors*>(reinterpret_cast<uintptr_t>(cursors) | 1);
}
ThreadCursors* without_mark(ThreadCursors* cursors) {
  return reinterpret_cast<ThreadCursors*>(reinterpret_cast<uintptr_t>(cursors) & ~uintptr_t{1});
}
// Relaxed: for statistics, which count what they read there only if its owner is this cache.
ThreadCursors* cursors_of(const ThreadCache& c) { return without_mark(c.cursors.load(order::relaxed)); }

// Whether a cache's thread is gone; the cache is the caller's then. Only a search writes an odd address. As long as it
// stays, the cache belongs to the same thread: the ordinary end of that thread, or another one that gets the cache,
// overwrites it.
bool take_from_gone(ThreadCache& c) {
  ThreadCursors* cursors = c.cursors.load(order::relaxed);  // relaxed: the compare_exchange decides
  if (cursors == nullptr || cursors == sought(cursors)) return false;
  // [cursors] acquire: sees the owner that was set before; pairs with thread_cache_make.
  if (!c.cursors.compare_exchange(cursors, sought(cursors), order::acquire)) return false;
  const os::Answer own = os::word_is(reinterpret_cast<const void* const*>(&cursors->owner), &c);
  // Unreadable TLS may also lie on a stack that other threads must not read (protection keys). Relaxed: the number was
  // published with the cursors.
  const bool gone =
      own == os::Answer::kOther || (own == os::Answer::kNotThere && !os::thread_exists(c.thread.load(order::relaxed)));
  ThreadCursors* now = sought(cursors);
  // Relaxed: the result is all there is to know.
  return c.cursors.compare_exchange(now, gone ? nullptr : cursors, order::relaxed) && gone;
}

// In a fork's child: flushes the magazines in use of a vanished thread. Wherever that thread was in a malloc or free,
// its cursors are valid; at most the object in flight is lost.
void hand_on_all(const ThreadCursors& cursors) {
  for (unsigned i = 1; i < kBins; ++i) {
    if (!plausible(cursors.cursor[i]) || *cursors.cursor[i] == nullptr) continue;
    Magazine* const magazine = Magazine::of(cursors.cursor[i]);
    magazine->park(cursors.cursor[i]);
    if (Magazine* empty = cpu_cache_put(process_caches, bin_id(i), magazine, "free")) {
      empty->set_next(nullptr);
      magazines_put(empty);
    }
  }
}

constinit Hint<ThreadCache*> next_check{nullptr};
constinit Atomic<bool> checking{false};
constinit MetadataSeldom new_caches;

}  // namespace

ThreadCache* thread_caches_get() {
  constexpr unsigned kChecksForGone = 4;  // only a few before a cache is made: system calls
  threads.add(1);
  if (ThreadCache* cache = idle_caches.pop()) return cache;
  const bool waits = new_caches.waits();
  if (!waits && thread_caches_find_gone(kChecksForGone) != 0) {
    if (ThreadCache* cache = idle_caches.pop()) return cache;
  }
  auto* cache = waits ? nullptr : static_cast<ThreadCache*>(new_caches.alloc(sizeof(ThreadCache)));
  if (cache == nullptr) {
    threads.sub(1);
    return nullptr;
  }
  ThreadCache* first = all_thread_caches.load(order::relaxed);  // relaxed: a guess
  do {
    cache->next_all = first;
    // [all-caches] release: publishes next_all; pairs with thread_caches_first.
  } while (!all_thread_caches.compare_exchange(first, cache, order::release));
  return cache;
}

void thread_caches_put(ThreadCache& cache) {
  threads.sub(1);
  idle_caches.push(&cache);
}

bool thread_caches_others_run() {
  for (ThreadCache* c = thread_caches_first(); c != nullptr; c = c->next_all) {
    // Relaxed, both: set before the fork, or by threads that a handler has started before this call.
    if (c == thread_state.cache || c->cursors.load(order::relaxed) == nullptr) continue;
    if (os::thread_exists(c->thread.load(order::relaxed))) return true;  // relaxed: see above
  }
  return false;
}

void thread_caches_drop_large() {
  for (ThreadCache* c = thread_caches_first(); c != nullptr; c = c->next_all) {
    const uint64_t claimed = c->large.budget;
    if (claimed == 0) continue;  // no write to a page that the parent shares
    c->large = LargeList{};
    c->large.budget = claimed;
  }
}

void thread_caches_after_fork(bool alone) {
  unsigned left = 0, gone = 0;
  // [check] acquire: nobody finds caches gone meanwhile; pairs with the store below. If `alone`, a set flag is a
  // vanished thread's. unseen: as in thread_caches_find_gone
  const bool free_again = !checking.exchange(true, order::acquire) || alone;
  for (ThreadCache* c = thread_caches_first(); c != nullptr; c = c->next_all) {
    if (c == thread_state.cache) {
      c->thread.store(os::thread_id(), order::relaxed);  // relaxed: this thread's own
      // Undoes the mark of a vanished thread's search. Relaxed: the owner was set before the fork.
      c->cursors.store(&thread_cursors, order::relaxed);
      ++left;
      continue;
    }
    // [cursors] acquire: sees the thread's number; pairs with thread_cache_make.
    ThreadCursors* word = c->cursors.load(order::acquire);
    const ThreadCursors* const cursors = without_mark(word);
    if (cursors == nullptr) continue;
    if (!alone && os::thread_exists(c->thread.load(order::relaxed))) {  // relaxed: acquired with the cursors
      ++left;
      continue;
    }
    ThreadCursors copy;
    // copy_if_mapped only if alone: another thread may unmap stacks that the libc has kept.
    const auto read = [&] {
      return alone ? os::copy_if_mapped(&copy, cursors, sizeof copy) == os::Answer::kYes
                   : os::peek(&copy, cursors, sizeof copy);
    };
    const bool copied = cursors != &thread_cursors && read();
    // Fails if another thread has found the cache's thread gone meanwhile. Relaxed: that thread is gone.
    if (!c->cursors.compare_exchange(word, nullptr, order::relaxed)) continue;
    ++gone;
    const bool found = copied && copy.owner == c;
    if (found) hand_on_all(copy);
    thread_cache_forget(*c, !found);
    idle_caches.push(c);
  }
  // [check] release: pairs with the exchange above. unseen: as at that exchange
  if (free_again) checking.store(false, order::release);
  // Alone, counts anew: a thread that vanished in thread_caches_get or thread_caches_put may have counted wrongly.
  if (alone) {
    threads.set(left);
  } else {
    threads.sub(gone);
  }
}

ThreadCache* thread_cache_make() {
  ThreadCache* cache = thread_caches_get();
  if (cache == nullptr) return nullptr;
  thread_cache_begin(*cache);
  thread_state = {cache, Phase::kCached};
  thread_cursors.owner = cache;
  cache->thread.store(os::thread_id(), order::relaxed);  // relaxed: published with the cursors
  if (thread_count() > 1) depot_set_shared(process_caches.depot);
  // [cursors] release: after the cache and its owner are set up; pairs with take_from_gone.
  cache->cursors.store(&thread_cursors, order::release);
  // May allocate, through this very cache. If it fails, the thread ends unnoticed, and what it caches is lost.
  os::at_thread_end(thread_cache_end, cache);
  return cache;
}

void thread_cache_end(void* value) {
  auto* cache = static_cast<ThreadCache*>(value);
  // After a thread has left by the raw system call, glibc passes its specific values on to the next thread on that
  // stack, which may never call malloc or free. The cache may serve another thread by then.
  if (cache != thread_state.cache) return;
  // First, so that later destructors of this thread allocate from and free to the folios.
  thread_state = {nullptr, Phase::kEnded};
  cache->cursors.store(nullptr, order::relaxed);  // relaxed: readers check what they read
  thread_cache_hand_on(*cache);
  thread_caches_put(*cache);
  // The housekeeper is to check whether it must leave: at most one thread is left, or the first thread ends, so that
  // the process ends with the others.
  if (thread_count() <= 1 || os::in_first_thread()) housekeeper_ring();
}

unsigned thread_caches_find_gone(unsigned checks) {
  unsigned found = 0;
  // [check] acquire: one search at a time, so that an odd address is the caller's; pairs with the store below. If a
  // thread stops here for ever, nobody finds such caches any more. unseen: in the explorer's memory nothing comes
  // before an exchange, or after a store, that does not in the program
  if (checking.load(order::relaxed) || checking.exchange(true, order::acquire)) return 0;  // relaxed: a glance first
  ThreadCache* c = next_check.get();  // any cache will do, and they stay
  for (; checks != 0; --checks) {
    if (c == nullptr) c = thread_caches_first();
    if (c == nullptr) break;
    if (take_from_gone(*c)) {
      thread_cache_forget(*c, true);
      thread_caches_put(*c);
      ++found;
    }
    c = c->next_all;
  }
  next_check.set(c);
  // [check] release: pairs with the exchange above. unseen: as at that exchange
  checking.store(false, order::release);
  return found;
}

unsigned thread_count() { return threads.get(); }

ThreadCache* thread_caches_first() {
  return all_thread_caches.load(order::acquire);  // [all-caches] acquire: pairs with thread_caches_get
}

namespace {

// An estimate of the objects in the magazine that a cursor leads into, as its thread goes on.
uint64_t objects_at(const Slot* cursor) {
  if (!plausible(cursor)) return 0;
  const unsigned at = reinterpret_cast<uintptr_t>(cursor) % kMagazineBytes / sizeof(Slot),
                 bottom = Magazine::of(cursor)->bottom();
  return bottom > at && bottom <= kMagazineObjects ? bottom - at : 0;
}

}  // namespace

namespace {

// Copies of some threads' cursors, by one system call, and another for each thread that cannot be read. Only a few, as
// they lie on a stack that may be small.
class SomeCursors {
 public:
  explicit SomeCursors(uint64_t (&objects)[kBins]) : objects_(objects) {}
  ~SomeCursors() { count_all(); }

  void add(const ThreadCache& c) {
    const ThreadCursors* const cursors = cursors_of(c);
    if (cursors == nullptr) return;
    if (cursors == &thread_cursors) {
      if (thread_cursors.owner == &c) count(thread_cursors.cursor);
      return;
    }
    Copy& copy = copies_[n_];
    caches_[n_] = &c;
    os::PeekRange* const ranges = ranges_ + size_t{2} * n_;
    ranges[0] = {copy.cursor, cursors->cursor, sizeof copy.cursor};
    ranges[1] = {&copy.owner, &cursors->owner, sizeof copy.owner};
    if (++n_ == kMost) count_all();
  }

 private:
  static constexpr unsigned kMost = os::kPeekMost / 2;
  struct Copy {
    Slot* cursor[kBins];
    ThreadCache* owner;
  };

  void count(Slot* const* cursors) {
    for (unsigned i = 1; i < kBins; ++i) objects_[i] += objects_at(cursors[i]);
  }
  void count_all() {
    for (unsigned from = 0; from < n_;) {
      const unsigned end = from + os::peek_some(ranges_ + size_t{2} * from, 2 * (n_ - from)) / 2;
      for (; from < end; ++from) {
        if (copies_[from].owner == caches_[from]) count(copies_[from].cursor);
      }
      ++from;  // skips one that could not be read, if any
    }
    n_ = 0;
  }

  uint64_t (&objects_)[kBins];
  Copy copies_[kMost];
  os::PeekRange ranges_[2 * kMost];
  const ThreadCache* caches_[kMost];
  unsigned n_ = 0;
};

}  // namespace

void thread_caches_objects(uint64_t (&objects)[kBins]) {
  SomeCursors some(objects);
  for (ThreadCache* c = thread_caches_first(); c != nullptr; c = c->next_all) some.add(*c);
}

}  // namespace folio
