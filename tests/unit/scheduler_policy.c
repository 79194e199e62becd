/* SPDX-License-Identifier: Apache-2.0
 *
 * What the scheduler promises about many requests and about itself, on the fake engine, one case each: who goes first,
 * prefix reuse, a failing engine, memory. */
#include "sched_rig.h"

#include <pthread.h>

#include "base/alloc.h"

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
        r->backwards |= st.output_tokens < r->n_output_last || sched_retry_after_s(r->s, 0, 0) < 1;
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

/* ---- an expert that cannot be read ---- */

static bool third_token_fails(void *ctx, const struct batch_item *it) {
    (void)ctx;
    return it->n_prompt == 40 && it->sample && it->counter == 2;
}

static void keep_error(struct client *c, const struct event *ev) {
    if (ev->type == EVENT_DONE && ev->finish == FINISH_ERROR)
        *(struct event *)c->ctx = *ev;
}

/* The greedy answer when nothing goes wrong. */
static void expect_answer(struct job *j, const struct fake_opts *o) {
    int32_t text[LONG];
    struct kern_sampled drawn;

    memcpy(text, j->prompt, j->r.n_prompt * sizeof *text);
    j->n_want = j->r.max_tokens;
    j->want = calloc(j->n_want, sizeof *j->want);
    j->want_finish = FINISH_LENGTH;
    for (uint32_t i = 0; i < j->n_want; i++) {
        fake_draw(o, text, j->r.n_prompt + i, &j->r.sample, i, &drawn);
        text[j->r.n_prompt + i] = j->want[i] = drawn.id;
    }
}

/* Ends the one request with what it needs to know; the others get their whole answer, and nobody starts from its KV. */
TEST(unreadable_expert_ends_one_request) {
    struct rig *g = rig_new();
    struct job *bad, *good[3], *again;
    struct event last = {0};

    g->fo.fails = third_token_fails;
    rig_open(g);
    gate_shut(g);
    bad = prompt_job(1, 40, 50);
    CHECK(client_submit(g->c, bad) == ST_OK);
    for (uint32_t i = 0; i < 3; i++) {
        good[i] = prompt_job(2 + i, 20 + i, 30);
        expect_answer(good[i], &g->fo);
        CHECK(client_submit(g->c, good[i]) == ST_OK);
    }
    g->c->on_event = keep_error;
    g->c->ctx = &last;
    gate_open(g);
    CHECK(client_drain(g->c));
    CHECK(bad->finish == FINISH_ERROR && bad->status == ST_IO && bad->n_got == 2);
    CHECK(last.layer == FAKE_LAYER && last.expert == FAKE_EXPERT);
    CHECK(stats_of(g).n_failed == 1 && !stats_of(g).engine_failed && stats_of(g).n_finished_length == 3);
    again = prompt_job(1, 40, 2); /* the same prompt, ended before the failure */
    CHECK(client_submit(g->c, again) == ST_OK);
    CHECK(client_drain(g->c));
    CHECK(again->finish == FINISH_LENGTH && again->cached == 0);
    job_free(bad);
    job_free(again);
    for (uint32_t i = 0; i < 3; i++)
        job_free(good[i]);
    RIG_CLOSE(g);
}

/* A request adds up what the store did in its steps, prompt included. */
TEST(experts_are_counted_per_request) {
    struct rig *g = rig_new();
    struct job *j = prompt_job(1, 100, 5);

    g->fo.experts = (struct step_experts){.hits = 3, .misses = 2, .load_bytes = 1000, .stall_ns = 7};
    rig_open(g);
    CHECK(client_submit(g->c, j) == ST_OK);
    CHECK(client_drain(g->c));
    uint64_t n = stats_of(g).n_steps; /* two of prefill, four of decode */
    CHECK(n == 6 && j->r.experts.hits == 3 * n && j->r.experts.misses == 2 * n);
    CHECK(j->r.experts.load_bytes == 1000 * n && j->r.experts.stall_ns == 7 * n);
    job_free(j);
    RIG_CLOSE(g);
}

int main(void) {
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
    RUN(unreadable_expert_ends_one_request);
    RUN(experts_are_counted_per_request);
    return test_failed_;
}
