// Only includes others.
#pragma once

#include "base/types.h"
