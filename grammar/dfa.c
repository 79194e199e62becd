/* SPDX-License-Identifier: Apache-2.0
 *
 * Deterministic automata: the subset construction over ranges of labels, intersection, difference. A call is a label like
 * any other here. States are found by a hash of their set (of nodes, or of the pair they stand for). */
#include <stdlib.h>
#include <string.h>

#include "grammar/internal.h"

struct table { uint32_t *slots; uint32_t n, mask; }; /* slot: 1 + state */

/* A DFA that grows state by state, edges in order of states. */
struct making {
    struct build *b;
    struct dfa *d;
    uint32_t cap_states, cap_first, cap_edges, n_edges;
    uint32_t cap_final;
};

static bool making_init(struct making *m, struct build *b) {
    *m = (struct making){ .b = b, .d = build__alloc(b, 1, sizeof *m->d) };
    return m->d;
}

static bool making_state(struct making *m, bool final) {
    bool *f = build__grow(m->b, m->d->final, m->d->n_states, &m->cap_final, sizeof *f);
    if (!f) return false;
    m->d->final = f;
    f[m->d->n_states++] = final;
    if (m->d->n_states > MAX_STATES) build__fail(m->b, ST_LIMIT, "grammar: more than %d states", MAX_STATES);
    return !m->b->status;
}

/* The edges of state `s` begin; states come in order. */
static bool making_begin(struct making *m, uint32_t s) {
    uint32_t *first = build__grow(m->b, m->d->first, s, &m->cap_first, sizeof *first);
    if (!first) return false;
    m->d->first = first;
    first[s] = m->n_edges;
    return true;
}

static void making_edge(struct making *m, uint32_t s, uint32_t lo, uint32_t hi, uint32_t to) {
    struct dfa_edge *x = m->n_edges > m->d->first[s] ? &m->d->edges[m->n_edges - 1] : NULL;
    if (x && x->to == to && x->hi + 1 == lo && lo < LABEL_CALL) {
        x->hi = hi;
        return;
    }
    struct dfa_edge *edges = build__grow(m->b, m->d->edges, m->n_edges, &m->cap_edges, sizeof *edges);
    if (!edges) return;
    m->d->edges = edges;
    edges[m->n_edges++] = (struct dfa_edge){ lo, hi, to };
}

/* ---- dead ends ---- */

static bool passable(const struct dfa_edge *x, const bool *productive) {
    return x->lo < LABEL_CALL || x->lo >= LABEL_FREE || !productive || productive[x->lo - LABEL_CALL];
}

/* Backwards from the ends, along an index of edges by target. */
bool dfa__live(struct build *b, const struct dfa *d, const bool *productive, bool *live) {
    uint32_t n = d->n_states, n_edges = d->first[n], n_stack = 0;
    uint32_t *at = build__alloc(b, n + 2u, sizeof *at), *by = build__alloc(b, n_edges, sizeof *by);
    uint32_t *stack = build__alloc(b, n, sizeof *stack);
    if (!at || !by || !stack || !build__work(b, (uint64_t)n + n_edges)) return false;
    for (uint32_t i = 0; i < n_edges; i++) at[d->edges[i].to + 2]++;
    for (uint32_t s = 0; s < n; s++) at[s + 2] += at[s + 1];
    for (uint32_t s = 0; s < n; s++)
        for (uint32_t i = d->first[s]; i < d->first[s + 1]; i++)
            by[at[d->edges[i].to + 1]++] = passable(&d->edges[i], productive) ? s : UINT32_MAX;
    for (uint32_t s = 0; s < n; s++)
        if ((live[s] = d->final[s])) stack[n_stack++] = s;
    while (n_stack > 0) {
        uint32_t s = stack[--n_stack];
        for (uint32_t i = at[s]; i < at[s + 1]; i++) {
            if (by[i] == UINT32_MAX || live[by[i]]) continue;
            live[by[i]] = true;
            stack[n_stack++] = by[i];
        }
    }
    return true;
}

static struct dfa *trim(struct build *b, struct dfa *d) {
    if (b->status || d->n_states == 0) return b->status ? NULL : d;
    bool *live = build__alloc(b, d->n_states, sizeof *live);
    uint32_t *name = build__alloc(b, d->n_states, sizeof *name), n = 0, n_edges = 0;
    if (!live || !name || !dfa__live(b, d, NULL, live)) return NULL;
    for (uint32_t s = 0; s < d->n_states; s++)
        if (live[s]) name[s] = n++;
    if (!live[0]) {
        d->n_states = 0;
        return d;
    }
    for (uint32_t s = 0; s < d->n_states; s++) {
        uint32_t from = d->first[s], end = d->first[s + 1];
        if (!live[s]) continue;
        d->first[name[s]] = n_edges;
        d->final[name[s]] = d->final[s];
        for (uint32_t i = from; i < end; i++) {
            struct dfa_edge x = d->edges[i];
            if (live[x.to]) d->edges[n_edges++] = (struct dfa_edge){ x.lo, x.hi, name[x.to] };
        }
    }
    d->first[n] = n_edges;
    d->n_states = n;
    return d;
}

/* ---- subset construction ---- */

struct subset { uint32_t at, n; };

struct det {
    struct making m;
    const struct nfa *nfa;
    struct frag f;
    uint32_t *first;          /* [n_nodes + 1] edges by node */
    struct nfa_edge *edges;
    uint32_t *seen, stamp;    /* [n_nodes] */
    uint32_t *stack;          /* [n_nodes] */
    uint32_t *members;        /* of all sets, one behind the other, each sorted */
    uint32_t n_members, cap_members;
    struct subset *sets;      /* [n_states] */
    uint32_t cap_sets;
    struct table t;
    struct nfa_edge *out;     /* labelled edges of the set in work */
    uint32_t n_out, cap_out;
    uint32_t *cuts, cap_cuts;
};

static int by_number(const void *pa, const void *pb) {
    const uint32_t *a = pa, *b = pb;
    return *a < *b ? -1 : *a > *b;
}

static int by_label(const void *pa, const void *pb) {
    const struct nfa_edge *a = pa, *b = pb;
    return a->lo < b->lo ? -1 : a->lo > b->lo;
}

static bool index_edges(struct det *d) {
    struct build *b = d->m.b;
    uint32_t n = d->nfa->n_nodes;
    d->first = build__alloc(b, n + 2u, sizeof *d->first);
    d->edges = build__alloc(b, d->nfa->n_edges, sizeof *d->edges);
    d->seen = build__alloc(b, n, sizeof *d->seen);
    d->stack = build__alloc(b, n, sizeof *d->stack);
    if (!d->first || !d->edges || !d->seen || !d->stack || !build__work(b, (uint64_t)n + d->nfa->n_edges)) return false;
    for (uint32_t i = 0; i < d->nfa->n_edges; i++) d->first[d->nfa->edges[i].from + 2]++;
    for (uint32_t i = 0; i < n; i++) d->first[i + 2] += d->first[i + 1];
    for (uint32_t i = 0; i < d->nfa->n_edges; i++) d->edges[d->first[d->nfa->edges[i].from + 1]++] = d->nfa->edges[i];
    return true;
}

static bool grow_table(struct build *b, struct table *t, const uint64_t *hash_of) {
    uint32_t size = t->slots ? (t->mask + 1) * 2 : 64;
    uint32_t *slots = build__alloc(b, size, sizeof *slots);
    if (!slots) return false;
    for (uint32_t i = 0; t->slots && i <= t->mask; i++) {
        if (t->slots[i] == 0) continue;
        uint32_t at = (uint32_t)hash_of[t->slots[i] - 1] & (size - 1);
        while (slots[at]) at = (at + 1) & (size - 1);
        slots[at] = t->slots[i];
    }
    t->slots = slots;
    t->mask = size - 1;
    return true;
}

/* Adds node and what empty steps lead to; only nodes that matter (with labels, or the end) become members. */
static void add_closure(struct det *d, uint32_t node) {
    uint32_t n_stack = 0;
    if (d->seen[node] == d->stamp) return;
    d->seen[node] = d->stamp;
    d->stack[n_stack++] = node;
    while (n_stack > 0 && build__work(d->m.b, 1)) {
        uint32_t at = d->stack[--n_stack];
        bool matters = at == d->f.to;
        for (uint32_t i = d->first[at]; i < d->first[at + 1]; i++) {
            const struct nfa_edge *x = &d->edges[i];
            if (x->lo <= x->hi) matters = true;
            else if (d->seen[x->to] != d->stamp) {
                d->seen[x->to] = d->stamp;
                d->stack[n_stack++] = x->to;
            }
        }
        if (!matters) continue;
        uint32_t *members = build__grow(d->m.b, d->members, d->n_members, &d->cap_members, sizeof *members);
        if (!members) return;
        d->members = members;
        members[d->n_members++] = at;
    }
}

struct det_hashes { uint64_t *h; uint32_t cap; };

/* The state of the set [at, n_members), new or known. UINT32_MAX: failed. */
static uint32_t state_of(struct det *d, struct det_hashes *hs, uint32_t at) {
    struct build *b = d->m.b;
    uint32_t n = d->n_members - at, *set = d->members + at, s;
    uint64_t h = n;
    bool final = false;
    qsort(set, n, sizeof *set, by_number);
    for (uint32_t i = 0; i < n; i++) {
        h = (h ^ set[i]) * 0x9E3779B97F4A7C15u;
        h ^= h >> 29;
        final |= set[i] == d->f.to;
    }
    if ((!d->t.slots || d->t.n * 2 > d->t.mask) && !grow_table(b, &d->t, hs->h)) return UINT32_MAX;
    for (uint32_t i = (uint32_t)h & d->t.mask;; i = (i + 1) & d->t.mask) {
        if (d->t.slots[i] == 0) {
            s = d->m.d->n_states;
            uint64_t *hashes = build__grow(b, hs->h, s, &hs->cap, sizeof *hashes);
            struct subset *sets = build__grow(b, d->sets, s, &d->cap_sets, sizeof *sets);
            if (!hashes || !sets || !making_state(&d->m, final)) return UINT32_MAX;
            hs->h = hashes;
            d->sets = sets;
            hashes[s] = h;
            sets[s] = (struct subset){ at, n };
            d->t.slots[i] = s + 1;
            d->t.n++;
            return s;
        }
        s = d->t.slots[i] - 1;
        if (hs->h[s] == h && d->sets[s].n == n && memcmp(d->members + d->sets[s].at, set, n * sizeof *set) == 0) {
            d->n_members = at;
            return s;
        }
    }
}

static bool gather_out(struct det *d, uint32_t s) {
    struct build *b = d->m.b;
    uint32_t n_cuts = 0;
    d->n_out = 0;
    for (uint32_t k = 0; k < d->sets[s].n; k++) {
        uint32_t node = d->members[d->sets[s].at + k];
        for (uint32_t i = d->first[node]; i < d->first[node + 1]; i++) {
            if (d->edges[i].lo > d->edges[i].hi) continue;
            struct nfa_edge *out = build__grow(b, d->out, d->n_out, &d->cap_out, sizeof *out);
            if (!out) return false;
            d->out = out;
            out[d->n_out++] = d->edges[i];
        }
    }
    if (d->cap_cuts < 2 * d->n_out) {
        d->cap_cuts = 4 * d->n_out;
        if (!(d->cuts = build__alloc(b, d->cap_cuts, sizeof *d->cuts))) return false;
    }
    for (uint32_t i = 0; i < d->n_out; i++) {
        d->cuts[n_cuts++] = d->out[i].lo;
        d->cuts[n_cuts++] = d->out[i].hi + 1;
    }
    if (d->n_out == 0) return true;
    qsort(d->out, d->n_out, sizeof *d->out, by_label);
    qsort(d->cuts, n_cuts, sizeof *d->cuts, by_number);
    return build__work(b, n_cuts);
}

/* Every stretch of labels between two cuts leads to one set. */
static void expand(struct det *d, struct det_hashes *hs, uint32_t s) {
    struct build *b = d->m.b;
    uint32_t begin = 0; /* edges before it end below the stretch */
    if (!making_begin(&d->m, s) || !gather_out(d, s)) return;
    for (uint32_t c = 0; c + 1 < 2 * d->n_out && !b->status; c++) {
        uint32_t lo = d->cuts[c], hi = d->cuts[c + 1] - 1, at = d->n_members;
        if (lo > hi || d->cuts[c] == d->cuts[c + 1]) continue;
        d->stamp++;
        while (begin < d->n_out && d->out[begin].hi < lo) begin++;
        for (uint32_t i = begin; i < d->n_out && d->out[i].lo <= lo && build__work(b, 1); i++)
            if (d->out[i].hi >= hi) add_closure(d, d->out[i].to);
        if (d->n_members == at || b->status) continue;
        uint32_t to = state_of(d, hs, at);
        if (to != UINT32_MAX) making_edge(&d->m, s, lo, hi, to);
    }
}

struct dfa *dfa__of(struct build *b, const struct nfa *n, struct frag f) {
    struct det d = { .nfa = n, .f = f };
    struct det_hashes hs = { 0 };
    d.members = build__grow(b, NULL, 0, &d.cap_members, sizeof *d.members); /* an empty set has an address, too */
    if (!d.members || !making_init(&d.m, b) || !index_edges(&d)) return NULL;
    d.stamp = 1;
    add_closure(&d, f.from);
    state_of(&d, &hs, 0);
    for (uint32_t s = 0; s < d.m.d->n_states && !b->status; s++) expand(&d, &hs, s);
    if (b->status || !making_begin(&d.m, d.m.d->n_states)) return NULL;
    if (!d.m.d->edges) d.m.d->edges = build__alloc(b, 1, sizeof *d.m.d->edges);
    return trim(b, d.m.d);
}

/* ---- pairs ---- */

enum { NOWHERE = UINT32_MAX };

struct pairs {
    struct making m;
    struct { uint32_t x, y; } *pair;
    uint32_t cap_pairs;
    uint64_t *hash;
    uint32_t cap_hash;
    struct table t;
    const struct dfa *x, *y;
    bool without;
};

static uint32_t pair_state(struct pairs *q, uint32_t x, uint32_t y) {
    struct build *b = q->m.b;
    uint64_t h = ((uint64_t)x << 32 | y) * 0x9E3779B97F4A7C15u;
    h ^= h >> 32;
    if ((!q->t.slots || q->t.n * 2 > q->t.mask) && !grow_table(b, &q->t, q->hash)) return NOWHERE;
    for (uint32_t i = (uint32_t)h & q->t.mask;; i = (i + 1) & q->t.mask) {
        uint32_t s = q->t.slots[i] ? q->t.slots[i] - 1 : q->m.d->n_states;
        if (q->t.slots[i] && q->pair[s].x == x && q->pair[s].y == y) return s;
        if (q->t.slots[i]) continue;
        void *pair = build__grow(b, q->pair, s, &q->cap_pairs, sizeof *q->pair);
        uint64_t *hash = build__grow(b, q->hash, s, &q->cap_hash, sizeof *hash);
        bool in_y = y != NOWHERE && q->y->final[y];
        if (!pair || !hash || !making_state(&q->m, q->x->final[x] && in_y != q->without)) return NOWHERE;
        q->pair = pair;
        q->hash = hash;
        q->pair[s].x = x;
        q->pair[s].y = y;
        hash[s] = h;
        q->t.slots[i] = s + 1;
        q->t.n++;
        return s;
    }
}

/* x's edges cut at the borders of y's. */
static void pair_expand(struct pairs *q, uint32_t s) {
    uint32_t x = q->pair[s].x, y = q->pair[s].y;
    const struct dfa_edge *a = q->x->edges + q->x->first[x], *a_end = q->x->edges + q->x->first[x + 1];
    const struct dfa_edge *c = NULL, *c_end = NULL;
    if (y != NOWHERE) {
        c = q->y->edges + q->y->first[y];
        c_end = q->y->edges + q->y->first[y + 1];
    }
    if (!making_begin(&q->m, s)) return;
    for (; a < a_end && build__work(q->m.b, 1); a++) {
        uint32_t lo = a->lo;
        while (c < c_end && c->hi < lo) c++;
        for (const struct dfa_edge *i = c; lo <= a->hi && build__work(q->m.b, 1);) {
            bool both = i < c_end && i->lo <= lo;
            uint32_t hi = both ? i->hi : i < c_end ? i->lo - 1 : a->hi, to;
            if (hi > a->hi) hi = a->hi;
            if (both || q->without) {
                to = pair_state(q, a->to, both ? i->to : NOWHERE);
                if (to == NOWHERE) return;
                making_edge(&q->m, s, lo, hi, to);
            }
            if (both && i->hi == hi) i++;
            lo = hi + 1;
        }
    }
}

static struct dfa *pairs_of(struct build *b, const struct dfa *x, const struct dfa *y, bool without) {
    struct pairs q = { .x = x, .y = y, .without = without };
    if (b->status || !x || !y || !making_init(&q.m, b)) return NULL;
    if (x->n_states > 0 && (y->n_states > 0 || without)) pair_state(&q, 0, y->n_states > 0 ? 0 : NOWHERE);
    for (uint32_t s = 0; s < q.m.d->n_states && !b->status; s++) pair_expand(&q, s);
    if (b->status || !making_begin(&q.m, q.m.d->n_states)) return NULL;
    if (!q.m.d->edges) q.m.d->edges = build__alloc(b, 1, sizeof *q.m.d->edges);
    return trim(b, q.m.d);
}

struct dfa *dfa__and(struct build *b, const struct dfa *x, const struct dfa *y) {
    return pairs_of(b, x, y, false);
}

struct dfa *dfa__without(struct build *b, const struct dfa *x, const struct dfa *y) {
    return pairs_of(b, x, y, true);
}
