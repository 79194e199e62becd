/* SPDX-License-Identifier: Apache-2.0
 *
 * What this machine does at its best, as JSON: one core, and all threads at once (the sum over them; DRAM: bytes over
 * the time until the last is done). Best of a few passes. `bench/compare.py` runs it before and after its measurements and
 * states speeds as shares of it. Usage: calibrate [THREADS]; two seconds, 256 MiB per thread. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/pool.h"
#include "bench/calibration.h"

enum { N_PASSES = 12, MAX_THREADS = 256 };
#define BLOCK ((size_t)256 << 20)

struct calib {
    uint8_t *block[MAX_THREADS];
    double rate[MAX_THREADS];
    double (*loop)(void);
};

static void fill(void *ctx, int task, int worker) {
    struct calib *c = ctx;
    (void)worker;
    memset(c->block[task], 1, BLOCK);
}

static void compute(void *ctx, int task, int worker) {
    struct calib *c = ctx;
    (void)worker;
    c->rate[task] = c->loop();
}

static void read_block(void *ctx, int task, int worker) {
    struct calib *c = ctx;
    (void)worker;
    c->rate[task] = calib_read_once_gb_s(c->block[task], BLOCK);
}

static double best_sum(struct calib *c, struct pool *p, int n, double (*loop)(void)) {
    double best = 0;
    c->loop = loop;
    for (int pass = 0; pass < N_PASSES; pass++) {
        double sum = 0;
        pool_run(p, n, compute, c);
        for (int i = 0; i < n; i++) sum += c->rate[i];
        best = fmax(best, sum);
    }
    return best;
}

static double best_read(struct calib *c, struct pool *p, int n) {
    double best = 0;
    for (int pass = 0; pass < N_PASSES; pass++) {
        double t = calib_seconds();
        pool_run(p, n, read_block, c);
        best = fmax(best, (double)BLOCK * n / (calib_seconds() - t) / 1e9);
    }
    return best;
}

static void print(const char *name, double one, double all, const char *end) {
    if (one > 0)
        printf(" \"%s_one\": %.2f, \"%s\": %.2f%s\n", name, one, name, all, end);
    else
        printf(" \"%s_one\": null, \"%s\": null%s\n", name, name, end);
}

int main(int argc, char **argv) {
    struct calib *c = mem_zalloc(1, sizeof *c);
    struct pool *p;
    struct err e = { 0 };
    long n = argc > 1 ? strtol(argv[1], NULL, 10) : pool_default_threads();
    if (!c || n < 1 || n > MAX_THREADS) {
        fprintf(stderr, "calibrate: threads: expected 1..%d\n", MAX_THREADS);
        return 2;
    }
    for (long i = 0; i < n; i++) {
        c->block[i] = mem_map(BLOCK);
        if (!c->block[i]) {
            fprintf(stderr, "calibrate: out of memory (%ld x %zu MiB)\n", n, BLOCK >> 20);
            return 1;
        }
    }
    if (pool_open(&p, &(struct pool_opts){ .n_threads = (int)n, .spin_us = 1000 }, &e)) {
        fprintf(stderr, "calibrate: %s\n", e.text);
        return 1;
    }
    pool_run(p, (int)n, fill, c);
    printf("{\"threads\": %ld,\n", n);
    print("int8_gops", best_sum(c, p, 1, calib_int8_gops), best_sum(c, p, (int)n, calib_int8_gops), ",");
    print("bf16_gflops", best_sum(c, p, 1, calib_bf16_gflops), best_sum(c, p, (int)n, calib_bf16_gflops), ",");
    print("f32_gflops", best_sum(c, p, 1, calib_f32_gflops), best_sum(c, p, (int)n, calib_f32_gflops), ",");
    print("dram_gb_s", best_read(c, p, 1), best_read(c, p, (int)n), "}");
    pool_close(p);
    return 0;
}
