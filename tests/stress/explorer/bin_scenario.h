// A scenario on one bin: folios of given fullness, a few operations for each thread, and what must hold afterwards.
#pragma once

#include <gtest/gtest.h>

#include "config/options.h"
#include "space/chunks.h"
#include "store/bin.h"
#include "store/check.h"
#include "store/collapse.h"
#include "store/commit.h"
#include "store/occupancy.h"
#include "store/purge.h"
#include "store/residency.h"
#include "stress/explorer/search.h"
#include "stress/explorer/world.h"
#include "unit/store/purge_bins.h"

namespace explorer {

enum class Act {
  kTake,      // `count` objects in one call, never opening a chunk
  kTakeAny,   // the same, opening a chunk where none has room
  kGive,      // `count` of the objects of folio `folio` that the shape left taken
  kGiveOwn,   // all that this thread took
  kPurge,     // all that is dirty
  kPurgeAll,  // and what was not marked so
  kCollapse,  // a chunk that is dense becomes a huge page
  kHuge,      // a chunk comes as a huge page, as when it is first used
  kMany,      // the bin passes for one of many chunks, so that new ones come as huge pages
  kTick,      // what the decay clock does to a bin: purge what is aged, mark what is free
};

struct Op {
  Act act;
  unsigned count = 0;
  unsigned folio = 0;
};
inline Op take(unsigned count) { return {Act::kTake, count}; }
inline Op take_any(unsigned count) { return {Act::kTakeAny, count}; }
inline Op give(unsigned folio, unsigned count) { return {Act::kGive, count, folio}; }
inline Op give_own() { return {Act::kGiveOwn}; }
inline Op purge() { return {Act::kPurge}; }
inline Op purge_all() { return {Act::kPurgeAll}; }
inline Op collapse() { return {Act::kCollapse}; }
inline Op huge() { return {Act::kHuge}; }
inline Op many() { return {Act::kMany}; }
inline Op tick() { return {Act::kTick}; }

struct Objects {
  void* list[folio::kFolioObjects * 8];
  unsigned count;
};

inline folio::BinId bin_for(size_t size) {
  return folio::is_power_of_two(size) ? folio::aligned_bin(size, size) : folio::bin_of(size);
}
inline unsigned objects_of(size_t size) { return folio::info_of(bin_for(size)).objects; }  // in a chunk

// Objects whose bits are set, in all chunks of the bin; `all` counts what the chunks hold.
inline unsigned taken_objects(folio::BinId bin, unsigned* all = nullptr) {
  unsigned taken = 0, total = 0;
  folio::visit_chunks(folio::process_store, bin, [&](folio::Descriptor& d) {
    total += d.info().objects;
    for (unsigned f = 0; f < d.info().folios; ++f) taken += folio::popcount(d.occupancy(f).load(folio::order::relaxed));
    return true;
  });
  if (all != nullptr) *all = total;
  return taken;
}

// Objects that takers find without opening a chunk. Takes them.
inline unsigned reachable_objects(folio::BinId bin) {
  unsigned reached = 0;
  void* objects[folio::kFolioObjects];
  // A taker that finds a stale hint raises the right one, where the next one finds it.
  for (unsigned in_vain = 0; in_vain < 2;) {
    const unsigned got = folio::take_objects_in_open_chunks(folio::process_store, bin, objects, folio::kFolioObjects);
    reached += got;
    in_vain = got == 0 ? in_vain + 1 : 0;
  }
  return reached;
}

// Free resident pages that no purge would come by: one is not marked, or its chunk has not the hint.
inline bool dirt_is_forgotten(folio::Descriptor& d) {
  using namespace folio;
  const unsigned slot = window_slot(d.first);
  const bool hint = (d.block->chunks[kDirty][slot / 64].load(order::relaxed) >> slot % 64 & 1) != 0 &&
                    (d.block->summary[kDirty].load(order::relaxed) >> slot / 64 & 1) != 0;
  const Pages in_use = ChunkPages(d).in_use();
  for (unsigned page = in_use.first; page < in_use.end; ++page) {
    const bool resident = (d.resident(page / 64).load(order::relaxed) >> page % 64 & 1) != 0;
    const bool marked = (d.dirty(page / 64).load(order::relaxed) >> page % 64 & 1) != 0;
    if (resident && is_free(d, page) && !(marked && hint)) return true;
  }
  return false;
}

class BinScenario {
 public:
  // `shape`: objects taken of the chunk's first folios; all others are full. Empty: no chunk is open. `purged`: what is
  // free at first is not resident.
  BinScenario(size_t size, std::vector<unsigned> shape, std::vector<std::vector<Op>> threads, bool purged = false)
      : bin_(bin_for(size)), shape_(std::move(shape)), threads_(std::move(threads)) {
    begin_anew();
    make_shape();
    if (purged) folio_test::purge_bins(folio::process_store, folio::PurgeWhich::kAll, ~size_t{0});
    world_.save();
    plan_.reset = [this] { reset(); };
    plan_.verdict = [this] { return verdict(); };
    for (unsigned i = 0; i < threads_.size(); ++i) plan_.threads.push_back([this, i] { run(i); });
  }

  Machine& machine() { return machine_; }
  const Plan& plan() const { return plan_; }
  folio::BinId bin() const { return bin_; }

  // What a thread that stops may cost: objects taken that nobody has, and free ones that no hint leads to.
  unsigned most_taken_lost = 0, most_unseen = 0;
  unsigned worst_taken_lost = 0, worst_unseen = 0;

 private:
  [[noreturn]] static void fail(const char* what, unsigned folio) {
    fprintf(stderr, "a scenario has %s: folio %u\n", what, folio);
    abort();
  }

  void make_shape() {
    if (shape_.empty()) return;
    const folio::BinInfo& info = folio::info_of(bin_);
    std::vector<void*> all(info.objects);
    for (unsigned got = 0; got < info.objects;) {
      const unsigned want = std::min(info.objects - got, folio::kFolioObjects);
      const unsigned n = folio::take_objects(folio::process_store, bin_, &all[got], want);
      if (n == 0) abort();
      got += n;
    }
    std::sort(all.begin(), all.end());
    for (void* object : all) *static_cast<char*>(object) = 1;  // pages come ahead only where a program writes
    for (unsigned f = 0; f < shape_.size(); ++f) {
      const unsigned first = f * folio::kFolioObjects, last = std::min(first + folio::kFolioObjects, info.objects);
      if (first + shape_[f] > last) fail("the shape of more than a chunk", f);
      left_.emplace_back(all.begin() + first, all.begin() + first + shape_[f]);
      for (unsigned i = first + shape_[f]; i < last; ++i) folio::give_objects(bin_, &all[i], 1, "explorer");
    }
    unsigned total = 0;
    const unsigned taken = taken_objects(bin_, &total);
    if (total != info.objects) abort();
    for (const auto& thread : threads_) {
      for (const Op& op : thread) {
        if (op.act == Act::kGive) given_ += op.count;
      }
    }
    others_taken_ = taken - given_;
  }

  void reset() {
    world_.reset();
    for (Objects& o : own_) o.count = 0;
    next_given_.assign(shape_.size(), 0);
  }

  void run(unsigned i) {
    for (const Op& op : threads_[i]) run_op(op, own_[i]);
  }

  // What a thread takes it writes to.
  static void write_objects(void** objects, unsigned count, Objects& own) {
    for (unsigned i = 0; i < count; ++i) Machine::write_object(objects[i]);
    own.count += count;
  }

  void** next_to_give(const Op& op) {
    const Ghost ghost;
    const unsigned next = next_given_[op.folio];
    next_given_[op.folio] += op.count;
    if (next_given_[op.folio] > left_[op.folio].size()) fail("gives of more than the shape left in a folio", op.folio);
    return &left_[op.folio][next];
  }

  void run_op(const Op& op, Objects& own) {
    switch (op.act) {
      case Act::kTake:
        write_objects(own.list + own.count,
                      folio::take_objects_in_open_chunks(folio::process_store, bin_, own.list + own.count, op.count),
                      own);
        break;
      case Act::kTakeAny:
        write_objects(own.list + own.count,
                      folio::take_objects(folio::process_store, bin_, own.list + own.count, op.count), own);
        break;
      case Act::kGive: {
        void** const first = next_to_give(op);
        for (unsigned i = 0; i < op.count; ++i) Machine::write_object(first[i]);
        folio::give_objects(bin_, first, op.count, "explorer");
        break;
      }
      case Act::kGiveOwn: {
        const unsigned count = own.count;
        own.count = 0;
        folio::give_objects(bin_, own.list, count, "explorer");
        break;
      }
      case Act::kPurge:
        folio_test::purge_bins(folio::process_store, folio::PurgeWhich::kNow, ~size_t{0});
        break;
      case Act::kPurgeAll:
        folio_test::purge_bins(folio::process_store, folio::PurgeWhich::kAll, ~size_t{0});
        break;
      case Act::kCollapse:
        folio::visit_chunks(folio::process_store, bin_, [](folio::Descriptor& d) {
          folio::Descriptor* const chunk = &d;
          if (folio::is_dense(d)) folio::collapse_together(&chunk, 1);
          return true;
        });
        break;
      case Act::kHuge:
        folio::visit_chunks(folio::process_store, bin_, [](folio::Descriptor& d) {
          d.set_backing(folio::Backing::kHugePurged);
          folio::note_cluster_purged(d.chunk());
          folio::touch_purged(d);
          return true;
        });
        break;
      case Act::kMany:
        folio::process_store.bins[folio::index(bin_)].chunks.add(8);
        break;
      case Act::kTick:
        folio_test::purge_bins(folio::process_store, folio::PurgeWhich::kAged, ~size_t{0});
        folio::age_bins(folio::process_store);
        break;
    }
  }

  std::string verdict() {
    bool all_finished = true;
    for (unsigned i = 0; i < threads_.size(); ++i) all_finished = all_finished && machine_.finished(i);
    if (all_finished && !folio::check_bin(folio::process_store, bin_)) return "check_bin: an invariant does not hold";
    bool forgotten = false;
    folio::visit_chunks(folio::process_store, bin_,
                        [&](folio::Descriptor& d) { return !(forgotten = forgotten || dirt_is_forgotten(d)); });
    if (all_finished && forgotten) return "free resident pages without the hint that leads a purge there";
    std::vector<void*> held;
    for (const Objects& o : own_) held.insert(held.end(), o.list, o.list + o.count);
    std::sort(held.begin(), held.end());
    if (std::adjacent_find(held.begin(), held.end()) != held.end()) return "an object was handed out twice";
    unsigned all = 0;
    const unsigned taken = taken_objects(bin_, &all);
    const auto known = static_cast<unsigned>(held.size()) + others_taken_;
    if (taken < known) return "an object that a thread holds is free";
    const unsigned free = all - taken;
    const unsigned reached = reachable_objects(bin_);
    if (all_finished) {
      if (taken != known) return "objects are taken that nobody has: " + std::to_string(taken - known);
      if (reached != free) return "free objects that no hint leads to: " + std::to_string(free - reached);
      return "";
    }
    worst_taken_lost = std::max(worst_taken_lost, taken - known);
    worst_unseen = std::max(worst_unseen, free - reached);
    if (taken - known > most_taken_lost) return "lost with the thread: taken " + std::to_string(taken - known);
    if (free - reached > most_unseen) return "lost with the thread: unseen " + std::to_string(free - reached);
    return comes_to_light(free - reached) ? "" : "free objects stay unseen while the bin grows";
  }

  // Before a bin opens a chunk it repairs some that it has: by the time it has four times as many, nothing is hidden.
  bool comes_to_light(unsigned unseen) const {
    if (unseen == 0) return true;
    unsigned chunks = 0, all = 0;
    folio::visit_chunks(folio::process_store, bin_, [&](folio::Descriptor&) { return ++chunks != 0; });
    for (unsigned more = 3 * chunks; more != 0; --more) {
      void* object = nullptr;
      folio::take_objects(folio::process_store, bin_, &object, 1);
      reachable_objects(bin_);
    }
    const unsigned taken = taken_objects(bin_, &all);
    return taken + kept_by_commit() == all;
  }

  // A thread that vanishes while it commits keeps what its chunk has not committed yet, for good.
  unsigned kept_by_commit() const {
    unsigned kept = 0;
    folio::visit_chunks(folio::process_store, bin_, [&](folio::Descriptor& d) {
      if (folio::close_commit(d)) {
        folio::open_commit(d);
        return true;
      }
      const size_t committed = folio::committed_bytes(d);
      for (unsigned i = 0; i < d.info().objects; ++i) {
        kept += static_cast<size_t>(d.slot(i + 1) - d.chunk()) > committed ? 1 : 0;
      }
      return true;
    });
    return kept;
  }

  folio::BinId bin_;
  std::vector<unsigned> shape_;
  std::vector<std::vector<Op>> threads_;
  std::vector<std::vector<void*>> left_;  // by folio: what the shape left taken
  std::vector<unsigned> next_given_;
  unsigned given_ = 0;         // by all threads together
  unsigned others_taken_ = 0;  // by nobody in particular, and not given back
  Objects own_[Machine::kThreadsMost] = {};
  World world_;
  Machine machine_;
  Plan plan_;
};

}  // namespace explorer
