/* SPDX-License-Identifier: Apache-2.0
 *
 * The avxvnni matrix product on CPUs that have its instructions in AVX-512's encoding only. Its source is compiled here
 * a second time, for AVX-512 VNNI with 256-bit vectors: the same intrinsics, the same code path, other opcodes. On CPUs
 * with AVX-VNNI proper, kernels_gemm tests the level as it ships. */
#include <stdlib.h>

#include "kernels/internal.h"

#if defined(__x86_64__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi2,avx512f,avx512vl,avx512vnni")
void gemm_evex(const struct kern_gemm *d, uint32_t row0, uint32_t row1);
#define kern__gemm_avxvnni gemm_evex
#include "kernels/cpu/gemm_avxvnni.c"
#undef kern__gemm_avxvnni
#pragma GCC pop_options
#define HAVE_EVEX 1
#endif

#include "kernels_level.h"
#include "kernels_rand.h"

#ifdef HAVE_EVEX
static const enum dtype dtypes[] = { DTYPE_F32,  DTYPE_F16,  DTYPE_BF16, DTYPE_Q4_0,   DTYPE_Q4_1,   DTYPE_Q5_0, DTYPE_Q5_1,
                                     DTYPE_Q8_0, DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K, DTYPE_IQ4_NL, DTYPE_IQ4_XS, DTYPE_MXFP4 };
enum { N_DTYPES = sizeof dtypes / sizeof *dtypes };

static uint64_t seed = 20261130;

static bool same(float a, float b) {
    return memcmp(&a, &b, 4) == 0 || (isnan(a) && isnan(b)); /* NaN payloads carry no meaning */
}

/* A product of random bytes, scales included, in a random slice, from rows or packed: the bits of the scalar level,
 * nothing else written. */
static void check_product(const char *test_name_, enum dtype dtype, int trial) {
    const struct dtype_info *t = dtype_info((uint32_t)dtype);
    bool q8 = kern_gemm_wants_q8(dtype);
    uint32_t n_in = q8 ? t->block_elems * (1 + rng_below(&seed, t->block_elems == 32 ? 20 : 3)) : 1 + rng_below(&seed, 200);
    const uint32_t unit = q8 && trial % 2 ? KERN_PACK_ROWS : 1; /* packed */
    uint32_t n_out = unit * (1 + rng_below(&seed, 40 / unit)), n_tokens = trial % 12 == 11 ? 125 + rng_below(&seed, 15) : rng_below(&seed, 12);
    uint32_t row0 = unit * rng_below(&seed, n_out / unit + 1), row1 = row0 + unit * rng_below(&seed, (n_out - row0) / unit + 1);
    uint32_t n = n_tokens * n_out;
    size_t row = dtype_row_bytes(t, n_in), n_x = (size_t)n_tokens * n_in;
    uint8_t *w = malloc(row * n_out), *packed = malloc(row * n_out);
    float *x = malloc((n_x + 1) * sizeof *x), *want = malloc((n + 1) * sizeof *want), *got = malloc((n + 1) * sizeof *got);
    struct kern_q8 *q = malloc((n_x / 32 + 1) * sizeof *q);
    for (size_t i = 0; i < row * n_out; i++)
        w[i] = (uint8_t)rng_next(&seed);
    for (size_t i = 0; i < n_x; i++)
        x[i] = rng_normal(&seed) * (rng_below(&seed, 40) ? 1 : 20);
    if (q8)
        kern__quantize_scalar(x, n_x, q);
    for (uint32_t i = 0; i < n; i++)
        got[i] = 12345;
    struct kern_gemm d = { .dtype = dtype, .w = w, .row_bytes = row, .n_in = n_in, .n_out = n_out, .n_tokens = n_tokens, .y_stride = n_out };
    d.x = q8 ? (const void *)q : x;
    d.x_stride = q8 ? n_in / 32 : n_in;
    d.y = want;
    kern__gemm_scalar(&d, 0, n_out);
    d.y = got;
    d.packed = unit > 1;
    for (uint32_t r = 0; r < n_out && d.packed; r += unit)
        kern_pack_rows(dtype, w + r * row, n_in, packed + r * row);
    d.w = d.packed ? packed : w;
    gemm_evex(&d, row0, row1);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t r = i % n_out;
        float expect = r >= row0 && r < row1 ? want[i] : 12345;
        CHECKF(same(got[i], expect), "%s trial %d: %u x %u, token %u of %u, row %u of [%u, %u): %.9g, expected %.9g", t->name, trial,
               n_out, n_in, i / n_out, n_tokens, r, row0, row1, (double)got[i], (double)expect);
    }
    free(w);
    free(packed);
    free(x);
    free(want);
    free(got);
    free(q);
}
#endif

TEST(evex) {
#ifdef HAVE_EVEX
    if (kern_cpu_ops(KERN_AVX512)) {
        for (int trial = 0; trial < 60; trial++)
            for (int i = 0; i < N_DTYPES; i++)
                check_product(test_name_, dtypes[i], trial);
        return;
    }
#endif
    SKIP("this CPU has no AVX-512 VNNI");
}

int main(void) {
    RUN(evex);
    return test_failed_;
}
