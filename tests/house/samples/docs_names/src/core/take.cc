#include "core/take.h"

// As kGone and gone_by_now say, vanished() does it: see core/gone.h, dlfcn.h, free.cc and take_one.
// Takes `kept` or `lost`. *gone: as well as *kept.
int take_one(int kept);
