/* SPDX-License-Identifier: Apache-2.0
 *
 * What the scheduler promises about one request, on the fake engine, one case each: limits, notification, cancel in every
 * state, preemption, a late reader. Random mixes of all of it are in scheduler_property.c. */
#include "sched_rig.h"

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
    CHECK(sched_retry_after_s(g->c->s, 0, 0) >= 1);
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
    CHECK(sched_retry_after_s(g->c->s, 0, 0) == 1);
    for (uint32_t i = 0; i < 40; i++) {
        jobs[i] = prompt_job(i, 4, 10);
        CHECK(client_submit(g->c, jobs[i]) == ST_OK);
    }
    WAIT_FOR(g, jobs[1]->done); /* 10 steps of 20 ms each: 0.2 s per request, 38 waiting */
    uint32_t s = sched_retry_after_s(g->c->s, 0, 0);
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
    return test_failed_;
}
