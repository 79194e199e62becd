/* SPDX-License-Identifier: Apache-2.0
 *
 * A packed model computes what its source computes: logits equal bit for bit, at every kernel level of this CPU, with and
 * without repacking of the dense part, with all experts in memory and with as few as can be. Run from the project root. */
#include "tests/unit/test.h"
#include "tests/unit/tiny_gguf.h"

#include "base/log.h"
#include "base/pool.h"
#include "engine/engine.h"
#include "kernels/kernels.h"
#include "model/expert_bank.h"
#include "model/model.h"
#include "offload/offload.h"
#include "offload/pack.h"

enum { N_TOKENS = 24, MAX_VOCAB = 512 };

static float want_[N_TOKENS * MAX_VOCAB], got_[N_TOKENS * MAX_VOCAB];

enum { REPACK = 1, EXACT = 2, STREAM = 4, N_WAYS = 8 };

static int logits(const struct model *m, struct pool *pool, enum kern_level level, unsigned way, float *out, struct err *e) {
    struct engine_opts o = { .model = m, .kern = kern_cpu_ops(level), .n_seqs = 1, .n_running = 1, .max_batch_tokens = N_TOKENS,
                             .kv_type = ENGINE_KV_F32, .pool = pool, .repack = way & REPACK, .exact = way & EXACT };
    if (way & STREAM) {
        o.experts = ENGINE_EXPERTS_STREAM;
        o.expert_bytes = offload_min_bytes(m, o.repack);
        o.queue_depth = 4;
    }
    struct engine *en;
    int32_t tokens[N_TOKENS];
    int st = engine_open(&en, &o, e);
    if (st) {
        return st;
    }
    for (int32_t i = 0; i < N_TOKENS; i++) {
        tokens[i] = (i * 37 + 5) % (int32_t)model_hparams(m)->n_vocab;
    }
    st = engine_ops()->kv_reserve(en, 0, N_TOKENS);
    const struct batch_item it = { .n_tokens = N_TOKENS, .tokens = tokens, .next_token = -1 };
    st = st ? st : engine_logits(en, &it, out);
    engine_close(en);
    return st;
}

/* Activations are quantised where the weights are: unpacked F32 and F16 experts are compared too. */
static void check_same(const char *test_name_, const char *source) {
    char out[80];
    struct err e = { 0 };
    struct pool *pool;
    struct model *a, *b;
    const char *base = strrchr(source, '/');
    snprintf(out, sizeof out, "/tmp/moed-engine-pack-%d-%s", (int)getpid(), base + 1);
    CHECKF(pool_open(&pool, &(struct pool_opts){ .n_threads = 2 }, &e) == 0 && model_open(&a, source, &e) == 0, "%s", e.text);
    const struct offload_pack_opts po = { .model = a, .out = out, .force = true, .pool = pool };
    CHECKF(offload_pack(&po, &e) == 0 && model_open(&b, out, &e) == 0, "%s", e.text);
    CHECK(expert_bank_is_packed(b) && model_hparams(a)->n_vocab <= MAX_VOCAB);
    const size_t n_bytes = (size_t)N_TOKENS * model_hparams(a)->n_vocab * sizeof(float);
    for (int level = KERN_SCALAR; level < KERN_N_LEVELS; level++) {
        const unsigned n_ways = level == (int)kern_cpu_best() ? N_WAYS : STREAM; /* the store knows nothing of levels */
        for (unsigned way = 0; kern_cpu_ops((enum kern_level)level) && way < n_ways; way++) {
            CHECKF(logits(a, pool, (enum kern_level)level, REPACK | (way & EXACT), want_, &e) == 0, "%s", e.text);
            CHECK(want_[0] - want_[0] == 0);
            memset(got_, 0, sizeof got_);
            CHECKF(logits(b, pool, (enum kern_level)level, way, got_, &e) == 0, "%s", e.text);
            CHECKF(!memcmp(want_, got_, n_bytes), "%s, level %d, way %u", source, level, way);
        }
    }
    unlink(out);
    model_close(a);
    model_close(b);
    pool_close(pool);
}

TEST(qwen3moe) { check_same(test_name_, "tests/data/logits/qwen3moe.gguf"); }
TEST(olmoe) { check_same(test_name_, "tests/data/logits/olmoe.gguf"); }
TEST(mixtral) { check_same(test_name_, "tests/data/logits/mixtral.gguf"); }

TEST(quantised) {
    static const enum dtype formats[][2] = { { DTYPE_Q4_0, DTYPE_Q4_1 }, { DTYPE_Q5_0, DTYPE_Q5_1 }, { DTYPE_Q8_0, DTYPE_Q4_K }, { DTYPE_Q4_K, DTYPE_Q6_K },
                                             { DTYPE_Q5_K, DTYPE_IQ4_NL }, { DTYPE_IQ4_XS, DTYPE_MXFP4 }, { DTYPE_BF16, DTYPE_Q8_0 } };
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        const struct tiny_model m = {
            .arch = i % 2 ? "llama" : "qwen3moe", .n_layers = 2, .n_embd = 256, .n_vocab = 96, .n_ctx = 64, .n_heads = 4, .n_kv_heads = 2,
            .head_dim = 32, .ff = 256, .n_experts = 5, .n_used = 2, .attn = DTYPE_Q4_0, .gate = formats[i][0], .down = formats[i][1],
            .head = DTYPE_Q8_0, .seed = 11 + i,
        };
        char path[64];
        CHECK(tiny_write(&m, path) == 0);
        check_same(test_name_, path);
        unlink(path);
    }
}

/* A record that rotted stops the engine from opening; one that is streamed fails the step that wants it. */
TEST(rot_is_found) {
    char source[64], out[80];
    struct err e = { 0 };
    struct pool *pool;
    struct model *m;
    struct expert_record r;
    const struct tiny_model tm = {
        .arch = "qwen3moe", .n_layers = 2, .n_embd = 256, .n_vocab = 96, .n_ctx = 64, .n_heads = 4, .n_kv_heads = 2, .head_dim = 32, .ff = 256,
        .n_experts = 4, .n_used = 2, .attn = DTYPE_Q4_0, .gate = DTYPE_Q4_K, .down = DTYPE_Q6_K, .head = DTYPE_Q8_0, .seed = 3,
    };
    CHECK(tiny_write(&tm, source) == 0);
    snprintf(out, sizeof out, "%s.out", source);
    CHECKF(pool_open(&pool, &(struct pool_opts){ .n_threads = 2 }, &e) == 0 && model_open(&m, source, &e) == 0, "%s", e.text);
    const struct offload_pack_opts po = { .model = m, .out = out, .pool = pool };
    CHECKF(offload_pack(&po, &e) == 0, "%s", e.text);
    model_close(m);
    CHECK(model_open(&m, out, &e) == 0);
    expert_bank_record(m, 1, 2, &r);
    model_close(m);
    FILE *f = fopen(out, "r+b");
    CHECK(f && fseek(f, (long)(r.file_offset + r.up_at + 77), SEEK_SET) == 0);
    const int byte = fgetc(f);
    CHECK(fseek(f, -1, SEEK_CUR) == 0 && fputc(byte ^ 4, f) != EOF && fclose(f) == 0);
    CHECK(model_open(&m, out, &e) == 0);
    CHECK(logits(m, pool, KERN_SCALAR, REPACK, got_, &e) == ST_INVALID);
    CHECKF(strstr(e.text, "the record of layer 1, expert 2 at offset"), "%s", e.text);
    CHECK(logits(m, pool, KERN_SCALAR, REPACK | STREAM, got_, &e) == ST_IO);
    model_close(m);
    pool_close(pool);
    unlink(source);
    unlink(out);
}

int main(void) {
    log_setup(LOG_WARN, LOG_TEXT);
    RUN(qwen3moe);
    RUN(olmoe);
    RUN(mixtral);
    RUN(quantised);
    RUN(rot_is_found);
    return test_failed_;
}
