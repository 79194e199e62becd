/* SPDX-License-Identifier: Apache-2.0
 *
 * Does it pay to let prefills wait for each other while experts are read from disk? gather_bench MODEL [PERCENT [CLIENTS [REQUESTS]]].
 * The real scheduler and engine, PERCENT of the experts in memory, CLIENTS that each send their next request when the last one
 * is done. Prompts of 32 to 160 random tokens, or of a topic of 64 tokens that all clients share; answers of 8 to 40 tokens.
 * Settings take turns on the same requests in one process: plain FIFO (0 ms), and waits: new requests are held until the
 * oldest has waited that long, half a batch has come together, or nothing runs, so that their prompts share steps and reads.
 * Tokens/s counts answers; first is the time to the first token, waiting included. MB read per token does not depend on who
 * else uses the machine. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/pool.h"
#include "kernels/kernels.h"
#include "model/model.h"
#include "scheduler/scheduler.h"

enum { MOST_PROMPT = 160, LEAST_PROMPT = 32, MOST_OUT = 40, LEAST_OUT = 8, TOPIC = 64, BATCH = 512, MAX_CLIENTS = 32, ROUNDS = 1 };

static const uint32_t WAITS_MS[] = { 0, 1000, 4000 };
enum { N_WAITS = sizeof WAITS_MS / sizeof WAITS_MS[0] };

struct client { struct request r; int32_t prompt[MOST_PROMPT]; uint64_t made_ns; bool held; };

struct bench {
    struct model *model;
    struct pool *pool;
    struct engine *en;
    struct sched *s;
    uint32_t n_clients, n_requests;
    uint64_t rng;
    struct client clients[MAX_CLIENTS];
};

struct result { double seconds, first_s, worst_s, bytes; uint64_t tokens, requests, steps; };

static uint32_t rnd(struct bench *b, uint32_t n) {
    b->rng = b->rng * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(b->rng >> 33) % n;
}

static void make_next(struct bench *b, struct client *c, bool topic) {
    const uint32_t n_vocab = model_hparams(b->model)->n_vocab, n = LEAST_PROMPT + rnd(b, MOST_PROMPT - LEAST_PROMPT + 1);
    for (uint32_t i = 0; i < n; i++) {
        c->prompt[i] = (int32_t)(topic ? 1000 + rnd(b, TOPIC) : rnd(b, n_vocab));
    }
    memset(&c->r, 0, sizeof c->r);
    c->r.prompt = c->prompt;
    c->r.n_prompt = n;
    c->r.max_tokens = LEAST_OUT + rnd(b, MOST_OUT - LEAST_OUT + 1);
    c->r.sample = (struct kern_sample){ .temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = b->rng, .n_top_logprobs = -1 };
    c->r.no_prefix_cache = true;
    c->r.user = c;
    c->made_ns = clock_mono_ns();
    c->held = true;
}

/* Submits what is held, all or nothing. */
static int let_go(struct bench *b, uint32_t n_running, uint32_t wait_ms) {
    uint64_t oldest = UINT64_MAX;
    uint32_t n_tokens = 0;
    int rc = 0;
    for (uint32_t i = 0; i < b->n_clients; i++) {
        const struct client *c = &b->clients[i];
        n_tokens += c->held ? c->r.n_prompt : 0;
        oldest = c->held && c->made_ns < oldest ? c->made_ns : oldest;
    }
    if (n_tokens == 0 || (n_running && 2 * n_tokens < BATCH && clock_mono_ns() - oldest < wait_ms * UINT64_C(1000000))) {
        return 0;
    }
    for (uint32_t i = 0; !rc && i < b->n_clients; i++) {
        if (b->clients[i].held) {
            b->clients[i].held = false;
            rc = sched_submit(b->s, &b->clients[i].r);
        }
    }
    return rc;
}

static double bytes_read(const struct bench *b) {
    struct offload_stats st = { 0 };
    engine_ops()->experts(b->en, &st);
    return (double)(st.load_bytes + st.prefetch_useful_bytes + st.prefetch_wasted_bytes);
}

/* One event; whether a request is done. */
static bool take(const struct event *ev, uint64_t now, struct result *out) {
    const struct client *c = ev->request->user;
    if (ev->type == EVENT_TOKEN) {
        out->tokens++;
        if (ev->index == 0) {
            const double s = (double)(now - c->made_ns) * 1e-9;
            out->first_s += s;
            out->worst_s = s > out->worst_s ? s : out->worst_s;
        }
    }
    return ev->type == EVENT_DONE;
}

static int run_load(struct bench *b, uint32_t wait_ms, bool topic, struct result *out) {
    const struct sched_opts o = { .ops = engine_ops(), .engine = b->en, .max_running = b->n_clients, .max_queued = b->n_clients,
                                  .batch_tokens = BATCH };
    struct err e;
    struct event ev[64];
    struct sched_stats st;
    uint32_t sent = b->n_clients;
    int rc = sched_start(&b->s, &o, &e);
    const double bytes = bytes_read(b);
    const uint64_t start = clock_mono_ns();
    for (uint32_t i = 0; i < b->n_clients; i++) {
        make_next(b, &b->clients[i], topic);
    }
    while (!rc && out->requests < b->n_requests) {
        const int n = sched_poll(b->s, ev, 64);
        const uint64_t now = clock_mono_ns();
        for (int i = 0; i < n; i++) {
            if (take(&ev[i], now, out)) {
                out->requests++;
                if (sent < b->n_requests) {
                    make_next(b, ev[i].request->user, topic);
                    sent++;
                }
            }
        }
        uint32_t n_held = 0;
        for (uint32_t i = 0; i < b->n_clients; i++) {
            n_held += b->clients[i].held;
        }
        rc = let_go(b, sent - n_held - (uint32_t)out->requests, wait_ms);
        nanosleep(&(struct timespec){ .tv_nsec = 500000 }, NULL);
    }
    out->seconds += (double)(clock_mono_ns() - start) * 1e-9;
    if (b->s) {
        sched_stats(b->s, &st);
        out->steps += st.n_steps;
        sched_stop(b->s);
    }
    out->bytes += bytes_read(b) - bytes;
    return rc;
}

static int compare(struct bench *b, bool topic) {
    struct result r[N_WAITS] = { { 0 } };
    for (uint64_t round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < N_WAITS; i++) {
            struct result one = { 0 };
            b->rng = round + 1;
            if (run_load(b, WAITS_MS[i], topic, &one)) {
                return ST_INTERNAL;
            }
            r[i].seconds += one.seconds, r[i].first_s += one.first_s, r[i].bytes += one.bytes, r[i].tokens += one.tokens;
            r[i].requests += one.requests, r[i].steps += one.steps;
            r[i].worst_s = one.worst_s > r[i].worst_s ? one.worst_s : r[i].worst_s;
        }
    }
    for (int i = 0; i < N_WAITS; i++) {
        const struct result *x = &r[i];
        printf("| %s | %u ms | %.2f | %.2f | %.1f | %.2f s | %.2f s | %llu |\n", topic ? "topic" : "random", WAITS_MS[i],
               (double)x->tokens / x->seconds, r[0].seconds / x->seconds, x->bytes / (double)x->tokens / 1e6,
               x->first_s / (double)x->requests, x->worst_s, (unsigned long long)x->steps);
    }
    fflush(stdout);
    return 0;
}

static int run(struct bench *b, const char *model, uint32_t percent, struct err *e) {
    int st = model_open(&b->model, model, e);
    st = st ? st : pool_open(&b->pool, &(struct pool_opts){ .n_threads = pool_default_threads(), .spin_us = 200 }, e);
    if (st) {
        return st;
    }
    const struct engine_opts o = {
        .model = b->model, .pool = b->pool, .kern = kern_cpu_ops(kern_cpu_best()), .n_ctx = MOST_PROMPT + MOST_OUT, .n_seqs = b->n_clients,
        .n_running = b->n_clients, .max_batch_tokens = BATCH, .repack = true, .prefetch = true, .experts = ENGINE_EXPERTS_STREAM,
        .expert_bytes = offload_all_bytes(b->model, true) / 100 * percent,
    };
    st = engine_open(&b->en, &o, e);
    printf("%s, %u %% of the experts in memory, %u clients\n", model, percent, b->n_clients);
    fflush(stdout);
    printf("| prompts | wait | tokens/s | of plain | MB read per token | first, mean | worst | steps |\n|---|---|---|---|---|---|---|---|\n");
    for (int topic = 0; !st && topic < 2; topic++) {
        st = compare(b, topic);
        st = st ? err_set(e, st, "a request failed") : 0;
    }
    return st;
}

int main(int argc, char **argv) {
    struct bench *b = mem_zalloc(1, sizeof *b);
    struct err e = { 0 };
    const uint32_t percent = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 25;
    if (!b || argc < 2) {
        fprintf(stderr, "usage: gather_bench MODEL.gguf [PERCENT [CLIENTS [REQUESTS]]]\n");
        mem_free(b);
        return 2;
    }
    b->n_clients = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 8;
    b->n_requests = argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : 24;
    b->n_clients = b->n_clients < 1 || b->n_clients > MAX_CLIENTS ? 8 : b->n_clients;
    log_setup(LOG_WARN, LOG_TEXT);
    const int st = run(b, argv[1], percent, &e);
    if (st) {
        fprintf(stderr, "gather_bench: %s\n", e.text);
    }
    engine_close(b->en);
    pool_close(b->pool);
    model_close(b->model);
    mem_free(b);
    return st ? 1 : 0;
}
