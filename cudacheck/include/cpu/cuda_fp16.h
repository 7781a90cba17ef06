// On the CPU both 16-bit types are in half.h.
#include "half.h"
