// 16 lanes: AVX-512 with BF16. Loads and stores of each type, halves and adjacent pairs.
#ifndef ROPEWALK_LANES16_H
#define ROPEWALK_LANES16_H

#include <immintrin.h>
#include <stdint.h>

typedef __m512 Vector_16;

#ifndef INLINE
#define INLINE static inline __attribute__((always_inline))
#endif

INLINE Vector_16 load_table_16(const float *p) { return _mm512_loadu_ps(p); }
INLINE void store_table_16(float *p, Vector_16 x) { _mm512_storeu_ps(p, x); }
INLINE Vector_16 times_16(Vector_16 a, Vector_16 b) { return _mm512_mul_ps(a, b); }
INLINE Vector_16 times_plus_16(Vector_16 a, Vector_16 b, Vector_16 c) { return _mm512_fmadd_ps(a, b, c); }
INLINE Vector_16 minus_times_16(Vector_16 a, Vector_16 b, Vector_16 c) { return _mm512_fnmadd_ps(a, b, c); }
INLINE Vector_16 everywhere_16(float x) { return _mm512_set1_ps(x); }

INLINE Vector_16 load_float32_16(const float *p) { return _mm512_loadu_ps(p); }
// Streaming goes past the caches: for results too large for them, which then need not be read before they are written.
INLINE void store_float32_16(float *p, Vector_16 x, int stream) {
  if (stream)
    _mm512_stream_ps(p, x);
  else
    _mm512_storeu_ps(p, x);
}
INLINE void store_bits_16(uint16_t *p, __m512i bits, int stream) {
  if (stream)
    _mm512_stream_si512((__m512i *)p, bits);
  else
    _mm512_storeu_si512(p, bits);
}

INLINE __m256i to_bfloat16_16(Vector_16 x) { return (__m256i)_mm512_cvtneps_pbh(x); }
INLINE Vector_16 load_bfloat16_16(const uint16_t *p) {
  __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
INLINE void store_bfloat16_16(uint16_t *p, Vector_16 x) { _mm256_storeu_si256((__m256i *)p, to_bfloat16_16(x)); }
INLINE __m512i two_bfloat16_16(Vector_16 first, Vector_16 second) {
  return (__m512i)_mm512_cvtne2ps_pbh(second, first);
}

INLINE __m256i to_float16_16(Vector_16 x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }
INLINE Vector_16 load_float16_16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
INLINE void store_float16_16(uint16_t *p, Vector_16 x) { _mm256_storeu_si256((__m256i *)p, to_float16_16(x)); }
INLINE __m512i two_float16_16(Vector_16 first, Vector_16 second) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(to_float16_16(first)), to_float16_16(second), 1);
}

// Adjacent pairs. Splitting within 128-bit lanes is one shuffle; it leaves the pairs in the order 0 1 8 9 2 3 10 11 ...,
// so the table's row is put into the same order, and joining undoes it for nothing.
INLINE Vector_16 load_table_shuffled_16(const float *p) {
  __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  return _mm512_castpd_ps(_mm512_permutexvar_pd(order, _mm512_loadu_pd((const double *)p)));
}
INLINE void split_float32_16(const float *p, Vector_16 *a, Vector_16 *b) {
  Vector_16 low = _mm512_loadu_ps(p), high = _mm512_loadu_ps(p + 16);
  *a = _mm512_shuffle_ps(low, high, 0x88);
  *b = _mm512_shuffle_ps(low, high, 0xdd);
}
INLINE void join_float32_16(float *p, Vector_16 a, Vector_16 b, int stream) {
  store_float32_16(p, _mm512_unpacklo_ps(a, b), stream);
  store_float32_16(p + 16, _mm512_unpackhi_ps(a, b), stream);
}
// A pair of 16-bit channels is one 32-bit word: the first channel its low half, the second its high half. Joining
// narrows 16 first channels and 16 second ones into one register and deals them out in turn.
INLINE __m512i dealt_in_turn_16(__m512i firsts_then_seconds) {
  static const _Alignas(64) uint16_t order[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                  8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_permutexvar_epi16(_mm512_load_si512(order), firsts_then_seconds);
}
INLINE void split_bfloat16_16(const uint16_t *p, Vector_16 *a, Vector_16 *b) {
  __m512i pair = _mm512_loadu_si512(p);
  *a = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
  *b = _mm512_castsi512_ps(_mm512_and_si512(pair, _mm512_set1_epi32((int)0xffff0000)));
}
INLINE void join_bfloat16_16(uint16_t *p, Vector_16 a, Vector_16 b, int stream) {
  store_bits_16(p, dealt_in_turn_16(two_bfloat16_16(a, b)), stream);
}
INLINE void split_float16_16(const uint16_t *p, Vector_16 *a, Vector_16 *b) {
  __m512i pair = _mm512_loadu_si512(p);
  *a = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(pair));
  *b = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(pair, 16)));
}
INLINE void join_float16_16(uint16_t *p, Vector_16 a, Vector_16 b, int stream) {
  store_bits_16(p, dealt_in_turn_16(two_float16_16(a, b)), stream);
}

#endif
