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
INLINE Vector_8 times_8(Vector_8 a, Vector_8 b) { return _mm256_mul_ps(a, b); }
INLINE Vector_8 times_plus_8(Vector_8 a, Vector_8 b, Vector_8 c) { return _mm256_fmadd_ps(a, b, c); }
INLINE Vector_8 minus_times_8(Vector_8 a, Vector_8 b, Vector_8 c) { return _mm256_fnmadd_ps(a, b, c); }
INLINE Vector_8 everywhere_8(float x) { return _mm256_set1_ps(x); }

INLINE Vector_8 load_float32_8(const float *p) { return _mm256_loadu_ps(p); }
INLINE void store_float32_8(float *p, Vector_8 x) { _mm256_storeu_ps(p, x); }

// Round to nearest even on the bits, in the upper half of each lane; a NaN stays one.
INLINE Words_8 round_bfloat16_8(Vector_8 x) {
  Words_8 bits = _mm256_castps_si256(x);
  Words_8 odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  Words_8 rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  Words_8 nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc00000), nan);
}
INLINE __m128i narrow_words_8(Words_8 x) {  // the low halves of 8 lanes
  Words_8 packed = _mm256_packus_epi32(x, x);
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}
INLINE Vector_8 load_bfloat16_8(const uint16_t *p) {
  Words_8 wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
INLINE void store_bfloat16_8(uint16_t *p, Vector_8 x) {
  _mm_storeu_si128((__m128i *)p, narrow_words_8(_mm256_srli_epi32(round_bfloat16_8(x), 16)));
}
INLINE Vector_8 load_float16_8(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
INLINE __m128i to_float16_8(Vector_8 x) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }
INLINE void store_float16_8(uint16_t *p, Vector_8 x) { _mm_storeu_si128((__m128i *)p, to_float16_8(x)); }

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
INLINE void join_float32_8(float *p, Vector_8 a, Vector_8 b) {
  _mm256_storeu_ps(p, _mm256_unpacklo_ps(a, b));
  _mm256_storeu_ps(p + 8, _mm256_unpackhi_ps(a, b));
}
// A pair of 16-bit channels is one 32-bit word: the first channel its low half, the second its high half.
INLINE void split_bfloat16_8(const uint16_t *p, Vector_8 *a, Vector_8 *b) {
  Words_8 pair = _mm256_loadu_si256((const __m256i *)p);
  *a = _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16));
  *b = _mm256_castsi256_ps(_mm256_and_si256(pair, _mm256_set1_epi32((int)0xffff0000)));
}
INLINE void join_bfloat16_8(uint16_t *p, Vector_8 a, Vector_8 b) {
  Words_8 low = _mm256_srli_epi32(round_bfloat16_8(a), 16), high = round_bfloat16_8(b);
  _mm256_storeu_si256((__m256i *)p, _mm256_blend_epi16(low, high, 0xaa));
}
INLINE void split_float16_8(const uint16_t *p, Vector_8 *a, Vector_8 *b) {
  Words_8 pair = _mm256_loadu_si256((const __m256i *)p);
  *a = _mm256_cvtph_ps(narrow_words_8(_mm256_and_si256(pair, _mm256_set1_epi32(0xffff))));
  *b = _mm256_cvtph_ps(narrow_words_8(_mm256_srli_epi32(pair, 16)));
}
INLINE void join_float16_8(uint16_t *p, Vector_8 a, Vector_8 b) {
  Words_8 low = _mm256_cvtepu16_epi32(to_float16_8(a)), high = _mm256_cvtepu16_epi32(to_float16_8(b));
  _mm256_storeu_si256((__m256i *)p, _mm256_or_si256(low, _mm256_slli_epi32(high, 16)));
}

#endif
