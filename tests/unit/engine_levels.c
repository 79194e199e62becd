/* SPDX-License-Identifier: Apache-2.0
 *
 * Every kernel level computes the same logits, bit for bit: the scalar level's, for every fixture model, cache type and
 * kind of activations, and for the demo model. Run from the project root. */
#include "tests/unit/test.h"

#include "base/alloc.h"
#include "base/log.h"
#include "base/pool.h"
#include "engine/engine.h"
#include "kernels/kernels.h"
#include "model/model.h"

#define DEMO "models/demo-moe.gguf"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { N_TOKENS = 6 };
#else
enum { N_TOKENS = 40 };
#endif

static int logits(const struct engine_opts *o, float *out, struct err *e) {
    struct engine *en;
    int32_t tokens[N_TOKENS];
    const uint32_t n_vocab = model_hparams(o->model)->n_vocab;
    int st = engine_open(&en, o, e);
    if (st) return st;
    for (uint32_t i = 0; i < N_TOKENS; i++) tokens[i] = (int32_t)((i * 2477 + 5) % n_vocab);
    st = engine_ops()->kv_reserve(en, 0, N_TOKENS);
    const struct batch_item it = { .n_tokens = N_TOKENS, .tokens = tokens, .next_token = -1 };
    st = st ? st : engine_logits(en, &it, out);
    engine_close(en);
    return st;
}

/* One model, one way of running it. */
static void check_levels(const char *test_name_, const struct model *m, struct pool *pool, enum engine_kv_type kv, bool exact) {
    struct err e = { 0 };
    const size_t n_vocab = model_hparams(m)->n_vocab, n = N_TOKENS * n_vocab;
    float *want = mem_zalloc(2 * n, sizeof *want), *got = want + n;
    CHECK(want != NULL);
    for (int level = KERN_SCALAR; level < KERN_N_LEVELS; level++) {
        const struct kern_ops *ops = kern_cpu_ops((enum kern_level)level);
        const struct engine_opts o = { .model = m, .kern = ops, .n_seqs = 1, .n_running = 1, .max_batch_tokens = N_TOKENS, .n_ctx = N_TOKENS,
                                       .kv_type = kv, .pool = pool, .exact = exact, .repack = true };
        if (!ops) continue;
        CHECKF(logits(&o, level == KERN_SCALAR ? want : got, &e) == 0, "%s", e.text);
        CHECK(want[0] - want[0] == 0 && want[n - 1] - want[n - 1] == 0);
        if (level == KERN_SCALAR) continue;
        size_t i = 0;
        while (i < n && memcmp(want + i, got + i, sizeof *got) == 0) i++;
        CHECKF(i == n, "%s, KV %d, exact %d: token %zu, id %zu: %.9g, scalar %.9g", ops->name, kv, exact, i / n_vocab, i % n_vocab,
               i < n ? (double)got[i] : 0, i < n ? (double)want[i] : 0);
        memset(got, 0, n * sizeof *got);
    }
    mem_free(want);
}

static void check_model(const char *test_name_, const char *path, int n_kv_types) {
    struct err e = { 0 };
    struct model *m;
    struct pool *pool;
    CHECKF(model_open(&m, path, &e) == 0 && pool_open(&pool, &(struct pool_opts){ .n_threads = pool_default_threads() }, &e) == 0, "%s", e.text);
    for (int kv = 0; kv < n_kv_types; kv++) {
        check_levels(test_name_, m, pool, (enum engine_kv_type)kv, false);
        if (n_kv_types > 1) check_levels(test_name_, m, pool, (enum engine_kv_type)kv, true);
    }
    pool_close(pool);
    model_close(m);
}

TEST(fixtures) {
    static const char *const names[] = { "qwen3moe", "olmoe", "mixtral", "llama", "llama-rope3", "llama-yarn", "quants" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[64];
        snprintf(path, sizeof path, "tests/data/logits/%s.gguf", names[i]);
        check_model(test_name_, path, 4);
    }
}

TEST(demo) { check_model(test_name_, DEMO, 1); }

int main(void) {
    log_setup(LOG_WARN, LOG_TEXT);
    RUN(fixtures);
    FILE *f = fopen(DEMO, "re");
    if (f) {
        fclose(f);
        RUN(demo);
    } else {
        printf("SKIP demo: %s is not here; run make test, or tools/make_demo.py\n", DEMO);
    }
    return test_failed_;
}
