// Many objects of a bin, from and to its folios.
#pragma once

#include <algorithm>
#include <vector>

#include "store/bin.h"

namespace folio_test {

// As many as there are, where there is no memory for all.
inline std::vector<void*> take_many(folio::BinId bin, size_t n) {
  std::vector<void*> objects;
  void* some[folio::kFolioObjects];
  while (objects.size() < n) {
    const size_t want = std::min<size_t>(folio::kFolioObjects, n - objects.size());
    const unsigned got = folio::take_objects(folio::process_store, bin, some, static_cast<unsigned>(want));
    if (got == 0) break;
    objects.insert(objects.end(), some, some + got);
  }
  return objects;
}

inline void give_many(folio::BinId bin, const std::vector<void*>& objects) {
  for (size_t i = 0; i < objects.size(); i += folio::kFolioObjects) {
    const size_t n = std::min<size_t>(folio::kFolioObjects, objects.size() - i);
    folio::give_objects(bin, &objects[i], static_cast<unsigned>(n), "test");
  }
}

}  // namespace folio_test
