/* SPDX-License-Identifier: Apache-2.0
 *
 * Scheduler and real engine together, on the tiny fixture models: a request gets the same tokens and bit-equal
 * log-probabilities alone, in a batch, in other chunks, from a reused prefix, after preemption and with cancels around
 * it, greedy or sampled with a seed. */
#include "test.h"

#include "base/pool.h"
#include "engine/engine.h"
#include "kernels/kernels.h"
#include "model/model.h"
#include "sched_client.h"

enum { N_REQUESTS = 16, CTX = 192, VOCAB_MOST = 269, PAGE_MOST = 32 };

struct rig {
    struct model *model;
    struct pool *pool;
    struct engine *engine;
    struct client *c;
};

/* One way to run the requests. */
struct setting {
    const char *name;
    uint32_t max_running, batch_tokens, n_seqs, kv_pages, n_threads;
    bool prefix_cache, cancels;
    uint32_t n_rounds;
};

/* What a request is, and its answer when nothing else runs. */
struct truth {
    int32_t prompt[CTX];
    uint32_t n_prompt, max_tokens;
    struct kern_sample sample;
    bool no_prefix_cache;
    int32_t *want;
    uint32_t n_want;
    enum finish_reason want_finish;
    struct kern_sampled *logprobs;
};

static void rig_close(struct rig *g) {
    if (g->c)
        client_close(g->c);
    engine_close(g->engine);
    pool_close(g->pool);
    g->c = NULL;
    g->engine = NULL;
    g->pool = NULL;
}

static void rig_open(struct rig *g, const struct setting *s, const char *test_name_) {
    struct pool_opts po = {.n_threads = (int)s->n_threads, .spin_us = 20};
    struct engine_opts eo = {
        .model = g->model,
        .kern = kern_cpu_ops(kern_cpu_best()),
        .n_ctx = CTX,
        .n_seqs = s->n_seqs,
        .n_running = s->max_running,
        .kv_tokens = s->kv_pages * PAGE_MOST,
        .max_batch_tokens = s->batch_tokens,
    };
    struct sched_opts so = {
        .ops = engine_ops(),
        .max_running = s->max_running,
        .max_queued = N_REQUESTS,
        .batch_tokens = s->batch_tokens,
        .prefix_cache = s->prefix_cache,
    };
    struct err e = {0};

    CHECKF(pool_open(&g->pool, &po, &e) == ST_OK, "%s", e.text);
    eo.pool = g->pool;
    CHECKF(engine_open(&g->engine, &eo, &e) == ST_OK, "%s", e.text);
    so.engine = g->engine;
    g->c = client_open(&so);
    CHECKF(g->c->errors == 0, "%s", g->c->what);
}

/* Half of the prompts begin alike for one page, a quarter for two; sampling of all kinds. */
static void make_requests(struct truth *t, uint32_t n_vocab) {
    uint64_t state = 11;
    int32_t shared[64];

    for (int i = 0; i < 64; i++)
        shared[i] = (int32_t)(rnd(&state) % n_vocab);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        struct truth *q = &t[i];
        uint32_t n_shared = i % 2 ? 0 : i % 4 ? 32 : 64;

        q->n_prompt = rnd_in(&state, n_shared + 1, 100);
        q->max_tokens = rnd_in(&state, 8, 60);
        for (uint32_t k = 0; k < q->n_prompt; k++)
            q->prompt[k] = k < n_shared ? shared[k] : (int32_t)(rnd(&state) % n_vocab);
        q->sample = (struct kern_sample){.top_p = 1, .repetition_penalty = 1, .n_top_logprobs = 0};
        if (i % 3) {
            q->sample.temperature = 0.8f;
            q->sample.seed = i;
            q->sample.top_p = i % 3 == 1 ? 0.9f : 1;
            q->sample.top_k = i % 3 == 2 ? 40 : 0;
        }
        if (i % 5 == 4) {
            q->sample.repetition_penalty = 1.1f;
            q->sample.frequency_penalty = 0.3f;
        }
        q->no_prefix_cache = i == 8;
    }
}

static struct job *make_job(const struct truth *t) {
    static const int32_t stop_ids[] = {0};
    struct job *j = job_new(t->prompt, t->n_prompt, t->max_tokens);

    j->r.sample = t->sample;
    j->r.stop_ids = stop_ids;
    j->r.n_stop_ids = 1;
    j->r.no_prefix_cache = t->no_prefix_cache;
    job_want_logprobs(j);
    if (t->want) {
        j->want = calloc(t->max_tokens, sizeof *j->want);
        memcpy(j->want, t->want, t->n_want * sizeof *j->want);
        j->n_want = t->n_want;
        j->want_finish = t->want_finish;
    }
    return j;
}

static void make_truth(struct rig *g, struct truth *t, const char *test_name_) {
    static const struct setting alone = {
        .name = "alone", .max_running = 1, .batch_tokens = 256, .n_seqs = 1, .kv_pages = 8, .n_threads = 1};

    rig_open(g, &alone, test_name_);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        struct job *j = make_job(&t[i]);

        CHECK(client_submit(g->c, j) == ST_OK && client_drain(g->c));
        CHECK(j->finish == FINISH_LENGTH || j->finish == FINISH_STOP);
        t[i].want = calloc(t[i].max_tokens, sizeof *t[i].want);
        t[i].logprobs = calloc(t[i].max_tokens, sizeof *t[i].logprobs);
        t[i].n_want = j->n_got;
        t[i].want_finish = j->finish;
        memcpy(t[i].want, j->got, j->n_got * sizeof *j->got);
        memcpy(t[i].logprobs, j->logprobs, j->n_got * sizeof *j->logprobs);
        job_free(j);
    }
    rig_close(g);
}

static void check_job(const struct setting *s, const struct truth *t, uint32_t i, const struct job *j,
                      const char *test_name_) {
    CHECKF(j->done && (j->finish == FINISH_CANCELLED ? j->cancel_sent : j->finish == t->want_finish),
           "%s: request %u ended with %d, expected %d", s->name, i, j->finish, t->want_finish);
    for (uint32_t k = 0; k < j->n_got; k++)
        CHECKF(memcmp(&j->logprobs[k].logprob, &t->logprobs[k].logprob, sizeof(float)) == 0,
               "%s: request %u, token %u: log-probability %.9g, alone %.9g", s->name, i, k,
               (double)j->logprobs[k].logprob, (double)t->logprobs[k].logprob);
}

static void run_round(struct rig *g, const struct setting *s, const struct truth *t, uint64_t *state,
                      const char *test_name_) {
    struct job *jobs[N_REQUESTS] = {0};
    uint32_t order[N_REQUESTS];

    for (uint32_t i = 0; i < N_REQUESTS; i++)
        order[i] = i;
    for (uint32_t i = N_REQUESTS; i-- > 1;) {
        uint32_t k = rnd(state) % (i + 1), swap = order[i];

        order[i] = order[k];
        order[k] = swap;
    }
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        jobs[i] = make_job(&t[order[i]]);
        CHECK(client_submit(g->c, jobs[i]) == ST_OK);
        if (rnd(state) % 4 == 0)
            client_pump(g->c, 2000000);
        if (s->cancels && rnd(state) % 4 == 0 && !jobs[rnd(state) % (i + 1)]->done)
            client_cancel(g->c, jobs[i]);
    }
    CHECKF(client_drain(g->c), "%s: requests hang", s->name);
    CHECKF(g->c->errors == 0, "%s: %s", s->name, g->c->what);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        check_job(s, &t[order[i]], order[i], jobs[i], test_name_);
        job_free(jobs[i]);
    }
}

static void run_setting(struct rig *g, const struct setting *s, const struct truth *t, const char *test_name_) {
    struct sched_stats st;
    struct engine_stats es;
    uint64_t state = 5;

    rig_open(g, s, test_name_);
    for (uint32_t i = 0; i < s->n_rounds; i++)
        run_round(g, s, t, &state, test_name_);
    sched_stats(g->c->s, &st);
    CHECKF(!s->prefix_cache || st.cached_tokens > 0, "%s: no prefix was reused", s->name);
    CHECKF(s->kv_pages > 16 || st.n_preempted > 0, "%s: nothing was preempted", s->name);
    CHECKF(!s->cancels || st.n_cancelled > 0, "%s: nothing was cancelled", s->name);
    sched_stop(g->c->s);
    g->c->s = NULL;
    engine_ops()->stats(g->engine, &es);
    CHECKF(es.kv_pages_free == es.kv_pages_total, "%s: KV pages lost", s->name);
    rig_close(g);
}

static const struct setting settings[] = {
    {"batched", 8, 256, 8, 64, 2, false, false, 1},
    {"small chunks", 5, 7, 5, 64, 1, false, false, 1},
    {"one token per step", 3, 1, 3, 64, 1, false, false, 1},
    {"prefix reuse", 4, 64, 12, 96, 2, true, false, 3},
    {"preemption", 6, 48, 6, 8, 1, false, false, 1},
    {"everything", 6, 33, 10, 10, 2, true, true, 4},
};

static void run_model(const char *test_name_, const char *name) {
    struct rig g = {0};
    struct truth *t = calloc(N_REQUESTS, sizeof *t);
    struct err e = {0};
    char path[100];

    snprintf(path, sizeof path, "tests/data/logits/%s.gguf", name);
    CHECKF(model_open(&g.model, path, &e) == ST_OK, "%s", e.text);
    CHECK(model_hparams(g.model)->n_vocab <= VOCAB_MOST);
    make_requests(t, model_hparams(g.model)->n_vocab);
    make_truth(&g, t, test_name_);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        run_setting(&g, &settings[i], t, test_name_);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        free(t[i].want);
        free(t[i].logprobs);
    }
    free(t);
    model_close(g.model);
}

TEST(real_qwen3moe) { run_model(test_name_, "qwen3moe"); }
TEST(real_olmoe) { run_model(test_name_, "olmoe"); }
TEST(real_mixtral) { run_model(test_name_, "mixtral"); }
TEST(real_llama) { run_model(test_name_, "llama"); }

int main(void) {
    RUN(real_qwen3moe);
    RUN(real_olmoe);
    RUN(real_mixtral);
    RUN(real_llama);
    return test_failed_;
}
