// Huge pages for large objects that are likely to be written: those that need not be zero (as for huge objects,
// huge_foresee), from kLargeHugeLeast on, in a process that holds more than a few of them. A cluster of a field (2 MiB,
// aligned) gets one when such an object takes a part of it, and nothing else of it is taken or resident. What the
// object leaves of the cluster counts as resident and free from then on, so that the next objects get it, or a purge. A
// purge of any part takes the cluster's advice back; it counts as foreseen until nothing of it is resident.
//
// Large buffers of one and of four threads take 0.71 and 0.70 of the time in 1.07 and 1.0 times the memory, vectors
// that grow by realloc 0.85 in 1.05 (five pairs each).
#pragma once

#include <stddef.h>

#include "space/field.h"

namespace folio {

// Smaller buffers are more often written in part. (From 64 KiB on, 600 objects of 16 to 200 KB, replaced at random and
// written, take 0.74 of the time; two threads that write little of 300 such objects have 89 MiB in place of 26.) Nor
// just 256 KiB, which programs take for stacks of fibers: 1,500, of which each uses some KiB, have 20 MB in place of
// 143. (From 512 KiB on, first writes to 300 buffers of 256 to 300 KB take 1.8 times as long.)
inline constexpr size_t kLargeHugeLeast = (size_t{256} << 10) + 1;

// The caller has taken these granules, for an object of at least kLargeHugeLeast bytes that need not be zero: asks for
// huge pages in the clusters that they touch, as far as it may.
void large_prefer_huge(Field& f, unsigned from, unsigned count);

// Before granules that the caller has taken are purged, or are given back unused: no huge page comes to their clusters
// any more, nor is one asked for before two more calls of large_age().
void large_refuse_huge(Field& f, unsigned from, unsigned count);
// After that.
void large_forget_huge(Field& f, unsigned from, unsigned count);

}  // namespace folio
