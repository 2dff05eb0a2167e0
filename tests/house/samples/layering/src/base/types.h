#pragma once

#include "base/other.h"
#include "cache/magazine.h"

#ifdef __linux__
#endif
