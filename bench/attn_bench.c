/* SPDX-License-Identifier: Apache-2.0
 *
 * Speed of decode attention on one core: GB/s of KV read by one token at 4,096 positions, per KV type and query heads
 * per kv head (head_dim 128), beside the f32 FMA peak and the DRAM read speed of the same run. Also the KV store. The
 * layers of a block larger than the caches are attended in turn, pages in random order, as in the engine.
 * "keys" is million positions of one kv head per second: the figure to compare KV types by, since q8 moves fewer
 * bytes. Usage: taskset -c 1 attn_bench [LEVEL] [TYPE]; about 10 seconds. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "kernels/kernels.h"

enum { N_KV = 4, DIM = 128, PAGE = 32, N_POS = 4096, N_PAGES = N_POS / PAGE, MOST_HEADS = 16, BLOCK_MIB = 192, N_PASSES = 12,
       SCRATCH_FLOATS = 1 << 18 };

static const struct { enum kern_kv_type type; const char *name; } TYPES[] = {
    { KERN_KV_F32, "f32" }, { KERN_KV_F16, "f16" }, { KERN_KV_BF16, "bf16" }, { KERN_KV_Q8, "q8" },
};

static uint32_t rng_state = 1;
static uint32_t rng(void) { return rng_state = rng_state * 1664525 + 1013904223; }
static float rng_float(void) { return (float)(int32_t)rng() * 0x1p-31f; }
static double seconds(void) { return (double)clock_mono_ns() * 1e-9; }

struct bench {
    const struct kern_ops *ops;
    unsigned char *block;
    float *q, *out, *kv, *scratch;
    int32_t pages[N_PAGES];
};

#if defined(__x86_64__)
#include <immintrin.h>
__attribute__((target("avx512f"))) static double fma_peak_avx512(void) {
    enum { N = 100000 };
    __m512 acc[12], a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(1e-3f);
    for (int i = 0; i < 12; i++) acc[i] = _mm512_set1_ps((float)i);
    double t = seconds();
    for (int n = 0; n < N; n++)
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++) acc[i] = _mm512_fmadd_ps(acc[i], a, b);
    t = seconds() - t;
    float sum = 0;
    for (int i = 0; i < 12; i++) sum += _mm512_reduce_add_ps(acc[i]);
    return 32.0 * 12 * N / t / 1e9 + (sum == 12345 ? 1e-9 : 0); /* uses sum, so that the loop stays */
}
#endif

/* Best over pieces of 4 MiB, walked in order, so that each comes from DRAM but few are interrupted by others. */
static double read_bandwidth(const unsigned char *p, size_t n_bytes) {
    const size_t piece = (size_t)4 << 20;
    double best = 0;
    uint64_t sum = 0;
    for (size_t at = 0; at + piece <= n_bytes; at += piece) {
        const uint64_t *q = (const uint64_t *)(const void *)(p + at);
        uint64_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
        double t = seconds();
        for (size_t i = 0; i < piece / 8; i += 8) {
            __builtin_prefetch(q + i + 512, 0, 2);
            s0 += q[i], s1 += q[i + 2], s2 += q[i + 4], s3 += q[i + 6];
        }
        sum += s0 + s1 + s2 + s3;
        best = fmax(best, (double)piece / (seconds() - t) / 1e9);
    }
    return best + (sum == 12345 ? 1e-9 : 0);
}

static void print_limits(const struct bench *b) {
    memset(b->block, 1, (size_t)BLOCK_MIB << 20);
    printf("# DRAM read %.1f GB/s (one thread)\n", read_bandwidth(b->block, (size_t)BLOCK_MIB << 20));
#if defined(__x86_64__)
    if (kern_cpu_ops(KERN_AVX512)) {
        double fma = 0;
        for (int pass = 0; pass < N_PASSES; pass++) fma = fmax(fma, fma_peak_avx512());
        printf("# f32 FMA %.0f Gflop/s: f16 KV at 8 heads cannot pass %.1f GB/s by FMA\n", fma, fma / 8);
    }
#endif
}

/* Fills the first layer and copies it to the others; returns layers, and nanoseconds per stored token in *store_ns. */
static size_t fill(struct bench *b, struct kern_attn *d, size_t half, double *store_ns) {
    struct kern_kv_store st = { .kv_type = d->kv_type, .k = b->block, .v = b->block + half, .page_tokens = PAGE,
                                .n_kv_heads = N_KV, .head_dim_k = DIM, .head_dim_v = DIM };
    size_t n_layers = ((size_t)BLOCK_MIB << 20) / (2 * half);
    *store_ns = 1e9;
    for (uint32_t p = 0; p < N_POS; p += PAGE) {
        double t = seconds();
        for (uint32_t i = 0; i < PAGE; i++) {
            const float *row = b->kv + (size_t)((p + i) % 64) * N_KV * DIM;
            b->ops->kv_store(&st, b->pages[p / PAGE], i, row, row);
        }
        t = (seconds() - t) / PAGE * 1e9;
        *store_ns = t < *store_ns ? t : *store_ns;
    }
    for (size_t l = 1; l < n_layers; l++) memcpy(b->block + l * 2 * half, b->block, 2 * half);
    return n_layers;
}

/* Best seconds of one layer for one token. */
static double measure(const struct bench *b, struct kern_attn *d, size_t half, size_t n_layers) {
    double best = 1e9;
    for (int pass = 0; pass < N_PASSES; pass++)
        for (size_t l = 0; l < n_layers; l++) {
            d->k = b->block + l * 2 * half;
            d->v = b->block + l * 2 * half + half;
            double t = seconds();
            for (uint32_t h = 0; h < N_KV; h++) b->ops->attn(d, h);
            t = seconds() - t;
            best = t < best ? t : best;
        }
    return best;
}

static void bench_type(struct bench *b, size_t which) {
    struct kern_attn d = { .kv_type = TYPES[which].type, .pages = b->pages, .page_tokens = PAGE, .n_kv_heads = N_KV,
                           .head_dim_k = DIM, .head_dim_v = DIM, .scale = 0.088f, .q = b->q, .out = b->out,
                           .pos0 = N_POS - 1, .n_tokens = 1, .scratch = b->scratch };
    size_t half = kern_kv_page_bytes(d.kv_type, PAGE, N_KV, DIM) * N_PAGES;
    double store_ns;
    size_t n_layers = fill(b, &d, half, &store_ns);
    printf("%-5s %5.0f", TYPES[which].name, store_ns);
    for (uint32_t per = 1; per <= MOST_HEADS; per *= 2) {
        d.n_heads = per * N_KV;
        d.q_stride = d.out_stride = (size_t)d.n_heads * DIM;
        double t = measure(b, &d, half, n_layers);
        printf(" | %5.1f %5.1f", 2e-9 * (double)half / t, 1e-6 * N_POS * N_KV / t);
        fflush(stdout);
    }
    printf("\n");
}

static void bench_all(struct bench *b, const char *only) {
    for (size_t i = 0; i < (size_t)MOST_HEADS * N_KV * DIM; i++) b->q[i] = rng_float();
    for (size_t i = 0; i < (size_t)64 * N_KV * DIM; i++) b->kv[i] = rng_float();
    for (uint32_t i = 0; i < N_PAGES; i++) b->pages[i] = (int32_t)i;
    for (uint32_t i = N_PAGES - 1; i > 0; i--) {
        uint32_t j = (rng() >> 8) % (i + 1);
        int32_t t = b->pages[i];
        b->pages[i] = b->pages[j];
        b->pages[j] = t;
    }
    print_limits(b);
    printf("# level %s; ns to store a token (%d kv heads x %d); per heads of a kv head: GB/s of KV, million keys/s\n",
           b->ops->name, N_KV, DIM);
    printf("type  store");
    for (uint32_t per = 1; per <= MOST_HEADS; per *= 2) printf(" | %5u heads", per);
    printf("\n");
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        if (!only || strcmp(only, TYPES[i].name) == 0) bench_type(b, i);
}

int main(int argc, char **argv) {
    static struct bench b;
    enum kern_level level = kern_cpu_best();
    if (argc <= 1 || kern_level_find(argv[1], &level)) b.ops = kern_cpu_ops(level);
    if (!b.ops) {
        fprintf(stderr, "attn_bench: '%s': no such level, or not on this CPU\n", argv[1]);
        return 2;
    }
    b.block = mem_map((size_t)BLOCK_MIB << 20);
    b.q = mem_map((size_t)MOST_HEADS * N_KV * DIM * sizeof *b.q);
    b.out = mem_map((size_t)MOST_HEADS * N_KV * DIM * sizeof *b.out);
    b.kv = mem_map((size_t)64 * N_KV * DIM * sizeof *b.kv);
    b.scratch = mem_map(SCRATCH_FLOATS * sizeof *b.scratch);
    if (!b.block || !b.q || !b.out || !b.kv || !b.scratch) {
        fprintf(stderr, "attn_bench: out of memory (needs %d MiB)\n", BLOCK_MIB);
        return 1;
    }
    bench_all(&b, argc > 2 ? argv[2] : NULL);
    return 0;
}
