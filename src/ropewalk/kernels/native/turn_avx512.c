// The level of AVX-512 with BF16: 16 lanes, and 8 for what is left of a row.
#include "lanes8.h"
#include "lanes16.h"

#define LEVEL level_avx512
#define HAVE_LANES_8
#define HAVE_LANES_16
#include "turn.inc"
