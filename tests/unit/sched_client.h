/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of L in scheduler tests: jobs with an expected answer, submit, poll, and the rules every event stream must
 * obey (STARTED first, indices without gap, logprobs there with their event, one DONE, nothing after it). Each rule that
 * is broken is counted in `client.errors` with the first one described. */
#ifndef MOED_TESTS_SCHED_CLIENT_H
#define MOED_TESTS_SCHED_CLIENT_H

#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/park.h"
#include "base/status.h"
#include "scheduler/scheduler.h"

struct job {
    struct request r;
    int32_t *prompt;
    int32_t *got;                     /* [max_tokens] */
    uint32_t n_got, cached;
    bool submitted, started, done, cancel_sent;
    enum finish_reason finish;
    int status;
    uint64_t submit_ns, done_ns;
    struct kern_sampled *logprobs, *prompt_logprobs;
    int32_t *want;                    /* [n_want] the answer when nobody interferes; NULL = not known */
    uint32_t n_want;
    enum finish_reason want_finish;
};

struct client {
    struct sched *s;
    struct park park;
    atomic_uint n_notifies;
    uint32_t n_live, errors;
    char what[300];
    void (*on_event)(struct client *c, const struct event *ev); /* NULL, or after the rules were checked */
    void *ctx;
};

__attribute__((format(printf, 2, 3))) static inline void client_error(struct client *c, const char *fmt, ...) {
    va_list ap;

    va_start(ap, fmt);
    if (c->errors++ == 0)
        vsnprintf(c->what, sizeof c->what, fmt, ap);
    va_end(ap);
}

static inline void client_notify(void *ctx) {
    struct client *c = ctx;

    atomic_fetch_add(&c->n_notifies, 1);
    park_wake(&c->park);
}

/* Heap, and never freed when a case fails: the thread E may still be running then. */
static inline struct client *client_open(const struct sched_opts *opts) {
    struct client *c = calloc(1, sizeof *c);
    struct sched_opts o = *opts;
    struct err e = {0};

    park_init(&c->park);
    o.notify = client_notify;
    o.notify_ctx = c;
    if (sched_start(&c->s, &o, &e) != ST_OK)
        client_error(c, "sched_start: %s", e.text);
    return c;
}

static inline void client_close(struct client *c) {
    if (c->s)
        sched_stop(c->s);
    park_clear(&c->park);
    free(c);
}

static inline struct job *job_new(const int32_t *prompt, uint32_t n_prompt, uint32_t max_tokens) {
    struct job *j = calloc(1, sizeof *j);

    j->prompt = malloc((n_prompt + 1) * sizeof *j->prompt);
    memcpy(j->prompt, prompt, n_prompt * sizeof *j->prompt);
    j->got = calloc(max_tokens + 1, sizeof *j->got);
    j->r.prompt = j->prompt;
    j->r.n_prompt = n_prompt;
    j->r.max_tokens = max_tokens;
    j->r.sample = (struct kern_sample){.top_p = 1, .repetition_penalty = 1, .n_top_logprobs = -1};
    j->r.group = (uint64_t)(uintptr_t)j;
    j->r.user = j;
    return j;
}

static inline void job_want_logprobs(struct job *j) {
    j->logprobs = calloc(j->r.max_tokens + 1, sizeof *j->logprobs);
    for (uint32_t i = 0; i < j->r.max_tokens; i++)
        j->logprobs[i].id = -1;
    j->r.logprobs = j->logprobs;
    j->r.sample.n_top_logprobs = 0;
}

static inline void job_want_prompt_logprobs(struct job *j) {
    j->prompt_logprobs = calloc(j->r.n_prompt, sizeof *j->prompt_logprobs);
    for (uint32_t i = 0; i < j->r.n_prompt; i++)
        j->prompt_logprobs[i].id = -1;
    j->r.prompt_logprobs = j->prompt_logprobs;
}

static inline void job_free(struct job *j) {
    free(j->prompt);
    free(j->got);
    free(j->logprobs);
    free(j->prompt_logprobs);
    free(j->want);
    free(j);
}

static inline int client_submit(struct client *c, struct job *j) {
    int status;

    j->submit_ns = clock_mono_ns();
    status = sched_submit(c->s, &j->r);
    if (status == ST_OK) {
        j->submitted = true;
        c->n_live++;
    }
    return status;
}

static inline void client_cancel(struct client *c, struct job *j) {
    j->cancel_sent = true;
    sched_cancel(c->s, &j->r);
}

static inline void client_on_token(struct client *c, struct job *j, const struct event *ev) {
    if (!j->started)
        client_error(c, "token before STARTED");
    if (ev->index != j->n_got || j->n_got >= j->r.max_tokens) {
        client_error(c, "token index %u, expected %u of %u", ev->index, j->n_got, j->r.max_tokens);
        return;
    }
    if (j->logprobs && j->logprobs[ev->index].id != ev->token)
        client_error(c, "logprobs[%u] is of token %d, the event says %d", ev->index, j->logprobs[ev->index].id, ev->token);
    if (j->want && (j->n_got >= j->n_want || j->want[j->n_got] != ev->token))
        client_error(c, "token %u is %d, expected %d (prompt of %u)", ev->index, ev->token,
                     j->n_got < j->n_want ? j->want[j->n_got] : -1, j->r.n_prompt);
    j->got[j->n_got++] = ev->token;
}

static inline void client_on_done(struct client *c, struct job *j, const struct event *ev) {
    j->done = true;
    j->done_ns = clock_mono_ns();
    j->finish = ev->finish;
    j->status = ev->status;
    c->n_live--;
    if ((ev->finish == FINISH_ERROR) != (ev->status != ST_OK))
        client_error(c, "finish %d with status %d", ev->finish, ev->status);
    if (ev->finish == FINISH_DEADLINE && j->r.deadline_ns == 0 && (j->r.predict_ns == 0 || !j->started))
        client_error(c, "its time was over without a bound");
    if (ev->finish == FINISH_CANCELLED && !j->cancel_sent)
        client_error(c, "cancelled without having been asked");
    if (ev->finish == FINISH_STOP || ev->finish == FINISH_LENGTH) {
        if (!j->started)
            client_error(c, "finished without STARTED");
        if (j->want && (j->n_got != j->n_want || ev->finish != j->want_finish))
            client_error(c, "ended after %u tokens (%d), expected %u (%d)", j->n_got, ev->finish, j->n_want,
                         j->want_finish);
    }
}

static inline void client_event(struct client *c, const struct event *ev) {
    struct job *j = ev->request->user;

    if (!j->submitted || j->done)
        client_error(c, "event %d for a request that is not with the scheduler", ev->type);
    if (ev->type == EVENT_STARTED) {
        if (j->started)
            client_error(c, "STARTED twice");
        if (ev->cached >= j->r.n_prompt || (ev->cached > 0 && (j->r.no_prefix_cache || j->prompt_logprobs)))
            client_error(c, "%u of %u tokens cached", ev->cached, j->r.n_prompt);
        for (uint32_t i = 0; j->prompt_logprobs && i + 1 < j->r.n_prompt; i++)
            if (j->prompt_logprobs[i].id != j->prompt[i + 1])
                client_error(c, "prompt_logprobs[%u] missing", i);
        j->started = true;
        j->cached = ev->cached;
    } else if (ev->type == EVENT_TOKEN) {
        client_on_token(c, j, ev);
    } else {
        client_on_done(c, j, ev);
    }
    if (c->on_event)
        c->on_event(c, ev);
}

/* Takes what is there; waits for the next notify, at most timeout_ns, when nothing is. Returns events taken. */
static inline int client_pump(struct client *c, uint64_t timeout_ns) {
    struct event ev[64];
    int n, total = 0;

    while ((n = sched_poll(c->s, ev, 64)) > 0) {
        for (int i = 0; i < n; i++)
            client_event(c, &ev[i]);
        total += n;
    }
    if (total == 0 && timeout_ns > 0 && park_wait(&c->park, timeout_ns))
        return client_pump(c, 0);
    return total;
}

/* Until every submitted job is done. False: nothing came for 10 seconds. */
static inline bool client_drain(struct client *c) {
    uint64_t last = clock_mono_ns();

    while (c->n_live > 0) {
        if (client_pump(c, 100000000) > 0)
            last = clock_mono_ns();
        else if (clock_mono_ns() - last > 10000000000u)
            return false;
    }
    return true;
}

/* Small deterministic generator for tests. */
static inline uint32_t rnd(uint64_t *state) {
    *state += 0x9e3779b97f4a7c15u;
    uint64_t z = (*state ^ (*state >> 30)) * 0xbf58476d1ce4e5b9u;

    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)(z >> 32);
}

static inline uint32_t rnd_in(uint64_t *state, uint32_t lo, uint32_t hi) /* both included */
{
    return lo + rnd(state) % (hi - lo + 1);
}

#endif
