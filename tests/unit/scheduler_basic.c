/* SPDX-License-Identifier: Apache-2.0
 *
 * What the scheduler promises, one case each, on the fake engine: order, cancel in every state, limits, errors, a late
 * reader, prefix reuse, fairness. Random mixes of all of it are in scheduler_property.c. */
#include "test.h"

#include <pthread.h>

#include "base/alloc.h"
#include "fake_engine.h"
#include "sched_client.h"

enum { PAGE = 8, VOCAB = 100, LONG = 1600 };

/* Holds E inside its step until the test permits it to end, so that what happens when does not depend on the clock. */
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

static struct rig *rig_new(void) {
    struct rig *g = calloc(1, sizeof *g);

    g->fo = (struct fake_opts){
        .info = {.n_ctx = 4096, .n_seqs = 8, .page_tokens = PAGE, .n_pages = 2048, .max_batch_tokens = 256, .n_vocab = VOCAB},
        .eos = -1,
    };
    g->so = (struct sched_opts){.ops = &fake_ops, .max_running = 4, .max_queued = 100, .batch_tokens = 64, .prefix_cache = true};
    return g;
}

static void at_gate(void *ctx, const struct batch *b) {
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

static void rig_open(struct rig *g) {
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

static struct job *prompt_job(uint32_t seed, uint32_t n_prompt, uint32_t max_tokens) {
    int32_t t[LONG];
    uint64_t state = seed;

    for (uint32_t i = 0; i < n_prompt; i++)
        t[i] = (int32_t)(rnd(&state) % VOCAB);
    return job_new(t, n_prompt, max_tokens);
}

static struct sched_stats stats_of(const struct rig *g) {
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

static void gate_shut(struct rig *g) {
    atomic_store(&g->gate.shut, true);
}

static void gate_open(struct rig *g) {
    atomic_store(&g->gate.shut, false);
}

TEST(one_request) {
    struct rig *g = rig_new();
    struct job *j = prompt_job(1, 20, 10);
    struct kern_sampled out;

    rig_open(g);
    job_want_logprobs(j);
    CHECK(client_submit(g->c, j) == ST_OK);
    CHECK(client_drain(g->c));
    CHECK(j->finish == FINISH_LENGTH && j->n_got == 10 && j->cached == 0);
    fake_draw(&g->fo, j->prompt, 20, &j->r.sample, 0, &out);
    CHECK(j->got[0] == out.id && j->logprobs[0].logprob == out.logprob);
    job_free(j);
    RIG_CLOSE(g);
}

/* L learns of every step's tokens before the next step ends, and is not woken more often than that. */
TEST(one_notify_per_step) {
    struct rig *g = rig_new();
    struct job *j = prompt_job(1, 8, 30), *k = prompt_job(2, 8, 30);

    rig_open(g);
    gate_shut(g);
    CHECK(client_submit(g->c, j) == ST_OK && client_submit(g->c, k) == ST_OK);
    for (uint32_t i = 0; i < 20; i++) {
        atomic_store(&g->gate.permits, 1);
        CHECK(park_wait(&g->c->park, 5000000000u));
        CHECK(client_pump(g->c, 0) > 0 && j->n_got == i + 1);
    }
    CHECK(g->c->n_notifies <= g->fake.n_steps);
    gate_open(g);
    CHECK(client_drain(g->c));
    job_free(j);
    job_free(k);
    RIG_CLOSE(g);
}

TEST(prompt_only_with_logprobs) {
    struct rig *g = rig_new();
    struct job *j = prompt_job(1, 100, 0), *again = prompt_job(1, 100, 0), *one = prompt_job(2, 1, 0);

    g->so.batch_tokens = 7; /* chunk borders everywhere */
    rig_open(g);
    job_want_prompt_logprobs(j);
    job_want_prompt_logprobs(again);
    job_want_prompt_logprobs(one);
    CHECK(client_submit(g->c, j) == ST_OK && client_submit(g->c, one) == ST_OK);
    CHECK(client_drain(g->c));
    CHECK(client_submit(g->c, again) == ST_OK); /* its prompt is cached now, and must be computed all the same */
    CHECK(client_drain(g->c));
    CHECK(j->finish == FINISH_LENGTH && j->n_got == 0 && one->finish == FINISH_LENGTH && again->cached == 0);
    for (uint32_t i = 0; i + 1 < 100; i++) {
        CHECK(j->prompt_logprobs[i].logprob == fake_prompt_logprob(j->prompt, i + 1, j->prompt[i + 1]));
        CHECK(again->prompt_logprobs[i].logprob == j->prompt_logprobs[i].logprob);
    }
    CHECK(stats_of(g).output_tokens == 0);
    job_free(j);
    job_free(again);
    job_free(one);
    RIG_CLOSE(g);
}

TEST(submit_refuses_what_cannot_run) {
    struct rig *g = rig_new();
    struct job *j = prompt_job(1, 20, 10), *big;
    struct kern_logit_bias bias = {VOCAB, 1};

    g->fo.info.n_pages = 10; /* 80 positions */
    g->fo.info.n_ctx = 100;
    rig_open(g);
    j->r.max_tokens = 81;
    CHECK(sched_submit(g->c->s, &j->r) == ST_INVALID); /* context */
    j->r.max_tokens = UINT32_MAX;
    CHECK(sched_submit(g->c->s, &j->r) == ST_INVALID);
    j->r.max_tokens = 62;
    CHECK(sched_submit(g->c->s, &j->r) == ST_INVALID); /* KV: 81 positions; the last token needs none */
    j->r.max_tokens = 10;
    j->r.n_prompt = 0;
    CHECK(sched_submit(g->c->s, &j->r) == ST_INVALID);
    j->r.n_prompt = 20;
    j->prompt[3] = VOCAB;
    CHECK(sched_submit(g->c->s, &j->r) == ST_INVALID);
    j->prompt[3] = -1;
    CHECK(sched_submit(g->c->s, &j->r) == ST_INVALID);
    j->prompt[3] = 0;
    j->r.sample.bias = &bias;
    j->r.sample.n_bias = 1;
    CHECK(sched_submit(g->c->s, &j->r) == ST_INVALID);
    big = prompt_job(1, 20, 61); /* exactly the whole KV */
    CHECK(client_submit(g->c, big) == ST_OK);
    CHECK(client_drain(g->c) && big->n_got == 61);
    job_free(j);
    job_free(big);
    RIG_CLOSE(g);
}

TEST(queue_is_bounded) {
    struct rig *g = rig_new();
    struct job *jobs[6];

    g->so.max_running = 2;
    g->so.max_queued = 3;
    g->fo.step_us = 500;
    rig_open(g);
    for (uint32_t i = 0; i < 6; i++) {
        jobs[i] = prompt_job(i, 10, 20);
        CHECK(client_submit(g->c, jobs[i]) == (i < 5 ? ST_OK : ST_QUEUE_FULL));
    }
    CHECK(sched_retry_after_s(g->c->s) >= 1);
    CHECK(client_drain(g->c));
    CHECK(client_submit(g->c, jobs[5]) == ST_OK);
    CHECK(client_drain(g->c));
    for (uint32_t i = 0; i < 6; i++) {
        CHECK(jobs[i]->n_got == 20);
        job_free(jobs[i]);
    }
    RIG_CLOSE(g);
}

TEST(retry_after_follows_the_drain_rate) {
    struct rig *g = rig_new();
    struct job *jobs[40];

    g->so.max_running = 1;
    g->fo.step_us = 20000;
    rig_open(g);
    CHECK(sched_retry_after_s(g->c->s) == 1);
    for (uint32_t i = 0; i < 40; i++) {
        jobs[i] = prompt_job(i, 4, 10);
        CHECK(client_submit(g->c, jobs[i]) == ST_OK);
    }
    WAIT_FOR(g, jobs[1]->done); /* 10 steps of 20 ms each: 0.2 s per request, 38 waiting */
    uint32_t s = sched_retry_after_s(g->c->s);
    CHECKF(s >= 4 && s <= 60, "%u s", s);
    sched_quiesce(g->c->s);
    for (uint32_t i = 0; i < 40; i++)
        jobs[i]->cancel_sent = true;
    CHECK(client_drain(g->c));
    for (uint32_t i = 0; i < 40; i++)
        job_free(jobs[i]);
    RIG_CLOSE(g);
}

/* ---- cancel ---- */

/* E is held inside a step: it must end the request before it begins another one after that. */
static void cancel_now(struct rig *g, struct job *j, const char *test_name_) {
    uint64_t before;

    WAIT_FOR(g, atomic_load(&g->gate.waiting));
    before = g->fake.n_steps;
    client_cancel(g->c, j);
    STEPS(g, 1);
    WAIT_FOR(g, j->done);
    CHECK(j->finish == FINISH_CANCELLED);
    CHECKF(g->fake.n_steps - before <= 1, "%lu steps", (unsigned long)(g->fake.n_steps - before));
}

TEST(cancel_in_every_state) {
    struct rig *g = rig_new();
    struct job *decode = prompt_job(1, 8, 3000), *prefill = prompt_job(2, LONG, 10);
    struct job *queued = prompt_job(3, 8, 10), *unseen = prompt_job(4, 8, 10);

    g->so.max_running = 2;
    g->so.batch_tokens = 4;
    rig_open(g);
    gate_shut(g);
    CHECK(client_submit(g->c, decode) == ST_OK);
    STEPS(g, 4);
    WAIT_FOR(g, decode->n_got >= 2);
    CHECK(client_submit(g->c, prefill) == ST_OK);
    CHECK(client_submit(g->c, queued) == ST_OK);
    STEPS(g, 2);
    WAIT_FOR(g, stats_of(g).n_running == 2 && stats_of(g).n_queued == 1 && g->fake.n_steps == 7);
    cancel_now(g, queued, test_name_);
    CHECK(client_submit(g->c, unseen) == ST_OK); /* E is in a step and has not looked */
    cancel_now(g, unseen, test_name_);
    CHECK(!prefill->started);
    cancel_now(g, prefill, test_name_);
    cancel_now(g, decode, test_name_);
    CHECK(!prefill->started && decode->n_got > 2 && decode->n_got < 20);
    CHECK(stats_of(g).n_cancelled == 4 && g->c->n_live == 0);
    gate_open(g);
    job_free(decode);
    job_free(prefill);
    job_free(queued);
    job_free(unseen);
    RIG_CLOSE(g);
}

TEST(cancel_while_preempted) {
    struct rig *g = rig_new();
    struct job *a = prompt_job(1, 8, 380), *b = prompt_job(2, 8, 380);

    g->fo.info.n_pages = 49; /* together they need twice that */
    rig_open(g);
    gate_shut(g);
    CHECK(client_submit(g->c, a) == ST_OK && client_submit(g->c, b) == ST_OK);
    for (int i = 0; i < 380 && stats_of(g).n_preempted == 0; i++)
        STEPS(g, 1);
    CHECK(stats_of(g).n_preempted == 1 && b->n_got > 100 && !b->done);
    cancel_now(g, b, test_name_);
    gate_open(g);
    CHECK(client_drain(g->c) && a->n_got == 380);
    job_free(a);
    job_free(b);
    RIG_CLOSE(g);
}

TEST(preempted_request_goes_on_as_if_nothing_happened) {
    struct rig *g = rig_new();
    struct job *jobs[4];

    g->fo.info.n_pages = 60;
    rig_open(g);
    gate_shut(g);
    for (uint32_t i = 0; i < 4; i++) {
        int32_t t[400];

        jobs[i] = prompt_job(i, 20, 300);
        jobs[i]->r.sample.temperature = (float)(i % 2);
        memcpy(t, jobs[i]->prompt, 20 * sizeof *t);
        jobs[i]->want = calloc(300, sizeof *jobs[i]->want);
        for (uint32_t n = 0; n < 300; n++) {
            struct kern_sampled out;

            fake_draw(&g->fo, t, 20 + n, &jobs[i]->r.sample, n, &out);
            t[20 + n] = jobs[i]->want[n] = out.id;
        }
        jobs[i]->n_want = 300;
        jobs[i]->want_finish = FINISH_LENGTH;
        job_want_logprobs(jobs[i]);
        job_want_prompt_logprobs(jobs[i]);
        CHECK(client_submit(g->c, jobs[i]) == ST_OK);
    }
    gate_open(g);
    CHECK(client_drain(g->c));
    CHECK(stats_of(g).n_preempted >= 3 && stats_of(g).n_finished_length == 4);
    for (uint32_t i = 0; i < 4; i++)
        job_free(jobs[i]);
    RIG_CLOSE(g);
}

/* Admitting the second would take the page that the first needs next, and preempt the second at once. */
TEST(admission_leaves_room_to_grow) {
    struct rig *g = rig_new();
    struct job *a = prompt_job(1, 8, 20), *b = prompt_job(2, 72, 5);

    g->fo.info.n_pages = 10;
    rig_open(g);
    gate_shut(g);
    CHECK(client_submit(g->c, a) == ST_OK);
    STEPS(g, 1);
    CHECK(client_submit(g->c, b) == ST_OK);
    gate_open(g);
    CHECK(client_drain(g->c));
    CHECK(stats_of(g).n_preempted == 0 && a->n_got == 20 && b->n_got == 5);
    job_free(a);
    job_free(b);
    RIG_CLOSE(g);
}

/* ---- a late reader ---- */

TEST(late_poll_loses_nothing) {
    struct rig *g = rig_new();
    struct job *j = prompt_job(1, 8, 3000), *k = prompt_job(2, 8, 3000);

    g->so.max_running = 2;
    rig_open(g);
    CHECK(client_submit(g->c, j) == ST_OK && client_submit(g->c, k) == ST_OK);
    for (int i = 0; i < 10000 && stats_of(g).n_ring_waits == 0; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    CHECK(stats_of(g).n_ring_waits > 0);
    CHECK(client_drain(g->c));
    CHECK(j->n_got == 3000 && k->n_got == 3000);
    job_free(j);
    job_free(k);
    RIG_CLOSE(g);
}

TEST(cancel_and_quiesce_do_not_wait_for_a_poll) {
    struct rig *g = rig_new();
    struct job *j = prompt_job(1, 8, 3000), *k = prompt_job(2, 8, 3000), *queued = prompt_job(3, 8, 30);

    g->so.max_running = 2;
    g->so.max_queued = 1;
    rig_open(g);
    CHECK(client_submit(g->c, j) == ST_OK && client_submit(g->c, k) == ST_OK && client_submit(g->c, queued) == ST_OK);
    for (int i = 0; i < 10000 && stats_of(g).n_ring_waits == 0; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    client_cancel(g->c, j);
    for (int i = 0; i < 10000 && stats_of(g).n_cancelled == 0; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    CHECK(stats_of(g).n_cancelled >= 1);
    k->cancel_sent = queued->cancel_sent = true;
    sched_quiesce(g->c->s);
    CHECK(client_submit(g->c, j) == ST_SHUTDOWN);
    while (client_pump(g->c, 0) > 0)
        ;
    CHECK(g->c->n_live == 0);
    job_free(j);
    job_free(k);
    job_free(queued);
    RIG_CLOSE(g);
}

/* A request submitted while E waits for room in the ring, and nothing else to wake it afterwards. */
TEST(wake_up_during_a_ring_wait_is_not_lost) {
    struct rig *g = rig_new();
    struct job *j = prompt_job(1, 8, 1000), *k = prompt_job(2, 8, 5);

    g->so.max_running = 1;
    rig_open(g);
    CHECK(client_submit(g->c, j) == ST_OK);
    for (int i = 0; i < 10000 && stats_of(g).n_ring_waits == 0; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    CHECK(client_submit(g->c, k) == ST_OK);
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    CHECK(client_drain(g->c));
    CHECK(j->n_got == 1000 && k->n_got == 5);
    job_free(j);
    job_free(k);
    RIG_CLOSE(g);
}

/* ---- order ---- */

struct watch {
    uint32_t n_prompt_decode, n_prompt_prefill; /* tell the two kinds apart */
    bool decoding;
    uint32_t n_decode, n_steps_without_decode, n_prefill_tokens, n_steps_without_prefill;
    uint32_t n_prompt_computed;
};

static void watch_step(void *ctx, const struct batch *b) {
    struct watch *w = ctx;
    bool decode = false, prefill = false;

    for (uint32_t i = 0; i < b->n_items; i++) {
        const struct batch_item *it = &b->items[i];

        decode |= it->n_prompt == w->n_prompt_decode;
        if (it->n_prompt == w->n_prompt_prefill && it->pos < it->n_prompt) {
            prefill = true;
            w->n_prefill_tokens += it->n_tokens;
        }
        if (it->pos < it->n_prompt)
            w->n_prompt_computed += it->n_tokens;
    }
    w->n_decode += decode;
    if (w->n_decode > 0 && w->n_decode < 400)
        w->n_steps_without_decode += !decode;
    if (w->n_prefill_tokens > 0 && w->n_prefill_tokens < w->n_prompt_prefill)
        w->n_steps_without_prefill += !prefill;
}

TEST(long_prefill_does_not_stop_decode) {
    struct rig *g = rig_new();
    struct watch w = {.n_prompt_decode = 5, .n_prompt_prefill = LONG};
    struct job *decode = prompt_job(1, 5, 400), *prefill = prompt_job(2, LONG, 5);

    g->on_step = watch_step;
    g->on_step_ctx = &w;
    g->so.batch_tokens = 8;
    rig_open(g);
    gate_shut(g);
    CHECK(client_submit(g->c, decode) == ST_OK);
    STEPS(g, 2);
    CHECK(client_submit(g->c, prefill) == ST_OK);
    gate_open(g);
    CHECK(client_drain(g->c));
    CHECK(w.n_prefill_tokens == LONG);
    CHECKF(w.n_steps_without_decode == 0, "%u steps", w.n_steps_without_decode);
    CHECKF(w.n_steps_without_prefill == 0, "%u steps", w.n_steps_without_prefill);
    job_free(decode);
    job_free(prefill);
    RIG_CLOSE(g);
}

TEST(decode_that_fills_the_budget_does_not_stop_prefill) {
    struct rig *g = rig_new();
    struct watch w = {.n_prompt_decode = 5, .n_prompt_prefill = 200};
    struct job *jobs[5];

    g->on_step = watch_step;
    g->on_step_ctx = &w;
    g->so.max_running = 5;
    g->so.batch_tokens = 4;
    rig_open(g);
    gate_shut(g);
    for (uint32_t i = 0; i < 4; i++) {
        jobs[i] = prompt_job(i, 5, 1000);
        CHECK(client_submit(g->c, jobs[i]) == ST_OK);
    }
    STEPS(g, 10);
    jobs[4] = prompt_job(9, 200, 5);
    CHECK(client_submit(g->c, jobs[4]) == ST_OK);
    gate_open(g);
    WAIT_FOR(g, jobs[4]->done);
    CHECKF(w.n_steps_without_prefill == 0, "%u steps", w.n_steps_without_prefill);
    for (uint32_t i = 0; i < 4; i++) {
        CHECK(jobs[i]->n_got > 100); /* 200 steps, in three of four of which each had its turn */
        if (!jobs[i]->done)
            client_cancel(g->c, jobs[i]);
    }
    CHECK(client_drain(g->c));
    for (uint32_t i = 0; i < 5; i++)
        job_free(jobs[i]);
    RIG_CLOSE(g);
}

TEST(crowd_of_one_group_does_not_block_another) {
    struct rig *g = rig_new();
    struct job *crowd[60], *one = prompt_job(99, 10, 5);
    uint32_t before = 0, after = 0;

    g->so.max_running = 2;
    rig_open(g);
    gate_shut(g);
    for (uint32_t i = 0; i < 60; i++) {
        crowd[i] = prompt_job(i, 10, 5);
        crowd[i]->r.group = 1;
        CHECK(client_submit(g->c, crowd[i]) == ST_OK);
    }
    STEPS(g, 14);
    for (uint32_t i = 0; i < 60; i++)
        before += crowd[i]->done;
    CHECK(before > 1 && before < 10);
    one->r.group = 2;
    CHECK(client_submit(g->c, one) == ST_OK);
    gate_open(g);
    CHECK(client_drain(g->c));
    for (uint32_t i = 0; i < 60; i++) {
        after += crowd[i]->done_ns < one->done_ns;
        job_free(crowd[i]);
    }
    /* the two that ran, one that ends in the same step, and one that had its turn before */
    CHECKF(after - before <= 4, "overtaken by %u of the crowd", after - before);
    job_free(one);
    RIG_CLOSE(g);
}

/* ---- prefix reuse ---- */

TEST(prefix_is_reused_from_cached_and_running) {
    struct rig *g = rig_new();
    struct job *a = prompt_job(1, 100, 10), *b = prompt_job(1, 100, 500), *c = prompt_job(1, 100, 10);
    struct job *d = prompt_job(1, 100, 10), *e = prompt_job(1, 96, 10);

    g->fo.step_us = 50;
    rig_open(g);
    CHECK(client_submit(g->c, a) == ST_OK && client_drain(g->c));
    CHECK(client_submit(g->c, b) == ST_OK);
    WAIT_FOR(g, b->n_got > 0);
    CHECK(client_submit(g->c, c) == ST_OK);
    d->r.no_prefix_cache = true;
    CHECK(client_submit(g->c, d) == ST_OK);
    CHECK(client_submit(g->c, e) == ST_OK); /* its last token must be computed: 88, not 96 */
    CHECK(client_drain(g->c));
    CHECK(a->cached == 0 && b->cached == 96 && c->cached == 96 && d->cached == 0 && e->cached == 88);
    CHECK(memcmp(a->got, c->got, 10 * sizeof *a->got) == 0 && memcmp(a->got, d->got, 10 * sizeof *a->got) == 0);
    CHECK(memcmp(a->got, b->got, 10 * sizeof *a->got) == 0);
    CHECK(stats_of(g).cached_tokens == 96 + 96 + 88);
    job_free(a);
    job_free(b);
    job_free(c);
    job_free(d);
    job_free(e);
    RIG_CLOSE(g);
}

TEST(choices_of_one_prompt_compute_it_once) {
    struct rig *g = rig_new();
    struct watch w = {.n_prompt_decode = 1, .n_prompt_prefill = 2};
    struct job *jobs[4];

    g->on_step = watch_step;
    g->on_step_ctx = &w;
    g->so.batch_tokens = 256;
    rig_open(g);
    for (uint32_t i = 0; i < 4; i++) {
        jobs[i] = prompt_job(1, 801, 20);
        jobs[i]->r.group = 5;
        jobs[i]->r.sample.temperature = 1;
        jobs[i]->r.sample.seed = i;
        CHECK(client_submit(g->c, jobs[i]) == ST_OK);
    }
    CHECK(client_drain(g->c));
    CHECKF(w.n_prompt_computed == 804, "%u prompt tokens computed", w.n_prompt_computed); /* the last token of each */
    for (uint32_t i = 0; i < 4; i++) {
        CHECK(jobs[i]->n_got == 20);
        job_free(jobs[i]);
    }
    RIG_CLOSE(g);
}

TEST(least_recently_used_prefix_goes_first) {
    struct rig *g = rig_new();
    static const uint32_t order[] = {1, 2, 1, 3, 1, 2}; /* two cached places: 3 evicts 2 */
    static const uint32_t want[] = {0, 0, 32, 0, 32, 0};

    g->so.max_running = 6;
    rig_open(g);
    for (int i = 0; i < 6; i++) {
        struct job *j = prompt_job(order[i], 40, 2);

        CHECK(client_submit(g->c, j) == ST_OK && client_drain(g->c));
        CHECKF(j->cached == want[i], "request %d: %u tokens cached", i, j->cached);
        job_free(j);
    }
    CHECK(stats_of(g).n_cached_seqs == 2);
    RIG_CLOSE(g);
}

TEST(cancelled_prefill_caches_only_what_it_computed) {
    struct rig *g = rig_new();
    struct job *j = prompt_job(1, LONG, 10), *k;

    g->so.batch_tokens = 16;
    rig_open(g);
    gate_shut(g);
    CHECK(client_submit(g->c, j) == ST_OK);
    STEPS(g, 3);
    client_cancel(g->c, j);
    gate_open(g);
    CHECK(client_drain(g->c));
    WAIT_FOR(g, stats_of(g).n_cached_seqs == 1);
    CHECK(g->fake.n_free >= 2048 - 8 && g->fake.n_free <= 2048 - 6); /* 3 or 4 steps of two pages; 200 were reserved */
    k = prompt_job(1, 24, 2);
    CHECK(client_submit(g->c, k) == ST_OK && client_drain(g->c));
    CHECK(k->cached == 16);
    job_free(j);
    job_free(k);
    RIG_CLOSE(g);
}

/* ---- errors and resources ---- */

TEST(engine_failure_ends_everything_with_an_error) {
    struct rig *g = rig_new();
    struct job *jobs[10];

    g->fo.fail_at_step = 12;
    g->so.max_running = 3;
    rig_open(g);
    gate_shut(g);
    for (uint32_t i = 0; i < 10; i++) {
        jobs[i] = prompt_job(i, 10, i == 0 ? 3 : 100);
        CHECK(client_submit(g->c, jobs[i]) == ST_OK);
    }
    gate_open(g);
    CHECK(client_drain(g->c));
    CHECK(jobs[0]->finish == FINISH_LENGTH);
    for (uint32_t i = 1; i < 10; i++)
        CHECK(jobs[i]->finish == FINISH_ERROR && jobs[i]->status == ST_INTERNAL);
    CHECK(stats_of(g).engine_failed && stats_of(g).n_failed == 9);
    CHECK(client_submit(g->c, jobs[0]) == ST_INTERNAL);
    CHECKF(g->c->errors == 0, "%s", g->c->what);
    client_close(g->c);
    CHECKF(g->fake.violations == 0, "engine: %s", g->fake.what);
    for (uint32_t i = 0; i < 10; i++)
        job_free(jobs[i]);
    fake_close(&g->fake);
    free(g);
}

TEST(steps_allocate_nothing) {
    struct rig *g = rig_new();
    struct job *jobs[4];
    struct mem_stats start, before, after;

    mem_stats(&start);
    g->fo.step_us = 20;
    rig_open(g);
    for (uint32_t i = 0; i < 4; i++) {
        jobs[i] = prompt_job(i, 300, 200);
        job_want_logprobs(jobs[i]);
        CHECK(client_submit(g->c, jobs[i]) == ST_OK);
    }
    mem_stats(&before);
    CHECK(client_drain(g->c));
    mem_stats(&after);
    CHECK(after.n_calls == before.n_calls);
    CHECK(stats_of(g).n_steps > 200);
    for (uint32_t i = 0; i < 4; i++)
        job_free(jobs[i]);
    RIG_CLOSE(g);
    mem_stats(&after);
    CHECK(after.n_live == start.n_live && after.mapped_bytes == start.mapped_bytes);
}

TEST(out_of_memory_is_an_error) {
    struct rig *g = rig_new();
    struct job *j = prompt_job(1, 10, 10);
    struct sched *s = NULL;
    struct err e = {0};
    struct mem_stats start, st;
    int status = ST_NOMEM;

    mem_stats(&start);
    fake_open(&g->fake, &g->fo);
    g->so.engine = &g->fake;
    for (uint64_t n = 0; status != ST_OK; n++) {
        mem_fail_after(n);
        status = sched_start(&s, &g->so, &e);
        mem_fail_after(UINT64_MAX);
        CHECK(status == ST_OK || (status == ST_NOMEM && e.text[0]));
        mem_stats(&st);
        CHECK(status == ST_OK || (st.n_live == start.n_live && st.mapped_bytes == start.mapped_bytes));
        CHECK(n < 100);
    }
    mem_fail_after(0);
    CHECK(sched_submit(s, &j->r) == ST_NOMEM);
    mem_fail_after(UINT64_MAX);
    sched_stop(s);
    mem_stats(&st);
    CHECK(st.n_live == start.n_live && st.mapped_bytes == start.mapped_bytes);
    job_free(j);
    fake_close(&g->fake);
    free(g);
}

TEST(bad_options_are_named) {
    struct rig *g = rig_new();
    struct sched_opts o;
    struct sched *s;
    struct err e;

    fake_open(&g->fake, &g->fo);
    g->so.engine = &g->fake;
    o = g->so, o.max_running = 9;
    CHECK(sched_start(&s, &o, &e) == ST_INVALID && strstr(e.text, "max_running") && strstr(e.text, "9"));
    o = g->so, o.max_running = 0;
    CHECK(sched_start(&s, &o, &e) == ST_INVALID && strstr(e.text, "max_running"));
    o = g->so, o.batch_tokens = 257;
    CHECK(sched_start(&s, &o, &e) == ST_INVALID && strstr(e.text, "batch_tokens"));
    o = g->so, o.batch_tokens = 0;
    CHECK(sched_start(&s, &o, &e) == ST_INVALID && strstr(e.text, "batch_tokens"));
    o = g->so, o.max_queued = 0;
    CHECK(sched_start(&s, &o, &e) == ST_INVALID && strstr(e.text, "max_queued"));
    fake_close(&g->fake);
    free(g);
}

struct reader { const struct sched *s; atomic_bool stop; uint64_t n_output_last; bool backwards; };

static void *read_stats(void *arg) {
    struct reader *r = arg;

    while (!atomic_load(&r->stop)) {
        struct sched_stats st;

        sched_stats(r->s, &st);
        r->backwards |= st.output_tokens < r->n_output_last || sched_retry_after_s(r->s) < 1;
        r->n_output_last = st.output_tokens;
    }
    return NULL;
}

TEST(stats_from_another_thread) {
    struct rig *g = rig_new();
    struct reader r = {0};
    pthread_t thread;
    struct job *jobs[20];

    rig_open(g);
    r.s = g->c->s;
    pthread_create(&thread, NULL, read_stats, &r);
    for (uint32_t i = 0; i < 20; i++) {
        jobs[i] = prompt_job(i, 30, 50);
        CHECK(client_submit(g->c, jobs[i]) == ST_OK);
    }
    CHECK(client_drain(g->c));
    atomic_store(&r.stop, true);
    pthread_join(thread, NULL);
    CHECK(!r.backwards && stats_of(g).output_tokens == 1000 && stats_of(g).prompt_tokens == 600);
    for (uint32_t i = 0; i < 20; i++)
        job_free(jobs[i]);
    RIG_CLOSE(g);
}

int main(void) {
    RUN(one_request);
    RUN(one_notify_per_step);
    RUN(prompt_only_with_logprobs);
    RUN(submit_refuses_what_cannot_run);
    RUN(queue_is_bounded);
    RUN(retry_after_follows_the_drain_rate);
    RUN(cancel_in_every_state);
    RUN(cancel_while_preempted);
    RUN(preempted_request_goes_on_as_if_nothing_happened);
    RUN(admission_leaves_room_to_grow);
    RUN(late_poll_loses_nothing);
    RUN(cancel_and_quiesce_do_not_wait_for_a_poll);
    RUN(wake_up_during_a_ring_wait_is_not_lost);
    RUN(long_prefill_does_not_stop_decode);
    RUN(decode_that_fills_the_budget_does_not_stop_prefill);
    RUN(crowd_of_one_group_does_not_block_another);
    RUN(prefix_is_reused_from_cached_and_running);
    RUN(choices_of_one_prompt_compute_it_once);
    RUN(least_recently_used_prefix_goes_first);
    RUN(cancelled_prefill_caches_only_what_it_computed);
    RUN(engine_failure_ends_everything_with_an_error);
    RUN(steps_allocate_nothing);
    RUN(out_of_memory_is_an_error);
    RUN(bad_options_are_named);
    RUN(stats_from_another_thread);
    return test_failed_;
}
