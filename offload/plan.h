/* SPDX-License-Identifier: Apache-2.0
 *
 * Which tier computes which expert of a layer, and in which order the links carry what has to move: a pure function of
 * where experts are, their rows, and measured costs. Tiers go from the fastest (0) to the slowest; the last one is the
 * file, which computes nothing. On a machine without a GPU they are RAM and file, and what is planned is the order.
 * The loop around it compares predictions with what happened and stops trusting the plan when they differ. */
#ifndef MOED_OFFLOAD_PLAN_H
#define MOED_OFFLOAD_PLAN_H

#include <stdbool.h>
#include <stdint.h>

enum { PLAN_MAX_TIERS = 4 };

struct plan_tier {
    bool computes;
    double expert_s, row_s;       /* an expert computed here: expert_s + n_rows * row_s             */
    double bytes_per_s, latency_s; /* of the link from the next slower tier into this one           */
    double link_busy_s;           /* until that link has carried what is queued on it               */
};

/* HIT: it lies in tier 0. TRANSFER: it is moved to tier 0. CPU: computed where it lies, or in the first tier on its way
 * that computes. */
enum plan_choice { PLAN_HIT, PLAN_TRANSFER, PLAN_CPU };
enum plan_mode { PLAN_MIXED, PLAN_ALL_TRANSFER, PLAN_ALL_CPU };

struct plan_expert {
    uint32_t n_rows;
    uint8_t tier;                 /* where it lies                                                  */
    uint8_t choice, computed_in;  /* out                                                            */
};

/* order [n]: hits first, then in the order in which the links are to carry them. Mixed is never predicted to take longer
 * than either of the others. Returns the predicted seconds. n_tiers >= 2, tier 0 computes. */
double plan_layer(const struct plan_tier *tiers, uint32_t n_tiers, uint64_t expert_bytes, enum plan_mode mode,
                  struct plan_expert *experts, uint32_t n, uint32_t *order);

struct plan_loop {
    double error;                 /* smoothed |predicted - measured| / measured                     */
    bool fallen;                  /* predictions are too wrong to mix by                            */
    double pure_row_s[2];         /* measured, smoothed: all transfer, all CPU; 0: not yet          */
    uint32_t n_steps;             /* since it fell                                                  */
    uint64_t n_falls;
};
enum plan_mode plan_loop_mode(const struct plan_loop *l);
/* Returns whether it fell or recovered just now: the moment for one log line. */
bool plan_loop_observe(struct plan_loop *l, enum plan_mode mode, double predicted_s, double measured_s, uint64_t n_rows);

/* A measured cost, smoothed; the first measurement counts whole. */
static inline double plan_smooth(double old, double measured) {
    return old > 0 ? old + (measured - old) / 16 : measured;
}

#endif
