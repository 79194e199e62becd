/* SPDX-License-Identifier: Apache-2.0
 *
 * Softmax of one row and one block of keys: what the float and the int8 attention share. Folder-private. */
#ifndef MOED_KERNELS_CPU_ATTN_AVX2_H
#define MOED_KERNELS_CPU_ATTN_AVX2_H

#include "kernels/attn_walk.h"
#include "kernels/cpu/vec_avx2.h"

/* Turns the scores p into exp(score * scale - max); returns what the row's past must be multiplied by. */
KERN__TILE float kern__softmax_row(float *p, uint32_t n, float scale, float *max, float *sum) {
    __m256 s[4], top = _mm256_set1_ps(-INFINITY);
    KERN__UNROLL
    for (int x = 0; x < 4; x++) {
        __m256 m = _mm256_castsi256_ps(kern__mask8(n > 8u * (uint32_t)x ? n - 8u * (uint32_t)x : 0));
        s[x] = _mm256_mul_ps(_mm256_loadu_ps(p + 8 * x), _mm256_set1_ps(scale));
        s[x] = _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), s[x], m);
        top = _mm256_max_ps(top, s[x]);
    }
    float old = *max, now = kern__max8(top);
    if (!(now > old)) now = old;
    KERN__UNROLL
    for (int x = 0; x < 4; x++) {
        s[x] = kern__exp8(_mm256_sub_ps(s[x], _mm256_set1_ps(now))); /* -inf lanes give 0 */
        _mm256_storeu_ps(p + 8 * x, s[x]);
    }
    float keep = now == old ? 1 : _mm256_cvtss_f32(kern__exp8(_mm256_set1_ps(old - now)));
    *sum = *sum * keep + kern__sum8(_mm256_add_ps(_mm256_add_ps(s[0], s[2]), _mm256_add_ps(s[1], s[3])));
    *max = now;
    return keep;
}

#endif
