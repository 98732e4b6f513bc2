// 8 lanes: AVX2, FMA and F16C. Loads and stores of each type, halves and adjacent pairs.
#ifndef ROPEWALK_LANES8_H
#define ROPEWALK_LANES8_H

#include <immintrin.h>
#include <stdint.h>

typedef __m256 Vector_8;
typedef __m256i Words_8;

#ifndef INLINE
#define INLINE static inline __attribute__((always_inline))
#endif

INLINE Vector_8 load_table_8(const float *p) { return _mm256_loadu_ps(p); }
INLINE void store_table_8(float *p, Vector_8 x) { _mm256_storeu_ps(p, x); }
INLINE Vector_8 times_8(Vector_8 a, Vector_8 b) { return _mm256_mul_ps(a, b); }
INLINE Vector_8 times_plus_8(Vector_8 a, Vector_8 b, Vector_8 c) { return _mm256_fmadd_ps(a, b, c); }
INLINE Vector_8 minus_times_8(Vector_8 a, Vector_8 b, Vector_8 c) { return _mm256_fnmadd_ps(a, b, c); }
INLINE Vector_8 everywhere_8(float x) { return _mm256_set1_ps(x); }

INLINE Vector_8 load_float32_8(const float *p) { return _mm256_loadu_ps(p); }
// Streaming goes past the caches: for results too large for them, which then need not be read before they are written.
INLINE void store_float32_8(float *p, Vector_8 x, int stream) {
  if (stream)
    _mm256_stream_ps(p, x);
  else
    _mm256_storeu_ps(p, x);
}
INLINE void store_bits_8(uint16_t *p, Words_8 bits, int stream) {
  if (stream)
    _mm256_stream_si256((__m256i *)p, bits);
  else
    _mm256_storeu_si256((__m256i *)p, bits);
}

// Round to nearest even on the bits, in the upper half of each lane; a NaN stays one.
INLINE Words_8 round_bfloat16_8(Vector_8 x) {
  Words_8 bits = _mm256_castps_si256(x), nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  Words_8 odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  Words_8 rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  return _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc00000), nan);
}
INLINE Words_8 two_in_order_8(Words_8 first, Words_8 second) {  // the low halves of 16 lanes
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(first, second), 0xd8);
}
INLINE __m128i narrow_words_8(Words_8 x) { return _mm256_castsi256_si128(two_in_order_8(x, x)); }
INLINE Vector_8 load_bfloat16_8(const uint16_t *p) {
  Words_8 wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
INLINE void store_bfloat16_8(uint16_t *p, Vector_8 x) {
  _mm_storeu_si128((__m128i *)p, narrow_words_8(_mm256_srli_epi32(round_bfloat16_8(x), 16)));
}
INLINE Vector_8 load_float16_8(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
INLINE Words_8 two_bfloat16_8(Vector_8 first, Vector_8 second) {
  return two_in_order_8(_mm256_srli_epi32(round_bfloat16_8(first), 16), _mm256_srli_epi32(round_bfloat16_8(second), 16));
}
INLINE __m128i to_float16_8(Vector_8 x) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }
INLINE void store_float16_8(uint16_t *p, Vector_8 x) { _mm_storeu_si128((__m128i *)p, to_float16_8(x)); }
INLINE Words_8 two_float16_8(Vector_8 first, Vector_8 second) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(to_float16_8(first)), to_float16_8(second), 1);
}

// Adjacent pairs. Splitting within 128-bit lanes is one shuffle; it leaves the pairs in the order 0 1 4 5 2 3 6 7, so
// the table's row is put into the same order, and joining undoes it for nothing.
INLINE Vector_8 load_table_shuffled_8(const float *p) {
  return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_loadu_pd((const double *)p), 0xd8));
}
INLINE void split_float32_8(const float *p, Vector_8 *a, Vector_8 *b) {
  Vector_8 low = _mm256_loadu_ps(p), high = _mm256_loadu_ps(p + 8);
  *a = _mm256_shuffle_ps(low, high, 0x88);
  *b = _mm256_shuffle_ps(low, high, 0xdd);
}
INLINE void join_float32_8(float *p, Vector_8 a, Vector_8 b, int stream) {
  store_float32_8(p, _mm256_unpacklo_ps(a, b), stream);
  store_float32_8(p + 8, _mm256_unpackhi_ps(a, b), stream);
}
// A pair of 16-bit channels is one 32-bit word: the first channel its low half, the second its high half.
INLINE void split_bfloat16_8(const uint16_t *p, Vector_8 *a, Vector_8 *b) {
  Words_8 pair = _mm256_loadu_si256((const __m256i *)p);
  *a = _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16));
  *b = _mm256_castsi256_ps(_mm256_and_si256(pair, _mm256_set1_epi32((int)0xffff0000)));
}
INLINE void join_bfloat16_8(uint16_t *p, Vector_8 a, Vector_8 b, int stream) {
  Words_8 low = _mm256_srli_epi32(round_bfloat16_8(a), 16), high = round_bfloat16_8(b);
  store_bits_8(p, _mm256_blend_epi16(low, high, 0xaa), stream);
}
INLINE void split_float16_8(const uint16_t *p, Vector_8 *a, Vector_8 *b) {
  Words_8 pair = _mm256_loadu_si256((const __m256i *)p);
  *a = _mm256_cvtph_ps(narrow_words_8(_mm256_and_si256(pair, _mm256_set1_epi32(0xffff))));
  *b = _mm256_cvtph_ps(narrow_words_8(_mm256_srli_epi32(pair, 16)));
}
INLINE void join_float16_8(uint16_t *p, Vector_8 a, Vector_8 b, int stream) {
  Words_8 low = _mm256_cvtepu16_epi32(to_float16_8(a)), high = _mm256_cvtepu16_epi32(to_float16_8(b));
  store_bits_8(p, _mm256_or_si256(low, _mm256_slli_epi32(high, 16)), stream);
}

#endif
