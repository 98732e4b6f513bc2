// The level of any processor: plain loops, vectorised by the compiler where it can (SSE2, NEON).
#define LEVEL level_baseline
#include "turn.inc"
