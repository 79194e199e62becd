/* SPDX-License-Identifier: Apache-2.0
 *
 * What the kernel tests share: seeded random numbers, and equality of floats. */
#ifndef MOED_TESTS_KERNELS_RAND_H
#define MOED_TESTS_KERNELS_RAND_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/kernels.h"

static inline uint64_t rng_next(uint64_t *s) {
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return *s >> 33;
}
static inline uint32_t rng_below(uint64_t *s, uint32_t n) { return (uint32_t)(rng_next(s) % n); }
static inline float rng_float(uint64_t *s, float range) { /* (-range, range) */
    return (float)(((double)rng_next(s) * 0x1p-30 - 1) * (double)range);
}
static inline float rng_normal(uint64_t *s) {
    double u = ((double)rng_next(s) + 1) * 0x1p-31, v = (double)rng_next(s) * 0x1p-31;
    return (float)(sqrt(-2 * log(u)) * cos(2 * M_PI * v));
}

/* Index of the first element whose bits differ, n when there is none. NaN equals NaN: its payload is nobody's promise. */
static inline size_t first_difference(const float *a, const float *b, size_t n) {
    size_t i = 0;
    if (memcmp(a, b, n * sizeof *a) == 0) return n;
    while (i < n && (memcmp(a + i, b + i, sizeof *a) == 0 || (isnan(a[i]) && isnan(b[i])))) i++;
    return i;
}

#endif
