#include "cache/screen.h"

#include "folio/bin.h"

namespace folio {

namespace {

// Each object with the next but one, by their low halves, two at a time: what looks wrong is looked at closely.
// Rejected: all duplicates (a bitmap of hashes) and all strays (a division for each), which took 20 % of a
// producer/consumer pair's throughput; those are found when the magazine is emptied.
bool looks_wrong(BinId bin, Magazine* magazine) {
  typedef uint32_t Halves __attribute__((vector_size(16)));  // of two objects, low and high
  typedef int32_t Flags __attribute__((vector_size(16)));
  const Slot* at = magazine->top();
  const auto load = [](const Slot* objects) {
    Halves two;
    __builtin_memcpy(&two, objects, sizeof two);
    return two;
  };
  if (magazine->count() < 2) return false;
  Halves last = load(at), any = last;
  Flags twice{};  // sums of 0 and -1
  unsigned left = magazine->count() - 2;
  for (; left >= 8; left -= 8, at += 8) {
    const Halves first = load(at + 2), second = load(at + 4), third = load(at + 6), fourth = load(at + 8);
    any |= (first | second) | (third | fourth);
    twice += ((last == first) + (first == second)) + ((second == third) + (third == fourth));
    last = fourth;
  }
  for (; left >= 2; left -= 2, at += 2) {
    const Halves next = load(at + 2);
    any |= next;
    twice += last == next;
    last = next;
  }
  const auto unaligned = static_cast<uint32_t>(low_mask(info_of(bin).natural_shift));
  return (twice[0] | twice[2]) != 0 || ((any[0] | any[2]) & unaligned) != 0;
}

// Reports what is wrong in a magazine and takes it out: the top object takes its slot.
FOLIO_COLD void mend(BinId bin, Magazine* magazine, const char* function) {
  for (unsigned i = 0; i < magazine->bottom(); ++i) {
    if (magazine->slot(i) < magazine->top()) continue;
    void* const address = *magazine->slot(i);
    const Place place = place_of(address);
    bool twice = false;
    for (Slot* other = magazine->top(); other < magazine->slot(i); ++other) twice |= *other == address;
    if (place.base != address) {
      report_not_start(function, address, place, bin);
    } else if (twice) {
      report_double_free(function, address, bin);
    } else {
      continue;
    }
    *magazine->slot(i) = *magazine->top();
    magazine->park(magazine->top() + 1);
  }
}

}  // namespace

void screen(BinId bin, Magazine* magazine, const char* function) {
  if (looks_wrong(bin, magazine)) mend(bin, magazine, function);
}

}  // namespace folio
