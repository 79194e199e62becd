/* SPDX-License-Identifier: Apache-2.0
 *
 * Speed of the matrix product on one core: per format and number of activation rows, Gop/s (2 per multiply-add) and
 * GB/s of weights, beside what this core does in the same run at its best: int8 and bf16 dot products, float FMA, DRAM
 * read.
 * Weights come from DRAM: experts of 768 x 2048 are walked over a block larger than the caches, in slices of 64
 * rows as the engine cuts them. Each cell is the best of a few passes. Usage: taskset -c 1 kernel_bench [LEVEL] [FORMAT];
 * about 20 seconds for everything. Quantised formats have two lines, rows as in the file and packed, BF16 one for float and one for
 * bf16 activations. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "bench/calibration.h"
#include "kernels/kernels.h"

enum { N_IN = 2048, N_OUT = 768, SLICE = 64, MAX_TOKENS = 64, N_PASSES = 10, PASS_MS = 3, BLOCK_MIB = 192 };

struct format {
    enum dtype dtype;
    const char *name;
    uint32_t elems, bytes;
    int scale[2]; /* offsets of f16 scales, -1 none */
};
static const struct format formats[] = {
    { DTYPE_Q4_0, "Q4_0", 32, sizeof(struct block_q4_0), { 0, -1 } },
    { DTYPE_Q4_1, "Q4_1", 32, sizeof(struct block_q4_1), { 0, 2 } },
    { DTYPE_Q5_0, "Q5_0", 32, sizeof(struct block_q5_0), { 0, -1 } },
    { DTYPE_Q5_1, "Q5_1", 32, sizeof(struct block_q5_1), { 0, 2 } },
    { DTYPE_Q8_0, "Q8_0", 32, sizeof(struct block_q8_0), { 0, -1 } },
    { DTYPE_Q4_K, "Q4_K", 256, sizeof(struct block_q4_k), { 0, 2 } },
    { DTYPE_Q5_K, "Q5_K", 256, sizeof(struct block_q5_k), { 0, 2 } },
    { DTYPE_Q6_K, "Q6_K", 256, sizeof(struct block_q6_k), { 208, -1 } },
    { DTYPE_IQ4_NL, "IQ4_NL", 32, sizeof(struct block_iq4_nl), { 0, -1 } },
    { DTYPE_IQ4_XS, "IQ4_XS", 256, sizeof(struct block_iq4_xs), { 0, -1 } },
    { DTYPE_MXFP4, "MXFP4", 32, sizeof(struct block_mxfp4), { -1, -1 } },
    { DTYPE_BF16, "BF16", 1, 2, { -1, -1 } },
    { DTYPE_F16, "F16", 1, 2, { -1, -1 } },
    { DTYPE_F32, "F32", 1, 4, { -1, -1 } },
};

static uint32_t rng_state = 1;
static uint32_t rng(void) { return rng_state = rng_state * 1664525 + 1013904223; }

static void fill_weights(const struct format *f, uint8_t *w, size_t n_bytes) {
    for (size_t at = 0; at < n_bytes; at += f->bytes) {
        if (f->elems == 1) { /* 1 +- something: no subnormals, no NaN */
            uint32_t u = 0x3f800000 | (rng() >> 9);
            uint16_t h = f->dtype == DTYPE_BF16 ? (uint16_t)(u >> 16) : (uint16_t)(0x3c00 | (u >> 13 & 0x3ff));
            memcpy(w + at, f->bytes == 4 ? (void *)&u : (void *)&h, f->bytes);
            continue;
        }
        for (uint32_t i = 0; i < f->bytes; i++)
            w[at + i] = (uint8_t)(rng() >> 24);
        if (f->dtype == DTYPE_MXFP4)
            w[at] = 120;
        for (int i = 0; i < 2 && f->scale[i] >= 0; i++)
            memcpy(w + at + f->scale[i], &(uint16_t){ 0x2000 }, 2); /* 2^-7 */
    }
}

static void print_compute_peak(void) {
    double int8 = 0, bf16 = 0, fma = 0;
    for (int pass = 0; pass < N_PASSES; pass++) {
        int8 = fmax(int8, calib_int8_gops());
        bf16 = fmax(bf16, calib_bf16_gflops());
        fma = fmax(fma, calib_f32_gflops());
    }
    if (int8 == 0)
        printf("# int8 and FMA peak: not measured, this CPU has no AVX-512 VNNI\n");
    else
        printf("# this core: int8 dot product %.0f Gop/s, f32 FMA %.0f Gflop/s\n", int8, fma);
    if (bf16 > 0)
        printf("# this core: bf16 dot product %.0f Gflop/s\n", bf16);
}

struct bench {
    const struct kern_ops *ops;
    uint8_t *block; /* weights of n_experts matrices */
    float *x, *y;
    struct kern_q8 *q;
    uint16_t *h;
};

/* Best seconds per expert matrix. */
static double measure(const struct bench *b, kern_gemm_fn gemm, struct kern_gemm *d, size_t n_experts) {
    double best = 1e9;
    size_t expert = 0, bytes = d->row_bytes * N_OUT;
    for (int pass = 0; pass < N_PASSES; pass++) { /* short ones: others may use the core */
        double t0 = calib_seconds(), t;
        int n = 0;
        do {
            d->w = b->block + expert * bytes;
            for (uint32_t r = 0; r < N_OUT; r += SLICE)
                gemm(d, r, r + SLICE);
            expert = (expert + 1) % n_experts;
            n++;
            t = calib_seconds() - t0;
        } while (t < PASS_MS * 1e-3);
        best = t / n < best ? t / n : best;
    }
    return best;
}

static void put_weights(const struct bench *b, const struct format *f, bool packed) {
    size_t row_bytes = (size_t)N_IN / f->elems * f->bytes, bytes = row_bytes * N_OUT;
    uint8_t *rows = b->block + (packed ? bytes : 0); /* the second matrix, which is then overwritten */
    fill_weights(f, rows, bytes);
    for (uint32_t r = 0; packed && r < N_OUT; r += KERN_PACK_ROWS)
        kern_pack_rows(f->dtype, rows + r * row_bytes, N_IN, b->block + r * row_bytes);
    for (size_t e = 1; e < ((size_t)BLOCK_MIB << 20) / bytes; e++)
        memcpy(b->block + e * bytes, b->block, bytes);
}

enum way { ROWS, PACKED, BF16 }; /* rows as in the file; packed; rows, activations in bf16 */

static void bench_format(const struct bench *b, const struct format *f, enum way way) {
    static const char *const names[] = { "rows  ", "packed", "x bf16" };
    const bool q8 = kern_gemm_wants_q8(f->dtype);
    struct kern_gemm d = { .dtype = f->dtype, .row_bytes = (size_t)N_IN / f->elems * f->bytes, .packed = way == PACKED, .n_in = N_IN,
                           .n_out = N_OUT, .x = way == BF16 ? b->h : q8 ? (const void *)b->q : b->x, .x_stride = q8 ? N_IN / 32 : N_IN,
                           .y = b->y, .y_stride = N_OUT };
    const size_t bytes = d.row_bytes * N_OUT;
    put_weights(b, f, way == PACKED);
    printf("%-7s%s", f->name, names[way]);
    for (uint32_t n = 1; n <= MAX_TOKENS; n *= 2) {
        d.n_tokens = n;
        double t = measure(b, way == BF16 ? b->ops->gemm_bf16 : b->ops->gemm, &d, ((size_t)BLOCK_MIB << 20) / bytes);
        printf(" %4.0f %5.1f |", 2.0 * N_IN * N_OUT * n / t / 1e9, (double)bytes / t / 1e9);
        fflush(stdout);
    }
    printf("\n");
}

static void bench_all(const struct bench *b, const char *only) {
    for (size_t i = 0; i < (size_t)MAX_TOKENS * N_IN; i++)
        b->x[i] = (float)(int32_t)rng() * 0x1p-31f;
    double t = calib_seconds();
    b->ops->quantize(b->x, (size_t)MAX_TOKENS * N_IN, b->q);
    t = calib_seconds() - t;
    kern_round_bf16(b->x, (size_t)MAX_TOKENS * N_IN, b->h);
    print_compute_peak();
    memset(b->block, 1, (size_t)BLOCK_MIB << 20);
    printf("# DRAM read %.1f GB/s (one thread)\n", calib_read_gb_s(b->block, (size_t)BLOCK_MIB << 20));
    printf("# level %s, quantize %.2f G values/s; per number of rows: Gop/s, GB/s of weights\n", b->ops->name,
           (double)MAX_TOKENS * N_IN / t / 1e9);
    printf("format       ");
    for (uint32_t n = 1; n <= MAX_TOKENS; n *= 2)
        printf(" %7u rows", n);
    printf("\n");
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (!only || strcmp(only, formats[i].name) == 0) {
            bench_format(b, &formats[i], ROWS);
            if (kern_pack_fits(formats[i].dtype, N_OUT))
                bench_format(b, &formats[i], PACKED);
            if (formats[i].dtype == DTYPE_BF16)
                bench_format(b, &formats[i], BF16);
        }
}

int main(int argc, char **argv) {
    enum kern_level level = kern_cpu_best();
    struct bench b = { .ops = argc < 2 || kern_level_find(argv[1], &level) ? kern_cpu_ops(level) : NULL };
    if (!b.ops) {
        fprintf(stderr, "kernel_bench: '%s': no such level, or not on this CPU (scalar, avx2, avxvnni, avx512, avx512bf16, neon)\n", argv[1]);
        return 2;
    }
    size_t n = (size_t)MAX_TOKENS * N_IN;
    b.block = mem_map((size_t)BLOCK_MIB << 20);
    b.x = mem_map(n * sizeof *b.x);
    b.y = mem_map((size_t)MAX_TOKENS * N_OUT * sizeof *b.y);
    b.q = mem_map(n / 32 * sizeof *b.q);
    b.h = mem_map(n * sizeof *b.h);
    if (!b.block || !b.x || !b.y || !b.q || !b.h) {
        fprintf(stderr, "kernel_bench: out of memory (needs %d MiB)\n", BLOCK_MIB);
        return 1;
    }
    bench_all(&b, argc > 2 ? argv[2] : NULL);
    return 0;
}
