/* SPDX-License-Identifier: Apache-2.0
 *
 * What the expert store costs when every expert is in memory: store_overhead MODEL [PAIRS [THREADS]]. Two engines in one process
 * on one pool, one with its experts resident, one with a store of 100 %, decode the same random tokens in turns of a few
 * steps, so that whatever the machine does falls on both; the order within a pair alternates. The result is the median of
 * the pairs' ratios with the middle half beside it. The model is in memory twice. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/pool.h"
#include "engine/engine.h"
#include "kernels/kernels.h"
#include "model/model.h"

enum { CONTEXT = 256, TURN = 4, WARM = 64, MAX_PAIRS = 1000 };

struct side { struct engine *en; uint32_t pos; uint64_t rng; };

struct bench {
    struct model *model;
    struct pool *pool;
    const struct kern_ops *kern;
    struct side sides[2]; /* resident, store */
    double ratios[MAX_PAIRS];
};

static int open_side(struct bench *b, int store, struct err *e) {
    const struct engine_opts o = {
        .model = b->model, .pool = b->pool, .kern = b->kern, .n_ctx = CONTEXT, .n_seqs = 1, .n_running = 1, .max_batch_tokens = 16, .repack = true,
        .prefetch = true, .experts = store ? ENGINE_EXPERTS_STREAM : ENGINE_EXPERTS_RESIDENT, .expert_bytes = offload_all_bytes(b->model, true),
    };
    b->sides[store] = (struct side){ .pos = CONTEXT, .rng = 1 };
    return engine_open(&b->sides[store].en, &o, e);
}

static int step(struct bench *b, struct side *x, struct step_out *out) {
    static const struct kern_sample greedy = { .top_p = 1, .repetition_penalty = 1, .n_top_logprobs = -1 };
    const struct engine_ops *ops = engine_ops();
    int st = 0;
    if (x->pos == CONTEXT) {
        ops->kv_free(x->en, 0);
        st = ops->kv_reserve(x->en, 0, CONTEXT);
        x->pos = 0;
    }
    x->rng = x->rng * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    const int32_t token = (int32_t)((x->rng >> 33) % model_hparams(b->model)->n_vocab);
    const struct batch_item it = { .pos = x->pos++, .n_tokens = 1, .tokens = &token, .sample = true, .params = &greedy, .next_token = -1 };
    return st ? st : engine_ops()->step(x->en, &(struct batch){ &it, 1, 1 }, out);
}

/* Seconds of a turn; misses are counted. */
static int turn(struct bench *b, int side, uint32_t n, double *s, uint64_t *misses) {
    const uint64_t t0 = clock_mono_ns();
    int st = 0;
    for (uint32_t i = 0; !st && i < n; i++) {
        struct kern_sampled drawn;
        struct step_out out = { .sampled = &drawn };
        st = step(b, &b->sides[side], &out);
        *misses += out.experts.misses;
    }
    *s = (double)(clock_mono_ns() - t0) * 1e-9;
    return st;
}

/* Until every expert has been filled in: what no step wants comes in the background. */
static int fill(struct bench *b) {
    struct offload_stats st;
    double s;
    uint64_t misses = 0;
    for (int rc = 0, round = 0; round < 10000; round++) {
        engine_ops()->experts(b->sides[1].en, &st);
        if (rc || st.resident == st.slots) {
            return rc;
        }
        rc = turn(b, 1, 1, &s, &misses);
    }
    return ST_IO;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int run_pairs(struct bench *b, uint32_t n) {
    double s[2], sum[2] = { 0 };
    uint64_t misses = 0;
    int st = fill(b);
    b->sides[1].pos = CONTEXT; /* both from the beginning */
    b->sides[1].rng = 1;
    for (uint32_t i = 0; !st && i < WARM / TURN; i++) {
        st = turn(b, 0, TURN, s, &misses);
        st = st ? st : turn(b, 1, TURN, s, &misses);
    }
    misses = 0;
    for (uint32_t i = 0; !st && i < n; i++) {
        for (uint32_t k = 0; !st && k < 2; k++) {
            const int side = (int)((i ^ k) & 1);
            st = turn(b, side, TURN, &s[side], &misses);
            sum[side] += s[side];
        }
        b->ratios[i] = s[1] / s[0];
    }
    if (st) {
        return st;
    }
    qsort(b->ratios, n, sizeof b->ratios[0], by_value);
    const double steps = (double)n * TURN;
    printf("%u pairs of %d steps, %d threads, %s, %llu misses: resident %.3f ms, store %.3f ms per step; ratio of a pair: median %.4f, middle half %.4f to %.4f\n",
           n, TURN, pool_n_threads(b->pool), b->kern->name, (unsigned long long)misses, sum[0] / steps * 1e3, sum[1] / steps * 1e3, b->ratios[n / 2],
           b->ratios[n / 4], b->ratios[n - 1 - n / 4]);
    return misses ? ST_INTERNAL : ST_OK;
}

static int run(struct bench *b, const char *model, uint32_t n_pairs, struct err *e) {
    int st = model_open(&b->model, model, e);
    b->kern = kern_cpu_ops(kern_cpu_best());
    for (int store = 1; !st && store >= 0; store--) { /* the store's first: its reader is not to inherit a pin */
        st = open_side(b, store, e);
    }
    if (!st) {
        st = run_pairs(b, n_pairs);
        st = st ? err_set(e, st, "a step failed, or missed an expert") : 0;
    }
    return st;
}

int main(int argc, char **argv) {
    struct bench b = { 0 };
    struct err e = { 0 };
    const uint32_t n_pairs = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 100;
    const int n_threads = argc > 3 ? (int)strtoul(argv[3], NULL, 10) : pool_default_threads();
    if (argc < 2 || n_pairs < 1 || n_pairs > MAX_PAIRS) {
        fprintf(stderr, "usage: store_overhead MODEL.gguf [PAIRS [THREADS]]\n");
        return 2;
    }
    log_setup(LOG_WARN, LOG_TEXT);
    int st = pool_open(&b.pool, &(struct pool_opts){ .n_threads = n_threads, .spin_us = 200 }, &e);
    st = st ? st : run(&b, argv[1], n_pairs, &e);
    if (st) {
        fprintf(stderr, "store_overhead: %s\n", e.text);
    }
    engine_close(b.sides[0].en);
    engine_close(b.sides[1].en);
    pool_close(b.pool);
    model_close(b.model);
    return st ? 1 : 0;
}
