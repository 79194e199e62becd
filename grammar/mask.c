/* SPDX-License-Identifier: Apache-2.0
 *
 * Masks: a walk through the trie from each place of the set, remembered. A place is a state and a stack, and nearly all of
 * its answer depends on the state alone: an entry holds the tokens that stay within the state's rule, and the trie nodes
 * at which the rule may end ("exits"). What follows an exit depends on the caller: a child entry, per state the caller goes
 * on in, holds the tokens that end in there and the exits that are still open. So an entry is a state and a few return
 * states, as many as tokens really look at, and every stack with that beginning shares it.
 *
 * When the cache is full it is emptied. The rest of a long chain is walked as it is, and so is the whole set when stacks
 * branch so much that putting entries together would take longer. */
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "grammar/internal.h"

enum {
    CACHE_BYTES = 24 << 20,  /* per grammar */
    MAX_CHAIN = 5,
    MAX_VISITS = 512,        /* of one mask */
    VISIT_SLOTS = 1024,
    MASK_WORK = 16 << 20,
};

struct entry {
    uint32_t to;               /* child: state the caller goes on in                       */
    struct entry *next, *child;
    uint32_t n_ids, n_exits;
    uint32_t *words;           /* [n_words] when the ids are many                          */
    int32_t *ids;              /* [n_ids] otherwise                                        */
    uint32_t *exits;           /* [n_exits] trie nodes with something below                */
    size_t bytes;
};

int cache__init(struct cache *c, const struct program *p, const struct grammar_vocab *v) {
    *c = (struct cache){ .cap_exits = 256 };
    c->by_state = mem_zalloc(p->n_states, sizeof(struct entry *));
    c->words = mem_zalloc(v->n_words, sizeof *c->words);
    c->exits = mem_alloc(c->cap_exits * sizeof *c->exits);
    int status = stacks__init(&c->stacks);
    return c->by_state && c->words && c->exits ? status : ST_NOMEM;
}

static void drop_entries(struct entry *x) {
    while (x) {
        struct entry *next = x->next;
        drop_entries(x->child); /* MAX_CHAIN deep */
        mem_free(x);
        x = next;
    }
}

static void empty(struct cache *c, const struct program *p) {
    for (uint32_t s = 0; c->by_state && s < p->n_states; s++) {
        drop_entries(c->by_state[s]);
        c->by_state[s] = NULL;
    }
    c->bytes = 0;
}

void cache__clear(struct cache *c, const struct program *p) {
    empty(c, p);
    mem_free(c->by_state);
    mem_free(c->words);
    mem_free(c->exits);
    stacks__clear(&c->stacks);
}

/* ---- walk ---- */

struct walk {
    struct grammar *g;
    const struct trie_node *nodes;
    const struct program *p;
    uint32_t *words;
    bool want_exits;
    bool skip_plain;           /* plain tokens are in `words` already                      */
};

static void accept_node(struct walk *w, uint32_t node) {
    const int32_t *ids = w->g->v->ids;
    for (uint32_t i = w->nodes[node].tok; i < w->nodes[node + 1].tok; i++) w->words[ids[i] / 32] |= 1u << ids[i] % 32;
}

static bool has_below(const struct walk *w, uint32_t node) {
    return w->nodes[node].end > node + 1;
}

static void exit_at(struct walk *w, uint32_t node) {
    struct cache *c = &w->g->cache;
    if (!w->want_exits || !has_below(w, node)) return;
    if (c->n_exits == c->cap_exits) {
        void *p = mem_realloc(c->exits, 2 * c->cap_exits * sizeof *c->exits);
        if (!p) {
            w->g->run.status = ST_NOMEM;
            return;
        }
        c->exits = p;
        c->cap_exits *= 2;
    }
    c->exits[c->n_exits++] = node;
}

static void walk_set(struct walk *w, uint32_t node, uint32_t base, uint32_t end);

/* After a byte into `to` on the bottom frame. */
static void walk_into(struct walk *w, uint32_t node, uint32_t to);

/* The common case: one state, on the bottom frame, that waits for bytes. Children and edges are both sorted. */
static void walk_state(struct walk *w, uint32_t node, uint32_t state) {
    const struct prog_edge *x = w->p->edges + w->p->states[state].edges, *x_end = w->p->edges + w->p->states[state + 1].edges;
    for (uint32_t child = node + 1, end = w->nodes[node].end; child < end; child = w->nodes[child].end) {
        uint8_t byte = w->nodes[child].byte;
        while (x < x_end && x->hi < byte) x++;
        if (x == x_end) return;
        if (x->lo > byte || (w->skip_plain && w->nodes[child].plain)) continue;
        accept_node(w, child);
        if (has_below(w, child)) walk_into(w, child, x->to);
        if (!run__work(&w->g->run)) return;
    }
}

static void walk_into(struct walk *w, uint32_t node, uint32_t to) {
    const struct prog_state *s = &w->p->states[to];
    struct run *r = &w->g->run;
    if (s->calls == s[1].calls) {
        if (s->final) exit_at(w, node);
        if (s->edges < s[1].edges) walk_state(w, node, to);
        return;
    }
    uint32_t base, n_frames = r->k->n_frames, n_edges = r->k->n_edges;
    run__begin(r, &base);
    run__add(r, base, to, 0);
    run__close(r, base);
    if (r->bottom) exit_at(w, node);
    walk_set(w, node, base, r->n);
    r->n = base;
    r->k->n_frames = n_frames;
    r->k->n_edges = n_edges;
}

static void walk_set(struct walk *w, uint32_t node, uint32_t base, uint32_t end) {
    struct run *r = &w->g->run;
    uint32_t n_frames = r->k->n_frames, n_edges = r->k->n_edges;
    if (end == base) return;
    if (end - base == 1 && r->set[base].frame == 0) {
        walk_state(w, node, r->set[base].state);
        return;
    }
    for (uint32_t child = node + 1, stop = w->nodes[node].end; child < stop && !r->status; child = w->nodes[child].end) {
        if (w->skip_plain && w->nodes[child].plain) continue;
        if (run__step(r, base, end, w->nodes[child].byte)) {
            accept_node(w, child);
            if (r->bottom) exit_at(w, child);
            if (has_below(w, child)) walk_set(w, child, end, r->n);
        }
        r->n = end;
        r->k->n_frames = n_frames;
        r->k->n_edges = n_edges;
    }
}

/* ---- plain tokens ---- */

/* The code points of plain tokens, as bytes. */
static const struct { uint8_t n, range[4][2]; } PLAIN[] = {
    { 1, { { 0x20, '"' - 1 } } }, { 1, { { '"' + 1, '\\' - 1 } } }, { 1, { { '\\' + 1, 0x7E } } },
    { 2, { { 0xC2, 0xDF }, { 0x80, 0xBF } } }, { 3, { { 0xE0, 0xE0 }, { 0xA0, 0xBF }, { 0x80, 0xBF } } },
    { 3, { { 0xE1, 0xEC }, { 0x80, 0xBF }, { 0x80, 0xBF } } }, { 3, { { 0xED, 0xED }, { 0x80, 0x9F }, { 0x80, 0xBF } } },
    { 3, { { 0xEE, 0xEF }, { 0x80, 0xBF }, { 0x80, 0xBF } } }, { 4, { { 0xF0, 0xF0 }, { 0x90, 0xBF }, { 0x80, 0xBF }, { 0x80, 0xBF } } },
    { 4, { { 0xF1, 0xF3 }, { 0x80, 0xBF }, { 0x80, 0xBF }, { 0x80, 0xBF } } }, { 4, { { 0xF4, 0xF4 }, { 0x80, 0x8F }, { 0x80, 0xBF }, { 0x80, 0xBF } } },
};
enum { N_PLAIN = sizeof PLAIN / sizeof *PLAIN };

static bool waits_for_bytes_alone(const struct prog_state *s) {
    return !s->final && s->calls == s[1].calls;
}

/* Every text of PLAIN[k] from its byte i on leads from `state` to one and the same state, *to. */
static bool leads_to_one(const struct program *p, uint32_t state, uint32_t k, uint32_t i, uint32_t *to) {
    const struct prog_state *s = &p->states[state];
    uint32_t next = PLAIN[k].range[i][0], hi = PLAIN[k].range[i][1];
    if (!waits_for_bytes_alone(s)) return false;
    for (uint32_t e = s->edges; e < s[1].edges && next <= hi; e++) {
        const struct prog_edge *x = &p->edges[e];
        if (x->hi < next) continue;
        if (x->lo > next) return false;
        if (i + 1u < PLAIN[k].n) {
            if (!leads_to_one(p, x->to, k, i + 1, to)) return false;
        } else if (*to == UINT32_MAX) {
            *to = x->to;
        } else if (p->states[*to].same != p->states[x->to].same) {
            return false;
        }
        next = x->hi + 1u;
    }
    return next > hi;
}

static bool takes_no_plain(const struct program *p, uint32_t state) {
    const struct prog_state *s = &p->states[state];
    for (uint32_t e = s->edges; e < s[1].edges; e++)
        for (uint32_t k = 0; k < N_PLAIN; k++)
            if (p->edges[e].lo <= PLAIN[k].range[0][1] && p->edges[e].hi >= PLAIN[k].range[0][0]) return false;
    return waits_for_bytes_alone(s);
}

/* How many plain code points can follow, whichever they are, with none beyond and no end of the rule among them: then the
 * plain tokens are those of so many code points. At most max; 0 when it is not like that. */
static uint32_t plain_chain(const struct program *p, uint32_t state, uint32_t max) {
    for (uint32_t n = 0; n < max; n++) {
        uint32_t to = UINT32_MAX;
        for (uint32_t k = 0; k < N_PLAIN; k++)
            if (!leads_to_one(p, state, k, 0, &to)) return takes_no_plain(p, state) ? n : 0;
        if (p->states[to].same == p->states[state].same) return max;
        state = to;
    }
    return max;
}

static void add_plain(struct walk *w, uint32_t state) {
    const struct grammar_vocab *v = w->g->v;
    uint32_t n = plain_chain(w->p, state, v->max_plain);
    if (n == 0) return;
    w->skip_plain = true;
    if (n == v->max_plain)
        for (uint32_t i = 0; i < v->n_words; i++) w->words[i] |= v->plain[i];
    else
        for (uint32_t i = 0; i < v->plain_end[n]; i++) w->words[v->plain_ids[i] / 32] |= 1u << v->plain_ids[i] % 32;
}

/* ---- entries ---- */

/* What the walk left in the scratch, packed. The scratch is clean afterwards. */
static struct entry *pack(struct grammar *g) {
    struct cache *c = &g->cache;
    uint32_t n_words = g->v->n_words, n_ids = 0, n = 0;
    for (uint32_t i = 0; i < n_words; i++) n_ids += (uint32_t)__builtin_popcount(c->words[i]);
    bool dense = n_ids > n_words / 4;
    size_t bytes = sizeof(struct entry) + (c->n_exits + (size_t)(dense ? n_words : n_ids)) * sizeof(uint32_t);
    struct entry *x = g->run.status ? NULL : mem_alloc(bytes);
    if (x) {
        *x = (struct entry){ .n_ids = n_ids, .n_exits = c->n_exits, .bytes = bytes };
        x->exits = (uint32_t *)(x + 1);
        memcpy(x->exits, c->exits, c->n_exits * sizeof *x->exits);
        if (dense) {
            x->words = x->exits + c->n_exits;
            memcpy(x->words, c->words, n_words * sizeof *x->words);
        } else {
            x->ids = (int32_t *)(x->exits + c->n_exits);
            for (uint32_t i = 0; i < n_words; i++)
                for (uint32_t bits = c->words[i]; bits; bits &= bits - 1)
                    x->ids[n++] = (int32_t)(i * 32 + (uint32_t)__builtin_ctz(bits));
        }
        c->bytes += bytes;
    } else if (!g->run.status) {
        g->run.status = ST_NOMEM;
    }
    memset(c->words, 0, n_words * sizeof *c->words);
    return x;
}

static struct walk begin_walk(struct grammar *g, uint32_t *words, bool want_exits, struct stacks *k) {
    g->run.k = k;
    g->run.n = 0;
    g->cache.n_exits = 0;
    return (struct walk){ .g = g, .nodes = g->v->nodes, .p = &g->p, .words = words, .want_exits = want_exits };
}

static struct stacks *own_stacks(struct grammar *g) {
    g->cache.stacks.n_frames = 1;
    g->cache.stacks.n_edges = 0;
    return &g->cache.stacks;
}

static struct entry *entry_of_state(struct grammar *g, uint32_t state) {
    struct entry **at = &g->cache.by_state[g->p.states[state].same];
    if (*at) return *at;
    struct walk w = begin_walk(g, g->cache.words, !g->p.states[state].top, own_stacks(g));
    add_plain(&w, state);
    walk_state(&w, 0, state);
    return *at = pack(g);
}

/* From the open exits of x on, in state `to` of the caller. */
static struct entry *entry_of_child(struct grammar *g, struct entry *x, uint32_t to) {
    uint32_t same = g->p.states[to].same, base;
    for (struct entry *c = x->child; c; c = c->next)
        if (c->to == same) return c;
    struct walk w = begin_walk(g, g->cache.words, !g->p.states[to].top, own_stacks(g));
    struct run *r = &g->run;
    run__begin(r, &base);
    run__add(r, base, to, 0);
    run__close(r, base);
    bool bottom = r->bottom;
    for (uint32_t i = 0, end = r->n; i < x->n_exits && !r->status; i++) {
        if (bottom) exit_at(&w, x->exits[i]);
        walk_set(&w, x->exits[i], base, end);
    }
    struct entry *c = pack(g);
    if (!c) return NULL;
    c->to = same;
    c->next = x->child;
    return x->child = c;
}

static void merge(const struct grammar *g, const struct entry *x, uint32_t *allowed) {
    for (uint32_t i = 0; x->words && i < g->v->n_words; i++) allowed[i] |= x->words[i];
    for (uint32_t i = 0; !x->words && i < x->n_ids; i++) allowed[x->ids[i] / 32] |= 1u << x->ids[i] % 32;
}

struct masking {
    struct grammar *g;
    struct stacks *k;
    uint32_t *allowed, n_visits;
    struct { const struct entry *x; uint32_t frame; } visited[VISIT_SLOTS];
};

/* The rest of one place without the cache: from the exits on, with its real stack. */
static void walk_exits(struct masking *m, const struct entry *x, uint32_t frame) {
    struct walk w = begin_walk(m->g, m->allowed, false, m->k);
    struct run *r = &m->g->run;
    uint32_t base, n_frames = m->k->n_frames, n_edges = m->k->n_edges;
    run__begin(r, &base);
    for (uint32_t e = m->k->frames[frame].edges; e != UINT32_MAX; e = m->k->edges[e].next)
        run__add(r, base, m->k->edges[e].to, m->k->edges[e].parent);
    run__close(r, base);
    for (uint32_t i = 0, end = r->n; i < x->n_exits && !r->status; i++) walk_set(&w, x->exits[i], base, end);
    m->k->n_frames = n_frames;
    m->k->n_edges = n_edges;
}

/* True when this mask has been here; many ways through a branching stack meet again. */
static bool visited(struct masking *m, const struct entry *x, uint32_t frame) {
    uint64_t h = ((uint64_t)(uintptr_t)x ^ (uint64_t)frame << 40) * 0x9E3779B97F4A7C15u;
    uint32_t i = (uint32_t)(h >> 32) % VISIT_SLOTS;
    for (; m->visited[i].x; i = (i + 1) % VISIT_SLOTS)
        if (m->visited[i].x == x && m->visited[i].frame == frame) return true;
    m->visited[i].x = x;
    m->visited[i].frame = frame;
    m->n_visits++;
    return false;
}

static void add_place(struct masking *m, struct entry *x, uint32_t frame, uint32_t depth) {
    if (!x || m->g->run.status || m->n_visits >= MAX_VISITS || visited(m, x, frame)) return;
    merge(m->g, x, m->allowed);
    if (x->n_exits == 0 || frame == 0) return;
    if (depth == MAX_CHAIN) {
        walk_exits(m, x, frame);
        return;
    }
    for (uint32_t e = m->k->frames[frame].edges; e != UINT32_MAX; e = m->k->edges[e].next)
        add_place(m, entry_of_child(m->g, x, m->k->edges[e].to), m->k->edges[e].parent, depth + 1);
}

static void walk_all(struct masking *m, const struct config *set, uint32_t n) {
    struct walk w = begin_walk(m->g, m->allowed, false, m->k);
    struct run *r = &m->g->run;
    uint32_t base;
    run__begin(r, &base);
    for (uint32_t i = 0; i < n; i++) run__add(r, base, set[i].state, set[i].frame);
    walk_set(&w, 0, base, r->n);
}

int mask__tokens(struct grammar *g, const struct config *set, uint32_t n, struct stacks *k, uint32_t *allowed) {
    struct masking m = { .g = g, .k = k, .allowed = allowed };
    if (g->cache.bytes > CACHE_BYTES) empty(&g->cache, &g->p);
    g->run.status = ST_OK;
    g->run.work_left = MASK_WORK;
    for (uint32_t i = 0; i < n && m.n_visits < MAX_VISITS; i++) add_place(&m, entry_of_state(g, set[i].state), set[i].frame, 0);
    if (m.n_visits >= MAX_VISITS && !g->run.status) walk_all(&m, set, n);
    return g->run.status;
}

/* ---- ahead of time ---- */

static uint32_t n_bytes_of(const struct program *p, uint32_t state) {
    uint32_t n = 0;
    for (uint32_t i = p->states[state].edges; i < p->states[state + 1].edges; i++) n += p->edges[i].hi - p->edges[i].lo + 1u;
    return n;
}

/* A walk is long where many bytes can follow: those states first, then what may follow their rules. */
void mask__warm(struct grammar *g, uint32_t budget_us) {
    const struct program *p = &g->p;
    uint64_t end_ns = clock_mono_ns() + budget_us * (uint64_t)1000;
    static const uint32_t LEAST[] = { 64, 8, 1 };
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t s = 0; s < p->n_states && g->cache.bytes < CACHE_BYTES / 2; s++) {
            if (p->states[s].same != s || g->cache.by_state[s] || n_bytes_of(p, s) < LEAST[round]) continue;
            if (clock_mono_ns() >= end_ns) return;
            g->run.status = ST_OK;
            g->run.work_left = MASK_WORK;
            entry_of_state(g, s);
        }
    }
}
