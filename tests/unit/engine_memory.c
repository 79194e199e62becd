/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory promises: the plan is what open reserves, a ceiling shrinks only what was automatic and otherwise
 * gives one useful error, a step allocates nothing, a failed open leaks nothing, a bad batch changes nothing. */
#include "tests/unit/test.h"

#include "base/alloc.h"
#include "base/pool.h"
#include "engine/engine.h"
#include "kernels/kernels.h"
#include "model/model.h"
#include "tests/unit/tiny_gguf.h"

static const struct tiny_model MODEL = {
    .arch = "qwen3moe", .n_layers = 2, .n_embd = 64, .n_vocab = 80, .n_ctx = 4096, .n_heads = 4, .n_kv_heads = 2, .head_dim = 32,
    .ff = 64, .n_experts = 8, .n_used = 2, .attn = DTYPE_Q8_0, .gate = DTYPE_Q4_0, .down = DTYPE_Q4_0, .head = DTYPE_Q8_0, .seed = 3,
};

struct rig { struct model *model; struct pool *pool; struct engine_opts o; };

static int rig_open(struct rig *r) { /* a store opens the file again: rig_close unlinks it */
    char path[64];
    struct pool_opts po = { .n_threads = 2 };
    *r = (struct rig){ 0 };
    if (tiny_write(&MODEL, path)) {
        return -1;
    }
    int st = model_open(&r->model, path, NULL);
    if (st || pool_open(&r->pool, &po, NULL)) {
        return -1;
    }
    r->o = (struct engine_opts){
        .model = r->model, .pool = r->pool, .kern = kern_cpu_ops(kern_cpu_best()), .n_seqs = 6, .n_running = 4, .max_batch_tokens = 48,
    };
    return 0;
}

static void rig_close(struct rig *r) {
    pool_close(r->pool);
    unlink(gguf_file_path(model_gguf(r->model), 0));
    model_close(r->model);
}

/* K and V of one token: 2 layers * 2 kv heads * 32 dims * (K, V) * f16. */
enum { TOKEN_BYTES = 2 * 2 * 32 * 2 * 2 };

TEST(plan_is_what_open_reserves) {
    struct rig r;
    struct engine *en;
    struct engine_memory m;
    struct engine_info info;
    struct mem_stats before, after;
    CHECK(rig_open(&r) == 0);
    CHECK(engine_plan_memory(&r.o, &m, NULL) == 0);
    CHECK(m.n_ctx == 4096 && m.kv_tokens == 4 * 4096);
    CHECK(m.kv >= (uint64_t)m.kv_tokens * TOKEN_BYTES && m.kv < (uint64_t)m.kv_tokens * TOKEN_BYTES * 102 / 100);
    CHECK(m.total == m.weights + m.kv + m.scratch);
    mem_stats(&before);
    CHECK(engine_open(&en, &r.o, NULL) == 0);
    mem_stats(&after);
    CHECK(m.repacked == 0 && after.mapped_bytes - before.mapped_bytes == m.kv + m.scratch);
    engine_ops()->info(en, &info);
    CHECK(info.n_ctx == m.n_ctx && info.n_pages * info.page_tokens == m.kv_tokens && info.n_vocab == 80);
    engine_close(en);
    mem_stats(&after);
    CHECK(after.mapped_bytes == before.mapped_bytes && after.n_live == before.n_live);
    rig_close(&r);
}

/* Repacked weights replace the file's: they move into memory that the plan names, and the total stays but for padding. */
TEST(plan_counts_repacked_weights) {
    struct rig r;
    struct engine *en;
    struct engine_memory plain, m;
    struct mem_stats before, after;
    CHECK(rig_open(&r) == 0);
    CHECK(engine_plan_memory(&r.o, &plain, NULL) == 0);
    r.o.repack = true;
    CHECK(engine_plan_memory(&r.o, &m, NULL) == 0);
    CHECK(m.repacked > plain.weights / 2 && m.repacked < m.weights); /* norms, router and embedding stay */
    CHECK(m.weights >= plain.weights && m.weights < plain.weights + 64 * 15 && m.kv == plain.kv && m.scratch == plain.scratch);
    CHECK(m.total == m.weights + m.kv + m.scratch);
    mem_stats(&before);
    CHECK(engine_open(&en, &r.o, NULL) == 0);
    mem_stats(&after);
    CHECK(after.mapped_bytes - before.mapped_bytes == m.repacked + m.kv + m.scratch && after.n_live == before.n_live + 1);
    engine_close(en);
    mem_stats(&after);
    CHECK(after.mapped_bytes == before.mapped_bytes && after.n_live == before.n_live);
    rig_close(&r);
}

TEST(ceiling_shrinks_what_is_automatic) {
    struct rig r;
    struct engine_memory whole, m;
    CHECK(rig_open(&r) == 0);
    CHECK(engine_plan_memory(&r.o, &whole, NULL) == 0);
    uint32_t last = UINT32_MAX;
    for (uint64_t cut = 0; cut < whole.kv * 9 / 10; cut += whole.kv / 37) {
        r.o.ram_bytes = whole.total - cut;
        CHECK(engine_plan_memory(&r.o, &m, NULL) == 0);
        CHECK(m.total <= r.o.ram_bytes);
        CHECK(m.total + 3 * 32 * TOKEN_BYTES + 8192 > r.o.ram_bytes || m.kv_tokens == whole.kv_tokens); /* no more than needed */
        CHECK(m.kv_tokens <= last && m.n_ctx <= m.kv_tokens);
        last = m.kv_tokens;
    }
    r.o.n_ctx = 1000; /* fixed now: the tokens shrink, the context does not */
    r.o.ram_bytes = whole.total - whole.kv * 9 / 10;
    CHECK(engine_plan_memory(&r.o, &m, NULL) == 0);
    CHECK(m.n_ctx == 1000 && m.kv_tokens >= 1000 && m.total <= r.o.ram_bytes);
    rig_close(&r);
}

TEST(too_small_a_ceiling_says_what_is_missing) {
    struct rig r;
    struct engine_memory m;
    struct err e;
    char want[64];
    CHECK(rig_open(&r) == 0);
    r.o.ram_bytes = 1000;
    CHECK(engine_plan_memory(&r.o, &m, &e) == ST_NOMEM);
    snprintf(want, sizeof want, "%llu bytes of memory are missing", (unsigned long long)(m.total - 1000));
    CHECKF(strstr(e.text, want), "%s", e.text);
    CHECK(strstr(e.text, "context") && strstr(e.text, "kv-tokens") && strstr(e.text, "max-running") && strstr(e.text, "ram"));
    r.o.ram_bytes = m.total; /* exactly that much is enough */
    CHECK(engine_plan_memory(&r.o, &m, &e) == 0);
    r.o.ram_bytes = 0;
    r.o.kv_tokens = 1 << 30; /* asked for and not automatic: never cut */
    CHECK(engine_plan_memory(&r.o, &m, &e) == 0 && m.kv_tokens == 1 << 30);
    r.o.ram_bytes = 1 << 30;
    CHECK(engine_plan_memory(&r.o, &m, &e) == ST_NOMEM);
    rig_close(&r);
}

/* Streamed experts: the ceiling holds for everything, the store's budget is what is left, and what open maps is the plan. */
TEST(streamed_experts_take_what_is_left) {
    struct rig r;
    struct engine *en;
    struct engine_memory whole, m;
    struct mem_stats before, after;
    struct offload_stats st;
    CHECK(rig_open(&r) == 0);
    r.o.n_ctx = 256;
    r.o.kv_tokens = 1024;
    r.o.repack = true;
    CHECK(engine_plan_memory(&r.o, &whole, NULL) == 0);
    r.o.experts = ENGINE_EXPERTS_STREAM;
    CHECK(engine_plan_memory(&r.o, &m, NULL) == 0); /* without a ceiling: all of them */
    CHECK(m.experts == m.experts_all && m.experts_min < m.experts_all);
    CHECK(m.weights < whole.weights && whole.weights - m.weights < m.experts_all);
    r.o.ram_bytes = m.total - m.experts + m.experts_min + 5000;
    CHECK(engine_plan_memory(&r.o, &m, NULL) == 0);
    CHECK(m.experts == m.experts_min + 5000 && m.total == r.o.ram_bytes);
    CHECK(m.total == m.weights + m.kv + m.scratch + m.experts + m.slack);
    mem_stats(&before);
    CHECK(engine_open(&en, &r.o, NULL) == 0);
    mem_stats(&after);
    CHECK(after.mapped_bytes - before.mapped_bytes <= m.repacked + m.kv + m.scratch + m.experts);
    CHECK(engine_ops()->experts(en, &st) && st.budget_bytes == m.experts && st.slot_bytes <= m.experts);
    engine_close(en);
    mem_stats(&after);
    CHECK(after.mapped_bytes == before.mapped_bytes && after.n_live == before.n_live);
    rig_close(&r);
}

TEST(auto_streams_only_what_does_not_fit) {
    struct rig r;
    struct engine_memory resident, m;
    CHECK(rig_open(&r) == 0);
    r.o.experts = ENGINE_EXPERTS_AUTO;
    CHECK(engine_plan_memory(&r.o, &resident, NULL) == 0 && resident.experts == 0);
    r.o.ram_bytes = resident.total;
    CHECK(engine_plan_memory(&r.o, &m, NULL) == 0 && m.experts == 0 && m.n_ctx == resident.n_ctx);
    r.o.expert_bytes = 4 * resident.weights; /* more than there are: no reason to stream */
    CHECK(engine_plan_memory(&r.o, &m, NULL) == 0 && m.experts == 0);
    r.o.ram_bytes = 0;
    r.o.expert_bytes = offload_min_bytes(r.model, false);
    CHECK(engine_plan_memory(&r.o, &m, NULL) == 0 && m.experts == r.o.expert_bytes);
    r.o.experts = ENGINE_EXPERTS_RESIDENT;
    CHECK(engine_plan_memory(&r.o, &m, NULL) == 0 && m.experts == 0);
    rig_close(&r);
}

/* An automatic KV cache gives way to the experts, but for a quarter of what both share. */
TEST(kv_and_experts_share) {
    struct rig r;
    struct engine_memory m;
    CHECK(rig_open(&r) == 0);
    r.o.experts = ENGINE_EXPERTS_STREAM;
    CHECK(engine_plan_memory(&r.o, &m, NULL) == 0);
    const uint64_t fixed = m.weights + m.scratch + m.slack, least = m.experts_min;
    for (uint64_t share = 4 * least; share < m.experts_all * 2; share += least) {
        r.o.ram_bytes = fixed + share;
        CHECK(engine_plan_memory(&r.o, &m, NULL) == 0);
        CHECK(m.total <= r.o.ram_bytes && (m.experts >= share / 4 * 3 || m.experts == m.experts_all));
        CHECK(m.n_ctx >= 128);
    }
    rig_close(&r);
}

TEST(too_few_bytes_for_experts_says_what_is_missing) {
    struct rig r;
    struct engine_memory m;
    struct err e;
    CHECK(rig_open(&r) == 0);
    r.o.experts = ENGINE_EXPERTS_STREAM;
    r.o.expert_bytes = 100;
    CHECK(engine_plan_memory(&r.o, &m, &e) == ST_NOMEM);
    CHECKF(strstr(e.text, "missing for experts") && strstr(e.text, "expert-ram"), "%s", e.text);
    r.o.expert_bytes = 0;
    r.o.ram_bytes = m.slack + 1000;
    CHECK(engine_plan_memory(&r.o, &m, &e) == ST_NOMEM);
    CHECKF(strstr(e.text, "bytes of memory are missing") && strstr(e.text, "raise ram"), "%s", e.text);
    r.o.ram_bytes = m.total; /* what the message asks for is enough */
    CHECK(engine_plan_memory(&r.o, &m, &e) == 0 && m.experts >= m.experts_min);
    rig_close(&r);
}

TEST(bad_options) {
    struct rig r;
    struct engine_memory m;
    struct err e;
    CHECK(rig_open(&r) == 0);
    const struct { uint32_t n_seqs, n_running, n_ctx, kv_tokens, batch; const char *name; } bad[] = {
        { 6, 0, 0, 0, 48, "max-running" },      { 6, 7, 0, 0, 48, "max-running" }, { 6, 4, 5000, 0, 48, "context" },
        { 6, 4, 2048, 1024, 48, "kv-tokens" },  { 6, 4, 0, UINT32_MAX, 48, "kv-tokens" },
        { 6, 4, 0, 0, 0, "batch-tokens" },      { 6, 4, 0, 0, UINT32_MAX, "batch-tokens" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct engine_opts o = r.o;
        o.n_seqs = bad[i].n_seqs;
        o.n_running = bad[i].n_running;
        o.n_ctx = bad[i].n_ctx;
        o.kv_tokens = bad[i].kv_tokens;
        o.max_batch_tokens = bad[i].batch;
        CHECK(engine_plan_memory(&o, &m, &e) == ST_INVALID);
        CHECKF(strstr(e.text, bad[i].name), "%s", e.text);
    }
    rig_close(&r);
}

TEST(failed_open_leaks_nothing) {
    struct rig r;
    struct engine *en = NULL;
    struct mem_stats before, after;
    int st = ST_NOMEM;
    CHECK(rig_open(&r) == 0);
    r.o.repack = true;
    mem_stats(&before);
    for (uint64_t n = 0; st; n++) {
        CHECK(n < 10);
        mem_fail_after(n);
        st = engine_open(&en, &r.o, NULL);
        mem_fail_after(UINT64_MAX);
        CHECK(st == 0 || st == ST_NOMEM);
        if (st) {
            mem_stats(&after);
            CHECK(after.mapped_bytes == before.mapped_bytes && after.n_live == before.n_live);
        }
    }
    engine_close(en);
    rig_close(&r);
}

TEST(steps_allocate_nothing) {
    struct rig r;
    struct engine *en;
    struct mem_stats before, after;
    struct engine_stats stats;
    const struct engine_ops *ops = engine_ops();
    const struct kern_sample params[] = {
        { .top_p = 1, .repetition_penalty = 1, .n_top_logprobs = 5 },
        { .temperature = 0.8f, .top_k = 20, .top_p = 0.9f, .min_p = 0.01f, .repetition_penalty = 1.1f, .presence_penalty = 0.2f, .n_top_logprobs = -1 },
    };
    int32_t tokens[4][200];
    struct kern_sampled sampled[4], prompt[40];
    uint64_t rng = 5;
    CHECK(rig_open(&r) == 0);
    CHECK(engine_open(&en, &r.o, NULL) == 0);
    for (int i = 0; i < 800; i++) {
        tokens[i / 200][i % 200] = (int32_t)(tiny_u32(&rng) % 80);
    }
    uint32_t pos[4] = { 0 };
    mem_stats(&before);
    for (int step = 0; step < 100; step++) {
        struct batch_item items[4];
        struct batch b = { .items = items, .n_items = 4 };
        for (uint32_t s = 0; s < 4; s++) {
            uint32_t n = step % 4 == (int)s && pos[s] + 20 < 200 ? 12 : 1;
            if (pos[s] + n > 200) {
                ops->kv_free(en, s);
                pos[s] = 0;
            }
            CHECK(ops->kv_reserve(en, s, pos[s] + n) == 0);
            items[s] = (struct batch_item){
                .seq = s, .pos = pos[s], .n_tokens = n, .tokens = &tokens[s][pos[s]], .sample = s != 3, .params = &params[s % 2],
                .history = tokens[s], .n_history = pos[s] + n, .n_prompt = pos[s], .counter = pos[s],
                .prompt_logprobs = s == 2 ? prompt : NULL, .next_token = -1, .n_top = 3,
            };
            b.n_tokens += n;
            pos[s] += n;
        }
        CHECK(ops->step(en, &b, &(struct step_out){ .sampled = sampled }) == 0);
        for (int s = 0; s < 3; s++) {
            CHECK(sampled[s].id >= 0 && sampled[s].id < 80);
        }
    }
    mem_stats(&after);
    CHECK(after.n_calls == before.n_calls && after.mapped_bytes == before.mapped_bytes);
    ops->stats(en, &stats);
    CHECK(stats.n_steps == 100 && stats.n_tokens > 400);
    CHECK(stats.moe_rows >= stats.n_tokens * 2 && stats.moe_rows <= stats.n_tokens * 2 * 2); /* last layer: wanted rows only */
    CHECK(stats.experts_read > 100 * 2 && stats.experts_read <= 100 * 2 * 8);
    for (uint32_t s = 0; s < 4; s++) {
        ops->kv_free(en, s);
    }
    ops->stats(en, &stats);
    CHECK(stats.kv_pages_free == stats.kv_pages_total);
    engine_close(en);
    rig_close(&r);
}

TEST(bad_batches_change_nothing) {
    struct rig r;
    struct engine *en;
    const struct engine_ops *ops = engine_ops();
    const struct kern_sample greedy = { .top_p = 1, .repetition_penalty = 1, .n_top_logprobs = -1 };
    const int32_t ok[3] = { 1, 2, 3 }, negative[3] = { 1, -1, 3 }, large[3] = { 1, 2, 80 };
    CHECK(rig_open(&r) == 0);
    CHECK(engine_open(&en, &r.o, NULL) == 0);
    CHECK(ops->kv_reserve(en, 0, 32) == 0);
    CHECK(ops->kv_reserve(en, 0, 4097) == ST_INVALID);
    const struct batch_item good = { .seq = 0, .pos = 0, .n_tokens = 3, .tokens = ok, .next_token = -1 };
    struct batch_item bad[8] = { good, good, good, good, good, good, good, good };
    bad[0].seq = 6;
    bad[1].seq = 1; /* nothing reserved */
    bad[2].pos = 1; /* a hole */
    bad[3].n_tokens = 0;
    bad[4].tokens = negative;
    bad[5].tokens = large;
    bad[6].sample = true; /* no params */
    bad[7].next_token = 80;
    struct kern_sampled out[2];
    for (int i = 0; i < 8; i++) {
        struct batch b = { .items = &bad[i], .n_items = 1, .n_tokens = bad[i].n_tokens };
        CHECKF(ops->step(en, &b, &(struct step_out){ .sampled = out }) == ST_INVALID, "case %d", i);
    }
    struct batch_item twice[2] = { good, good };
    CHECK(ops->step(en, &(struct batch){ twice, 2, 6 }, &(struct step_out){ .sampled = out }) == ST_INVALID);
    CHECK(ops->step(en, &(struct batch){ &good, 1, 4 }, &(struct step_out){ .sampled = out }) == ST_INVALID); /* wrong sum */
    CHECK(ops->step(en, &(struct batch){ 0 }, &(struct step_out){ .sampled = out }) == 0);                   /* empty is fine */
    struct batch_item it = good;
    it.sample = true;
    it.params = &greedy;
    CHECK(ops->step(en, &(struct batch){ &it, 1, 3 }, &(struct step_out){ .sampled = out }) == 0);
    engine_close(en);
    rig_close(&r);
}

/* The mask of an item alone decides, whatever its params say; the log-probability stays that of the model. */
TEST(a_mask_keeps_tokens_out) {
    struct rig r;
    struct engine *en;
    const struct engine_ops *ops = engine_ops();
    static const int32_t prompt[3] = { 1, 2, 3 };
    const uint32_t all[3] = { UINT32_MAX, UINT32_MAX, 0xffff };
    struct kern_sampled free_draw, out;
    CHECK(rig_open(&r) == 0);
    CHECK(engine_open(&en, &r.o, NULL) == 0);
    CHECK(ops->kv_reserve(en, 0, 32) == 0);
    for (uint32_t i = 0; i < 60; i++) {
        struct kern_sample p = { .temperature = (float)(i % 3), .top_p = 1, .repetition_penalty = 1, .seed = i, .allowed = i % 2 ? all : NULL };
        struct batch_item it = { .n_tokens = 3, .tokens = prompt, .next_token = -1, .sample = true, .params = &p };
        struct batch b = { .items = &it, .n_items = 1, .n_tokens = 3 };
        uint32_t mask[3] = { UINT32_MAX, UINT32_MAX, 0xffff };
        CHECK(ops->step(en, &b, &(struct step_out){ .sampled = &free_draw }) == 0);
        mask[free_draw.id / 32] &= ~(1u << free_draw.id % 32); /* what would be drawn */
        it.mask = mask;
        ops->kv_free(en, 0);
        CHECK(ops->kv_reserve(en, 0, 32) == 0 && ops->step(en, &b, &(struct step_out){ .sampled = &out }) == 0);
        CHECK(out.id != free_draw.id && out.id >= 0 && out.id < 80);
        CHECK(p.temperature > 0 || out.logprob <= free_draw.logprob);
        ops->kv_free(en, 0);
        CHECK(ops->kv_reserve(en, 0, 32) == 0);
    }
    engine_close(en);
    rig_close(&r);
}

int main(void) {
    RUN(plan_is_what_open_reserves);
    RUN(plan_counts_repacked_weights);
    RUN(ceiling_shrinks_what_is_automatic);
    RUN(too_small_a_ceiling_says_what_is_missing);
    RUN(streamed_experts_take_what_is_left);
    RUN(auto_streams_only_what_does_not_fit);
    RUN(kv_and_experts_share);
    RUN(too_few_bytes_for_experts_says_what_is_missing);
    RUN(bad_options);
    RUN(failed_open_leaks_nothing);
    RUN(steps_allocate_nothing);
    RUN(bad_batches_change_nothing);
    RUN(a_mask_keeps_tokens_out);
    return test_failed_;
}
