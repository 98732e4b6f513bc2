// What the dispatcher and the bodies share: the description of one call, and the table of functions each level offers.
//
//     y_a = factor (a cos - b sin)        y_b = factor (a sin + b cos)        with -sin where the turn is inverse
//
// A tensor is (batch, heads, length, width) by strides in elements; its channels are contiguous. Tables are
// (batch | 1, length, pairs) and contiguous. The same source is compiled once for each level of the processor.
#ifndef ROPEWALK_ROTATE_H
#define ROPEWALK_ROTATE_H

#include <stddef.h>
#include <stdint.h>

enum { FLOAT32, BFLOAT16, FLOAT16, FLOAT64, DTYPES };
enum { HALVES, ADJACENT, PAIRINGS };
enum { BASELINE, AVX2, AVX512, LEVELS };

typedef struct {
  int64_t source, target;  // addresses of element (0, 0, 0, 0)
  int64_t heads;
  int64_t source_batch, source_head, source_position;  // strides
  int64_t target_batch, target_head, target_position;
} Tensor;

typedef struct {
  int64_t level, threads, dtype, pairing;
  int64_t batch, length, width, first, pairs;
  int64_t table_rows;            // rows of the batch that have a table of their own: 1 (shared by all) or `batch`
  int64_t cosine, sine;          // addresses; not read where `positions` are given
  int64_t positions, narrow;     // address or 0, (table_rows, length); narrow: int32, else int64
  int64_t words;                 // as in Phases
  double cosine_factor, sine_factor;
  int64_t fresh;  // the targets are memory that nobody has touched yet
  int64_t tensors;
  Tensor tensor[2];
} Rotation;

typedef struct {
  int64_t level, threads, wide;  // wide: float64 out, else float32
  int64_t positions, narrow;     // address; narrow: int32 positions, else int64
  int64_t count, pairs;
  int64_t words;  // address of uint32 [3][pairs], most significant first
  int64_t cosine, sine;
} Phases;

// Turn the units [begin, end) of one tensor. What a unit is depends on the layout: see `units`.
typedef void (*TurnUnits)(const Rotation *, const Tensor *, ptrdiff_t begin, ptrdiff_t end);
// Fill the rows [begin, end) of a table. Returns 1 where a position lies beyond 2^31 - 1, else 0.
typedef int (*FillRows)(const Phases *, ptrdiff_t begin, ptrdiff_t end);

typedef struct {
  TurnUnits turn[DTYPES][PAIRINGS];
  FillRows fill;
} Level;

extern const Level level_baseline, level_avx2, level_avx512;

// Heads of one position lie side by side in (B, S, H, D), far apart in (B, H, S, D).
static inline int position_major(const Tensor *tensor) { return tensor->source_position >= tensor->source_head; }

// Two heads are turned side by side: the table's row is read once for both, and two streams are what the prefetcher
// follows without loss (four and more cost 1.1-2x).
enum { GROUP = 2 };

// Bytes of a result from which on it is written past the caches.
enum { STREAMED = 16 << 20 };

static inline ptrdiff_t units(const Rotation *rotation, const Tensor *tensor) {
  ptrdiff_t groups = position_major(tensor) ? 1 : (tensor->heads + GROUP - 1) / GROUP;
  return rotation->batch * groups * rotation->length;
}

#endif
