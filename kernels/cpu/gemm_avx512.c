/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix product for AVX-512 with VNNI: 16 weight rows in the lanes of a vector, unsigned codes times signed
 * activations four at a time (vpdpbusd), exact in int32. Float weights: 16 accumulators along the row. */
#include <immintrin.h>

#include "kernels/internal.h"

#define VEC_FN KERN_INLINE
#define CODE_BYTE_BIAS 128 /* vpdpbusd wants unsigned codes */

enum { ROWS = 16, TILE = 8, LINES_TOKENS = 2, FUSED_EVERY = 8, FUSED_TOKENS = 16 };
typedef __m512i vec;
typedef __m512 vecf;
typedef __m256i hvec;

VEC_FN vec v_load4(const uint8_t *const rows[ROWS], size_t off, int i) {
    __m512i v = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(rows[i] + off)));
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(rows[4 + i] + off)), 1);
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(rows[8 + i] + off)), 2);
    return _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(rows[12 + i] + off)), 3);
}
VEC_FN vec v_load(const void *p) { return _mm512_loadu_si512(p); }
VEC_FN vec v_dup128(const void *p) { return _mm512_broadcast_i32x4(_mm_loadu_si128(p)); }
VEC_FN vec v_set1_8(char c) { return _mm512_set1_epi8(c); }
VEC_FN vec v_set1_32(int c) { return _mm512_set1_epi32(c); }
VEC_FN vec v_and(vec a, vec b) { return _mm512_and_si512(a, b); }
VEC_FN vec v_or(vec a, vec b) { return _mm512_or_si512(a, b); }
VEC_FN vec v_xor(vec a, vec b) { return _mm512_xor_si512(a, b); }
VEC_FN vec v_add8(vec a, vec b) { return _mm512_add_epi8(a, b); }
VEC_FN vec v_add32(vec a, vec b) { return _mm512_add_epi32(a, b); }
VEC_FN vec v_srl16(vec a, int n) { return _mm512_srli_epi16(a, (unsigned)n); }
VEC_FN vec v_sll16(vec a, int n) { return _mm512_slli_epi16(a, (unsigned)n); }
VEC_FN vec v_srl32(vec a, int n) { return _mm512_srli_epi32(a, (unsigned)n); }
VEC_FN vec v_sll32(vec a, int n) { return _mm512_slli_epi32(a, (unsigned)n); }
VEC_FN vec v_sra32(vec a, int n) { return _mm512_srai_epi32(a, (unsigned)n); }
VEC_FN vec v_unpacklo16(vec a, vec b) { return _mm512_unpacklo_epi16(a, b); }
VEC_FN vec v_unpackhi16(vec a, vec b) { return _mm512_unpackhi_epi16(a, b); }
VEC_FN vec v_unpacklo32(vec a, vec b) { return _mm512_unpacklo_epi32(a, b); }
VEC_FN vec v_unpackhi32(vec a, vec b) { return _mm512_unpackhi_epi32(a, b); }
VEC_FN vec v_unpacklo64(vec a, vec b) { return _mm512_unpacklo_epi64(a, b); }
VEC_FN vec v_unpackhi64(vec a, vec b) { return _mm512_unpackhi_epi64(a, b); }
VEC_FN vec v_table(vec table, vec index) { return _mm512_shuffle_epi8(table, index); }
VEC_FN vec v_16_where(vec a, vec bits) { return _mm512_maskz_mov_epi8(_mm512_test_epi8_mask(a, bits), v_set1_8(16)); }
VEC_FN vecf v_to_float(vec a) { return _mm512_cvtepi32_ps(a); }
VEC_FN vecf v_halfs(vec a) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a)); }
VEC_FN vecf v_halfs_at(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
VEC_FN vecf h_to_float(hvec h) { return _mm512_cvtph_ps(h); }
VEC_FN hvec h_load(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
VEC_FN vec v_bytes(const void *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)); }
VEC_FN vec h_to_32(hvec h) { return _mm512_cvtepu16_epi32(h); }
/* out[0] = the even 64-bit words of v, out[1] = the odd ones */
VEC_FN void v_split_pairs(vec v, hvec out[2]) {
    v = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), v);
    out[0] = _mm512_castsi512_si256(v);
    out[1] = _mm512_extracti64x4_epi64(v, 1);
}
VEC_FN vecf v_e8m0(vec e) { /* kern__e8m0_half */
    vec normal = _mm512_slli_epi32(_mm512_sub_epi32(e, v_set1_32(1)), 23);
    __mmask16 tiny = _mm512_cmplt_epi32_mask(e, v_set1_32(2));
    return _mm512_castsi512_ps(_mm512_mask_sllv_epi32(normal, tiny, v_set1_32(0x00200000), e));
}
VEC_FN vecf vf_mul(vecf a, vecf b) { return _mm512_mul_ps(a, b); }
VEC_FN vecf vf_zero(void) { return _mm512_setzero_ps(); }
VEC_FN vecf vf_set1(float f) { return _mm512_set1_ps(f); }
VEC_FN vecf vf_madd(vecf a, vecf b, vecf c) { return _mm512_fmadd_ps(a, b, c); }
VEC_FN void vf_store(float *p, vecf a) { _mm512_storeu_ps(p, a); }
VEC_FN vecf vf_negate(vecf a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }

#include "kernels/cpu/gemm_panel.h"

VEC_FN __m512i broadcast4(const void *p) {
    int32_t v;
    memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
}

/* Sums the four words of each 128-bit lane: lane L word i of the result is row 4L + i, lane L of p[i]. */
VEC_FN __m512i add_words(const __m512i p[4]) {
    __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(p[0], p[1]), _mm512_unpackhi_epi32(p[0], p[1]));
    __m512i b = _mm512_add_epi32(_mm512_unpacklo_epi32(p[2], p[3]), _mm512_unpackhi_epi32(p[2], p[3]));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

/* Adds the dots of weights 0..15 and 16..31 of 16 rows with one token; only lo + hi means anything unless `split`. */
VEC_FN void dot_lines(const __m512i c[8], const int8_t q[32], bool split, __m512i *lo, __m512i *hi) {
    __m512i x0 = v_dup128(q), x1 = v_dup128(q + 16), zero = _mm512_setzero_si512(), a[4], b[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        a[i] = _mm512_dpbusd_epi32(zero, c[i], x0);
        b[i] = _mm512_dpbusd_epi32(split ? zero : a[i], c[4 + i], x1);
    }
    if (split)
        *lo = _mm512_add_epi32(*lo, add_words(a));
    *hi = _mm512_add_epi32(*hi, add_words(b));
}

/* Adds to lo and hi. */
VEC_FN void dot_words(const __m512i c[8], const int8_t q[32], __m512i *lo, __m512i *hi) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        *lo = _mm512_dpbusd_epi32(*lo, c[i], broadcast4(q + 4 * i));
        *hi = _mm512_dpbusd_epi32(*hi, c[4 + i], broadcast4(q + 16 + 4 * i));
    }
}

/* Copies of i. By way of memory they take a load, from a general register a slot of the vector units. With one token the
 * latter decode (Q6_K from DRAM: 71 instead of 58 Gop/s), with many the loads are scarcer (16 tokens: 254 instead of 285). */
VEC_FN __m512i copies(int i, bool by_memory) {
    __m512i v;
    if (!by_memory)
        return _mm512_set1_epi32(i);
    __asm__("vpbroadcastd %1, %0" : "=v"(v) : "m"(i));
    return v;
}

/* Block dot of 16 rows with one token, the only one if `alone`, in units of the activation's d. */
VEC_FN __m512 block_dot(enum kind kind, enum layout layout, bool alone, const struct panel_block *w, const __m512i c[8],
                        const struct kern_q8 *x, int bias) {
    const int total = x->sum[0] + x->sum[1]; /* in general registers: the multipliers are busy */
    const bool split = kind == KIND_SIX;
    __m512i lo = kind == KIND_MIN ? _mm512_setzero_si512() : copies(-bias * (split ? x->sum[0] : total), alone);
    __m512i hi = split ? copies(-bias * x->sum[1], alone) : _mm512_setzero_si512();
    if (layout == LAYOUT_WORDS)
        dot_words(c, x->q, &lo, &hi);
    else
        dot_lines(c, x->q, split, &lo, &hi);
    if (split)
        return _mm512_fmadd_ps(_mm512_cvtepi32_ps(hi), w->sc[1], _mm512_mul_ps(_mm512_cvtepi32_ps(lo), w->sc[0]));
    __m512 dot = _mm512_cvtepi32_ps(_mm512_add_epi32(lo, hi));
    if (kind != KIND_MIN)
        return _mm512_mul_ps(dot, w->d);
    return _mm512_fmadd_ps(dot, w->d, _mm512_mul_ps(w->m, _mm512_cvtepi32_ps(_mm512_set1_epi32(total))));
}

KERN__TILE vecf packed_dot(enum kind kind, bool alone, const struct panel_block *w, const struct kern_q8 *x, int bias) {
    return block_dot(kind, LAYOUT_WORDS, alone, w, w->code, x, bias);
}

#include "kernels/cpu/gemm_packed.h"

KERN__TILE void tile_n(enum kind kind, enum layout layout, const int n, const struct tile *t) {
    __mmask16 mask = (__mmask16)(0xffff >> (16 - t->n_rows));
    __m512 acc[TILE];
#pragma GCC unroll 8
    for (int i = 0; i < n; i++)
        acc[i] = t->first ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(mask, t->y[i]);
    for (unsigned b = 0; b < t->n_blocks; b++) {
        const struct panel_block *w = &t->panel->b[b];
        prefetch_ahead(t, b);
        __m512i c[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
            c[i] = w->code[i];
#pragma GCC unroll 8
        for (int i = 0; i < n; i++) {
            const struct kern_q8 *x = t->x[i] + b;
            acc[i] = _mm512_fmadd_ps(block_dot(kind, layout, false, w, c, x, t->bias), _mm512_set1_ps(x->d), acc[i]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < n; i++)
        _mm512_mask_storeu_ps(t->y[i], mask, acc[i]);
}

#define TILE_KIND(name, kind)                                                                                    \
    static void name(uint32_t n, const struct tile *t) {                                                        \
        if (t->layout == LAYOUT_LINES) {                                                                         \
            if (n == 1)                                                                                          \
                tile_n(kind, LAYOUT_LINES, 1, t);                                                                \
            else                                                                                                 \
                tile_n(kind, LAYOUT_LINES, LINES_TOKENS, t);                                                     \
            return;                                                                                              \
        }                                                                                                        \
        switch (n) {                                                                                             \
        case 1: tile_n(kind, LAYOUT_WORDS, 1, t); break;                                                         \
        case 2: tile_n(kind, LAYOUT_WORDS, 2, t); break;                                                         \
        case 3: tile_n(kind, LAYOUT_WORDS, 3, t); break;                                                         \
        case 4: tile_n(kind, LAYOUT_WORDS, 4, t); break;                                                         \
        case 5: tile_n(kind, LAYOUT_WORDS, 5, t); break;                                                         \
        case 6: tile_n(kind, LAYOUT_WORDS, 6, t); break;                                                         \
        case 7: tile_n(kind, LAYOUT_WORDS, 7, t); break;                                                         \
        default: tile_n(kind, LAYOUT_WORDS, 8, t); break;                                                        \
        }                                                                                                        \
    }
TILE_KIND(tile_bias, KIND_BIAS)
TILE_KIND(tile_min, KIND_MIN)
TILE_KIND(tile_six, KIND_SIX)

static void tile_run(enum kind kind, uint32_t n, const struct tile *t) {
    switch (kind) {
    case KIND_BIAS:
    case KIND_BYTE: tile_bias(n, t); break;
    case KIND_MIN: tile_min(n, t); break;
    case KIND_SIX: tile_six(n, t); break;
    }
}

enum { FLOAT_ROWS = 4, FLOAT_TOKENS = 4 };

VEC_FN __m512 load_weights(enum dtype dtype, const uint8_t *w, uint32_t k, __mmask16 m) {
    if (dtype == DTYPE_F32)
        return _mm512_maskz_loadu_ps(m, w + 4 * (size_t)k);
    __m256i h = _mm256_maskz_loadu_epi16(m, w + 2 * (size_t)k);
    if (dtype == DTYPE_F16)
        return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* Adds halves: l + 8, l + 4, l + 2, l + 1. */
VEC_FN float add_lanes(__m512 v) {
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

struct float_tile {
    uint32_t n_in;
    const uint8_t *w[FLOAT_ROWS];
    const float *x[FLOAT_TOKENS];
    float *y[FLOAT_TOKENS]; /* at the first row */
};

KERN__TILE void float_tile_n(enum dtype dtype, const int n_rows, const int n, const struct float_tile *t) {
    __m512 acc[FLOAT_TOKENS][FLOAT_ROWS];
#pragma GCC unroll 4
    for (int i = 0; i < n; i++)
#pragma GCC unroll 4
        for (int r = 0; r < n_rows; r++)
            acc[i][r] = _mm512_setzero_ps();
    for (uint32_t k = 0; k < t->n_in; k += 16) {
        __mmask16 m = t->n_in - k < 16 ? (__mmask16)((1u << (t->n_in - k)) - 1) : 0xffff;
        __m512 w[FLOAT_ROWS];
#pragma GCC unroll 4
        for (int r = 0; r < n_rows; r++)
            w[r] = load_weights(dtype, t->w[r], k, m);
#pragma GCC unroll 4
        for (int i = 0; i < n; i++) {
            __m512 x = _mm512_maskz_loadu_ps(m, t->x[i] + k);
#pragma GCC unroll 4
            for (int r = 0; r < n_rows; r++)
                acc[i][r] = _mm512_fmadd_ps(w[r], x, acc[i][r]);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < n; i++)
#pragma GCC unroll 4
        for (int r = 0; r < n_rows; r++)
            t->y[i][r] = add_lanes(acc[i][r]);
}

#include "kernels/cpu/gemm_float.h"

void kern__gemm_avx512(const struct kern_gemm *d, uint32_t row0, uint32_t row1) {
    switch (d->dtype) {
    case DTYPE_F32: gemm_float(d, DTYPE_F32, row0, row1); break;
    case DTYPE_F16: gemm_float(d, DTYPE_F16, row0, row1); break;
    case DTYPE_BF16: gemm_float(d, DTYPE_BF16, row0, row1); break;
    default: (d->packed ? gemm_packed : gemm_quant)(d, row0, row1); break;
    }
}
