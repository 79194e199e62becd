/* SPDX-License-Identifier: Apache-2.0
 *
 * The planner: a list schedule. Experts that lie in tier 0 go first; the others, most rows first (their computation hides
 * the most of the reads behind them), each to the tier where it would be finished the earliest given what was planned
 * before it. */
#include "offload/plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct clocks { double link[PLAN_MAX_TIERS], compute[PLAN_MAX_TIERS]; };

/* When the expert would be finished in tier `to`; moves the clocks. */
static double finish(struct clocks *c, const struct plan_tier *tiers, uint64_t bytes, const struct plan_expert *x, uint32_t to) {
    double here = 0;
    for (uint32_t t = x->tier; t > to; t--) {
        const double start = here > c->link[t - 1] ? here : c->link[t - 1];
        c->link[t - 1] = start + (double)bytes / tiers[t - 1].bytes_per_s;
        here = c->link[t - 1] + tiers[t - 1].latency_s;
    }
    const double start = here > c->compute[to] ? here : c->compute[to];
    return c->compute[to] = start + tiers[to].expert_s + x->n_rows * tiers[to].row_s;
}

/* The first tier on its way to tier 0 that computes, tier 0 at last. */
static uint32_t nearest(const struct plan_tier *tiers, const struct plan_expert *x) {
    uint32_t t = x->tier;
    while (t && !tiers[t].computes) {
        t--;
    }
    return t;
}

static uint32_t choose(const struct clocks *c, const struct plan_tier *tiers, uint64_t bytes, const struct plan_expert *x,
                       enum plan_mode mode) {
    if (mode != PLAN_MIXED) {
        return mode == PLAN_ALL_CPU ? nearest(tiers, x) : 0;
    }
    double best = INFINITY;
    uint32_t to = 0;
    for (uint32_t t = 0; t <= x->tier; t++) {
        struct clocks trial = *c;
        const double s = tiers[t].computes ? finish(&trial, tiers, bytes, x, t) : INFINITY;
        if (s < best) {
            best = s;
            to = t;
        }
    }
    return to;
}

static double schedule(const struct plan_tier *tiers, uint32_t n_tiers, uint64_t bytes, enum plan_mode mode,
                       struct plan_expert *experts, uint32_t n, const uint32_t *order) {
    struct clocks c = { 0 };
    double last = 0;
    for (uint32_t t = 0; t < n_tiers; t++) {
        c.link[t] = tiers[t].link_busy_s;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct plan_expert *x = &experts[order[i]];
        const uint32_t to = choose(&c, tiers, bytes, x, mode);
        const double s = finish(&c, tiers, bytes, x, to);
        x->computed_in = (uint8_t)to;
        x->choice = x->tier == 0 ? PLAN_HIT : to == 0 ? PLAN_TRANSFER : PLAN_CPU;
        last = s > last ? s : last;
    }
    return last;
}

/* Before: it lies in tier 0, or has more rows; else in the order it came. */
static bool before(const struct plan_expert *a, const struct plan_expert *b) {
    return (a->tier == 0) != (b->tier == 0) ? a->tier == 0 : a->tier && a->n_rows > b->n_rows;
}

static void sort_order(const struct plan_expert *experts, uint32_t n, uint32_t *order) {
    for (uint32_t i = 0; i < n; i++) { /* insertion: stable, and short for decode */
        uint32_t at = i;
        for (; at && before(&experts[i], &experts[order[at - 1]]); at--) {
            order[at] = order[at - 1];
        }
        order[at] = i;
    }
}

double plan_layer(const struct plan_tier *tiers, uint32_t n_tiers, uint64_t expert_bytes, enum plan_mode mode,
                  struct plan_expert *experts, uint32_t n, uint32_t *order) {
    sort_order(experts, n, order);
    double best = schedule(tiers, n_tiers, expert_bytes, mode, experts, n, order);
    if (mode == PLAN_MIXED && n_tiers > 2) {
        const double moved = schedule(tiers, n_tiers, expert_bytes, PLAN_ALL_TRANSFER, experts, n, order);
        const double stayed = schedule(tiers, n_tiers, expert_bytes, PLAN_ALL_CPU, experts, n, order);
        const enum plan_mode winner = best <= moved && best <= stayed ? PLAN_MIXED : moved <= stayed ? PLAN_ALL_TRANSFER : PLAN_ALL_CPU;
        best = schedule(tiers, n_tiers, expert_bytes, winner, experts, n, order);
    }
    return best;
}

/* ---- the loop ---- */

static const double FALLS_AT = 0.5, RECOVERS_AT = 0.25;
enum { TRIAL_STEPS = 8, ROUND_STEPS = 256 }; /* of every round, each pure policy gets a trial, the better one the rest */

enum plan_mode plan_loop_mode(const struct plan_loop *l) {
    if (!l->fallen) {
        return PLAN_MIXED;
    }
    const uint32_t step = l->n_steps % ROUND_STEPS;
    if (step < 2 * TRIAL_STEPS) {
        return step < TRIAL_STEPS ? PLAN_ALL_TRANSFER : PLAN_ALL_CPU;
    }
    return l->pure_row_s[0] <= l->pure_row_s[1] ? PLAN_ALL_TRANSFER : PLAN_ALL_CPU;
}

bool plan_loop_observe(struct plan_loop *l, enum plan_mode mode, double predicted_s, double measured_s, uint64_t n_rows) {
    if (!(measured_s > 0) || n_rows == 0) {
        return false;
    }
    const double off = fabs(predicted_s - measured_s) / measured_s;
    l->error += ((off < 10 ? off : 10) - l->error) / 16; /* one outlier is no verdict */
    if (mode != PLAN_MIXED) {
        double *row_s = &l->pure_row_s[mode == PLAN_ALL_CPU];
        *row_s = plan_smooth(*row_s, measured_s / (double)n_rows);
    }
    l->n_steps += l->fallen;
    if (l->fallen ? l->error >= RECOVERS_AT : l->error <= FALLS_AT) {
        return false;
    }
    l->fallen = !l->fallen;
    l->n_falls += l->fallen;
    l->n_steps = 0;
    return true;
}
