/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads that no want asks for: guesses about the next layers, the next layer of a prefill, and filling what is empty. The
 * same machine as slots.c and as pure. Demand always goes first: nothing begins here while a want is held up. */
#include "offload/internal.h"

enum { RECENT_TOKENS = 2 };

/* A wrong guess on a busy link takes the place of a read that is needed; others measured a break-even near 60 % there and
 * lower on idle ones. Smoothed over some 32 judgements. */
static const double GUESS_PAYS = 0.5, GUESS_WEIGHT = 1.0 / 32;

void offload__guess_init(struct offload__slots *s) {
    for (uint32_t r = 0; r < OFFLOAD__GUESSES; r++) {
        s->guesses.precision[r] = GUESS_PAYS; /* given a chance */
    }
}

void offload__slots_guess(struct offload__slots *s, uint32_t layer, const uint32_t *experts, uint32_t n) {
    struct offload__guesses *g = &s->guesses;
    struct offload__guess_list *l = &g->layers[layer];
    l->n = n < OFFLOAD__GUESSES ? n : OFFLOAD__GUESSES;
    for (uint32_t r = 0; r < l->n; r++) {
        const uint32_t key = layer * s->n_experts + experts[r], most = sizeof g->wait / sizeof g->wait[0];
        l->at[r] = (struct offload__guess){ experts[r], s->slot_of[key] == OFFLOAD__NONE };
        if (l->at[r].absent && g->precision[r] >= GUESS_PAYS && g->n_wait < most) {
            g->wait[(g->wait_head + g->n_wait) % most].key = key;
            g->wait[(g->wait_head + g->n_wait++) % most].rank = r;
            s->work++;
        }
    }
}

/* Its layer has come and nobody wants it. */
static void drop_guess(struct offload__slots *s, uint32_t i) {
    struct offload__slot *x = &s->slots[i];
    offload__slot_judge(s, x, false);
    if (x->state == SLOT_RESERVED && x->in_flight == 0) {
        offload__slot_make_empty(s, i);
    } else if (x->state == SLOT_RESERVED) {
        offload__slot_set_unwanted(s, x, true);
    }
}

/* The layer of the running step: which guesses were right, and away with the others. */
void offload__guess_judge(struct offload__slots *s) {
    struct offload__guesses *g = &s->guesses;
    struct offload__guess_list *l = &g->layers[s->layer];
    for (uint32_t r = 0; r < l->n; r++) {
        if (l->at[r].absent) {
            const bool right = s->want_of[l->at[r].expert] != OFFLOAD__NONE;
            g->precision[r] += GUESS_WEIGHT * (right - g->precision[r]);
        }
    }
    l->n = 0;
    for (uint32_t e = 0; g->n_unjudged && e < s->n_experts; e++) {
        const uint32_t i = s->slot_of[s->layer * s->n_experts + e];
        if (i != OFFLOAD__NONE && s->slots[i].guess) {
            drop_guess(s, i);
        }
    }
}

/* A prefill that wants most of a layer will want most of the next one. */
void offload__guess_look_ahead(struct offload__slots *s) {
    s->ahead_layer = OFFLOAD__NONE;
    s->ahead_next = 0;
    for (uint32_t l = s->layer + 1; s->stream && s->n_wants * 2 >= s->n_experts && l < s->n_layers; l++) {
        if (s->layer_class[l] < OFFLOAD__CLASSES) {
            s->ahead_layer = l;
            return;
        }
    }
}

/* A slot for a guess: a free one, or that of an expert which is neither recent nor worth more. */
static uint32_t slot_for_guess(struct offload__slots *s, uint32_t key, uint32_t rank) {
    const uint32_t c = s->layer_class[key / s->n_experts], free = offload__slot_take_free(s, c);
    if (free != OFFLOAD__NONE) {
        return free;
    }
    const uint32_t v = offload__slot_lowest(s, c);
    if (v == OFFLOAD__NONE || offload__slot_awaited(s, &s->slots[v])) {
        return OFFLOAD__NONE;
    }
    const uint32_t old = s->slots[v].key;
    const bool recent = s->policy.now - s->policy.entries[old].last < (uint64_t)RECENT_TOKENS * s->n_layers;
    const bool worth = s->policy.kind == OFFLOAD_LRU ||
                       s->guesses.precision[rank] * policy_score_due(&s->policy, key) > policy_score(&s->policy, old);
    return recent || !worth ? OFFLOAD__NONE : offload__slot_evict(s, v);
}

static bool start_guess(struct offload__slots *s) {
    struct offload__guesses *g = &s->guesses;
    while (g->n_wait) {
        const uint32_t key = g->wait[g->wait_head].key, rank = g->wait[g->wait_head].rank;
        g->wait_head = (g->wait_head + 1) % (sizeof g->wait / sizeof g->wait[0]);
        g->n_wait--;
        if (s->slot_of[key] != OFFLOAD__NONE || g->layers[key / s->n_experts].n == 0) {
            continue; /* it is here, or its layer has been */
        }
        const uint32_t i = slot_for_guess(s, key, rank);
        if (i != OFFLOAD__NONE) {
            offload__slot_reserve(s, i, key, WHY_GUESS);
            offload__slot_set_guess(s, &s->slots[i], true);
            return true;
        }
    }
    return false;
}

static bool start_ahead(struct offload__slots *s) {
    const uint32_t c = s->ahead_layer == OFFLOAD__NONE ? OFFLOAD__CLASSES : s->layer_class[s->ahead_layer];
    while (c < OFFLOAD__CLASSES && s->ahead_next < s->n_experts && s->n_ahead < offload__stream_quota(s, c) / 2) {
        const uint32_t key = s->ahead_layer * s->n_experts + s->ahead_next;
        if (s->slot_of[key] != OFFLOAD__NONE) {
            s->ahead_next++;
            continue;
        }
        const uint32_t i = offload__slot_take(s, c, true);
        if (i == OFFLOAD__NONE) {
            return false;
        }
        s->ahead_next++;
        offload__slot_reserve(s, i, key, WHY_AHEAD);
        offload__slot_set_stream(s, &s->slots[i], true);
        offload__slot_set_guess(s, &s->slots[i], true);
        return true;
    }
    return false;
}

static bool start_fill(struct offload__slots *s) {
    for (; s->fill_order && s->fill_next < s->n_keys; s->fill_next++) {
        const uint32_t key = s->fill_order[s->fill_next], c = s->layer_class[key / s->n_experts];
        const uint32_t i = c == OFFLOAD__CLASSES || s->slot_of[key] != OFFLOAD__NONE ? OFFLOAD__NONE : offload__slot_take_free(s, c);
        if (i != OFFLOAD__NONE) {
            offload__slot_reserve(s, i, key, WHY_FILL);
            return true;
        }
    }
    return false;
}

/* Begins a load that no want asks for; never while one that is asked for is held up by something. Before the first step
 * there is nobody to be in the way of. */
bool offload__guess_start(struct offload__slots *s) {
    const bool may_low = s->low_in_flight < s->low_most || !s->begun;
    if (s->demand.head != OFFLOAD__NONE || s->n_waiting || (s->staged && !(s->free_stages & (s->free_stages - (s->stages > 1))))) {
        return false;
    }
    return (may_low && start_guess(s)) || start_ahead(s) || (may_low && start_fill(s));
}
