/* SPDX-License-Identifier: Apache-2.0
 *
 * Every interleaving of the engine's calls and the disk's completions in a small case: 3 slots, 4 experts, 2 steps of
 * one layer or of two, two spans per read, two staging buffers, guesses, a bounded number of faults. After each event the invariants of slots.c are
 * checked; a state in which nothing can happen must be the end. States are told apart by their whole contents. */
#include "test.h"

#include <stdlib.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "offload/internal.h"

enum { N_EXPERTS = 4, N_LAYERS = 2, N_KEYS = N_EXPERTS * N_LAYERS, N_SLOTS = 3, N_SPANS = 2, N_STAGES = 2, MAX_STATES = 1 << 21, MAX_DEPTH = 200 };

/* All memory of the machine in one piece, so that a state is copied as one. */
struct world {
    struct offload__slots s;
    struct offload__slot slots[N_KEYS];
    struct offload__guess_list guessed[N_LAYERS];
    uint32_t slot_of[N_KEYS], want_of[N_EXPERTS], ready[N_EXPERTS];
    struct offload__want wants[N_EXPERTS];
    struct policy_entry entries[N_KEYS];
    uint32_t content[N_KEYS];      /* key whose    bytes are in the slot, or NONE              */
    uint32_t handed;               /* bits of wants handed out and not released                */
    uint32_t given;                /* bits of wants handed out in this step                    */
    uint8_t step, faults, guessed_once, claimed; /* claimed: slots somebody is at, bits                      */
};

struct search {
    uint64_t *seen;                /* open hash table of MAX_STATES */
    uint32_t n_states, n_ends;
    const char *wrong;
    uint32_t steps[2];             /* bits of the experts wanted */
    bool stream[2];
    uint32_t layer[2];
    uint32_t guess;                /* bits of experts of the second step's layer, guessed once during the first */
    const uint32_t *fill;          /* order, or NULL */
    uint8_t max_faults;
};

static void fix(struct world *w) {
    w->s.slots = w->slots;
    w->s.slot_of = w->slot_of;
    w->s.want_of = w->want_of;
    w->s.wants = w->wants;
    w->s.ready = w->ready;
    w->s.policy.entries = w->entries;
    w->s.guesses.layers = w->guessed;
}

static void init(struct world *w, const struct search *a) {
    static const uint8_t layer_class[N_LAYERS] = { 0 };
    const struct offload__catalog c = {
        .n_layers = N_LAYERS, .n_experts = N_EXPERTS, .n_used = 2, .n_classes = 1, .slot_bytes = { 4096 }, .n_keys = { N_KEYS },
        .n_spans = N_SPANS, .stage_bytes = 4096, .layer_class = (uint8_t *)(uintptr_t)layer_class,
    };
    const struct offload__budget b = { .slots = { N_SLOTS }, .n_stages = N_STAGES };
    struct offload__slots s;
    memset(w, 0, sizeof *w);
    offload__slots_init(&s, &c, &b, OFFLOAD_LRU);
    memcpy(&w->s, &s, sizeof s);
    memcpy(w->slots, s.slots, sizeof w->slots);
    memcpy(w->slot_of, s.slot_of, sizeof w->slot_of);
    memcpy(w->want_of, s.want_of, sizeof w->want_of);
    w->s.layer_class = layer_class;
    w->s.fill_order = a->fill;
    offload__slots_clear(&s);
    fix(w);
    memset(w->content, 0xff, sizeof w->content);
}

/* ---- invariants ---- */

#define MUST(cond) do { if (!(cond)) return #cond; } while (0)

static uint32_t list_bits(const struct world *w, const struct offload__queue *q, const char **wrong) {
    uint32_t bits = 0, prev = OFFLOAD__NONE;
    for (uint32_t i = q->head; i != OFFLOAD__NONE; prev = i, i = w->slots[i].next) {
        if (bits >> i & 1 || w->slots[i].prev != prev) {
            *wrong = "queue links";
            return bits;
        }
        bits |= 1u << i;
    }
    *wrong = q->tail == prev ? *wrong : "queue tail";
    return bits;
}

static const char *check_slot(const struct world *w, uint32_t i, uint32_t queued, uint32_t filled, uint32_t free_bits) {
    const struct offload__slot *x = &w->slots[i];
    uint32_t pins = 0;
    for (uint32_t k = 0; k < w->s.n_wants; k++) {
        pins += w->wants[k].slot == i && w->wants[k].state != WANT_DONE;
        MUST(w->wants[k].slot != i || w->wants[k].state == WANT_DONE || x->key == w->s.layer * N_EXPERTS + w->wants[k].expert);
        MUST(w->wants[k].slot != i || w->wants[k].state != WANT_HANDED || x->state == SLOT_READY);
    }
    MUST(x->pins == pins);
    MUST((x->state == SLOT_EMPTY) == (free_bits >> i & 1) || i >= N_SLOTS);
    MUST((x->key == OFFLOAD__NONE) == (x->state == SLOT_EMPTY || x->dead));
    MUST(x->key == OFFLOAD__NONE || w->slot_of[x->key] == i);
    MUST(x->queued == (queued >> i & 1));
    MUST(!x->queued || x->state == SLOT_RESERVED);
    MUST((x->state == SLOT_FILLED && !x->busy) == (filled >> i & 1));
    MUST(x->in_flight == 0 || x->state == SLOT_RESERVED);
    MUST(x->state != SLOT_READY || w->content[i] == x->key);
    MUST(x->state != SLOT_RESERVED || x->queued || x->in_flight);
    MUST(!x->unwanted || x->pins == 0);
    MUST(x->stage == OFFLOAD__NONE || !(w->s.free_stages >> x->stage & 1));
    MUST(x->in_flight == 0 || x->stage != OFFLOAD__NONE);
    return NULL;
}

static const char *check(const struct world *w) {
    const char *wrong = NULL;
    const struct offload__slots *s = &w->s;
    const uint32_t demand = list_bits(w, &s->demand, &wrong), others = list_bits(w, &s->low, &wrong), filled = list_bits(w, &s->filled, &wrong);
    uint32_t free_bits = 0, in_flight = 0, stages = s->free_stages, n_dead = 0, n_unwanted = 0, n_resident = 0, n_guess = 0, n_ahead = 0, n_stream = 0, low = 0, waiting = 0, left = 0;
    MUST(!wrong && !(demand & others));
    for (uint32_t i = s->free[0]; i != OFFLOAD__NONE; i = w->slots[i].next) {
        MUST(i < N_SLOTS && !(free_bits >> i & 1));
        free_bits |= 1u << i;
    }
    for (uint32_t i = 0; i < N_KEYS; i++) {
        wrong = check_slot(w, i, demand | others, filled, free_bits);
        if (wrong) {
            return wrong;
        }
        in_flight += w->slots[i].in_flight;
        n_dead += w->slots[i].dead;
        n_unwanted += w->slots[i].unwanted;
        n_resident += w->slots[i].state == SLOT_READY;
        n_guess += w->slots[i].guess;
        n_ahead += w->slots[i].guess && w->slots[i].why == WHY_AHEAD;
        n_stream += w->slots[i].stream;
        low += w->slots[i].why == WHY_GUESS || w->slots[i].why == WHY_FILL ? w->slots[i].in_flight : 0;
        MUST(w->slots[i].stage == OFFLOAD__NONE || !(stages >> w->slots[i].stage & 1));
        stages |= w->slots[i].stage == OFFLOAD__NONE ? 0 : 1u << w->slots[i].stage;
        MUST(w->slot_of[i] == OFFLOAD__NONE || w->slots[w->slot_of[i]].key == i);
    }
    for (uint32_t k = 0; k < s->n_wants; k++) {
        waiting += w->wants[k].state == WANT_WAITING;
        left += !(w->given >> k & 1);
        if (w->handed >> k & 1 && w->wants[k].slot != OFFLOAD__NONE) { /* what the engine computes with stays in place */
            MUST(w->slots[w->wants[k].slot].state == SLOT_READY && w->slots[w->wants[k].slot].pins == 1);
            MUST(w->content[w->wants[k].slot] == s->layer * N_EXPERTS + w->wants[k].expert);
        }
    }
    MUST(stages == (1u << N_STAGES) - 1 && in_flight == s->in_flight && n_dead == s->n_dead && n_unwanted == s->n_unwanted);
    MUST(n_guess == s->guesses.n_unjudged && n_ahead == s->n_ahead && n_stream == s->n_stream[0] && low == s->low_in_flight);
    MUST(n_resident == s->n_resident && waiting == s->n_waiting && left == s->n_left);
    return NULL;
}

/* ---- events: do_x performs number n of its kind, false: there are not so many ---- */

static void begin(struct world *w, const struct search *a) {
    struct offload_want wants[N_EXPERTS];
    uint32_t n = 0;
    for (uint32_t e = 0; e < N_EXPERTS; e++) {
        if (a->steps[w->step] >> e & 1) {
            wants[n++] = (struct offload_want){ e, 1 };
        }
    }
    offload__slots_begin(&w->s, a->layer[w->step], wants, n, a->stream[w->step]);
    w->handed = w->given = 0;
    w->step++;
}

static bool engine(struct world *w, const struct search *a, uint32_t n) {
    uint32_t got[N_EXPERTS];
    switch (n) {
    case 0: /* the next step, maybe before the end of this one */
        if (w->step == 2) {
            return false;
        }
        begin(w, a);
        return true;
    case 1:
    case 2: /* next, one or all that is there */
        if (w->s.n_handed == w->s.n_ready_wants) {
            return false;
        }
        n = offload__slots_next(&w->s, got, n == 1 ? 1 : N_EXPERTS);
        w->handed = 0;
        for (uint32_t i = 0; i < n; i++) {
            w->handed |= 1u << got[i];
        }
        w->given |= w->handed;
        return true;
    case 3: { /* a guess about the second step */
        uint32_t experts[N_EXPERTS], n_experts = 0;
        if (!a->guess || w->step != 1 || w->guessed_once) {
            return false;
        }
        for (uint32_t e = 0; e < N_EXPERTS; e++) {
            if (a->guess >> e & 1) {
                experts[n_experts++] = e;
            }
        }
        offload__slots_guess(&w->s, a->layer[1], experts, n_experts);
        w->guessed_once = true;
        return true;
    }
    default:
        if (!w->handed) {
            return false;
        }
        offload__slots_release(&w->s);
        w->handed = 0;
        return true;
    }
}

static bool reader_takes(struct world *w) {
    struct offload__read r;
    if (!offload__slots_take(&w->s, UINT64_MAX / 2, &r)) {
        return false;
    }
    w->content[r.slot] = OFFLOAD__NONE; /* the disk writes to it from here on */
    return true;
}

/* n: outcome * keys + slot */
static bool disk_ends(struct world *w, const struct search *a, uint32_t n) {
    static const int outcomes[] = { ST_OK, ST_IO, ST_CANCELLED };
    const uint32_t i = n % N_KEYS, outcome = n / N_KEYS;
    if (w->slots[i].in_flight == 0 || (outcome == 1 && w->faults == a->max_faults) || (outcome == 2 && !w->slots[i].unwanted)) {
        return false;
    }
    w->faults += outcome == 1;
    offload__slots_read_done(&w->s, i, w->slots[i].generation, outcomes[outcome], 0);
    return true;
}

static bool claim(struct world *w) {
    const uint32_t i = offload__slots_claim(&w->s);
    if (i == OFFLOAD__NONE) {
        return false;
    }
    w->claimed |= (uint8_t)(1u << i);
    return true;
}

static bool settle(struct world *w, const struct search *a, uint32_t n) {
    const uint32_t i = n / 2;
    const bool good = n % 2 == 0;
    if (!(w->claimed >> i & 1) || (!good && w->faults == a->max_faults)) {
        return false;
    }
    w->claimed &= (uint8_t)~(1u << i);
    w->faults += !good;
    w->content[i] = good ? w->slots[i].key : OFFLOAD__NONE;
    offload__slots_settle(&w->s, i, good, 0);
    return true;
}

static bool stuck(struct world *w, const struct search *a) {
    if (w->faults == a->max_faults || w->s.in_flight == 0 || w->s.n_left == 0) {
        return false;
    }
    w->faults++;
    offload__slots_stuck(&w->s);
    return true;
}

/* Event number n. Of all of them, only the retry's wait is left out: it is as if its time came at once. */
enum { TAKES = 5, ENDS = TAKES + 1, CLAIM = ENDS + 3 * N_KEYS, SETTLE = CLAIM + 1, STUCK = SETTLE + 2 * N_KEYS, N_EVENTS = STUCK + 1 };

static bool happen(struct world *w, const struct search *a, uint32_t n) {
    if (n < TAKES) {
        return engine(w, a, n);
    }
    if (n < ENDS) {
        return reader_takes(w);
    }
    if (n < CLAIM) {
        return disk_ends(w, a, n - ENDS);
    }
    if (n < SETTLE) {
        return claim(w);
    }
    return n < STUCK ? settle(w, a, n - SETTLE) : stuck(w, a);
}

/* ---- the walk ---- */

/* Was this state not seen before? Counters and generations do not tell states apart. */
static bool is_new(struct search *a, const struct world *w) {
    struct world x = *w;
    memset(&x.s.stats, 0, sizeof x.s.stats);
    x.s.slots = NULL;
    x.s.slot_of = x.s.want_of = x.s.ready = NULL;
    x.s.wants = NULL;
    x.s.policy.entries = NULL;
    x.s.guesses.layers = NULL;
    x.s.work = 0;
    for (uint32_t i = 0; i < N_KEYS; i++) {
        x.slots[i].generation = 0;
        x.slots[i].not_before = x.slots[i].not_before != 0;
    }
    memset(x.s.victims[0].generations, 0, sizeof x.s.victims[0].generations);
    const uint64_t h = XXH3_64bits(&x, sizeof x) | 1;
    for (uint64_t at = h;; at++) {
        uint64_t *cell = &a->seen[at % MAX_STATES];
        if (*cell == h) {
            return false;
        }
        if (*cell == 0) {
            *cell = h;
            a->n_states++;
            return true;
        }
    }
}

static void explore(struct search *a, const struct world *w, uint32_t depth) {
    bool any = false;
    for (uint32_t n = 0; n < N_EVENTS && !a->wrong; n++) {
        struct world next = *w;
        fix(&next);
        if (!happen(&next, a, n)) {
            continue;
        }
        any = true;
        a->wrong = check(&next);
        if (a->n_states > MAX_STATES / 2 || depth == MAX_DEPTH) {
            a->wrong = "too many states";
        }
        if (a->wrong) {
            printf("  at depth %u event %u\n", depth, n);
        } else if (is_new(a, &next)) {
            explore(a, &next, depth + 1);
        }
    }
    if (!any) {
        a->n_ends++;
        if (w->step < 2 || w->s.n_left || w->handed) {
            a->wrong = "nothing can happen, and the step is not over";
        }
    }
}

static void search(const char *test_name_, struct search *a) {
    struct world w;
    a->seen = calloc(MAX_STATES, sizeof *a->seen);
    init(&w, a);
    explore(a, &w, 0);
    free(a->seen);
    CHECKF(!a->wrong, "%s (wants %x then %x)", a->wrong, a->steps[0], a->steps[1]);
    printf("  wants %x then %x: %u states, %u ends\n", a->steps[0], a->steps[1], a->n_states, a->n_ends);
}

TEST(steps_without_faults) {
    static const uint32_t pairs[][2] = { { 3, 12 }, { 1, 14 }, { 7, 11 }, { 15, 15 }, { 15, 3 } };
    for (uint32_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        search(test_name_, &(struct search){ .steps = { pairs[i][0], pairs[i][1] } });
    }
}

TEST(steps_with_a_fault) {
    static const uint32_t pairs[][2] = { { 3, 12 }, { 3, 6 }, { 15, 1 } };
    for (uint32_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        search(test_name_, &(struct search){ .steps = { pairs[i][0], pairs[i][1] }, .max_faults = 1 });
    }
}

TEST(steps_of_a_prefill) {
    search(test_name_, &(struct search){ .steps = { 15, 3 }, .stream = { true } });
    search(test_name_, &(struct search){ .steps = { 3, 15 }, .stream = { false, true } });
    search(test_name_, &(struct search){ .steps = { 7, 7 }, .stream = { true, true }, .layer = { 0, 1 } }); /* reads ahead */
}

TEST(steps_with_guesses) {
    search(test_name_, &(struct search){ .steps = { 1, 3 }, .layer = { 0, 1 }, .guess = 1 });
    search(test_name_, &(struct search){ .steps = { 3, 3 }, .layer = { 0, 1 }, .guess = 6 });
    search(test_name_, &(struct search){ .steps = { 1, 4 }, .layer = { 0, 1 }, .guess = 5, .max_faults = 1 });
}

TEST(steps_while_slots_are_filled) {
    static const uint32_t order[N_KEYS] = { 3, 0, 1, 2, 4, 5, 6, 7 };
    search(test_name_, &(struct search){ .steps = { 1, 10 }, .fill = order });
    search(test_name_, &(struct search){ .steps = { 7, 4 }, .fill = order });
}

int main(void) {
    RUN(steps_without_faults);
    RUN(steps_with_a_fault);
    RUN(steps_of_a_prefill);
    RUN(steps_with_guesses);
    RUN(steps_while_slots_are_filled);
    return test_failed_;
}
