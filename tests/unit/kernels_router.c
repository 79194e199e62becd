/* SPDX-License-Identifier: Apache-2.0
 *
 * Router and grouping. The router's oracle is written the slow obvious way: double precision, a full sort of
 * (score, index) with NaN last, no code shared with the kernel. Also hand-computed cases, so that oracle and
 * kernel cannot be wrong together. */
#include "test.h"

#include <math.h>
#include <stdlib.h>

#include "kernels_rand.h"

enum { MAX_E = 1024 };

/* ---- oracle ---- */

struct scored { double score; int32_t id; };

static int by_rank(const void *pa, const void *pb) {
    const struct scored *a = pa, *b = pb;
    bool na = isnan(a->score), nb = isnan(b->score);
    if (na != nb) return na ? 1 : -1;
    if (!na && a->score != b->score) return a->score > b->score ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

static void oracle_probs(enum kern_gate gate, const float *logits, uint32_t n, double *p) {
    double max = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        if ((double)logits[i] > max) max = (double)logits[i];
    for (uint32_t i = 0; i < n; i++) {
        double x = (double)logits[i];
        if (gate == KERN_GATE_SOFTMAX) p[i] = exp(x - max);
        if (gate == KERN_GATE_SIGMOID) p[i] = 1 / (1 + exp(-x));
        if (gate == KERN_GATE_SOFTMAX_WEIGHT) p[i] = x;
        if (gate == KERN_GATE_SQRT_SOFTPLUS) p[i] = x > 40 ? sqrt(x) : sqrt(log1p(exp(x)));
        if (!isnan(p[i])) sum += p[i];
    }
    for (uint32_t i = 0; i < n && gate == KERN_GATE_SOFTMAX; i++) p[i] /= sum;
}

/* sel: scores to rank (float steps as the kernel's, so that near-ties agree). */
static void oracle_choose(const struct kern_router *r, const double *sel_in, int32_t *ids) {
    static struct scored s[MAX_E], g[MAX_E];
    double sel[MAX_E];
    memcpy(sel, sel_in, r->n_experts * sizeof *sel);
    if (r->n_groups > 1) {
        uint32_t size = r->n_experts / r->n_groups;
        for (uint32_t i = 0; i < r->n_groups; i++) {
            for (uint32_t j = 0; j < size; j++) s[j] = (struct scored){ sel[i * size + j], (int32_t)j };
            qsort(s, size, sizeof *s, by_rank);
            g[i] = (struct scored){ s[0].score, (int32_t)i };
            if (size > 1 && !isnan(s[1].score)) g[i].score += s[1].score;
        }
        qsort(g, r->n_groups, sizeof *g, by_rank);
        for (uint32_t i = r->n_groups_used; i < r->n_groups; i++)
            for (uint32_t j = 0; j < size; j++) sel[(uint32_t)g[i].id * size + j] = -INFINITY;
    }
    for (uint32_t i = 0; i < r->n_experts; i++) s[i] = (struct scored){ sel[i], (int32_t)i };
    qsort(s, r->n_experts, sizeof *s, by_rank);
    for (uint32_t j = 0; j < r->k; j++) ids[j] = s[j].id;
}

static void oracle_weights(const struct kern_router *r, const double *probs, const int32_t *ids, double *w) {
    double sum = 0, max = -INFINITY;
    for (uint32_t j = 0; j < r->k; j++) {
        w[j] = probs[ids[j]];
        if (w[j] > max) max = w[j];
    }
    for (uint32_t j = 0; j < r->k && r->gate == KERN_GATE_SOFTMAX_WEIGHT; j++) sum += w[j] = exp(w[j] - max);
    for (uint32_t j = 0; j < r->k && r->gate == KERN_GATE_SOFTMAX_WEIGHT; j++) w[j] /= sum;
    sum = 0;
    for (uint32_t j = 0; j < r->k; j++) sum += w[j];
    for (uint32_t j = 0; j < r->k && r->norm; j++) w[j] /= sum > 6.103515625e-5 ? sum : 6.103515625e-5;
    for (uint32_t j = 0; j < r->k && r->scale != 0; j++) w[j] *= (double)r->scale;
}

/* ---- tests ---- */

/* Logits on a grid of 1/16 make exact ties common; the gaps between different scores are far above rounding,
 * so float kernel and double oracle must agree on every id. Weights: 2^-19 relative = 32 roundings, for a sum
 * of up to 32 chosen weights and the softmax over up to 1024 logits (expf 1 ulp, sum of positive terms). */
static void compare(const char *test_name_, const struct kern_router *r, const float *logits) {
    float work[MAX_E], w[MAX_E];
    int32_t ids[MAX_E], want_ids[MAX_E];
    double probs[MAX_E], sel[MAX_E], want_w[MAX_E];
    memcpy(work, logits, r->n_experts * sizeof *work);
    kern_route(r, work, ids, w);

    oracle_probs(r->gate, logits, r->n_experts, probs);
    for (uint32_t e = 0; e < r->n_experts; e++)
        sel[e] = (double)((float)probs[e] + (r->select_bias ? r->select_bias[e] : 0));
    oracle_choose(r, sel, want_ids);
    oracle_weights(r, probs, want_ids, want_w);
    for (uint32_t j = 0; j < r->k; j++) {
        CHECKF(ids[j] == want_ids[j], "gate %d n %u k %u slot %u: %d, oracle %d", r->gate, r->n_experts, r->k, j,
               ids[j], want_ids[j]);
        CHECKF(fabs((double)w[j] - want_w[j]) <= 0x1p-19 * fabs(want_w[j]) + 1e-30, "gate %d slot %u: %g, oracle %g",
               r->gate, j, (double)w[j], want_w[j]);
    }
}

TEST(router_equals_oracle_on_random_shapes) {
    uint64_t s = 1;
    float logits[MAX_E], bias[MAX_E];
    for (int round = 0; round < 4000; round++) {
        uint32_t groups = 1u << rng_next(&s) % 4, size = 1 + (uint32_t)rng_next(&s) % (round % 50 ? 24 : 128);
        struct kern_router r = { .gate = (enum kern_gate)(1 + rng_next(&s) % 4), .n_experts = groups * size };
        r.n_groups = groups == 1 ? (uint32_t)rng_next(&s) % 2 : groups;
        r.n_groups_used = 1 + (uint32_t)rng_next(&s) % groups;
        uint32_t k_max = r.n_groups_used * size;
        r.k = 1 + (uint32_t)rng_next(&s) % (k_max < 32 ? k_max : 32);
        r.norm = rng_next(&s) % 2;
        r.scale = (float[]){ 0, 1, 2.5f }[rng_next(&s) % 3];
        if (rng_next(&s) % 2) r.select_bias = bias;
        for (uint32_t e = 0; e < r.n_experts; e++) {
            logits[e] = roundf(rng_float(&s, 4) * 16) / 16;
            bias[e] = rng_next(&s) % 2 ? 0 : roundf(rng_float(&s, 1) * 8) / 8;
        }
        /* off-grid biases: probability + bias of two experts must not meet within a rounding by chance */
        for (uint32_t e = 0; e < r.n_experts && r.gate != KERN_GATE_SOFTMAX_WEIGHT; e++) bias[e] += 0.001f * (float)(e % 7);
        compare(test_name_, &r, logits);
    }
}

TEST(router_hand_computed) {
    float l[4] = { 0, 2, 1, 2 }, w[4], e = 2.71828182846f;
    int32_t ids[4];
    struct kern_router r = { .gate = KERN_GATE_SOFTMAX, .n_experts = 4, .k = 3 };
    kern_route(&r, l, ids, w);
    CHECK(ids[0] == 1 && ids[1] == 3 && ids[2] == 2); /* tie to the lower index */
    CHECK(fabsf(w[0] - e * e / (2 * e * e + e + 1)) < 1e-6f && w[0] == w[1]);

    /* bias chooses, but does not weigh */
    float l2[4] = { 0, 0, 0, 0 }, bias[4] = { 0, 0, 5, 1 };
    r = (struct kern_router){ .gate = KERN_GATE_SIGMOID, .n_experts = 4, .k = 2, .select_bias = bias, .scale = 3 };
    kern_route(&r, l2, ids, w);
    CHECK(ids[0] == 2 && ids[1] == 3 && w[0] == 1.5f && w[1] == 1.5f);

    /* weights too small to divide by: the clamp 2^-14 */
    float l3[2] = { -30, -31 };
    r = (struct kern_router){ .gate = KERN_GATE_SIGMOID, .n_experts = 2, .k = 1, .norm = true };
    kern_route(&r, l3, ids, w);
    CHECK(ids[0] == 0 && fabsf(w[0] / (expf(-30) * 16384) - 1) < 1e-5f);

    /* groups by the sum of their two best: {3, 0} = 3 loses to {2, 2} = 4 although it holds the best expert */
    float l4[4] = { 3, 0, 2, 2 };
    r = (struct kern_router){ .gate = KERN_GATE_SOFTMAX_WEIGHT, .n_experts = 4, .k = 2, .n_groups = 2, .n_groups_used = 1 };
    kern_route(&r, l4, ids, w);
    CHECK(ids[0] == 2 && ids[1] == 3 && w[0] == 0.5f && w[1] == 0.5f);
}

TEST(router_nan_is_last) {
    for (int gate = 1; gate <= 4; gate++) {
        float l[5] = { NAN, 1, NAN, -3, 2 }, w[5];
        int32_t ids[5];
        struct kern_router r = { .gate = (enum kern_gate)gate, .n_experts = 5, .k = 5 };
        kern_route(&r, l, ids, w);
        CHECK(ids[0] == 4 && ids[1] == 1 && ids[2] == 3 && ids[3] == 0 && ids[4] == 2);
        CHECKF(isfinite(w[0]) && isfinite(w[2]) && isnan(w[3]), "gate %d", gate);
        for (int i = 0; i < 5; i++) l[i] = NAN; /* all NaN: still k distinct valid ids */
        kern_route(&r, l, ids, w);
        for (int i = 0; i < 5; i++) CHECK(ids[i] == i);
    }
}

static void check_group(const char *test_name_, uint32_t n_tokens, uint32_t k, uint32_t n_experts, const int32_t *ids) {
    static int32_t first[MAX_E + 1], row_token[1 << 14], pair_row[1 << 14];
    struct kern_moe_group d = { .n_tokens = n_tokens, .k = k, .n_experts = n_experts, .ids = ids, .first = first,
                                .row_token = row_token, .pair_row = pair_row };
    memset(first, 0x5A, sizeof first);
    kern_moe_group(&d);

    int32_t row = 0; /* the definition: experts in order, then pairs in order */
    for (uint32_t e = 0; e < n_experts; e++) {
        CHECK(first[e] == row);
        for (uint32_t i = 0; i < n_tokens * k; i++) {
            if (ids[i] != (int32_t)e) continue;
            CHECK(row_token[row] == (int32_t)(i / k) && pair_row[i] == row);
            row++;
        }
    }
    CHECK(first[n_experts] == row && row == (int32_t)(n_tokens * k));
}

TEST(group_is_a_stable_counting_sort) {
    static int32_t ids[1 << 14];
    uint64_t s = 7;
    for (int round = 0; round < 300; round++) {
        uint32_t n_experts = 1 + (uint32_t)rng_next(&s) % 64, k = 1 + (uint32_t)rng_next(&s) % 8;
        uint32_t n_tokens = (uint32_t)rng_next(&s) % 40;
        for (uint32_t i = 0; i < n_tokens * k; i++) ids[i] = (int32_t)(rng_next(&s) % n_experts);
        check_group(test_name_, n_tokens, k, n_experts, ids);
    }
}

TEST(group_edge_shapes) {
    static int32_t ids[1 << 14];
    check_group(test_name_, 0, 8, 128, ids); /* no token */
    for (int i = 0; i < 4096; i++) ids[i] = 63;
    check_group(test_name_, 512, 8, 64, ids); /* one expert takes all */
    for (int i = 0; i < 4096; i++) ids[i] = 0;
    check_group(test_name_, 512, 8, 1, ids);
    for (int i = 0; i < 1024; i++) ids[i] = 1023 - i;
    check_group(test_name_, 1, 1024, 1024, ids);
}

/* Both against their definition in kernels/router.h. */
static void check_preference(const char *test_name_, const struct kern_router *r, const float *logits) {
    struct kern_router exact = *r;
    float a[MAX_E], b[MAX_E], probs[MAX_E], wa[MAX_E], wb[MAX_E];
    int32_t ids[MAX_E], got[MAX_E];
    bool was[MAX_E] = { false }, is[MAX_E] = { false };
    exact.prefer = NULL;
    memcpy(a, logits, r->n_experts * sizeof *a);
    memcpy(b, logits, r->n_experts * sizeof *b);
    kern_route(&exact, a, ids, wa);
    kern_route(r, b, got, wb);
    memcpy(probs, a, sizeof probs); /* the workspace holds them */
    const float weakest = probs[ids[r->k - 1]], gain = r->margin * (r->gate == KERN_GATE_SOFTMAX_WEIGHT ? 1 : fabsf(weakest));
    for (uint32_t j = 0; j < r->k; j++) was[ids[j]] = is[got[j]] = true;
    for (uint32_t e = 0; e < r->n_experts; e++) {
        const float slack = gain * 1e-5f + 1e-6f;
        CHECK(!(was[e] && !is[e]) || (!r->prefer[e] && probs[e] <= weakest + gain + slack));
        CHECK(!(!was[e] && is[e]) || (r->prefer[e] && probs[e] >= weakest - gain - slack));
    }
    for (uint32_t j = 0; j < r->k && !r->norm && r->gate != KERN_GATE_SOFTMAX_WEIGHT; j++) CHECK(wb[j] == probs[got[j]]); /* true scores */
    if (r->margin == 0) CHECK(memcmp(ids, got, r->k * sizeof *ids) == 0 && memcmp(wa, wb, r->k * sizeof *wa) == 0);
}

TEST(preference_moves_near_ties_only) {
    uint64_t s = 3;
    float logits[64];
    uint8_t prefer[64];
    for (int round = 0; round < 2000; round++) {
        struct kern_router r = { .gate = (enum kern_gate)(1 + rng_next(&s) % 4), .n_experts = 8 + (uint32_t)rng_next(&s) % 57,
                                 .k = 1 + (uint32_t)rng_next(&s) % 8, .norm = rng_next(&s) % 2, .prefer = prefer };
        r.margin = (float[]){ 0, 0.05f, 0.3f, 1 }[rng_next(&s) % 4];
        for (uint32_t e = 0; e < r.n_experts; e++) {
            logits[e] = rng_float(&s, 2);
            prefer[e] = rng_next(&s) % 2;
        }
        check_preference(test_name_, &r, logits);
    }
}

TEST(light_slots_are_left_empty) {
    /* weights 0.5, 0.25, 0.125, 0.125: half the slots carry 3/4 */
    const float logs[4] = { logf(0.5f), logf(0.25f), logf(0.125f), logf(0.125f) };
    float l[4], w[4];
    int32_t ids[4];
    struct kern_router r = { .gate = KERN_GATE_SOFTMAX, .n_experts = 4, .k = 4, .norm = true, .enough = 0.74f };
    memcpy(l, logs, sizeof l);
    kern_route(&r, l, ids, w);
    CHECK(ids[0] == 0 && ids[1] == 1 && ids[2] == -1 && ids[3] == -1 && w[2] == 0 && w[3] == 0);
    CHECK(fabsf(w[0] - 2.0f / 3) < 1e-6f && fabsf(w[1] - 1.0f / 3) < 1e-6f);
    r.enough = 0.76f;
    memcpy(l, logs, sizeof l);
    kern_route(&r, l, ids, w);
    CHECK(ids[3] == 3 && fabsf(w[0] - 0.5f) < 1e-6f);
    r = (struct kern_router){ .gate = KERN_GATE_SOFTMAX, .n_experts = 4, .k = 3, .enough = 0.5f }; /* odd: the larger half stays */
    memcpy(l, logs, sizeof l);
    kern_route(&r, l, ids, w);
    CHECK(ids[1] == 1 && ids[2] == -1 && fabsf(w[0] - 0.5f) < 1e-6f);
    r.k = 1;
    memcpy(l, logs, sizeof l);
    kern_route(&r, l, ids, w);
    CHECK(ids[0] == 0);

    /* and take no place in a group */
    const int32_t chosen[6] = { 2, -1, 0, 2, -1, -1 };
    int32_t first[4], row_token[6], pair_row[6];
    kern_moe_group(&(struct kern_moe_group){ .n_tokens = 3, .k = 2, .n_experts = 3, .ids = chosen, .first = first, .row_token = row_token, .pair_row = pair_row });
    CHECK(first[0] == 0 && first[1] == 1 && first[2] == 1 && first[3] == 3);
    CHECK(row_token[0] == 1 && row_token[1] == 0 && row_token[2] == 1);
    CHECK(pair_row[0] == 1 && pair_row[1] == -1 && pair_row[2] == 0 && pair_row[3] == 2 && pair_row[4] == -1 && pair_row[5] == -1);
}

int main(void) {
    RUN(router_equals_oracle_on_random_shapes);
    RUN(router_hand_computed);
    RUN(router_nan_is_last);
    RUN(preference_moves_near_ties_only);
    RUN(light_slots_are_left_empty);
    RUN(group_is_a_stable_counting_sort);
    RUN(group_edge_shapes);
    return test_failed_;
}
