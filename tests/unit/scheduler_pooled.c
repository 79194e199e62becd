/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests for hidden states on the fake engine, whose states depend on every token before them: the same bits in one chunk or
 * many, beside others, after a preemption, and whatever prefixes are cached. */
#include "sched_rig.h"

enum { N_EMBD = 6 };

struct want { double mean[N_EMBD], last[N_EMBD]; };

static struct job *pooled_job(uint32_t seed, uint32_t n_prompt, enum engine_pooling pooling) {
    struct job *j = prompt_job(seed, n_prompt, 0);

    j->r.pooling = pooling;
    j->r.pooled = malloc(N_EMBD * sizeof *j->r.pooled);
    for (int i = 0; i < N_EMBD; i++)
        j->r.pooled[i] = NAN;
    return j;
}

static void pooled_free(struct job *j) {
    free(j->r.pooled);
    job_free(j);
}

static bool right(const struct job *j) {
    double want[N_EMBD] = {0};

    for (uint32_t n = j->r.pooling == ENGINE_POOLING_LAST ? j->r.n_prompt : 1; n <= j->r.n_prompt; n++)
        for (uint32_t k = 0; k < N_EMBD; k++)
            want[k] += fake_hidden(j->prompt, n, k);
    return j->finish == FINISH_LENGTH && memcmp(want, j->r.pooled, sizeof want) == 0;
}

static struct rig *pooled_rig(void) {
    struct rig *g = rig_new();

    g->fo.info.n_embd = N_EMBD;
    return g;
}

TEST(chunks_and_neighbours) {
    struct rig *g = pooled_rig();
    struct job *j[12];

    g->so.batch_tokens = 7;
    rig_open(g);
    for (uint32_t i = 0; i < 12; i++) {
        j[i] = i % 3 == 2 ? prompt_job(i, 20, 30) : pooled_job(i, 1 + 9 * i, i % 3 ? ENGINE_POOLING_LAST : ENGINE_POOLING_MEAN);
        CHECK(client_submit(g->c, j[i]) == ST_OK);
    }
    CHECK(client_drain(g->c));
    for (uint32_t i = 0; i < 12; i++)
        CHECKF(i % 3 == 2 ? j[i]->n_got == 30 : right(j[i]), "job %u", i);
    for (uint32_t i = 0; i < 12; i++)
        pooled_free(j[i]);
    RIG_CLOSE(g);
}

/* The last state may start from a cached prefix. A mean may not, and its text is not kept for others. */
TEST(prefixes) {
    struct rig *g = pooled_rig();
    struct job *mean = pooled_job(1, 100, ENGINE_POOLING_MEAN), *chat = prompt_job(1, 100, 4), *last = pooled_job(1, 100, ENGINE_POOLING_LAST),
               *again = pooled_job(1, 100, ENGINE_POOLING_MEAN);

    rig_open(g);
    CHECK(client_submit(g->c, mean) == ST_OK && client_drain(g->c));
    CHECK(client_submit(g->c, chat) == ST_OK && client_drain(g->c) && chat->cached == 0);
    CHECK(client_submit(g->c, last) == ST_OK && client_drain(g->c) && last->cached == 96);
    CHECK(client_submit(g->c, again) == ST_OK && client_drain(g->c) && again->cached == 0);
    CHECK(right(mean) && right(last) && right(again));
    pooled_free(mean);
    pooled_free(chat);
    pooled_free(last);
    pooled_free(again);
    RIG_CLOSE(g);
}

/* Growing answers take the pages of the youngest, which then begins anew, also its sum. */
TEST(preemption) {
    struct rig *g = pooled_rig();
    struct job *j[4];

    g->fo.info.n_pages = 48;
    g->so.batch_tokens = 8;
    g->so.prefix_cache = false;
    rig_open(g);
    gate_shut(g);
    for (uint32_t i = 0; i < 3; i++) {
        j[i] = prompt_job(i, 16, 104);
        CHECK(client_submit(g->c, j[i]) == ST_OK);
    }
    STEPS(g, 8); /* all three run */
    j[3] = pooled_job(3, 260, ENGINE_POOLING_MEAN);
    CHECK(client_submit(g->c, j[3]) == ST_OK);
    gate_open(g);
    CHECK(client_drain(g->c));
    CHECK(stats_of(g).n_preempted > 0 && right(j[3]));
    for (uint32_t i = 0; i < 4; i++)
        pooled_free(j[i]);
    RIG_CLOSE(g);
}

TEST(refused_beside_tokens) {
    struct rig *g = pooled_rig();
    struct job *j = pooled_job(1, 10, ENGINE_POOLING_MEAN);

    rig_open(g);
    j->r.max_tokens = 1;
    CHECK(client_submit(g->c, j) == ST_INVALID);
    pooled_free(j);
    RIG_CLOSE(g);
}

int main(void) {
    RUN(chunks_and_neighbours);
    RUN(prefixes);
    RUN(preemption);
    RUN(refused_beside_tokens);
    return test_failed_;
}
