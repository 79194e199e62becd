/* SPDX-License-Identifier: Apache-2.0
 *
 * Token choice from one row of logits. The one idea: top-k, top-p and min-p each keep a prefix of the same total
 * order (falling logit, then rising id), so each is a cut and nothing is ever sorted. Cuts by count or by mass are
 * found by radix selection on order-preserving integer keys: at most three passes over the candidates whatever
 * the values are, ties included. The draw walks the kept candidates in id order.
 *
 * Cost for n_vocab = V and a history of H: greedy without logprobs is one pass of compares; otherwise O(V + H).
 * Sums are double, added in id order, so a result is a function of the arguments alone, on every CPU level.
 *
 * Random number: splitmix64's mixer (Steele, Lea, Flood 2014) of the mixed seed plus counter times the golden
 * gamma; 53 bits of it. Draw number `counter` needs no state and no earlier draws. */
#include "kernels/sample.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/ref/exp.h"

/* One token that may still be chosen. Kept in rising id order throughout. */
struct cand {
    float logit;
    int32_t id;
};

struct work {
    float *raw;        /* [V] logits as given; filled when something will need them */
    struct cand *cand; /* [V]                                                       */
    float *weight;     /* [V] weight of cand[i], 1 for the largest logit            */
    uint32_t *seen;    /* [V] history counts; shares memory with weight             */
};

size_t kern_sample_workspace(uint32_t n_vocab) {
    return (size_t)n_vocab * (sizeof(float) + sizeof(struct cand) + sizeof(float));
}

static struct work work_layout(void *work, uint32_t n_vocab) {
    struct work w;
    w.cand = work;
    w.raw = (float *)(w.cand + n_vocab);
    w.weight = w.raw + n_vocab;
    w.seen = (uint32_t *)w.weight;
    return w;
}

static uint64_t mix64(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static double uniform01(uint64_t seed, uint64_t counter) {
    uint64_t z = mix64(mix64(seed + 0x9E3779B97F4A7C15u) + counter * 0x9E3779B97F4A7C15u);
    return (double)(z >> 11) * 0x1p-53;
}

/* ---- largest values ---- */

/* First i >= start with x[i] > bar, n when there is none. Whole blocks are dismissed at vector speed. */
static uint32_t next_above(const float *x, uint32_t start, uint32_t n, float bar) {
    enum { BLOCK = 64 };
    uint32_t i = start;
    for (; i + BLOCK <= n; i += BLOCK) {
        int any = 0;
        for (uint32_t j = 0; j < BLOCK; j++) any |= x[i + j] > bar;
        if (any) break;
    }
    while (i < n && !(x[i] > bar)) i++;
    return i;
}

/* Id of the largest logit, the lowest among equals, NaN and -inf never; -1 when nothing is left. */
static int32_t argmax(const float *x, uint32_t n) {
    float best = -INFINITY;
    int32_t id = -1;
    for (uint32_t i = 0; (i = next_above(x, i, n, best)) < n; i++) {
        best = x[i];
        id = (int32_t)i;
    }
    return id;
}

/* The n_top best, sorted; returns how many there are. New entries get rare as the list fills, so this is one
 * pass of compares in practice and V * n_top steps on a rising row. */
static int32_t best_ids(const float *x, uint32_t n, int32_t n_top, struct kern_top *top) {
    int32_t n_have = 0;
    float bar = -INFINITY; /* what a logit must beat to enter */
    if (n_top <= 0) return 0;
    for (uint32_t i = 0; (i = next_above(x, i, n, bar)) < n; i++) {
        int32_t at = n_have < n_top ? n_have++ : n_top - 1;
        for (; at > 0 && x[i] > top[at - 1].logprob; at--) top[at] = top[at - 1];
        top[at] = (struct kern_top){ .id = (int32_t)i, .logprob = x[i] };
        if (n_have == n_top) bar = top[n_top - 1].logprob;
    }
    return n_have;
}

/* ---- log-probabilities ---- */

/* y[i] = x[i] - max; y may alias x. Where max is +inf its holders share all the probability: 0 for them, -inf for
 * the rest. */
static void below_max(const float *x, uint32_t n, float max, float *y) {
    if (max == INFINITY)
        for (uint32_t i = 0; i < n; i++) y[i] = x[i] == max ? 0 : -INFINITY;
    else
        for (uint32_t i = 0; i < n; i++) y[i] = x[i] - max;
}

/* Four partial sums: as exact, and not bound by the latency of one chain of additions. */
static double sum_of(const float *x, uint32_t n) {
    double part[4] = { 0 };
    for (uint32_t i = 0; i < n; i++) part[i % 4] += (double)x[i];
    return (part[0] + part[1]) + (part[2] + part[3]);
}

/* log(sum exp(x - max)), NaN skipped. Error: 2e-7, that of fast_exp in the sum. */
static double log_sum_exp(const float *x, uint32_t n, float max) {
    enum { CHUNK = 512 };
    float e[CHUNK];
    double sum = 0;
    for (uint32_t i = 0; i < n; i += CHUNK) {
        uint32_t m = n - i < CHUNK ? n - i : CHUNK;
        below_max(x + i, m, max, e);
        for (uint32_t j = 0; j < m; j++) e[j] = e[j] == e[j] ? e[j] : -INFINITY;
        for (uint32_t j = 0; j < m; j++) e[j] = kern__fast_exp(e[j]);
        sum += sum_of(e, m);
    }
    return log(sum);
}

void kern_logprobs(const float *logits, uint32_t n_vocab, int32_t id, int32_t n_top, struct kern_sampled *out) {
    assert(id >= 0 && (uint32_t)id < n_vocab);
    if (n_top > KERN_MAX_TOP_LOGPROBS) n_top = KERN_MAX_TOP_LOGPROBS;
    int32_t best = argmax(logits, n_vocab);
    out->id = id;
    out->n_top = 0;
    out->logprob = -INFINITY;
    if (best < 0) return; /* nothing but NaN and -inf: no distribution to speak of */

    float max = logits[best];
    double lse = log_sum_exp(logits, n_vocab, max);
    float below;
    below_max(&logits[id], 1, max, &below);
    if (below == below) out->logprob = (float)((double)below - lse);
    out->n_top = best_ids(logits, n_vocab, n_top, out->top);
    for (int32_t i = 0; i < out->n_top; i++) {
        below_max(&out->top[i].logprob, 1, max, &below);
        out->top[i].logprob = (float)((double)below - lse);
    }
}

/* ---- bias, mask, penalties ---- */

static void apply_bias(const struct kern_sample *p, float *logits, uint32_t n_vocab) {
    for (uint32_t i = 0; i < p->n_bias; i++)
        if (p->bias[i].id >= 0 && (uint32_t)p->bias[i].id < n_vocab) logits[p->bias[i].id] += p->bias[i].bias;
}

static void apply_mask(const uint32_t *allowed, float *logits, uint32_t n_vocab) {
    for (uint32_t i = 0; i < n_vocab; i += 32) {
        uint32_t n = n_vocab - i < 32 ? n_vocab - i : 32, bits = allowed[i / 32];
        if (bits == UINT32_MAX) continue;
        for (uint32_t j = 0; j < n; j++)
            if (!(bits >> j & 1)) logits[i + j] = -INFINITY;
    }
}

static bool has_penalty(const struct kern_sample *p) {
    return p->repetition_penalty != 1 || p->frequency_penalty != 0 || p->presence_penalty != 0;
}

static float penalised(const struct kern_sample *p, float x, uint32_t n_output) {
    x = x > 0 ? x / p->repetition_penalty : x * p->repetition_penalty;
    x -= p->frequency_penalty * (float)n_output;
    return n_output ? x - p->presence_penalty : x;
}

/* Each distinct token of the history once. seen[id] = 1 + occurrences in the output; only entries of the history
 * are touched, so this costs O(n_history) and never clears the vocabulary. */
static void apply_penalties(const struct kern_sample *p, float *logits, uint32_t n_vocab, const int32_t *history,
                            uint32_t n_history, uint32_t n_prompt, uint32_t *seen) {
    for (uint32_t i = 0; i < n_history; i++)
        if (history[i] >= 0 && (uint32_t)history[i] < n_vocab) seen[history[i]] = 1;
    for (uint32_t i = n_prompt; i < n_history; i++)
        if (history[i] >= 0 && (uint32_t)history[i] < n_vocab) seen[history[i]]++;
    for (uint32_t i = 0; i < n_history; i++) {
        int32_t id = history[i];
        if (id < 0 || (uint32_t)id >= n_vocab || seen[id] == 0) continue;
        logits[id] = penalised(p, logits[id], seen[id] - 1);
        seen[id] = 0;
    }
}

/* What is chosen when nothing may be: bias, mask and the logits themselves left no candidate. A mask is a promise
 * about the output's form, so it outranks the logits: the lowest allowed id. Else the largest raw logit, and 0
 * when there is none. */
static int32_t last_resort(const struct kern_sample *p, const float *raw, uint32_t n_vocab) {
    for (uint32_t i = 0; p->allowed && i < n_vocab; i++)
        if (p->allowed[i / 32] >> (i % 32) & 1) return (int32_t)i;
    int32_t id = argmax(raw, n_vocab);
    return id < 0 ? 0 : id;
}

/* ---- cuts ---- */

/* Rising key = falling logit; equal keys exactly for equal logits (-0 counts as 0). No NaN comes here. */
static uint32_t order_key(float x) {
    union { float f; uint32_t u; } v = { x + 0.0f };
    return v.u >> 31 ? v.u : ~v.u & 0x7FFFFFFF;
}

/* Compacts to the candidates whose masked key is below `bound`, and the first n_equal (by id) of those that hit it;
 * in place and in order. Returns the new count. */
static uint32_t keep_keys(struct cand *c, float *weight, uint32_t n, uint32_t mask, uint32_t bound, uint32_t n_equal) {
    uint32_t n_kept = 0;
    for (uint32_t j = 0; j < n; j++) {
        uint32_t key = order_key(c[j].logit) & mask;
        if (key > bound || (key == bound && n_equal == 0)) continue;
        n_equal -= key == bound;
        c[n_kept] = c[j];
        if (weight) weight[n_kept] = weight[j];
        n_kept++;
    }
    return n_kept;
}

/* Among the candidates whose key bits `fixed` equal `prefix`, the next digit of the one that holds the *amount-th unit
 * in falling order of logit; *amount <- the units still wanted from within that digit. */
static uint32_t find_digit(const struct cand *c, const float *weight, uint32_t n, uint32_t prefix, uint32_t fixed,
                           int shift, double *amount) {
    enum { MAX_BINS = 2048 };
    double bin[MAX_BINS] = { 0 };
    uint32_t last = 0;
    for (uint32_t j = 0; j < n; j++) {
        uint32_t key = order_key(c[j].logit);
        if ((key & fixed) == prefix) bin[(key & ~fixed) >> shift] += weight ? (double)weight[j] : 1;
    }
    for (uint32_t b = 0; b < MAX_BINS; b++) {
        if (bin[b] == 0) continue;
        last = b;
        if (*amount <= bin[b]) return b;
        *amount -= bin[b];
    }
    *amount = bin[last]; /* rounding ate the rest: the last bin, whole */
    return last;
}

/* Radix selection: keeps the best candidates up to and including the one that holds the `amount`-th unit in falling
 * order of logit, ties to the lower id. A unit is a candidate (weight NULL) or a share of weight. Most significant
 * digit first; what lies beyond the digit found is dropped at once, so later passes see few candidates. */
static uint32_t keep_best(struct cand *c, float *weight, uint32_t n, double amount) {
    static const uint8_t SHIFT[3] = { 21, 10, 0 }; /* digits of 11, 11 and 10 bits */
    uint32_t prefix = 0, fixed = 0;
    for (int i = 0; i < 3; i++) {
        prefix |= find_digit(c, weight, n, prefix, fixed, SHIFT[i], &amount) << SHIFT[i];
        fixed = UINT32_MAX << SHIFT[i];
        n = keep_keys(c, weight, n, fixed, prefix, UINT32_MAX);
    }
    for (uint32_t j = 0; weight && j < n; j++) { /* equal logits have equal weights: units to candidates */
        if (order_key(c[j].logit) != prefix) continue;
        amount = ceil(amount / (double)weight[j]);
        break;
    }
    return keep_keys(c, weight, n, UINT32_MAX, prefix, amount < 1 ? 1 : amount > n ? n : (uint32_t)amount);
}

static uint32_t keep_heavy(struct cand *c, float *weight, uint32_t n, double min_weight) {
    uint32_t n_kept = 0;
    for (uint32_t j = 0; j < n; j++) {
        c[n_kept] = c[j];
        weight[n_kept] = weight[j];
        n_kept += (double)weight[j] >= min_weight;
    }
    return n_kept;
}

/* All candidates that weigh less than (1 - top_p) / n of the mass weigh less than 1 - top_p together, so none of them
 * can be needed; dropping them first leaves the selection little to do. */
static uint32_t keep_top_p(struct cand *c, float *weight, uint32_t n, double top_p) {
    const double MARGIN = 0.999; /* against the rounding of the sum */
    double mass = sum_of(weight, n);
    n = keep_heavy(c, weight, n, (1 - top_p) * mass / n * MARGIN);
    return keep_best(c, weight, n, top_p * mass);
}

/* ---- draw ---- */

static uint32_t gather(const float *logits, uint32_t n_vocab, struct cand *c, float *max) {
    uint32_t n = 0;
    *max = -INFINITY;
    for (uint32_t i = 0; i < n_vocab; i++) {
        c[n] = (struct cand){ .logit = logits[i], .id = (int32_t)i };
        n += logits[i] > -INFINITY; /* false for NaN */
        if (logits[i] > *max) *max = logits[i];
    }
    return n;
}

static int32_t draw(const struct kern_sample *p, const float *logits, uint32_t n_vocab, uint64_t counter,
                    struct work *w) {
    float max;
    uint32_t n = gather(logits, n_vocab, w->cand, &max);
    if (n == 0) return -1;

    if (p->top_k > 0 && (uint32_t)p->top_k < n)
        n = keep_best(w->cand, NULL, n, p->top_k);
    for (uint32_t i = 0; i < n; i++) w->weight[i] = w->cand[i].logit;
    below_max(w->weight, n, max, w->weight);
    for (uint32_t i = 0; i < n; i++) w->weight[i] = kern__fast_exp(w->weight[i] / p->temperature);
    if (p->top_p < 1) n = keep_top_p(w->cand, w->weight, n, (double)p->top_p);
    if (p->min_p > 0) n = keep_heavy(w->cand, w->weight, n, (double)p->min_p);

    double left = uniform01(p->seed, counter) * sum_of(w->weight, n);
    int32_t id = w->cand[0].id;
    for (uint32_t i = 0; i < n; i++) {
        if (w->weight[i] == 0) continue;
        id = w->cand[i].id;
        left -= (double)w->weight[i];
        if (left < 0) break;
    }
    return id;
}

void kern_sample(const struct kern_sample *p, float *logits, uint32_t n_vocab, const int32_t *history,
                 uint32_t n_history, uint32_t n_prompt, uint64_t counter, void *work, struct kern_sampled *out) {
    struct work w = work_layout(work, n_vocab);
    bool changes = p->n_bias > 0 || p->allowed || has_penalty(p);
    const float *raw = logits;
    if (changes) {
        raw = memcpy(w.raw, logits, n_vocab * sizeof *logits);
        apply_bias(p, logits, n_vocab);
        if (p->allowed) apply_mask(p->allowed, logits, n_vocab);
        if (has_penalty(p)) apply_penalties(p, logits, n_vocab, history, n_history, n_prompt, w.seen);
    }
    int32_t id = p->temperature > 0 ? draw(p, logits, n_vocab, counter, &w) : argmax(logits, n_vocab);
    if (id < 0) id = last_resort(p, raw, n_vocab);

    if (p->n_top_logprobs >= 0)
        kern_logprobs(raw, n_vocab, id, p->n_top_logprobs, out);
    else
        *out = (struct kern_sampled){ .id = id };
}
