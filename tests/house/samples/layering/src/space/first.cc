#include "space/first.h"
#include "space/second.h"
int first() { return second(); }
