// Gives: objects go back to their folios (bin.h says how), each to the store that it came from.
//
// Who may call it: everybody, at any time.
#pragma once

#include "config/size_classes.h"

namespace folio {

// Gives up to kMagazineObjects objects of `bin` back, each to the store that it came from; those of one folio by one
// fetch_and. Reports misuse in the name of `function`.
void give_objects(BinId bin, void* const* objects, unsigned count, const char* function);

// Gives back `n` lists of up to kMagazineObjects objects each. Together, because each folio of a small heap that is
// freed in random order has objects in most magazines.
struct ObjectList {
  void* const* objects;
  unsigned count;
};
inline constexpr unsigned kGiveListsMost = 4;
void give_lists(BinId bin, const ObjectList* lists, unsigned n, const char* function);

// Gives one object back, in 160 instructions less than give_objects.
void give_object(BinId bin, void* object, const char* function);

}  // namespace folio
