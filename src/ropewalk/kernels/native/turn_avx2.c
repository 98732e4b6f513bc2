// The level of AVX2, FMA and F16C.
#include "lanes8.h"

#define LEVEL level_avx2
#define HAVE_LANES_8
#include "turn.inc"
