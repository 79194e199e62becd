/* SPDX-License-Identifier: Apache-2.0
 *
 * Expert choice for one token. The order "falling score, ties to the lower index, NaN last" is one predicate,
 * `ranks_higher`, used for groups and experts alike. Cost: one pass over the experts plus insertions, about
 * k ln(n_experts / k) of them for scores in random order. */
#include "kernels/router.h"
#include "kernels/ref/exp.h"

#include <assert.h>
#include <stddef.h>

enum { MAX_EXPERTS = 1024 };

static const float MIN_WEIGHT_SUM = 0x1p-14f;

/* Strict, so that scanning in index order leaves ties to the lower index. */
static bool ranks_higher(float a, float b) {
    return a > b || (!isnan(a) && isnan(b));
}

/* ids [k] <- the k highest of score [n], best first. */
static void top_k(const float *score, uint32_t n, uint32_t k, int32_t *ids) {
    uint32_t n_ids = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (n_ids == k && !ranks_higher(score[i], score[ids[k - 1]])) continue;
        uint32_t at = n_ids < k ? n_ids++ : k - 1;
        for (; at > 0 && ranks_higher(score[i], score[ids[at - 1]]); at--) ids[at] = ids[at - 1];
        ids[at] = (int32_t)i;
    }
}

/* exp for x <= 0; a NaN stays one. */
static float exp_neg(float x) {
    return isnan(x) ? x : kern__fast_exp(x);
}

/* In place. A NaN stays a NaN of its own: it takes no part in the sum, so it cannot hide the other experts. */
static void softmax(float *x, uint32_t n) {
    float max = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        if (x[i] > max) max = x[i];
    for (uint32_t i = 0; i < n; i++) {
        x[i] = x[i] == max ? 1.0f : exp_neg(x[i] - max);
        if (!isnan(x[i])) sum += x[i];
    }
    for (uint32_t i = 0; i < n; i++) x[i] /= sum;
}

static void logits_to_probs(enum kern_gate gate, float *x, uint32_t n) {
    switch (gate) {
    case KERN_GATE_SOFTMAX:
        softmax(x, n);
        break;
    case KERN_GATE_SIGMOID:
        for (uint32_t i = 0; i < n; i++) {
            const float e = exp_neg(-fabsf(x[i]));
            x[i] = (x[i] < 0 ? e : 1.0f) / (1.0f + e);
        }
        break;
    case KERN_GATE_SOFTMAX_WEIGHT: /* ranks raw logits; the softmax comes after the choice */
        break;
    case KERN_GATE_SQRT_SOFTPLUS:
        for (uint32_t i = 0; i < n; i++) /* log1p in double and rounded once, so that libraries agree */
            x[i] = sqrtf((x[i] > 0 ? x[i] : 0) + (float)log1p((double)exp_neg(-fabsf(x[i]))));
        break;
    }
}

/* Sum of the two best scores of a group; NaN when it has none. */
static float group_score(const float *sel, uint32_t n) {
    float a = NAN, b = NAN;
    for (uint32_t i = 0; i < n; i++) {
        if (ranks_higher(sel[i], a)) {
            b = a;
            a = sel[i];
        } else if (ranks_higher(sel[i], b)) {
            b = sel[i];
        }
    }
    return isnan(b) ? a : a + b;
}

static void drop_weak_groups(const struct kern_router *r, float *sel) {
    float score[MAX_EXPERTS];
    int32_t best[MAX_EXPERTS];
    bool kept[MAX_EXPERTS] = { false };
    uint32_t size = r->n_experts / r->n_groups;

    for (uint32_t g = 0; g < r->n_groups; g++) score[g] = group_score(sel + (size_t)g * size, size);
    top_k(score, r->n_groups, r->n_groups_used, best);
    for (uint32_t i = 0; i < r->n_groups_used; i++) kept[best[i]] = true;
    for (uint32_t e = 0; e < r->n_experts; e++)
        if (!kept[e / size]) sel[e] = -INFINITY;
}

/* ids [k] hold the choice without preference. With nothing to gain it stands, bit for bit. */
static void choose_preferred(const struct kern_router *r, float *sel, int32_t *ids) {
    uint32_t n_preferred = 0;
    for (uint32_t j = 0; j < r->k; j++) n_preferred += r->prefer[ids[j]] != 0;
    if (n_preferred == r->k) return;
    const float gain = r->margin * (r->gate == KERN_GATE_SOFTMAX_WEIGHT ? 1 : fabsf(sel[ids[r->k - 1]]));
    for (uint32_t e = 0; e < r->n_experts; e++)
        if (r->prefer[e]) sel[e] += gain;
    top_k(sel, r->n_experts, r->k, ids);
}

static void drop_light_slots(const struct kern_router *r, int32_t *ids, float *w) {
    const uint32_t keep = (r->k + 1) / 2;
    float kept = 0, all = 0;
    for (uint32_t j = 0; j < r->k; j++) {
        all += w[j];
        if (j < keep) kept += w[j];
    }
    if (!(kept >= r->enough * all)) return;
    for (uint32_t j = keep; j < r->k; j++) {
        ids[j] = -1;
        w[j] = 0;
    }
}

void kern_route(const struct kern_router *r, float *logits, int32_t *ids, float *w) {
    float sel[MAX_EXPERTS];
    assert(r->n_experts <= MAX_EXPERTS && r->k <= r->n_experts);

    float *probs = logits;
    logits_to_probs(r->gate, probs, r->n_experts);
    for (uint32_t e = 0; e < r->n_experts; e++) sel[e] = probs[e] + (r->select_bias ? r->select_bias[e] : 0);
    if (r->n_groups > 1) {
        assert(r->n_experts % r->n_groups == 0 && r->n_groups_used >= 1 && r->n_groups_used <= r->n_groups);
        drop_weak_groups(r, sel);
    }
    top_k(sel, r->n_experts, r->k, ids);
    if (r->prefer) choose_preferred(r, sel, ids);

    for (uint32_t j = 0; j < r->k; j++) w[j] = probs[ids[j]];
    if (r->gate == KERN_GATE_SOFTMAX_WEIGHT) softmax(w, r->k);
    if (r->enough > 0) drop_light_slots(r, ids, w);
    if (r->norm) {
        float sum = 0;
        for (uint32_t j = 0; j < r->k; j++) sum += w[j];
        if (sum < MIN_WEIGHT_SUM) sum = MIN_WEIGHT_SUM;
        for (uint32_t j = 0; j < r->k; j++) w[j] /= sum;
    }
    if (r->scale != 0 && r->scale != 1)
        for (uint32_t j = 0; j < r->k; j++) w[j] *= r->scale;
}
