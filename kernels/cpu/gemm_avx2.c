/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix product for AVX2 with FMA and F16C: 8 weight rows in the lanes of a vector, bytes multiplied by
 * vpmaddubsw. That instruction saturates at 16 bits, so the kinds differ in how many of its results (each at most
 * 2 * code * 127) may be added before widening: 4 for codes <= 31, 2 for codes <= 63; signed bytes go through
 * |code| * (x with code's sign), at most 2 * 128 * 127 < 2^15. Float weights: 16 accumulators along the row.
 * gemm_avxvnni.c includes this file with GEMM_DPBUSD defined: the byte products are then vpdpbusd's. */
#include <immintrin.h>

#include "kernels/internal.h"

#define VEC_FN KERN_INLINE
#ifdef GEMM_DPBUSD
#define CODE_BYTE_BIAS 128 /* vpdpbusd wants unsigned codes */
#else
#define CODE_BYTE_BIAS 0 /* signed bytes stay signed */
#define GEMM_NAME kern__gemm_avx2
#endif

enum { ROWS = 8, TILE = 4, LINES_TOKENS = 1, FUSED_EVERY = 4, FUSED_TOKENS = 8 };
typedef __m256i vec;
typedef __m256 vecf;
typedef __m128i hvec;

VEC_FN vec v_load4(const uint8_t *const rows[ROWS], size_t off, int i) {
    __m256i v = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(rows[i] + off)));
    return _mm256_inserti128_si256(v, _mm_loadu_si128((const __m128i *)(rows[4 + i] + off)), 1);
}
VEC_FN vec v_load(const void *p) { return _mm256_loadu_si256(p); }
VEC_FN vec v_dup128(const void *p) { return _mm256_broadcastsi128_si256(_mm_loadu_si128(p)); }
VEC_FN vec v_set1_8(char c) { return _mm256_set1_epi8(c); }
VEC_FN vec v_set1_32(int c) { return _mm256_set1_epi32(c); }
VEC_FN vec v_and(vec a, vec b) { return _mm256_and_si256(a, b); }
VEC_FN vec v_or(vec a, vec b) { return _mm256_or_si256(a, b); }
VEC_FN vec v_xor(vec a, vec b) { return _mm256_xor_si256(a, b); }
VEC_FN vec v_add8(vec a, vec b) { return _mm256_add_epi8(a, b); }
VEC_FN vec v_add32(vec a, vec b) { return _mm256_add_epi32(a, b); }
VEC_FN vec v_srl16(vec a, int n) { return _mm256_srli_epi16(a, n); }
VEC_FN vec v_sll16(vec a, int n) { return _mm256_slli_epi16(a, n); }
VEC_FN vec v_srl32(vec a, int n) { return _mm256_srli_epi32(a, n); }
VEC_FN vec v_sll32(vec a, int n) { return _mm256_slli_epi32(a, n); }
VEC_FN vec v_sra32(vec a, int n) { return _mm256_srai_epi32(a, n); }
VEC_FN vec v_unpacklo16(vec a, vec b) { return _mm256_unpacklo_epi16(a, b); }
VEC_FN vec v_unpackhi16(vec a, vec b) { return _mm256_unpackhi_epi16(a, b); }
VEC_FN vec v_unpacklo32(vec a, vec b) { return _mm256_unpacklo_epi32(a, b); }
VEC_FN vec v_unpackhi32(vec a, vec b) { return _mm256_unpackhi_epi32(a, b); }
VEC_FN vec v_unpacklo64(vec a, vec b) { return _mm256_unpacklo_epi64(a, b); }
VEC_FN vec v_unpackhi64(vec a, vec b) { return _mm256_unpackhi_epi64(a, b); }
VEC_FN vec v_table(vec table, vec index) { return _mm256_shuffle_epi8(table, index); }
VEC_FN vec v_16_where(vec a, vec bits) {
    return _mm256_andnot_si256(_mm256_cmpeq_epi8(_mm256_and_si256(a, bits), _mm256_setzero_si256()), v_set1_8(16));
}
VEC_FN vecf v_to_float(vec a) { return _mm256_cvtepi32_ps(a); }
VEC_FN vecf v_halfs_at(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
VEC_FN vecf v_halfs(vec a) {
    __m256i low = _mm256_and_si256(a, _mm256_set1_epi32(0xffff));
    low = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, low), 0x08);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(low));
}
VEC_FN vecf h_to_float(hvec h) { return _mm256_cvtph_ps(h); }
VEC_FN hvec h_load(const void *p) { return _mm_loadu_si128((const __m128i *)p); }
VEC_FN vec v_bytes(const void *p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)); }
VEC_FN vec h_to_32(hvec h) { return _mm256_cvtepu16_epi32(h); }
/* out[0] = the even 64-bit words of v, out[1] = the odd ones */
VEC_FN void v_split_pairs(vec v, hvec out[2]) {
    v = _mm256_permute4x64_epi64(v, 0xd8);
    out[0] = _mm256_castsi256_si128(v);
    out[1] = _mm256_extracti128_si256(v, 1);
}
VEC_FN vecf v_e8m0(vec e) { /* kern__e8m0_half */
    vec normal = _mm256_slli_epi32(_mm256_sub_epi32(e, v_set1_32(1)), 23);
    vec tiny = _mm256_sllv_epi32(v_set1_32(0x00200000), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, tiny, _mm256_cmpgt_epi32(v_set1_32(2), e)));
}
VEC_FN vecf vf_mul(vecf a, vecf b) { return _mm256_mul_ps(a, b); }
VEC_FN vecf vf_zero(void) { return _mm256_setzero_ps(); }
VEC_FN vecf vf_set1(float f) { return _mm256_set1_ps(f); }
VEC_FN vecf vf_madd(vecf a, vecf b, vecf c) { return _mm256_fmadd_ps(a, b, c); }
VEC_FN void vf_store(float *p, vecf a) { _mm256_storeu_ps(p, a); }
VEC_FN vecf vf_negate(vecf a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }

#include "kernels/cpu/gemm_panel.h"

VEC_FN __m256i broadcast4(const void *p) {
    int32_t v;
    memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}

#ifdef GEMM_DPBUSD
/* Dots of 16 weights of 8 rows with q, LAYOUT_WORDS. */
VEC_FN __m256i dot_words(enum kind kind, const __m256i c[4], const int8_t q[16]) {
    (void)kind;
    __m256i sum = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        sum = _mm256_dpbusd_epi32(sum, c[i], broadcast4(q + 4 * i));
    return sum;
}

VEC_FN __m256i dot_line(enum kind kind, __m256i c, __m256i x) {
    (void)kind;
    return _mm256_dpbusd_epi32(_mm256_setzero_si256(), c, x);
}
#else
/* u8 codes times s8 x, pairs added to 16 bits. Signed codes go in as |code| and x with the code's sign. */
VEC_FN __m256i mul_pairs(enum kind kind, __m256i code, __m256i x) {
    if (kind == KIND_BYTE)
        return _mm256_maddubs_epi16(_mm256_abs_epi8(code), _mm256_sign_epi8(x, code));
    return _mm256_maddubs_epi16(code, x);
}

VEC_FN __m256i widen(__m256i pairs) {
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

/* Dots of 16 weights of 8 rows with q, LAYOUT_WORDS: adds in 16 bits as far as the kind's codes allow. */
VEC_FN __m256i dot_words(enum kind kind, const __m256i c[4], const int8_t q[16]) {
    __m256i p[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        p[i] = mul_pairs(kind, c[i], broadcast4(q + 4 * i));
    if (kind == KIND_BYTE) {
        __m256i a = _mm256_add_epi32(widen(p[0]), widen(p[1]));
        return _mm256_add_epi32(a, _mm256_add_epi32(widen(p[2]), widen(p[3])));
    }
    __m256i a = _mm256_add_epi16(p[0], p[1]), b = _mm256_add_epi16(p[2], p[3]);
    if (kind == KIND_SIX)
        return _mm256_add_epi32(widen(a), widen(b));
    return widen(_mm256_add_epi16(a, b));
}

VEC_FN __m256i dot_line(enum kind kind, __m256i c, __m256i x) {
    return widen(mul_pairs(kind, c, x));
}
#endif

/* The same, LAYOUT_LINES: lane L word i of the result is row 4L + i, lane L of c[i]. */
VEC_FN __m256i dot_lines(enum kind kind, const __m256i c[4], const int8_t q[16]) {
    __m256i x = v_dup128(q), p[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        p[i] = dot_line(kind, c[i], x);
    return _mm256_hadd_epi32(_mm256_hadd_epi32(p[0], p[1]), _mm256_hadd_epi32(p[2], p[3]));
}

/* Block dot of 8 rows with one token, in units of the activation's d. */
VEC_FN __m256 block_dot(enum kind kind, enum layout layout, const struct panel_block *w, const struct kern_q8 *x,
                        int bias) {
    bool words = layout == LAYOUT_WORDS;
    __m256i lo = words ? dot_words(kind, w->code, x->q) : dot_lines(kind, w->code, x->q);
    __m256i hi = words ? dot_words(kind, w->code + 4, x->q + 16) : dot_lines(kind, w->code + 4, x->q + 16);
    const int total = x->sum[0] + x->sum[1]; /* in general registers: the multipliers are busy */
    if (kind == KIND_SIX) {
        __m256 l = _mm256_cvtepi32_ps(_mm256_sub_epi32(lo, _mm256_set1_epi32(bias * x->sum[0])));
        __m256 h = _mm256_cvtepi32_ps(_mm256_sub_epi32(hi, _mm256_set1_epi32(bias * x->sum[1])));
        return _mm256_fmadd_ps(h, w->sc[1], _mm256_mul_ps(l, w->sc[0]));
    }
    if (kind == KIND_BIAS || (kind == KIND_BYTE && CODE_BYTE_BIAS != 0))
        lo = _mm256_sub_epi32(lo, _mm256_set1_epi32(bias * total));
    __m256 dot = _mm256_cvtepi32_ps(_mm256_add_epi32(lo, hi));
    if (kind != KIND_MIN)
        return _mm256_mul_ps(dot, w->d);
    return _mm256_fmadd_ps(dot, w->d, _mm256_mul_ps(w->m, _mm256_cvtepi32_ps(_mm256_set1_epi32(total))));
}

KERN__TILE vecf packed_dot(enum kind kind, bool alone, const struct panel_block *w, const struct kern_q8 *x, int bias) {
    (void)alone;
    return block_dot(kind, LAYOUT_WORDS, w, x, bias);
}

#include "kernels/cpu/gemm_packed.h"

KERN__TILE void tile_n(enum kind kind, enum layout layout, const int n, const struct tile *t) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)t->n_rows), lane);
    __m256 acc[TILE];
#pragma GCC unroll 4
    for (int i = 0; i < n; i++)
        acc[i] = t->first ? _mm256_setzero_ps() : _mm256_maskload_ps(t->y[i], mask);
    for (unsigned b = 0; b < t->n_blocks; b++) {
        const struct panel_block *w = &t->panel->b[b];
        prefetch_ahead(t, b);
#pragma GCC unroll 4
        for (int i = 0; i < n; i++) {
            const struct kern_q8 *x = t->x[i] + b;
            acc[i] = _mm256_fmadd_ps(block_dot(kind, layout, w, x, t->bias), _mm256_set1_ps(x->d), acc[i]);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < n; i++)
        _mm256_maskstore_ps(t->y[i], mask, acc[i]);
}

#define TILE_KIND(name, kind)                                                                                    \
    static void name(uint32_t n, const struct tile *t) {                                                        \
        if (t->layout == LAYOUT_LINES) {                                                                         \
            tile_n(kind, LAYOUT_LINES, LINES_TOKENS, t);                                                         \
            return;                                                                                              \
        }                                                                                                        \
        switch (n) {                                                                                             \
        case 1: tile_n(kind, LAYOUT_WORDS, 1, t); break;                                                         \
        case 2: tile_n(kind, LAYOUT_WORDS, 2, t); break;                                                         \
        case 3: tile_n(kind, LAYOUT_WORDS, 3, t); break;                                                         \
        default: tile_n(kind, LAYOUT_WORDS, 4, t); break;                                                        \
        }                                                                                                        \
    }
TILE_KIND(tile_bias, KIND_BIAS)
TILE_KIND(tile_min, KIND_MIN)
TILE_KIND(tile_six, KIND_SIX)
TILE_KIND(tile_byte, KIND_BYTE)

static void tile_run(enum kind kind, uint32_t n, const struct tile *t) {
    switch (kind) {
    case KIND_BIAS: tile_bias(n, t); break;
    case KIND_MIN: tile_min(n, t); break;
    case KIND_SIX: tile_six(n, t); break;
    case KIND_BYTE: tile_byte(n, t); break;
    }
}

enum { FLOAT_ROWS = 2, FLOAT_TOKENS = 2 };

/* 16 lanes: l 0..7 and l 8..15. */
struct lanes {
    __m256 lo, hi;
};

VEC_FN __m256 load_weights8(enum dtype dtype, const uint8_t *w) {
    if (dtype == DTYPE_F32)
        return _mm256_loadu_ps((const float *)w);
    __m128i h = _mm_loadu_si128((const __m128i *)w);
    if (dtype == DTYPE_F16)
        return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

VEC_FN struct lanes fma_lanes(struct lanes a, struct lanes w, struct lanes x) {
    return (struct lanes){ _mm256_fmadd_ps(w.lo, x.lo, a.lo), _mm256_fmadd_ps(w.hi, x.hi, a.hi) };
}

/* Adds halves: l + 8, l + 4, l + 2, l + 1. */
VEC_FN float add_lanes(struct lanes v) {
    __m256 a = _mm256_add_ps(v.lo, v.hi);
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

/* Weights k .. k+15 of row w, or the last n % 16 and zeros. */
VEC_FN struct lanes load_weights(enum dtype dtype, const uint8_t *w, uint32_t k, uint32_t n_in) {
    const size_t size = dtype == DTYPE_F32 ? 4 : 2;
    uint8_t tail[64] = { 0 };
    w += k * size;
    if (n_in - k < 16)
        w = memcpy(tail, w, (n_in - k) * size);
    return (struct lanes){ load_weights8(dtype, w), load_weights8(dtype, w + 8 * size) };
}

KERN__TILE void float_tile_n(enum dtype dtype, const int n_rows, const int n, const struct float_tile *t) {
    struct lanes acc[FLOAT_TOKENS][FLOAT_ROWS], w[FLOAT_ROWS];
#pragma GCC unroll 2
    for (int i = 0; i < n; i++)
#pragma GCC unroll 2
        for (int r = 0; r < n_rows; r++)
            acc[i][r] = (struct lanes){ _mm256_setzero_ps(), _mm256_setzero_ps() };
    for (uint32_t k = 0; k < t->n_in; k += 16) {
#pragma GCC unroll 2
        for (int r = 0; r < n_rows; r++)
            w[r] = load_weights(dtype, t->w[r], k, t->n_in);
#pragma GCC unroll 2
        for (int i = 0; i < n; i++) {
            struct lanes x = load_weights(DTYPE_F32, (const uint8_t *)t->x[i], k, t->n_in);
#pragma GCC unroll 2
            for (int r = 0; r < n_rows; r++)
                acc[i][r] = fma_lanes(acc[i][r], w[r], x);
        }
    }
#pragma GCC unroll 2
    for (int i = 0; i < n; i++)
#pragma GCC unroll 2
        for (int r = 0; r < n_rows; r++)
            t->y[i][r] = add_lanes(acc[i][r]);
}

#include "kernels/cpu/gemm_float.h"

void GEMM_NAME(const struct kern_gemm *d, uint32_t row0, uint32_t row1) {
    switch (d->dtype) {
    case DTYPE_F32: gemm_float(d, DTYPE_F32, row0, row1); break;
    case DTYPE_F16: gemm_float(d, DTYPE_F16, row0, row1); break;
    case DTYPE_BF16: gemm_float(d, DTYPE_BF16, row0, row1); break;
    default: (d->packed ? gemm_packed : gemm_quant)(d, row0, row1); break;
    }
}
