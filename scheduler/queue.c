/* SPDX-License-Identifier: Apache-2.0
 *
 * Who of those waiting goes next. Three levels:
 *
 *   lane    tenant and priority. The lowest priority number first; among lanes of equal priority the tenant that was given
 *           the fewest tokens for its weight.
 *   group   one API call: within a lane calls take turns, so one with a hundred prompts delays the next by one of them.
 *   FIFO    within a call.
 *
 * The count of tokens is kept as in Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024): a tenant is
 * charged its prompt when it is let in and its output token by token, so nobody has to know how long an answer gets; and
 * one that comes back after a pause is raised to the least count among those that wait, so nobody saves up. While two
 * tenants both wait, what they are given for their weight differs by what runs at once at most, whatever they send.
 *
 * E only. Everything is allocated at start: there are never more lanes or groups than sequences. */
#include "scheduler/internal.h"

#include "base/alloc.h"
#include "base/status.h"

int queue__init(struct queue *w, uint32_t cap, uint32_t n_tenants) {
    uint64_t n_buckets = 1;

    while (n_buckets < cap)
        n_buckets *= 2;
    *w = (struct queue){.mask = n_buckets - 1};
    w->tenants = mem_zalloc(n_tenants, sizeof *w->tenants);
    w->lane_pool = mem_zalloc(cap, sizeof *w->lane_pool);
    w->groups = mem_zalloc(cap, sizeof *w->groups);
    w->buckets = mem_zalloc(n_buckets, sizeof(struct queue_group *));
    if (!w->tenants || !w->lane_pool || !w->groups || !w->buckets) {
        queue__clear(w);
        return ST_NOMEM;
    }
    for (uint32_t i = 0; i < cap; i++) {
        w->groups[i].next_turn = w->free;
        w->free = &w->groups[i];
        w->lane_pool[i].next = w->free_lanes;
        w->free_lanes = &w->lane_pool[i];
    }
    return ST_OK;
}

void queue__clear(struct queue *w) {
    mem_free(w->tenants);
    mem_free(w->lane_pool);
    mem_free(w->groups);
    mem_free(w->buckets);
    *w = (struct queue){0};
}

/* ---- tenants ---- */

/* The count a tenant starts from that did not wait: the least of those that do, else that of who left last. */
static uint64_t floor_count(const struct queue *w) {
    uint64_t least = w->lanes ? UINT64_MAX : w->tenants[w->last].count;

    for (const struct queue_lane *l = w->lanes; l; l = l->next)
        if (w->tenants[l->tenant].count < least)
            least = w->tenants[l->tenant].count;
    return least;
}

void queue__charge(struct queue *w, const struct request *r, uint64_t n_tokens) {
    struct queue_tenant *t = &w->tenants[r->tenant];

    t->count += n_tokens * QUEUE_COUNT_SCALE / t->weight;
}

/* ---- lanes ---- */

static void turn_append(struct queue_lane *l, struct queue_group *g) {
    g->next_turn = NULL;
    if (l->turn)
        l->turn_tail->next_turn = g;
    else
        l->turn = g;
    l->turn_tail = g;
}

static struct queue_lane *lane_find_or_add(struct queue *w, const struct request *r) {
    struct queue_lane **link = &w->lanes, *l;

    for (; (l = *link) != NULL; link = &l->next)
        if (l->tenant == r->tenant && l->priority == r->priority)
            return l;
    l = w->free_lanes;
    w->free_lanes = l->next;
    *l = (struct queue_lane){.tenant = r->tenant, .priority = r->priority};
    *link = l;
    return l;
}

static void lane_release(struct queue *w, struct queue_lane *l) {
    struct queue_lane **link = &w->lanes;

    while (*link != l)
        link = &(*link)->next;
    *link = l->next;
    l->next = w->free_lanes;
    w->free_lanes = l;
}

/* The older lane among equals. */
static struct queue_lane *lane_next(const struct queue *w) {
    struct queue_lane *best = w->lanes;

    for (struct queue_lane *l = w->lanes; l; l = l->next)
        if (l->priority < best->priority ||
            (l->priority == best->priority && w->tenants[l->tenant].count < w->tenants[best->tenant].count))
            best = l;
    return best;
}

/* ---- groups ---- */

static struct queue_group **bucket_of(const struct queue *w, uint64_t key) {
    key *= 0x9e3779b97f4a7c15u; /* keys are often consecutive or pointers: spread them */
    return &w->buckets[(key >> 32) & w->mask];
}

static struct queue_group *group_find_or_add(struct queue *w, struct queue_lane *l, uint64_t key) {
    struct queue_group **bucket = bucket_of(w, key);
    struct queue_group *g = *bucket;

    while (g && (g->key != key || g->lane != l))
        g = g->next_hash;
    if (g)
        return g;
    g = w->free;
    w->free = g->next_turn;
    *g = (struct queue_group){.key = key, .lane = l, .next_hash = *bucket};
    *bucket = g;
    turn_append(l, g);
    return g;
}

/* g is out of the turn line already. */
static void group_release(struct queue *w, struct queue_group *g) {
    struct queue_group **link = bucket_of(w, g->key);

    while (*link != g)
        link = &(*link)->next_hash;
    *link = g->next_hash;
    g->next_turn = w->free;
    w->free = g;
}

/* ---- the queue ---- */

void queue__push(struct queue *w, struct seq *q) {
    const struct request *r = q->request;
    struct queue_tenant *t = &w->tenants[r->tenant];
    struct queue_group *g;

    if (t->n++ == 0) {
        uint64_t least = floor_count(w);

        if (t->count < least)
            t->count = least;
    }
    t->weight = r->weight > 0 ? r->weight : 1;
    g = group_find_or_add(w, lane_find_or_add(w, r), r->group);
    q->next = NULL;
    if (g->head)
        g->tail->next = q;
    else
        g->head = q;
    g->tail = q;
    w->n++;
}

struct seq *queue__peek(const struct queue *w) {
    return w->lanes ? lane_next(w)->turn->head : NULL;
}

static void left(struct queue *w, uint32_t tenant) {
    w->n--;
    w->tenants[tenant].n--;
    w->last = tenant;
}

void queue__pop(struct queue *w) {
    struct queue_lane *l = lane_next(w);
    struct queue_group *g = l->turn;

    left(w, l->tenant);
    g->head = g->head->next;
    l->turn = g->next_turn;
    if (g->head)
        turn_append(l, g);
    else
        group_release(w, g);
    if (!l->turn)
        lane_release(w, l);
}

/* Takes the picked ones out of one group; returns where the next picked one is to be linked. */
static struct seq **group_extract(struct queue *w, struct queue_group *g, bool (*pick)(void *, const struct seq *),
                                  void *ctx, struct seq **out) {
    struct seq **link = &g->head;

    g->tail = NULL;
    while (*link) {
        struct seq *q = *link;

        if (pick(ctx, q)) {
            *link = q->next;
            q->next = NULL;
            *out = q;
            out = &q->next;
            left(w, g->lane->tenant);
        } else {
            g->tail = q;
            link = &q->next;
        }
    }
    return out;
}

static struct seq **lane_extract(struct queue *w, struct queue_lane *l, bool (*pick)(void *, const struct seq *), void *ctx,
                                 struct seq **out) {
    struct queue_group *g = l->turn, *next;

    l->turn = NULL;
    for (; g; g = next) {
        next = g->next_turn;
        out = group_extract(w, g, pick, ctx, out);
        if (g->head)
            turn_append(l, g);
        else
            group_release(w, g);
    }
    return out;
}

struct seq *queue__extract(struct queue *w, bool (*pick)(void *, const struct seq *), void *ctx) {
    struct seq *picked = NULL, **out = &picked;
    struct queue_lane *l = w->lanes, *next;

    for (; l; l = next) {
        next = l->next;
        out = lane_extract(w, l, pick, ctx, out);
        if (!l->turn)
            lane_release(w, l);
    }
    return picked;
}
