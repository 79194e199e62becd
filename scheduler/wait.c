/* SPDX-License-Identifier: Apache-2.0
 *
 * Places and waiting times. Who may take a place is decided on L, at submit; how long it would be is told by numbers that
 * E leaves behind: how long a request has its place in the batch, how many run, and who has left the queue. Each
 * is one relaxed atomic with one writer, so an answer may be a step old. */
#include "scheduler/internal.h"

#include "base/alloc.h"
#include "base/status.h"

enum { N_PRIORITIES = SCHED_PRIORITY_MAX - SCHED_PRIORITY_MIN + 1 };

/* Requests of one tenant and priority that ever came to wait, and that ever stopped waiting. */
struct waiting_line { _Atomic uint64_t n_in, n_out; /* L; E */ };

struct waiting {
    struct waiting_line lines[N_PRIORITIES];
    uint32_t n_live;            /* L: places held                                              */
    _Atomic uint32_t weight;    /* L                                                           */
};

int wait__init(struct sched *s) {
    s->waiting = mem_zalloc(s->o.n_tenants, sizeof *s->waiting);
    return s->waiting ? ST_OK : ST_NOMEM;
}

void wait__clear(struct sched *s) {
    mem_free(s->waiting);
}

/* ---- L ---- */

bool wait__has_place(const struct sched *s, const struct request *r) {
    uint32_t n_free = s->max_live - s->n_live;

    return n_free > 0 && (s->o.n_tenants == 1 || s->waiting[r->tenant].n_live < SCHED_SHARE * (uint64_t)n_free);
}

void wait__submitted(struct sched *s, const struct request *r) {
    struct waiting *t = &s->waiting[r->tenant];

    s->n_live++;
    t->n_live++;
    if (r->tenant >= atomic_load_explicit(&s->n_tenants_seen, memory_order_relaxed))
        atomic_store_explicit(&s->n_tenants_seen, r->tenant + 1, memory_order_relaxed);
    atomic_store_explicit(&t->weight, r->weight, memory_order_relaxed);
    metrics__add(&t->lines[r->priority - SCHED_PRIORITY_MIN].n_in, 1);
}

void wait__done(struct sched *s, const struct request *r) {
    s->n_live--;
    s->waiting[r->tenant].n_live--;
}

uint32_t sched_most_places(const struct sched *s) {
    return s->o.n_tenants == 1 ? s->max_live : (uint32_t)((uint64_t)s->max_live * SCHED_SHARE / (SCHED_SHARE + 1));
}

/* ---- E ---- */

void wait__left(struct sched *s, const struct request *r) {
    metrics__add(&s->waiting[r->tenant].lines[r->priority - SCHED_PRIORITY_MIN].n_out, 1);
}

/* ---- any thread ---- */

static uint64_t get(const _Atomic uint64_t *c) {
    return atomic_load_explicit(c, memory_order_relaxed);
}

static uint64_t weight_of(const struct waiting *t) {
    uint32_t w = atomic_load_explicit(&t->weight, memory_order_relaxed);

    return w > 0 ? w : 1;
}

static uint64_t n_in_line(const struct waiting *t, int priority) {
    const struct waiting_line *l = &t->lines[priority - SCHED_PRIORITY_MIN];
    uint64_t n_out = get(&l->n_out), n_in = get(&l->n_in);

    return n_in > n_out ? n_in - n_out : 0;
}

/* Who would go before a new request: all that are more urgent, and of its own urgency what fair turns put before it. */
static uint64_t n_ahead(const struct sched *s, uint32_t tenant, int priority) {
    const struct waiting *own = &s->waiting[tenant];
    uint64_t n = n_in_line(own, priority), turns = n + 1;
    uint32_t n_tenants = atomic_load_explicit(&s->n_tenants_seen, memory_order_relaxed);

    for (uint32_t i = 0; i < n_tenants; i++) {
        const struct waiting *t = &s->waiting[i];

        for (int p = SCHED_PRIORITY_MIN; p < priority; p++)
            n += n_in_line(t, p);
        if (t != own) {
            uint64_t most = (turns * weight_of(t) + weight_of(own) - 1) / weight_of(own), there = n_in_line(t, priority);

            n += there < most ? there : most;
        }
    }
    return n;
}

uint64_t sched_wait_ns(const struct sched *s, uint32_t tenant, int priority) {
    const struct metrics *m = &s->m;
    uint64_t n = n_ahead(s, tenant, priority) + atomic_load_explicit(&m->n_paused, memory_order_relaxed);
    uint64_t n_free = atomic_load_explicit(&m->n_free, memory_order_relaxed), ns = get(&m->stay_ns);
    uint32_t n_places = atomic_load_explicit(&m->n_places, memory_order_relaxed);

    if (n < n_free)
        return 0;
    n = n - n_free + 1;
    return ns > UINT64_MAX / n ? UINT64_MAX : ns * n / n_places;
}

uint32_t sched_retry_after_s(const struct sched *s, uint32_t tenant, int priority) {
    enum { MOST_S = 600 }; /* beyond this it is a guess */
    uint64_t ns = sched_wait_ns(s, tenant, priority), seconds = ns / 1000000000 + (ns % 1000000000 != 0);

    return seconds < 1 ? 1 : seconds > MOST_S ? MOST_S : (uint32_t)seconds;
}
