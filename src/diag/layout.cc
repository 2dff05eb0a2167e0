// Fills in the layout descriptor at compile time, from the rows of layout.def.
#include "diag/layout.h"

#include <stddef.h>

#include "cache/cpu_cache.h"
#include "cache/depot.h"
#include "cache/thread_caches.h"
#include "config/options.h"
#include "core/clock.h"
#include "core/ladder.h"
#include "core/seam.h"
#include "insight/guards.h"
#include "insight/samples.h"
#include "space/chunk_table.h"
#include "space/chunks.h"
#include "space/fields.h"
#include "space/huge.h"
#include "space/large.h"
#include "space/metadata.h"
#include "space/pages.h"
#include "space/region.h"
#include "store/occupancy.h"

namespace folio {

extern "C" {
[[gnu::visibility("default")]] extern const Layout folio_layout;
const Layout folio_layout = {
    .magic = {'F', 'o', 'l', 'i', 'o', 'L', 'a', 'y'},
    .version = kLayoutVersion,
    .bytes = sizeof(Layout),
#define FOLIO_LAYOUT_NUMBER(name, value) .name = (value),
#define FOLIO_LAYOUT_ADDRESS(name, value) .name = (value),
#include "diag/layout.def"
#undef FOLIO_LAYOUT_NUMBER
#undef FOLIO_LAYOUT_ADDRESS
};
}

}  // namespace folio
