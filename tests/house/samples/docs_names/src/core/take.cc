#include "core/take.h"

// As kGone and gone_by_now say, vanished() does it: see core/gone.h, dlfcn.h, free.cc and take_one.
int take_one(int kept);
