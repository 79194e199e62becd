/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix product with quantised weights, the part that the vector levels share; each includes it once, after having
 * defined the vector operations below. The idea: ROWS weight rows lie side by side in the 32-bit lanes of a vector.
 * A chunk of CHUNK blocks of these rows is unpacked from the file's format into a panel on the stack (in L1): per
 * block 8 vectors of byte codes, vector i holding weights 4i .. 4i+3 of every row, and vectors of scales. The panel
 * is then multiplied with all tokens, TILE at a time. So a weight is decoded once per call, not once per token,
 * and eleven formats need only an unpacker each and four kinds of multiplication.
 * One lane does all operations of one (row, token) in block order, as in ref/gemm.c: neither the tile nor the
 * slice nor the chunk can change a bit. Between chunks the sums wait in y, which is exact.
 *
 * To be defined before: VEC_FN (inline function of this level), ROWS, TILE (tokens at a time), LINES_TOKENS (up to how
 * many tokens LAYOUT_LINES is the faster one), CODE_BYTE_BIAS, the types vec (of int), vecf (of ROWS float), hvec (of ROWS
 * 16-bit numbers), and
 *   v_load4(rows, off, i)  bytes off .. off+15 of row 4L + i in 128-bit lane L
 *   v_load v_dup128 v_set1_{8,32} v_and v_or v_xor v_add{8,32} v_s{rl,ll}{16,32} v_sra32, and v_unpack{lo,hi}N:
 *                          what the instructions of that name do, within 128-bit lanes
 *   v_table                looks bytes up in a table of 16 per lane;  v_16_where(a, bits): 16 in bytes where a & bits
 *   v_halfs                low 16 bits of each lane as f16;  v_halfs_at: ROWS f16 in memory;  h_to_float: of an hvec
 *   v_split_pairs(v, out)  the even and the odd 64-bit words of v;  v_e8m0: kern__e8m0_half per lane
 * To be defined after: tile_run(kind, n, tile), the multiplication of n <= TILE tokens. */
#ifndef MOED_KERNELS_CPU_GEMM_PANEL_H
#define MOED_KERNELS_CPU_GEMM_PANEL_H

#include <string.h>

#include "kernels/internal.h"

enum {
    CHUNK = 8,         /* blocks of 32: one super-block of the K formats                               */
    MXFP4_BIAS = 12,   /* makes the codes of MXFP4 unsigned                                              */
    TOKEN_GROUP = 128, /* tokens per pass over the rows: 327 KB of activations at n_in 2048 stay in L2 */
};

/* How codes become a dot product. */
enum kind {
    KIND_BIAS, /* codes <= 31, minus a constant                        */
    KIND_MIN,  /* codes <= 31, plus a float minimum per block          */
    KIND_SIX,  /* codes <= 63, minus a constant, a scale per 16 weights */
    KIND_BYTE, /* any signed byte, stored with CODE_BYTE_BIAS          */
};

/* Where the codes of a block sit in its 8 vectors.
 *   WORDS: lane r of vector i holds weights 4i .. 4i+3 of row r. Sums come out one row per lane; transposing a block
 *          pays off from a few tokens on.
 *   LINES: 128-bit lane L of vector i < 4 holds weights 0..15 of row 4L + i, of vector 4 + i weights 16..31. As loaded;
 *          each product is summed across words afterwards. The integers are the same. */
enum layout { LAYOUT_WORDS, LAYOUT_LINES, N_LAYOUTS };

struct panel_block {
    vec code[8];
    vecf d;
    vecf m;      /* KIND_MIN                                                    */
    vecf sc[2];  /* KIND_SIX instead of d: of weights 0..15 and 16..31          */
};

struct panel {
    struct panel_block b[CHUNK];
};

struct tile {
    const struct panel *panel;
    enum layout layout;
    unsigned n_blocks;
    int32_t bias;                        /* of the codes, see enum kind                */
    uint32_t n_rows;                     /* of ROWS that exist                         */
    bool first;                          /* start from zero, else continue from y      */
    const struct kern_q8 *x[TILE];
    float *y[TILE];
    uintptr_t ahead;                     /* address of the weights that come next ...  */
    uint32_t ahead_lines;                /* ... cache lines to ask for per block, or 0 */
};

/* Asks for the next rows while these are worked on, a few lines per block, into L2. From DRAM this more than doubles
 * the speed of decoding; all lines of a chunk at once would stall (Q8_0: 17 instead of 20 GB/s). It runs past the slice,
 * since the next slice is most likely next, on this core or one that shares its L3. */
VEC_FN void prefetch_ahead(const struct tile *t, unsigned block) {
    uintptr_t p = t->ahead + (uintptr_t)block * t->ahead_lines * 64;
    for (uint32_t i = 0; i < t->ahead_lines; i++, p += 64)
        __builtin_prefetch((const void *)p, 0, 2);
}

/* rows[r] = where the chunk starts in row r; n = blocks of 32 in the chunk. */
typedef void (*unpack_fn)(const uint8_t *const rows[ROWS], unsigned n, struct panel *p);

struct format {
    unpack_fn unpack[N_LAYOUTS];
    enum kind kind;
    int32_t bias;
    uint32_t chunk_bytes; /* of CHUNK blocks */
};

/* 4x4 transpose of 32-bit words inside each 128-bit lane: out[j] word i = r[i] word j. */
VEC_FN void transpose4(vec r0, vec r1, vec r2, vec r3, vec out[4]) {
    vec a = v_unpacklo32(r0, r1), b = v_unpackhi32(r0, r1), c = v_unpacklo32(r2, r3), d = v_unpackhi32(r2, r3);
    out[0] = v_unpacklo64(a, c);
    out[1] = v_unpackhi64(a, c);
    out[2] = v_unpacklo64(b, d);
    out[3] = v_unpackhi64(b, d);
}

/* The four 32-bit words at off of every row: out[j] lane r = word j of row r. */
VEC_FN void load_words(const uint8_t *const rows[ROWS], size_t off, vec out[4]) {
    transpose4(v_load4(rows, off, 0), v_load4(rows, off, 1), v_load4(rows, off, 2), v_load4(rows, off, 3), out);
}

/* Codes at off .. off+15 of each row in the panel's layout. */
VEC_FN void load_codes(enum layout l, const uint8_t *const rows[ROWS], size_t off, vec out[4]) {
    if (l == LAYOUT_WORDS) {
        load_words(rows, off, out);
        return;
    }
    for (int i = 0; i < 4; i++)
        out[i] = v_load4(rows, off, i);
}

VEC_FN vec nibble_low(vec v) {
    return v_and(v, v_set1_8(15));
}

VEC_FN vec nibble_high(vec v) {
    return v_and(v_srl16(v, 4), v_set1_8(15));
}

/* 16-bit numbers, one per row and block of a chunk, on their way into lanes. Row 4L + i lies at v[i * ROWS / 4 + L], so
 * that vector i of the four has it in 128-bit lane L. */
struct halfs {
    _Alignas(64) uint16_t v[ROWS][CHUNK];
};

/* In general registers: left to itself, gcc builds a vector with eight inserts, on the ports that the codes need. */
VEC_FN uint64_t load16x4(const uint8_t *from, size_t block) {
    uint16_t h[4];
    for (int i = 0; i < 4; i++)
        memcpy(&h[i], from + (size_t)i * block, 2);
    uint64_t v = h[0] | (uint64_t)h[1] << 16 | (uint64_t)h[2] << 32 | (uint64_t)h[3] << 48;
    __asm__("" : "+r"(v));
    return v;
}

/* Bytes off and off + 1 of n consecutive blocks of every row. Separate from spread_halfs, and called well before it,
 * since vector loads of what was just stored piecemeal would stall. */
VEC_FN void gather_halfs(const uint8_t *const rows[ROWS], size_t off, size_t block, unsigned n, struct halfs *h) {
    if (n < CHUNK)
        memset(h, 0, sizeof *h);
    for (unsigned r = 0; r < ROWS; r++) {
        const uint8_t *from = rows[r] + off;
        uint16_t *to = h->v[r % 4 * (ROWS / 4) + r / 4];
        if (n == CHUNK) {
            uint64_t four[2] = { load16x4(from, block), load16x4(from + 4 * block, block) };
            memcpy(to, four, sizeof four);
            continue;
        }
        for (unsigned b = 0; b < n; b++)
            memcpy(&to[b], from + b * block, 2);
    }
}

/* Transposes: out[b] = ROWS numbers of block b. */
VEC_FN void spread_halfs(const struct halfs *h, hvec out[CHUNK]) {
    vec r0 = v_load(h->v), r1 = v_load(h->v[ROWS / 4]), r2 = v_load(h->v[ROWS / 2]), r3 = v_load(h->v[ROWS / 4 * 3]);
    vec a = v_unpacklo16(r0, r1), b = v_unpackhi16(r0, r1), c = v_unpacklo16(r2, r3), d = v_unpackhi16(r2, r3);
    v_split_pairs(v_unpacklo32(a, c), out);
    v_split_pairs(v_unpackhi32(a, c), out + 2);
    v_split_pairs(v_unpacklo32(b, d), out + 4);
    v_split_pairs(v_unpackhi32(b, d), out + 6);
}

VEC_FN void spread_d(const struct halfs *h, struct panel *p) {
    hvec d[CHUNK];
    spread_halfs(h, d);
#pragma GCC unroll 8
    for (unsigned b = 0; b < CHUNK; b++)
        p->b[b].d = h_to_float(d[b]);
}

VEC_FN uint64_t load32x2(const uint8_t *from, size_t block) {
    uint32_t w[2];
    memcpy(&w[0], from, 4);
    memcpy(&w[1], from + block, 4);
    uint64_t v = w[0] | (uint64_t)w[1] << 32;
    __asm__("" : "+r"(v)); /* as above */
    return v;
}

/* The same for 32-bit words: v[half] holds blocks 0..3 and 4..7. */
struct words {
    _Alignas(64) uint32_t v[2][ROWS][4];
};

VEC_FN void gather_words(const uint8_t *const rows[ROWS], size_t off, size_t block, unsigned n, struct words *w) {
    if (n < CHUNK)
        memset(w, 0, sizeof *w);
    for (unsigned r = 0; r < ROWS; r++) {
        const uint8_t *from = rows[r] + off;
        unsigned slot = r % 4 * (ROWS / 4) + r / 4;
        if (n == CHUNK) {
            for (int half = 0; half < 2; half++, from += 4 * block) {
                uint64_t four[2] = { load32x2(from, block), load32x2(from + 2 * block, block) };
                memcpy(w->v[half][slot], four, sizeof four);
            }
            continue;
        }
        for (unsigned b = 0; b < n; b++)
            memcpy(&w->v[b / 4][slot][b % 4], from + b * block, 4);
    }
}

/* out[b] lane r = the word of row r, block b. */
VEC_FN void spread_words(const struct words *w, vec out[CHUNK]) {
    for (int half = 0; half < 2; half++)
        transpose4(v_load(w->v[half]), v_load(w->v[half][ROWS / 4]), v_load(w->v[half][ROWS / 2]),
                   v_load(w->v[half][ROWS / 4 * 3]), out + 4 * half);
}

/* Words of d in the low and m in the high half. */
VEC_FN void spread_d_m(const struct words *w, struct panel *p) {
    vec v[CHUNK];
    spread_words(w, v);
    for (unsigned b = 0; b < CHUNK; b++) {
        p->b[b].d = v_halfs(v[b]);
        p->b[b].m = v_halfs(v_srl32(v[b], 16));
    }
}

VEC_FN void split_nibbles(enum layout l, const uint8_t *const rows[ROWS], size_t off, vec code[8]) {
    vec w[4];
    load_codes(l, rows, off, w);
    for (int j = 0; j < 4; j++) {
        code[j] = nibble_low(w[j]);
        code[4 + j] = nibble_high(w[j]);
    }
}

VEC_FN void unpack_q4_0(enum layout l, const uint8_t *const rows[ROWS], unsigned n, struct panel *p) {
    enum { SIZE = sizeof(struct block_q4_0) };
    struct halfs d;
    gather_halfs(rows, 0, SIZE, n, &d);
    for (unsigned b = 0; b < n; b++)
        split_nibbles(l, rows, b * SIZE + 2, p->b[b].code);
    spread_d(&d, p);
}

VEC_FN void unpack_q4_1(enum layout l, const uint8_t *const rows[ROWS], unsigned n, struct panel *p) {
    enum { SIZE = sizeof(struct block_q4_1) };
    struct words d_m;
    gather_words(rows, 0, SIZE, n, &d_m);
    for (unsigned b = 0; b < n; b++)
        split_nibbles(l, rows, b * SIZE + 4, p->b[b].code);
    spread_d_m(&d_m, p);
}

/* Adds bit 4 of the codes; bit k of v's lane r is that of weight k of row r. */
VEC_FN void fifth_bits(enum layout l, vec v, vec code[8]) {
    static const uint8_t bit_of_byte[16] = { 1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128 };
    const uint64_t ones = 0x0101010101010101u;
#pragma GCC unroll 8
    for (unsigned j = 0; j < 8; j++) { /* bring to each byte of code[j] the byte with its bit */
        uint64_t spread[2]; /* LINES: word j of a lane is of that lane's row in code[j] and code[4 + j] */
        spread[0] = l == LAYOUT_WORDS ? 0x0404040400000000u + j / 2 * ones : (j % 4 * 4 + j / 4 * 2) * ones;
        spread[1] = spread[0] + (l == LAYOUT_WORDS ? 8 * ones : ones);
        vec bits = l == LAYOUT_WORDS ? v_set1_32((int)(j % 2 ? 0x80402010 : 0x08040201)) : v_dup128(bit_of_byte);
        code[j] = v_or(code[j], v_16_where(v_table(v, v_dup128(spread)), bits));
    }
}

VEC_FN void unpack_q5_0(enum layout l, const uint8_t *const rows[ROWS], unsigned n, struct panel *p) {
    enum { SIZE = sizeof(struct block_q5_0) };
    struct halfs d;
    struct words qh;
    vec high[CHUNK];
    gather_words(rows, 2, SIZE, n, &qh);
    gather_halfs(rows, 0, SIZE, n, &d);
    spread_words(&qh, high);
    for (unsigned b = 0; b < n; b++) {
        split_nibbles(l, rows, b * SIZE + 6, p->b[b].code);
        fifth_bits(l, high[b], p->b[b].code);
    }
    spread_d(&d, p);
}

VEC_FN void unpack_q5_1(enum layout l, const uint8_t *const rows[ROWS], unsigned n, struct panel *p) {
    enum { SIZE = sizeof(struct block_q5_1) };
    struct words d_m, qh;
    vec high[CHUNK];
    gather_words(rows, 4, SIZE, n, &qh);
    gather_words(rows, 0, SIZE, n, &d_m);
    spread_words(&qh, high);
    for (unsigned b = 0; b < n; b++) {
        split_nibbles(l, rows, b * SIZE + 8, p->b[b].code);
        fifth_bits(l, high[b], p->b[b].code);
    }
    spread_d_m(&d_m, p);
}

VEC_FN void flip_bytes(vec code[8]) {
    for (int j = 0; j < 8; j++)
        code[j] = v_xor(code[j], v_set1_8((char)CODE_BYTE_BIAS));
}

VEC_FN void unpack_q8_0(enum layout l, const uint8_t *const rows[ROWS], unsigned n, struct panel *p) {
    enum { SIZE = sizeof(struct block_q8_0) };
    struct halfs d;
    gather_halfs(rows, 0, SIZE, n, &d);
    for (unsigned b = 0; b < n; b++) {
        load_codes(l, rows, b * SIZE + 2, p->b[b].code);
        load_codes(l, rows, b * SIZE + 18, p->b[b].code + 4);
        flip_bytes(p->b[b].code);
    }
    spread_d(&d, p);
}

VEC_FN void look_up(vec table, vec code[8]) {
    for (int j = 0; j < 8; j++)
        code[j] = v_table(table, code[j]);
}

VEC_FN vec iq4_table(void) {
    return v_xor(v_dup128(kern__iq4_values), v_set1_8((char)CODE_BYTE_BIAS));
}

VEC_FN vec mxfp4_table(void) {
    return v_add8(v_dup128(kern__mxfp4_values), v_set1_8(MXFP4_BIAS));
}

VEC_FN void unpack_iq4_nl(enum layout l, const uint8_t *const rows[ROWS], unsigned n, struct panel *p) {
    enum { SIZE = sizeof(struct block_iq4_nl) };
    vec table = iq4_table();
    struct halfs d;
    gather_halfs(rows, 0, SIZE, n, &d);
    for (unsigned b = 0; b < n; b++) {
        split_nibbles(l, rows, b * SIZE + 2, p->b[b].code);
        look_up(table, p->b[b].code);
    }
    spread_d(&d, p);
}

VEC_FN void unpack_mxfp4(enum layout l, const uint8_t *const rows[ROWS], unsigned n, struct panel *p) {
    enum { SIZE = sizeof(struct block_mxfp4) };
    vec table = mxfp4_table();
    struct halfs e;
    gather_halfs(rows, 0, SIZE, n, &e);
    for (unsigned b = 0; b < n; b++) {
        split_nibbles(l, rows, b * SIZE + 1, p->b[b].code);
        look_up(table, p->b[b].code);
    }
    hvec h[CHUNK];
    spread_halfs(&e, h);
    for (unsigned b = 0; b < CHUNK; b++) /* the byte after e came along: a code */
        p->b[b].d = v_e8m0(v_and(h_to_32(h[b]), v_set1_32(255)));
}

/* Byte j % 4 of each lane, unsigned. */
VEC_FN vec byte_of(vec v, unsigned j) {
    return v_and(v_srl32(v, 8 * (int)(j % 4)), v_set1_32(255));
}

/* Scale and minimum of sub-block j from w, the 16 bytes that open a Q4_K or Q5_K block: d, dmin, 12 bytes of 8 x (6-bit
 * scale, 6-bit min). Four scales sit in one 32-bit word, so the split (as kern__scale_min does it) works on all rows and
 * four sub-blocks at once; the compiler keeps it for the other three. */
VEC_FN void k_scale(const vec w[4], unsigned j, struct panel_block *to) {
    vec low6 = v_set1_8(63), top2 = v_set1_8(0x30);
    vec sc = j < 4 ? v_and(w[1], low6) : v_or(nibble_low(w[3]), v_and(v_srl32(w[1], 2), top2));
    vec mn = j < 4 ? v_and(w[2], low6) : v_or(nibble_high(w[3]), v_and(v_srl32(w[2], 2), top2));
    to->d = vf_mul(v_halfs(w[0]), v_to_float(byte_of(sc, j)));
    to->m = vf_negate(vf_mul(v_halfs(v_srl32(w[0], 16)), v_to_float(byte_of(mn, j))));
}

VEC_FN void k_scales(const uint8_t *const rows[ROWS], struct panel *p) {
    vec w[4];
    load_words(rows, 0, w);
#pragma GCC unroll 8
    for (unsigned j = 0; j < 8; j++)
        k_scale(w, j, &p->b[j]);
}

VEC_FN void unpack_q4_k(enum layout l, const uint8_t *const rows[ROWS], unsigned n, struct panel *p) {
    (void)n; /* rows of K formats are whole chunks */
    k_scales(rows, p);
    for (unsigned i = 0; i < 8; i++) { /* 16 bytes: half of sub-block i & ~1 below, of the next one above */
        vec w[4];
        load_codes(l, rows, offsetof(struct block_q4_k, qs) + 16 * i, w);
        for (unsigned j = 0; j < 4; j++) {
            p->b[i & ~1u].code[i % 2 * 4 + j] = nibble_low(w[j]);
            p->b[i | 1].code[i % 2 * 4 + j] = nibble_high(w[j]);
        }
    }
}

/* Bit b of every byte, moved to bit 4. */
VEC_FN vec bit_to_4(vec v, unsigned b) {
    return v_and(b < 4 ? v_sll16(v, 4 - (int)b) : v_srl16(v, (int)b - 4), v_set1_8(16));
}

VEC_FN void unpack_q5_k(enum layout l, const uint8_t *const rows[ROWS], unsigned n, struct panel *p) {
    (void)n;
    k_scales(rows, p);
    for (unsigned half = 0; half < 2; half++) {
        vec high[4], w[4];
        load_codes(l, rows, offsetof(struct block_q5_k, qh) + 16 * half, high);
        for (unsigned i = 0; i < 8; i += 2) {
            load_codes(l, rows, offsetof(struct block_q5_k, qs) + 16 * (i + half), w);
            for (unsigned j = 0; j < 4; j++) {
                p->b[i].code[half * 4 + j] = v_or(nibble_low(w[j]), bit_to_4(high[j], i));
                p->b[i + 1].code[half * 4 + j] = v_or(nibble_high(w[j]), bit_to_4(high[j], i + 1));
            }
        }
    }
}

/* Scales of sub-block j from w = the word of signed bytes that holds them, 2 per block of 32. */
VEC_FN void q6_scale(vec w, vecf d, unsigned j, struct panel_block *to) {
    to->sc[0] = vf_mul(d, v_to_float(v_sra32(v_sll32(w, j % 2 ? 8 : 24), 24)));
    to->sc[1] = vf_mul(d, v_to_float(v_sra32(v_sll32(w, j % 2 ? 0 : 16), 24)));
}

VEC_FN void q6_scales(const uint8_t *const rows[ROWS], struct panel *p) {
    vec w[4];
    uint16_t h[ROWS];
    for (unsigned r = 0; r < ROWS; r++)
        memcpy(&h[r], rows[r] + offsetof(struct block_q6_k, d), 2);
    load_words(rows, offsetof(struct block_q6_k, scales), w);
    vecf d = v_halfs_at(h);
#pragma GCC unroll 8
    for (unsigned b = 0; b < 8; b++)
        q6_scale(w[b / 2], d, b, &p->b[b]);
}

VEC_FN void unpack_q6_k(enum layout l, const uint8_t *const rows[ROWS], unsigned n, struct panel *p) {
    (void)n;
    q6_scales(rows, p);
    for (unsigned i = 0; i < 4; i++) { /* half i / 2 of the 256 weights, 16 bytes i % 2 of each 32 */
        vec a[4], b[4], h[4];
        load_codes(l, rows, 64 * (i / 2) + 16 * (i % 2), a);
        load_codes(l, rows, 64 * (i / 2) + 16 * (i % 2) + 32, b);
        load_codes(l, rows, offsetof(struct block_q6_k, qh) + 32 * (i / 2) + 16 * (i % 2), h);
        struct panel_block *to = p->b + i / 2 * 4;
        vec top = v_set1_8(0x30);
        for (unsigned j = 0; j < 4; j++) {
            unsigned k = i % 2 * 4 + j;
            to[0].code[k] = v_or(nibble_low(a[j]), v_and(v_sll16(h[j], 4), top));
            to[1].code[k] = v_or(nibble_low(b[j]), v_and(v_sll16(h[j], 2), top));
            to[2].code[k] = v_or(nibble_high(a[j]), v_and(h[j], top));
            to[3].code[k] = v_or(nibble_high(b[j]), v_and(v_srl16(h[j], 2), top));
        }
    }
}

/* w[0] = d and scales_h, w[1] = scales_l */
VEC_FN vecf iq4_xs_scale(const vec w[2], unsigned b) {
    vec low = v_and(v_srl32(w[1], 4 * (int)b), v_set1_32(15));
    vec high = v_and(v_srl32(w[0], 16 + 2 * (int)b), v_set1_32(3));
    return vf_mul(v_halfs(w[0]), v_to_float(v_add32(v_or(low, v_sll32(high, 4)), v_set1_32(-32))));
}

VEC_FN void unpack_iq4_xs(enum layout l, const uint8_t *const rows[ROWS], unsigned n, struct panel *p) {
    (void)n;
    vec table = iq4_table(), w[4];
    load_words(rows, 0, w);
#pragma GCC unroll 8
    for (unsigned b = 0; b < 8; b++) {
        p->b[b].d = iq4_xs_scale(w, b);
        split_nibbles(l, rows, offsetof(struct block_iq4_xs, qs) + 16 * b, p->b[b].code);
        look_up(table, p->b[b].code);
    }
}

#define UNPACK(name)                                                                                             \
    static void name##_words(const uint8_t *const rows[ROWS], unsigned n, struct panel *p) {                    \
        name(LAYOUT_WORDS, rows, n, p);                                                                          \
    }                                                                                                            \
    static void name##_lines(const uint8_t *const rows[ROWS], unsigned n, struct panel *p) {                    \
        name(LAYOUT_LINES, rows, n, p);                                                                          \
    }
UNPACK(unpack_q4_0)
UNPACK(unpack_q4_1)
UNPACK(unpack_q5_0)
UNPACK(unpack_q5_1)
UNPACK(unpack_q8_0)
UNPACK(unpack_q4_k)
UNPACK(unpack_q5_k)
UNPACK(unpack_q6_k)
UNPACK(unpack_iq4_nl)
UNPACK(unpack_iq4_xs)
UNPACK(unpack_mxfp4)

static const struct format *format_of(enum dtype dtype) {
    static const struct format table[] = {
        [DTYPE_Q4_0] = { { unpack_q4_0_words, unpack_q4_0_lines }, KIND_BIAS, 8, CHUNK * sizeof(struct block_q4_0) },
        [DTYPE_Q4_1] = { { unpack_q4_1_words, unpack_q4_1_lines }, KIND_MIN, 0, CHUNK * sizeof(struct block_q4_1) },
        [DTYPE_Q5_0] = { { unpack_q5_0_words, unpack_q5_0_lines }, KIND_BIAS, 16, CHUNK * sizeof(struct block_q5_0) },
        [DTYPE_Q5_1] = { { unpack_q5_1_words, unpack_q5_1_lines }, KIND_MIN, 0, CHUNK * sizeof(struct block_q5_1) },
        [DTYPE_Q8_0] = { { unpack_q8_0_words, unpack_q8_0_lines }, KIND_BYTE, 128, CHUNK * sizeof(struct block_q8_0) },
        [DTYPE_Q4_K] = { { unpack_q4_k_words, unpack_q4_k_lines }, KIND_MIN, 0, sizeof(struct block_q4_k) },
        [DTYPE_Q5_K] = { { unpack_q5_k_words, unpack_q5_k_lines }, KIND_MIN, 0, sizeof(struct block_q5_k) },
        [DTYPE_Q6_K] = { { unpack_q6_k_words, unpack_q6_k_lines }, KIND_SIX, 32, sizeof(struct block_q6_k) },
        [DTYPE_IQ4_NL] = { { unpack_iq4_nl_words, unpack_iq4_nl_lines }, KIND_BYTE, 128,
                           CHUNK * sizeof(struct block_iq4_nl) },
        [DTYPE_IQ4_XS] = { { unpack_iq4_xs_words, unpack_iq4_xs_lines }, KIND_BYTE, 128, sizeof(struct block_iq4_xs) },
        [DTYPE_MXFP4] = { { unpack_mxfp4_words, unpack_mxfp4_lines }, KIND_BIAS, MXFP4_BIAS, CHUNK * sizeof(struct block_mxfp4) },
    };
    return &table[dtype];
}

static void tile_run(enum kind kind, uint32_t n, const struct tile *t);

/* One chunk of ROWS rows against tokens [t0, t1). */
static void chunk_multiply(const struct kern_gemm *d, const struct format *f, struct tile *tile, uint32_t block,
                           uint32_t row, uint32_t t0, uint32_t t1) {
    for (uint32_t t = t0; t < t1; t += TILE) {
        uint32_t n = t1 - t < TILE ? t1 - t : TILE;
        for (uint32_t i = 0; i < n; i++) {
            size_t from = d->gather ? (size_t)d->gather[t + i] : t + i;
            tile->x[i] = (const struct kern_q8 *)d->x + from * d->x_stride + block;
            tile->y[i] = d->y + (size_t)(t + i) * d->y_stride + row;
        }
        tile_run(f->kind, n, tile);
        tile->ahead_lines = 0; /* the first tile has asked */
    }
}

static void strip_multiply(const struct kern_gemm *d, const struct format *f, uint32_t row, uint32_t row_end,
                           uint32_t t0, uint32_t t1) {
    const uint8_t *w = (const uint8_t *)d->w + row * d->row_bytes, *rows[ROWS];
    struct panel panel;
    struct tile tile = { .panel = &panel, .bias = f->bias };
    tile.layout = t1 - t0 <= LINES_TOKENS ? LAYOUT_LINES : LAYOUT_WORDS;
    tile.n_rows = row_end - row < ROWS ? row_end - row : ROWS;
    for (uint32_t r = 0; r < ROWS; r++) /* lanes beyond the slice repeat its last row and are not stored */
        rows[r] = w + (r < tile.n_rows ? r : tile.n_rows - 1) * d->row_bytes;
    uint32_t left = d->n_out - row - tile.n_rows, next = left < ROWS ? left : ROWS;
    uint32_t n_blocks = d->n_in / 32, n_chunks = (n_blocks + CHUNK - 1) / CHUNK;
    tile.ahead = (uintptr_t)w + tile.n_rows * d->row_bytes;
    uint32_t ahead_lines = n_blocks ? (uint32_t)((next * d->row_bytes / 64 + n_blocks - 1) / n_blocks) : 0;
    for (uint32_t c = 0; c < n_chunks; c++) {
        tile.n_blocks = n_blocks - c * CHUNK < CHUNK ? n_blocks - c * CHUNK : CHUNK;
        tile.first = c == 0;
        tile.ahead_lines = ahead_lines;
        for (uint32_t r = 0; r < ROWS; r++)
            rows[r] += c ? f->chunk_bytes : 0;
        f->unpack[tile.layout](rows, tile.n_blocks, &panel);
        chunk_multiply(d, f, &tile, c * CHUNK, row, t0, t1);
        tile.ahead += (size_t)ahead_lines * 64 * CHUNK;
    }
}

static void gemm_quant(const struct kern_gemm *d, uint32_t row0, uint32_t row1) {
    const struct format *f = format_of(d->dtype);
    for (uint32_t t = 0; t < d->n_tokens; t += TOKEN_GROUP) {
        uint32_t t1 = d->n_tokens - t < TOKEN_GROUP ? d->n_tokens : t + TOKEN_GROUP;
        for (uint32_t r = row0; r < row1; r += ROWS)
            strip_multiply(d, f, r, row1, t, t1);
    }
}

#endif
