// Address space: metadata pieces, regions, windows, the thread-end key and huge objects, where two threads are first at
// once.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>

#include "os/os.h"
#include "space/chunks.h"
#include "space/housekeeper.h"
#include "space/huge.h"
#include "space/metadata.h"
#include "space/region.h"
#include "stress/explorer/search.h"
#include "stress/explorer/world.h"

namespace explorer {
namespace {

using namespace folio;

bool all_zero(const char* bytes, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (bytes[i] != 0) return false;
  }
  return true;
}

// ---- Metadata ----

struct PieceHead {
  size_t used, bytes;
};

// The piece in use is full: all make a new one, one wins, the losers use its.
TEST(ExploreSpace, MetadataPiece) {
  begin_anew();
  World world;
  auto& current = world.variable<PieceHead*>("_ZN5folio15metadata_piecesE");
  constexpr size_t kBytes = 1000, kLeft = 512;
  metadata_alloc(current->bytes - current->used - kLeft);
  world.save();
  PieceHead* const full = current;
  Machine machine;
  Plan plan;
  char* got[3] = {};
  for (unsigned i = 0; i < 3; ++i) {
    plan.threads.push_back([&got, i] { got[i] = static_cast<char*>(metadata_alloc(kBytes)); });
  }
  plan.reset = [&] {
    if (current != full) os::unreserve(current, current->bytes);
    current = full;
    world.reset();
    for (char*& g : got) g = nullptr;
  };
  plan.verdict = [&]() -> std::string {
    std::vector<char*> sorted;
    for (unsigned i = 0; i < 3; ++i) {
      if (!machine.finished(i)) continue;
      if (got[i] == nullptr || !all_zero(got[i], kBytes)) return "no zero-filled metadata";
      if (!metadata_holds(got[i], kBytes)) return "its piece is forgotten";
      sorted.push_back(got[i]);
    }
    std::sort(sorted.begin(), sorted.end());
    for (size_t i = 0; i + 1 < sorted.size(); ++i) {
      if (sorted[i] + kBytes > sorted[i + 1]) return "metadata overlaps";
    }
    return current == full ? "no new piece" : "";
  };
  expect_sound(explore(machine, plan, {.preemptions = 3, .executions = 5000}), "metadata: three need a new piece");
  expect_sound(vanish(machine, plan), "the same, with a thread that vanishes");
  plan.threads = {plan.threads[0], [full] {
                    if (!metadata_holds(full + 2, 1)) abort();
                  }};
  plan.verdict = [] { return std::string(); };
  expect_sound(explore(machine, plan, {.preemptions = 3}), "metadata: a new piece, and a look through the pieces");
  plan.reset();
}

// ---- Regions ----

TEST(ExploreSpace, Region) {
  begin_anew();
  World world;
  auto& cursor = world.variable<uint64_t>("_ZN5folio13region_cursorE");
  const auto& open = world.variable<uint64_t[2]>(World::kOpenClusters);
  while (cursor >> 32 != (cursor & 0xffffffffu) || (open[0] & 0xffffffffu) != 0) acquire_chunk();
  world.save();
  const size_t before = region_bytes(), one = std::clamp(before, size_t{64} << 20, size_t{1} << 30);
  Machine machine;
  Plan plan;
  char* got[3] = {};
  for (unsigned i = 0; i < 3; ++i) plan.threads.push_back([&got, i] { got[i] = acquire_chunk(); });
  plan.reset = [&] {
    const size_t grown = region_bytes() - before;
    if (grown != 0) os::unreserve(reinterpret_cast<char*>((cursor & 0xffffffffu) << kClusterShift) - grown, grown);
    world.reset();
    for (char*& g : got) g = nullptr;
  };
  plan.verdict = [&]() -> std::string {
    if (region_bytes() - before != one) return "not one new region";
    for (unsigned i = 0; i < 3; ++i) {
      if (!machine.finished(i)) continue;
      if (got[i] == nullptr || reinterpret_cast<uintptr_t>(got[i]) % kChunkBytes != 0) return "no chunk";
      if (got[i] == got[(i + 1) % 3] || got[i] == got[(i + 2) % 3]) return "one chunk twice";
      if (!os::commit(got[i], kChunkBytes)) return "it is not mapped";
    }
    return "";
  };
  expect_sound(explore(machine, plan, {.preemptions = 3, .executions = 5000}), "regions: three need a new one");
}

// One chunk goes back, while others take.
TEST(ExploreSpace, ReturnedChunk) {
  begin_anew();
  World world;
  world.save();
  Machine machine;
  Plan plan;
  char* got[2] = {};
  plan.threads = {[] { return_chunk(acquire_chunk()); }};
  for (unsigned i = 0; i < 2; ++i) plan.threads.push_back([&got, i] { got[i] = acquire_chunk(); });
  plan.reset = [&] { world.reset(); };
  plan.verdict = [&]() -> std::string {
    if (got[0] == got[1]) return "one chunk twice";
    char* const next = acquire_chunk();
    return next == got[0] || next == got[1] ? "one chunk twice" : "";
  };
  keeps_address_space = true;
  expect_sound(explore(machine, plan, {.preemptions = 3}), "regions: one returns a chunk, two take");
  keeps_address_space = false;
  plan.reset();
}

// ---- Windows, keys ----

TEST(ExploreSpace, Window) {
  begin_anew();
  World world;
  world.save();
  const void* const address = reinterpret_cast<void*>(uint64_t{0x123456} << kChunkShift);
  Atomic<Window*>& entry = windows[window_number(address) % kWindows];
  Machine machine;
  Plan plan;
  Window* got[2];
  bool right[2];
  for (unsigned i = 0; i < 2; ++i) {
    plan.threads.push_back([&got, &right, i, address] {
      got[i] = window_make(address);
      right[i] = got[i]->chunk(window_slot(address)) == address;
    });
  }
  plan.reset = [&] {
    world.reset();
    entry.store(nullptr, order::relaxed);
  };
  plan.verdict = [&]() -> std::string {
    if (got[0] == nullptr || got[0] != got[1]) return "two windows";
    return right[0] && right[1] ? "" : "a window with a wrong number";
  };
  expect_sound(explore(machine, plan, {.preemptions = 6, .random = 100}), "windows: two make one");
  entry.store(nullptr, order::relaxed);
}

// Who finds a chunk's descriptor, by whatever address, may read it; its place in the table is opened by either.
TEST(ExploreSpace, Descriptor) {
  begin_anew();
  World world;
  char* const chunk = acquire_chunk();
  Window* const window = window_make(chunk);
  for (uint64_t& steps : world.variable<uint64_t[32]>("_ZN5folio12_GLOBAL__N_110open_stepsE")) steps = 0;
  world.save();
  static uint64_t contents;
  Machine machine;
  Plan plan;
  plan.threads = {[&] {
                    contents = 1;
                    chunk_table_open(chunk, kChunkBytes);
                    set_chunk(window, chunk, &contents, kCodeHugeStart);
                  },
                  [&] {
                    auto* const found = static_cast<uint64_t*>(descriptor_at(chunk));
                    if (found != nullptr && *found != 1) abort();
                    chunk_table_open(chunk + kChunkBytes, kChunkBytes);
                    set_chunk(window, chunk + kChunkBytes, nullptr, kCodeNone);
                  }};
  plan.reset = [&] {
    world.reset();
    set_chunk(window, chunk, nullptr, kCodeNone);
    contents = 0;
  };
  plan.verdict = [] { return std::string(); };
  expect_sound(explore(machine, plan, {.preemptions = 3}), "a chunk's descriptor: one publishes, one looks");
  plan.reset();
}

TEST(ExploreSpace, ThreadEndKey) {
  World world;
  auto& key = world.variable<unsigned>("_ZN5folio2os12_GLOBAL__N_17end_keyE");
  const unsigned before = key;
  pthread_key_t lowest;
  ASSERT_EQ(pthread_key_create(&lowest, nullptr), 0);
  pthread_key_delete(lowest);
  Machine machine;
  Plan plan;
  bool asked[2];
  int values[2];
  for (unsigned i = 0; i < 2; ++i) {
    plan.threads.push_back([&, i] { asked[i] = os::at_thread_end([](void*) {}, &values[i]); });
  }
  plan.reset = [&] {
    if (key != before) pthread_key_delete(key - 2);
    key = before;
  };
  plan.verdict = [&]() -> std::string {
    if (!asked[0] || !asked[1]) return "no key";
    // The next key there is: of two that were made one is left.
    pthread_key_t probe;
    if (pthread_key_create(&probe, nullptr) != 0) return "no more keys";
    pthread_key_delete(probe);
    if (probe > lowest + 1 || key - 2 > lowest + 1) return "a key too many";
    bool right[2];
    for (unsigned i = 0; i < 2; ++i) {
      machine.as(i, [&] { right[i] = pthread_getspecific(key - 2) == &values[i]; });
    }
    return right[0] && right[1] ? "" : "a value under a key that was deleted";
  };
  expect_sound(explore(machine, plan, {.preemptions = 6, .random = 100}), "thread-end key: two are first");
  plan.reset();
}

// ---- The housekeeper's word ----

class Housekeeper {
 public:
  Housekeeper() {
    begin_anew();
    world_.save();
    plan.reset = [this] {
      world_.reset();
      at_work_.store(false, order::relaxed);
      working_ = now_ = entered_ = left_ = 0;
      rung_at_ = called_at_ = ~0u;
      heard_ = stays_ = false;
      wrong_ = nullptr;
    };
    plan.verdict = [this]() -> std::string {
      if (wrong_ != nullptr) return wrong_;
      if (rung_at_ > entered_ && rung_at_ < left_ && !heard_) return "a ring is lost";
      return stays_ == housekeeper_is_own() ? "" : "the word is not that of who is there";
    };
  }

  // Starts, if there is none; works, rests, and leaves unless it was rung.
  Body keep(Rest kind) {
    return [this, kind] {
      if (!housekeeper_enter()) return;
      if (working_ != 0) wrong_ = "two housekeepers";
      ++working_;
      at_work_.store(true, order::release);
      entered_ = tell();
      const Woken woken = housekeeper_rest(kind, 0);
      --working_;
      const bool left = housekeeper_leave();
      const Ghost ghost;
      heard_ = heard_ || woken == Woken::kRung || !left;
      stays_ = !left;
      left_ = ++now_;  // no point lies between this and the last look at the word
    };
  }
  Body ring() {
    return [this] {
      if (!at_work_.load(order::acquire)) return;
      const unsigned at = tell();
      housekeeper_ring();
      const Ghost ghost;
      if (tell() == at + 1) rung_at_ = at;
    };
  }
  static Body call() {
    return [] { housekeeper_call(); };
  }

  Machine machine;
  Plan plan;

 private:
  unsigned tell() {
    const Ghost ghost;
    return ++now_;
  }

  World world_;
  Atomic<bool> at_work_{false};
  static inline unsigned working_;  // plain: who comes next sees what the one before has left
  unsigned now_, entered_, left_, rung_at_, called_at_;
  bool heard_, stays_;
  const char* wrong_;
};

TEST(ExploreHousekeeper, ItsWord) {
  Housekeeper two;
  two.plan.threads = {two.keep(Rest::kBetweenPolls), two.keep(Rest::kBetweenPolls)};
  expect_sound(explore(two.machine, two.plan, {.preemptions = 4}), "housekeeper: two start, rest and leave");
  Housekeeper rung;
  rung.plan.threads = {rung.keep(Rest::kBetweenPolls), rung.ring()};
  expect_sound(explore(rung.machine, rung.plan, {.preemptions = 4}), "housekeeper: a ring");
  Housekeeper called;
  called.plan.threads = {called.keep(Rest::kUntilCalled), Housekeeper::call(), called.ring()};
  expect_sound(explore(called.machine, called.plan, {.preemptions = 3}), "housekeeper: a call and a ring");
}

// ---- Huge objects ----

class HugeScenario {
 public:
  static constexpr size_t kBytes = size_t{3} << 20;
  static constexpr unsigned kLive = 2, kBlocks = 4;

  HugeScenario() {
    begin_anew();
    for (HugeBlock*& block : blocks_) block = huge_alloc(kBytes, 1);
    for (unsigned i = kLive; i < kBlocks; ++i) huge_free(blocks_[i]);
    world_.save();
    plan.reset = [this] { reset(); };
    plan.verdict = [this] { return verdict(); };
  }
  ~HugeScenario() { reset(); }
  HugeScenario(const HugeScenario&) = delete;
  HugeScenario& operator=(const HugeScenario&) = delete;

  Body free(unsigned block) {
    return [this, block] {
      const bool done = huge_free(blocks_[block]);
      const Ghost ghost;
      if (done) ++freed[block];
    };
  }
  Body allocate(unsigned thread) {
    return [this, thread] { got_[thread] = huge_alloc(kBytes, 1); };
  }
  Body resize(unsigned block, size_t bytes) {
    return [this, block, bytes] { huge_resize(blocks_[block], bytes); };
  }
  HugeBlock*& got(unsigned thread) { return got_[thread]; }

  Machine machine;
  Plan plan;
  unsigned freed[kBlocks] = {};
  unsigned most_lost = 0;  // blocks, with a thread that vanishes

 private:
  void reset() {
    for (HugeBlock*& block : got_) {
      if (block != nullptr && !is_first(block->base)) os::unreserve(block->base, block->reserved_bytes);
      block = nullptr;
    }
    world_.reset();
    for (unsigned& n : freed) n = 0;
    // A purge may have unmapped them, and the world does not have their entries.
    for (HugeBlock* block : blocks_) {
      const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
      mmap(block->base, block->reserved_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
      for (size_t at = 0; at < block->reserved_bytes; at += kChunkBytes) {
        const unsigned code = at == 0 ? kCodeHugeStart : kCodeHugeInside;
        set_chunk(window_of(block->base), block->base + at, block, code);
      }
    }
  }

  bool is_first(const char* base) const {
    return std::any_of(blocks_, blocks_ + kBlocks, [&](const HugeBlock* b) { return b->base == base; });
  }

  std::string verdict() {
    std::vector<HugeBlock*> seen;
    for (HugeBlock* block : got_) {
      if (block == nullptr) continue;
      if (huge_at(block->base) != block || chunk_code(block->base + kChunkBytes) != kCodeHugeInside)
        return "not in the table";
      if (block->state.load(order::relaxed) != kHugeLive || block->usable_bytes < kBytes) return "a live block is not";
      block->base[kBytes - 1] = 1;  // it is mapped
      seen.push_back(block);
    }
    for (unsigned i = 0; i < kLive; ++i) {
      if (freed[i] > 1) return "freed twice";
    }
    // Those of order 1: for each eighth the fresh and the old ones.
    using Stack = TaggedStack<HugeBlock, 6>;
    auto* const stacks = &world_.variable<Stack>("_ZN5folio12_GLOBAL__N_17waitingE");
    for (unsigned i = 0; i < 16; ++i) {
      while (HugeBlock* block = stacks[16 + i].pop()) seen.push_back(block);
    }
    auto& spares = world_.variable<Stack>("_ZN5folio12_GLOBAL__N_117spare_descriptorsE");
    while (HugeBlock* block = spares.pop()) seen.push_back(block);
    for (unsigned i = 0; i < kLive; ++i) {
      // A thread that vanished may have freed it, and not have counted that.
      const bool counted = most_lost == 0 || std::find(seen.begin(), seen.end(), blocks_[i]) == seen.end();
      if (freed[i] == 0 && counted) seen.push_back(blocks_[i]);
    }
    std::sort(seen.begin(), seen.end());
    if (std::adjacent_find(seen.begin(), seen.end()) != seen.end()) return "a block is in two places";
    unsigned lost = 0;
    for (HugeBlock* block : blocks_) lost += std::binary_search(seen.begin(), seen.end(), block) ? 0 : 1;
    return lost <= most_lost ? "" : "blocks are lost";
  }

  World world_;
  HugeBlock* blocks_[kBlocks];
  HugeBlock* got_[Machine::kThreadsMost] = {};
};

TEST(ExploreHuge, FreedTwiceAtOnce) {
  HugeScenario s;
  s.plan.threads = {s.free(0), s.free(0), s.free(1)};
  const auto sound = s.plan.verdict;
  s.plan.verdict = [&]() -> std::string { return s.freed[0] != 1 ? "not exactly one free succeeded" : sound(); };
  expect_sound(explore(s.machine, s.plan, {.preemptions = 3, .executions = 5000}),
               "huge: one block freed twice at once");
}

TEST(ExploreHuge, FreeAllocatePurge) {
  HugeScenario s;
  s.plan.threads = {s.free(0), s.allocate(0), [] { huge_purge(true, ~size_t{0}); }};
  expect_sound(explore(s.machine, s.plan, {.executions = 5000}), "huge: free, allocate, purge");
}

// Nobody waits, and what is lost is what the thread had in its hands: a block, or a stack of them while it purges.
TEST(VanishHuge, FreeAllocatePurge) {
  HugeScenario s;
  s.most_lost = 3;
  s.plan.threads = {s.free(0), s.allocate(0), [] { huge_purge(true, ~size_t{0}); }};
  expect_sound(vanish(s.machine, s.plan), "huge: free, allocate, purge, one of which vanishes");
}

// A fork at each step of the others: the child allocates and frees with what is left.
TEST(ForkHuge, FreeAllocatePurgeResize) {
  for (const bool resizes : {false, true}) {
    HugeScenario s;
    s.most_lost = 3;
    s.plan.threads = {s.free(0), s.allocate(0)};
    if (resizes) {
      s.plan.threads.push_back(s.resize(1, HugeScenario::kBytes + 5000));
    } else {
      s.plan.threads.push_back([] { huge_purge(true, ~size_t{0}); });
    }
    const auto sound = s.plan.verdict;
    s.plan.verdict = [&s, sound]() -> std::string {
      s.allocate(1)();
      HugeBlock*& mine = s.got(1);
      if (mine == nullptr || mine == s.got(0)) return "the child has no block of its own";
      if (!huge_free(mine)) return "the child's block is not live";
      mine = nullptr;
      return sound();
    };
    expect_sound(fork_anywhere(s.machine, s.plan), resizes ? "fork: while huge objects are freed, taken and resized"
                                                           : "fork: while huge objects are freed, taken and purged");
  }
}

// A program that orders its calls: whoever gets the pointer frees what it points to.
TEST(ExploreHuge, HandedOver) {
  HugeScenario s;
  static Atomic<HugeBlock*> mailbox{nullptr};
  const auto reset = s.plan.reset;
  s.plan.reset = [reset] {
    reset();
    mailbox.store(nullptr, order::relaxed);
  };
  s.plan.threads = {[&s] {
                      s.allocate(0)();
                      Machine::write_object(s.got(0)->base);
                      mailbox.store(s.got(0), order::release);
                    },
                    [&s] {
                      HugeBlock* const block = mailbox.load(order::acquire);
                      if (block == nullptr || huge_at(block->base) != block) return;
                      Machine::write_object(block->base);
                      s.got(0) = nullptr;
                      huge_free(block);
                    },
                    s.allocate(2)};
  expect_sound(explore(s.machine, s.plan, {.executions = 5000}), "huge: handed over, another one allocates");
}

TEST(ExploreHuge, AllocateAgainstAllocate) {
  HugeScenario s;
  s.plan.threads = {s.allocate(0), s.allocate(1), s.free(0)};
  expect_sound(explore(s.machine, s.plan, {.executions = 5000, .random = 500}), "huge: two allocate, one frees");
}

}  // namespace
}  // namespace explorer
