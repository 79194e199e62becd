/* SPDX-License-Identifier: Apache-2.0
 *
 * A scheduler on a fake engine for single cases, with a gate that holds E inside its step, so that what happens when
 * does not depend on the clock. */
#ifndef MOED_TESTS_SCHED_RIG_H
#define MOED_TESTS_SCHED_RIG_H

#include "test.h"

#include "fake_engine.h"
#include "sched_client.h"

enum { PAGE = 8, VOCAB = 100, LONG = 1600 };

/* Shut: a step ends only when the test permits it. */
struct gate { atomic_bool shut, waiting; atomic_int permits; };

struct rig {
    struct gate gate;
    void (*on_step)(void *ctx, const struct batch *b);
    void *on_step_ctx;
    struct fake_engine fake;
    struct client *c;
    struct sched_opts so;
    struct fake_opts fo;
};

static inline struct rig *rig_new(void) {
    struct rig *g = calloc(1, sizeof *g);

    g->fo = (struct fake_opts){
        .info = {.n_ctx = 4096, .n_seqs = 8, .page_tokens = PAGE, .n_pages = 2048, .max_batch_tokens = 256, .n_vocab = VOCAB},
        .eos = -1,
    };
    g->so = (struct sched_opts){.ops = &fake_ops, .max_running = 4, .max_queued = 100, .batch_tokens = 64, .prefix_cache = true};
    return g;
}

static inline void at_gate(void *ctx, const struct batch *b) {
    struct rig *g = ctx;

    if (g->on_step)
        g->on_step(g->on_step_ctx, b);
    atomic_store(&g->gate.waiting, true);
    while (atomic_load(&g->gate.shut) && atomic_load(&g->gate.permits) == 0)
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    atomic_store(&g->gate.waiting, false);
    if (atomic_load(&g->gate.shut))
        atomic_fetch_sub(&g->gate.permits, 1);
}

static inline void rig_open(struct rig *g) {
    g->fo.on_step = at_gate;
    g->fo.on_step_ctx = g;
    fake_open(&g->fake, &g->fo);
    g->so.engine = &g->fake;
    g->c = client_open(&g->so);
}

/* Everything ended and stopped: the rules held and nothing is left. */
#define RIG_CLOSE(g)                                                                                 \
    do {                                                                                             \
        CHECKF((g)->c->errors == 0, "%u broken rules, first: %s", (g)->c->errors, (g)->c->what);     \
        client_close((g)->c);                                                                        \
        CHECKF((g)->fake.violations == 0, "engine: %s", (g)->fake.what);                             \
        CHECKF((g)->fake.n_free == (g)->fo.info.n_pages, "%u pages lost",                            \
               (g)->fo.info.n_pages - (g)->fake.n_free);                                             \
        fake_close(&(g)->fake);                                                                      \
        free(g);                                                                                     \
    } while (0)

static inline struct job *prompt_job(uint32_t seed, uint32_t n_prompt, uint32_t max_tokens) {
    int32_t t[LONG];
    uint64_t state = seed;

    for (uint32_t i = 0; i < n_prompt; i++)
        t[i] = (int32_t)(rnd(&state) % VOCAB);
    return job_new(t, n_prompt, max_tokens);
}

static inline struct sched_stats stats_of(const struct rig *g) {
    struct sched_stats st;

    sched_stats(g->c->s, &st);
    return st;
}

/* Polls until cond or 10 s. */
#define WAIT_FOR(g, cond)                                                                            \
    do {                                                                                             \
        uint64_t end_ = clock_mono_ns() + 10000000000u;                                              \
        while (!(cond)) {                                                                            \
            CHECKF(clock_mono_ns() < end_, "waited 10 s");                                           \
            client_pump((g)->c, 1000000);                                                            \
        }                                                                                            \
    } while (0)

/* Lets n steps end; E is then on its way into the next one, or rests. */
#define STEPS(g, n)                                                                                  \
    do {                                                                                             \
        atomic_store(&(g)->gate.permits, n);                                                         \
        WAIT_FOR(g, atomic_load(&(g)->gate.permits) == 0);                                           \
    } while (0)

static inline void gate_shut(struct rig *g) {
    atomic_store(&g->gate.shut, true);
}

static inline void gate_open(struct rig *g) {
    atomic_store(&g->gate.shut, false);
}

#endif
