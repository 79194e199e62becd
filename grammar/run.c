/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a text stands in a grammar: all the places it can be, at once. A place is a state and the stack of callers. Stacks
 * are a graph: calling a rule at one position makes one frame for it, whoever calls, so left recursion is a frame that
 * waits for itself and ambiguity costs polynomial work (Tomita's graph-structured stack, as in GLL parsing). A call whose
 * return would end the caller at once takes over the caller's frame, so right recursion does not pile up frames.
 *
 * Every place that remains after a byte can be completed (program.c removes the others), so a text is a prefix of the
 * language exactly when its set is not empty or the bottom was reached. */
#include <string.h>

#include "base/alloc.h"
#include "grammar/internal.h"

enum { FEW = 12, SEEN_BITS = 14, MAX_PLACES = 1 << (SEEN_BITS - 1), MAX_FRAMES = 1 << 20 };

int run__init(struct run *r, const struct program *p) {
    *r = (struct run){ .p = p, .cap = 256 };
    r->set = mem_alloc(r->cap * sizeof *r->set);
    r->rule_frame = mem_alloc(p->n_rules * sizeof *r->rule_frame);
    r->rule_stamp = mem_zalloc(p->n_rules, sizeof *r->rule_stamp);
    r->seen = mem_zalloc(1u << SEEN_BITS, sizeof *r->seen);
    return r->set && r->rule_frame && r->rule_stamp && r->seen ? ST_OK : ST_NOMEM;
}

void run__clear(struct run *r) {
    mem_free(r->set);
    mem_free(r->rule_frame);
    mem_free(r->rule_stamp);
    mem_free(r->seen);
}

/* ---- stacks ---- */

int stacks__init(struct stacks *k) {
    *k = (struct stacks){ .cap_frames = 64, .cap_edges = 64, .n_frames = 1 };
    k->frames = mem_alloc(k->cap_frames * sizeof *k->frames);
    k->edges = mem_alloc(k->cap_edges * sizeof *k->edges);
    if (!k->frames || !k->edges) return ST_NOMEM;
    k->frames[0].edges = UINT32_MAX;
    return ST_OK;
}

void stacks__clear(struct stacks *k) {
    mem_free(k->frames);
    mem_free(k->edges);
}

int stacks__copy(struct stacks *to, const struct stacks *from) {
    *to = *from;
    to->frames = mem_alloc(from->cap_frames * sizeof *to->frames);
    to->edges = mem_alloc(from->cap_edges * sizeof *to->edges);
    if (!to->frames || !to->edges) return ST_NOMEM;
    memcpy(to->frames, from->frames, from->n_frames * sizeof *to->frames);
    memcpy(to->edges, from->edges, from->n_edges * sizeof *to->edges);
    return ST_OK;
}

static uint32_t new_frame(struct run *r) {
    struct stacks *k = r->k;
    if (k->n_frames == k->cap_frames) {
        void *p = k->n_frames < MAX_FRAMES ? mem_realloc(k->frames, 2 * k->cap_frames * sizeof *k->frames) : NULL;
        if (!p) {
            r->status = k->n_frames < MAX_FRAMES ? ST_NOMEM : ST_LIMIT;
            return 0;
        }
        k->frames = p;
        k->cap_frames *= 2;
    }
    k->frames[k->n_frames].edges = UINT32_MAX;
    return k->n_frames++;
}

static void new_frame_edge(struct run *r, uint32_t frame, uint32_t to, uint32_t parent) {
    struct stacks *k = r->k;
    if (k->n_edges == k->cap_edges) {
        void *p = k->n_edges < 4 * MAX_FRAMES ? mem_realloc(k->edges, 2 * k->cap_edges * sizeof *k->edges) : NULL;
        if (!p) {
            r->status = k->n_edges < 4 * MAX_FRAMES ? ST_NOMEM : ST_LIMIT;
            return;
        }
        k->edges = p;
        k->cap_edges *= 2;
    }
    k->edges[k->n_edges] = (struct frame_edge){ to, parent, k->frames[frame].edges };
    k->frames[frame].edges = k->n_edges++;
}

/* Marks, then moves down in order. A frame may wait for a younger one of its position, so names come before moves. */
int stacks__compact(struct stacks *k, struct config *set, uint32_t n) {
    uint32_t *name = mem_zalloc(k->n_frames, sizeof *name), *stack = mem_alloc(k->n_frames * sizeof *stack);
    struct frame_edge *edges = mem_alloc((k->n_edges + 1u) * sizeof *edges);
    uint32_t n_stack = 0, n_frames = 1, n_edges = 0;
    if (!name || !stack || !edges) {
        mem_free(name);
        mem_free(stack);
        mem_free(edges);
        return ST_NOMEM;
    }
    name[0] = 1;
    for (uint32_t i = 0; i < n; i++) {
        if (name[set[i].frame]) continue;
        name[set[i].frame] = 1;
        stack[n_stack++] = set[i].frame;
    }
    while (n_stack > 0) {
        for (uint32_t i = k->frames[stack[--n_stack]].edges, next; i != UINT32_MAX; i = next) {
            next = k->edges[i].next;
            if (name[k->edges[i].parent]) continue;
            name[k->edges[i].parent] = 1;
            stack[n_stack++] = k->edges[i].parent;
        }
    }
    for (uint32_t f = 1; f < k->n_frames; f++) name[f] = name[f] ? n_frames++ : UINT32_MAX;
    name[0] = 0;
    for (uint32_t f = 1; f < k->n_frames; f++) {
        if (name[f] == UINT32_MAX) continue;
        uint32_t first = UINT32_MAX;
        for (uint32_t i = k->frames[f].edges; i != UINT32_MAX; i = k->edges[i].next) {
            edges[n_edges] = (struct frame_edge){ k->edges[i].to, name[k->edges[i].parent], first };
            first = n_edges++;
        }
        k->frames[name[f]].edges = first;
    }
    memcpy(k->edges, edges, n_edges * sizeof *edges);
    for (uint32_t i = 0; i < n; i++) set[i].frame = name[set[i].frame];
    k->n_frames = n_frames;
    k->n_edges = n_edges;
    mem_free(name);
    mem_free(stack);
    mem_free(edges);
    return ST_OK;
}

/* ---- sets ---- */

static void next_stamp(struct run *r) {
    if (++r->stamp != 0) return;
    memset(r->seen, 0, sizeof *r->seen << SEEN_BITS);
    memset(r->rule_stamp, 0, r->p->n_rules * sizeof *r->rule_stamp);
    r->stamp = 1;
}

void run__begin(struct run *r, uint32_t *base) {
    next_stamp(r);
    *base = r->n;
    r->hashed = false;
    r->bottom = false;
}

/* True when it was there; else it is noted. */
static bool note(struct run *r, uint32_t state, uint32_t frame) {
    uint64_t h = ((uint64_t)state << 32 | frame) * 0x9E3779B97F4A7C15u;
    for (uint32_t i = (uint32_t)(h >> (64 - SEEN_BITS));; i = (i + 1) & ((1u << SEEN_BITS) - 1)) {
        if (r->seen[i].stamp != r->stamp) {
            r->seen[i].stamp = r->stamp;
            r->seen[i].state = state;
            r->seen[i].frame = frame;
            return false;
        }
        if (r->seen[i].state == state && r->seen[i].frame == frame) return true;
    }
}

static bool known(struct run *r, uint32_t base, uint32_t state, uint32_t frame) {
    if (r->n - base < FEW) {
        for (uint32_t i = base; i < r->n; i++)
            if (r->set[i].state == state && r->set[i].frame == frame) return true;
        return false;
    }
    if (!r->hashed)
        for (uint32_t i = base; i < r->n; i++) note(r, r->set[i].state, r->set[i].frame);
    r->hashed = true;
    return note(r, state, frame);
}

bool run__work(struct run *r) {
    if (r->work_left == 0 && !r->status) r->status = ST_LIMIT;
    if (r->status) return false;
    r->work_left--;
    return true;
}

void run__add(struct run *r, uint32_t base, uint32_t state, uint32_t frame) {
    if (r->n - base >= MAX_PLACES) r->status = ST_LIMIT;
    if (!run__work(r) || known(r, base, state, frame)) return;
    if (r->n == r->cap) {
        void *p = mem_realloc(r->set, 2 * r->cap * sizeof *r->set);
        if (!p) {
            r->status = ST_NOMEM;
            return;
        }
        r->set = p;
        r->cap *= 2;
    }
    r->set[r->n++] = (struct config){ state, frame };
}

static void call(struct run *r, uint32_t base, const struct prog_call *c, uint32_t frame) {
    const struct prog_rule *rule = &r->p->rules[c->rule];
    if (rule->nullable) run__add(r, base, c->to, frame);
    if (!run__work(r)) return;
    if (r->p->states[c->to].tail) {
        run__add(r, base, rule->start, frame);
        return;
    }
    if (r->rule_stamp[c->rule] != r->stamp) {
        uint32_t f = new_frame(r);
        if (r->status) return;
        r->rule_stamp[c->rule] = r->stamp;
        r->rule_frame[c->rule] = f;
        run__add(r, base, rule->start, f);
    }
    new_frame_edge(r, r->rule_frame[c->rule], c->to, frame);
}

/* An end at the position where its rule was called needs no care: such a rule is nullable, and call() went past it. */
void run__close(struct run *r, uint32_t base) {
    const struct program *p = r->p;
    uint32_t n = base;
    for (uint32_t i = base; i < r->n && !r->status; i++) {
        struct config c = r->set[i];
        const struct prog_state *s = &p->states[c.state];
        for (uint32_t k = s->calls; k < s[1].calls; k++) call(r, base, &p->calls[k], c.frame);
        if (!s->final) continue;
        if (c.frame == 0) r->bottom = true;
        for (uint32_t e = r->k->frames[c.frame].edges; e != UINT32_MAX; e = r->k->edges[e].next)
            run__add(r, base, r->k->edges[e].to, r->k->edges[e].parent);
    }
    for (uint32_t i = base; i < r->n; i++) {
        const struct prog_state *s = &p->states[r->set[i].state];
        if (s->edges < s[1].edges) r->set[n++] = r->set[i];
    }
    r->n = n;
}

bool run__step(struct run *r, uint32_t base, uint32_t end, uint8_t byte) {
    const struct program *p = r->p;
    uint32_t next;
    run__begin(r, &next);
    for (uint32_t i = base; i < end; i++) {
        struct config c = r->set[i];
        const struct prog_edge *x = p->edges + p->states[c.state].edges, *x_end = p->edges + p->states[c.state + 1].edges;
        while (x < x_end && x->hi < byte) x++;
        if (x < x_end && x->lo <= byte) run__add(r, next, x->to, c.frame);
    }
    run__close(r, next);
    return r->n > next || r->bottom;
}
