/* SPDX-License-Identifier: Apache-2.0
 *
 * Fair order of waiting sequences: first come first served within a group, round robin between groups. One API call
 * with a hundred prompts is one group, so a request that arrives after it waits for one of them, not for all. E only.
 * Everything is allocated at start: there are never more groups than sequences. */
#include "scheduler/internal.h"

#include "base/alloc.h"
#include "base/status.h"

int queue__init(struct queue *w, uint32_t cap) {
    uint64_t n_buckets = 1;

    while (n_buckets < cap)
        n_buckets *= 2;
    *w = (struct queue){.mask = n_buckets - 1};
    w->groups = mem_zalloc(cap, sizeof *w->groups);
    w->buckets = mem_zalloc(n_buckets, sizeof(struct queue_group *));
    if (!w->groups || !w->buckets) {
        queue__clear(w);
        return ST_NOMEM;
    }
    for (uint32_t i = 0; i < cap; i++) {
        w->groups[i].next_turn = w->free;
        w->free = &w->groups[i];
    }
    return ST_OK;
}

void queue__clear(struct queue *w) {
    mem_free(w->groups);
    mem_free(w->buckets);
    *w = (struct queue){0};
}

static struct queue_group **bucket_of(const struct queue *w, uint64_t key) {
    key *= 0x9e3779b97f4a7c15u; /* keys are often consecutive or pointers: spread them */
    return &w->buckets[(key >> 32) & w->mask];
}

static void turn_append(struct queue *w, struct queue_group *g) {
    g->next_turn = NULL;
    if (w->turn)
        w->turn_tail->next_turn = g;
    else
        w->turn = g;
    w->turn_tail = g;
}

static struct queue_group *group_find_or_add(struct queue *w, uint64_t key) {
    struct queue_group **bucket = bucket_of(w, key);
    struct queue_group *g = *bucket;

    while (g && g->key != key)
        g = g->next_hash;
    if (g)
        return g;
    g = w->free;
    w->free = g->next_turn;
    *g = (struct queue_group){.key = key, .next_hash = *bucket};
    *bucket = g;
    turn_append(w, g);
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

void queue__push(struct queue *w, struct seq *q) {
    struct queue_group *g = group_find_or_add(w, q->request->group);

    q->next = NULL;
    if (g->head)
        g->tail->next = q;
    else
        g->head = q;
    g->tail = q;
    w->n++;
}

struct seq *queue__peek(const struct queue *w) {
    return w->turn ? w->turn->head : NULL;
}

void queue__pop(struct queue *w) {
    struct queue_group *g = w->turn;

    g->head = g->head->next;
    w->turn = g->next_turn;
    w->n--;
    if (g->head)
        turn_append(w, g);
    else
        group_release(w, g);
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
            w->n--;
        } else {
            g->tail = q;
            link = &q->next;
        }
    }
    return out;
}

struct seq *queue__extract(struct queue *w, bool (*pick)(void *, const struct seq *), void *ctx) {
    struct seq *picked = NULL, **out = &picked;
    struct queue_group *g = w->turn;

    w->turn = NULL;
    while (g) {
        struct queue_group *next = g->next_turn;

        out = group_extract(w, g, pick, ctx, out);
        if (g->head)
            turn_append(w, g);
        else
            group_release(w, g);
        g = next;
    }
    return picked;
}
