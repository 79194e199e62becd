/* SPDX-License-Identifier: Apache-2.0
 *
 * Grouped product for few rows per expert: y[row, :] = W[expert of row] x[row], weights in any packed format (pack.h), rows
 * quantised to kern_q8. The operations and their order are those of ref/gemm.c, so the bits are the CPU's: an expert may be
 * computed here or there.
 *
 * A block takes one tile of up to TILE tokens and one group of 16 weight rows, which lie side by side: thread (r, split)
 * decodes every SPLITS-th block of 32 weights of row r, once for all tokens, and leaves the term of each token in shared
 * memory. Then thread (r, token) adds the terms of its output in the order of the blocks. Reading is spread over all threads, the
 * chain of additions is short: K / 32 of them, while other blocks of the grid read. */
#include "kernels/cuda/device.cuh"

#include <assert.h>

static const uint32_t ROWS = 16, SPLITS = 8, TILE = KERN_DEV_GEMM_ROWS, THREADS = ROWS * SPLITS;
static const uint32_t CHUNK = 64; /* blocks of 32 whose terms are held at a time */
static_assert(TILE == SPLITS, "as many chains as threads");

struct gemm_smem {
    float term[TILE][CHUNK * ROWS + ROWS]; /* a token's terms start 16 banks after the last one's */
};

struct dot_block {
    uint32_t code[8]; /* 4 codes each, weights in order; u8 with a bias or s8 */
    float d, m, sc[2];
};

/* What a format is: bytes of its block, of its one unit that is no word, and where that lies (ref/pack.c). */
template <int DTYPE> struct format {
    static const uint32_t K = DTYPE == DTYPE_Q4_K || DTYPE == DTYPE_Q5_K || DTYPE == DTYPE_Q6_K || DTYPE == DTYPE_IQ4_XS ? 8 : 1; /* in blocks of 32 */
    static const uint32_t BYTES = DTYPE == DTYPE_Q4_0 || DTYPE == DTYPE_IQ4_NL ? 18 : DTYPE == DTYPE_Q4_1 ? 20 : DTYPE == DTYPE_Q5_0 ? 22 :
                                  DTYPE == DTYPE_Q5_1 ? 24 : DTYPE == DTYPE_Q8_0 ? 34 : DTYPE == DTYPE_MXFP4 ? 17 : DTYPE == DTYPE_Q4_K ? 144 :
                                  DTYPE == DTYPE_Q5_K ? 176 : DTYPE == DTYPE_Q6_K ? 210 : 136;
    static const uint32_t ODD = BYTES % 4, ODD_AT = DTYPE == DTYPE_Q6_K ? BYTES - ODD : 0;
    static const bool HAS_MIN = DTYPE == DTYPE_Q4_1 || DTYPE == DTYPE_Q5_1 || DTYPE == DTYPE_Q4_K || DTYPE == DTYPE_Q5_K;
    static const bool SIGNED = DTYPE == DTYPE_Q8_0 || DTYPE == DTYPE_IQ4_NL || DTYPE == DTYPE_IQ4_XS || DTYPE == DTYPE_MXFP4;
    static const int BIAS = DTYPE == DTYPE_Q4_0 ? 8 : DTYPE == DTYPE_Q5_0 ? 16 : DTYPE == DTYPE_Q6_K ? 32 : 0;
};

/* The bytes of one weight row within a packed group of 16. */
struct packed_row {
    const uint8_t *group;
    uint32_t r;
};
static __device__ __forceinline__ uint32_t word_at(packed_row p, uint32_t offset) {
    return *reinterpret_cast<const uint32_t *>(p.group + ROWS * offset + 4 * p.r);
}
static __device__ __forceinline__ float half_of(uint32_t bits) {
    __half h;
    const uint16_t low = (uint16_t)bits;
    memcpy(&h, &low, 2);
    return __half2float(h);
}
static __device__ __forceinline__ float odd_half(packed_row p, uint32_t offset) {
    return half_of(*reinterpret_cast<const uint16_t *>(p.group + ROWS * offset + 2 * p.r));
}

/* 16 bytes by four nibbles at once. */
struct table16 {
    uint32_t v[4];
};
static __device__ __forceinline__ uint32_t look_up(table16 t, uint32_t nibbles) {
    const uint32_t low = __byte_perm(t.v[0], t.v[1], nibbles & 0x7777), high = __byte_perm(t.v[2], t.v[3], nibbles & 0x7777);
    return __byte_perm(low, high, 0x3210 + ((nibbles & 0x8888) >> 1));
}
/* Of the nibbles of a word: the low ones' values, the high ones' values. */
static __device__ __forceinline__ void look_up_word(table16 t, uint32_t w, uint32_t *low, uint32_t *high) {
    const uint32_t a = look_up(t, w & 0xffff), b = look_up(t, w >> 16);
    *low = __byte_perm(a, b, 0x6420);
    *high = __byte_perm(a, b, 0x7531);
}
static __device__ __forceinline__ table16 iq4_table() { return { { 0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u } }; }
static __device__ __forceinline__ table16 mxfp4_table() { return { { 0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu } }; }

/* Bits 0..3 to bit 4 of four bytes. */
static __device__ __forceinline__ uint32_t fifth_bits(uint32_t four) { return ((four & 15) * 0x00204081u & 0x01010101u) << 4; }

static __device__ __forceinline__ float e8m0_half(uint32_t e) { return __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23); }

/* The formats of 32 weights with split nibbles, qs at `at`. */
template <int DTYPE> static __device__ __forceinline__ void decode_nibbles(packed_row p, uint32_t at, dot_block *b) {
    UNROLL for (uint32_t j = 0; j < 4; j++) {
        const uint32_t w = word_at(p, at + 4 * j);
        if (DTYPE == DTYPE_IQ4_NL || DTYPE == DTYPE_IQ4_XS || DTYPE == DTYPE_MXFP4) {
            look_up_word(DTYPE == DTYPE_MXFP4 ? mxfp4_table() : iq4_table(), w, &b->code[j], &b->code[4 + j]);
        } else {
            b->code[j] = w & 0x0f0f0f0fu;
            b->code[4 + j] = w >> 4 & 0x0f0f0f0fu;
        }
    }
}

template <int DTYPE> static __device__ __forceinline__ void decode_small(packed_row p, dot_block *b) {
    if (DTYPE == DTYPE_Q4_1 || DTYPE == DTYPE_Q5_1) {
        const uint32_t dm = word_at(p, 0);
        b->d = half_of(dm);
        b->m = half_of(dm >> 16);
    } else {
        b->d = DTYPE == DTYPE_MXFP4 ? e8m0_half(p.group[p.r]) : odd_half(p, 0);
    }
    if (DTYPE == DTYPE_Q8_0) {
        UNROLL for (uint32_t j = 0; j < 8; j++) b->code[j] = word_at(p, 2 + 4 * j);
        return;
    }
    decode_nibbles<DTYPE>(p, format<DTYPE>::BYTES - 16, b);
    if (DTYPE != DTYPE_Q5_0 && DTYPE != DTYPE_Q5_1) return;
    const uint32_t qh = word_at(p, format<DTYPE>::BYTES - 20);
    UNROLL for (uint32_t j = 0; j < 8; j++) b->code[j] |= fifth_bits(qh >> 4 * j);
}

/* Byte i of the 12 that hold eight 6-bit scales and minima. */
static __device__ __forceinline__ uint32_t scale_byte(packed_row p, uint32_t i) { return word_at(p, 4 + (i & ~3u)) >> 8 * (i & 3) & 255; }

static __device__ __forceinline__ void decode_scale_min(packed_row p, uint32_t j, dot_block *b) {
    const uint32_t dm = word_at(p, 0), low = scale_byte(p, j & 3), mid = scale_byte(p, 4 + (j & 3)), high = scale_byte(p, 8 + (j & 3));
    const uint32_t sc = j < 4 ? low & 63 : (high & 15) | low >> 6 << 4, mn = j < 4 ? mid & 63 : high >> 4 | mid >> 6 << 4;
    b->d = __fmul_rn(half_of(dm), (float)sc);
    b->m = -__fmul_rn(half_of(dm >> 16), (float)mn);
}

/* Sub-block j of a block of 256. */
template <int DTYPE> static __device__ __forceinline__ void decode_large(packed_row p, uint32_t j, dot_block *b) {
    if (DTYPE == DTYPE_IQ4_XS) {
        const uint32_t head = word_at(p, 0), sl = word_at(p, 4) >> 4 * j & 15, sh = head >> (16 + 2 * j) & 3;
        b->d = __fmul_rn(half_of(head), (float)((int)(sl | sh << 4) - 32));
        decode_nibbles<DTYPE>(p, 8 + 16 * j, b);
    } else if (DTYPE == DTYPE_Q6_K) {
        UNROLL for (uint32_t i = 0; i < 8; i++) {
            const uint32_t ql = word_at(p, j / 4 * 64 + j % 2 * 32 + 4 * i) >> j % 4 / 2 * 4 & 0x0f0f0f0fu;
            const uint32_t qh = word_at(p, 128 + j / 4 * 32 + 4 * i) >> j % 4 * 2 & 0x03030303u;
            b->code[i] = ql | qh << 4;
        }
        const uint32_t sc = word_at(p, 192 + j / 2 * 4) >> j % 2 * 16;
        b->d = odd_half(p, 208);
        b->sc[0] = (float)(int8_t)sc;
        b->sc[1] = (float)(int8_t)(sc >> 8);
    } else {
        decode_scale_min(p, j, b);
        UNROLL for (uint32_t i = 0; i < 8; i++) {
            b->code[i] = word_at(p, (DTYPE == DTYPE_Q5_K ? 48 : 16) + j / 2 * 32 + 4 * i) >> j % 2 * 4 & 0x0f0f0f0fu;
            if (DTYPE == DTYPE_Q5_K) b->code[i] |= (word_at(p, 16 + 4 * i) >> j & 0x01010101u) << 4;
        }
    }
}

/* The term of a block and a token, without the token's scale: block_dot of ref/gemm.c. */
template <int DTYPE> static __device__ __forceinline__ float block_term(const dot_block &b, const struct kern_q8 *x) {
    typedef format<DTYPE> F;
    const int *q = reinterpret_cast<const int *>(x->q);
    int lo = 0, hi = 0;
    UNROLL for (int i = 0; i < 4; i++) {
        lo = F::SIGNED ? __dp4a((int)b.code[i], q[i], lo) : ptx_dp4a_us(b.code[i], q[i], lo);
        hi = F::SIGNED ? __dp4a((int)b.code[4 + i], q[4 + i], hi) : ptx_dp4a_us(b.code[4 + i], q[4 + i], hi);
    }
    lo -= F::BIAS * x->sum[0];
    hi -= F::BIAS * x->sum[1];
    if (DTYPE == DTYPE_Q6_K) return fmaf((float)hi, __fmul_rn(b.d, b.sc[1]), __fmul_rn((float)lo, __fmul_rn(b.d, b.sc[0])));
    const float isum = (float)(lo + hi);
    return F::HAS_MIN ? fmaf(isum, b.d, __fmul_rn(b.m, (float)(x->sum[0] + x->sum[1]))) : __fmul_rn(isum, b.d);
}

template <int DTYPE> static __global__ void __launch_bounds__(THREADS) gemm_few_kernel(struct kern_dev_gemm d) {
    typedef format<DTYPE> F;
    if ((int32_t)blockIdx.y >= *d.n_tiles) return;
    gemm_smem *s = shared_memory<gemm_smem>();
    const struct kern_dev_tile tile = d.tiles[blockIdx.y];
    const uint32_t r = threadIdx.x % ROWS, part = threadIdx.x / ROWS, n = (uint32_t)tile.n, n_blocks = d.n_in / 32;
    const uint8_t *w = (const uint8_t *)d.w[tile.expert] + (size_t)blockIdx.x * (n_blocks / F::K) * ROWS * F::BYTES;
    const int32_t first = tile.first;
    float acc = 0;
    for (uint32_t base = 0; base < n_blocks; base += CHUNK) {
        const uint32_t m = n_blocks - base < CHUNK ? n_blocks - base : CHUNK;
        for (uint32_t i = part; i < m; i += SPLITS) {
            const uint32_t at = base + i;
            const packed_row p = { w + (size_t)(at / F::K) * ROWS * F::BYTES, r };
            dot_block b;
            if (F::K == 1) decode_small<DTYPE>(p, &b);
            else decode_large<DTYPE>(p, at % F::K, &b);
            for (uint32_t t = 0; t < n; t++) {
                const size_t row = d.gather ? (size_t)d.gather[first + (int32_t)t] : (size_t)first + t;
                s->term[t][i * ROWS + r] = block_term<DTYPE>(b, d.x + row * d.x_stride + at);
            }
        }
        __syncthreads();
        if (part < n) {
            const size_t row = d.gather ? (size_t)d.gather[first + (int32_t)part] : (size_t)first + part;
            const struct kern_q8 *x = d.x + row * d.x_stride + base;
            for (uint32_t i = 0; i < m; i++) acc = fmaf(s->term[part][i * ROWS + r], x[i].d, acc);
        }
        __syncthreads();
    }
    if (part < n) d.y[((size_t)first + part) * d.y_stride + blockIdx.x * ROWS + r] = acc;
}

int kern_dev_gemm(const struct kern_dev_gemm *d, kern_stream stream) {
    const dim3 grid(d->n_out / ROWS, d->max_tiles);
    const size_t smem = sizeof(gemm_smem);
    assert(d->n_out % ROWS == 0 && d->n_in % 32 == 0);
    if (d->max_tiles == 0 || d->n_out == 0) return ST_OK;
    switch (d->dtype) {
    case DTYPE_Q4_0: return launch(gemm_few_kernel<DTYPE_Q4_0>, grid, THREADS, smem, stream, *d);
    case DTYPE_Q4_1: return launch(gemm_few_kernel<DTYPE_Q4_1>, grid, THREADS, smem, stream, *d);
    case DTYPE_Q5_0: return launch(gemm_few_kernel<DTYPE_Q5_0>, grid, THREADS, smem, stream, *d);
    case DTYPE_Q5_1: return launch(gemm_few_kernel<DTYPE_Q5_1>, grid, THREADS, smem, stream, *d);
    case DTYPE_Q8_0: return launch(gemm_few_kernel<DTYPE_Q8_0>, grid, THREADS, smem, stream, *d);
    case DTYPE_Q4_K: return launch(gemm_few_kernel<DTYPE_Q4_K>, grid, THREADS, smem, stream, *d);
    case DTYPE_Q5_K: return launch(gemm_few_kernel<DTYPE_Q5_K>, grid, THREADS, smem, stream, *d);
    case DTYPE_Q6_K: return launch(gemm_few_kernel<DTYPE_Q6_K>, grid, THREADS, smem, stream, *d);
    case DTYPE_IQ4_NL: return launch(gemm_few_kernel<DTYPE_IQ4_NL>, grid, THREADS, smem, stream, *d);
    case DTYPE_IQ4_XS: return launch(gemm_few_kernel<DTYPE_IQ4_XS>, grid, THREADS, smem, stream, *d);
    case DTYPE_MXFP4: return launch(gemm_few_kernel<DTYPE_MXFP4>, grid, THREADS, smem, stream, *d);
    case DTYPE_F32:
    case DTYPE_F16:
    case DTYPE_BF16: break;
    }
    return ST_UNSUPPORTED;
}
