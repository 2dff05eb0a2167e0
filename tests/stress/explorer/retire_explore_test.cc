// Chunks that come and go: retired, opened again at the same place by the same bin or another one, taken back by the
// field that lent them; and bins whose chunks lie in two windows.
//
// Afterwards every invariant of both bins holds, no object has two owners, and takers reach all that is free.
#include <gtest/gtest.h>

#include "space/fields.h"
#include "space/large.h"
#include "space/pages.h"
#include "store/retire.h"
#include "stress/explorer/bin_scenario.h"
#include "unit/store/purge_bins.h"

namespace explorer {
namespace {

using namespace folio;

constexpr size_t kGiB = size_t{1} << 30;

class ChunkScenario {
 public:
  enum class Where { kOneWindow, kTwoWindows, kField, kFieldOfTwo, kCluster };

  explicit ChunkScenario(Where place = Where::kOneWindow) {
    begin_anew();
    keeps_address_space = true;
    if (place == Where::kField || place == Where::kFieldOfTwo) {
      prepare_field(place == Where::kField ? 1 : 2);
    } else {
      place_chunks(place == Where::kTwoWindows ? kWindowChunks - 1 : place == Where::kCluster ? kClusterChunks : 2);
    }
    plan.reset = [this] { reset(); };
    plan.verdict = [this] { return verdict(); };
  }
  ~ChunkScenario() {
    reset();
    keeps_address_space = no_address_space = false;
  }
  ChunkScenario(const ChunkScenario&) = delete;
  ChunkScenario& operator=(const ChunkScenario&) = delete;

  // Before the execution: `left` objects are taken of so many chunks of the bin, the others were and are free.
  void open(BinId b, unsigned chunks, unsigned left, bool purged = true) {
    std::vector<void*> all;
    for (unsigned most = chunks * info_of(b).objects; all.size() < most;) {
      void* some[kFolioObjects];
      const auto n = take_objects(process_store, b, some,
                                  std::min<unsigned>(kFolioObjects, most - static_cast<unsigned>(all.size())));
      if (n == 0) abort();
      all.insert(all.end(), some, some + n);
    }
    std::sort(all.begin(), all.end());
    for (size_t i = left; i < all.size(); ++i) give_objects(b, &all[i], 1, "explorer");
    for (size_t i = 0; i < left; ++i) left_.push_back({b, all[i]});
    // Few pages are to be looked at.
    if (purged) folio_test::purge_bins(process_store, PurgeWhich::kAll, ~size_t{0});
    if (left != all.size()) open_in_part(b);
  }
  // One object is taken and given back: of a new chunk what is committed is little more.
  void open_in_part(BinId b) {
    void* some[kFolioObjects];
    if (take_objects(process_store, b, some, 1) != 1) abort();
    give_objects(b, some, 1, "explorer");
  }
  // A cluster of chunks of `bin`, free but for `left` objects, is a huge page.
  void open_huge(unsigned left) {
    open(bin, kClusterChunks, left, false);
    visit_chunks(process_store, bin, [](Descriptor& d) {
      note_cluster_huge(d.chunk());
      d.set_backing(Backing::kHuge);
      note_whole(d);
      return true;
    });
  }
  void expect_sound(const char* what) {
    visit_chunks_of_all([this](Descriptor& d) { entries_.push_back({d.first, index(d.bin)}); });
    for (size_t at = 0; field_ != nullptr && at < size_t{field_->granules} << kGranuleShift; at += kChunkBytes) {
      if (chunk_code(field_->base + at) == kCodeLarge) entries_.push_back({field_->base + at, kCodeLarge});
    }
    beside_ = uncounted();
    world_.save();
    explorer::expect_sound(explore(machine, plan, {.preemptions = 3, .executions = 3000, .random = 300}), what);
  }

  Body take(BinId b, unsigned count, bool may_open = true) {
    return [this, b, count, may_open] {
      void* objects[kFolioObjects];
      const unsigned n = may_open ? take_objects(process_store, b, objects, count)
                                  : take_objects_in_open_chunks(process_store, b, objects, count);
      for (unsigned i = 0; i < n; ++i) Machine::write_object(objects[i]);
      const Ghost ghost;
      for (unsigned i = 0; i < n; ++i) held_.push_back({b, objects[i]});
    };
  }
  // Of what was left taken.
  Body give(unsigned from, unsigned count) {
    return [this, from, count] {
      for (unsigned i = from; i < from + count; ++i) Machine::write_object(left_[i].object);
      for (unsigned i = from; i < from + count; ++i) {
        {
          const Ghost ghost;
          given_[i] = true;
        }
        give_objects(left_[i].bin, &left_[i].object, 1, "explorer");
      }
    };
  }
  static Body retire() {
    return [] { retire_free_chunks(process_store); };
  }
  static Body purge() {
    return [] { folio_test::purge_bins(process_store, PurgeWhich::kNow, ~size_t{0}); };
  }
  static Body purge_large() {
    return [] { large_purge(process_fields, true, ~size_t{0}); };
  }
  static Body both(Body first, Body second) {
    return [first, second] {
      first();
      second();
    };
  }
  Body allocate_large(unsigned granules) {
    return [this, granules] {
      auto* const object =
          static_cast<char*>(large_alloc(process_fields, granules * kGranuleBytes - kLineOffsetMost, 1, false, false));
      if (object == nullptr) return;
      Machine::write_object(object);
      const Ghost ghost;
      large_.push_back(object);
    };
  }

  // Of both a chunk has few folios. (One of the largest bin is open already.)
  const BinId bin = bin_for(16384), other = bin_id(kBins - 3);
  Machine machine;
  Plan plan;

 private:
  struct Held {
    BinId bin;
    void* object;
  };

  // A region of which the next chunk has this number in its window, with some more behind it.
  void place_chunks(unsigned slot) {
    constexpr size_t kWindowBytes = kWindowChunks * kChunkBytes;
    static char* const windows_of_it = static_cast<char*>(os::reserve(2 * kWindowBytes, kWindowBytes));
    if (windows_of_it == nullptr) abort();
    const uint64_t first = (reinterpret_cast<uintptr_t>(windows_of_it) >> kChunkShift) + slot;
    const uint64_t left = kClusterChunks - slot % kClusterChunks, cluster = (first + left) / kClusterChunks;
    world_.variable<uint64_t[2]>(World::kOpenClusters)[0] = first << 32 | left;
    world_.variable<uint64_t>("_ZN5folio13region_cursorE") = cluster << 32 | (cluster + 4);
  }

  // A field with so many free chunks, side by side, and no address space beside it.
  void prepare_field(unsigned chunks) {
    world_.variable<uint64_t>("_ZN5folio13region_cursorE") = 0;
    for (uint64_t& open : world_.variable<uint64_t[2]>(World::kOpenClusters)) open = 0;
    const size_t bytes = chunks * kChunkBytes;
    auto* const hole = static_cast<char*>(large_alloc(process_fields, bytes, kChunkBytes, false));
    Field* const field = large_place(hole).field;
    for (unsigned n = 500; n != 0; n /= 2) {
      while (large_alloc(process_fields, n * kGranuleBytes - kLineOffsetMost, 1, false, false) != nullptr) {
      }
    }
    if (first_field(process_fields) != field || next_field(*field) != nullptr || !large_free(hole)) abort();
    field_ = field;
    no_address_space = true;
    if (large_stats(process_fields).taken + bytes != large_stats(process_fields).reserved) abort();
  }

  template <class Visit>
  void visit_chunks_of_all(Visit&& visit) const {
    for (const BinId b : {bin, other}) {
      visit_chunks(process_store, b, [&](Descriptor& d) {
        visit(d);
        return true;
      });
    }
  }

  // What is counted of pages and is not marked in a chunk of the two bins.
  struct Counts {
    int64_t resident, dirty;
  };
  Counts uncounted() const {
    const auto page = static_cast<int64_t>(os::page_bytes());
    Counts c{page_counts.resident.get(), page_counts.dirty.get()};
    visit_chunks_of_all([&](Descriptor& d) {
      for (unsigned w = 0; w < kPageWords; ++w) {
        c.resident -= page * static_cast<int64_t>(popcount(d.resident(w).load(order::relaxed)));
        c.dirty -= page * static_cast<int64_t>(popcount(d.dirty(w).load(order::relaxed)));
      }
    });
    return c;
  }

  void reset() {
    world_.reset();
    for (const auto& [chunk, code] : entries_) {
      chunk_entry(chunk).store(static_cast<uint16_t>(code * kCursorBytes), order::relaxed);
    }
    held_.clear();
    large_.clear();
    given_.assign(left_.size(), false);
  }

  std::string verdict() {
    std::vector<Held> live = held_;
    for (unsigned i = 0; i < left_.size(); ++i) {
      if (!given_[i]) live.push_back(left_[i]);
    }
    for (const Held& h : live) {
      const folio::Place place = place_of(h.object);
      if (place.descriptor == nullptr || place.descriptor->bin != h.bin || place.base != h.object) {
        return "a live object is in no chunk of its bin";
      }
      if (!place.taken()) return "an object that a thread holds is free";
      *static_cast<char*>(h.object) = 1;  // it is mapped
    }
    std::sort(live.begin(), live.end(), [](const Held& a, const Held& b) { return a.object < b.object; });
    for (size_t i = 1; i < live.size(); ++i) {
      if (live[i].object == live[i - 1].object) return "an object was handed out twice";
    }
    for (char* object : large_) {
      if (!large_place(object).starts(object)) return "a live large object is not found";
      for (const Held& h : live) {
        if (large_place(object).holds(h.object)) return "a large object and another one at one place";
      }
    }
    if (field_ != nullptr && !large_check(process_fields)) return "large_check";
    const Counts now = uncounted();
    if (field_ == nullptr && now.resident != beside_.resident) return "resident pages are counted wrongly";
    if (field_ == nullptr && now.dirty != beside_.dirty) return "dirty pages are counted wrongly";
    for (const BinId b : {bin, other}) {
      if (!check_bin(process_store, b)) return "check_bin: an invariant does not hold";
      unsigned all = 0, mine = 0;
      const unsigned taken = taken_objects(b, &all);
      for (const Held& h : live) mine += h.bin == b ? 1 : 0;
      if (taken != mine) return "objects are taken that nobody has: " + std::to_string(taken - mine);
      if (reachable_objects(b) != all - taken) return "free objects that no hint leads to";
    }
    return "";
  }

  World world_;
  Field* field_ = nullptr;
  std::vector<std::pair<const char*, unsigned>> entries_;
  std::vector<Held> left_, held_;
  std::vector<bool> given_;
  std::vector<char*> large_;
  Counts beside_{};
};

TEST(ExploreRetire, AgainstTakeAndGive) {
  ChunkScenario taken;
  taken.open(taken.bin, 1, 0);
  taken.plan.threads = {ChunkScenario::retire(), taken.take(taken.bin, 1), taken.take(taken.bin, 1)};
  taken.expect_sound("retire; take; take");
  ChunkScenario given;
  given.open(given.bin, 1, 1);
  given.plan.threads = {ChunkScenario::retire(), given.give(0, 1), given.take(given.bin, 1)};
  given.expect_sound("retire; give the last; take");
}

// All that is free is purged at once, and is huge again when it is touched; or a part breaks it.
TEST(ExploreRetire, AClusterIsPurged) {
  ChunkScenario taken(ChunkScenario::Where::kCluster);
  taken.open_huge(0);
  taken.plan.threads = {ChunkScenario::purge(), taken.take(taken.bin, 1, false)};
  taken.expect_sound("purge of a cluster; take");
  ChunkScenario twice(ChunkScenario::Where::kCluster);
  twice.open_huge(0);
  twice.plan.threads = {ChunkScenario::purge(), ChunkScenario::purge()};
  twice.expect_sound("purge of a cluster; twice");
  ChunkScenario given(ChunkScenario::Where::kCluster);
  given.open_huge(1);
  given.plan.threads = {ChunkScenario::both(given.give(0, 1), ChunkScenario::purge()), given.take(given.bin, 1, false)};
  given.expect_sound("give the last, purge of a cluster; take");
  ChunkScenario retired(ChunkScenario::Where::kCluster);
  retired.open_huge(0);
  retired.plan.threads = {ChunkScenario::purge(), ChunkScenario::retire()};
  retired.expect_sound("purge of a cluster; retire");
  ChunkScenario touched(ChunkScenario::Where::kCluster);
  touched.open_huge(0);
  ChunkScenario::purge()();
  touched.plan.threads = {touched.take(touched.bin, 1, false), touched.take(touched.bin, 1, false),
                          ChunkScenario::retire()};
  touched.expect_sound("a purged cluster: take; take; retire");
}

// The next take of the other bin, which has a full chunk, inherits the first one's.
TEST(ExploreRetire, Inherit) {
  const auto floor = options.dirty_floor;
  options.dirty_floor = 0;
  ChunkScenario taken;
  taken.open(taken.other, 1, info_of(taken.other).objects);
  taken.open(taken.bin, 1, 0, false);
  taken.plan.threads = {taken.take(taken.other, 1), taken.take(taken.bin, 1)};
  taken.expect_sound("inherit; take");
  ChunkScenario given;
  given.open(given.bin, 1, 1, false);
  given.open(given.other, 1, info_of(given.other).objects, false);
  given.plan.threads = {ChunkScenario::both(given.give(0, 1), given.take(given.other, 1)), given.take(given.bin, 1)};
  given.expect_sound("give the last, inherit; take");
  ChunkScenario purged;
  purged.open(purged.other, 1, info_of(purged.other).objects);
  purged.open(purged.bin, 1, 0, false);
  purged.plan.threads = {purged.take(purged.other, 1), ChunkScenario::purge()};
  purged.expect_sound("inherit; purge");
  ChunkScenario twice;
  twice.open(twice.other, 1, info_of(twice.other).objects);
  twice.open(twice.bin, 1, 0, false);
  twice.plan.threads = {twice.take(twice.other, 1), twice.take(twice.other, 1)};
  twice.expect_sound("inherit; inherit");
  options.dirty_floor = floor;
}

// The next take of a bin with a full chunk has a warm one of the field.
TEST(ExploreRetire, InheritFromAField) {
  const auto floor = options.dirty_floor;
  options.dirty_floor = 0;
  const auto explore_beside = [](const char* what, auto&& second) {
    ChunkScenario s(ChunkScenario::Where::kFieldOfTwo);
    s.open(s.other, 1, info_of(s.other).objects);
    s.plan.threads = {s.take(s.other, 1), second(s)};
    s.expect_sound(what);
  };
  explore_beside("inherit from a field; take of it",
                 [](ChunkScenario& s) { return s.allocate_large(kChunkBytes / kGranuleBytes + 4); });
  explore_beside("inherit from a field; purge of it", [](ChunkScenario& s) { return s.purge_large(); });
  explore_beside("inherit from a field; twice", [](ChunkScenario& s) { return s.take(s.other, 1); });
  explore_beside("inherit from a field; retire", [](ChunkScenario& s) { return s.retire(); });
  options.dirty_floor = floor;
}

TEST(ExploreRetire, AgainstPurgeAndRetire) {
  ChunkScenario purged;
  purged.open(purged.other, 1, 0);
  purged.plan.threads = {ChunkScenario::retire(), ChunkScenario::purge()};
  purged.expect_sound("retire; purge");
  ChunkScenario two;
  two.open(two.other, 1, 0);
  two.plan.threads = {ChunkScenario::retire(), ChunkScenario::retire(), two.take(two.other, 1)};
  two.expect_sound("retire; retire; take");
}

TEST(ExploreRetire, WhileABinOpensItsFirstChunk) {
  ChunkScenario s;
  s.plan.threads = {ChunkScenario::retire(), s.take(s.other, 1)};
  s.expect_sound("retire; a bin opens its first chunk");
}

TEST(ExploreRetire, AgainstACommit) {
  ChunkScenario s;
  s.open_in_part(s.bin);
  s.plan.threads = {ChunkScenario::retire(), s.take(s.bin, 64, false), s.take(s.bin, 64, false)};
  s.expect_sound("retire; two commit what they take");
}

// The chunk is another bin's, or the same bin's once more, while others have found it by a hint.
TEST(ExploreRetire, ThePlaceIsOpenedAgain) {
  ChunkScenario another;
  another.open(another.bin, 1, 0);
  another.plan.threads = {ChunkScenario::both(ChunkScenario::retire(), another.take(another.other, 1)),
                          another.take(another.bin, 1), another.take(another.bin, 1, false)};
  another.expect_sound("retire, open for another bin; take; take");
  ChunkScenario same;
  same.open(same.bin, 1, 0);
  same.plan.threads = {ChunkScenario::both(ChunkScenario::retire(), same.take(same.bin, 1)),
                       same.take(same.bin, 1, false), same.take(same.bin, 1, false)};
  same.expect_sound("retire, open for the same bin; take; take");
  ChunkScenario dirty;
  dirty.open(dirty.other, 1, 0);
  dirty.plan.threads = {ChunkScenario::both(ChunkScenario::retire(), dirty.take(dirty.bin, 1)), ChunkScenario::purge(),
                        dirty.take(dirty.other, 1, false)};
  dirty.expect_sound("retire, open for another bin; purge; take");
}

// A chunk that a field has lent is the field's again, while others have found it by a hint.
TEST(ExploreRetire, TheFieldTakesItBack) {
  ChunkScenario s(ChunkScenario::Where::kField);
  s.open(s.other, 1, 0);
  s.plan.threads = {ChunkScenario::retire(), s.take(s.other, 1, false),
                    s.allocate_large(kChunkBytes / kGranuleBytes + 4)};
  s.expect_sound("retire to a field; take; take of the field");
}

TEST(ExploreRetire, TheFieldTakesItBackAndLendsItAgain) {
  ChunkScenario again(ChunkScenario::Where::kField);
  again.open(again.other, 1, 0);
  again.plan.threads = {ChunkScenario::both(ChunkScenario::retire(), again.take(again.bin, 1)),
                        again.take(again.other, 1, false), ChunkScenario::purge()};
  again.expect_sound("retire to a field, lent to another bin; take; purge");
}

// A bin's chunks in two windows: two blocks of hints.
TEST(ExploreWindows, TakeAndGiveInBoth) {
  ChunkScenario s(ChunkScenario::Where::kTwoWindows);
  const unsigned all = 2 * info_of(s.other).objects;
  s.open(s.other, 2, all);
  s.plan.threads = {s.take(s.other, 1, false), s.give(0, 1), s.give(all - 1, 1)};
  s.expect_sound("two windows: give, give, take");
  ChunkScenario full(ChunkScenario::Where::kTwoWindows);
  full.open(full.other, 2, all - 1);
  full.plan.threads = {full.take(full.other, 1, false), full.take(full.other, 1, false), full.give(0, 1)};
  full.expect_sound("two windows: take, take, give");
}

// The first chunk of the bin in its second window: two make the block.
TEST(ExploreWindows, TheSecondBlock) {
  ChunkScenario s(ChunkScenario::Where::kTwoWindows);
  const unsigned all = info_of(s.other).objects;
  s.open(s.other, 1, all);
  s.plan.threads = {s.take(s.other, 1), s.take(s.other, 1)};
  s.expect_sound("two windows: two open the second");
  ChunkScenario repaired(ChunkScenario::Where::kTwoWindows);
  repaired.open(repaired.other, 1, all);
  repaired.plan.threads = {repaired.take(repaired.other, 1), repaired.give(0, 1), ChunkScenario::purge()};
  repaired.expect_sound("two windows: one opens the second, give, purge");
}

// Who has its hints repaired by turns finds a block that another thread has passed on.
TEST(ExploreWindows, ABlockIsPassedOn) {
  ChunkScenario s(ChunkScenario::Where::kTwoWindows);
  // Of the largest bin a chunk is open already; it gets full.
  const BinId largest = bin_id(kBins - 1);
  void* objects[kFolioObjects];
  while (take_objects_in_open_chunks(process_store, largest, objects, kFolioObjects) != 0) {
  }
  acquire_chunk();  // the last one of the first window
  const Body fill = s.take(largest, kFolioObjects);
  s.plan.threads = {ChunkScenario::both(fill, fill), fill, fill};
  s.plan.verdict = [] { return std::string(); };
  s.expect_sound("two windows: chunks are opened in the second, hints are repaired");
}

}  // namespace
}  // namespace explorer
