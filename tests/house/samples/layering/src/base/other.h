#pragma once

#include <stddef.h>
#include <unistd.h>

#include <atomic>

#include "base/types.h"
inline int other() { return 1; }
