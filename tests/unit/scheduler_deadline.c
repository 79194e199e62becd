/* SPDX-License-Identifier: Apache-2.0
 *
 * Deadlines and priorities on the fake engine: nothing is computed for those whose time is over, those that run end with what
 * they have; the more urgent goes first, passes others at no place, and is the last to lose its KV. */
#include "sched_rig.h"

static const uint64_t MS = 1000000;

struct seen { uint32_t n_prompt; uint32_t n_computed; }; /* tokens of prompts of that length */

static void see(void *ctx, const struct batch *b) {
    struct seen *s = ctx;

    for (uint32_t i = 0; i < b->n_items; i++)
        if (b->items[i].n_prompt == s->n_prompt)
            s->n_computed += b->items[i].n_tokens;
}

TEST(nothing_is_computed_for_the_late) {
    struct rig *g = rig_new();
    struct seen seen = {.n_prompt = 33};
    struct job *runs = prompt_job(1, 10, 50), *late[20], *patient = prompt_job(3, 20, 5);

    g->on_step = see;
    g->on_step_ctx = &seen;
    g->so.max_running = 1;
    g->fo.step_us = 1000;
    rig_open(g);
    CHECK(client_submit(g->c, runs) == ST_OK);
    for (uint32_t i = 0; i < 20; i++) {
        late[i] = prompt_job(2 + i, 33, 5);
        late[i]->r.deadline_ns = clock_mono_ns() + (1 + i) * MS;
        CHECK(client_submit(g->c, late[i]) == ST_OK);
    }
    patient->r.deadline_ns = clock_mono_ns() + 60000 * MS;
    CHECK(client_submit(g->c, patient) == ST_OK);
    CHECK(client_drain(g->c));
    CHECK(runs->finish == FINISH_LENGTH && patient->finish == FINISH_LENGTH && seen.n_computed == 0);
    for (uint32_t i = 0; i < 20; i++) {
        CHECK(late[i]->finish == FINISH_DEADLINE && !late[i]->started && late[i]->done_ns < runs->done_ns);
        CHECK(late[i]->done_ns >= late[i]->r.deadline_ns);
        job_free(late[i]);
    }
    CHECK(stats_of(g).n_expired == 20);
    job_free(runs);
    job_free(patient);
    RIG_CLOSE(g);
}

/* In prefill, in decode, counted from the start of the request or from its first token. Others go on. */
TEST(running_ones_end_with_what_they_have) {
    struct rig *g = rig_new();
    struct job *prefill = prompt_job(1, LONG, 5), *decode = prompt_job(2, 5, 1000), *predict = prompt_job(3, 5, 1000), *other = prompt_job(4, 5, 200);
    uint64_t started = clock_mono_ns();

    g->so.batch_tokens = 8;
    g->fo.step_us = 1000;
    rig_open(g);
    prefill->r.deadline_ns = decode->r.deadline_ns = started + 60 * MS;
    predict->r.predict_ns = 30 * MS;
    CHECK(client_submit(g->c, decode) == ST_OK);
    CHECK(client_submit(g->c, prefill) == ST_OK);
    CHECK(client_submit(g->c, predict) == ST_OK);
    CHECK(client_submit(g->c, other) == ST_OK);
    CHECK(client_drain(g->c));
    CHECK(prefill->finish == FINISH_DEADLINE && !prefill->started);
    CHECK(decode->finish == FINISH_DEADLINE && decode->started && decode->n_got > 0 && decode->n_got < 60);
    CHECK(predict->finish == FINISH_DEADLINE && predict->n_got > 0 && predict->n_got < 40);
    CHECK(other->finish == FINISH_LENGTH && other->n_got == 200);
    job_free(prefill);
    job_free(decode);
    job_free(predict);
    job_free(other);
    RIG_CLOSE(g);
}

/* A crowd waits and all places are taken: the urgent one is next, the patient one last. */
TEST(urgent_ones_are_next) {
    struct rig *g = rig_new();
    struct job *crowd[20], *urgent = prompt_job(50, 10, 5), *patient = prompt_job(51, 10, 5);
    uint32_t n_before_urgent = 0;

    g->so.max_running = 2;
    rig_open(g);
    gate_shut(g);
    patient->r.priority = 1;
    urgent->r.priority = -1;
    CHECK(client_submit(g->c, patient) == ST_OK);
    for (uint32_t i = 0; i < 20; i++) {
        crowd[i] = prompt_job(i, 10, 5);
        CHECK(client_submit(g->c, crowd[i]) == ST_OK);
    }
    STEPS(g, 2);
    CHECK(client_submit(g->c, urgent) == ST_OK);
    gate_open(g);
    CHECK(client_drain(g->c));
    for (uint32_t i = 0; i < 20; i++) {
        n_before_urgent += crowd[i]->done_ns < urgent->done_ns;
        job_free(crowd[i]);
    }
    CHECKF(n_before_urgent <= 3, "%u ended before the urgent one", n_before_urgent);
    job_free(urgent);
    job_free(patient);
    RIG_CLOSE(g);
}

/* KV for one and a half: the older, less urgent one gives way, whoever came first, and comes back when there is room. */
TEST(less_urgent_ones_lose_their_kv) {
    struct rig *g = rig_new();
    struct job *old = prompt_job(1, 8, 100), *urgent = prompt_job(2, 8, 100);

    g->so.max_running = 2;
    g->so.prefix_cache = false;
    g->fo.info.n_pages = 20;
    rig_open(g);
    gate_shut(g);
    old->r.priority = 3;
    urgent->r.priority = 2;
    CHECK(client_submit(g->c, old) == ST_OK);
    STEPS(g, 2);
    CHECK(client_submit(g->c, urgent) == ST_OK);
    gate_open(g);
    CHECK(client_drain(g->c));
    CHECK(stats_of(g).n_preempted == 1 && urgent->done_ns < old->done_ns);
    CHECK(old->finish == FINISH_LENGTH && old->n_got == 100 && urgent->n_got == 100);
    job_free(old);
    job_free(urgent);
    RIG_CLOSE(g);
}

/* A preempted one does not hold up a more urgent newcomer while there are places; an equal one it does. */
TEST(urgent_newcomers_pass_the_preempted) {
    for (int urgent = 0; urgent < 2; urgent++) {
        struct rig *g = rig_new();
        struct job *first = prompt_job(1, 8, 120), *second = prompt_job(2, 8, 120), *late = prompt_job(3, 8, 4);

        g->so.max_running = 3;
        g->so.prefix_cache = false;
        g->fo.info.n_pages = 20;
        rig_open(g);
        gate_shut(g);
        CHECK(client_submit(g->c, first) == ST_OK);
        CHECK(client_submit(g->c, second) == ST_OK);
        while (stats_of(g).n_preempted == 0)
            STEPS(g, 1);
        late->r.priority = urgent ? -1 : 0;
        CHECK(client_submit(g->c, late) == ST_OK);
        gate_open(g);
        CHECK(client_drain(g->c));
        CHECK((late->done_ns < first->done_ns) == (urgent == 1));
        CHECK(first->n_got == 120 && second->n_got == 120 && late->n_got == 4);
        job_free(first);
        job_free(second);
        job_free(late);
        RIG_CLOSE(g);
    }
}

int main(void) {
    RUN(nothing_is_computed_for_the_late);
    RUN(running_ones_end_with_what_they_have);
    RUN(urgent_ones_are_next);
    RUN(less_urgent_ones_lose_their_kv);
    RUN(urgent_newcomers_pass_the_preempted);
    return test_failed_;
}
