/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes GGUF bytes in memory for the tests, valid by default; any piece can be made hostile by giving raw bytes or
 * raw counts. Uses malloc directly: the fail-after hook of base/alloc must hit the code under test only. */
#ifndef MOED_TESTS_GGUF_BUILD_H
#define MOED_TESTS_GGUF_BUILD_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf.h"

struct bytes {
    unsigned char *p;
    size_t n, cap;
};

struct gguf_build {
    struct bytes kv, info, data;
    uint64_t n_keys, n_tensors;  /* what the header will claim */
    uint32_t version;            /* 3 unless changed           */
    uint64_t align;              /* padding of tensor data; write general.alignment yourself */
    const char *drop;            /* a key or tensor of this name is left out */
};

static inline void put(struct bytes *b, const void *p, size_t n) {
    if (b->n + n + 1 > b->cap) b->p = realloc(b->p, b->cap = 2 * (b->n + n) + 64);
    if (n) memcpy(b->p + b->n, p, n);
    b->n += n;
}
static inline void put_u32(struct bytes *b, uint32_t v) { put(b, &v, sizeof v); }
static inline void put_u64(struct bytes *b, uint64_t v) { put(b, &v, sizeof v); }
static inline void put_str(struct bytes *b, const char *s) {
    put_u64(b, strlen(s));
    put(b, s, strlen(s));
}

static inline void build_init(struct gguf_build *b) { *b = (struct gguf_build){ .version = 3, .align = 32 }; }

static inline bool build_dropped(const struct gguf_build *b, const char *name) { return b->drop && !strcmp(b->drop, name); }

/* A key with any type id and any value bytes. */
static inline void build_raw(struct gguf_build *b, const char *key, uint32_t type, const void *value, size_t n) {
    if (build_dropped(b, key)) return;
    put_str(&b->kv, key);
    put_u32(&b->kv, type);
    put(&b->kv, value, n);
    b->n_keys++;
}
static inline void build_u32(struct gguf_build *b, const char *key, uint32_t v) { build_raw(b, key, GGUF_U32, &v, 4); }
static inline void build_f32(struct gguf_build *b, const char *key, float v) { build_raw(b, key, GGUF_F32, &v, 4); }
static inline void build_bool(struct gguf_build *b, const char *key, uint8_t v) { build_raw(b, key, GGUF_BOOL, &v, 1); }
static inline void build_str(struct gguf_build *b, const char *key, const char *s) {
    struct bytes v = { 0 };
    put_str(&v, s);
    build_raw(b, key, GGUF_STRING, v.p, v.n);
    free(v.p);
}
static inline void build_array(struct gguf_build *b, const char *key, uint32_t elem, uint64_t n, const void *data, size_t n_bytes) {
    struct bytes v = { 0 };
    put_u32(&v, elem);
    put_u64(&v, n);
    put(&v, data, n_bytes);
    build_raw(b, key, GGUF_ARRAY, v.p, v.n);
    free(v.p);
}
static inline void build_strings(struct gguf_build *b, const char *key, uint64_t n, const char *const *s) {
    struct bytes v = { 0 };
    for (uint64_t i = 0; i < n; i++) put_str(&v, s[i]);
    build_array(b, key, GGUF_STRING, n, v.p, v.n);
    free(v.p);
}

/* A row of the tensor table with any numbers; adds no data. */
static inline void build_info(struct gguf_build *b, const char *name, uint32_t n_dims, const uint64_t *ne, uint32_t type, uint64_t offset) {
    if (build_dropped(b, name)) return;
    put_str(&b->info, name);
    put_u32(&b->info, n_dims);
    for (uint32_t i = 0; i < n_dims; i++) put_u64(&b->info, ne[i]);
    put_u32(&b->info, type);
    put_u64(&b->info, offset);
    b->n_tensors++;
}

/* A valid tensor; every byte of its data is `fill`. Trailing zero dimensions are left out. */
static inline void build_tensor(struct gguf_build *b, const char *name, uint32_t type, uint64_t ne0, uint64_t ne1, uint64_t ne2, int fill) {
    const uint64_t ne[3] = { ne0, ne1, ne2 };
    if (build_dropped(b, name)) return;
    build_info(b, name, ne2 ? 3 : ne1 ? 2 : 1, ne, type, b->data.n);
    size_t n = dtype_row_bytes(dtype_info(type), ne0) * (ne1 ? ne1 : 1) * (ne2 ? ne2 : 1);
    size_t padded = (n + b->align - 1) / b->align * b->align;
    unsigned char *data = calloc(padded, 1);
    memset(data, fill, n);
    put(&b->data, data, padded);
    free(data);
}

/* The whole file; the caller frees .p. The builder is empty afterwards. */
static inline struct bytes build_finish(struct gguf_build *b) {
    struct bytes f = { 0 };
    put(&f, "GGUF", 4);
    put_u32(&f, b->version);
    put_u64(&f, b->n_tensors);
    put_u64(&f, b->n_keys);
    put(&f, b->kv.p, b->kv.n);
    put(&f, b->info.p, b->info.n);
    while (f.n % b->align) put(&f, "", 1);
    put(&f, b->data.p, b->data.n);
    free(b->kv.p);
    free(b->info.p);
    free(b->data.p);
    build_init(b);
    return f;
}

/* xorshift64*: the same sequence everywhere. */
static inline uint64_t test_random(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 2685821657736338717u;
}

/* Reads every key and the ends of every tensor, so that ASan sees a pointer that leaves the file. Returns a sum. */
static inline uint64_t gguf_touch(const struct gguf *g) {
    uint64_t sum = gguf_version(g) + gguf_n_files(g) + gguf_total_bytes(g);
    for (int k = 0; k < gguf_n_keys(g); k++) {
        const char *key = gguf_key(g, k);
        enum gguf_type elem = gguf_key_type(g, k);
        uint64_t n = 1;
        uint32_t u;
        float f;
        bool t;
        struct gguf_str s;
        sum += (uint64_t)(gguf_find(g, key) == k);
        gguf_get_array(g, key, &elem, &n, NULL);
        for (uint64_t i = 0; i < n; i++) {
            int64_t v = 0;
            s = gguf_array_str(g, k, i);
            if (s.len) sum += (unsigned char)s.s[0] + (unsigned char)s.s[s.len - 1];
            gguf_array_i64(g, k, i, &v);
            sum += (uint64_t)v + (gguf_array_f32(g, k, i) > 0);
        }
        if (!gguf_get_u32(g, key, &u, NULL)) sum += u;
        if (!gguf_get_f32(g, key, &f, NULL)) sum += f > 0;
        if (!gguf_get_bool(g, key, &t, NULL)) sum += t;
        if (!gguf_get_str(g, key, &s, NULL)) sum += s.len;
    }
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct tensor *t = gguf_tensor(g, i);
        const unsigned char *p = t->data;
        sum += p[0] + p[t->n_bytes - 1] + (uint64_t)(gguf_find_tensor(g, t->name) == t);
    }
    return sum;
}

#endif
