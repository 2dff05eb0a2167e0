#include "cache/thread_caches.h"

#include "cache/cpu_cache.h"
#include "os/os.h"
#include "space/metadata.h"
#include "sync/tagged_stack.h"

namespace folio {

constinit Atomic<ThreadCache*> all_thread_caches{nullptr};

namespace {

constinit TaggedStack<ThreadCache, 6> idle_caches;
constinit Atomic<unsigned> threads{0};

// Whether a top that was read from memory which may have been overwritten leads into a magazine.
bool plausible(const Slot* top) {
  const auto address = reinterpret_cast<uintptr_t>(top);
  return !closed(top) && address % sizeof(Slot) == 0 && address % kMagazineBytes / sizeof(Slot) <= kMagazineObjects &&
         metadata_holds(Magazine::of(top), kMagazineBytes);
}

// A cache whose thread is looked for leads to an odd address.
ThreadTops* sought(ThreadTops* tops) { return reinterpret_cast<ThreadTops*>(reinterpret_cast<uintptr_t>(tops) | 1); }
ThreadTops* tops_of(ThreadCache& c) {
  // [tops] acquire: pairs with thread_cache_make.
  const auto address = reinterpret_cast<uintptr_t>(c.tops.load(order::acquire));
  return reinterpret_cast<ThreadTops*>(address & ~uintptr_t{1});
}

enum class Found { kOwned, kGone, kUnknown };

// Copies tops that a cache leads to. kOwned: they were its own at that moment. kGone: its thread is, or they are
// another thread's by now. `read`: how memory is copied that may be unmapped.
template <class Read>
Found copy_tops(const ThreadCache& c, const ThreadTops* tops, ThreadTops* copy, Read&& read) {
  if (tops == nullptr) return Found::kGone;
  if (tops == &thread_tops) {
    *copy = thread_tops;
  } else if (bool refused; !read(copy, tops, sizeof *copy, &refused)) {
    return refused ? Found::kUnknown : Found::kGone;
  }
  return copy->owner == &c ? Found::kOwned : Found::kGone;
}

// Whether a cache's thread is gone; the cache is the caller's then. The odd address keeps others from it, and says that
// it still is the same thread's life: one that ends in the ordinary way, or another that gets the cache, writes there.
bool take_from_gone(ThreadCache& c) {
  ThreadTops* tops = c.tops.load(order::relaxed);  // relaxed: the compare_exchange decides
  if (tops == nullptr || tops == sought(tops)) return false;
  // [tops] acquire: the owner was set before; pairs with thread_cache_make.
  if (!c.tops.compare_exchange(tops, sought(tops), order::acquire)) return false;
  ThreadTops copy;
  const bool gone = copy_tops(c, tops, &copy, os::peek) == Found::kGone;
  ThreadTops* now = sought(tops);
  return c.tops.compare_exchange(now, gone ? nullptr : tops, order::relaxed) && gone;  // relaxed: nothing hangs on it
}

// Hands on what a thread that did not come along had in use. Wherever it was in a malloc or free, the top is a valid
// one; at most the object in flight is lost.
void hand_on_all(const ThreadTops& tops) {
  for (unsigned i = 1; i < kBins; ++i) {
    if (!plausible(tops.top[i]) || *tops.top[i] == nullptr) continue;
    Magazine* const magazine = Magazine::of(tops.top[i]);
    magazine->park(tops.top[i]);
    if (Magazine* empty = cpu_cache_put(bin_id(i), magazine, "free")) {
      empty->set_next(nullptr);
      magazines_put(empty);
    }
  }
}

constinit Atomic<ThreadCache*> next_look{nullptr};

}  // namespace

ThreadCache* thread_caches_get() {
  constexpr unsigned kLooksForGone = 4;  // before a cache is made: system calls, so a few
  threads.fetch_add(1, order::relaxed);  // relaxed: a statistic
  if (ThreadCache* cache = idle_caches.pop()) return cache;
  if (thread_caches_find_gone(kLooksForGone) != 0) {
    if (ThreadCache* cache = idle_caches.pop()) return cache;
  }
  auto* cache = static_cast<ThreadCache*>(metadata_alloc(sizeof(ThreadCache)));
  if (cache == nullptr) {
    threads.fetch_sub(1, order::relaxed);  // relaxed: a statistic
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
  threads.fetch_sub(1, order::relaxed);  // relaxed: a statistic
  idle_caches.push(&cache);
}

void thread_caches_after_fork(bool alone) {
  unsigned left = 0, gone = 0;
  for (ThreadCache* c = thread_caches_first(); c != nullptr; c = c->next_all) {
    if (c == thread_state.cache) {
      c->thread.store(os::thread_id(), order::relaxed);  // relaxed: this thread's own
      ++left;
      continue;
    }
    ThreadTops* const tops = tops_of(*c);
    if (tops == nullptr) continue;
    if (!alone && os::thread_exists(c->thread.load(order::relaxed))) {  // relaxed: as above
      ++left;
      continue;
    }
    ThreadTops copy;
    const Found found = copy_tops(*c, tops, &copy, os::copy_if_mapped);
    c->tops.store(nullptr, order::relaxed);  // relaxed: its thread is gone
    ++gone;
    if (found == Found::kOwned && tops != &thread_tops) hand_on_all(copy);
    thread_cache_forget(*c);
    idle_caches.push(c);
  }
  // Relaxed: a statistic. A thread that vanished while it came or went counts wrongly.
  if (alone) {
    threads.store(left, order::relaxed);  // relaxed: as above
  } else {
    threads.fetch_sub(gone, order::relaxed);  // relaxed: as above
  }
}

unsigned thread_caches_find_gone(unsigned looks) {
  unsigned found = 0;
  ThreadCache* c = next_look.load(order::relaxed);  // relaxed: any cache will do, and they stay
  for (; looks != 0; --looks) {
    if (c == nullptr) c = thread_caches_first();
    if (c == nullptr) break;
    if (take_from_gone(*c)) {
      thread_cache_forget(*c);
      thread_caches_put(*c);
      ++found;
    }
    c = c->next_all;
  }
  next_look.store(c, order::relaxed);  // relaxed: as above
  return found;
}

unsigned thread_count() { return threads.load(order::relaxed); }  // relaxed: a statistic

ThreadCache* thread_caches_first() {
  return all_thread_caches.load(order::acquire);  // [all-caches] acquire: pairs with new_cache
}

namespace {

// Objects in the magazine that a top leads into, while its thread goes on.
uint64_t objects_at(const Slot* top) {
  if (!plausible(top)) return 0;
  const unsigned at = reinterpret_cast<uintptr_t>(top) % kMagazineBytes / sizeof(Slot),
                 bottom = Magazine::of(top)->bottom();
  return bottom > at && bottom <= kMagazineObjects ? bottom - at : 0;
}

}  // namespace

namespace {

void add_objects(const ThreadTops& tops, uint64_t (&objects)[kBins]) {
  for (unsigned i = 1; i < kBins; ++i) objects[i] += objects_at(tops.top[i]);
}

// The tops of some threads, copied by one system call, or a few where some cannot be read.
struct SomeTops {
  ThreadTops copies[os::kPeekMost];
  os::PeekRange ranges[os::kPeekMost];
  const ThreadCache* owners[os::kPeekMost];
  unsigned count = 0;

  void add(const ThreadCache& c, const ThreadTops* tops) {
    owners[count] = &c;
    ranges[count] = {&copies[count], tops, sizeof *tops};
    ++count;
  }
  void count_objects(uint64_t (&objects)[kBins]) {
    for (unsigned from = 0; from < count;) {
      const unsigned end = from + os::peek_some(ranges + from, count - from);
      for (; from < end; ++from) {
        if (copies[from].owner == owners[from]) add_objects(copies[from], objects);
      }
      ++from;  // one that could not be read, if any
    }
    count = 0;
  }
};

}  // namespace

void thread_caches_objects(uint64_t (&objects)[kBins]) {
  SomeTops some;
  for (ThreadCache* c = thread_caches_first(); c != nullptr; c = c->next_all) {
    const ThreadTops* const tops = tops_of(*c);
    if (tops == &thread_tops && thread_tops.owner == c) {
      add_objects(thread_tops, objects);
    } else if (tops != nullptr) {
      some.add(*c, tops);
      if (some.count == os::kPeekMost) some.count_objects(objects);
    }
  }
  some.count_objects(objects);
}

uint64_t thread_cache_objects(ThreadCache* cache, BinId bin) {
  ThreadTops copy;
  return copy_tops(*cache, tops_of(*cache), &copy, os::peek) == Found::kOwned ? objects_at(copy.top[index(bin)]) : 0;
}

}  // namespace folio
