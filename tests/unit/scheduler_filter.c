/* SPDX-License-Identifier: Apache-2.0
 *
 * A request's filter on the fake engine: asked once before each draw and told once after it, through preemption and
 * chunked prefill; what its mask leaves out is never drawn; its failures end the sequence with their status. */
#include "sched_rig.h"

enum { WORDS = (VOCAB + 31) / 32, STOP_ID = 7 };

/* Allows ids that are `n_accepted` modulo 10, and the stop id alone from stop_at on. */
struct rule {
    uint32_t n_masks, n_accepted, stop_at, mask_fails_at, accept_fails_at;
    bool broken; /* calls out of turn, or a token that was not allowed */
    bool asked;
};

static bool rule_allows(const struct rule *x, uint32_t id) {
    return x->n_accepted >= x->stop_at ? id == STOP_ID : id % 10 == x->n_accepted % 10 && id != STOP_ID;
}

static int rule_mask(void *self, uint32_t *allowed) {
    struct rule *x = self;

    x->broken |= x->asked;
    x->asked = true;
    if (x->n_masks++ == x->mask_fails_at)
        return ST_LIMIT;
    memset(allowed, 0, WORDS * sizeof *allowed);
    for (uint32_t id = 0; id < VOCAB; id++)
        if (rule_allows(x, id))
            allowed[id / 32] |= 1u << id % 32;
    return ST_OK;
}

static int rule_accept(void *self, int32_t token) {
    struct rule *x = self;

    x->broken |= !x->asked || !rule_allows(x, (uint32_t)token);
    x->asked = false;
    if (x->n_accepted == x->accept_fails_at)
        return ST_NOMEM;
    x->n_accepted++;
    return ST_OK;
}

static const struct token_filter_ops rule_ops = {.mask = rule_mask, .accept = rule_accept};
static const int32_t stop_id = STOP_ID;

static struct rule rule_new(void) {
    return (struct rule){.stop_at = UINT32_MAX, .mask_fails_at = UINT32_MAX, .accept_fails_at = UINT32_MAX};
}

static struct job *filtered_job(uint32_t seed, uint32_t n_prompt, uint32_t max_tokens, struct rule *x) {
    struct job *j = prompt_job(seed, n_prompt, max_tokens);

    j->r.filter = (struct token_filter){.ops = &rule_ops, .self = x};
    j->r.stop_ids = &stop_id;
    j->r.n_stop_ids = 1;
    return j;
}

TEST(every_token_obeys_the_mask) {
    struct rig *g = rig_new();
    struct rule x[4];
    struct job *jobs[4], *plain = prompt_job(9, 30, 50);

    g->fo.info.n_pages = 80; /* too few for five: some are preempted and resumed */
    g->so.max_running = 5;
    g->so.batch_tokens = 16;
    rig_open(g);
    gate_shut(g);
    for (uint32_t i = 0; i < 4; i++) {
        x[i] = rule_new();
        jobs[i] = filtered_job(i, 30, 200, &x[i]);
        jobs[i]->r.sample.temperature = (float)(i % 2) * 2;
        job_want_logprobs(jobs[i]);
        CHECK(client_submit(g->c, jobs[i]) == ST_OK);
    }
    CHECK(client_submit(g->c, plain) == ST_OK);
    gate_open(g);
    CHECK(client_drain(g->c));
    CHECK(stats_of(g).n_preempted >= 1);
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t n = jobs[i]->n_got;

        CHECK(!x[i].broken && x[i].n_accepted == n && x[i].n_masks == n);
        for (uint32_t k = 0; k < n; k++)
            CHECK((uint32_t)jobs[i]->got[k] % 10 == k % 10);
        CHECK(n == 200 && jobs[i]->finish == FINISH_LENGTH);
        job_free(jobs[i]);
    }
    CHECK(plain->n_got == 50);
    job_free(plain);
    RIG_CLOSE(g);
}

TEST(a_finished_form_ends_the_sequence) {
    struct rig *g = rig_new();
    struct rule x = rule_new();
    struct job *j = filtered_job(1, 10, 100, &x);

    x.stop_at = 5;
    rig_open(g);
    CHECK(client_submit(g->c, j) == ST_OK);
    CHECK(client_drain(g->c));
    CHECK(j->finish == FINISH_STOP && j->n_got == 6 && j->got[5] == STOP_ID && !x.broken);
    job_free(j);
    RIG_CLOSE(g);
}

TEST(a_failing_filter_ends_its_sequence_alone) {
    struct rig *g = rig_new();
    struct rule x[3] = {rule_new(), rule_new(), rule_new()};
    struct job *jobs[3];

    x[0].mask_fails_at = 3;
    x[1].accept_fails_at = 4;
    x[2].stop_at = 20;
    rig_open(g);
    for (uint32_t i = 0; i < 3; i++) {
        jobs[i] = filtered_job(40 + i, 10, 100, &x[i]);
        jobs[i]->r.n_stop_ids = i == 2;
        CHECK(client_submit(g->c, jobs[i]) == ST_OK);
    }
    CHECK(client_drain(g->c));
    CHECK(jobs[0]->finish == FINISH_ERROR && jobs[0]->status == ST_LIMIT && jobs[0]->n_got == 3);
    CHECK(jobs[1]->finish == FINISH_ERROR && jobs[1]->status == ST_NOMEM && jobs[1]->n_got == 4);
    CHECK(jobs[2]->finish == FINISH_STOP && !x[2].broken);
    CHECK(stats_of(g).n_failed == 2);
    for (uint32_t i = 0; i < 3; i++)
        job_free(jobs[i]);
    RIG_CLOSE(g);
}

int main(void) {
    RUN(every_token_obeys_the_mask);
    RUN(a_finished_form_ends_the_sequence);
    RUN(a_failing_filter_ends_its_sequence_alone);
    return test_failed_;
}
