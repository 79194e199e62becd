/* SPDX-License-Identifier: Apache-2.0
 *
 * Packed models: what is written (bit for bit what kern_pack_rows makes of the source), what is refused, what survives a
 * failing disk, and that every field of a hostile one is named. Engine side: engine_pack.c. */
#include "tests/unit/test.h"
#include "tests/unit/tiny_gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/pool.h"
#include "kernels/pack.h"
#include "model/expert_pack.h"
#include "model/model.h"
#include "offload/pack.h"

static const struct tiny_model SMALL = {
    .arch = "qwen3moe", .n_layers = 2, .n_embd = 256, .n_vocab = 64, .n_ctx = 64, .n_heads = 2, .n_kv_heads = 1, .head_dim = 64,
    .ff = 256, .n_experts = 4, .n_used = 2, .attn = DTYPE_Q8_0, .gate = DTYPE_Q4_K, .down = DTYPE_Q6_K, .head = DTYPE_F16, .seed = 7,
};

struct bytes { unsigned char *p; size_t n; };

static struct bytes slurp(const char *path) {
    struct bytes b = { 0 };
    FILE *f = fopen(path, "rb");
    if (f) {
        fseek(f, 0, SEEK_END);
        b.n = (size_t)ftell(f);
        rewind(f);
        b.p = malloc(b.n + 1);
        b.n = fread(b.p, 1, b.n, f);
        fclose(f);
    }
    return b;
}

static void spit(const char *path, const void *p, size_t n) {
    FILE *f = fopen(path, "wb");
    if (f) {
        fwrite(p, 1, n, f);
        fclose(f);
    }
}

static bool exists(const char *path) { return access(path, F_OK) == 0; }

/* A source and its packed file in /tmp; both gone after clean_up. */
struct rig {
    char source[64], out[80], partial[96], journal[104];
    struct pool *pool;
    struct err e;
};

static bool set_up_in(struct rig *r, const struct tiny_model *m, const char *folder) {
    *r = (struct rig){ 0 };
    if (tiny_write(m, r->source) || pool_open(&r->pool, &(struct pool_opts){ .n_threads = 2 }, &r->e)) {
        return false;
    }
    snprintf(r->out, sizeof r->out, "%s%s.out", folder, strrchr(r->source, '/'));
    snprintf(r->partial, sizeof r->partial, "%s.partial", r->out);
    snprintf(r->journal, sizeof r->journal, "%s.journal", r->partial);
    return true;
}

static bool set_up(struct rig *r, const struct tiny_model *m) { return set_up_in(r, m, "/tmp"); }

/* Where syncs cost nothing, if there is such a place. Its file system knows no O_DIRECT: the other way of writing. */
static bool set_up_in_memory(struct rig *r, const struct tiny_model *m) {
    return set_up_in(r, m, access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
}

static void clean_up(struct rig *r) {
    pool_close(r->pool);
    unlink(r->source);
    unlink(r->out);
    unlink(r->partial);
    unlink(r->journal);
}

static int pack_with(struct rig *r, bool force, ssize_t (*write_at)(int, const void *, size_t, off_t)) {
    struct model *m;
    r->e.text[0] = '\0';
    int st = model_open(&m, r->source, &r->e);
    if (st) {
        return st;
    }
    const struct offload_pack_opts o = { .model = m, .out = r->out, .force = force, .pool = r->pool, .write_at = write_at };
    st = offload_pack(&o, &r->e);
    model_close(m);
    return st;
}
static int pack(struct rig *r) { return pack_with(r, false, NULL); }

/* model_open, then offload_pack_verify of OUT. */
static int verify(struct rig *r) {
    struct model *m;
    r->e.text[0] = '\0';
    int st = model_open(&m, r->out, &r->e);
    if (!st) {
        st = offload_pack_verify(m, r->pool, NULL, NULL, &r->e);
        model_close(m);
    }
    return st;
}

static bool part_equals(const struct expert_matrix *source, const struct expert_matrix *packed) {
    const size_t group = KERN_PACK_ROWS * source->row_bytes;
    if (source->dtype != packed->dtype || source->n_in != packed->n_in || source->n_out != packed->n_out ||
        source->row_bytes != packed->row_bytes || source->n_bytes != packed->n_bytes) {
        return false;
    }
    if (!kern_pack_fits(source->dtype, source->n_out)) {
        return memcmp(source->data, packed->data, source->n_bytes) == 0;
    }
    unsigned char *want = malloc(group);
    bool same = true;
    for (size_t i = 0; same && i < source->n_bytes; i += group) {
        kern_pack_rows(source->dtype, (const unsigned char *)source->data + i, source->n_in, want);
        same = memcmp(want, (const unsigned char *)packed->data + i, group) == 0;
    }
    free(want);
    return same;
}

static void check_records(const char *test_name_, const struct model *a, const struct model *b) {
    CHECK(!expert_bank_is_packed(a) && expert_bank_is_packed(b));
    uint64_t end = 0;
    for (uint32_t l = 0; l < model_hparams(a)->n_layers; l++) {
        for (uint32_t i = 0; i < model_hparams(a)->n_experts; i++) {
            struct expert x, y;
            struct expert_record rec;
            expert_bank_get(a, l, i, &x);
            expert_bank_get(b, l, i, &y);
            expert_bank_record(b, l, i, &rec);
            CHECK(part_equals(&x.gate, &y.gate) && part_equals(&x.up, &y.up) && part_equals(&x.down, &y.down));
            CHECK(rec.file_offset % 4096 == 0 && rec.n_bytes % 4096 == 0 && (end == 0 || rec.file_offset == end));
            CHECK(rec.gate_at % 64 == 0 && rec.up_at % 64 == 0 && rec.down_at % 64 == 0);
            CHECK(y.gate.file_offset == rec.file_offset + rec.gate_at && y.up.file_offset == rec.file_offset + rec.up_at);
            CHECK(y.down.file_offset == rec.file_offset + rec.down_at && rec.down_at + y.down.n_bytes <= rec.n_bytes);
            end = rec.file_offset + rec.n_bytes;
        }
    }
}

/* Keys and dense tensors are the source's. */
static void check_rest(const char *test_name_, const struct gguf *a, const struct gguf *b) {
    for (int i = 0; i < gguf_n_keys(a); i++) {
        size_t n, m;
        const void *x = gguf_key_entry(a, i, &n);
        int j = gguf_find(b, gguf_key(a, i));
        CHECK(j >= 0);
        const void *y = gguf_key_entry(b, j, &m);
        CHECK(n == m && !memcmp(x, y, n));
    }
    for (uint64_t i = 0; i < gguf_n_tensors(a); i++) {
        const struct tensor *t = gguf_tensor(a, i), *u = gguf_find_tensor(b, t->name);
        CHECK(!u == !!strstr(t->name, "_exps"));
        CHECK(!u || (u->dtype == t->dtype && u->n_dims == t->n_dims && !memcmp(u->ne, t->ne, sizeof t->ne) &&
                     u->n_bytes == t->n_bytes && !memcmp(u->data, t->data, t->n_bytes)));
    }
}

static void check_pack(const char *test_name_, const struct tiny_model *tm) {
    struct rig r;
    struct model *a, *b;
    CHECK(set_up(&r, tm));
    CHECKF(pack(&r) == 0, "%s", r.e.text);
    CHECK(exists(r.out) && !exists(r.partial) && !exists(r.journal));
    CHECKF(verify(&r) == 0, "%s", r.e.text);
    CHECKF(model_open(&a, r.source, &r.e) == 0 && model_open(&b, r.out, &r.e) == 0, "%s", r.e.text);
    check_records(test_name_, a, b);
    check_rest(test_name_, model_gguf(a), model_gguf(b));
    CHECK(!model_layer(b, 0)->gate_exps->data && model_layer(b, 1)->down_exps->n_bytes == model_layer(a, 1)->down_exps->n_bytes);
    CHECK(!strcmp(model_layer(b, 1)->up_exps->name, "blk.1.ffn_up_exps.weight"));
    model_close(a);
    model_close(b);
    clean_up(&r);
}

TEST(every_format) {
    static const enum dtype formats[] = { DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_Q8_0,
                                          DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K, DTYPE_IQ4_NL, DTYPE_IQ4_XS, DTYPE_MXFP4 };
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        struct tiny_model m = SMALL;
        m.gate = formats[i];
        m.down = formats[(i + 5) % (sizeof formats / sizeof formats[0])];
        check_pack(test_name_, &m);
    }
}

/* Several chunks and batches, with rows that are no multiple of a chunk. */
TEST(larger_than_a_chunk) {
    struct tiny_model m = SMALL;
    m.n_embd = 2048 + 256;
    m.ff = 1024 + 256;
    m.gate = DTYPE_Q4_0;
    m.down = DTYPE_F16;
    m.n_experts = 3;
    check_pack(test_name_, &m);
}

TEST(refused) {
    struct rig r;
    struct tiny_model dense = SMALL;
    dense.arch = "llama";
    dense.n_experts = 0;
    CHECK(set_up(&r, &dense));
    CHECK(pack(&r) == ST_INVALID && strstr(r.e.text, "no experts to pack") && !exists(r.out) && !exists(r.partial));
    clean_up(&r);

    CHECK(set_up(&r, &SMALL));
    CHECK(pack(&r) == 0);
    struct bytes first = slurp(r.out);
    CHECK(pack(&r) == ST_INVALID && strstr(r.e.text, "exists already; --force") && !exists(r.partial));
    CHECK(pack_with(&r, true, NULL) == 0);
    struct bytes again = slurp(r.out);
    CHECK(first.n == again.n && !memcmp(first.p, again.p, first.n));
    free(first.p);
    free(again.p);

    char keep[sizeof r.source];
    memcpy(keep, r.source, sizeof keep);
    rename(r.out, r.source);
    CHECK(pack(&r) == ST_INVALID && strstr(r.e.text, "is packed already"));
    snprintf(r.out, sizeof r.out, "%s", r.source);
    CHECK(tiny_write(&SMALL, r.source) == 0); /* another name */
    snprintf(r.out, sizeof r.out, "%s", r.source);
    CHECK(pack_with(&r, true, NULL) == ST_INVALID && strstr(r.e.text, "is the model itself"));
    unlink(keep);
    snprintf(r.out, sizeof r.out, "/nonexistent/x");
    CHECK(pack(&r) == ST_IO && strstr(r.e.text, "cannot open its folder"));
    clean_up(&r);
}

/* ---- a failing disk ---- */

static struct { _Atomic int left; int error; } fault_;

static ssize_t faulty_write(int fd, const void *p, size_t n, off_t at) {
    if (fault_.left-- <= 0) {
        errno = fault_.error;
        return -1;
    }
    return pwrite(fd, p, n > 1 << 16 ? 1 << 16 : n, at); /* short, too */
}

/* Fails at the first, second, ... write; each run goes on where the one before stopped. */
TEST(resumes_after_any_write) {
    struct rig r;
    CHECK(set_up_in_memory(&r, &SMALL));
    CHECK(pack(&r) == 0);
    struct bytes want = slurp(r.out);
    for (int error = 0; error < 2; error++) {
        bool finished = false;
        for (int left = 0; !finished && left < 64; left++) {
            unlink(r.out);
            fault_.left = left;
            fault_.error = error ? EIO : ENOSPC;
            int st = pack_with(&r, false, faulty_write);
            finished = st == 0;
            CHECKF(finished || (st == ST_IO && strstr(r.e.text, strerror(fault_.error)) && strstr(r.e.text, "resume")), "%d: %s", st, r.e.text);
            CHECK(exists(r.partial) == !finished && exists(r.out) == finished);
        }
        struct bytes got = slurp(r.out);
        CHECK(finished && got.n == want.n && !memcmp(got.p, want.p, want.n));
        free(got.p);
    }
    free(want.p);
    clean_up(&r);
}

/* What a run finds of another one is used only if it is about the same source. */
TEST(foreign_leftovers_are_not_used) {
    struct rig r;
    CHECK(set_up_in_memory(&r, &SMALL));
    CHECK(pack(&r) == 0);
    struct bytes want = slurp(r.out), journal = { 0 };
    unsigned char *junk = malloc(want.n);
    memset(junk, 0x5a, want.n);
    for (int kind = 0; kind < 4; kind++) {
        unlink(r.out);
        fault_.left = 6;
        fault_.error = ENOSPC;
        CHECK(pack_with(&r, false, faulty_write) == ST_IO);
        if (kind == 0) { /* journal of a source that has another time */
            spit(r.partial, junk, want.n);
            CHECK(utimensat(AT_FDCWD, r.source, (struct timespec[2]){ { 1, 0 }, { 1, 0 } }, 0) == 0);
        } else if (kind == 1) { /* torn tail of the journal: the units before it stay done */
            journal = slurp(r.journal);
            CHECK(journal.n >= 48);
            memcpy(junk, journal.p, journal.n);
            spit(r.journal, junk, journal.n + 100);
        } else if (kind == 2) { /* no journal */
            spit(r.partial, junk, want.n);
            unlink(r.journal);
        } else { /* a partial of another size */
            spit(r.partial, junk, want.n - 4096);
        }
        CHECKF(pack(&r) == 0, "kind %d: %s", kind, r.e.text);
        if (kind) {
            struct bytes got = slurp(r.out);
            CHECKF(got.n == want.n && !memcmp(got.p, want.p, want.n), "kind %d", kind);
            free(got.p);
        }
        CHECKF(verify(&r) == 0, "kind %d: %s", kind, r.e.text);
    }
    free(journal.p);
    free(junk);
    free(want.p);
    clean_up(&r);
}

/* ---- hostile files ---- */

/* Where the value of a key begins, of an array its first element. */
static size_t value_at(const struct bytes *b, const char *key, bool array) {
    const unsigned char *at = memmem(b->p, b->n, key, strlen(key));
    return at ? (size_t)(at - b->p) + strlen(key) + 4 + (array ? 12 : 0) : 0;
}

static void seal(struct bytes *b) {
    struct gguf *g;
    size_t n = 0, at = value_at(b, EXPERT_PACK_KEY_INDEX_CHECKSUM, false);
    if (at && !gguf_open_memory(&g, b->p, b->n, NULL)) {
        gguf_head(g, 0, &n);
        gguf_close(g);
        uint64_t sum = expert_pack_index_checksum(b->p, n, at);
        memcpy(b->p + at, &sum, sizeof sum);
    }
}

TEST(every_field_is_named) {
    static const struct { const char *key; bool array; size_t at, n; uint64_t value; int status; const char *text; uint64_t count; } cases[] = {
        { EXPERT_PACK_KEY_VERSION, false, 0, 4, 2, ST_UNSUPPORTED, "is 2, expected 1", 0 },
        { EXPERT_PACK_KEY_ALIGN, false, 0, 4, 512, ST_UNSUPPORTED, "is 512, expected 4096", 0 },
        { EXPERT_PACK_KEY_SHAPE, true, 4, 4, 128, ST_INVALID, "is 256, 128, 4, expected 256, 256, 4", 0 },
        { EXPERT_PACK_KEY_SHAPE, true, -12, 4, GGUF_U16, ST_INVALID, "has 6 elements, expected 3", 6 },
        { EXPERT_PACK_KEY_LAYERS, true, 4, 4, 7, ST_INVALID, "element 1 is 7, expected 1", 0 },
        { EXPERT_PACK_KEY_TYPES, true, 8, 4, 99, ST_UNSUPPORTED, "type of down of layer 0 is 99", 0 },
        { EXPERT_PACK_KEY_TYPES, true, 8, 4, DTYPE_Q8_0, ST_INVALID, "record_bytes': element 0 is", 0 },
        { EXPERT_PACK_KEY_RECORD_BYTES, true, 8, 8, 4096, ST_INVALID, "element 1 is 4096, expected", 0 },
        { EXPERT_PACK_KEY_RECORD_BYTES, true, 0, 8, UINT64_MAX, ST_INVALID, "element 0 is not an integer from 0", 0 },
        { EXPERT_PACK_KEY_RECORDS_AT, false, 0, 8, 4097, ST_INVALID, "expected a multiple of 4096", 0 },
        { EXPERT_PACK_KEY_RECORDS_AT, false, 0, 8, UINT64_C(1) << 62, ST_INVALID, "expected a multiple of 4096 from", 0 },
        { EXPERT_PACK_KEY_RECORDS_AT, false, 0, 8, 8192, ST_INVALID, "bytes, expected", 0 },
        { EXPERT_PACK_KEY_CHECKSUMS, true, -12, 4, GGUF_U16, ST_INVALID, "has 32 elements of type u16, expected 8 of type i64", 32 },
        { EXPERT_PACK_KEY_CHECKSUMS, true, -12, 4, GGUF_U64, ST_INVALID, "of type u64, expected 8 of type i64", 0 },
        { EXPERT_PACK_KEY_DENSE_CHECKSUM, false, -4, 4, GGUF_F64, ST_INVALID, "dense_checksum' has type f64", 0 },
        { EXPERT_PACK_KEY_INDEX_CHECKSUM, false, -4, 4, GGUF_U64, ST_INVALID, "index_checksum' has ", 0 },
    };
    struct rig r;
    CHECK(set_up_in_memory(&r, &SMALL));
    CHECK(pack(&r) == 0);
    struct bytes good = slurp(r.out), b = { malloc(good.n), good.n };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        memcpy(b.p, good.p, b.n);
        size_t at = value_at(&b, cases[i].key, cases[i].array);
        CHECK(at);
        memcpy(b.p + at + cases[i].at, &cases[i].value, cases[i].n);
        if (cases[i].count) {
            memcpy(b.p + at - 8, &cases[i].count, 8);
        }
        seal(&b);
        spit(r.out, b.p, b.n);
        int st = verify(&r);
        CHECKF(st == cases[i].status && strstr(r.e.text, cases[i].text) && (strstr(r.e.text, "'moed.pack.") || strstr(r.e.text, "truncated")),
               "case %zu: %d %s", i, st, r.e.text);
    }
    free(b.p);
    free(good.p);
    clean_up(&r);
}

/* A key that is not there is named. The name is changed, so that the file stays well-formed. */
TEST(missing_keys) {
    static const char *const keys[] = { EXPERT_PACK_KEY_ALIGN, EXPERT_PACK_KEY_SHAPE, EXPERT_PACK_KEY_LAYERS, EXPERT_PACK_KEY_TYPES,
                                        EXPERT_PACK_KEY_RECORD_BYTES, EXPERT_PACK_KEY_RECORDS_AT, EXPERT_PACK_KEY_CHECKSUMS,
                                        EXPERT_PACK_KEY_DENSE_CHECKSUM, EXPERT_PACK_KEY_INDEX_CHECKSUM };
    struct rig r;
    CHECK(set_up_in_memory(&r, &SMALL));
    CHECK(pack(&r) == 0);
    struct bytes good = slurp(r.out), b = { malloc(good.n), good.n };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        memcpy(b.p, good.p, b.n);
        ((char *)memmem(b.p, b.n, keys[i], strlen(keys[i])))[0] = 'n';
        seal(&b);
        spit(r.out, b.p, b.n);
        char want[96];
        snprintf(want, sizeof want, "key '%s' is missing from a packed model", keys[i]);
        CHECKF(verify(&r) == ST_INVALID && strstr(r.e.text, want), "%s: %s", keys[i], r.e.text);
    }
    free(b.p);
    free(good.p);
    clean_up(&r);
}

/* Every byte of the head that is flipped is found by opening, every other by verify. */
TEST(rot_is_found) {
    struct rig r;
    CHECK(set_up_in_memory(&r, &SMALL));
    CHECK(pack(&r) == 0);
    struct bytes b = slurp(r.out);
    struct gguf *g;
    size_t head = 0;
    CHECK(gguf_open_memory(&g, b.p, b.n, NULL) == 0);
    gguf_head(g, 0, &head);
    gguf_close(g);
    for (size_t at = 0; at < b.n; at += at < head ? 13 : 40000) {
        b.p[at] ^= 0x10;
        spit(r.out, b.p, b.n);
        CHECKF(verify(&r) != 0 && r.e.text[0], "offset %zu", at);
        CHECKF(at < head || strstr(r.e.text, "corrupt"), "offset %zu: %s", at, r.e.text);
        b.p[at] ^= 0x10;
    }
    const size_t cuts[] = { 1, 4096, b.n - head, b.n - head / 2, b.n - 3 };
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        spit(r.out, b.p, b.n - cuts[i]);
        CHECKF(verify(&r) == ST_INVALID && strstr(r.e.text, "truncated"), "cut %zu: %s", cuts[i], r.e.text);
    }
    spit(r.out, b.p, b.n);
    CHECK(verify(&r) == 0);
    b.p[b.n - 4096 * 3] ^= 1;
    spit(r.out, b.p, b.n);
    CHECKF(verify(&r) == ST_INVALID && strstr(r.e.text, "layer 1, expert 3 at offset"), "%s", r.e.text);
    free(b.p);
    clean_up(&r);
}

/* Out of memory anywhere: an error, nothing leaked, and the next run ends well. */
TEST(no_memory) {
    struct rig r;
    struct mem_stats before, after;
    CHECK(set_up_in_memory(&r, &SMALL));
    mem_stats(&before);
    int st = ST_NOMEM;
    for (uint64_t n = 0; st && n < 1000; n++) {
        mem_fail_after(n);
        st = pack(&r);
        mem_fail_after(UINT64_MAX);
        mem_stats(&after);
        CHECKF(!st || (st == ST_NOMEM && r.e.text[0]), "allocation %llu: %d %s", (unsigned long long)n, st, r.e.text);
        CHECKF(after.n_live == before.n_live && after.mapped_bytes == before.mapped_bytes, "allocation %llu leaks", (unsigned long long)n);
    }
    CHECK(!st);
    st = ST_NOMEM;
    for (uint64_t n = 0; st && n < 1000; n++) {
        mem_fail_after(n);
        st = verify(&r);
        mem_fail_after(UINT64_MAX);
        mem_stats(&after);
        CHECKF(!st || (st == ST_NOMEM && r.e.text[0]), "allocation %llu: %d %s", (unsigned long long)n, st, r.e.text);
        CHECKF(after.n_live == before.n_live && after.mapped_bytes == before.mapped_bytes, "allocation %llu leaks", (unsigned long long)n);
    }
    CHECK(!st);
    clean_up(&r);
}

int main(void) {
    RUN(every_format);
    RUN(larger_than_a_chunk);
    RUN(refused);
    RUN(resumes_after_any_write);
    RUN(foreign_leftovers_are_not_used);
    RUN(every_field_is_named);
    RUN(missing_keys);
    RUN(rot_is_found);
    RUN(no_memory);
    return test_failed_;
}
