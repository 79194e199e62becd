/* SPDX-License-Identifier: Apache-2.0
 *
 * What the lossy modes cost and gain: lossy_bench MODEL TEXT [TOKENS]. The text is fed token by token, in windows of 1024, to an
 * engine whose experts are streamed, once exactly and once per mode and setting, with a quarter and with half of the experts in
 * memory. Every position's distribution is compared with that of an engine with all experts resident. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/pool.h"
#include "engine/engine.h"
#include "kernels/kernels.h"
#include "model/model.h"
#include "model/tokenizer.h"

enum { WINDOW = 1024, MAX_TEXT = 1 << 20 };

struct bench {
    struct model *model;
    struct tokenizer *tokenizer;
    struct pool *pool;
    int32_t *ids;
    uint32_t n_ids, n_vocab;
    float *truth, *logits; /* [n_ids, n_vocab], [n_vocab] */
};

struct setting { const char *name; uint8_t lossy; float share, margin; };

static const struct setting SETTINGS[] = {
    { "off", 0, 0, 0 },
    { "fewer, share 75 %", ENGINE_LOSSY_FEWER, 0.75f, 0 },
    { "fewer, share 50 % (every token)", ENGINE_LOSSY_FEWER, 0.5f, 0 },
    { "cached, margin 2 %", ENGINE_LOSSY_CACHED, 0, 0.02f },
    { "cached, margin 10 %", ENGINE_LOSSY_CACHED, 0, 0.1f },
    { "cached, margin 30 %", ENGINE_LOSSY_CACHED, 0, 0.3f },
};

struct result { uint32_t n_equal; double kl, seconds; };

static uint32_t argmax(const float *x, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++) {
        best = x[i] > x[best] ? i : best;
    }
    return best;
}

static double log_sum_exp(const float *x, uint32_t n, double max) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += exp((double)x[i] - max);
    }
    return log(sum) + max;
}

static double divergence(const float *a, const float *b, uint32_t n) {
    const double la = log_sum_exp(a, n, (double)a[argmax(a, n)]), lb = log_sum_exp(b, n, (double)b[argmax(b, n)]);
    double kl = 0;
    for (uint32_t i = 0; i < n; i++) {
        const double log_a = (double)a[i] - la;
        kl += log_a > -40 ? exp(log_a) * (log_a - ((double)b[i] - lb)) : 0;
    }
    return kl;
}

static void compare(const struct bench *b, uint32_t at, struct result *out) {
    const float *truth = b->truth + (size_t)at * b->n_vocab;
    out->n_equal += argmax(truth, b->n_vocab) == argmax(b->logits, b->n_vocab);
    out->kl += memcmp(truth, b->logits, b->n_vocab * sizeof *truth) ? divergence(truth, b->logits, b->n_vocab) : 0;
}

/* Token by token; out NULL: fills truth. */
static int run_text(const struct bench *b, struct engine *en, uint8_t lossy, struct result *out) {
    const struct engine_ops *ops = engine_ops();
    int st = 0;
    for (uint32_t at = 0; !st && at < b->n_ids; at++) {
        const uint32_t pos = at % WINDOW;
        if (pos == 0) {
            ops->kv_free(en, 0);
            st = ops->kv_reserve(en, 0, WINDOW);
        }
        const struct batch_item item = { .pos = pos, .n_tokens = 1, .tokens = b->ids + at, .lossy = lossy };
        const uint64_t t0 = clock_mono_ns();
        st = st ? st : engine_logits(en, &item, out ? b->logits : b->truth + (size_t)at * b->n_vocab);
        if (out && !st) {
            out->seconds += (double)(clock_mono_ns() - t0) * 1e-9;
            compare(b, at, out);
        }
    }
    return st;
}

static struct engine_opts opts_of(const struct bench *b) {
    return (struct engine_opts){ .model = b->model, .pool = b->pool, .kern = kern_cpu_ops(kern_cpu_best()), .n_ctx = WINDOW, .n_seqs = 1,
                                 .n_running = 1, .max_batch_tokens = 16, .repack = true, .prefetch = true };
}

static int run_setting(const struct bench *b, const struct setting *x, uint32_t percent, struct err *e) {
    struct engine_opts o = opts_of(b);
    struct engine *en;
    struct offload_stats before, after;
    struct result r = { 0 };
    o.experts = ENGINE_EXPERTS_STREAM;
    o.expert_bytes = offload_all_bytes(b->model, true) * percent / 100;
    o.lossy_share = x->share;
    o.lossy_margin = x->margin;
    int st = engine_open(&en, &o, e);
    if (st) {
        return st;
    }
    engine_ops()->experts(en, &before);
    st = run_text(b, en, x->lossy, &r);
    engine_ops()->experts(en, &after);
    engine_close(en);
    printf("| %u %% | %s | %.2f %% | %.2e | %.3f | %.0f |\n", percent, x->name, 100.0 * r.n_equal / b->n_ids, r.kl / b->n_ids,
           (double)(after.misses - before.misses) / b->n_ids, b->n_ids / r.seconds);
    fflush(stdout);
    return st ? err_set(e, st, "a step failed") : 0;
}

static int load(struct bench *b, const char *model, const char *text, uint32_t most, struct err *e) {
    char *bytes = mem_alloc(MAX_TEXT);
    FILE *f = fopen(text, "re");
    int st = model_open(&b->model, model, e);
    st = st ? st : tokenizer_open(&b->tokenizer, model_gguf(b->model), e);
    st = st ? st : pool_open(&b->pool, &(struct pool_opts){ .n_threads = pool_default_threads(), .spin_us = 200 }, e);
    st = st || (f && bytes) ? st : err_set(e, ST_IO, "%s: cannot be read", text);
    if (!st) {
        const size_t n = fread(bytes, 1, MAX_TEXT, f), cap = tokenizer_max_ids(b->tokenizer, n);
        b->ids = mem_alloc(cap * sizeof *b->ids);
        const int64_t n_ids = b->ids ? tokenizer_encode(b->tokenizer, bytes, n, 0, b->ids, cap) : -1;
        b->n_ids = n_ids < 0 ? 0 : n_ids < most ? (uint32_t)n_ids : most;
        b->n_vocab = model_hparams(b->model)->n_vocab;
        b->truth = mem_alloc((size_t)b->n_ids * b->n_vocab * sizeof *b->truth);
        b->logits = mem_alloc(b->n_vocab * sizeof *b->logits);
        st = b->n_ids && b->truth && b->logits ? 0 : err_set(e, ST_NOMEM, "no tokens, or no memory for their logits");
    }
    if (f) {
        fclose(f);
    }
    mem_free(bytes);
    return st;
}

static int run_all(struct bench *b, struct err *e) {
    struct engine *en;
    const struct engine_opts o = opts_of(b);
    int st = engine_open(&en, &o, e);
    if (st) {
        return st;
    }
    const uint64_t t0 = clock_mono_ns();
    st = run_text(b, en, 0, NULL);
    engine_close(en);
    printf("%u tokens; all experts resident: %.0f tokens/s\n", b->n_ids, b->n_ids / ((double)(clock_mono_ns() - t0) * 1e-9));
    printf("| memory | mode | top-1 equal | mean KL | misses per token | tokens/s |\n|---|---|---|---|---|---|\n");
    for (uint32_t percent = 25; !st && percent <= 50; percent *= 2) {
        for (size_t i = 0; !st && i < sizeof SETTINGS / sizeof SETTINGS[0]; i++) {
            st = run_setting(b, &SETTINGS[i], percent, e);
        }
    }
    return st;
}

int main(int argc, char **argv) {
    struct bench b = { 0 };
    struct err e = { 0 };
    if (argc < 3) {
        fprintf(stderr, "usage: lossy_bench MODEL.gguf TEXT [TOKENS]\n");
        return 2;
    }
    log_setup(LOG_WARN, LOG_TEXT);
    int st = load(&b, argv[1], argv[2], argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : UINT32_MAX, &e);
    st = st ? st : run_all(&b, &e);
    if (st) {
        fprintf(stderr, "lossy_bench: %s\n", e.text);
    }
    mem_free(b.ids);
    mem_free(b.truth);
    mem_free(b.logits);
    pool_close(b.pool);
    tokenizer_close(b.tokenizer);
    model_close(b.model);
    return st ? 1 : 0;
}
