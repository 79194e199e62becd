/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention over an int8 cache, AVX-512 VNNI. The sums are integer, 32 products an instruction and exact, so their
 * order is free; the softmax in between is that of attn_avx512.c. A tile is R query rows (8, 4, 2 or 1).
 *   scores  16 / R keys at a time, widened to 16 bits once for the R rows
 *   values  two keys at a time, their elements interleaved so that one instruction adds both; the lanes of the
 *           interleaving are put back in order once per block
 * Error beside that of the cache itself: q and the weights are rounded to 1 / 65534 of their maximum. */
#include "kernels/cpu/attn_avx512.h"

struct tile {
    const struct kern__attn_block *b;
    uint32_t row;                 /* first of the tile                                       */
    float *out[8];
    float *p;                     /* scores, then probabilities, see attn_avx512.h                         */
    int16_t w[32 * 8];            /* weights in the order of p                                             */
    float keep[16], unit[16];     /* of row r at r * 16 / R: factor of the earlier output, and of a weight */
    const int8_t *k, *v;
    const char *next_k, *next_v;  /* next block, to be prefetched by this tile; or this one                 */
    uint32_t n;                   /* keys                                                                  */
};

KERN__TILE __m512i widen(const int8_t *x, __mmask32 m) {
    return _mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8(m, x));
}

/* acc += sums of pairs k * q[0 .. 32). Written out because gcc 12 copies and spills accumulators around the intrinsic. */
KERN_INLINE void dot(__m512i *acc, __m512i k, const int16_t *q) {
    __asm__("vpdpwssd %2, %1, %0" : "+v"(*acc) : "v"(k), "m"(*(const __m512i *)(const void *)q));
}
KERN_INLINE void dot_pair(__m512i *acc, __m512i v, const int16_t *w) { /* the same two weights for all lanes */
    __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(*acc) : "v"(v), "m"(*(const struct { int16_t a[2]; } *)(const void *)w));
}

KERN_INLINE __mmask32 mask32(uint32_t n) {
    return n >= 32 ? 0xFFFFFFFF : ((__mmask32)1 << n) - 1;
}

KERN__TILE __m512i add_pairs(__m512i a, __m512i b, __m512i c, __m512i d) {
    __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
}

/* Lane i of the result: the sum of all lanes of a[i]. */
KERN__TILE __m512i sum16x16(const __m512i *a) {
    __m512i p = add_pairs(a[0], a[1], a[2], a[3]), q = add_pairs(a[4], a[5], a[6], a[7]);
    __m512i r = add_pairs(a[8], a[9], a[10], a[11]), s = add_pairs(a[12], a[13], a[14], a[15]);
    __m512i pq = _mm512_add_epi32(_mm512_shuffle_i32x4(p, q, 0x44), _mm512_shuffle_i32x4(p, q, 0xEE));
    __m512i rs = _mm512_add_epi32(_mm512_shuffle_i32x4(r, s, 0x44), _mm512_shuffle_i32x4(r, s, 0xEE));
    return _mm512_add_epi32(_mm512_shuffle_i32x4(pq, rs, 0x88), _mm512_shuffle_i32x4(pq, rs, 0xDD));
}

/* Scales of keys j .. j + 16/R in the lanes of their keys; 0 from key n on. */
KERN__TILE __m512 key_scales(const int R, const float *scale, uint32_t j, uint32_t n) {
    const uint32_t J = 16 / (uint32_t)R, left = j < n ? n - j : 0;
    return _mm512_permutexvar_ps(kern__lane_key(R), _mm512_maskz_loadu_ps(kern__mask16(left < J ? left : J), scale + j));
}

/* acc [R][16/R] += q . k over the elements of mask m from i on. What there is less of stays in registers. */
KERN__TILE void dot_step(const int R, const int16_t *q, const int8_t *const *key, uint32_t i, __mmask32 m, __m512i *acc) {
    const int J = 16 / R;
    if (R > J) {
        __m512i k0 = widen(key[0] + i, m), k1 = widen(key[1] + i, m);
        KERN__UNROLL
        for (int r = 0; r < R; r++) {
            dot(&acc[2 * r], k0, q + 32 * r);
            dot(&acc[2 * r + 1], k1, q + 32 * r);
        }
        return;
    }
    KERN__UNROLL
    for (int x = 0; x < J; x++) {
        __m512i k = widen(key[x] + i, m);
        KERN__UNROLL
        for (int r = 0; r < R; r++) dot(&acc[r * J + x], k, q + 32 * r);
    }
}

/* Scores of keys j .. j + 16/R (the last key again where there are fewer) for R rows. */
KERN__TILE void score_keys(const int R, const struct kern__attn_block *b, const struct tile *t, __m512 q_scale, uint32_t j) {
    const int J = 16 / R;
    const uint32_t dim = b->d->head_dim_k;
    const int8_t *key[16];
    __m512i acc[16];
    KERN__UNROLL
    for (int x = 0; x < J; x++) key[x] = t->k + (size_t)(j + (uint32_t)x < t->n ? j + (uint32_t)x : t->n - 1) * dim;
    KERN__UNROLL
    for (int x = 0; x < 16; x++) acc[x] = _mm512_setzero_si512();
    uint32_t i = 0;
    for (; i + 32 <= dim; i += 32) {
        kern__attn_prefetch(t->next_k, (size_t)j * dim + (size_t)i * J, 32 * (size_t)J);
        dot_step(R, kern__attn_q_i16(b, t->row, i), key, i, 0xFFFFFFFF, acc);
    }
    if (i < dim) dot_step(R, kern__attn_q_i16(b, t->row, i), key, i, mask32(dim - i), acc);
    __m512 scale = _mm512_mul_ps(q_scale, key_scales(R, b->k_scale, j, t->n));
    _mm512_storeu_ps(t->p + j * (uint32_t)R, _mm512_mul_ps(_mm512_cvtepi32_ps(sum16x16(acc)), scale));
}

/* w and unit from the probabilities and the scales of the values. */
KERN__TILE void quantize_weights(const int R, const struct kern__attn_block *b, struct tile *t) {
    const int N = 2 * R;
    const __m512 most = _mm512_set1_ps(KERN__ATTN_W16);
    __m512 w[16];
    __m512 max = _mm512_setzero_ps(), bad = max; /* a NaN shows in bad */
    KERN__UNROLL
    for (int v = 0; v < N; v++) {
        w[v] = _mm512_mul_ps(_mm512_loadu_ps(t->p + 16 * v), key_scales(R, b->v_scale, (uint32_t)v * 16 / (uint32_t)R, t->n));
        max = _mm512_max_ps(w[v], max); /* NaN: the second */
        bad = _mm512_fmadd_ps(w[v], _mm512_setzero_ps(), bad);
    }
    max = _mm512_add_ps(kern__max_keys(R, max), kern__sum_keys(R, bad)); /* bad is 0 or NaN */
    __mmask16 nan = _mm512_cmp_ps_mask(max, max, _CMP_UNORD_Q);
    __mmask16 use = _mm512_cmp_ps_mask(max, _mm512_set1_ps(KERN__ATTN_W_TINY), _CMP_GE_OQ);
    __m512 inv = _mm512_maskz_div_ps(use, most, max);
    _mm512_storeu_ps(t->unit, _mm512_mask_div_ps(_mm512_maskz_mov_ps(nan, max), use, max, most));
    KERN__UNROLL
    for (int v = 0; v < N; v++)
        _mm256_storeu_si256((__m256i *)(t->w + 16 * v), _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(_mm512_mul_ps(w[v], inv))));
}

/* Elements i .. i + 32 of out[r] = out * keep + (lo, hi) * unit, with the interleaving undone. */
KERN__TILE void put_back(const struct tile *t, int r, int lane, uint32_t i, __mmask32 m, __m512i lo, __m512i hi) {
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    const __m512 keep = _mm512_set1_ps(t->keep[lane]), unit = _mm512_set1_ps(t->unit[lane]);
    float *out = t->out[r] + i;
    __m512 a = _mm512_cvtepi32_ps(_mm512_permutex2var_epi32(lo, first, hi));
    __m512 b = _mm512_cvtepi32_ps(_mm512_permutex2var_epi32(lo, second, hi));
    __mmask16 m0 = (__mmask16)m, m1 = (__mmask16)(m >> 16);
    a = _mm512_fmadd_ps(a, unit, _mm512_mul_ps(_mm512_maskz_loadu_ps(m0, out), keep));
    b = _mm512_fmadd_ps(b, unit, _mm512_mul_ps(_mm512_maskz_loadu_ps(m1, out + 16), keep));
    _mm512_mask_storeu_ps(out, m0, a);
    _mm512_mask_storeu_ps(out + 16, m1, b);
}

/* out[.., i .. i + 32 C) for R rows; m masks each 32 elements. */
KERN__TILE void add_values(const int R, const int C, const struct tile *t, uint32_t dim, uint32_t i, __mmask32 m) {
    const uint32_t J = 16 / (uint32_t)R;
    __m512i acc[2][16];
    KERN__UNROLL
    for (int x = 0; x < R * C; x++) acc[0][x] = acc[1][x] = _mm512_setzero_si512();
    for (uint32_t j = 0; j < t->n; j += 2) {
        const int8_t *even = t->v + (size_t)j * dim + i, *odd = j + 1 < t->n ? even + dim : even; /* weight 0 */
        const int16_t *w = t->w + j / J * 16 + j % J;
        kern__attn_prefetch(t->next_v, (size_t)i * t->n + (size_t)j * 32 * C, 64 * (size_t)C);
        KERN__UNROLL
        for (int c = 0; c < C; c++) {
            __m512i a = widen(even + 32 * c, m), b = widen(odd + 32 * c, m);
            __m512i lo = _mm512_unpacklo_epi16(a, b), hi = _mm512_unpackhi_epi16(a, b);
            KERN__UNROLL
            for (int r = 0; r < R; r++) {
                dot_pair(&acc[0][r * C + c], lo, w + (uint32_t)r * J);
                dot_pair(&acc[1][r * C + c], hi, w + (uint32_t)r * J);
            }
        }
    }
    KERN__UNROLL
    for (int x = 0; x < R * C; x++)
        put_back(t, x / C, x / C * (int)J, i + 32 * (uint32_t)(x % C), m, acc[0][x], acc[1][x]);
}

KERN__TILE void fold_tile(const int R, const struct kern__attn_block *b, struct tile *t, uint32_t row) {
    const uint32_t dim = b->d->head_dim_v, wide = R == 8 ? 32 : R == 4 ? 64 : 128;
    uint32_t i = 0;
    for (int r = 0; r < R; r++) {
        t->out[r] = kern__attn_out(b, row + (uint32_t)r);
    }
    const __m512 q_scale = kern__spread_rows(R, b->q_scale + row);
    for (uint32_t j = 0; j < t->n; j += 16 / R) score_keys(R, b, t, q_scale, j);
    kern__softmax_tile(R, t->p, t->n, 1, b->max + row, b->sum + row, t->keep);
    quantize_weights(R, b, t);
    for (; i + wide <= dim; i += wide) add_values(R, (int)wide / 32, t, dim, i, 0xFFFFFFFF);
    for (; i < dim; i += 32) add_values(R, 1, t, dim, i, mask32(dim - i));
}

void kern__attn_q8_avx512(const struct kern__attn_block *b) {
    struct tile t = { .b = b, .p = b->score, .k = b->k, .v = b->v };
    for (uint32_t row = 0, n_rows; row < b->n_rows; row += n_rows) {
        n_rows = kern__attn_tile_rows(b, row, 8);
        t.n = kern__attn_visible(b, row);
        t.next_k = row == 0 ? b->next_k : b->k;
        t.next_v = row == 0 ? b->next_v : b->v;
        t.row = row;
        if (t.n == 0) continue;
        if (n_rows == 8)
            fold_tile(8, b, &t, row);
        else if (n_rows == 4)
            fold_tile(4, b, &t, row);
        else if (n_rows == 2)
            fold_tile(2, b, &t, row);
        else
            fold_tile(1, b, &t, row);
    }
}
