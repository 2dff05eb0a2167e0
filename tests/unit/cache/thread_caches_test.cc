#include <sys/resource.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>

#include "unit/cache/thread_cache_fixture.h"
#include "unit/child.h"
#include "unit/scripted_cpu.h"

namespace {

// A thread that does one thing after the other when told to, and sleeps in between.
class Worker {
 public:
  Worker() : thread_([this] { main(); }) {}
  ~Worker() {
    run(nullptr);
    thread_.join();
  }
  void run(std::function<void()> what) {
    std::unique_lock lock(mutex_);
    next_ = std::move(what);
    given_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !given_; });
  }

 private:
  void main() {
    for (bool more = true; more;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return given_; });
      more = next_ != nullptr;
      if (more) next_();
      given_ = false;
      changed_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool given_ = false;
  std::function<void()> next_;
  std::thread thread_;
};

TEST_F(ThreadCacheTest, AChildHandsOnWhatItsParentsThreadsCached) {
  Worker worker;
  worker.run([] {
    std::vector<void*> objects = pop_many(bin, 100);
    push_all(bin, objects);
  });
  ThreadCache* const mine = thread_cache();
  const unsigned threads = thread_count();
  EXPECT_EQ(threads, 2u);
  const int result = in_child([&] {
    thread_caches_after_fork(true);  // as core/lifecycle.cc, which this program does not link, would have
    if (thread_count() != 1 || thread_cache() != mine) return kFailed;
    for (ThreadCache* c = thread_caches_first(); c != nullptr; c = c->next_all) {
      if (c != mine && (c->cursors.load(order::relaxed) != nullptr || c->budget.claimed != 0)) return kFailed;
    }
    if (cpu_caches_objects(process_caches, bin) + depot_objects(process_caches.depot, bin) != taken_objects(bin))
      return kFailed;
    std::vector<void*> objects = pop_many(bin, 500);
    push_all(bin, objects);
    return check_bin(process_store, bin) ? kPassed : kFailed;
  });
  EXPECT_EQ(result, kPassed);
  worker.run([] {
    std::vector<void*> objects = pop_many(bin, 100);
    push_all(bin, objects);
  });
  thread_cache_end(mine);  // so that this thread leaves nothing either
}

// A thread without a cache does not ask for one in each call once there was no memory; and it gets one later.
TEST_F(ThreadCacheTest, ARefusedCacheIsAskedForSeldom) {
  if (kSanitized || kEmulated) GTEST_SKIP() << "they need address space of their own";
  const int result = in_child([] {
    rlimit limit;
    if (getrlimit(RLIMIT_DATA, &limit) != 0) return kCannot;
    const rlimit tight{4096, limit.rlim_max};
    if (setrlimit(RLIMIT_DATA, &tight) != 0) return kCannot;
    while (thread_caches_get() != nullptr) {
    }
    if (setrlimit(RLIMIT_DATA, &limit) != 0) return kCannot;
    unsigned without = 0;
    while (thread_caches_get() == nullptr && without < 100000) ++without;
    return without >= 10 && without <= 1000 ? kPassed : kFailed;
  });
  if (result == kCannot) GTEST_SKIP() << "no limit on data can be set here";
  EXPECT_EQ(result, kPassed);
}

// A thread's cache whose cursors are said to lie in `storage`, as if it had gone without a word and this were its
// storage now. Its own are there again afterwards.
class Misled {
 public:
  Misled() {
    worker_.run([this] {
      std::vector<void*> objects = pop_many(bin, 30);
      push_all(bin, objects);
      cache_ = thread_cache();
      cursors_ = &thread_cursors;
    });
  }
  explicit Misled(ThreadCursors* storage) : Misled() { to(storage); }
  ~Misled() { cache_->cursors.store(cursors_, order::relaxed); }
  void to(ThreadCursors* storage) { cache_->cursors.store(storage, order::relaxed); }
  ThreadCache* cache() const { return cache_; }
  const ThreadCursors& cursors() const { return *cursors_; }

 private:
  Worker worker_;
  ThreadCache* cache_ = nullptr;
  ThreadCursors* cursors_ = nullptr;
};

uint64_t objects_in_threads() {
  uint64_t objects[kBins] = {};
  thread_caches_objects(objects);
  return objects[index(bin)];
}

TEST_F(ThreadCacheTest, CursorsOfAnotherOwnerCountForNobody) {
  if (!can_peek()) GTEST_SKIP() << kCannotPeek;
  ThreadCursors storage;
  const Misled misled(&storage);
  storage = misled.cursors();
  EXPECT_GE(thread_cache_objects(misled.cache(), bin), 1u) << "a copy of its own, owner and all";
  EXPECT_EQ(objects_in_threads(), thread_cache_objects(misled.cache(), bin));
  storage.owner = nullptr;
  EXPECT_EQ(thread_cache_objects(misled.cache(), bin), 0u) << "a new thread's";
  EXPECT_EQ(objects_in_threads(), 0u);
  memset(&storage, 0x41, sizeof storage);
  EXPECT_EQ(objects_in_threads(), 0u) << "data of the program's";
}

TEST_F(ThreadCacheTest, CursorsThatLeadNowhereAreNotFollowed) {
  if (!can_peek()) GTEST_SKIP() << kCannotPeek;
  ThreadCursors storage;
  const Misled misled(&storage);
  storage.owner = misled.cache();
  Slot* const wild[] = {nullptr,
                        reinterpret_cast<Slot*>(8),
                        reinterpret_cast<Slot*>(~uintptr_t{7}),
                        reinterpret_cast<Slot*>(uintptr_t{0x4141414141414141}),
                        reinterpret_cast<Slot*>(reinterpret_cast<char*>(misled.cache()) + 1),
                        reinterpret_cast<Slot*>(&storage)};
  for (Slot* cursor : wild) {
    std::fill(std::begin(storage.cursor), std::end(storage.cursor), cursor);
    EXPECT_EQ(objects_in_threads(), 0u) << cursor;
    int result = kFailed;
    on_thread([&] {
      result = in_child([&] {
        thread_caches_after_fork(true);
        std::vector<void*> objects = pop_many(bin, 500);
        push_all(bin, objects);
        return kPassed;
      });
    });
    EXPECT_EQ(result, kPassed) << cursor;
  }
}

TEST_F(ThreadCacheTest, ThreadsWhoseStorageCannotBeReadCountAsNothing) {
  if (!can_peek()) GTEST_SKIP() << kCannotPeek;
  Worker other;
  other.run([] {
    std::vector<void*> objects = pop_many(bin, 30);
    push_all(bin, objects);
  });
  const uint64_t of_other = objects_in_threads();
  EXPECT_GE(of_other, 1u);
  Misled before, behind;  // both, before somebody who makes a cache may find one gone
  const uint64_t of_all = objects_in_threads();
  before.to(reinterpret_cast<ThreadCursors*>(size_t{4096}));
  behind.to(reinterpret_cast<ThreadCursors*>(size_t{8192}));
  EXPECT_LT(of_other, of_all);
  EXPECT_EQ(objects_in_threads(), of_other) << "those beside them count";
}

// All of them; a cache that is taken from a live thread would show in every other test.
unsigned find_gone() { return thread_caches_find_gone(1000); }

TEST_F(ThreadCacheTest, CachesOfThreadsThatLiveAreLeftToThem) {
  Worker workers[3];
  for (Worker& worker : workers) worker.run([] { thread_cache(); });
  const unsigned threads = thread_count();
  EXPECT_GE(threads, 3u);
  EXPECT_EQ(find_gone(), 0u);
  EXPECT_EQ(thread_count(), threads);
  for (Worker& worker : workers) {
    worker.run([] { EXPECT_EQ(thread_cache()->cursors.load(order::relaxed), &thread_cursors); });
  }
}

TEST_F(ThreadCacheTest, ACacheWhoseThreadIsGoneServesAnother) {
  if (!can_peek()) GTEST_SKIP() << kCannotPeek;
  static ThreadCursors storage;
  memset(&storage, 0, sizeof storage);
  // One that nobody knows: the thread that it is taken from must not go on to use it.
  ThreadCache* gone = nullptr;
  on_thread([&] {
    thread_state = {nullptr, Phase::kNew};
    gone = thread_cache_make();
    std::vector<void*> objects = pop_many(bin, 30);
    push_all(bin, objects);
    thread_cache_drain(gone, "test");
    os::at_thread_end(thread_cache_end, nullptr);  // its end is not told
    gone->cursors.store(&storage, order::relaxed);
  });
  EXPECT_EQ(find_gone(), 1u);
  EXPECT_EQ(gone->cursors.load(order::relaxed), nullptr);
  EXPECT_EQ(gone->budget.claimed, 0) << "of this cache; to the pool it returns slowly";
  EXPECT_EQ(find_gone(), 0u);
  on_thread([&] { EXPECT_EQ(thread_cache(), gone); });
}

// A handler of the program's has started a thread in the child before Folio's runs: its cache stays its own.
TEST_F(ThreadCacheTest, AChildLeavesThreadsThatRunInItAlone) {
  if (kThreadSanitizer) GTEST_SKIP() << "it starts no thread there";
  Worker vanishes;
  vanishes.run([] { thread_cache(); });
  const auto child = [] {
    bool good = true;
    ThreadCache* other = nullptr;
    std::atomic<int> step{0};
    std::thread started([&] {
      other = thread_cache();
      std::vector<void*> objects = pop_many(bin, 30);
      push_all(bin, objects);
      step = 1;
      while (step != 2) std::this_thread::yield();
      good = thread_cache_objects(other, bin) > 0 && pop(bin) != nullptr;
    });
    while (step != 1) std::this_thread::yield();
    thread_caches_after_fork(false);
    if (thread_count() != 2 || other->cursors.load(order::relaxed) == nullptr) good = false;
    step = 2;
    started.join();
    return good ? kPassed : kFailed;
  };
  int result = kFailed;
  on_thread([&] {
    thread_cache();
    result = in_child(child);
  });
  EXPECT_EQ(result, kPassed);
}

}  // namespace
