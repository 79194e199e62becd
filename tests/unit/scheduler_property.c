/* SPDX-License-Identifier: Apache-2.0
 *
 * Random traffic against the fake engine: arrivals, cancels in every state, shared prefixes, conversations, tiny KV (so
 * that preemption and eviction happen all the time), any batch size. Whatever happens, every request gets the tokens it
 * would get alone, cancelled ones a beginning of them, each exactly one end, and no page is lost. */
#include "test.h"

#include "fake_engine.h"
#include "sched_client.h"

enum { N_JOBS = 250, N_SEEDS = 24, VOCAB = 61, EOS = 60, BASE_TOKENS = 64, MOST_SEQS = 16, N_TENANTS = 3 };

/* Where the engine saw a prompt begin: what EVENT_STARTED must say was reused. E writes until the prompt is computed. */
struct seen { uint32_t start; bool running, complete; };

struct world {
    uint64_t state;
    struct fake_engine fake;
    struct client *c;
    struct job *jobs[N_JOBS];
    uint32_t n_jobs;
    struct seen seen[N_JOBS];     /* by sample.seed, which is the number of the job */
    struct seen *holders[MOST_SEQS]; /* by seq id */
    struct engine_ops ops;        /* the fake's, with kv_free watched */
    int32_t base[4][BASE_TOKENS]; /* prompts share beginnings of these */
    int32_t stop_ids[2];
    uint32_t allowed[(VOCAB + 31) / 32];
    struct kern_logit_bias bias[2];
};

struct totals { uint64_t preempted, cached, cancelled, stopped, expired, steps, ring_waits; };

static void watch_step(void *ctx, const struct batch *b) {
    struct world *w = ctx;

    for (uint32_t i = 0; i < b->n_items; i++) {
        const struct batch_item *it = &b->items[i];
        struct seen *seen = &w->seen[it->params->seed];

        w->holders[it->seq] = seen;
        if (seen->complete)
            continue;
        if (!seen->running)
            seen->start = it->pos;
        seen->running = true;
        seen->complete = it->pos + it->n_tokens >= it->n_prompt;
    }
}

/* A preempted prompt begins again. */
static void watch_free(void *self, seq_id id) {
    struct world *w = (struct world *)((char *)self - offsetof(struct world, fake));

    if (w->holders[id])
        w->holders[id]->running = false;
    w->holders[id] = NULL;
    fake_free(self, id);
}

static void check_cached(struct client *c, const struct event *ev) {
    struct world *w = c->ctx;

    if (ev->type == EVENT_STARTED && ev->cached != w->seen[ev->request->sample.seed].start)
        client_error(c, "STARTED says %u tokens cached, the engine saw the prompt begin at %u", ev->cached,
                     w->seen[ev->request->sample.seed].start);
}

/* What the request gets when it is alone: token after token from the model. */
static void oracle(const struct world *w, struct job *j) {
    uint32_t cap = j->r.n_prompt + j->r.max_tokens, n = j->r.n_prompt;
    int32_t *tokens = malloc(cap * sizeof *tokens);
    struct kern_logit_bias bias[8];
    enum finish_reason why = j->r.max_tokens ? FINISH_NONE : FINISH_LENGTH;

    memcpy(tokens, j->prompt, n * sizeof *tokens);
    j->want = calloc(j->r.max_tokens + 1, sizeof *j->want);
    while (why == FINISH_NONE) {
        struct kern_sample p = j->r.sample;
        struct kern_sampled out;
        bool ban = j->r.ignore_eos || j->n_want < j->r.min_tokens, is_stop = false;

        for (uint32_t i = 0; i < p.n_bias; i++)
            bias[i] = p.bias[i];
        for (uint32_t i = 0; ban && i < j->r.n_stop_ids; i++)
            bias[p.n_bias++] = (struct kern_logit_bias){j->r.stop_ids[i], -INFINITY};
        p.bias = bias;
        fake_draw(&w->fake.o, tokens, n, &p, j->n_want, &out);
        tokens[n++] = j->want[j->n_want++] = out.id;
        for (uint32_t i = 0; i < j->r.n_stop_ids; i++)
            is_stop |= out.id == j->r.stop_ids[i];
        why = is_stop ? FINISH_STOP : j->n_want == j->r.max_tokens ? FINISH_LENGTH : FINISH_NONE;
    }
    j->want_finish = why;
    free(tokens);
}

static uint32_t make_prompt(struct world *w, int32_t *t, uint32_t cap) {
    uint32_t n = 0, more;

    if (w->n_jobs > 0 && rnd(&w->state) % 4 == 0) { /* a conversation goes on: old prompt and output, then more */
        const struct job *old = w->jobs[rnd(&w->state) % w->n_jobs];

        for (uint32_t i = 0; i < old->r.n_prompt && n < cap; i++)
            t[n++] = old->prompt[i];
        for (uint32_t i = 0; i < old->n_want && n < cap; i++)
            t[n++] = old->want[i];
    } else if (rnd(&w->state) % 4) {
        more = rnd_in(&w->state, 0, cap < BASE_TOKENS ? cap : BASE_TOKENS);
        memcpy(t, w->base[rnd(&w->state) % 4], more * sizeof *t);
        n = more;
    }
    more = rnd_in(&w->state, 0, 12);
    for (; more > 0 && n < cap; more--)
        t[n++] = (int32_t)(rnd(&w->state) % VOCAB);
    if (n == 0)
        t[n++] = (int32_t)(rnd(&w->state) % VOCAB);
    return n;
}

static struct job *make_job(struct world *w) {
    const struct engine_info *info = &w->fake.o.info;
    uint32_t most = info->n_pages * info->page_tokens < info->n_ctx ? info->n_pages * info->page_tokens : info->n_ctx;
    uint32_t n, max_tokens;
    int32_t t[256];
    struct job *j;

    n = make_prompt(w, t, most * 3 / 4);
    max_tokens = rnd_in(&w->state, 0, most - n < 24 ? most - n : 24);
    j = job_new(t, n, max_tokens);
    j->r.stop_ids = w->stop_ids;
    j->r.n_stop_ids = 2;
    j->r.ignore_eos = rnd(&w->state) % 5 == 0;
    j->r.min_tokens = rnd(&w->state) % 4 ? 0 : rnd_in(&w->state, 0, 10);
    j->r.no_prefix_cache = rnd(&w->state) % 10 == 0;
    j->r.group = rnd(&w->state) % 3 ? (uint64_t)(uintptr_t)j : rnd(&w->state) % 4;
    j->r.tenant = rnd(&w->state) % N_TENANTS;
    j->r.weight = rnd(&w->state) % 4;
    if (rnd(&w->state) % 8 == 0)
        j->r.deadline_ns = clock_mono_ns() + rnd(&w->state) % 2000000;
    if (rnd(&w->state) % 8 == 0)
        j->r.predict_ns = 1 + rnd(&w->state) % 200000;
    j->r.priority = (int8_t)(rnd(&w->state) % 3 ? 0 : (int)(rnd(&w->state) % 21) - 10);
    j->r.sample.temperature = (float)(rnd(&w->state) % 2);
    j->r.sample.seed = w->n_jobs;
    if (rnd(&w->state) % 4 == 0) {
        j->r.sample.bias = w->bias;
        j->r.sample.n_bias = 2;
    }
    if (rnd(&w->state) % 4 == 0)
        j->r.sample.allowed = w->allowed;
    if (rnd(&w->state) % 4 == 0)
        job_want_logprobs(j);
    if (rnd(&w->state) % 8 == 0)
        job_want_prompt_logprobs(j);
    oracle(w, j);
    return j;
}

static struct fake_opts random_engine(uint64_t *state, uint32_t max_running) {
    struct fake_opts o = {.eos = EOS, .eos_every = rnd_in(state, 8, 60)};

    o.info.page_tokens = rnd_in(state, 1, 8);
    o.info.n_ctx = rnd_in(state, 40, 160);
    o.info.n_pages = rnd_in(state, 24, 140) / o.info.page_tokens + 2;
    o.info.n_seqs = max_running + rnd_in(state, 0, 6);
    o.info.max_batch_tokens = 64;
    o.info.n_vocab = VOCAB;
    o.step_us = rnd(state) % 3 ? 0 : rnd_in(state, 1, 30);
    return o;
}

static void world_open(struct world *w, uint64_t seed) {
    struct sched_opts so = {.ops = &w->ops, .prefix_cache = seed % 8 != 7, .n_tenants = N_TENANTS};
    struct fake_opts fo;

    w->ops = fake_ops;
    w->ops.kv_free = watch_free;
    w->state = seed * 1000003;
    so.max_running = rnd_in(&w->state, 1, 9);
    so.max_queued = rnd_in(&w->state, 1, 40);
    so.batch_tokens = rnd(&w->state) % 4 ? rnd_in(&w->state, 1, 64) : rnd_in(&w->state, 1, 4);
    fo = random_engine(&w->state, so.max_running);
    fo.on_step = watch_step;
    fo.on_step_ctx = w;
    fake_open(&w->fake, &fo);
    so.engine = &w->fake;
    for (int i = 0; i < 4 * BASE_TOKENS; i++)
        w->base[i / BASE_TOKENS][i % BASE_TOKENS] = (int32_t)(rnd(&w->state) % VOCAB);
    memcpy(w->base[1], w->base[0], sizeof w->base[0] / 2); /* and these two share their first half */
    w->stop_ids[0] = EOS;
    w->stop_ids[1] = 7;
    memset(w->allowed, 0xee, sizeof w->allowed);
    w->bias[0] = (struct kern_logit_bias){3, -INFINITY};
    w->bias[1] = (struct kern_logit_bias){EOS, rnd(&w->state) % 2 ? -INFINITY : 1.0f};
    w->c = client_open(&so);
    w->c->on_event = check_cached;
    w->c->ctx = w;
}

static void world_close(struct world *w) {
    for (uint32_t i = 0; i < w->n_jobs; i++)
        job_free(w->jobs[i]);
    client_close(w->c);
    fake_close(&w->fake);
    free(w);
}

static void submit_or_pump(struct world *w, const char *test_name_) {
    struct job *j = make_job(w);
    int status;

    while ((status = client_submit(w->c, j)) == ST_QUEUE_FULL)
        client_pump(w->c, 10000000);
    CHECKF(status == ST_OK, "submit: %s", status_name(status));
    w->jobs[w->n_jobs++] = j;
    if (rnd(&w->state) % 16 == 0)
        client_cancel(w->c, j); /* E may not have seen it yet */
}

static void cancel_some(struct world *w) {
    struct job *j = w->jobs[rnd(&w->state) % w->n_jobs];

    if (!j->done)
        client_cancel(w->c, j);
}

static void check_world(struct world *w, struct totals *t, const char *test_name_) {
    struct sched_stats st;
    uint64_t n_prompt = 0, n_output = 0, n_cached = 0;

    CHECKF(w->c->errors == 0, "%u broken rules, first: %s", w->c->errors, w->c->what);
    CHECKF(w->fake.violations == 0, "engine: %s", w->fake.what);
    sched_stats(w->c->s, &st);
    for (uint32_t i = 0; i < w->n_jobs; i++) {
        CHECK(w->jobs[i]->done);
        n_prompt += w->jobs[i]->started ? w->jobs[i]->r.n_prompt : 0;
        n_cached += w->jobs[i]->cached;
        n_output += w->jobs[i]->n_got;
    }
    CHECK(st.n_submitted == w->n_jobs && st.n_failed == 0);
    CHECK(st.n_finished_stop + st.n_finished_length + st.n_cancelled + st.n_expired == w->n_jobs);
    CHECK(st.n_ring_waits > 0 || (st.prompt_tokens == n_prompt && st.output_tokens == n_output && st.cached_tokens == n_cached));
    CHECK(!st.engine_failed && st.n_running == 0 && st.n_queued == 0);
    *t = (struct totals){
        .preempted = t->preempted + st.n_preempted, .cached = t->cached + n_cached,
        .cancelled = t->cancelled + st.n_cancelled, .stopped = t->stopped + st.n_finished_stop, .expired = t->expired + st.n_expired,
        .steps = t->steps + st.n_steps, .ring_waits = t->ring_waits + st.n_ring_waits,
    };
}

static void check_no_page_lost(struct world *w, const char *test_name_) {
    sched_stop(w->c->s);
    w->c->s = NULL;
    CHECKF(w->fake.violations == 0, "engine: %s", w->fake.what);
    CHECK(w->fake.n_free == w->fake.o.info.n_pages);
}

/* Published counters settle when E rests. */
static void wait_for_rest(struct world *w) {
    struct sched_stats st;

    for (int i = 0; i < 10000; i++) {
        sched_stats(w->c->s, &st);
        if (st.n_running == 0 && st.n_queued == 0)
            return;
        park_wait(&w->c->park, 100000);
    }
}

static void run_world(const char *test_name_, uint64_t seed, struct totals *t) {
    struct world *w = calloc(1, sizeof *w);

    world_open(w, seed);
    CHECKF(w->c->errors == 0, "%s", w->c->what);
    while (w->n_jobs < N_JOBS) {
        submit_or_pump(w, test_name_);
        while (rnd(&w->state) % 3 == 0)
            client_pump(w->c, rnd(&w->state) % 3 ? 0 : 100000);
        if (rnd(&w->state) % 12 == 0)
            cancel_some(w);
    }
    CHECKF(client_drain(w->c), "%u requests hang", w->c->n_live);
    wait_for_rest(w);
    check_world(w, t, test_name_);
    check_no_page_lost(w, test_name_);
    world_close(w);
}

TEST(property_random_traffic) {
    struct totals t = {0};

    for (uint64_t seed = 1; seed <= N_SEEDS; seed++)
        run_world(test_name_, seed, &t);
    CHECKF(t.preempted > 30 && t.cached > 1000 && t.cancelled > 100 && t.stopped > 100 && t.expired > 100 && t.steps > 5000,
           "not much happened: %lu preempted, %lu tokens reused, %lu cancelled, %lu stopped, %lu steps",
           (unsigned long)t.preempted, (unsigned long)t.cached, (unsigned long)t.cancelled, (unsigned long)t.stopped,
           (unsigned long)t.steps);
    printf("# %lu steps, %lu preempted, %lu tokens reused, %lu cancelled, %lu stopped, %lu ring waits\n",
           (unsigned long)t.steps, (unsigned long)t.preempted, (unsigned long)t.cached, (unsigned long)t.cancelled,
           (unsigned long)t.stopped, (unsigned long)t.ring_waits);
}

/* Quiesce in the middle of it: everything ends, nothing is lost, although nobody polls meanwhile. */
static void quiesce_world(const char *test_name_, uint64_t seed) {
    struct world *w = calloc(1, sizeof *w);
    uint32_t n = seed % 4 == 0 ? 3 : 60;

    world_open(w, seed);
    while (w->n_jobs < n)
        submit_or_pump(w, test_name_);
    for (uint32_t i = 0; i < w->n_jobs; i++)
        w->jobs[i]->cancel_sent = true;
    sched_quiesce(w->c->s);
    CHECK(sched_submit(w->c->s, &w->jobs[0]->r) == ST_SHUTDOWN);
    while (client_pump(w->c, 0) > 0)
        ;
    CHECK(w->c->n_live == 0);
    CHECKF(w->c->errors == 0, "%u broken rules, first: %s", w->c->errors, w->c->what);
    check_no_page_lost(w, test_name_);
    world_close(w);
}

TEST(property_quiesce_at_any_time) {
    for (uint64_t seed = 100; seed < 140; seed++)
        quiesce_world(test_name_, seed);
}

int main(void) {
    RUN(property_random_traffic);
    RUN(property_quiesce_at_any_time);
    return test_failed_;
}
