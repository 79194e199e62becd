/* SPDX-License-Identifier: Apache-2.0
 *
 * Fair sharing between tenants: the queue by itself in a small simulation, where everything can be counted, and the
 * scheduler on the fake engine. What must hold: those who wait get tokens by their weights, give or take what runs at
 * once; nobody saves up or starves; no place stays empty while somebody waits; nobody gets all places of the queue; and the
 * waiting time that is told is the one that is seen. */
#include "sched_rig.h"

#include "scheduler/internal.h"

/* ---- the queue in a simulated server: N_PLACES requests run, each gets a token per tick ---- */

enum { N_TENANTS = 4, N_PLACES = 8, MOST_PROMPT = 50, MOST_OUTPUT = 100, N_SIM = 4096 };

struct sim_job { struct seq seq; struct request r; uint32_t left; bool running, waiting; uint64_t n_pops, n_before; };

struct sim {
    struct queue w;
    struct sim_job jobs[N_SIM];
    uint32_t n_running, n_idle_places;
    uint64_t state, n_pops, given[N_TENANTS]; /* tokens */
    uint32_t n_waiting[N_TENANTS];
    uint32_t weight[N_TENANTS];
};

static struct sim *sim_new(uint64_t seed) {
    struct sim *s = calloc(1, sizeof *s);

    s->state = seed;
    queue__init(&s->w, N_SIM, N_TENANTS);
    for (int i = 0; i < N_TENANTS; i++)
        s->weight[i] = 1;
    return s;
}

static void sim_free(struct sim *s) {
    queue__clear(&s->w);
    free(s);
}

static struct sim_job *sim_push(struct sim *s, uint32_t tenant) {
    struct sim_job *j = s->jobs;

    while (j->running || j->waiting)
        j++;
    *j = (struct sim_job){.waiting = true, .left = rnd_in(&s->state, 1, MOST_OUTPUT), .n_pops = s->n_pops};
    j->r = (struct request){.tenant = tenant, .weight = s->weight[tenant], .n_prompt = rnd_in(&s->state, 1, MOST_PROMPT), .group = rnd(&s->state)};
    j->seq.request = &j->r;
    queue__push(&s->w, &j->seq);
    s->n_waiting[tenant]++;
    return j;
}

static struct sim_job *job_of(struct seq *q) {
    return (struct sim_job *)((char *)q - offsetof(struct sim_job, seq));
}

static void sim_admit(struct sim *s) {
    while (s->n_running < N_PLACES && queue__peek(&s->w)) {
        struct sim_job *j = job_of(queue__peek(&s->w));

        queue__pop(&s->w);
        queue__charge(&s->w, &j->r, j->r.n_prompt);
        s->given[j->r.tenant] += j->r.n_prompt;
        s->n_waiting[j->r.tenant]--;
        j->n_before = s->n_pops++ - j->n_pops;
        s->n_running++;
        j->waiting = false;
        j->running = true;
    }
    s->n_idle_places += s->w.n > 0 ? N_PLACES - s->n_running : 0;
}

static void sim_tick(struct sim *s) {
    sim_admit(s);
    for (int i = 0; i < N_SIM; i++) {
        struct sim_job *j = &s->jobs[i];

        if (!j->running)
            continue;
        queue__charge(&s->w, &j->r, 1);
        s->given[j->r.tenant]++;
        j->running = --j->left > 0;
        s->n_running -= !j->running;
    }
}

static void keep_waiting(struct sim *s, uint32_t tenant, uint32_t n) {
    while (s->n_waiting[tenant] < n)
        sim_push(s, tenant);
}

static bool pick_some(void *ctx, const struct seq *q) {
    struct sim *s = ctx;
    struct sim_job *j = job_of((struct seq *)q);
    bool picked = rnd(&s->state) % 4 == 0;

    if (picked) {
        j->waiting = false;
        s->n_waiting[j->r.tenant]--;
    }
    return picked;
}

static double worst_gap(const struct sim *s, double worst) {
    for (int a = 0; a < N_TENANTS; a++)
        for (int b = 0; b < a; b++) {
            double gap = fabs((double)s->given[a] / s->weight[a] - (double)s->given[b] / s->weight[b]);

            worst = gap > worst ? gap : worst;
        }
    return worst;
}

/* All wait all the time, whatever the sizes, the counts and the cancels: what they got never differs by more. */
TEST(tokens_by_weight) {
    enum { BOUND = 2 * N_PLACES * (MOST_PROMPT + MOST_OUTPUT) };

    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct sim *s = sim_new(seed);
        double worst = 0;

        for (int i = 0; i < N_TENANTS; i++)
            s->weight[i] = seed % 2 ? 1 : 1u << i;
        for (int t = 0; t < 20000; t++) {
            keep_waiting(s, 0, 200);
            for (uint32_t i = 1; i < N_TENANTS; i++)
                keep_waiting(s, i, 1 + rnd(&s->state) % 4);
            if (t % 500 == 499)
                queue__extract(&s->w, pick_some, s);
            for (uint32_t i = 0; i < N_TENANTS; i++)
                keep_waiting(s, i, 1);
            sim_tick(s);
            worst = worst_gap(s, worst);
        }
        CHECKF(worst <= BOUND, "seed %u: %.0f tokens apart, at most %d", (unsigned)seed, worst, BOUND);
        CHECK(s->given[0] > 20 * BOUND / N_TENANTS && s->n_idle_places == 0);
        sim_free(s);
    }
}

/* A thousand of one tenant wait: a single one of another that has not had its share is let in next, or after one that stands as
 * it does. */
TEST(single_request_beside_a_thousand) {
    struct sim *s = sim_new(7);

    for (int i = 0; i < 1000; i++)
        sim_push(s, 0);
    for (int t = 0; t < 1000; t++) {
        struct sim_job *one = sim_push(s, 1 + (uint32_t)t % 3);

        while (one->waiting) {
            keep_waiting(s, 0, 1000);
            sim_tick(s);
        }
        CHECKF(one->n_before <= 1, "%u went before it", (unsigned)one->n_before);
        for (int tick = 0; tick < 30; tick++) {
            keep_waiting(s, 0, 1000);
            sim_tick(s);
        }
    }
    sim_free(s);
}

/* Silence is not saved: after it a tenant has its share, and does not shut the others out to make up for it. */
TEST(nobody_saves_up) {
    struct sim *s = sim_new(3);
    uint64_t before[2];

    for (int t = 0; t < 20000; t++) {
        keep_waiting(s, 0, 50);
        sim_tick(s);
    }
    memcpy(before, s->given, sizeof before);
    for (int t = 0; t < 2000; t++) {
        keep_waiting(s, 0, 50);
        keep_waiting(s, 1, 50);
        sim_tick(s);
    }
    double a = (double)(s->given[0] - before[0]), b = (double)(s->given[1] - before[1]);
    CHECKF(fabs(a - b) <= 2 * N_PLACES * (MOST_PROMPT + MOST_OUTPUT), "%.0f and %.0f tokens", a, b);
    sim_free(s);
}

/* The least weight there is beside the greatest: small, not nothing. */
TEST(nobody_starves) {
    struct sim *s = sim_new(5);

    s->weight[1] = 1000;
    for (int t = 0; t < 60000; t++) {
        keep_waiting(s, 0, 2);
        keep_waiting(s, 1, 500);
        sim_tick(s);
    }
    uint64_t all = s->given[0] + s->given[1];
    CHECKF(s->given[0] >= all / 1001 / 2 && s->given[0] <= all / 100, "%llu of %llu", (unsigned long long)s->given[0], (unsigned long long)all);
    sim_free(s);
}

TEST(lower_priority_numbers_first) {
    struct sim *s = sim_new(9);
    int last = SCHED_PRIORITY_MIN;

    for (int i = 0; i < 200; i++) {
        struct sim_job *j = &s->jobs[i];

        j->r = (struct request){.tenant = rnd(&s->state) % N_TENANTS, .priority = (int8_t)(rnd(&s->state) % 21 - 10), .group = rnd(&s->state) % 5};
        j->seq.request = &j->r;
        queue__push(&s->w, &j->seq);
    }
    for (struct seq *q; (q = queue__peek(&s->w)) != NULL; queue__pop(&s->w)) {
        CHECK(q->request->priority >= last);
        last = q->request->priority;
    }
    CHECK(last == SCHED_PRIORITY_MAX && s->w.n == 0);
    sim_free(s);
}

/* ---- the scheduler ---- */

static struct job *tenant_job(uint32_t seed, uint32_t tenant, uint32_t n_prompt, uint32_t max_tokens) {
    struct job *j = prompt_job(seed, n_prompt, max_tokens);

    j->r.tenant = tenant;
    return j;
}

/* Few KV pages, so that there is preemption, and cancels: a single request passes the crowd of another tenant all the same. */
static void one_beside_a_crowd(const char *test_name_, uint32_t n_pages, bool cancels) {
    enum { N = 1000 };
    struct rig *g = rig_new();
    struct job **crowd = calloc(N, sizeof *crowd), *one = tenant_job(9999, 1, 10, 5);
    uint32_t before = 0, after = 0;

    g->so.max_running = 4;
    g->so.max_queued = 2 * N;
    g->so.n_tenants = 2;
    g->fo.info.n_pages = n_pages;
    rig_open(g);
    gate_shut(g);
    for (uint32_t i = 0; i < N; i++) {
        crowd[i] = tenant_job(i, 0, 10, 20);
        CHECK(client_submit(g->c, crowd[i]) == ST_OK);
    }
    STEPS(g, 70);
    for (uint32_t i = 0; cancels && i < N; i += 3)
        if (!crowd[i]->done)
            client_cancel(g->c, crowd[i]);
    STEPS(g, 2);
    CHECK(client_submit(g->c, one) == ST_OK);
    STEPS(g, 2);
    for (uint32_t i = 0; i < N; i++)
        before += crowd[i]->done;
    gate_open(g);
    CHECK(client_drain(g->c));
    for (uint32_t i = 0; i < N; i++)
        after += crowd[i]->done_ns < one->done_ns;
    /* those that run when it comes, those that end with it, and one that may stand as it does */
    CHECKF(after - before <= 9, "overtaken by %u of the crowd", after - before);
    CHECK(n_pages > 100 || stats_of(g).n_preempted > 0);
    for (uint32_t i = 0; i < N; i++)
        job_free(crowd[i]);
    job_free(one);
    free(crowd);
    RIG_CLOSE(g);
}

TEST(one_beside_a_thousand) {
    one_beside_a_crowd(test_name_, 2048, false);
}

TEST(one_beside_a_thousand_with_cancels) {
    one_beside_a_crowd(test_name_, 2048, true);
}

TEST(one_beside_a_thousand_with_preemption) {
    one_beside_a_crowd(test_name_, 13, false);
}

/* Whoever comes first takes two thirds of the places, and always leaves some. */
TEST(no_tenant_gets_all_places) {
    struct rig *g = rig_new();
    struct job *jobs[200];
    uint32_t n = 0, got[3] = {0};

    g->so.max_running = 1;
    g->so.max_queued = 99;
    g->so.n_tenants = 3;
    rig_open(g);
    gate_shut(g);
    CHECK(sched_most_places(g->c->s) == 66);
    for (uint32_t t = 0; t < 3; t++) {
        for (;; got[t]++) {
            jobs[n] = tenant_job(n, t, 4, 2);
            n++;
            if (client_submit(g->c, jobs[n - 1]) != ST_OK)
                break;
        }
    }
    CHECKF(got[0] >= 66 && got[0] <= 67 && got[1] >= 22 && got[1] <= 23 && got[2] >= 7, "%u, %u, %u", got[0], got[1], got[2]);
    gate_open(g);
    CHECK(client_drain(g->c));
    for (uint32_t i = 0; i < n; i++)
        job_free(jobs[i]);
    RIG_CLOSE(g);
}

/* ---- waiting times ---- */

static uint64_t started_ns(struct rig *g, struct job *j, const char *test_name_) {
    WAIT_FOR(g, j->started);
    return clock_mono_ns();
}

/* All places taken and more waiting, after some rounds of the same: what is told beside what the next one sees. */
static void told_and_seen(const char *test_name_, uint32_t max_running, bool same_length, uint32_t n_tenants) {
    enum { ROUNDS = 12 };
    struct rig *g = rig_new();
    uint32_t n = max_running * ROUNDS, n_first = n / 2;
    struct job **jobs = calloc(n + 1, sizeof *jobs);
    uint64_t state = max_running, told, seen;

    g->so.max_running = max_running;
    g->so.max_queued = 3 * n;
    g->so.n_tenants = n_tenants;
    g->fo.info.n_seqs = 2 * max_running;
    g->fo.step_us = 1000;
    rig_open(g);
    for (uint32_t i = 0; i < n; i++) {
        jobs[i] = tenant_job(i, i % n_tenants, 4, same_length ? 20 : rnd_in(&state, 5, 35));
        CHECK(client_submit(g->c, jobs[i]) == ST_OK);
    }
    WAIT_FOR(g, stats_of(g).n_finished_length >= n_first);
    jobs[n] = tenant_job(n, 0, 4, 20);
    told = sched_wait_ns(g->c->s, 0, 0);
    CHECK(client_submit(g->c, jobs[n]) == ST_OK);
    seen = started_ns(g, jobs[n], test_name_) - jobs[n]->submit_ns;
    printf("# %u places, %u tenants: told %.0f ms, seen %.0f ms\n", max_running, n_tenants, (double)told * 1e-6, (double)seen * 1e-6);
    CHECKF(told < 2 * seen && seen < 2 * told, "told %.0f ms, seen %.0f ms", (double)told * 1e-6, (double)seen * 1e-6);
    CHECK(client_drain(g->c));
    WAIT_FOR(g, stats_of(g).n_running == 0);
    CHECK(sched_wait_ns(g->c->s, 0, 0) == 0 && sched_retry_after_s(g->c->s, 0, 0) == 1);
    for (uint32_t i = 0; i <= n; i++)
        job_free(jobs[i]);
    free(jobs);
    RIG_CLOSE(g);
}

TEST(told_wait_is_the_one_seen) {
    told_and_seen(test_name_, 1, true, 1);
    told_and_seen(test_name_, 8, true, 1); /* all end in the same step */
    told_and_seen(test_name_, 8, false, 1);
    told_and_seen(test_name_, 8, false, 3);
}

/* A tenant of its own passes a long line of others; one less urgent does not pass anything. */
TEST(told_wait_knows_turns_and_priorities) {
    struct rig *g = rig_new();
    struct job *jobs[80];

    g->so.max_running = 1;
    g->so.max_queued = 200;
    g->so.n_tenants = 2;
    g->fo.step_us = 2000;
    rig_open(g);
    for (uint32_t i = 0; i < 80; i++) {
        jobs[i] = tenant_job(i, 0, 4, 10);
        CHECK(client_submit(g->c, jobs[i]) == ST_OK);
    }
    WAIT_FOR(g, jobs[10]->done);
    uint64_t own = sched_wait_ns(g->c->s, 0, 0), other = sched_wait_ns(g->c->s, 1, 0), urgent = sched_wait_ns(g->c->s, 0, -1);
    uint64_t patient = sched_wait_ns(g->c->s, 1, 1);
    CHECKF(other * 20 < own && urgent * 40 < own && patient * 10 > own * 9, "own %.0f ms, other tenant %.0f, more urgent %.0f, less %.0f",
           (double)own * 1e-6, (double)other * 1e-6, (double)urgent * 1e-6, (double)patient * 1e-6);
    for (uint32_t i = 0; i < 80; i++)
        if (!jobs[i]->done)
            client_cancel(g->c, jobs[i]);
    CHECK(client_drain(g->c));
    CHECK(sched_wait_ns(g->c->s, 1, 10) < own / 10); /* cancelled ones left the line, and did not make the rest look fast */
    for (uint32_t i = 0; i < 80; i++)
        job_free(jobs[i]);
    RIG_CLOSE(g);
}

int main(void) {
    RUN(tokens_by_weight);
    RUN(single_request_beside_a_thousand);
    RUN(nobody_saves_up);
    RUN(nobody_starves);
    RUN(lower_priority_numbers_first);
    RUN(one_beside_a_thousand);
    RUN(one_beside_a_thousand_with_cancels);
    RUN(one_beside_a_thousand_with_preemption);
    RUN(no_tenant_gets_all_places);
    RUN(told_wait_is_the_one_seen);
    RUN(told_wait_knows_turns_and_priorities);
    return test_failed_;
}
