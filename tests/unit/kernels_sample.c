/* SPDX-License-Identifier: Apache-2.0
 *
 * Sampling against an oracle that sorts everything in double precision, and the draws against the exact filtered
 * distribution (chi-square; seeds are fixed, so the outcome is, too). */
#include "test.h"

#include <stdlib.h>

#include "kernels_rand.h"

enum { MAX_V = 4000, BIG_V = 150000 };

static float logits_[BIG_V], copy_[BIG_V];
static _Alignas(64) unsigned char work_[BIG_V * 16 + 64];

static const struct kern_sample PLAIN = { .temperature = 1, .top_p = 1, .repetition_penalty = 1, .n_top_logprobs = -1 };

static struct kern_sampled sample_at(const struct kern_sample *p, const float *logits, uint32_t n, uint64_t counter) {
    struct kern_sampled out;
    memcpy(copy_, logits, n * sizeof *logits);
    kern_sample(p, copy_, n, NULL, 0, 0, counter, work_, &out);
    return out;
}

static void fill_normal(uint64_t *s, float *x, uint32_t n, float sigma, bool grid) {
    for (uint32_t i = 0; i < n; i++) {
        x[i] = rng_normal(s) * sigma;
        if (grid) x[i] = roundf(x[i] * 4) / 4; /* many exact ties */
    }
}

/* ---- oracle ---- */

struct ranked { double logit; int32_t id; };

static int by_rank(const void *pa, const void *pb) {
    const struct ranked *a = pa, *b = pb;
    if (a->logit != b->logit) return a->logit > b->logit ? -1 : 1;
    return a->id - b->id;
}

/* prob [n] <- the exact filtered distribution. *slack <- how close a cut came to the next token, as probability:
 * where that is within float rounding either answer is right. */
static void oracle_distribution(const struct kern_sample *p, const float *logits, uint32_t n, double *prob, double *slack) {
    static struct ranked r[MAX_V];
    uint32_t m = 0, keep;
    double sum = 0, before = 0;
    for (uint32_t i = 0; i < n; i++) {
        prob[i] = 0;
        if (logits[i] > -INFINITY) r[m++] = (struct ranked){ (double)logits[i], (int32_t)i };
    }
    qsort(r, m, sizeof *r, by_rank);
    if (p->top_k > 0 && (uint32_t)p->top_k < m) m = (uint32_t)p->top_k;
    double w_max = 1, t = (double)p->temperature;
    for (uint32_t i = 0; i < m; i++) sum += exp((r[i].logit - r[0].logit) / t);
    *slack = 1;
    for (keep = 0; keep < m; keep++) { /* top-p: while the mass before is less than p */
        if (keep && p->top_p < 1) *slack = fmin(*slack, fabs(before - (double)p->top_p));
        if (keep && p->top_p < 1 && before >= (double)p->top_p) break;
        before += exp((r[keep].logit - r[0].logit) / t) / sum;
    }
    for (uint32_t i = 0; i < keep; i++) {
        double w = exp((r[i].logit - r[0].logit) / t);
        *slack = p->min_p > 0 ? fmin(*slack, fabs(w / (double)p->min_p - 1)) : *slack;
        prob[r[i].id] = w < w_max * (double)p->min_p ? 0 : w;
    }
    sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += prob[i];
    for (uint32_t i = 0; i < n; i++) prob[i] /= sum;
}

/* Upper 1e-4 point of chi-square (Wilson-Hilferty). */
static double chi2_limit(int dof) {
    double z = 3.719, h = 2.0 / (9.0 * dof);
    return dof * pow(1 - h + z * sqrt(h), 3);
}

/* Draws n_draws times: nothing outside the set, and frequencies that fit. Classes under 8 expected are pooled. */
static void check_fit(const char *test_name_, const struct kern_sample *p, const float *logits, uint32_t n, int n_draws) {
    static double prob[MAX_V];
    static int count[MAX_V];
    double slack, chi2 = 0, rest = 0;
    int dof = -1, rest_count = 0;
    oracle_distribution(p, logits, n, prob, &slack);
    if (slack < 1e-6) return;
    memset(count, 0, sizeof count);
    for (int i = 0; i < n_draws; i++) {
        int32_t id = sample_at(p, logits, n, (uint64_t)i).id;
        CHECKF(id >= 0 && (uint32_t)id < n && prob[id] > 0, "id %d is not in the filtered set", id);
        count[id]++;
    }
    for (uint32_t i = 0; i < n; i++) {
        double want = prob[i] * n_draws;
        if (want < 8) {
            rest += want;
            rest_count += count[i];
            continue;
        }
        chi2 += (count[i] - want) * (count[i] - want) / want;
        dof++;
    }
    if (rest >= 8) {
        chi2 += (rest_count - rest) * (rest_count - rest) / rest;
        dof++;
    }
    if (dof > 0) CHECKF(chi2 < chi2_limit(dof), "chi2 %g, %d degrees, limit %g", chi2, dof, chi2_limit(dof));
}

/* ---- draws ---- */

TEST(draws_fit_the_distribution) {
    uint64_t s = 31;
    for (int round = 0; round < 40; round++) {
        struct kern_sample p = PLAIN;
        uint32_t n = 2 + rng_below(&s, 60);
        fill_normal(&s, logits_, n, 2, round % 2);
        p.seed = (uint64_t)round * 7;
        p.temperature = (float[]){ 1, 0.5f, 2, 0.9f }[round % 4];
        if (round % 3 == 1) p.top_k = 1 + (int32_t)rng_below(&s, n + 3);
        if (round % 5 >= 2) p.top_p = 0.05f + 0.9f * (float)rng_below(&s, 100) / 100;
        if (round % 7 >= 4) p.min_p = 0.3f * (float)rng_below(&s, 100) / 100;
        check_fit(test_name_, &p, logits_, n, 20000);
    }
}

/* Large vocabularies, where radix bins matter: membership of every token, found through many draws at a high
 * temperature for the cut at temperature 1 by folding the temperature into the logits. */
TEST(cuts_equal_brute_force) {
    static double prob[MAX_V];
    static bool drawn[MAX_V];
    uint64_t s = 32;
    int exact = 0;
    for (int round = 0; round < 45; round++) {
        struct kern_sample p = PLAIN;
        uint32_t n = 500 + rng_below(&s, round % 4 ? 1000 : MAX_V - 500), n_set = 0, n_drawn = 0;
        double slack, least = 1;
        fill_normal(&s, logits_, n, (float[]){ 0.01f, 1, 8, 100 }[round % 4], round % 3 == 0);
        p.top_k = round % 2 ? 1 + (int32_t)rng_below(&s, 40) : 0;
        p.top_p = round % 2 ? 1 : 0.002f + 0.05f * (float)rng_below(&s, 100) / 100;
        if (round % 5 == 4) p.min_p = 0.5f;
        p.seed = (uint64_t)round;
        oracle_distribution(&p, logits_, n, prob, &slack);
        if (slack < 1e-6) continue;
        for (uint32_t i = 0; i < n; i++) {
            n_set += prob[i] > 0;
            if (prob[i] > 0 && prob[i] < least) least = prob[i];
        }
        memset(drawn, 0, sizeof drawn);
        int n_draws = (int)fmin(1500, 30 / least); /* a member is missed with probability e^-30 where not capped */
        for (int i = 0; i < n_draws; i++) {
            int32_t id = sample_at(&p, logits_, n, (uint64_t)i).id;
            CHECKF(prob[id] > 0, "round %d: id %d is outside", round, id);
            n_drawn += !drawn[id];
            drawn[id] = true;
        }
        if (n_draws < 1500) {
            CHECKF(n_drawn == n_set, "round %d: %u of %u members were drawn", round, n_drawn, n_set);
            exact++;
        }
    }
    CHECK(exact >= 15);
}

TEST(ties_at_the_cut_go_to_the_lower_id) {
    struct kern_sample p = PLAIN;
    for (uint32_t i = 0; i < 1000; i++) logits_[i] = 3;
    logits_[500] = 4;
    p.top_k = 3;
    for (uint64_t c = 0; c < 200; c++) {
        int32_t id = sample_at(&p, logits_, 1000, c).id;
        CHECK(id == 500 || id == 0 || id == 1);
    }
    logits_[500] = 3;
    p.top_k = 0;
    p.top_p = 0.01f - 1e-5f; /* 9.99 tokens' worth of equals: 10 stay */
    bool top = false;
    for (uint64_t c = 0; c < 400; c++) {
        int32_t id = sample_at(&p, logits_, 1000, c).id;
        CHECK(id < 10);
        top |= id == 9;
    }
    CHECK(top);
    logits_[0] = -0.0f; /* +0 and -0 are equal */
    logits_[1] = 0.0f;
    p.top_p = 1;
    p.top_k = 1;
    CHECK(sample_at(&p, logits_, 2, 1).id == 0);
}

TEST(draw_is_a_function_of_seed_and_counter) {
    uint64_t s = 33;
    struct kern_sample p = PLAIN;
    fill_normal(&s, logits_, 300, 1, false);
    int32_t ids[200];
    int same_seed = 0, same_next = 0;
    p.seed = 5;
    for (uint64_t c = 0; c < 200; c++) ids[c] = sample_at(&p, logits_, 300, c).id;
    for (uint64_t c = 200; c-- > 0;) CHECK(sample_at(&p, logits_, 300, c).id == ids[c]); /* any order, again */
    p.seed = 6;
    for (uint64_t c = 0; c < 200; c++) same_seed += sample_at(&p, logits_, 300, c).id == ids[c];
    for (int c = 0; c < 199; c++) same_next += ids[c] == ids[c + 1];
    CHECK(same_seed < 20 && same_next < 20); /* expected about 1.5: seeds and counters are unrelated */
}

/* Consecutive counters, and equal counters of consecutive seeds, must look independent: pairs over 8 x 8 cells. */
TEST(draws_are_independent_across_counters_and_seeds) {
    struct kern_sample p = PLAIN;
    memset(logits_, 0, 8 * sizeof *logits_);
    for (int form = 0; form < 2; form++) {
        int cell[64] = { 0 }, n = 64000;
        for (int i = 0; i < n; i++) {
            p.seed = form ? (uint64_t)i : 42;
            int32_t a = sample_at(&p, logits_, 8, form ? 3 : (uint64_t)i).id;
            p.seed += (uint64_t)form;
            int32_t b = sample_at(&p, logits_, 8, form ? 3 : (uint64_t)i + 1).id;
            cell[a * 8 + b]++;
        }
        double chi2 = 0;
        for (int i = 0; i < 64; i++) chi2 += (cell[i] - n / 64.0) * (cell[i] - n / 64.0) / (n / 64.0);
        CHECKF(chi2 < chi2_limit(63), "form %d: chi2 %g", form, chi2);
    }
}

/* ---- greedy and faults ---- */

TEST(greedy_ties_nan_inf) {
    struct kern_sample p = PLAIN;
    p.temperature = 0;
    float a[6] = { NAN, 1, 3, NAN, 3, -INFINITY };
    CHECK(sample_at(&p, a, 6, 0).id == 2);
    float b[3] = { NAN, NAN, NAN };
    CHECK(sample_at(&p, b, 3, 0).id == 0);
    float c[3] = { NAN, -INFINITY, NAN };
    CHECK(sample_at(&p, c, 3, 0).id == 0); /* nothing may be chosen: the documented last resort */
    float d[4] = { 1, INFINITY, 2, INFINITY };
    CHECK(sample_at(&p, d, 4, 0).id == 1);
    p.temperature = 1;
    CHECK(sample_at(&p, b, 3, 0).id == 0);
    int hits[4] = { 0 };
    for (uint64_t i = 0; i < 100; i++) {
        int32_t id = sample_at(&p, a, 6, i).id;
        CHECK(id == 1 || id == 2 || id == 4);
        hits[sample_at(&p, d, 4, i).id]++;
    }
    CHECK(hits[1] > 20 && hits[3] > 20 && hits[0] == 0 && hits[2] == 0); /* +inf logits share everything */
    p.temperature = 1e-40f; /* a subnormal divisor must not make NaN of the maximum */
    float e[3] = { 1, 2, 1.5f };
    CHECK(sample_at(&p, e, 3, 0).id == 1);
}

TEST(mask_and_bias) {
    uint64_t s = 34;
    for (int round = 0; round < 200; round++) {
        struct kern_sample p = PLAIN;
        uint32_t n = 1 + rng_below(&s, 200), allowed[7] = { 0 };
        struct kern_logit_bias bias[4];
        p.temperature = round % 2 ? 0 : 1;
        p.allowed = allowed;
        p.bias = bias;
        p.n_bias = 4;
        fill_normal(&s, logits_, n, 2, true);
        for (int i = 0; i < 4; i++) bias[i] = (struct kern_logit_bias){ (int32_t)rng_below(&s, n + 2) - 1, rng_normal(&s) * 3 };
        if (round % 3 == 0) bias[3] = (struct kern_logit_bias){ (int32_t)rng_below(&s, n), -INFINITY };
        for (int i = 0; i < 7; i++) allowed[i] = round % 5 ? (uint32_t)(rng_next(&s) ^ rng_next(&s) << 16) : UINT32_MAX;
        allowed[0] |= 1;

        float want = -INFINITY, x[200];
        int32_t want_id = -1;
        for (uint32_t i = 0; i < n; i++) {
            x[i] = logits_[i];
            for (int b = 0; b < 4; b++) x[i] += bias[b].id == (int32_t)i ? bias[b].bias : 0;
            if (!(allowed[i / 32] >> i % 32 & 1)) x[i] = -INFINITY;
            if (x[i] > want) {
                want = x[i];
                want_id = (int32_t)i;
            }
        }
        if (want_id < 0) want_id = 0; /* id 0 is always allowed here: the last resort within the mask */
        struct kern_sampled got = sample_at(&p, logits_, n, (uint64_t)round);
        if (p.temperature == 0)
            CHECKF(got.id == want_id, "round %d: %d, want %d", round, got.id, want_id);
        else
            CHECK(x[got.id] > -INFINITY || want == -INFINITY);
    }
    /* all banned: lowest allowed id with a mask; the raw argmax without, or with an empty mask */
    struct kern_sample p = PLAIN;
    struct kern_logit_bias ban[3] = { { 0, -INFINITY }, { 1, -INFINITY }, { 2, -INFINITY } };
    float l[3] = { 1, 3, 2 };
    uint32_t mask = 4;
    p.bias = ban;
    p.n_bias = 3;
    CHECK(sample_at(&p, l, 3, 0).id == 1);
    p.allowed = &mask;
    CHECK(sample_at(&p, l, 3, 0).id == 2);
    mask = 0;
    CHECK(sample_at(&p, l, 3, 0).id == 1);
}

/* However flat or sharp the distribution, whatever the filters keep, and even where the model likes only what is masked. */
TEST(a_masked_token_is_never_drawn) {
    uint64_t s = 77;
    for (int round = 0; round < 2000; round++) {
        struct kern_sample p = PLAIN;
        uint32_t n = 32 + rng_below(&s, 300), mask[11] = { 0 }, keep = rng_below(&s, n);
        p.temperature = (float[]){ 0, 1e-3f, 0.3f, 1, 5, 1e6f }[round % 6];
        p.top_k = (int32_t[]){ 0, 1, 5 }[rng_below(&s, 3)];
        p.top_p = (float[]){ 1, 0.9f, 0.01f }[rng_below(&s, 3)];
        p.min_p = (float[]){ 0, 0.3f }[rng_below(&s, 2)];
        p.n_top_logprobs = round % 4 ? -1 : 0;
        for (uint32_t i = 0; i < 1 + rng_below(&s, 3); i++) {
            uint32_t id = i ? rng_below(&s, n) : keep;
            mask[id / 32] |= 1u << id % 32;
        }
        p.allowed = mask;
        fill_normal(&s, logits_, n, 3, false);
        for (uint32_t i = 0; i < n; i++)
            if (mask[i / 32] >> i % 32 & 1) logits_[i] -= 50;
        struct kern_sampled got = sample_at(&p, logits_, n, (uint64_t)round), free_row;
        CHECKF(got.id >= 0 && mask[got.id / 32] >> got.id % 32 & 1, "round %d: %d", round, got.id);
        kern_logprobs(logits_, n, got.id, 0, &free_row);
        CHECK(p.n_top_logprobs < 0 || got.logprob == free_row.logprob); /* of the model, not of the mask */
    }
}

/* The oracle counts the naive way and picks by the sum of what the header promises. */
TEST(penalties_equal_a_naive_count) {
    uint64_t s = 35;
    int changed = 0;
    for (int round = 0; round < 500; round++) {
        struct kern_sample p = PLAIN;
        int32_t history[80];
        uint32_t n = 2 + rng_below(&s, 40), n_history = rng_below(&s, 80), n_prompt = rng_below(&s, n_history + 1);
        p.temperature = 0;
        p.repetition_penalty = (float[]){ 1, 1.3f, 0.7f }[rng_below(&s, 3)];
        p.frequency_penalty = (float[]){ 0, 0.4f, -0.2f }[rng_below(&s, 3)];
        p.presence_penalty = (float[]){ 0, 0.9f, -0.5f }[rng_below(&s, 3)];
        fill_normal(&s, logits_, n, 0.5f, false);
        for (uint32_t i = 0; i < n_history; i++) history[i] = (int32_t)rng_below(&s, n + 2) - 1; /* strays too */

        float best = -INFINITY;
        int32_t want = -1, plain = -1;
        for (uint32_t i = 0; i < n; i++) {
            bool seen = false;
            int n_output = 0;
            for (uint32_t h = 0; h < n_history; h++) {
                seen |= history[h] == (int32_t)i;
                n_output += h >= n_prompt && history[h] == (int32_t)i;
            }
            float x = logits_[i];
            if (seen) x = x > 0 ? x / p.repetition_penalty : x * p.repetition_penalty;
            x -= p.frequency_penalty * (float)n_output;
            x -= n_output ? p.presence_penalty : 0;
            if (x > best) best = x, want = (int32_t)i;
            if (plain < 0 || logits_[i] > logits_[plain]) plain = (int32_t)i;
        }
        struct kern_sampled out;
        memset(work_, 0xAB, kern_sample_workspace(n)); /* nothing is assumed about the workspace */
        memcpy(copy_, logits_, n * sizeof *copy_);
        kern_sample(&p, copy_, n, history, n_history, n_prompt, 0, work_, &out);
        CHECKF(out.id == want, "round %d: %d, want %d", round, out.id, want);
        changed += want != plain;
    }
    CHECKF(changed > 100, "%d", changed); /* the penalties did matter */
}

/* ---- logprobs ---- */

static void check_logprobs(const char *test_name_, const struct kern_sampled *got, const float *logits, uint32_t n, int n_top) {
    static struct ranked r[MAX_V];
    double max = -INFINITY, sum = 0;
    uint32_t m = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!(logits[i] > -INFINITY)) continue;
        r[m++] = (struct ranked){ (double)logits[i], (int32_t)i };
        max = fmax(max, (double)logits[i]);
    }
    for (uint32_t i = 0; i < m; i++) sum += exp(r[i].logit - max);
    qsort(r, m, sizeof *r, by_rank);
    /* 2e-7 from the exponentials, one rounding of the result (which may be large) and one of x - max */
    double want = (double)logits[got->id] - max - log(sum);
    CHECKF(fabs((double)got->logprob - want) <= 3e-7 + 2 * 0x1p-24 * fabs(want), "logprob %.9g, want %.9g", (double)got->logprob, want);
    CHECK(got->n_top == (n_top < (int)m ? n_top : (int)m));
    for (int i = 0; i < got->n_top; i++) {
        want = r[i].logit - max - log(sum);
        CHECKF(got->top[i].id == r[i].id, "top %d: id %d, want %d", i, got->top[i].id, r[i].id);
        CHECK(fabs((double)got->top[i].logprob - want) <= 3e-7 + 2 * 0x1p-24 * fabs(want));
    }
}

TEST(logprobs_are_of_the_raw_distribution) {
    uint64_t s = 36;
    for (int round = 0; round < 200; round++) {
        uint32_t n = 1 + rng_below(&s, round % 10 ? 300 : MAX_V);
        int n_top = (int)rng_below(&s, KERN_MAX_TOP_LOGPROBS + 1);
        fill_normal(&s, logits_, n, (float[]){ 0.1f, 3, 30 }[round % 3], round % 2);
        if (round % 4 == 0) logits_[rng_below(&s, n)] = -INFINITY;
        if (n > 1 && round % 4 == 1) logits_[rng_below(&s, n)] = NAN;

        struct kern_sample p = PLAIN; /* everything on: it must not touch the reported numbers */
        struct kern_logit_bias bias = { (int32_t)rng_below(&s, n), 5 };
        int32_t history[3] = { 0, bias.id, 0 };
        p.temperature = round % 5 ? 0.7f : 0;
        p.top_k = 7;
        p.top_p = 0.9f;
        p.frequency_penalty = 0.5f;
        p.bias = &bias;
        p.n_bias = round % 2;
        p.n_top_logprobs = n_top;
        struct kern_sampled got;
        memcpy(copy_, logits_, n * sizeof *copy_);
        kern_sample(&p, copy_, n, history, 3, 1, (uint64_t)round, work_, &got);
        if (isnan(logits_[got.id]) || logits_[got.id] == -INFINITY) {
            CHECK(got.logprob == -INFINITY);
            continue;
        }
        check_logprobs(test_name_, &got, logits_, n, n_top);

        struct kern_sampled again; /* prompt logprobs: same numbers, logits untouched */
        memcpy(copy_, logits_, n * sizeof *copy_);
        kern_logprobs(copy_, n, got.id, n_top, &again);
        CHECK(memcmp(copy_, logits_, n * sizeof *copy_) == 0);
        CHECK(again.id == got.id && again.logprob == got.logprob && again.n_top == got.n_top);
        CHECK(memcmp(again.top, got.top, (size_t)got.n_top * sizeof *got.top) == 0);
    }
}

TEST(logprobs_of_broken_rows) {
    struct kern_sampled out;
    float nan[3] = { NAN, NAN, NAN }, inf[4] = { 1, INFINITY, INFINITY, NAN };
    kern_logprobs(nan, 3, 1, 5, &out);
    CHECK(out.n_top == 0 && out.logprob == -INFINITY);
    kern_logprobs(inf, 4, 1, 2, &out);
    CHECK(out.n_top == 2 && out.top[0].id == 1 && out.top[1].id == 2 && fabsf(out.logprob + 0.6931472f) < 1e-6f);
    kern_logprobs(inf, 4, 0, 0, &out);
    CHECK(out.n_top == 0 && out.logprob == -INFINITY);
    struct kern_sample p = PLAIN;
    float l[2] = { 1, 2 };
    CHECK(sample_at(&p, l, 2, 0).logprob == 0 && sample_at(&p, l, 2, 0).n_top == 0); /* -1: none asked, none given */
}

TEST(large_vocabulary_within_its_workspace) {
    uint64_t s = 37;
    size_t bytes = kern_sample_workspace(BIG_V);
    CHECK(bytes <= sizeof work_ - 64);
    memset(work_ + bytes, 0x77, 64);
    fill_normal(&s, logits_, BIG_V, 2, false);
    static int32_t history[3] = { 1, 2, BIG_V - 1 };
    for (int round = 0; round < 8; round++) {
        struct kern_sample p = PLAIN;
        struct kern_sampled out;
        p.top_p = round & 1 ? 0.95f : 1;
        p.top_k = round & 2 ? 50 : 0;
        p.presence_penalty = round & 4 ? 1 : 0;
        p.n_top_logprobs = 20;
        memcpy(copy_, logits_, sizeof logits_);
        kern_sample(&p, copy_, BIG_V, history, 3, 1, (uint64_t)round, work_, &out);
        CHECK(out.id >= 0 && out.id < BIG_V && out.n_top == 20 && out.top[0].logprob >= out.logprob);
    }
    for (int i = 0; i < 64; i++) CHECK(work_[bytes + (size_t)i] == 0x77);
}

int main(void) {
    RUN(draws_fit_the_distribution);
    RUN(cuts_equal_brute_force);
    RUN(ties_at_the_cut_go_to_the_lower_id);
    RUN(draw_is_a_function_of_seed_and_counter);
    RUN(draws_are_independent_across_counters_and_seeds);
    RUN(greedy_ties_nan_inf);
    RUN(mask_and_bias);
    RUN(a_masked_token_is_never_drawn);
    RUN(penalties_equal_a_naive_count);
    RUN(logprobs_are_of_the_raw_distribution);
    RUN(logprobs_of_broken_rows);
    RUN(large_vocabulary_within_its_workspace);
    return test_failed_;
}
