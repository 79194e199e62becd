/* SPDX-License-Identifier: Apache-2.0
 *
 * KV rows to their format, AVX-512, 16 values at a time: the bits of the scalar conversion. */
#include "kernels/attn_walk.h"
#include "kernels/cpu/vec_avx512.h"

#include <string.h>

/* Rounds to nearest even; a NaN keeps the top of its payload and becomes quiet. */
KERN_INLINE __m256i to_bf16(__m512 x) {
    __m512i u = _mm512_castps_si512(x), high = _mm512_srli_epi32(u, 16);
    __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i r = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(r, nan, high, _mm512_set1_epi32(64)));
}

static void to_q8(const float *x, uint32_t n, int8_t *q, float *scale) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i top = _mm512_setzero_si512(); /* as integers, magnitudes order like floats, infinity and NaN on top */
    for (uint32_t i = 0; i < n; i += 16)
        top = _mm512_max_epi32(top, _mm512_and_si512(magnitude, _mm512_castps_si512(_mm512_maskz_loadu_ps(kern__mask16(n - i), x + i))));
    int32_t bits = _mm512_reduce_max_epi32(top);
    float max;
    memcpy(&max, &bits, sizeof max);
    bool finite = bits < 0x7f800000, zero = !finite || max < KERN__Q8_TINY;
    *scale = !finite ? NAN : zero ? 0 : max / 127.0f;
    const __m512 inv = _mm512_set1_ps(zero ? 0 : 127.0f / max);
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = kern__mask16(n - i), use = zero ? 0 : m;
        __m512i v = _mm512_maskz_cvtps_epi32(use, _mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), inv));
        _mm512_mask_cvtepi32_storeu_epi8(q + i, m, v);
    }
}

static void row_avx512(enum kern_kv_type type, const float *x, uint32_t n, void *row, float *scale) {
    uint16_t *h = row;
    if (type == KERN_KV_Q8) {
        to_q8(x, n, row, scale);
    } else if (type == KERN_KV_F32) {
        memcpy(row, x, n * sizeof *x);
    } else {
        for (uint32_t i = 0; i < n; i += 16) {
            __mmask16 m = kern__mask16(n - i);
            __m512 v = _mm512_maskz_loadu_ps(m, x + i);
            __m256i y = type == KERN_KV_F16 ? _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT) : to_bf16(v);
            _mm256_mask_storeu_epi16(h + i, m, y);
        }
    }
}

void kern__kv_store_avx512(const struct kern_kv_store *d, int32_t page, uint32_t offset, const float *k, const float *v) {
    kern__kv_store_rows(d, page, offset, k, v, row_avx512);
}
