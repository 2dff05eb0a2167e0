// Residency: which pages of a chunk are there. Known for purge units of small objects, and for each object of a page
// and more. And what of a chunk is committed: all that lies below some page. It grows in steps, before what lies in the
// next one is taken: what is only reserved costs nothing.
//
// Pages come by faults, one for each page, or several at once: by a touch ahead, which makes the next units resident in
// one system call, or as a huge page. What comes so before it is taken is free and resident, as after a free: it is
// counted as dirty, aged and purged like that.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "folio/descriptor.h"

namespace folio {

// The fewest folios of small objects that make whole pages.
struct Unit {
  unsigned first, folios;
};
// Folios of a unit = 2^unit_shift(info).
unsigned unit_shift(const BinInfo& info);
unsigned units_of(const BinInfo& info);
Unit unit_at(const BinInfo& info, unsigned unit);

// Commits what it takes to use some of these free objects of a folio. Returns which can be used: all of them, or, where
// the kernel refuses more memory, those that lie in what is committed, or, at a limit, those whose pages are there.
uint64_t commit_objects(Descriptor& d, unsigned folio, uint64_t choice);

// All of a chunk that nobody else knows yet. False if the kernel refuses.
bool commit_chunk(Descriptor& d);

// Takes every object of a unit that is empty; false if it is not. Nobody waits: takers look elsewhere.
bool claim_unit(Descriptor& d, Unit unit);
void release_unit(Descriptor& d, Unit unit);

// Objects of a page and more were taken. Returns those of `mine` that were not resident.
uint64_t note_taken_objects(Descriptor& d, unsigned folio, uint64_t mine);
// Objects of a folio of smaller ones were taken, which was empty.
void note_taken_folio(Descriptor& d, unsigned folio);

// All of a chunk of small objects that nobody else knows yet is to be resident, by a huge page.
void note_all_resident(Descriptor& d);

}  // namespace folio
