// On the CPU both 16-bit types stand in half.h.
#include "half.h"
