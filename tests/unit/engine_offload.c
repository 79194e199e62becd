/* SPDX-License-Identifier: Apache-2.0
 *
 * Placement never changes the answer: whatever the budget of the expert store, its policy, prefetch, a packed model or
 * none, the layout of the weights, who else is in the batch and live resizes in between, every drawn token and its log-probabilities are the
 * bits of an engine whose experts are all resident. And an expert that cannot be read fails those who need it, and nobody else. */
#include "tests/unit/test.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/pool.h"
#include "engine/engine.h"
#include "kernels/kernels.h"
#include "model/expert_bank.h"
#include "model/model.h"
#include "offload/disk.h"
#include "offload/pack.h"
#include "tests/unit/tiny_gguf.h"

enum { N_TEXTS = 6, TEXT = 56, N_SLOTS = 16, BATCH = 96, N_VOCAB = 96, N_TOP = 5 };

static const struct kern_sample GREEDY = { .top_p = 1, .repetition_penalty = 1, .n_top_logprobs = N_TOP };

static const struct tiny_model MODEL = {
    .arch = "qwen3moe", .n_layers = 4, .n_embd = 64, .n_vocab = N_VOCAB, .n_ctx = 256, .n_heads = 4, .n_kv_heads = 2, .head_dim = 32,
    .ff = 64, .n_experts = 16, .n_used = 3, .attn = DTYPE_Q8_0, .gate = DTYPE_Q4_0, .down = DTYPE_Q8_0, .head = DTYPE_Q8_0, .seed = 11,
};

struct rig {
    struct model *model;
    struct pool *pool;
    struct engine *en;
    struct engine_opts o;
    uint64_t rng;
    uint32_t n_texts[N_TEXTS];
    int32_t ids[N_TEXTS][TEXT];
    struct kern_sampled truth[N_TEXTS][TEXT]; /* what is drawn after tokens [0 .. j] */
};

static uint32_t rnd(struct rig *r, uint32_t n) { return tiny_u32(&r->rng) % n; }

static int rig_engine(struct rig *r, const struct engine_opts *o) {
    struct err e = { 0 };
    int st = engine_open(&r->en, o, &e);
    if (st) {
        printf("# %s\n", e.text);
    }
    return st;
}

static bool same(const struct kern_sampled *a, const struct kern_sampled *b) {
    bool equal = a->id == b->id && !memcmp(&a->logprob, &b->logprob, sizeof a->logprob) && a->n_top == b->n_top;
    for (int32_t i = 0; equal && i < a->n_top; i++) {
        equal = a->top[i].id == b->top[i].id && !memcmp(&a->top[i].logprob, &b->top[i].logprob, sizeof a->top[i].logprob);
    }
    return equal;
}

static struct batch_item item_of(const struct rig *r, int text, seq_id seq, uint32_t pos, uint32_t n) {
    return (struct batch_item){
        .seq = seq, .pos = pos, .n_tokens = n, .tokens = &r->ids[text][pos], .sample = true, .params = &GREEDY,
        .history = r->ids[text], .n_history = pos + n, .n_prompt = pos + n, .next_token = -1,
    };
}

static int make_truth(struct rig *r) {
    const struct engine_ops *ops = engine_ops();
    for (int t = 0; t < N_TEXTS; t++) {
        r->n_texts[t] = TEXT / 2 + rnd(r, TEXT / 2);
        if (ops->kv_reserve(r->en, 0, r->n_texts[t])) {
            return -1;
        }
        for (uint32_t j = 0; j < r->n_texts[t]; j++) {
            r->ids[t][j] = (int32_t)rnd(r, N_VOCAB);
            struct batch_item it = item_of(r, t, 0, j, 1);
            struct step_out out = { .sampled = &r->truth[t][j] };
            if (ops->step(r->en, &(struct batch){ &it, 1, 1 }, &out)) {
                return -1;
            }
        }
        ops->kv_free(r->en, 0);
    }
    return 0;
}

/* The model as `moed pack` writes it, under the same name. */
static int pack_file(struct rig *r, char *path) {
    struct model *plain;
    struct err e = { 0 };
    char out[80];
    snprintf(out, sizeof out, "%s.packed", path);
    int st = model_open(&plain, path, &e);
    if (!st) {
        const struct offload_pack_opts o = { .model = plain, .pool = r->pool, .out = out };
        st = offload_pack(&o, &e);
        model_close(plain);
    }
    if (st) {
        printf("# %s\n", e.text);
    }
    return st ? st : rename(out, path);
}

static int rig_open(struct rig *r, const struct tiny_model *m, bool repack, bool packed) {
    char path[64];
    struct pool_opts po = { .n_threads = 2, .spin_us = 20 };
    *r = (struct rig){ .rng = 7 };
    if (tiny_write(m, path) || pool_open(&r->pool, &po, NULL)) {
        return -1;
    }
    int st = packed ? pack_file(r, path) : 0;
    st = st ? st : model_open(&r->model, path, NULL);
    r->o = (struct engine_opts){
        .model = r->model, .pool = r->pool, .kern = kern_cpu_ops(kern_cpu_best()), .n_seqs = N_SLOTS, .n_running = N_SLOTS,
        .max_batch_tokens = BATCH, .repack = repack,
    };
    st = st ? st : rig_engine(r, &r->o);
    st = st ? st : make_truth(r);
    engine_close(r->en);
    r->en = NULL;
    return st; /* the store reads the file by its path: rig_close unlinks it */
}

static void rig_close(struct rig *r) {
    engine_close(r->en);
    pool_close(r->pool);
    unlink(gguf_file_path(model_gguf(r->model), 0));
    model_close(r->model);
}

/* ---- random steps against the truth ---- */

struct play { int text; uint32_t pos; }; /* text -1: the slot is free */

static uint32_t make_batch(const char *test_name_, struct rig *r, struct play *plays, uint32_t n_slots, struct batch_item *items) {
    uint32_t n_items = 0, room = BATCH;
    for (seq_id s = 0; s < n_slots && room; s++) {
        struct play *p = &plays[s];
        if (p->text < 0) {
            *p = (struct play){ .text = (int)rnd(r, N_TEXTS) };
            CHECK(engine_ops()->kv_reserve(r->en, s, r->n_texts[p->text]) == 0);
        } else if (rnd(r, 4) == 0) {
            continue;
        }
        uint32_t left = r->n_texts[p->text] - p->pos, n = rnd(r, 3) ? 1 : 1 + rnd(r, 30);
        n = n > left ? left : n;
        n = n > room ? room : n;
        items[n_items++] = item_of(r, p->text, s, p->pos, n);
        room -= n;
    }
    return n_items;
}

static uint32_t sum_tokens(const struct batch_item *items, uint32_t n) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += items[i].n_tokens;
    }
    return sum;
}

/* Moves on; checks each drawn token. Failed items stay where they were. */
static uint32_t check_batch(const char *test_name_, struct rig *r, struct play *plays, const struct batch_item *items, uint32_t n, struct step_item *outcome) {
    struct kern_sampled drawn[N_SLOTS];
    struct step_out out = { .sampled = drawn, .items = outcome };
    uint32_t n_wrong = 0;
    CHECK(engine_ops()->step(r->en, &(struct batch){ items, n, sum_tokens(items, n) }, &out) == 0);
    for (uint32_t i = 0; i < n; i++) {
        struct play *p = &plays[items[i].seq];
        if (outcome[i].status) {
            continue;
        }
        p->pos += items[i].n_tokens;
        n_wrong += !same(&drawn[i], &r->truth[p->text][p->pos - 1]);
        if (p->pos == r->n_texts[p->text]) {
            engine_ops()->kv_free(r->en, items[i].seq);
            p->text = -1;
        }
    }
    return n_wrong;
}

static uint64_t all_but_experts(const struct engine_memory *m) {
    return m->total - m->experts;
}

/* Any budget from the least to all. */
static int resize_randomly(struct rig *r, const struct engine_memory *m) {
    uint64_t span = m->experts_all - m->experts_min, experts = m->experts_min + span * rnd(r, 101) / 100;
    return engine_ops()->resize(r->en, all_but_experts(m) + experts, NULL);
}

static void random_steps(const char *test_name_, struct rig *r, const struct engine_opts *o, bool resize, int n_steps) {
    struct play plays[N_SLOTS];
    struct batch_item items[N_SLOTS];
    struct step_item outcome[N_SLOTS];
    struct engine_memory m;
    uint32_t n_slots = 1 + rnd(r, N_SLOTS);
    CHECK(engine_plan_memory(o, &m, NULL) == 0 && m.experts > 0);
    CHECK(rig_engine(r, o) == 0);
    for (seq_id s = 0; s < N_SLOTS; s++) {
        plays[s] = (struct play){ .text = -1 };
    }
    for (int step = 0; step < n_steps; step++) {
        uint32_t n = make_batch(test_name_, r, plays, n_slots, items);
        if (resize && step % 4 == 1) {
            CHECK(resize_randomly(r, &m) == 0);
        }
        CHECKF(n == 0 || check_batch(test_name_, r, plays, items, n, outcome) == 0, "step %d, policy %s, %llu of %llu bytes", step,
               policy_name(o->policy), (unsigned long long)m.experts, (unsigned long long)m.experts_all);
        for (uint32_t i = 0; i < n; i++) {
            CHECK(outcome[i].status == 0);
        }
    }
    engine_close(r->en);
    r->en = NULL;
}

static void every_setting(const char *test_name_, const struct tiny_model *model, bool repack, bool packed, int n_steps) {
    static const uint32_t shares[] = { 10, 25, 50, 100 };
    struct rig *r = malloc(sizeof *r);
    CHECK(rig_open(r, model, repack, packed) == 0);
    struct engine_opts o = r->o;
    o.experts = ENGINE_EXPERTS_STREAM;
    for (int share = 0; share < 4; share++) {
        for (int policy = 0; policy < OFFLOAD_N_POLICIES; policy++) {
            for (int prefetch = 0; prefetch < 2; prefetch++) {
                o.policy = (enum offload_policy)policy;
                o.prefetch = prefetch;
                o.io = rnd(r, 2) ? OFFLOAD_IO_THREADS : OFFLOAD_IO_AUTO;
                o.queue_depth = 1 + rnd(r, 8);
                o.expert_bytes = offload_all_bytes(r->model, repack) * shares[share] / 100;
                o.expert_bytes = o.expert_bytes < offload_min_bytes(r->model, repack) ? offload_min_bytes(r->model, repack) : o.expert_bytes;
                random_steps(test_name_, r, &o, policy == 3, n_steps);
            }
        }
    }
    rig_close(r);
    free(r);
}

TEST(every_setting_repacked) { every_setting(test_name_, &MODEL, true, false, 32); }
TEST(every_setting_as_in_the_file) { every_setting(test_name_, &MODEL, false, false, 16); }
TEST(every_setting_of_a_packed_model) { every_setting(test_name_, &MODEL, true, true, 16); }

TEST(odd_formats) {
    struct tiny_model m = MODEL;
    m.n_layers = 2;
    m.gate = DTYPE_F32; /* never packed */
    m.down = DTYPE_Q4_1;
    every_setting(test_name_, &m, true, false, 16);
    every_setting(test_name_, &m, true, true, 8);
}

/* ---- an expert that cannot be read ---- */

/* Reads at once, and refuses every span of one expert while `broken`. */
struct bad_disk {
    struct offload_disk disk;
    int fd;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct disk_done done[DISK_MAX_DEPTH];
    uint32_t n_done;
    bool woken;
    atomic_bool broken;
    uint64_t from[3], to[3]; /* gate, up, down of that expert */
};

static bool touches(const struct bad_disk *d, const struct disk_read *r) {
    for (int i = 0; i < 3; i++) {
        if (r->offset < d->to[i] && r->offset + r->need > d->from[i]) {
            return true;
        }
    }
    return false;
}

static int bad_submit(void *self, const struct disk_read *r) {
    struct bad_disk *d = self;
    bool broken = atomic_load(&d->broken) && touches(d, r);
    bool good = !broken && pread(d->fd, r->to, r->n_bytes, (off_t)r->offset) >= (ssize_t)r->need;
    pthread_mutex_lock(&d->mutex);
    int st = d->n_done == DISK_MAX_DEPTH ? ST_QUEUE_FULL : 0;
    if (!st) {
        d->done[d->n_done++] = (struct disk_done){ .tag = r->tag, .status = good ? 0 : ST_IO };
    }
    pthread_mutex_unlock(&d->mutex);
    return st;
}

static void bad_cancel(void *self, uint32_t tag) { (void)self, (void)tag; }

static void bad_wake(void *self) {
    struct bad_disk *d = self;
    pthread_mutex_lock(&d->mutex);
    d->woken = true;
    pthread_cond_signal(&d->changed);
    pthread_mutex_unlock(&d->mutex);
}

static uint32_t bad_complete(void *self, struct disk_done *done, uint32_t cap, uint64_t timeout_ns) {
    struct bad_disk *d = self;
    struct timespec until;
    uint32_t n = 0;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)(timeout_ns / 1000000000 < 10 ? timeout_ns / 1000000000 : 10);
    pthread_mutex_lock(&d->mutex);
    while (timeout_ns && !d->n_done && !d->woken && !pthread_cond_timedwait(&d->changed, &d->mutex, &until)) {
    }
    for (; n < cap && d->n_done; n++) {
        done[n] = d->done[--d->n_done];
    }
    d->woken = false;
    pthread_mutex_unlock(&d->mutex);
    return n;
}

static uint64_t bad_now(void *self) {
    (void)self;
    return clock_mono_ns();
}

static int bad_open(struct bad_disk *d, const struct model *m, uint32_t layer, uint32_t expert) {
    struct expert x;
    expert_bank_get(m, layer, expert, &x);
    const struct expert_matrix *all[3] = { &x.gate, &x.up, &x.down };
    *d = (struct bad_disk){ .fd = open(gguf_file_path(model_gguf(m), 0), O_RDONLY | O_CLOEXEC) };
    d->disk = (struct offload_disk){ .submit = bad_submit, .cancel = bad_cancel, .complete = bad_complete, .wake = bad_wake,
                                     .now_ns = bad_now, .self = d };
    pthread_mutex_init(&d->mutex, NULL);
    pthread_cond_init(&d->changed, NULL);
    for (int i = 0; i < 3; i++) { /* inside the expert: pages at its ends are its neighbours' too */
        d->from[i] = (all[i]->file_offset + 4095) / 4096 * 4096;
        d->to[i] = d->from[i] + 1;
    }
    return d->fd < 0 ? -1 : 0;
}

static void bad_close(struct bad_disk *d) {
    close(d->fd);
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->mutex);
}

/* Experts of several pages, so that one can be broken alone. */
static const struct tiny_model LARGE = {
    .arch = "qwen3moe", .n_layers = 3, .n_embd = 256, .n_vocab = N_VOCAB, .n_ctx = 256, .n_heads = 4, .n_kv_heads = 2, .head_dim = 32,
    .ff = 128, .n_experts = 16, .n_used = 2, .attn = DTYPE_Q8_0, .gate = DTYPE_Q8_0, .down = DTYPE_Q8_0, .head = DTYPE_Q8_0, .seed = 5,
};

enum { BAD_LAYER = 1, BAD_EXPERT = 6 };

/* Each text alone, then all in one batch: the same ones fail, naming the expert, the others draw what is right; those that
 * failed can be run again as soon as the disk is well. */
static void check_failures(const char *test_name_, struct rig *r, struct bad_disk *d) {
    const struct engine_ops *ops = engine_ops();
    struct batch_item items[N_TEXTS];
    struct step_item alone[N_TEXTS], outcome[N_TEXTS];
    struct kern_sampled drawn[N_TEXTS];
    uint32_t n_failed = 0;
    atomic_store(&d->broken, true);
    for (int t = 0; t < N_TEXTS; t++) {
        struct step_out out = { .sampled = drawn, .items = &alone[t] };
        items[t] = item_of(r, t, (seq_id)t, 0, 1 + (uint32_t)t % 3);
        CHECK(ops->kv_reserve(r->en, (seq_id)t, 64) == 0);
        CHECK(ops->step(r->en, &(struct batch){ &items[t], 1, items[t].n_tokens }, &out) == 0);
        n_failed += alone[t].status != 0;
        ops->kv_free(r->en, (seq_id)t);
        CHECK(ops->kv_reserve(r->en, (seq_id)t, 64) == 0);
    }
    CHECKF(n_failed > 0 && n_failed < N_TEXTS, "%u texts need the expert: choose another seed", n_failed);
    struct step_out out = { .sampled = drawn, .items = outcome };
    CHECK(ops->step(r->en, &(struct batch){ items, N_TEXTS, sum_tokens(items, N_TEXTS) }, &out) == 0);
    for (int t = 0; t < N_TEXTS; t++) {
        CHECK(outcome[t].status == alone[t].status);
        CHECK(outcome[t].status == 0 || (outcome[t].status == ST_IO && outcome[t].layer == BAD_LAYER && outcome[t].expert == BAD_EXPERT));
        CHECK(outcome[t].status || same(&drawn[t], &r->truth[t][items[t].n_tokens - 1]));
    }
    atomic_store(&d->broken, false);
    for (int t = 0; t < N_TEXTS; t++) {
        struct step_out again = { .sampled = drawn, .items = outcome };
        items[t] = item_of(r, t, (seq_id)t, outcome[t].status ? 0 : items[t].n_tokens, outcome[t].status ? items[t].n_tokens : 1);
        CHECK(ops->step(r->en, &(struct batch){ &items[t], 1, items[t].n_tokens }, &again) == 0);
        CHECK(again.items[0].status == 0 && same(&drawn[0], &r->truth[t][items[t].pos + items[t].n_tokens - 1]));
    }
}

TEST(unreadable_expert_fails_only_those_who_need_it) {
    struct bad_disk d;
    struct rig *r = malloc(sizeof *r);
    CHECK(rig_open(r, &LARGE, true, false) == 0);
    CHECK(bad_open(&d, r->model, BAD_LAYER, BAD_EXPERT) == 0);
    struct engine_opts o = r->o;
    o.experts = ENGINE_EXPERTS_STREAM;
    o.expert_bytes = offload_min_bytes(r->model, true) * 2;
    o.disk = &d.disk;
    CHECK(rig_engine(r, &o) == 0);
    check_failures(test_name_, r, &d);
    rig_close(r);
    bad_close(&d);
    free(r);
}

/* Without a place for the outcome of each item, the step says it. */
TEST(failure_without_items_is_the_status_of_the_step) {
    struct bad_disk d;
    struct kern_sampled drawn;
    uint32_t n_failed = 0;
    struct rig *r = malloc(sizeof *r);
    CHECK(rig_open(r, &LARGE, true, false) == 0);
    CHECK(bad_open(&d, r->model, BAD_LAYER, BAD_EXPERT) == 0);
    struct engine_opts o = r->o;
    o.experts = ENGINE_EXPERTS_STREAM;
    o.disk = &d.disk;
    CHECK(rig_engine(r, &o) == 0);
    atomic_store(&d.broken, true);
    for (int t = 0; t < N_TEXTS; t++) {
        struct batch_item it = item_of(r, t, 0, 0, 1 + (uint32_t)t % 3);
        CHECK(engine_ops()->kv_reserve(r->en, 0, 64) == 0);
        int st = engine_ops()->step(r->en, &(struct batch){ &it, 1, it.n_tokens }, &(struct step_out){ .sampled = &drawn });
        CHECK(st == 0 || st == ST_IO);
        n_failed += st == ST_IO;
        engine_ops()->kv_free(r->en, 0);
    }
    CHECK(n_failed > 0 && n_failed < N_TEXTS);
    rig_close(r);
    bad_close(&d);
    free(r);
}

int main(void) {
    log_setup(LOG_ERROR, LOG_TEXT);
    RUN(every_setting_repacked);
    RUN(every_setting_as_in_the_file);
    RUN(every_setting_of_a_packed_model);
    RUN(odd_formats);
    RUN(unreadable_expert_fails_only_those_who_need_it);
    RUN(failure_without_items_is_the_status_of_the_step);
    return test_failed_;
}
