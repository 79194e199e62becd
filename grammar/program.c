/* SPDX-License-Identifier: Apache-2.0
 *
 * All rules of a grammar as one array of states. What cannot be part of any text is left out: rules nobody calls, rules
 * without a finite text, states that lead nowhere. So whatever a run has not ruled out can be completed.
 *
 * `same`: a counted loop has as many states as its count, and far from its bounds no token can tell them apart. States
 * are split into classes round by round (Moore), as many rounds as the longest token can make steps; the masks are
 * then kept per class. */
#include <string.h>

#include "base/alloc.h"
#include "grammar/internal.h"

struct link {
    struct build *b;
    struct dfa **dfa;       /* [n_rules] of those that can be reached, else NULL */
    bool *productive;       /* [n_rules] */
    bool *nullable;         /* [n_rules] */
    uint32_t *order;        /* rules as they were reached, the top first */
    uint32_t n;
    uint32_t *name;         /* [n_rules] number of the rule in the program, UINT32_MAX = left out */
    uint32_t **state_name;  /* [n_rules] -> [n_states], UINT32_MAX = left out */
};

static bool is_call(const struct dfa_edge *x) {
    return x->lo >= LABEL_CALL && x->lo < LABEL_FREE;
}

static bool make_dfas(struct link *l, uint32_t top) {
    struct build *b = l->b;
    bool *known = build__alloc(b, b->n_rules, sizeof *known);
    if (!known) return false;
    known[top] = true;
    l->order[l->n++] = top;
    for (uint32_t k = 0; k < l->n && !b->status; k++) {
        uint32_t r = l->order[k];
        struct dfa *d = l->dfa[r] = dfa__of(b, &b->rules[r].nfa, b->rules[r].frag);
        for (uint32_t i = 0; d && d->n_states > 0 && i < d->first[d->n_states]; i++) {
            if (!is_call(&d->edges[i]) || known[d->edges[i].lo - LABEL_CALL]) continue;
            known[d->edges[i].lo - LABEL_CALL] = true;
            l->order[l->n++] = d->edges[i].lo - LABEL_CALL;
        }
    }
    return !b->status;
}

/* Smallest sets that hold: a rule is productive when an end can be reached through productive calls alone. */
static bool find_productive(struct link *l) {
    struct build *b = l->b;
    bool changed = true;
    while (changed) {
        changed = false;
        for (uint32_t k = l->n; k-- > 0;) {
            uint32_t r = l->order[k];
            struct dfa *d = l->dfa[r];
            if (l->productive[r] || d->n_states == 0) continue;
            bool *live = build__alloc(b, d->n_states, sizeof *live);
            if (!live || !dfa__live(b, d, l->productive, live)) return false;
            changed |= l->productive[r] = live[0];
        }
    }
    return true;
}

static bool reaches_end_without_text(struct link *l, const struct dfa *d, uint32_t *stack, bool *seen) {
    uint32_t n = 0;
    memset(seen, 0, d->n_states);
    stack[n++] = 0;
    seen[0] = true;
    while (n > 0 && build__work(l->b, 1)) {
        uint32_t s = stack[--n];
        if (d->final[s]) return true;
        for (uint32_t i = d->first[s]; i < d->first[s + 1]; i++) {
            const struct dfa_edge *x = &d->edges[i];
            if (!is_call(x) || !l->nullable[x->lo - LABEL_CALL] || seen[x->to]) continue;
            seen[x->to] = true;
            stack[n++] = x->to;
        }
    }
    return false;
}

static bool find_nullable(struct link *l) {
    struct build *b = l->b;
    uint32_t most = 1;
    for (uint32_t k = 0; k < l->n; k++)
        if (l->dfa[l->order[k]]->n_states > most) most = l->dfa[l->order[k]]->n_states;
    uint32_t *stack = build__alloc(b, most, sizeof *stack);
    bool *seen = build__alloc(b, most, sizeof *seen), changed = stack && seen;
    while (changed && !b->status) {
        changed = false;
        for (uint32_t k = l->n; k-- > 0 && build__work(b, 1);) {
            uint32_t r = l->order[k];
            if (!l->productive[r] || l->nullable[r]) continue;
            changed |= l->nullable[r] = reaches_end_without_text(l, l->dfa[r], stack, seen);
        }
    }
    return !b->status;
}

static bool kept(const struct link *l, uint32_t rule, const struct dfa_edge *x) {
    if (is_call(x) && !l->productive[x->lo - LABEL_CALL]) return false;
    return l->state_name[rule][x->to] != UINT32_MAX;
}

/* Numbers what stays: live states of productive rules, as far as the top reaches. */
static bool name_all(struct link *l, struct program *p, uint32_t top) {
    struct build *b = l->b;
    l->n = 0;
    for (uint32_t r = 0; r < b->n_rules; r++) l->name[r] = UINT32_MAX;
    l->name[top] = 0;
    l->order[l->n++] = top;
    for (uint32_t k = 0; k < l->n; k++) {
        uint32_t r = l->order[k];
        struct dfa *d = l->dfa[r];
        bool *live = build__alloc(b, d->n_states, sizeof *live);
        uint32_t *names = l->state_name[r] = build__alloc(b, d->n_states, sizeof *names);
        if (!live || !names || !dfa__live(b, d, l->productive, live)) return false;
        for (uint32_t s = 0; s < d->n_states; s++) names[s] = live[s] ? p->n_states++ : UINT32_MAX;
        for (uint32_t i = 0; i < d->first[d->n_states]; i++) {
            const struct dfa_edge *x = &d->edges[i];
            if (!is_call(x)) {
                p->n_edges += x->lo < LABEL_CALL;
                continue;
            }
            p->n_calls++;
            if (!kept(l, r, x) || l->name[x->lo - LABEL_CALL] != UINT32_MAX) continue;
            l->name[x->lo - LABEL_CALL] = l->n;
            l->order[l->n++] = x->lo - LABEL_CALL;
        }
    }
    p->n_rules = l->n;
    if (p->n_states > MAX_STATES) build__fail(b, ST_LIMIT, "grammar: more than %d states", MAX_STATES);
    return !b->status;
}

static void write_state(const struct link *l, struct program *p, uint32_t rule, uint32_t s) {
    const struct dfa *d = l->dfa[rule];
    struct prog_state *out = &p->states[l->state_name[rule][s]];
    *out = (struct prog_state){ .edges = p->n_edges, .calls = p->n_calls, .final = d->final[s], .top = l->name[rule] == 0 };
    for (uint32_t i = d->first[s]; i < d->first[s + 1]; i++) {
        const struct dfa_edge *x = &d->edges[i];
        if (x->lo == LABEL_FREE) out->free = true;
        if (x->lo == LABEL_TRIGGERED) p->triggered = l->state_name[rule][x->to];
        if (x->lo >= LABEL_FREE || !kept(l, rule, x)) continue;
        uint32_t to = l->state_name[rule][x->to];
        if (is_call(x)) p->calls[p->n_calls++] = (struct prog_call){ l->name[x->lo - LABEL_CALL], to };
        else p->edges[p->n_edges++] = (struct prog_edge){ (uint8_t)x->lo, (uint8_t)x->hi, to };
    }
    out->tail = out->final && p->n_edges == out->edges && p->n_calls == out->calls;
}

static void write_all(const struct link *l, struct program *p) {
    p->n_edges = p->n_calls = 0;
    p->triggered = UINT32_MAX;
    for (uint32_t k = 0; k < l->n; k++) {
        uint32_t r = l->order[k];
        p->rules[k] = (struct prog_rule){ l->state_name[r][0], l->nullable[r] };
        for (uint32_t s = 0; s < l->dfa[r]->n_states; s++)
            if (l->state_name[r][s] != UINT32_MAX) write_state(l, p, r, s);
    }
    p->states[p->n_states] = (struct prog_state){ .edges = p->n_edges, .calls = p->n_calls };
}

/* ---- states no token can tell apart ---- */

static uint64_t mix(uint64_t h, uint64_t v) {
    h = ((h ^ v) + 0x9E3779B97F4A7C15u) * 0xBF58476D1CE4E5B9u; /* the sum, so that zeros do not stay zero */
    return h ^ h >> 31;
}

/* How many empty calls can follow one another: each is a step without a byte. UINT32_MAX: no end of them. */
static uint32_t longest_empty_chain(const struct program *p, struct build *b, uint32_t *length) {
    uint32_t longest = 0;
    for (uint32_t round = 0; round < 16; round++) {
        bool changed = false;
        for (uint32_t s = p->n_states; s-- > 0 && build__work(b, 1);) {
            for (uint32_t i = p->states[s].calls; i < p->states[s + 1].calls; i++) {
                if (!p->rules[p->calls[i].rule].nullable || length[s] > length[p->calls[i].to]) continue;
                length[s] = length[p->calls[i].to] + 1;
                longest = length[s] > longest ? length[s] : longest;
                changed = true;
            }
        }
        if (!changed) return longest;
    }
    return UINT32_MAX;
}

static uint64_t signature(const struct program *p, const uint32_t *group, uint32_t s) {
    const struct prog_state *x = &p->states[s];
    uint64_t h = mix(group[s], 1);
    for (uint32_t i = x->edges; i < x[1].edges; i++)
        h = mix(mix(h, (uint64_t)p->edges[i].lo << 8 | p->edges[i].hi), group[p->edges[i].to]);
    for (uint32_t i = x->calls; i < x[1].calls; i++) h = mix(mix(h, p->calls[i].rule + 0x10000u), group[p->calls[i].to]);
    return h;
}

struct groups { uint32_t *of, *next, *slots, mask, n; uint64_t *sig; };

/* One round; false when nothing was split. */
static bool refine(const struct program *p, struct groups *g) {
    uint32_t n = 0;
    memset(g->slots, 0xff, (g->mask + 1) * sizeof *g->slots);
    for (uint32_t s = 0; s < p->n_states; s++) {
        uint64_t h = g->sig[s] = signature(p, g->of, s);
        uint32_t i = (uint32_t)h & g->mask;
        while (g->slots[i] != UINT32_MAX && g->sig[g->slots[i]] != h) i = (i + 1) & g->mask;
        if (g->slots[i] == UINT32_MAX) {
            g->slots[i] = s;
            g->next[s] = n++;
        } else {
            g->next[s] = g->next[g->slots[i]];
        }
    }
    bool split = n > g->n;
    uint32_t *t = g->of;
    g->of = g->next;
    g->next = t;
    g->n = n;
    return split;
}

static bool find_same(struct program *p, struct build *b, uint32_t max_token_bytes) {
    struct groups g = { .mask = 1 };
    while (g.mask < 2 * p->n_states) g.mask = g.mask * 2 + 1;
    g.of = build__alloc(b, p->n_states, sizeof *g.of);
    g.next = build__alloc(b, p->n_states, sizeof *g.next);
    g.slots = build__alloc(b, g.mask + 1u, sizeof *g.slots);
    g.sig = build__alloc(b, p->n_states, sizeof *g.sig);
    if (!g.of || !g.next || !g.slots || !g.sig) return false;
    for (uint32_t s = 0; s < p->n_states; s++) p->states[s].same = s;
    uint32_t chain = longest_empty_chain(p, b, g.next);
    if (chain == UINT32_MAX || b->status) return !b->status;
    uint64_t rounds = (uint64_t)(max_token_bytes + 1) * (chain + 1);
    for (uint32_t s = 0; s < p->n_states; s++) g.of[s] = p->states[s].final | p->states[s].free << 1 | p->states[s].top << 2;
    g.n = 1;
    while (rounds-- > 0) {
        /* out of patience only means fewer masks in common */
        uint64_t cost = ((uint64_t)p->n_states + p->n_edges + p->n_calls) / 8 + 1;
        if (cost > b->work_left) return true;
        b->work_left -= cost;
        if (!refine(p, &g)) break;
    }
    memset(g.next, 0xff, p->n_states * sizeof *g.next);
    for (uint32_t s = 0; s < p->n_states; s++) {
        if (g.next[g.of[s]] == UINT32_MAX) g.next[g.of[s]] = s;
        p->states[s].same = g.next[g.of[s]];
    }
    return true;
}

int program__make(struct program *p, struct build *b, uint32_t top, uint32_t max_token_bytes) {
    *p = (struct program){ 0 };
    if (b->status) return b->status;
    struct link l = { .b = b };
    uint32_t n = b->n_rules;
    l.dfa = build__alloc(b, n, sizeof(struct dfa *));
    l.productive = build__alloc(b, n, sizeof *l.productive);
    l.nullable = build__alloc(b, n, sizeof *l.nullable);
    l.order = build__alloc(b, n, sizeof *l.order);
    l.name = build__alloc(b, n, sizeof *l.name);
    l.state_name = build__alloc(b, n, sizeof(uint32_t *));
    if (b->status || !make_dfas(&l, top) || !find_productive(&l)) return b->status;
    if (!l.productive[top]) return build__fail(b, ST_INVALID, "grammar: no text satisfies it");
    if (!find_nullable(&l) || !name_all(&l, p, top)) return b->status;
    p->states = mem_zalloc(p->n_states + 1u, sizeof *p->states);
    p->edges = mem_zalloc(p->n_edges + 1u, sizeof *p->edges);
    p->calls = mem_zalloc(p->n_calls + 1u, sizeof *p->calls);
    p->rules = mem_zalloc(p->n_rules, sizeof *p->rules);
    if (!p->states || !p->edges || !p->calls || !p->rules) return build__fail(b, ST_NOMEM, "grammar: out of memory");
    write_all(&l, p);
    find_same(p, b, max_token_bytes);
    return b->status;
}

void program__clear(struct program *p) {
    mem_free(p->states);
    mem_free(p->edges);
    mem_free(p->calls);
    mem_free(p->rules);
}
