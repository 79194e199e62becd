/* SPDX-License-Identifier: Apache-2.0
 *
 * The batching policy, a pure function: who computes how many tokens in the next step.
 *
 * Decode tokens come first: every running sequence gets its next token in every step, whatever prefill is going on. What
 * is left of the budget is prefill, in chunks. When decode alone would fill the budget, prefill still gets an eighth of
 * it (with a budget of one token: every other step), so both always progress. */
#include "scheduler/internal.h"

static uint32_t min_u32(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

static uint32_t take(struct batch_want *w, uint32_t most) {
    uint32_t n = min_u32(w->n_pending - w->n_take, most);

    w->n_take += n;
    return n;
}

/* Not all of them fit: longest waiting first, the older one among equals, so that turns go round. */
static void plan_decode_some(struct batch_want *wants, uint32_t n, uint32_t budget) {
    for (; budget > 0; budget--) {
        struct batch_want *best = NULL;

        for (uint32_t i = 0; i < n; i++)
            if (wants[i].decode && wants[i].n_take == 0 && (!best || wants[i].last_step < best->last_step))
                best = &wants[i];
        take(best, 1);
    }
}

/* The oldest prefill gets half, so that it ends; the others share the other half in order of age, so that a short prompt
 * does not wait for the whole of a long one before it; what they leave goes to the oldest again. */
static uint32_t plan_prefill(struct batch_want *wants, uint32_t n, uint32_t budget) {
    struct batch_want *oldest = NULL;
    uint32_t left = budget;

    for (uint32_t i = 0; i < n; i++) {
        if (wants[i].decode || wants[i].n_pending == 0)
            continue;
        if (!oldest) {
            oldest = &wants[i];
            left -= take(oldest, budget - budget / 2);
        } else {
            left -= take(&wants[i], left);
        }
    }
    if (oldest)
        left -= take(oldest, left);
    return budget - left;
}

static uint32_t least_prefill(uint32_t budget, uint64_t turn) {
    return budget >= 8 ? budget / 8 : budget > 1 ? 1 : (uint32_t)(turn & 1);
}

uint32_t batcher__plan(struct batch_want *wants, uint32_t n, uint32_t budget, uint64_t turn) {
    uint32_t n_decode = 0, for_prefill, for_decode;
    uint64_t n_prefill = 0;

    for (uint32_t i = 0; i < n; i++) {
        wants[i].n_take = 0;
        if (wants[i].decode)
            n_decode++;
        else
            n_prefill += wants[i].n_pending;
    }
    for_prefill = budget > n_decode ? budget - n_decode : least_prefill(budget, turn);
    if (for_prefill > n_prefill)
        for_prefill = (uint32_t)n_prefill;
    for_decode = min_u32(n_decode, budget - for_prefill);

    if (for_decode < n_decode)
        plan_decode_some(wants, n, for_decode);
    else
        for (uint32_t i = 0; i < n; i++)
            if (wants[i].decode)
                take(&wants[i], 1);
    return for_decode + plan_prefill(wants, n, for_prefill);
}
