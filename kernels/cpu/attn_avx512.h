/* SPDX-License-Identifier: Apache-2.0
 *
 * Softmax of a tile of R rows (8, 4, 2 or 1) and one block of keys: what the float and the int8 attention share.
 * Folder-private. The tile's scores lie as [32 / J][R][J] with J = 16 / R: a vector holds J keys of every row, so the
 * work of eight rows is vertical but for the last bit of the key index.
 * Sums pair keys that differ in the top bit of their index first, then in the next, and so on: the same for every R. */
#ifndef MOED_KERNELS_CPU_ATTN_AVX512_H
#define MOED_KERNELS_CPU_ATTN_AVX512_H

#include "kernels/attn_walk.h"
#include "kernels/cpu/vec_avx512.h"

/* Lane r J + x: r, and x. */
KERN_INLINE __m512i kern__lane_row(const int R) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_srli_epi32(lane, R == 8 ? 1 : R == 4 ? 2 : R == 2 ? 3 : 4);
}
KERN_INLINE __m512i kern__lane_key(const int R) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_and_si512(lane, _mm512_set1_epi32(16 / R - 1));
}

/* x [R] spread over the lanes of its row, and back. */
KERN_INLINE __m512 kern__spread_rows(const int R, const float *x) {
    return _mm512_permutexvar_ps(kern__lane_row(R), _mm512_maskz_loadu_ps(kern__mask16((size_t)R), x));
}
KERN_INLINE void kern__gather_rows(const int R, float *x, __m512 v) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i first = _mm512_and_si512(_mm512_mullo_epi32(lane, _mm512_set1_epi32(16 / R)), _mm512_set1_epi32(15));
    _mm512_mask_storeu_ps(x, kern__mask16((size_t)R), _mm512_permutexvar_ps(first, v));
}

/* Lanes of vector v that hold one of the first n keys. */
KERN_INLINE __mmask16 kern__tile_mask(const int R, int v, uint32_t n) {
    return _mm512_cmpgt_epi32_mask(_mm512_set1_epi32((int)n - v * (16 / R)), kern__lane_key(R));
}

/* Lane ^ 8, 4, 2, 1. */
KERN_INLINE __m512 kern__swap_lanes(__m512 v, const int stride) {
    if (stride == 8) return _mm512_shuffle_f32x4(v, v, 0x4E);
    if (stride == 4) return _mm512_shuffle_f32x4(v, v, 0xB1);
    return stride == 2 ? _mm512_permute_ps(v, 0x4E) : _mm512_permute_ps(v, 0xB1);
}

/* Largest and sum over the keys of each row, in all its lanes. */
KERN_INLINE __m512 kern__max_keys(const int R, __m512 v) {
    if (R <= 1) v = _mm512_max_ps(v, kern__swap_lanes(v, 8));
    if (R <= 2) v = _mm512_max_ps(v, kern__swap_lanes(v, 4));
    if (R <= 4) v = _mm512_max_ps(v, kern__swap_lanes(v, 2));
    return _mm512_max_ps(v, kern__swap_lanes(v, 1));
}
KERN_INLINE __m512 kern__sum_keys(const int R, __m512 v) {
    if (R <= 1) v = _mm512_add_ps(v, kern__swap_lanes(v, 8));
    if (R <= 2) v = _mm512_add_ps(v, kern__swap_lanes(v, 4));
    if (R <= 4) v = _mm512_add_ps(v, kern__swap_lanes(v, 2));
    return _mm512_add_ps(v, kern__swap_lanes(v, 1));
}
KERN__TILE void kern__add_half(const int half, __m512 *s) {
    KERN__UNROLL
    for (int v = 0; v < half; v++) s[v] = _mm512_add_ps(s[v], s[v + half]);
}

/* Scores p become exp(score * scale - max), 0 from key n on; max and sum [R] are brought up to date; keep [16] is
 * what the row's past must be multiplied by, in every lane of the row. */
KERN__TILE void kern__softmax_tile(const int R, float *p, uint32_t n, float scale, float *max, float *sum, float *keep) {
    const int N = 2 * R;
    __m512 s[16], none = _mm512_set1_ps(-INFINITY), top = none;
    KERN__UNROLL
    for (int v = 0; v < N; v++) {
        s[v] = _mm512_mask_mul_ps(none, kern__tile_mask(R, v, n), _mm512_loadu_ps(p + 16 * v), _mm512_set1_ps(scale));
        top = _mm512_max_ps(top, s[v]);
    }
    top = kern__max_keys(R, top);
    __m512 old = kern__spread_rows(R, max), now = _mm512_max_ps(top, old); /* NaN: old */
    KERN__UNROLL
    for (int v = 0; v < N; v++) {
        s[v] = kern__exp16(_mm512_sub_ps(s[v], now)); /* -inf lanes give 0 */
        _mm512_storeu_ps(p + 16 * v, s[v]);
    }
    if (R >= 8) kern__add_half(8, s);
    if (R >= 4) kern__add_half(4, s);
    if (R >= 2) kern__add_half(2, s);
    kern__add_half(1, s);
    s[0] = kern__sum_keys(R, s[0]);
    __m512 past = kern__exp16(_mm512_sub_ps(old, now)); /* exactly 1 where the maximum stays */
    _mm512_storeu_ps(keep, past);
    kern__gather_rows(R, max, now);
    kern__gather_rows(R, sum, _mm512_add_ps(_mm512_mul_ps(kern__spread_rows(R, sum), past), s[0]));
}

#endif
