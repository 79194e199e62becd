/* SPDX-License-Identifier: Apache-2.0
 *
 * The state machine of slots, reads and the running step. Pure: it decides and counts, others read, pack and wait. Every
 * entry point leaves it consistent, so whatever order the engine's calls and the disk's completions come in is right;
 * tests/unit/offload_explore.c walks them all for a small case.
 *
 * Why it cannot block: a want waits for a slot only while all slots of its class are pinned by wants handed out (the next
 * call releases them), or have reads under way (they end, or the disk is stuck and they are failed). */
#include "offload/internal.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"

enum { BACKOFF_NS = 1000000, BACKOFF_SHIFT = 3, STREAM_SHARE = 8, GUESS_TOKENS = 4 };

static uint32_t key_of(const struct offload__slots *s, uint32_t expert) {
    return s->layer * s->n_experts + expert;
}

/* ---- queues of slots, linked through prev and next ---- */

static void push_tail(struct offload__slots *s, struct offload__queue *q, uint32_t i) {
    struct offload__slot *x = &s->slots[i];
    x->prev = q->tail;
    x->next = OFFLOAD__NONE;
    *(q->tail == OFFLOAD__NONE ? &q->head : &s->slots[q->tail].next) = i;
    q->tail = i;
}

static void push_head(struct offload__slots *s, struct offload__queue *q, uint32_t i) {
    struct offload__slot *x = &s->slots[i];
    x->prev = OFFLOAD__NONE;
    x->next = q->head;
    *(q->head == OFFLOAD__NONE ? &q->tail : &s->slots[q->head].prev) = i;
    q->head = i;
}

static void unlink_slot(struct offload__slots *s, struct offload__queue *q, uint32_t i) {
    const struct offload__slot *x = &s->slots[i];
    *(x->prev == OFFLOAD__NONE ? &q->head : &s->slots[x->prev].next) = x->next;
    *(x->next == OFFLOAD__NONE ? &q->tail : &s->slots[x->next].prev) = x->prev;
}

static struct offload__queue *queue_of(struct offload__slots *s, const struct offload__slot *x) {
    return x->why == WHY_DEMAND ? &s->demand : &s->low;
}

static void enqueue(struct offload__slots *s, uint32_t i) {
    struct offload__slot *x = &s->slots[i];
    if (!x->queued) {
        x->queued = true;
        s->work++;
        push_tail(s, queue_of(s, x), i);
    }
}

static void dequeue(struct offload__slots *s, uint32_t i) {
    struct offload__slot *x = &s->slots[i];
    if (x->queued) {
        x->queued = false;
        unlink_slot(s, queue_of(s, x), i);
    }
}

/* ---- one slot ---- */

/* Reads that are held back while there are few of them: nobody is known to need what they bring. */
static bool is_low(const struct offload__slot *x) {
    return x->why == WHY_GUESS || x->why == WHY_FILL;
}

void offload__slot_set_guess(struct offload__slots *s, struct offload__slot *x, bool guess) {
    s->guesses.n_unjudged += (uint32_t)guess - (uint32_t)x->guess;
    s->n_ahead += x->why == WHY_AHEAD ? (uint32_t)guess - (uint32_t)x->guess : 0;
    x->guess = guess;
}

/* A guess is judged: it was wanted, or not, or gone before anybody knew. */
void offload__slot_judge(struct offload__slots *s, struct offload__slot *x, bool useful) {
    if (x->guess) {
        *(useful ? &s->stats.prefetch_useful : &s->stats.prefetch_wasted) += 1;
        *(useful ? &s->stats.prefetch_useful_bytes : &s->stats.prefetch_wasted_bytes) += s->slot_bytes[x->class];
        offload__slot_set_guess(s, x, false);
    }
}

static void free_stage(struct offload__slots *s, struct offload__slot *x) {
    if (x->stage != OFFLOAD__NONE) {
        s->free_stages |= 1u << x->stage;
        s->work++;
        x->stage = OFFLOAD__NONE;
    }
}

void offload__slot_set_stream(struct offload__slots *s, struct offload__slot *x, bool stream) {
    s->n_stream[x->class] += (uint32_t)stream - (uint32_t)x->stream;
    x->stream = stream;
}

void offload__slot_set_unwanted(struct offload__slots *s, struct offload__slot *x, bool unwanted) {
    s->n_unwanted += (uint32_t)unwanted - (uint32_t)x->unwanted;
    x->unwanted = unwanted;
    s->work += unwanted;
    x->told = x->told && unwanted;
}

void offload__slot_reserve(struct offload__slots *s, uint32_t i, uint32_t key, enum offload__why why) {
    struct offload__slot *x = &s->slots[i];
    assert(x->state == SLOT_EMPTY && s->slot_of[key] == OFFLOAD__NONE);
    *x = (struct offload__slot){
        .key = key, .generation = (x->generation + 1) % OFFLOAD__GENERATIONS, .stage = OFFLOAD__NONE, .state = SLOT_RESERVED, .why = (uint8_t)why,
        .class = x->class, .n_spans = (uint8_t)s->n_spans, .attempts = 1, .tick = s->policy.now,
    };
    s->slot_of[key] = i;
    enqueue(s, i);
}

void offload__slot_make_empty(struct offload__slots *s, uint32_t i) {
    struct offload__slot *x = &s->slots[i];
    assert(x->pins == 0 && x->in_flight == 0 && !x->busy);
    dequeue(s, i);
    offload__slot_judge(s, x, false);
    free_stage(s, x);
    offload__slot_set_stream(s, x, false);
    offload__slot_set_unwanted(s, x, false);
    s->n_resident -= x->state == SLOT_READY;
    if (x->key != OFFLOAD__NONE) {
        s->slot_of[x->key] = OFFLOAD__NONE;
    }
    x->key = OFFLOAD__NONE;
    x->state = SLOT_EMPTY;
    x->next = s->free[x->class];
    s->free[x->class] = i;
}

/* ---- choosing a slot ---- */

static bool evictable(const struct offload__slot *x) {
    return x->state == SLOT_READY && x->pins == 0;
}

/* A guess is worth its place until its layer comes, but not for ever. */
bool offload__slot_awaited(const struct offload__slots *s, const struct offload__slot *x) {
    return x->guess && s->policy.now - x->tick < (uint64_t)GUESS_TOKENS * s->n_layers;
}

/* The lowest scores of one scan, kept for the rest of the tick: scores stand still within one. The last is the lowest. */
static void scan_victims(struct offload__slots *s, uint32_t c) {
    struct offload__victims *v = &s->victims[c];
    const uint32_t most = sizeof v->slots / sizeof v->slots[0];
    double scores[sizeof v->slots / sizeof v->slots[0]];
    v->tick = s->policy.now;
    v->n = 0;
    for (uint32_t i = s->first[c]; i < s->first[c] + s->active[c]; i++) {
        const struct offload__slot *x = &s->slots[i];
        if (!evictable(x)) {
            continue;
        }
        const double score = offload__slot_awaited(s, x) ? INFINITY : policy_score(&s->policy, x->key);
        uint32_t at = 0; /* how many of those kept are higher */
        while (at < v->n && (scores[at] > score || (scores[at] == score && s->slots[v->slots[at]].key > x->key))) {
            at++;
        }
        if (v->n < most) {
            memmove(&v->slots[at + 1], &v->slots[at], (v->n - at) * sizeof v->slots[0]);
            memmove(&scores[at + 1], &scores[at], (v->n - at) * sizeof scores[0]);
            v->n++;
        } else if (at == 0) {
            continue;
        } else { /* the highest goes */
            at--;
            memmove(&v->slots[0], &v->slots[1], at * sizeof v->slots[0]);
            memmove(&scores[0], &scores[1], at * sizeof scores[0]);
        }
        v->slots[at] = i;
        scores[at] = score;
    }
    for (uint32_t k = 0; k < v->n; k++) {
        v->generations[k] = s->slots[v->slots[k]].generation;
    }
}

uint32_t offload__slot_lowest(struct offload__slots *s, uint32_t c) {
    struct offload__victims *v = &s->victims[c];
    for (int pass = 0; pass < 2; pass++) {
        for (; v->tick == s->policy.now && v->n; v->n--) {
            const uint32_t i = v->slots[v->n - 1];
            if (evictable(&s->slots[i]) && s->slots[i].generation == v->generations[v->n - 1]) {
                return i;
            }
        }
        if (pass == 0) {
            scan_victims(s, c);
        }
    }
    return OFFLOAD__NONE;
}

/* A prefill walks all experts in a cycle, so of those it brought in the last used is needed again the latest. What it
 * read ahead goes only when there is nothing else. */
static uint32_t latest_stream(const struct offload__slots *s, uint32_t c) {
    uint32_t best = OFFLOAD__NONE;
    for (uint32_t i = s->first[c]; i < s->first[c] + s->active[c]; i++) {
        const struct offload__slot *x = &s->slots[i], *y = best == OFFLOAD__NONE ? NULL : &s->slots[best];
        if (evictable(x) && x->stream && (!y || x->guess < y->guess || (x->guess == y->guess && x->tick > y->tick))) {
            best = i;
        }
    }
    return best;
}

uint32_t offload__stream_quota(const struct offload__slots *s, uint32_t c) {
    const uint32_t share = s->active[c] / STREAM_SHARE;
    return share > s->n_used ? share : s->n_used;
}

uint32_t offload__slot_take_free(struct offload__slots *s, uint32_t c) {
    const uint32_t i = s->free[c];
    if (i != OFFLOAD__NONE) {
        s->free[c] = s->slots[i].next;
    }
    return i;
}

uint32_t offload__slot_evict(struct offload__slots *s, uint32_t i) {
    s->stats.evictions++;
    offload__slot_make_empty(s, i);
    return offload__slot_take_free(s, s->slots[i].class);
}

/* A slot that may be filled, for a prefill or not; NONE: all are in use. */
uint32_t offload__slot_take(struct offload__slots *s, uint32_t c, bool stream) {
    uint32_t i = offload__slot_take_free(s, c);
    if (i != OFFLOAD__NONE) {
        return i;
    }
    i = stream && s->n_stream[c] >= offload__stream_quota(s, c) ? latest_stream(s, c) : offload__slot_lowest(s, c);
    return i == OFFLOAD__NONE ? i : offload__slot_evict(s, i);
}

/* ---- wants of the running step ---- */

static void want_ends(struct offload__slots *s, uint32_t w, enum offload__want_state state) {
    s->wants[w].state = (uint8_t)state;
    s->ready[s->n_ready_wants++] = w;
}

static void want_fails(struct offload__slots *s, uint32_t w) {
    s->wants[w].slot = OFFLOAD__NONE;
    s->stats.failures++;
    want_ends(s, w, WANT_FAILED);
}

/* The want that pins a slot whose bytes are not here. */
static uint32_t want_for(const struct offload__slots *s, const struct offload__slot *x) {
    return s->want_of[x->key % s->n_experts];
}

/* Slots for wants without one, in order, as far as there are any. */
static void place(struct offload__slots *s) {
    for (uint32_t w = 0; s->n_waiting && w < s->n_wants; w++) {
        if (s->wants[w].state != WANT_WAITING) {
            continue;
        }
        const uint32_t i = offload__slot_take(s, s->layer_class[s->layer], s->stream);
        if (i == OFFLOAD__NONE) {
            return;
        }
        offload__slot_reserve(s, i, key_of(s, s->wants[w].expert), WHY_DEMAND);
        s->slots[i].pins = 1;
        offload__slot_set_stream(s, &s->slots[i], s->stream);
        s->wants[w].slot = i;
        s->wants[w].state = WANT_COMING;
        s->n_waiting--;
    }
}

static void attach(struct offload__slots *s, uint32_t w, uint32_t i) {
    struct offload__slot *x = &s->slots[i];
    s->wants[w].slot = i;
    x->pins++;
    offload__slot_judge(s, x, true);
    offload__slot_set_unwanted(s, x, false);
    if (!s->stream) {
        offload__slot_set_stream(s, x, false);
    }
    if (x->state == SLOT_READY) {
        s->stats.hits++;
        want_ends(s, w, WANT_READY);
        return;
    }
    s->stats.misses++;
    s->wants[w].state = WANT_COMING;
    const bool queued = x->queued;
    dequeue(s, i);
    s->low_in_flight -= is_low(x) ? x->in_flight : 0;
    x->why = WHY_DEMAND;
    if (queued) {
        enqueue(s, i);
    }
}

void offload__slots_begin(struct offload__slots *s, uint32_t layer, const struct offload_want *wants, uint32_t n, bool stream) {
    offload__slots_end(s);
    policy_tick(&s->policy);
    s->begun = true;
    s->layer = layer;
    s->stream = stream;
    s->n_wants = s->n_left = n;
    for (uint32_t w = 0; w < n; w++) {
        s->wants[w] = (struct offload__want){ .expert = wants[w].expert, .slot = OFFLOAD__NONE, .n_rows = wants[w].n_rows };
        assert(s->want_of[wants[w].expert] == OFFLOAD__NONE); /* distinct */
        s->want_of[wants[w].expert] = w;
        const uint32_t key = key_of(s, wants[w].expert), i = s->slot_of[key];
        if (!stream) {
            policy_touch(&s->policy, key);
        }
        if (i == OFFLOAD__NONE) {
            s->stats.misses++;
            s->n_waiting++;
        } else {
            attach(s, w, i);
        }
    }
    offload__guess_judge(s);
    offload__guess_look_ahead(s);
    place(s);
}

uint32_t offload__slots_next(struct offload__slots *s, uint32_t *wants, uint32_t cap) {
    offload__slots_release(s);
    uint32_t n = 0;
    for (; n < cap && s->n_handed < s->n_ready_wants; n++) {
        wants[n] = s->ready[s->n_handed++];
    }
    s->n_left -= n;
    return n;
}

void offload__slots_release(struct offload__slots *s) {
    for (; s->n_released < s->n_handed; s->n_released++) {
        struct offload__want *w = &s->wants[s->ready[s->n_released]];
        if (w->slot != OFFLOAD__NONE) {
            s->slots[w->slot].pins--;
        }
        w->state = WANT_DONE;
    }
    place(s);
}

static void let_go(struct offload__slots *s, uint32_t i) {
    struct offload__slot *x = &s->slots[i];
    x->pins--;
    if (x->state != SLOT_RESERVED) {
        return;
    }
    if (x->in_flight == 0) {
        offload__slot_make_empty(s, i);
    } else {
        offload__slot_set_unwanted(s, x, true);
    }
}

void offload__slots_end(struct offload__slots *s) {
    for (uint32_t w = 0; w < s->n_wants; w++) {
        const struct offload__want *x = &s->wants[w];
        if (x->state != WANT_DONE && x->slot != OFFLOAD__NONE) {
            let_go(s, x->slot);
        }
        s->want_of[x->expert] = OFFLOAD__NONE;
    }
    s->n_wants = s->n_left = s->n_waiting = 0;
    s->n_released = s->n_handed = s->n_ready_wants = 0;
}

void offload__slots_drop_loads(struct offload__slots *s) {
    for (uint32_t i = 0; i < s->n_keys; i++) {
        struct offload__slot *x = &s->slots[i];
        if (x->state != SLOT_RESERVED || x->dead || x->pins) {
            continue;
        }
        if (x->in_flight == 0) {
            offload__slot_make_empty(s, i);
        } else {
            offload__slot_judge(s, x, false);
            offload__slot_set_unwanted(s, x, true);
        }
    }
}

/* ---- reads ---- */

/* May a span of this slot be submitted? Takes a staging buffer with the first one. */
static bool startable(struct offload__slots *s, struct offload__slot *x, uint64_t now) {
    if (x->failed || x->cancelled || x->unwanted || x->not_before > now) {
        return false;
    }
    if (s->staged && x->stage == OFFLOAD__NONE) {
        if (!s->free_stages) {
            return false;
        }
        x->stage = (uint32_t)__builtin_ctz(s->free_stages);
        s->free_stages &= ~(1u << x->stage);
    }
    return true;
}

static uint32_t first_startable(struct offload__slots *s, const struct offload__queue *q, uint64_t now) {
    for (uint32_t i = q->head; i != OFFLOAD__NONE; i = s->slots[i].next) {
        struct offload__slot *x = &s->slots[i];
        const bool held = is_low(x) && s->low_in_flight >= s->low_most && s->begun;
        if (!held && startable(s, x, now)) {
            return i;
        }
    }
    return OFFLOAD__NONE;
}

bool offload__slots_take(struct offload__slots *s, uint64_t now, struct offload__read *out) {
    if (s->draining) {
        return false;
    }
    uint32_t i = first_startable(s, &s->demand, now);
    if (i == OFFLOAD__NONE) {
        i = first_startable(s, &s->low, now);
    }
    if (i == OFFLOAD__NONE && offload__guess_start(s)) {
        i = first_startable(s, &s->low, now);
    }
    if (i == OFFLOAD__NONE) {
        return false;
    }
    struct offload__slot *x = &s->slots[i];
    *out = (struct offload__read){ i, x->next_span++, x->generation, x->stage, x->why == WHY_DEMAND };
    x->in_flight++;
    s->in_flight++;
    s->low_in_flight += is_low(x);
    if (x->next_span == x->n_spans) {
        dequeue(s, i);
    }
    return true;
}

void offload__slots_put_back(struct offload__slots *s, uint32_t i) {
    struct offload__slot *x = &s->slots[i];
    x->next_span--;
    x->in_flight--;
    s->in_flight--;
    s->low_in_flight -= is_low(x);
    if (!x->queued) {
        x->queued = true;
        push_head(s, queue_of(s, x), i);
    }
    if (x->unwanted && x->in_flight == 0) {
        offload__slot_make_empty(s, i);
    }
}

/* The reads of a slot, or what they brought, are no good: again, or the want fails, or nobody minds. */
static void load_fails(struct offload__slots *s, uint32_t i, uint64_t now) {
    struct offload__slot *x = &s->slots[i];
    if (x->pins && (!x->failed || x->attempts < OFFLOAD__ATTEMPTS)) {
        if (x->failed) {
            x->not_before = now + ((uint64_t)BACKOFF_NS << (BACKOFF_SHIFT * (x->attempts - 1)));
            x->attempts++;
            s->stats.retries++;
        }
        x->state = SLOT_RESERVED;
        x->failed = x->cancelled = false;
        x->next_span = 0;
        free_stage(s, x);
        enqueue(s, i);
        return;
    }
    if (x->pins) {
        x->pins = 0;
        want_fails(s, want_for(s, x));
    }
    offload__slot_make_empty(s, i);
}

void offload__slots_read_done(struct offload__slots *s, uint32_t i, uint32_t generation, int status, uint64_t now) {
    struct offload__slot *x = &s->slots[i];
    if (x->generation != generation || x->in_flight == 0) {
        return;
    }
    s->in_flight--;
    s->low_in_flight -= is_low(x);
    x->cancelled |= status == ST_CANCELLED;
    x->failed |= status && status != ST_CANCELLED;
    if (--x->in_flight) {
        return;
    }
    if (x->dead) {
        x->dead = false;
        s->n_dead--;
        offload__slot_make_empty(s, i);
    } else if (x->failed || x->cancelled) {
        load_fails(s, i, now);
    } else if (x->queued) {
        if (!x->unwanted) {
            return;
        }
        offload__slot_make_empty(s, i);
    } else {
        offload__slot_set_unwanted(s, x, false);
        x->state = SLOT_FILLED;
        push_tail(s, &s->filled, i);
        s->n_filled++;
    }
    place(s);
}

uint32_t offload__slots_claim(struct offload__slots *s) {
    uint32_t i = s->filled.head;
    while (i != OFFLOAD__NONE && s->slots[i].pins == 0) {
        i = s->slots[i].next;
    }
    if (i == OFFLOAD__NONE) {
        i = s->filled.head;
    }
    if (i != OFFLOAD__NONE) {
        unlink_slot(s, &s->filled, i);
        s->slots[i].busy = true;
    }
    return i;
}

void offload__slots_settle(struct offload__slots *s, uint32_t i, bool good, uint64_t now) {
    struct offload__slot *x = &s->slots[i];
    x->busy = false;
    s->n_filled--;
    if (good) {
        free_stage(s, x);
        x->state = SLOT_READY;
        s->n_resident++;
        if (x->why == WHY_DEMAND) {
            s->stats.loads++;
            s->stats.load_bytes += s->slot_bytes[x->class];
        }
        if (x->pins) {
            want_ends(s, want_for(s, x), WANT_READY);
        }
    } else {
        x->failed = true;
        load_fails(s, i, now);
    }
    place(s);
}

uint64_t offload__slots_retry_at(const struct offload__slots *s, uint64_t now) {
    uint64_t at = UINT64_MAX;
    for (uint32_t i = s->demand.head; i != OFFLOAD__NONE; i = s->slots[i].next) {
        const struct offload__slot *x = &s->slots[i];
        if (x->not_before > now && x->not_before < at) {
            at = x->not_before;
        }
    }
    return at;
}

static void slot_stuck(struct offload__slots *s, uint32_t i) {
    struct offload__slot *x = &s->slots[i];
    if (x->pins) {
        x->pins = 0;
        want_fails(s, want_for(s, x));
    }
    if (x->in_flight == 0) {
        offload__slot_make_empty(s, i);
        return;
    }
    dequeue(s, i);
    offload__slot_judge(s, x, false);
    offload__slot_set_stream(s, x, false);
    offload__slot_set_unwanted(s, x, false);
    s->slot_of[x->key] = OFFLOAD__NONE;
    x->key = OFFLOAD__NONE;
    x->dead = true;
    s->n_dead++;
}

void offload__slots_stuck(struct offload__slots *s) {
    for (uint32_t i = 0; i < s->n_keys; i++) {
        if (s->slots[i].state == SLOT_RESERVED && !s->slots[i].dead) {
            slot_stuck(s, i);
        }
    }
    for (uint32_t w = 0; w < s->n_wants; w++) {
        if (s->wants[w].state == WANT_WAITING) {
            s->n_waiting--;
            want_fails(s, w);
        }
    }
}

/* ---- life ---- */

static void link_free(struct offload__slots *s) {
    for (uint32_t c = 0; c < s->n_classes; c++) {
        s->free[c] = OFFLOAD__NONE;
        for (uint32_t i = s->first[c] + s->active[c]; i-- > s->first[c];) {
            if (s->slots[i].state == SLOT_EMPTY) {
                s->slots[i].next = s->free[c];
                s->free[c] = i;
            }
        }
    }
}

static uint32_t n_routed_layers(const struct offload__catalog *c) {
    uint32_t n = 0;
    for (uint32_t k = 0; k < c->n_classes; k++) {
        n += c->n_keys[k] / c->n_experts;
    }
    return n;
}

static void set_stages(struct offload__slots *s, uint32_t n) {
    s->stages = n;
    s->free_stages = (1u << n) - 1;
}

int offload__slots_init(struct offload__slots *s, const struct offload__catalog *c, const struct offload__budget *b,
                        enum offload_policy policy) {
    const uint32_t n = c->n_layers * c->n_experts;
    *s = (struct offload__slots){
        .n_layers = c->n_layers, .n_experts = c->n_experts, .n_used = c->n_used, .n_keys = n, .n_classes = c->n_classes, .n_spans = c->n_spans,
        .layer_class = c->layer_class, .staged = c->stage_bytes != 0, .low_most = 2,
        .ahead_layer = OFFLOAD__NONE,
        .demand = { OFFLOAD__NONE, OFFLOAD__NONE }, .low = { OFFLOAD__NONE, OFFLOAD__NONE },
        .filled = { OFFLOAD__NONE, OFFLOAD__NONE },
        .slots = mem_zalloc(n, sizeof *s->slots),
        .slot_of = mem_alloc(n * sizeof *s->slot_of),
        .wants = mem_zalloc(c->n_experts, sizeof *s->wants),
        .want_of = mem_alloc(c->n_experts * sizeof *s->want_of),
        .ready = mem_alloc(c->n_experts * sizeof *s->ready),
        .guesses.layers = mem_zalloc(c->n_layers, sizeof *s->guesses.layers),
    };
    struct policy_entry *entries = mem_zalloc(n, sizeof *entries);
    policy_init(&s->policy, policy, entries, n, n_routed_layers(c));
    if (!s->slots || !s->slot_of || !s->wants || !s->want_of || !s->ready || !s->guesses.layers || !entries) {
        offload__slots_clear(s);
        return ST_NOMEM;
    }
    memset(s->slot_of, 0xff, n * sizeof *s->slot_of);
    memset(s->want_of, 0xff, c->n_experts * sizeof *s->want_of);
    for (uint32_t k = 0, i = 0; k < c->n_classes; k++) {
        s->first[k] = i;
        s->active[k] = b->slots[k];
        s->slot_bytes[k] = c->slot_bytes[k];
        for (uint32_t end = i + c->n_keys[k]; i < end; i++) {
            s->slots[i] = (struct offload__slot){ .key = OFFLOAD__NONE, .stage = OFFLOAD__NONE, .class = (uint8_t)k };
        }
    }
    offload__guess_init(s);
    set_stages(s, b->n_stages);
    link_free(s);
    return ST_OK;
}

void offload__slots_clear(struct offload__slots *s) {
    mem_free(s->slots);
    mem_free(s->slot_of);
    mem_free(s->wants);
    mem_free(s->want_of);
    mem_free(s->ready);
    mem_free(s->guesses.layers);
    mem_free(s->policy.entries);
    *s = (struct offload__slots){ 0 };
}

/* The bytes and the identity of slot `from` go to the EMPTY slot `to`. */
static void move_slot(struct offload__slots *s, uint32_t from, uint32_t to) {
    struct offload__slot *a = &s->slots[from], *b = &s->slots[to];
    const uint32_t generation = (b->generation + 1) % OFFLOAD__GENERATIONS;
    *b = *a;
    b->generation = generation;
    s->slot_of[b->key] = to;
    a->key = OFFLOAD__NONE;
    a->state = SLOT_EMPTY;
    a->stream = a->guess = false; /* they went along */
}

static void shrink_class(struct offload__slots *s, uint32_t c, uint32_t n, void (*move)(void *, uint32_t, uint32_t), void *ctx) {
    uint32_t n_held = 0, to = s->first[c];
    for (uint32_t i = s->first[c]; i < s->first[c] + s->active[c]; i++) {
        n_held += s->slots[i].state == SLOT_READY;
    }
    for (; n_held > n; n_held--) {
        s->stats.evictions++;
        offload__slot_make_empty(s, offload__slot_lowest(s, c));
    }
    for (uint32_t i = s->first[c] + n; i < s->first[c] + s->active[c]; i++) {
        if (s->slots[i].state == SLOT_EMPTY) {
            continue;
        }
        while (s->slots[to].state != SLOT_EMPTY) {
            to++;
        }
        move(ctx, i, to);
        move_slot(s, i, to);
    }
}

void offload__slots_resize(struct offload__slots *s, const struct offload__budget *b,
                           void (*move)(void *ctx, uint32_t from, uint32_t to), void *ctx) {
    assert(s->n_wants == 0 && s->in_flight == 0 && s->n_filled == 0 && s->demand.head == OFFLOAD__NONE && s->low.head == OFFLOAD__NONE);
    for (uint32_t c = 0; c < s->n_classes; c++) {
        if (b->slots[c] < s->active[c]) {
            shrink_class(s, c, b->slots[c], move, ctx);
        }
        s->active[c] = b->slots[c];
        s->victims[c].n = 0;
    }
    set_stages(s, b->n_stages);
    s->fill_next = 0;
    link_free(s);
}
