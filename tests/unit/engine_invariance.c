/* SPDX-License-Identifier: Apache-2.0
 *
 * Batch invariance of the whole engine: the logits of a position are the same bits whether its sequence ran alone
 * token by token on one thread, or in any mixed batch with any chunking, thread count, start from a forked prefix, with
 * weights repacked or in the file, or in the last layer's short cut for wanted rows. So are the pooled hidden states. Random arrivals, several models and weight formats. */
#include "tests/unit/test.h"

#include "base/pool.h"
#include "engine/internal.h"
#include "tests/unit/tiny_gguf.h"

enum { N_TEXTS = 4, TEXT_MAX = 80, N_SLOTS = 8, BATCH = 128 /* more than one chunk of logits */, N_VOCAB = 96, EMBD_MAX = 256 };

static uint64_t rng_state = 1;
static uint32_t rnd(uint32_t n) { return tiny_u32(&rng_state) % n; }

struct rig {
    struct model *model;
    struct pool *pool;
    struct engine *en;
    char path[64];
    uint32_t n_sums;           /* checked behind a second chunk or later */
    uint32_t most_prompt_rows; /* of one step: the test must have reached a second chunk of logits */
};

/* The truth: texts, and the logits and the hidden state of every position, from the plainest run. */
struct truth {
    uint32_t n[N_TEXTS];
    int32_t ids[N_TEXTS][TEXT_MAX];
    float logits[N_TEXTS][TEXT_MAX][N_VOCAB];
    double hidden[N_TEXTS][TEXT_MAX][EMBD_MAX];
};

static int rig_engine(struct rig *r, int n_threads, enum kern_level level, enum engine_kv_type kv, bool repack) {
    struct err e = { 0 };
    struct pool_opts po = { .n_threads = n_threads, .spin_us = 20 };
    struct engine_opts o = {
        .model = r->model, .kern = kern_cpu_ops(level), .n_seqs = N_SLOTS, .n_running = N_SLOTS, .max_batch_tokens = BATCH, .kv_type = kv,
    };
    o.repack = repack;
    int st = pool_open(&r->pool, &po, &e);
    o.pool = r->pool;
    if (!st) {
        st = engine_open(&r->en, &o, &e);
    }
    if (st) {
        printf("# %s\n", e.text);
    }
    return st;
}

static void rig_close_engine(struct rig *r) {
    engine_close(r->en);
    pool_close(r->pool);
    r->en = NULL;
    r->pool = NULL;
}

static int rig_open(struct rig *r, const struct tiny_model *m) {
    struct err e = { 0 };
    *r = (struct rig){ 0 };
    int st = tiny_write(m, r->path);
    if (!st) {
        st = model_open(&r->model, r->path, &e);
        unlink(r->path);
    }
    if (st) {
        printf("# %s\n", e.text);
    }
    return st;
}

static void make_texts(struct truth *t) {
    for (int i = 0; i < N_TEXTS; i++) {
        t->n[i] = 40 + rnd(TEXT_MAX - 40);
        for (uint32_t j = 0; j < t->n[i]; j++) {
            t->ids[i][j] = (int32_t)rnd(N_VOCAB);
        }
    }
    memcpy(t->ids[1], t->ids[0], 64 * sizeof t->ids[0][0]); /* a shared prefix of two pages */
    t->n[0] = t->n[0] < 70 ? 70 : t->n[0];
    t->n[1] = t->n[1] < 70 ? 70 : t->n[1];
}

static int make_truth(struct rig *r, struct truth *t) {
    const struct engine_ops *ops = engine_ops();
    for (int i = 0; i < N_TEXTS; i++) {
        if (ops->kv_reserve(r->en, 0, t->n[i])) {
            return -1;
        }
        for (uint32_t j = 0; j < t->n[i]; j++) {
            struct batch_item it = { .seq = 0, .pos = j, .n_tokens = 1, .tokens = &t->ids[i][j] };
            if (engine_logits(r->en, &it, t->logits[i][j])) {
                return -1;
            }
        }
        for (uint32_t j = 0; j < t->n[i]; j++) {
            struct batch_item it = { .pos = j, .n_tokens = 1, .tokens = &t->ids[i][j], .next_token = -1, .pooled = t->hidden[i][j],
                                     .pooling = ENGINE_POOLING_LAST };
            if (ops->step(r->en, &(struct batch){ .items = &it, .n_items = 1, .n_tokens = 1 }, &(struct step_out){ 0 })) {
                return -1;
            }
        }
        ops->kv_free(r->en, 0);
    }
    return 0;
}

/* One slot of the random run: which text it plays and how far it is. */
struct play {
    int text;
    uint32_t pos;
    bool sums;              /* a mean is taken of it, as far as every chunk of it took part */
    uint32_t n_chunks;      /* in sum                                                       */
    double sum[EMBD_MAX];
};

static int start_play(struct rig *r, const struct truth *t, struct play *plays, seq_id slot) {
    struct play *p = &plays[slot];
    *p = (struct play){ .text = (int)rnd(N_TEXTS), .sums = rnd(4) == 0 };
    memset(p->sum, 0x7f, sizeof p->sum); /* position 0 must not read it */
    for (seq_id s = 0; p->text < 2 && s < N_SLOTS; s++) { /* texts 0 and 1 share 64 tokens: fork when one is far enough */
        if (s != slot && plays[s].text >= 0 && plays[s].text < 2 && plays[s].pos >= 64 && rnd(2)) {
            p->pos = 32 + 32 * rnd(2);
            p->sums = false;
            if (engine_ops()->kv_fork(r->en, s, slot, p->pos)) {
                return -1;
            }
            break;
        }
    }
    return engine_ops()->kv_reserve(r->en, slot, t->n[p->text]);
}

static uint32_t make_batch(const struct truth *t, struct play *plays, struct batch_item *items) {
    uint32_t n_items = 0, room = 1 + rnd(BATCH);
    for (seq_id s = 0; s < N_SLOTS && room; s++) {
        struct play *p = &plays[s];
        uint32_t left = p->text < 0 ? 0 : t->n[p->text] - p->pos;
        if (!left || rnd(3) == 0) {
            continue;
        }
        uint32_t n = rnd(3) ? 1 + rnd(40) : 1;
        n = n > left ? left : n;
        n = n > room ? room : n;
        items[n_items++] = (struct batch_item){ .seq = s, .pos = p->pos, .n_tokens = n, .tokens = &t->ids[p->text][p->pos], .next_token = -1 };
        room -= n;
    }
    return n_items;
}

static bool check_all(struct rig *r, const struct truth *t, struct play *plays, const struct batch *b) {
    static float logits[BATCH][N_VOCAB];
    struct engine__pass p = { .en = r->en, .batch = b, .all_logits = true };
    if (engine__batch_check(r->en, b)) {
        return false;
    }
    engine__forward(&p);
    engine__head(&p, 0, p.n_wants, &logits[0][0]);
    engine__step_done(r->en, b);
    for (uint32_t i = 0, row = 0; i < b->n_items; i++) {
        plays[b->items[i].seq].sums = false;
        for (uint32_t j = 0; j < b->items[i].n_tokens; j++, row++) {
            if (memcmp(logits[row], t->logits[plays[b->items[i].seq].text][b->items[i].pos + j], sizeof logits[row])) {
                return false;
            }
        }
    }
    return true;
}

static bool sampled_equal(const struct kern_sampled *a, const struct kern_sampled *b) {
    return a->id == b->id && !memcmp(&a->logprob, &b->logprob, sizeof a->logprob) && a->n_top == b->n_top &&
           !memcmp(a->top, b->top, (size_t)a->n_top * sizeof a->top[0]);
}

/* A sum of everything so far, or the hidden state of the chunk's last token. */
static bool pooled_right(struct rig *r, const struct truth *t, struct play *p, const struct batch_item *it) {
    const size_t n_embd = model_hparams(r->model)->n_embd;
    const double(*hidden)[EMBD_MAX] = t->hidden[p->text];
    double want[EMBD_MAX] = { 0 };
    for (uint32_t j = it->pooling == ENGINE_POOLING_MEAN ? 0 : it->pos + it->n_tokens - 1; j < it->pos + it->n_tokens; j++) {
        for (size_t k = 0; k < n_embd; k++) {
            want[k] += hidden[j][k];
        }
    }
    r->n_sums += it->pooling == ENGINE_POOLING_MEAN && p->n_chunks++ > 0;
    return memcmp(want, it->pooled, n_embd * sizeof *want) == 0;
}

/* Through the public step: some items want a sample, some prompt logprobs, some the hidden state, some nothing. */
static bool check_step(struct rig *r, const struct truth *t, struct play *plays, struct batch_item *items, struct batch *b) {
    static double last[N_SLOTS][EMBD_MAX];
    static struct kern_sampled sampled[N_SLOTS], prompt[N_SLOTS][BATCH];
    static unsigned char work[1 << 16];
    const struct kern_sample greedy = { .top_p = 1, .repetition_penalty = 1, .n_top_logprobs = 3 };
    uint32_t rows = 0;
    for (uint32_t i = 0; i < b->n_items; i++) {
        struct play *p = &plays[items[i].seq];
        if (p->sums || rnd(8) == 0) {
            items[i].pooled = p->sums ? p->sum : last[i];
            items[i].pooling = p->sums ? ENGINE_POOLING_MEAN : ENGINE_POOLING_LAST;
            continue;
        }
        items[i].sample = rnd(2);
        items[i].params = &greedy;
        items[i].prompt_logprobs = rnd(4) ? prompt[i] : NULL;
        rows += items[i].prompt_logprobs ? items[i].n_tokens - 1 : 0;
        items[i].n_top = 2;
        items[i].next_token = rnd(4) ? (int32_t)rnd(N_VOCAB) : -1;
    }
    r->most_prompt_rows = rows > r->most_prompt_rows ? rows : r->most_prompt_rows;
    if (engine_ops()->step(r->en, b, &(struct step_out){ .sampled = sampled })) {
        return false;
    }
    for (uint32_t i = 0; i < b->n_items; i++) {
        struct play *p = &plays[items[i].seq];
        float row[N_VOCAB];
        struct kern_sampled want;
        if (items[i].pooled && !pooled_right(r, t, p, &items[i])) {
            return false;
        }
        for (uint32_t j = 0; items[i].prompt_logprobs && j < items[i].n_tokens; j++) {
            int32_t next = j + 1 < items[i].n_tokens ? items[i].tokens[j + 1] : items[i].next_token;
            if (next >= 0) {
                kern_logprobs(t->logits[p->text][items[i].pos + j], N_VOCAB, next, 2, &want);
                if (!sampled_equal(&want, &prompt[i][j])) {
                    return false;
                }
            }
        }
        memcpy(row, t->logits[p->text][items[i].pos + items[i].n_tokens - 1], sizeof row);
        kern_sample(&greedy, row, N_VOCAB, NULL, 0, 0, 0, work, &want);
        if (items[i].sample && !sampled_equal(&want, &sampled[i])) {
            return false;
        }
    }
    return true;
}

static bool random_run(struct rig *r, const struct truth *t, int n_steps) {
    struct play plays[N_SLOTS];
    struct batch_item items[N_SLOTS];
    for (seq_id s = 0; s < N_SLOTS; s++) {
        plays[s] = (struct play){ .text = -1 };
    }
    for (int step = 0; step < n_steps; step++) {
        for (seq_id s = 0; s < N_SLOTS; s++) {
            bool over = plays[s].text >= 0 && (plays[s].pos == t->n[plays[s].text] || rnd(30) == 0); /* done or cancelled */
            if (over) {
                engine_ops()->kv_free(r->en, s);
                plays[s].text = -1;
            }
            if (plays[s].text < 0 && rnd(3) == 0 && start_play(r, t, plays, s)) {
                return false;
            }
        }
        struct batch b = { .items = items, .n_items = make_batch(t, plays, items) };
        for (uint32_t i = 0; i < b.n_items; i++) {
            b.n_tokens += items[i].n_tokens;
        }
        if (b.n_items && !(rnd(2) ? check_all(r, t, plays, &b) : check_step(r, t, plays, items, &b))) {
            return false;
        }
        for (uint32_t i = 0; i < b.n_items; i++) {
            plays[items[i].seq].pos += items[i].n_tokens;
        }
        if (!engine__kv_consistent(&r->en->kv)) {
            return false;
        }
    }
    return true;
}

static const struct tiny_model MODELS[] = {
    { .arch = "qwen3moe", .n_layers = 3, .n_embd = 64, .n_vocab = N_VOCAB, .n_ctx = 128, .n_heads = 4, .n_kv_heads = 2, .head_dim = 32,
      .ff = 96, .n_experts = 12, .n_used = 3, .attn = DTYPE_Q8_0, .gate = DTYPE_Q4_0, .down = DTYPE_Q5_1, .head = DTYPE_Q4_1, .seed = 11 },
    { .arch = "olmoe", .n_layers = 2, .n_embd = 256, .n_vocab = N_VOCAB, .n_ctx = 128, .n_heads = 4, .n_kv_heads = 4, .head_dim = 64,
      .ff = 256, .n_experts = 8, .n_used = 2, .attn = DTYPE_Q4_K, .gate = DTYPE_Q5_K, .down = DTYPE_Q6_K, .head = DTYPE_Q6_K, .seed = 12 },
    { .arch = "llama", .n_layers = 2, .n_embd = 96, .n_vocab = N_VOCAB, .n_ctx = 128, .n_heads = 6, .n_kv_heads = 2, .head_dim = 16,
      .ff = 160, .n_experts = 4, .n_used = 2, .attn = DTYPE_F16, .gate = DTYPE_MXFP4, .down = DTYPE_BF16, .head = DTYPE_IQ4_NL, .seed = 13 },
    { .arch = "llama", .n_layers = 1, .n_embd = 64, .n_vocab = N_VOCAB, .n_ctx = 128, .n_heads = 2, .n_kv_heads = 2, .head_dim = 32,
      .ff = 200, .attn = DTYPE_Q5_0, .gate = DTYPE_F32, .down = DTYPE_F32, .head = DTYPE_F32, .seed = 14 },
    { .arch = "llama", .n_layers = 1, .n_embd = 256, .n_vocab = N_VOCAB, .n_ctx = 128, .n_heads = 8, .n_kv_heads = 2, .head_dim = 32,
      .ff = 200, .attn = DTYPE_IQ4_XS, .gate = DTYPE_Q4_0, .down = DTYPE_F32, .head = DTYPE_Q5_K, .tied = true, .seed = 15 },
};

static void run_model(const char *test_name_, const struct tiny_model *m, enum engine_kv_type kv) {
    static struct truth t;
    struct rig r;
    CHECK(rig_open(&r, m) == 0);
    for (int level = KERN_SCALAR; level < KERN_N_LEVELS; level++) {
        if (!kern_cpu_ops(level)) {
            continue;
        }
        rng_state = m->seed;
        make_texts(&t);
        CHECK(rig_engine(&r, 1, level, kv, false) == 0);
        CHECK(make_truth(&r, &t) == 0);
        for (int i = 0; i < N_VOCAB; i++) {
            CHECK(isfinite(t.logits[0][t.n[0] - 1][i]));
        }
        rig_close_engine(&r);
        const struct { int threads; bool repack; } others[] = { { 1, true }, { 4, false }, { 4, true } };
        for (int i = 0; i < 3; i++) {
            CHECK(rig_engine(&r, others[i].threads, level, kv, others[i].repack) == 0);
            CHECKF(random_run(&r, &t, level == KERN_SCALAR ? 8 : 50), /* scalar is 50 times slower */
                   "level %s, %d threads, repack %d", kern_cpu_ops(level)->name, others[i].threads, others[i].repack);
            rig_close_engine(&r);
        }
    }
    CHECK(r.most_prompt_rows > ENGINE__LOGITS_ROWS && r.n_sums > 0);
    model_close(r.model);
}

TEST(qwen3moe_mixed_formats) { run_model(test_name_, &MODELS[0], ENGINE_KV_F16); }
TEST(olmoe_k_quants) { run_model(test_name_, &MODELS[1], ENGINE_KV_BF16); }
TEST(llama_moe_float_and_mxfp4) { run_model(test_name_, &MODELS[2], ENGINE_KV_F32); }
TEST(llama_dense_one_layer) { run_model(test_name_, &MODELS[3], ENGINE_KV_F16); }
TEST(llama_dense_head_is_embedding) { run_model(test_name_, &MODELS[4], ENGINE_KV_F16); }

/* A long sequence: threads that it cannot feed by heads alone share its context by position. */
enum { LONG = 2 * KERN_ATTN_SEGMENT + 40 };
static const struct tiny_model LONG_MODEL = {
    .arch = "llama", .n_layers = 2, .n_embd = 32, .n_vocab = N_VOCAB, .n_ctx = 4096, .n_heads = 4, .n_kv_heads = 1, .head_dim = 16,
    .ff = 32, .attn = DTYPE_F32, .gate = DTYPE_F32, .down = DTYPE_F32, .head = DTYPE_F32, .seed = 15,
};

/* Logits of the last N_LONG positions; `chunk` tokens a step up to them, `tail` after. Counts the cut steps. */
enum { N_LONG = 24 };
static int long_run(struct rig *r, const int32_t *ids, uint32_t chunk, uint32_t tail, float (*logits)[N_VOCAB], int *n_cut) {
    if (engine_ops()->kv_reserve(r->en, 0, LONG)) {
        return -1;
    }
    for (uint32_t pos = 0, n; pos < LONG; pos += n) {
        n = pos < LONG - N_LONG ? chunk : tail;
        n = pos < LONG - N_LONG && n > LONG - N_LONG - pos ? LONG - N_LONG - pos : n;
        struct batch_item it = { .seq = 0, .pos = pos, .n_tokens = n, .tokens = ids + pos };
        struct batch b = { .items = &it, .n_items = 1, .n_tokens = n };
        struct engine__pass p = { .en = r->en, .batch = &b, .all_logits = pos >= LONG - N_LONG };
        if (engine__batch_check(r->en, &b)) {
            return -1;
        }
        engine__forward(&p);
        if (p.all_logits) {
            engine__head(&p, 0, n, logits[pos - (LONG - N_LONG)]);
        }
        *n_cut += p.attn_cut;
        engine__step_done(r->en, &b);
    }
    engine_ops()->kv_free(r->en, 0);
    return 0;
}

static void long_context(const char *test_name_, enum engine_kv_type kv) {
    static const uint32_t SHAPES[][2] = { { BATCH, 1 }, { 100, 8 }, { 3, 24 } };
    static float want[N_LONG][N_VOCAB], got[N_LONG][N_VOCAB];
    static int32_t ids[LONG];
    struct rig r;
    CHECK(rig_open(&r, &LONG_MODEL) == 0);
    for (int i = 0; i < LONG; i++) {
        ids[i] = (int32_t)rnd(N_VOCAB);
    }
    for (int level = KERN_AVX2; level < KERN_N_LEVELS; level++) {
        int n_cut = 0;
        if (!kern_cpu_ops(level)) {
            continue;
        }
        CHECK(rig_engine(&r, 1, level, kv, false) == 0);
        CHECK(long_run(&r, ids, 64, 1, want, &n_cut) == 0);
        CHECK(n_cut == 0 && isfinite(want[0][0]));
        rig_close_engine(&r);
        for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++) {
            CHECK(rig_engine(&r, 4, level, kv, false) == 0);
            n_cut = 0;
            CHECK(long_run(&r, ids, SHAPES[i][0], SHAPES[i][1], got, &n_cut) == 0);
            CHECK(n_cut > 0);
            CHECKF(memcmp(want, got, sizeof want) == 0, "level %s, shape %zu", kern_cpu_ops(level)->name, i);
            rig_close_engine(&r);
        }
    }
    model_close(r.model);
}

TEST(qwen3moe_int8_cache) { run_model(test_name_, &MODELS[0], ENGINE_KV_Q8); }
TEST(long_context_f16) { long_context(test_name_, ENGINE_KV_F16); }
TEST(long_context_q8) { long_context(test_name_, ENGINE_KV_Q8); }

int main(void) {
    RUN(qwen3moe_mixed_formats);
    RUN(olmoe_k_quants);
    RUN(llama_moe_float_and_mxfp4);
    RUN(llama_dense_one_layer);
    RUN(llama_dense_head_is_embedding);
    RUN(qwen3moe_int8_cache);
    RUN(long_context_f16);
    RUN(long_context_q8);
    return test_failed_;
}
