/* SPDX-License-Identifier: Apache-2.0
 *
 * The store on real files: a small model with two record sizes, every way of reading, budgets from the least to all of
 * it. What is handed out must be the model's bytes. */
#include "test.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fcntl.h>

#include "base/log.h"
#include "base/pool.h"
#include "kernels/pack.h"
#include "model/expert_bank.h"
#include "model/model.h"
#include "offload/offload.h"
#include "offload/pack.h"
#include "tiny_gguf.h"

enum { N_LAYERS = 4, N_EXPERTS = 12 };

static struct model *open_model(char *path) {
    const struct tiny_model t = {
        .arch = "qwen3moe", .n_layers = N_LAYERS, .n_embd = 64, .n_vocab = 64, .n_ctx = 64, .n_heads = 2, .n_kv_heads = 1,
        .head_dim = 32, .ff = 96, .n_experts = N_EXPERTS, .n_used = 3, .attn = DTYPE_F32, .gate = DTYPE_Q4_0,
        .down = DTYPE_Q8_0, .head = DTYPE_F32, .seed = 7,
    };
    struct model *m = NULL;
    struct err e;
    if (tiny_write(&t, path) || model_open(&m, path, &e)) {
        return NULL;
    }
    return m;
}

static bool same(const struct expert_matrix *m, const void *got, bool packed) {
    if (!packed || !kern_pack_fits(m->dtype, m->n_out)) { /* as in the model: rows of a GGUF, or a packed model */
        return !memcmp(m->data, got, m->n_bytes);
    }
    unsigned char *want = malloc(m->n_bytes);
    const size_t group = KERN_PACK_ROWS * m->row_bytes;
    for (size_t i = 0; i < m->n_bytes; i += group) {
        kern_pack_rows(m->dtype, (const char *)m->data + i, m->n_in, want + i);
    }
    const bool ok = !memcmp(want, got, m->n_bytes);
    free(want);
    return ok;
}

static bool right(const struct model *m, uint32_t layer, const struct offload_item *it, bool packed) {
    struct expert x;
    expert_bank_get(m, layer, it->expert, &x);
    return it->status == 0 && same(&x.gate, it->gate, packed) && same(&x.up, it->up, packed) && same(&x.down, it->down, packed);
}

/* One step; returns false at the first wrong thing. */
static bool step(struct offload *o, const struct model *m, uint32_t layer, const struct offload_want *wants, uint32_t n, bool packed) {
    struct offload_item items[N_EXPERTS];
    uint32_t seen = 0, got;
    if (offload_begin(o, layer, wants, n, n > 6)) {
        return false;
    }
    while ((got = offload_next(o, items, N_EXPERTS)) > 0) {
        for (uint32_t i = 0; i < got; i++) {
            if (!right(m, layer, &items[i], packed) || seen >> items[i].expert & 1) {
                return false;
            }
            seen |= 1u << items[i].expert;
        }
        offload_release(o);
    }
    return (uint32_t)__builtin_popcount(seen) == n;
}

static uint32_t pick(struct offload_want *wants, uint64_t *rng) {
    uint32_t order[N_EXPERTS], n = 1 + tiny_u32(rng) % N_EXPERTS;
    for (uint32_t i = 0; i < N_EXPERTS; i++) {
        order[i] = i;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = i + tiny_u32(rng) % (N_EXPERTS - i), x = order[j];
        order[j] = order[i];
        order[i] = x;
        wants[i] = (struct offload_want){ x, 1 };
    }
    return n;
}

static void walk(const char *test_name_, const struct model *m, enum offload_io io, bool packed, uint64_t ram) {
    struct offload *o;
    struct err e;
    uint64_t rng = ram + packed;
    struct offload_want wants[N_EXPERTS];
    const struct offload_opts opts = {
        .model = m, .ram_bytes = ram, .packed = packed, .policy = OFFLOAD_AUTO, .io = io, .queue_depth = 8,
    };
    CHECKF(offload_open(&o, &opts, &e) == 0, "%s", e.text);
    for (int i = 0; i < 200; i++) {
        uint32_t layer = tiny_u32(&rng) % N_LAYERS, n = pick(wants, &rng);
        CHECKF(step(o, m, layer, wants, n, packed), "step %d, io %d, packed %d, ram %llu", i, io, packed, (unsigned long long)ram);
    }
    struct offload_stats s;
    offload_stats(o, &s);
    CHECK(s.hits + s.misses > 200 && s.failures == 0 && s.loads + s.hits >= s.hits + s.misses && s.slot_bytes <= ram);
    CHECK(ram < offload_all_bytes(m, packed) || (s.evictions == 0 && s.loads <= N_LAYERS * N_EXPERTS));
    offload_close(o);
}

static void walk_budgets(const char *test_name_, const struct model *m, enum offload_io io, bool packed) {
    const uint64_t least = offload_min_bytes(m, packed), all = offload_all_bytes(m, packed);
    for (int percent = 0; percent <= 100; percent += 20) {
        walk(test_name_, m, io, packed, least + (all - least) * (uint64_t)percent / 100);
    }
}

/* The packed model of the same weights, in file `path`. */
static struct model *pack_model(const struct model *m, const char *path) {
    const struct pool_opts one = { .n_threads = 1 };
    struct pool *pool;
    struct model *packed = NULL;
    if (pool_open(&pool, &one, NULL)) {
        return NULL;
    }
    if (!offload_pack(&(struct offload_pack_opts){ .model = m, .out = path, .force = true, .pool = pool }, NULL)) {
        model_open(&packed, path, NULL);
    }
    pool_close(pool);
    return packed;
}

static void walk_all(const char *test_name_, enum offload_io io) {
    char path[64], packed_path[80];
    struct model *m = open_model(path);
    CHECK(m);
    snprintf(packed_path, sizeof packed_path, "%s.packed", path);
    walk_budgets(test_name_, m, io, false);
    walk_budgets(test_name_, m, io, true);
    struct model *p = pack_model(m, packed_path);
    CHECK(p);
    walk_budgets(test_name_, p, io, false);
    model_close(p);
    model_close(m);
    unlink(path);
    unlink(packed_path);
}

TEST(threads_read_the_models_bytes) { walk_all(test_name_, OFFLOAD_IO_THREADS); }
TEST(io_uring_reads_the_models_bytes) { walk_all(test_name_, OFFLOAD_IO_URING); }

/* A flipped bit on the disk fails the expert it is in, and no other. */
TEST(a_corrupt_record_is_not_handed_out) {
    char path[64], packed_path[80];
    struct model *m = open_model(path);
    CHECK(m);
    snprintf(packed_path, sizeof packed_path, "%s.packed", path);
    struct model *p = pack_model(m, packed_path);
    CHECK(p);
    struct expert_record r;
    struct offload *o;
    expert_bank_record(p, 1, 4, &r);
    const int fd = open(packed_path, O_RDWR);
    unsigned char byte;
    CHECK(fd >= 0 && pread(fd, &byte, 1, (off_t)r.file_offset + 100) == 1);
    byte ^= 4;
    CHECK(pwrite(fd, &byte, 1, (off_t)r.file_offset + 100) == 1 && fsync(fd) == 0 && close(fd) == 0);
    const struct offload_opts opts = { .model = p, .ram_bytes = offload_all_bytes(p, true), .queue_depth = 4 };
    CHECK(offload_open(&o, &opts, NULL) == 0);
    CHECK(offload_begin(o, 1, (struct offload_want[]){ { 3, 1 }, { 4, 1 }, { 5, 1 } }, 3, false) == 0);
    struct offload_item items[3];
    for (uint32_t n, n_bad = 0; (n = offload_next(o, items, 3)) > 0;) {
        for (uint32_t i = 0; i < n; i++) {
            n_bad += items[i].status == ST_IO;
            CHECK(items[i].expert == 4 ? items[i].status == ST_IO && !items[i].gate && n_bad == 1 : right(p, 1, &items[i], false));
        }
    }
    struct offload_stats s;
    offload_stats(o, &s);
    CHECK(s.failures == 1 && s.retries == 3 && s.loads == 2);
    offload_close(o);
    model_close(p);
    model_close(m);
    unlink(path);
    unlink(packed_path);
}

TEST(too_little_is_refused_with_the_need_named) {
    char path[64];
    struct model *m = open_model(path);
    struct offload *o;
    struct err e;
    CHECK(m);
    const struct offload_opts opts = { .model = m, .ram_bytes = offload_min_bytes(m, true) - 1, .packed = true };
    CHECK(offload_open(&o, &opts, &e) == ST_INVALID && !o && strstr(e.text, "needs at least"));
    model_close(m);
    unlink(path);
}

TEST(wants_that_cannot_be_are_refused) {
    char path[64];
    struct model *m = open_model(path);
    struct offload *o;
    CHECK(m);
    const struct offload_opts opts = { .model = m, .ram_bytes = offload_all_bytes(m, true), .packed = true };
    CHECK(offload_open(&o, &opts, NULL) == 0);
    CHECK(offload_begin(o, N_LAYERS, &(struct offload_want){ 0, 1 }, 1, false) == ST_INVALID);
    CHECK(offload_begin(o, 0, &(struct offload_want){ N_EXPERTS, 1 }, 1, false) == ST_INVALID);
    CHECK(offload_begin(o, 0, NULL, 0, false) == 0 && offload_next(o, NULL, 0) == 0);
    struct offload_stats s;
    offload_stats(o, &s); /* no depth was given, so the disk was probed */
    CHECK(s.queue_depth >= 1 && s.probe_bytes_per_s > 0 && s.read_bytes_per_s == s.probe_bytes_per_s);
    offload_close(o);
    model_close(m);
    unlink(path);
}

/* Last: the process cannot have io_uring back. */
TEST(threads_stand_in_where_io_uring_is_refused) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog filter = { sizeof code / sizeof code[0], code };
    char path[64];
    struct model *m = open_model(path);
    struct offload *o;
    struct offload_stats s;
    CHECK(m && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
    const struct offload_opts opts = { .model = m, .ram_bytes = offload_min_bytes(m, true), .packed = true, .queue_depth = 4 };
    CHECK(offload_open(&o, &opts, NULL) == 0);
    offload_stats(o, &s);
    CHECK(!s.uring);
    CHECK(step(o, m, 0, (struct offload_want[]){ { 3, 1 }, { 5, 1 }, { 6, 1 }, { 1, 1 }, { 2, 1 } }, 5, true));
    offload_close(o);
    model_close(m);
    unlink(path);
}

int main(void) {
    log_setup(LOG_ERROR, LOG_TEXT);
    RUN(threads_read_the_models_bytes);
    RUN(io_uring_reads_the_models_bytes);
    RUN(a_corrupt_record_is_not_handed_out);
    RUN(too_little_is_refused_with_the_need_named);
    RUN(wants_that_cannot_be_are_refused);
    RUN(threads_stand_in_where_io_uring_is_refused);
    return test_failed_;
}
