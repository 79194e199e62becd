/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantisation of activations for AVX2; the bits are those of ref/quantize.c. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernels/internal.h"

static int32_t max_lane(__m256i v) {
    __m128i a = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(a, _mm_shuffle_epi32(a, 0xb1)));
}

static int16_t add_bytes(__m128i q) {
    __m128i s = _mm_madd_epi16(_mm_maddubs_epi16(_mm_set1_epi8(1), q), _mm_set1_epi16(1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return (int16_t)_mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

/* 16 floats times inv, rounded to nearest even, as bytes; |x inv| <= 127, so no pack saturates. */
static __m128i round16(const float *x, __m256 inv) {
    __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), inv));
    __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), inv));
    __m256i w = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
    return _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
}

void kern__quantize_avx2(const float *x, size_t n, struct kern_q8 *out) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    for (size_t b = 0; b < n / 32; b++, x += 32, out++) {
        __m256i a = _mm256_setzero_si256();
        for (int k = 0; k < 32; k += 8) /* as integers, magnitudes order like floats, infinity and NaN on top */
            a = _mm256_max_epi32(a, _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(x + k)), magnitude));
        int32_t top = max_lane(a);
        float max;
        memcpy(&max, &top, 4);
        if (top >= 0x7f800000 || max < KERN__Q8_TINY) {
            memset(out, 0, sizeof *out);
            out->d = top >= 0x7f800000 ? NAN : 0;
            continue;
        }
        __m256 inv = _mm256_set1_ps(127.0f / max);
        __m128i q0 = round16(x, inv), q1 = round16(x + 16, inv);
        out->d = max / 127.0f;
        out->sum[0] = add_bytes(q0);
        out->sum[1] = add_bytes(q1);
        _mm_storeu_si128((__m128i *)out->q, q0);
        _mm_storeu_si128((__m128i *)(out->q + 16), q1);
    }
}
