/* SPDX-License-Identifier: Apache-2.0
 *
 * KV rows to their format, AVX2, 8 values at a time: the bits of the scalar conversion. The rest of a row that is no
 * multiple of 8 goes through a copy. */
#include "kernels/attn_walk.h"
#include "kernels/cpu/vec_avx2.h"

#include <string.h>

KERN_INLINE __m256 load(const float *x, uint32_t n) {
    return n >= 8 ? _mm256_loadu_ps(x) : _mm256_maskload_ps(x, kern__mask8(n));
}

KERN_INLINE __m128i low_words(__m256i v) { /* 8 values of 0 .. 65535 */
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(v, v), 0xD8));
}

/* Rounds to nearest even; a NaN keeps the top of its payload and becomes quiet. */
KERN_INLINE __m128i to_bf16(__m256 x) {
    __m256i u = _mm256_castps_si256(x), high = _mm256_srli_epi32(u, 16);
    __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    __m256i r = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return low_words(_mm256_blendv_epi8(r, _mm256_or_si256(high, _mm256_set1_epi32(64)), nan));
}

static void to_16bit(enum kern_kv_type type, const float *x, uint32_t n, uint16_t *h) {
    for (uint32_t i = 0; i < n; i += 8) {
        __m256 v = load(x + i, n - i);
        __m128i y = type == KERN_KV_F16 ? _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT) : to_bf16(v);
        if (n - i >= 8)
            _mm_storeu_si128((__m128i *)(h + i), y);
        else
            memcpy(h + i, &y, (n - i) * sizeof *h);
    }
}

static void to_q8(const float *x, uint32_t n, int8_t *q, float *scale) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i top = _mm256_setzero_si256(); /* as integers, magnitudes order like floats, infinity and NaN on top */
    for (uint32_t i = 0; i < n; i += 8)
        top = _mm256_max_epi32(top, _mm256_and_si256(magnitude, _mm256_castps_si256(load(x + i, n - i))));
    int32_t lane[8], bits = 0;
    _mm256_storeu_si256((__m256i *)lane, top);
    for (int i = 0; i < 8; i++) bits = lane[i] > bits ? lane[i] : bits;
    float max;
    memcpy(&max, &bits, sizeof max);
    bool finite = bits < 0x7f800000, zero = !finite || max < KERN__Q8_TINY;
    *scale = !finite ? NAN : zero ? 0 : max / 127.0f;
    if (zero) {
        memset(q, 0, n);
        return;
    }
    const __m256 inv = _mm256_set1_ps(127.0f / max);
    for (uint32_t i = 0; i < n; i += 8) {
        __m256i v = _mm256_cvtps_epi32(_mm256_mul_ps(load(x + i, n - i), inv));
        __m128i w = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
        w = _mm_packs_epi16(w, w);
        memcpy(q + i, &w, n - i < 8 ? n - i : 8);
    }
}

static void row_avx2(enum kern_kv_type type, const float *x, uint32_t n, void *row, float *scale) {
    if (type == KERN_KV_Q8)
        to_q8(x, n, row, scale);
    else if (type == KERN_KV_F32)
        memcpy(row, x, n * sizeof *x);
    else
        to_16bit(type, x, n, row);
}

void kern__kv_store_avx2(const struct kern_kv_store *d, int32_t page, uint32_t offset, const float *k, const float *v) {
    kern__kv_store_rows(d, page, offset, k, v, row_avx2);
}
