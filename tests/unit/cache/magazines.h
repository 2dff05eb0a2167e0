// Magazines of real objects, for the tests of the caches.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <vector>

#include "cache/magazine.h"
#include "os/os.h"
#include "store/bin.h"
#include "store/check.h"
#include "store/occupancy.h"

namespace folio_test {

// An empty magazine; those of a list that are not wanted go back.
inline folio::Magazine* empty_magazine() {
  folio::Magazine* const list = folio::magazines_get();
  if (folio::Magazine* rest = list->next()) folio::magazines_put(rest);
  list->set_next(nullptr);
  return list;
}

// A waiting magazine with n objects from the folios.
inline folio::Magazine* magazine_of(folio::BinId bin, unsigned n) {
  folio::Magazine* const magazine = empty_magazine();
  folio::Slot* top = magazine->format(folio::kMagazineObjects);
  for (unsigned i = 0; i < n; ++i) {
    void* object = nullptr;
    EXPECT_EQ(folio::take_objects(folio::process_store, bin, &object, 1), 1u);
    *--top = object;
  }
  magazine->park(top);
  return magazine;
}

// A bundle of magazines, one at least, with `each` objects.
inline folio::Magazine* bundle_of(folio::BinId bin, unsigned length, unsigned each) {
  folio::Magazine* bundle = magazine_of(bin, each);
  bundle->set_next(nullptr);
  for (unsigned i = 1; i < length; ++i) {
    folio::Magazine* const magazine = magazine_of(bin, each);
    magazine->set_next(bundle);
    bundle = magazine;
  }
  bundle->set_bundle_length(length);
  return bundle;
}

inline std::vector<void*> objects_of(folio::Magazine* magazine) {
  std::vector<void*> objects;
  for (unsigned i = 0; i < magazine->count(); ++i) objects.push_back(magazine->top()[i]);
  return objects;
}

inline void drain_list(folio::BinId bin, folio::Magazine* list) { folio::bundle_drain(bin, list, "test"); }

// Objects of the bin that are not free, wherever they are.
inline uint64_t taken_objects(folio::BinId bin) {
  uint64_t taken = 0;
  folio::visit_chunks(folio::process_store, bin, [&](folio::Descriptor& d) {
    for (unsigned folio = 0; folio < d.info().folios; ++folio) {
      taken += folio::popcount(d.occupancy(folio).load(folio::order::relaxed));
    }
    return true;
  });
  return taken;
}

// Keeps the calling thread, and those it starts, on the CPU where it is, so that none runs beside another. What
// os::cpu() says need not stay the same: it is the kernel's number of a thread that runs, so tests script that too.
inline void stay_on_this_cpu() {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(std::max(0, sched_getcpu())), &set);
  sched_setaffinity(0, sizeof set, &set);
}

}  // namespace folio_test
