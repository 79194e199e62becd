/* SPDX-License-Identifier: Apache-2.0
 *
 * What one core does at its best, measured in the same run as what is to be judged: int8 dot products, bf16 dot products,
 * f32 multiply-adds, reading from DRAM. Loops on registers or in order through memory, nothing else. A few tenths of a
 * millisecond each: call them often and take the best, since others may use the core. 0 = this CPU or compiler has none. */
#ifndef MOED_BENCH_CALIBRATION_H
#define MOED_BENCH_CALIBRATION_H

#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

static inline double calib_seconds(void) { return (double)clock_mono_ns() * 1e-9; }

#if defined(__x86_64__)
enum { CALIB_ROUNDS = 100000, CALIB_CHAINS = 12 }; /* more chains than latency times ports */

__attribute__((target("avx512f,avx512vnni,avx512bw"))) static inline double calib__int8(void) {
    __m512i acc[CALIB_CHAINS], a = _mm512_set1_epi32(0x01020304), b = _mm512_set1_epi32(0x05060708);
    for (int i = 0; i < CALIB_CHAINS; i++)
        acc[i] = _mm512_set1_epi32(i);
    double t = calib_seconds();
    for (int n = 0; n < CALIB_ROUNDS; n++)
#pragma GCC unroll 12
        for (int i = 0; i < CALIB_CHAINS; i++)
            acc[i] = _mm512_dpbusd_epi32(acc[i], a, b);
    t = calib_seconds() - t;
    int sum = 0;
    for (int i = 0; i < CALIB_CHAINS; i++)
        sum += _mm512_reduce_add_epi32(acc[i]);
    return 128.0 * CALIB_CHAINS * CALIB_ROUNDS / t / 1e9 + (sum == 12345 ? 1e-9 : 0); /* uses sum, so that the loop stays */
}

__attribute__((target("avx512f,avx512bf16,avx512bw,avx512vl"))) static inline double calib__bf16(void) {
    __m512 acc[CALIB_CHAINS];
    __m512bh a = (__m512bh)_mm512_set1_epi16(0x3f7f), b = (__m512bh)_mm512_set1_epi16(0x3a83);
    for (int i = 0; i < CALIB_CHAINS; i++)
        acc[i] = _mm512_set1_ps((float)i);
    double t = calib_seconds();
    for (int n = 0; n < CALIB_ROUNDS; n++)
#pragma GCC unroll 12
        for (int i = 0; i < CALIB_CHAINS; i++)
            acc[i] = _mm512_dpbf16_ps(acc[i], a, b);
    t = calib_seconds() - t;
    float sum = 0;
    for (int i = 0; i < CALIB_CHAINS; i++)
        sum += _mm512_reduce_add_ps(acc[i]);
    return 64.0 * CALIB_CHAINS * CALIB_ROUNDS / t / 1e9 + (sum == 12345 ? 1e-9 : 0);
}

__attribute__((target("avx512f"))) static inline double calib__f32(void) {
    __m512 acc[CALIB_CHAINS], a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(1e-3f);
    for (int i = 0; i < CALIB_CHAINS; i++)
        acc[i] = _mm512_set1_ps((float)i);
    double t = calib_seconds();
    for (int n = 0; n < CALIB_ROUNDS; n++)
#pragma GCC unroll 12
        for (int i = 0; i < CALIB_CHAINS; i++)
            acc[i] = _mm512_fmadd_ps(acc[i], a, b);
    t = calib_seconds() - t;
    float sum = 0;
    for (int i = 0; i < CALIB_CHAINS; i++)
        sum += _mm512_reduce_add_ps(acc[i]);
    return 32.0 * CALIB_CHAINS * CALIB_ROUNDS / t / 1e9 + (sum == 12345 ? 1e-9 : 0);
}

static inline double calib_int8_gops(void) { return __builtin_cpu_supports("avx512vnni") ? calib__int8() : 0; }
static inline double calib_bf16_gflops(void) { return __builtin_cpu_supports("avx512bf16") ? calib__bf16() : 0; }
static inline double calib_f32_gflops(void) { return __builtin_cpu_supports("avx512f") ? calib__f32() : 0; }
#else
static inline double calib_int8_gops(void) { return 0; }
static inline double calib_bf16_gflops(void) { return 0; }
static inline double calib_f32_gflops(void) { return 0; }
#endif

/* One pass in order; every cache line is touched. */
static inline double calib_read_once_gb_s(const uint8_t *p, size_t n_bytes) {
    const uint64_t *q = (const uint64_t *)p;
    uint64_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    double t = calib_seconds();
    for (size_t i = 0; i < n_bytes / 8; i += 8) {
        __builtin_prefetch(q + i + 512, 0, 2);
        s0 += q[i], s1 += q[i + 2], s2 += q[i + 4], s3 += q[i + 6];
    }
    t = calib_seconds() - t;
    return (double)n_bytes / t / 1e9 + (s0 + s1 + s2 + s3 == 12345 ? 1e-9 : 0);
}

/* Best over pieces of 4 MiB, walked in order, so that each comes from DRAM but few are interrupted by others. */
static inline double calib_read_gb_s(const uint8_t *p, size_t n_bytes) {
    const size_t piece = (size_t)4 << 20;
    double best = 0;
    for (size_t at = 0; at + piece <= n_bytes; at += piece) {
        double now = calib_read_once_gb_s(p + at, piece);
        best = now > best ? now : best;
    }
    return best;
}

#endif
