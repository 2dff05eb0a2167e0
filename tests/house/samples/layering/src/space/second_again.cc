#include "space/first.h"
int second_again() { return first(); }
