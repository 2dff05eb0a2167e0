// Takes objects of one chunk: of folios of one class of fullness, or on resident pages. bin.cc chooses the chunk.
#pragma once

#include "store/commit.h"
#include "store/descriptor.h"
#include "store/hints.h"

namespace folio {

// Where takes of one call put what they get.
struct Taking {
  void** objects;
  unsigned want;
  bool* refused;  // may be null
  unsigned got = 0;

  bool done() const { return got == want; }
  void** next() const { return objects + got; }
  unsigned add(unsigned more) {
    got += more;
    return more;
  }
  // Whether what is there is to be enough, instead of a part of a folio that is empty. (Each refill of a growing bin
  // else began with the last folio's rest, at the price of a whole one.)
  bool enough_before(uint64_t occupancy) const {
    return occupancy == 0 && want >= kFolioObjects && got >= want / 2 && want - got < kFolioObjects;
  }
  unsigned end() {
    want = got;
    return 0;
  }
};

// Of the folios whose hint of this class is raised; lowers stale ones. *why changes if there are free objects that
// cannot be used: not committed, or not resident near a limit. Then the search ends.
void take_from_chunk(Descriptor& d, Fullness fullness, Taking& t, Commit* why);

// Objects whose pages are all resident: of objects below a page those of empty folios first, as bin.cc has been to the
// others before; else those on dirty pages. Returns how many.
unsigned take_resident_of(Descriptor& d, Taking& t);

}  // namespace folio
