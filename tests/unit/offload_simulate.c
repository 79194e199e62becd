/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulator: tiny traces computed by hand, Belady as the bound of every policy, hit rates that never fall with the budget,
 * and made-up routing that has the published statistics of Qwen3-30B-A3B, on which the shipped policy must be near the bound. */
#include "tests/unit/test.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/status.h"
#include "offload/simulate.h"
#include "offload/synth.h"
#include "offload/trace.h"
#include "offload/trace_format.h"

/* ---- traces in memory ---- */

struct file { unsigned char bytes[1 << 20]; unsigned char *p; uint32_t k; };

static void file_begin(struct file *f, uint32_t n_layers, uint32_t n_experts, uint32_t k) {
    f->k = k;
    f->p = f->bytes + TRACE__MAGIC_BYTES;
    memcpy(f->bytes, TRACE__MAGIC, TRACE__MAGIC_BYTES);
    f->p = trace__put_u32(trace__put_u32(trace__put_u32(f->p, n_layers), n_experts), k);
    f->p = trace__put_u32(trace__put_u64(trace__put_u64(f->p, 100), 50), 0); /* 100 bytes an expert, 50 dense, no name */
    memset(f->p, 0xff, (n_layers + 7) / 8);
    f->p += (n_layers + 7) / 8;
}

static void file_step(struct file *f, bool prefill, uint32_t n_tokens) {
    *f->p++ = TRACE__STEP;
    *f->p++ = prefill;
    f->p = trace__put_leb(f->p, n_tokens);
}

static void file_ids(struct file *f, uint32_t layer, const unsigned char *ids) { /* one row */
    *f->p++ = TRACE__ORDERED;
    f->p = trace__put_leb(trace__put_leb(f->p, layer), 1);
    memcpy(f->p, ids, f->k);
    f->p += f->k;
}

static struct sim *file_sim(const char *test_name_, struct file *f) {
    struct trace *t;
    struct sim *s;
    struct err e = { 0 };
    CHECKF(!trace_open_memory(&t, f->bytes, (size_t)(f->p - f->bytes), &e), "%s", e.text);
    CHECKF(!sim_open(&s, t, &e), "%s", e.text);
    trace_close(t);
    return s;
}

/* One layer, one expert a step: "abac". */
static struct sim *word(const char *test_name_, const char *letters) {
    static _Thread_local struct file f;
    file_begin(&f, 1, 4, 1);
    for (; *letters; letters++) {
        unsigned char id = (unsigned char)(*letters - 'a');
        file_step(&f, false, 1);
        file_ids(&f, 0, &id);
    }
    return file_sim(test_name_, &f);
}

static struct sim_result run(const char *test_name_, const struct sim *s, int policy, uint32_t slots, uint32_t warm) {
    struct sim_result r;
    CHECK(!sim_run(s, &(struct sim_opts){ .policy = policy, .slots = slots, .link = 500, .dram = 1000, .warm_steps = warm }, &r));
    CHECK(r.hits + r.misses == r.wanted);
    return r;
}

static double hit_rate(const char *test_name_, const struct sim *s, int policy, uint32_t slots, uint32_t warm) {
    struct sim_result r = run(test_name_, s, policy, slots, warm);
    return 100.0 * (double)r.hits / (double)r.wanted;
}

/* ---- by hand ---- */

TEST(words_computed_by_hand) {
    struct sim *s = word(test_name_, "abacba");
    CHECK(run(test_name_, s, OFFLOAD_LRU, 2, 0).hits == 1);  /* a; then c drives out b, b a, a c */
    CHECK(run(test_name_, s, SIM_BELADY, 2, 0).hits == 2);   /* c drives out a, which comes after b */
    CHECK(run(test_name_, s, OFFLOAD_LRU, 3, 0).hits == 3 && run(test_name_, s, OFFLOAD_LRU, 100, 0).hits == 3);
    CHECK(run(test_name_, s, OFFLOAD_LRU, 1, 0).hits == 0);
    struct sim_result r = run(test_name_, s, OFFLOAD_LRU, 3, 4);
    CHECK(r.steps == 2 && r.tokens == 2 && r.wanted == 2 && r.hits == 2 && r.bytes == 0); /* warm: the first four do not count */
    sim_close(s);
    s = word(test_name_, "aaabcda"); /* frequency keeps a, recency does not */
    CHECK(run(test_name_, s, OFFLOAD_LRU, 2, 0).hits == 2 && run(test_name_, s, OFFLOAD_LFU, 2, 0).hits == 3);
    CHECK(run(test_name_, s, OFFLOAD_LFRU, 2, 0).hits == 3 && run(test_name_, s, OFFLOAD_AUTO, 2, 0).hits == 3);
    sim_close(s);
}

TEST(a_summary_computed_by_hand) {
    struct sim *s = word(test_name_, "abacbaa");
    struct sim_summary u;
    CHECK(!sim_summarize(s, &u));
    CHECK(u.steps == 7 && u.tokens == 7 && u.prefill_steps == 0 && u.keys_used == 3 && u.distinct == 1);
    CHECK(fabs(u.reuse_next - 1.0 / 7) < 1e-12 && fabs(u.reuse_8 - 4.0 / 7) < 1e-12); /* distances 2, 3, 3, 1 */
    CHECK(u.median_distance == 2);
    sim_close(s);
}

/* 0.1 s to compute an expert, 0.2 s to bring one, 0.05 s for the rest of a step. */
TEST(time_computed_by_hand) {
    static struct file f;
    file_begin(&f, 1, 4, 3);
    file_step(&f, false, 1);
    file_ids(&f, 0, (const unsigned char[]){ 0, 1, 2 });
    file_step(&f, false, 1);
    file_ids(&f, 0, (const unsigned char[]){ 3, 0, 1 });
    struct sim *s = file_sim(test_name_, &f);
    struct sim_result r = run(test_name_, s, OFFLOAD_LRU, 4, 0);
    CHECK(r.misses == 4 && r.bytes == 400);
    CHECKF(fabs(r.stall_s - 0.4) < 1e-9, "%f", r.stall_s);             /* 0.2, then 0.1 and 0.1; the second step waits for nothing */
    CHECKF(fabs(r.seconds - (0.05 + 0.7 + 0.05 + 0.3)) < 1e-9, "%f", r.seconds);
    sim_close(s);
}

TEST(a_prefill_takes_free_slots_only) {
    static struct file f;
    file_begin(&f, 1, 4, 1);
    file_step(&f, false, 1);
    file_ids(&f, 0, (const unsigned char[]){ 0 });
    for (unsigned char i = 1; i < 4; i++) {
        file_step(&f, true, 2);
        file_ids(&f, 0, &i);
    }
    file_step(&f, false, 1);
    file_ids(&f, 0, (const unsigned char[]){ 0 });
    file_step(&f, false, 1);
    file_ids(&f, 0, (const unsigned char[]){ 1 });
    struct sim *s = file_sim(test_name_, &f);
    for (int policy = 0; policy < SIM_N_POLICIES; policy++) {
        struct sim_result r = run(test_name_, s, policy, 2, 0);
        CHECK(r.steps == 3 && r.wanted == 3 && r.hits == 2 && r.prefill_wanted == 3 && r.prefill_misses == 3);
    }
    sim_close(s);
}

/* A budget below one token's working set: recency throws out what comes next. */
TEST(less_than_a_working_set_is_of_use) {
    static struct file f;
    file_begin(&f, 4, 4, 2);
    for (int t = 0; t < 50; t++) {
        file_step(&f, false, 1);
        for (uint32_t l = 0; l < 4; l++) {
            file_ids(&f, l, (const unsigned char[]){ 0, 1 });
        }
    }
    struct sim *s = file_sim(test_name_, &f);
    CHECK(hit_rate(test_name_, s, OFFLOAD_LRU, 6, 10) == 0);
    double best = hit_rate(test_name_, s, SIM_BELADY, 6, 10), ours = hit_rate(test_name_, s, OFFLOAD_AUTO, 6, 10);
    CHECKF(best > 50 && ours >= best - 5, "%.1f of %.1f", ours, best);
    sim_close(s);
}

TEST(what_cannot_be_simulated_is_refused) {
    struct sim *s = word(test_name_, "ab");
    struct sim_result r;
    CHECK(sim_run(s, &(struct sim_opts){ .policy = SIM_N_POLICIES, .slots = 1, .link = 1, .dram = 1 }, &r) == ST_INVALID);
    CHECK(sim_run(s, &(struct sim_opts){ .slots = 0, .link = 1, .dram = 1 }, &r) == ST_INVALID);
    CHECK(sim_run(s, &(struct sim_opts){ .slots = 1, .link = 0, .dram = 1 }, &r) == ST_INVALID);
    CHECK(sim_run(s, &(struct sim_opts){ .slots = 1, .link = 1, .dram = (double)NAN }, &r) == ST_INVALID);
    sim_close(s);
    int policy;
    CHECK(sim_policy_from_name("belady", &policy) && policy == SIM_BELADY && !sim_policy_from_name("x", &policy));
    for (int i = 0; i < SIM_N_POLICIES; i++) {
        CHECK(sim_policy_from_name(sim_policy_name(i), &policy) && policy == i);
    }
}

/* ---- properties ---- */

static uint32_t rnd(uint64_t *rng, uint32_t n) {
    *rng = *rng * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*rng >> 33) % n;
}

/* Random routing with some locality: half of the experts are those of the step before. */
static struct sim *random_sim(const char *test_name_, uint64_t *rng, uint32_t n_layers, uint32_t n_experts, uint32_t k) {
    static struct file f;
    unsigned char ids[8][4] = { { 0 } };
    file_begin(&f, n_layers, n_experts, k);
    for (int t = 0; t < 120; t++) {
        file_step(&f, false, 1);
        for (uint32_t l = 0; l < n_layers; l++) {
            for (uint32_t j = 0; j < k; j++) {
                bool taken = t == 0 || rnd(rng, 2);
                while (taken) {
                    ids[l][j] = (unsigned char)(rnd(rng, 2) ? rnd(rng, n_experts) : rnd(rng, n_experts / 2));
                    taken = memchr(ids[l], ids[l][j], j) != NULL;
                }
                while (memchr(ids[l], ids[l][j], j)) {
                    ids[l][j] = (unsigned char)((ids[l][j] + 1u) % n_experts);
                }
            }
            file_ids(&f, l, ids[l]);
        }
    }
    return file_sim(test_name_, &f);
}

TEST(nothing_beats_belady_and_more_slots_never_hurt) {
    uint64_t rng = 11;
    for (int round = 0; round < 40; round++) {
        uint32_t n_layers = 1 + rnd(&rng, 5), k = 1 + rnd(&rng, 4), n_experts = 2 * k + rnd(&rng, 9);
        struct sim *s = random_sim(test_name_, &rng, n_layers, n_experts, k);
        uint64_t before[SIM_N_POLICIES] = { 0 };
        for (uint32_t slots = k; slots <= n_layers * n_experts; slots++) {
            uint64_t best = run(test_name_, s, SIM_BELADY, slots, 0).hits;
            for (int policy = 0; policy < SIM_N_POLICIES; policy++) {
                uint64_t hits = run(test_name_, s, policy, slots, 0).hits;
                CHECKF(hits <= best, "%s, %u slots", sim_policy_name(policy), slots);
                CHECKF(hits >= before[policy], "%s, %u slots: %llu after %llu", sim_policy_name(policy), slots,
                       (unsigned long long)hits, (unsigned long long)before[policy]);
                before[policy] = hits;
            }
        }
        struct sim_summary u;
        CHECK(!sim_summarize(s, &u) && before[OFFLOAD_LRU] == u.tokens * n_layers * k - u.keys_used); /* all but the first uses */
        sim_close(s);
    }
}

/* ---- made-up routing ---- */

static struct sim *qwen3(const char *test_name_, const struct synth_params *p) { /* fewer layers than the model's 48: they are alike */
    struct trace_info info = { .n_layers = 12, .n_experts = 128, .k = 8, .expert_bytes = 1, .dense_bytes = 1, .routed = { 0xff, 0x0f } };
    struct sim *s;
    struct err e = { 0 };
    CHECKF(!sim_open_synth(&s, &info, p, 1500, 5, &e), "%s", e.text);
    return s;
}

static bool near(double a, double b, double bound) { return fabs(a - b) <= bound; }

static uint32_t slots_at(const struct sim *s, double percent) { return (uint32_t)(sim_n_keys(s) * percent / 100); }

TEST(made_up_routing_has_the_published_statistics) {
    struct sim *s = qwen3(test_name_, &SYNTH_QWEN3);
    struct sim_summary u;
    CHECK(!sim_summarize(s, &u));
    double at19 = hit_rate(test_name_, s, OFFLOAD_LRU, slots_at(s, 19), 300), at38 = hit_rate(test_name_, s, OFFLOAD_LRU, slots_at(s, 38), 300);
    printf("# reuse next %.1f, within 8 %.1f; LRU %.1f at 19 %%, %.1f at 38 %%\n", 100 * u.reuse_next, 100 * u.reuse_8, at19, at38);
    CHECK(near(100 * u.reuse_next, 45, 3) && near(100 * u.reuse_8, 80, 3) && u.median_distance == 2);
    CHECK(near(at19, 74.1, 3) && near(at38, 89.4, 3));
    sim_close(s);
}

TEST(the_shipped_policy_is_near_belady_and_never_behind_lru) {
    const struct synth_params *params[] = { &SYNTH_QWEN3, &SYNTH_POPULAR };
    for (int i = 0; i < 2; i++) {
        struct sim *s = qwen3(test_name_, params[i]);
        double best = hit_rate(test_name_, s, SIM_BELADY, slots_at(s, 25), 300), ours = hit_rate(test_name_, s, OFFLOAD_AUTO, slots_at(s, 25), 300);
        printf("# at 25 %%: belady %.1f, auto %.1f\n", best, ours);
        CHECK(ours >= best - 10);
        for (int percent = 5; percent <= 60; percent += 11) {
            double lru = hit_rate(test_name_, s, OFFLOAD_LRU, slots_at(s, percent), 300);
            double mine = hit_rate(test_name_, s, OFFLOAD_AUTO, slots_at(s, percent), 300);
            CHECKF(mine >= lru - 0.1, "%d %%: %.2f, LRU %.2f", percent, mine, lru);
        }
        sim_close(s);
    }
}

TEST(made_up_routing_is_the_same_every_time) {
    struct synth *a, *b;
    struct err e = { 0 };
    int32_t x[2 * 4], y[2 * 4];
    CHECK(!synth_open(&a, &(struct synth_shape){ 2, 16, 4 }, &SYNTH_QWEN3, 1, &e));
    CHECK(!synth_open(&b, &(struct synth_shape){ 2, 16, 4 }, &SYNTH_QWEN3, 1, &e));
    for (int t = 0; t < 200; t++) {
        synth_token(a, x);
        synth_token(b, y);
        CHECK(!memcmp(x, y, sizeof x));
        for (int i = 0; i < 8; i++) {
            CHECK(x[i] >= 0 && x[i] < 16);
            for (int j = i / 4 * 4; j < i; j++) CHECK(x[i] != x[j]);
        }
    }
    synth_close(a);
    synth_close(b);
    CHECK(synth_open(&a, &(struct synth_shape){ 1, 4, 5 }, &SYNTH_QWEN3, 1, &e) == ST_INVALID && !a);
}

int main(void) {
    RUN(words_computed_by_hand);
    RUN(a_summary_computed_by_hand);
    RUN(time_computed_by_hand);
    RUN(a_prefill_takes_free_slots_only);
    RUN(less_than_a_working_set_is_of_use);
    RUN(what_cannot_be_simulated_is_refused);
    RUN(nothing_beats_belady_and_more_slots_never_hurt);
    RUN(made_up_routing_has_the_published_statistics);
    RUN(the_shipped_policy_is_near_belady_and_never_behind_lru);
    RUN(made_up_routing_is_the_same_every_time);
    return test_failed_;
}
