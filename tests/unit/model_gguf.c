/* SPDX-License-Identifier: Apache-2.0
 *
 * The GGUF reader: what a good file gives, what every kind of bad file is refused with, and that no truncation, bit
 * flip or failed allocation does more than return an error. Meant to run under ASan and UBSan. */
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "tests/unit/gguf_build.h"
#include "tests/unit/test.h"

/* Opens an exact-size copy, so that ASan catches a read one byte past the end. */
static int open_copy(struct gguf **g, unsigned char **copy, const unsigned char *p, size_t n, struct err *e) {
    *copy = malloc(n ? n : 1);
    if (n) memcpy(*copy, p, n);
    return gguf_open_memory(g, *copy, n, e);
}

static void add_all_types(struct gguf_build *b) {
    const int8_t i8 = -8;
    const int16_t i16 = -1600;
    const int32_t i32 = -320000, ints[3] = { 7, -7, 70000 };
    const int64_t i64 = -64000000000;
    const uint8_t u8 = 200, bools[2] = { 1, 0 };
    const uint16_t u16 = 60000;
    const uint64_t u64 = UINT64_MAX;
    const double f64 = 0.5;
    const float floats[2] = { 1.5f, -2.5f };
    const char *const words[3] = { "", "one", "two two" };
    build_raw(b, "t.u8", GGUF_U8, &u8, 1);
    build_raw(b, "t.i8", GGUF_I8, &i8, 1);
    build_raw(b, "t.u16", GGUF_U16, &u16, 2);
    build_raw(b, "t.i16", GGUF_I16, &i16, 2);
    build_u32(b, "t.u32", 4000000000u);
    build_raw(b, "t.i32", GGUF_I32, &i32, 4);
    build_raw(b, "t.u64", GGUF_U64, &u64, 8);
    build_raw(b, "t.i64", GGUF_I64, &i64, 8);
    build_f32(b, "t.f32", 0.25f);
    build_raw(b, "t.f64", GGUF_F64, &f64, 8);
    build_bool(b, "t.bool", 1);
    build_str(b, "t.str", "hello");
    build_array(b, "a.i32", GGUF_I32, 3, ints, sizeof ints);
    build_array(b, "a.f32", GGUF_F32, 2, floats, sizeof floats);
    build_array(b, "a.bool", GGUF_BOOL, 2, bools, sizeof bools);
    build_strings(b, "a.str", 3, words);
    build_array(b, "a.empty", GGUF_STRING, 0, "", 0);
    build_tensor(b, "w", DTYPE_Q8_0, 64, 3, 0, 5);
    build_tensor(b, "v", DTYPE_F32, 7, 0, 0, 6);
}

static struct bytes good_file(void) {
    struct gguf_build b;
    build_init(&b);
    add_all_types(&b);
    return build_finish(&b);
}

TEST(reads_scalars) {
    struct bytes f = good_file();
    struct gguf *g;
    struct err e;
    uint32_t u;
    float x;
    bool t;
    struct gguf_str s;
    CHECKF(gguf_open_memory(&g, f.p, f.n, &e) == 0, "%s", e.text);
    CHECK(gguf_version(g) == 3 && gguf_n_files(g) == 1 && gguf_n_keys(g) == 17 && gguf_total_bytes(g) == f.n);
    CHECK(!gguf_get_u32(g, "t.u8", &u, &e) && u == 200);
    CHECK(!gguf_get_u32(g, "t.u16", &u, &e) && u == 60000);
    CHECK(!gguf_get_u32(g, "t.u32", &u, &e) && u == 4000000000u);
    CHECK(gguf_get_u32(g, "t.i8", &u, &e) == ST_INVALID && strstr(e.text, "'t.i8' is outside 0..4294967295"));
    CHECK(gguf_get_u32(g, "t.i64", &u, &e) == ST_INVALID && gguf_get_u32(g, "t.u64", &u, &e) == ST_INVALID);
    CHECK(gguf_get_u32(g, "t.f32", &u, &e) == ST_INVALID && strstr(e.text, "has type f32, expected an integer"));
    CHECK(gguf_get_u32(g, "t.bool", &u, &e) == ST_INVALID);
    CHECK(gguf_get_u32(g, "a.i32", &u, &e) == ST_INVALID && strstr(e.text, "array of 3 i32"));
    CHECK(gguf_get_u32(g, "none", &u, &e) == ST_NOT_FOUND && strstr(e.text, "'none' is missing"));
    CHECK(!gguf_get_f32(g, "t.f32", &x, &e) && x == 0.25f);
    CHECK(!gguf_get_f32(g, "t.f64", &x, &e) && x == 0.5f);
    CHECK(gguf_get_f32(g, "t.u32", &x, &e) == ST_INVALID);
    CHECK(!gguf_get_bool(g, "t.bool", &t, &e) && t);
    CHECK(gguf_get_bool(g, "t.u8", &t, &e) == ST_INVALID);
    CHECK(!gguf_get_str(g, "t.str", &s, &e) && s.len == 5 && !memcmp(s.s, "hello", 5));
    CHECK(gguf_get_str(g, "t.u8", &s, &e) == ST_INVALID);
    gguf_close(g);
    free(f.p);
}

TEST(reads_arrays) {
    struct bytes f = good_file();
    struct gguf *g;
    struct err e;
    enum gguf_type type;
    uint64_t n;
    int64_t v;
    CHECK(gguf_open_memory(&g, f.p, f.n, &e) == 0);
    CHECK(!gguf_get_array(g, "a.i32", &type, &n, &e) && type == GGUF_I32 && n == 3);
    int k = gguf_find(g, "a.i32");
    CHECK(k >= 0 && !strcmp(gguf_key(g, k), "a.i32") && gguf_key_type(g, k) == GGUF_ARRAY);
    CHECK(!gguf_array_i64(g, k, 1, &v) && v == -7 && !gguf_array_i64(g, k, 2, &v) && v == 70000);
    CHECK(gguf_array_i64(g, k, 3, &v) == ST_INVALID && gguf_array_i64(g, k, UINT64_MAX, &v) == ST_INVALID);
    CHECK(gguf_array_str(g, k, 0).len == 0 && gguf_array_f32(g, k, 0) == 0);
    k = gguf_find(g, "a.f32");
    CHECK(gguf_array_f32(g, k, 1) == -2.5f && gguf_array_f32(g, k, 2) == 0 && gguf_array_i64(g, k, 0, &v) == ST_INVALID);
    k = gguf_find(g, "a.bool");
    CHECK(!gguf_array_i64(g, k, 0, &v) && v == 1 && !gguf_array_i64(g, k, 1, &v) && v == 0);
    k = gguf_find(g, "a.str");
    struct gguf_str s = gguf_array_str(g, k, 2);
    CHECK(s.len == 7 && !memcmp(s.s, "two two", 7) && gguf_array_str(g, k, 0).len == 0 && gguf_array_str(g, k, 3).len == 0);
    CHECK(!gguf_get_array(g, "a.empty", &type, &n, &e) && type == GGUF_STRING && n == 0);
    CHECK(!gguf_get_array(g, "t.i16", &type, &n, &e) && type == GGUF_I16 && n == 1); /* a scalar reads as one */
    CHECK(!gguf_array_i64(g, gguf_find(g, "t.i16"), 0, &v) && v == -1600);
    CHECK(gguf_array_i64(g, gguf_find(g, "t.u64"), 0, &v) == ST_INVALID); /* above INT64_MAX */
    CHECK(gguf_get_array(g, "t.str", &type, &n, &e) == ST_INVALID && gguf_get_array(g, "none", &type, &n, &e) == ST_NOT_FOUND);
    gguf_close(g);
    free(f.p);
}

TEST(reads_tensors) {
    struct bytes f = good_file();
    struct gguf *g;
    struct err e;
    CHECK(gguf_open_memory(&g, f.p, f.n, &e) == 0);
    CHECK(gguf_n_tensors(g) == 2 && !gguf_find_tensor(g, "x"));
    const struct tensor *w = gguf_find_tensor(g, "w"), *v = gguf_find_tensor(g, "v");
    CHECK(w == gguf_tensor(g, 0) && w->dtype == DTYPE_Q8_0 && w->n_dims == 2 && w->ne[0] == 64 && w->ne[1] == 3 && w->ne[2] == 1);
    CHECK(w->n_bytes == 3 * 68 && tensor_n_rows(w) == 3 && ((const unsigned char *)w->data)[203] == 5);
    CHECK(v->n_dims == 1 && v->n_bytes == 28 && v->file == 0 && f.p + v->file_offset == v->data && v->file_offset % 32 == 0);
    gguf_close(g);
    free(f.p);
}

TEST(honours_alignment_and_version_2) {
    struct gguf_build b;
    struct gguf *g;
    struct err e;
    build_init(&b);
    b.version = 2;
    b.align = 256;
    build_u32(&b, "general.alignment", 256);
    build_tensor(&b, "a", DTYPE_F32, 3, 0, 0, 1);
    build_tensor(&b, "b", DTYPE_F32, 3, 0, 0, 2);
    struct bytes f = build_finish(&b);
    CHECKF(gguf_open_memory(&g, f.p, f.n, &e) == 0, "%s", e.text);
    CHECK(gguf_version(g) == 2 && gguf_find_tensor(g, "b")->file_offset == 512 && *(const unsigned char *)gguf_find_tensor(g, "b")->data == 2);
    gguf_close(g);
    free(f.p);
}

/* Overlap is allowed: the data is only read. */
TEST(allows_overlapping_tensors) {
    struct gguf_build b;
    struct gguf *g;
    struct err e;
    build_init(&b);
    build_tensor(&b, "a", DTYPE_F32, 16, 0, 0, 1);
    build_info(&b, "b", 1, (const uint64_t[1]){ 8 }, DTYPE_F32, 32);
    struct bytes f = build_finish(&b);
    CHECKF(gguf_open_memory(&g, f.p, f.n, &e) == 0, "%s", e.text);
    CHECK((const char *)gguf_find_tensor(g, "b")->data == (const char *)gguf_find_tensor(g, "a")->data + 32);
    gguf_close(g);
    free(f.p);
}

TEST(knows_the_formats) {
    static const struct { uint32_t id; const char *name; uint32_t elems, n_bytes; } READABLE[] = {
        { 0, "F32", 1, 4 },      { 1, "F16", 1, 2 },      { 30, "BF16", 1, 2 },     { 8, "Q8_0", 32, 34 },   { 2, "Q4_0", 32, 18 },
        { 3, "Q4_1", 32, 20 },   { 6, "Q5_0", 32, 22 },   { 7, "Q5_1", 32, 24 },    { 12, "Q4_K", 256, 144 }, { 13, "Q5_K", 256, 176 },
        { 14, "Q6_K", 256, 210 }, { 20, "IQ4_NL", 32, 18 }, { 23, "IQ4_XS", 256, 136 }, { 39, "MXFP4", 32, 17 },
    };
    uint32_t n = 0;
    for (size_t i = 0; i < sizeof READABLE / sizeof READABLE[0]; i++) {
        const struct dtype_info *t = dtype_info(READABLE[i].id);
        CHECKF(t && !strcmp(t->name, READABLE[i].name), "type %u", READABLE[i].id);
        CHECKF(t->block_elems == READABLE[i].elems && t->block_bytes == READABLE[i].n_bytes, "%s", t->name);
        CHECK(dtype_row_bytes(t, 512) == 512 / READABLE[i].elems * READABLE[i].n_bytes);
    }
    for (uint32_t id = 0; id < 1000; id++) n += dtype_info(id) != NULL;
    CHECK(n == sizeof READABLE / sizeof READABLE[0] && !dtype_info(UINT32_MAX));
}

/* ---- hostile files: one mutation each, and words its error must have ---- */

static const uint64_t NE[4] = { 32, 2, 1, 1 };

static void h_version_1(struct gguf_build *b) { b->version = 1; }
static void h_big_endian(struct gguf_build *b) { b->version = 0x03000000; }
static void h_version_0(struct gguf_build *b) { b->version = 0; }
static void h_many_keys(struct gguf_build *b) { b->n_keys = UINT64_MAX; }
static void h_many_tensors(struct gguf_build *b) { b->n_tensors = 1u << 30; }
static void h_keys_past_end(struct gguf_build *b) { b->n_keys = 60000; }
static void h_tensors_past_end(struct gguf_build *b) { b->n_tensors = 200000; }
static void h_one_key_more(struct gguf_build *b) { b->n_keys++; }
static void h_dup_key(struct gguf_build *b) {
    build_u32(b, "same", 1);
    build_u32(b, "same", 2);
}
static void h_dup_tensor(struct gguf_build *b) {
    build_tensor(b, "same", DTYPE_F32, 4, 0, 0, 0);
    build_tensor(b, "same", DTYPE_F32, 4, 0, 0, 0);
}
static void h_empty_key(struct gguf_build *b) { build_u32(b, "", 1); }
static void h_key_control(struct gguf_build *b) { build_u32(b, "a\x1b[2J", 1); }
static void h_key_nul(struct gguf_build *b) {
    put_u64(&b->kv, 3);
    put(&b->kv, "a\0b", 3);
    put_u32(&b->kv, GGUF_U8);
    put(&b->kv, "x", 1);
    b->n_keys++;
}
static void h_key_length(struct gguf_build *b) {
    put_u64(&b->kv, UINT64_MAX);
    b->n_keys++;
}
static void h_value_type(struct gguf_build *b) { build_raw(b, "k", 13, "12345678", 8); }
static void h_bool_value(struct gguf_build *b) { build_bool(b, "k", 2); }
static void h_bool_in_array(struct gguf_build *b) { build_array(b, "k", GGUF_BOOL, 2, "\1\7", 2); }
static void h_string_length(struct gguf_build *b) {
    const uint64_t n = UINT64_MAX - 3;
    build_raw(b, "k", GGUF_STRING, &n, 8);
}
static void h_nested_array(struct gguf_build *b) { build_array(b, "k", GGUF_ARRAY, 1, "xxxxxxxxxxxxxxxx", 16); }
static void h_element_type(struct gguf_build *b) { build_array(b, "k", 99, 1, "x", 1); }
static void h_array_count(struct gguf_build *b) { build_array(b, "k", GGUF_U64, UINT64_MAX / 8 + 2, "xxxxxxxx", 8); }
static void h_array_past_end(struct gguf_build *b) { build_array(b, "k", GGUF_U64, 100000, "xxxxxxxx", 8); }
static void h_strings_past_end(struct gguf_build *b) { build_array(b, "k", GGUF_STRING, 100000, "xxxxxxxx", 8); }
static void h_strings_count(struct gguf_build *b) { build_array(b, "k", GGUF_STRING, UINT64_MAX, "xxxxxxxx", 8); }
static void h_align_3(struct gguf_build *b) { build_u32(b, "general.alignment", 24); }
static void h_align_0(struct gguf_build *b) { build_u32(b, "general.alignment", 0); }
static void h_align_huge(struct gguf_build *b) { build_u32(b, "general.alignment", 1u << 31); }
static void h_align_type(struct gguf_build *b) { build_str(b, "general.alignment", "32"); }
static void h_no_dims(struct gguf_build *b) { build_info(b, "t", 0, NE, DTYPE_F32, 0); }
static void h_five_dims(struct gguf_build *b) { build_info(b, "t", 5, (const uint64_t[5]){ 1, 1, 1, 1, 1 }, DTYPE_F32, 0); }
static void h_zero_dim(struct gguf_build *b) { build_info(b, "t", 2, (const uint64_t[2]){ 32, 0 }, DTYPE_F32, 0); }
static void h_dims_overflow(struct gguf_build *b) { build_info(b, "t", 3, (const uint64_t[3]){ 1ull << 32, 1ull << 31, 2 }, DTYPE_Q8_0, 0); }
static void h_bytes_overflow(struct gguf_build *b) { build_info(b, "t", 2, (const uint64_t[2]){ 1ull << 32, 1ull << 30 }, DTYPE_F32, 0); }
static void h_tensor_type(struct gguf_build *b) { build_info(b, "t", 2, NE, 1000, 0); }
static void h_type_withdrawn(struct gguf_build *b) { build_info(b, "t", 2, NE, 31, 0); }
static void h_partial_block(struct gguf_build *b) { build_info(b, "t", 2, (const uint64_t[2]){ 48, 2 }, DTYPE_Q4_0, 0); }
static void h_offset_unaligned(struct gguf_build *b) { build_info(b, "t", 2, NE, DTYPE_F32, 8); }
static void h_offset_past_end(struct gguf_build *b) { build_info(b, "t", 2, NE, DTYPE_F32, 1 << 20); }
static void h_offset_wraps(struct gguf_build *b) { build_info(b, "t", 2, NE, DTYPE_F32, UINT64_MAX - 31); }
static void h_data_past_end(struct gguf_build *b) { build_info(b, "t", 2, (const uint64_t[2]){ 32, 1 << 20 }, DTYPE_F32, 0); }
static void h_tensor_name(struct gguf_build *b) {
    char name[300];
    memset(name, 'n', 299);
    name[299] = '\0';
    build_info(b, name, 2, NE, DTYPE_F32, 0);
}
static void h_split_in_memory(struct gguf_build *b) { build_u32(b, "split.count", 2); }
static void h_split_count(struct gguf_build *b) { build_u32(b, "split.count", 100000); }

static const struct hostile {
    const char *name;
    void (*make)(struct gguf_build *b);
    int status;
    const char *words;
} HOSTILE[] = {
    { "version 1", h_version_1, ST_UNSUPPORTED, "version is 1, expected 2 or 3" },
    { "version 0", h_version_0, ST_UNSUPPORTED, "version is 0" },
    { "big endian", h_big_endian, ST_UNSUPPORTED, "big-endian" },
    { "2^64 keys", h_many_keys, ST_LIMIT, "number of keys is 18446744073709551615, expected at most 65536" },
    { "2^30 tensors", h_many_tensors, ST_LIMIT, "number of tensors is 1073741824" },
    { "keys past the end", h_keys_past_end, ST_INVALID, "number of keys is 60000, but the rest of the file has room for" },
    { "tensors past the end", h_tensors_past_end, ST_INVALID, "number of tensors is 200000, but" },
    { "a tensor read as a key", h_one_key_more, ST_LIMIT, "tensor 0: length of the name is" },
    { "duplicate key", h_dup_key, ST_INVALID, "key 'same': occurs twice" },
    { "duplicate tensor", h_dup_tensor, ST_INVALID, "tensor 'same': occurs twice" },
    { "empty key", h_empty_key, ST_INVALID, "name is empty" },
    { "escape code in a key", h_key_control, ST_INVALID, "control byte 0x1b at position 1" },
    { "NUL in a key", h_key_nul, ST_INVALID, "control byte 0x00 at position 1" },
    { "key of 2^64 bytes", h_key_length, ST_LIMIT, "length of the name is 18446744073709551615, expected at most 65535" },
    { "unknown value type", h_value_type, ST_INVALID, "key 'k': value type is 13, expected 0 to 12" },
    { "bool of 2", h_bool_value, ST_INVALID, "key 'k': bool is 2" },
    { "bool of 7 in an array", h_bool_in_array, ST_INVALID, "key 'k': bool is 7" },
    { "string of 2^64 bytes", h_string_length, ST_INVALID, "key 'k': file is truncated: string needs 18446744073709551612 bytes" },
    { "nested array", h_nested_array, ST_UNSUPPORTED, "key 'k': array of arrays" },
    { "unknown element type", h_element_type, ST_INVALID, "element type is 99" },
    { "array size wraps", h_array_count, ST_LIMIT, "number of elements is 2305843009213693953" },
    { "array past the end", h_array_past_end, ST_INVALID, "number of elements is 100000, but the rest" },
    { "strings past the end", h_strings_past_end, ST_INVALID, "number of elements is 100000, but the rest" },
    { "2^64 strings", h_strings_count, ST_LIMIT, "number of elements is 18446744073709551615" },
    { "alignment 24", h_align_3, ST_INVALID, "key 'general.alignment': value is 24, expected a power of two" },
    { "alignment 0", h_align_0, ST_INVALID, "value is 0, expected a power of two" },
    { "alignment 2^31", h_align_huge, ST_INVALID, "from 8 to 65536" },
    { "alignment is a string", h_align_type, ST_INVALID, "key 'general.alignment' has type string, expected an integer" },
    { "no dimensions", h_no_dims, ST_INVALID, "tensor 't': number of dimensions is 0, expected 1 to 4" },
    { "five dimensions", h_five_dims, ST_INVALID, "number of dimensions is 5" },
    { "dimension 0", h_zero_dim, ST_INVALID, "tensor 't': dimension 1 is 0" },
    { "product of dimensions overflows", h_dims_overflow, ST_INVALID, "product of the dimensions up to 2 overflows" },
    { "size in bytes overflows", h_bytes_overflow, ST_INVALID, "size in bytes overflows" },
    { "unknown tensor type", h_tensor_type, ST_UNSUPPORTED, "tensor type 1000 is unknown" },
    { "withdrawn tensor type", h_type_withdrawn, ST_UNSUPPORTED, "tensor type 31 (Q4_0_4_4) was withdrawn" },
    { "row of one and a half blocks", h_partial_block, ST_INVALID, "row length 48 is not a multiple of the block of Q4_0 (32)" },
    { "unaligned offset", h_offset_unaligned, ST_INVALID, "data offset is 8, expected a multiple of the alignment 32" },
    { "offset past the end", h_offset_past_end, ST_INVALID, "tensor 't': data is outside the file" },
    { "offset + size wraps", h_offset_wraps, ST_INVALID, "data is outside the file" },
    { "data past the end", h_data_past_end, ST_INVALID, "data is outside the file: offset 0 + 134217728 bytes" },
    { "tensor name of 299 bytes", h_tensor_name, ST_LIMIT, "length of the name is 299, expected at most 255" },
    { "split model in memory", h_split_in_memory, ST_UNSUPPORTED, "split.count is 2" },
    { "100000 parts", h_split_count, ST_LIMIT, "split.count is 100000, expected at most 4096" },
};

TEST(refuses_hostile_files) {
    for (size_t i = 0; i < sizeof HOSTILE / sizeof HOSTILE[0]; i++) {
        const struct hostile *h = &HOSTILE[i];
        struct gguf_build b;
        build_init(&b);
        add_all_types(&b);
        h->make(&b);
        struct bytes f = build_finish(&b);
        struct gguf *g;
        unsigned char *copy;
        struct err e = { 0 };
        int rc = open_copy(&g, &copy, f.p, f.n, &e);
        CHECKF(rc == h->status && !g, "%s: status %d, expected %d: %s", h->name, rc, h->status, e.text);
        CHECKF(strstr(e.text, h->words), "%s: expected '%s' in '%s'", h->name, h->words, e.text);
        CHECKF(!strncmp(e.text, "(memory): ", 10) && e.code == rc, "%s: '%s'", h->name, e.text);
        free(copy);
        free(f.p);
    }
}

TEST(refuses_other_magic) {
    struct gguf *g;
    struct err e;
    CHECK(gguf_open_memory(&g, "", 0, &e) == ST_INVALID && strstr(e.text, "magic needs 4 bytes at offset 0"));
    CHECK(gguf_open_memory(&g, "PK\3\4abcdefghijklmnopqrstuvwxyz", 30, &e) == ST_INVALID && strstr(e.text, "found 50 4b 03 04"));
}

/* A cut anywhere before the end of the last tensor's data is an error; the padding after it may go. */
TEST(truncation_at_every_byte) {
    struct bytes f = good_file();
    struct gguf *g;
    struct err e;
    CHECK(gguf_open_memory(&g, f.p, f.n, &e) == 0);
    size_t needed = gguf_find_tensor(g, "v")->file_offset + gguf_find_tensor(g, "v")->n_bytes;
    gguf_close(g);
    for (size_t n = 0; n <= f.n; n++) {
        unsigned char *copy;
        int rc = open_copy(&g, &copy, f.p, n, &e);
        CHECKF((rc == 0) == (n >= needed), "cut at %zu of %zu (needs %zu): status %d %s", n, f.n, needed, rc, rc ? e.text : "");
        if (g) gguf_touch(g);
        gguf_close(g);
        free(copy);
    }
    free(f.p);
}

TEST(random_flips_never_crash) {
    struct bytes f = good_file();
    uint64_t seed = 0x9e3779b97f4a7c15u, n_ok = 0, n_bad = 0;
    for (int round = 0; round < 20000; round++) {
        struct gguf *g;
        unsigned char *copy = malloc(f.n);
        struct err e = { 0 };
        memcpy(copy, f.p, f.n);
        for (uint64_t flips = 1 + test_random(&seed) % 3; flips; flips--)
            copy[test_random(&seed) % f.n] = (unsigned char)(test_random(&seed) >> 32);
        int rc = gguf_open_memory(&g, copy, f.n, &e);
        CHECKF(rc ? e.code == rc && e.text[0] : g != NULL, "round %d", round);
        if (g) gguf_touch(g);
        if (g) n_ok++;
        else n_bad++;
        gguf_close(g);
        free(copy);
    }
    CHECKF(n_ok > 1000 && n_bad > 1000, "%" PRIu64 " opened, %" PRIu64 " refused", n_ok, n_bad); /* both paths were exercised */
    free(f.p);
}

TEST(failed_allocations_leak_nothing) {
    struct bytes f = good_file();
    struct mem_stats before, after;
    struct gguf *g = NULL;
    struct err e;
    mem_stats(&before);
    uint64_t n = 0;
    int rc;
    do {
        mem_fail_after(n);
        rc = gguf_open_memory(&g, f.p, f.n, &e);
        mem_fail_after(UINT64_MAX);
        mem_stats(&after);
        CHECKF(rc ? rc == ST_NOMEM && strstr(e.text, "out of memory") : 1, "allocation %" PRIu64 ": %d %s", n, rc, e.text);
        CHECKF(rc == 0 || after.n_live == before.n_live, "allocation %" PRIu64 " leaks", n);
        n++;
    } while (rc && n < 1000);
    CHECKF(rc == 0 && n > 10, "%" PRIu64 " rounds", n);
    gguf_close(g);
    mem_stats(&after);
    CHECK(after.n_live == before.n_live);
    free(f.p);
}

TEST(many_keys_and_colliding_names) {
    struct gguf_build b;
    struct gguf *g;
    struct err e;
    char key[32];
    uint32_t v;
    build_init(&b);
    for (uint32_t i = 0; i < 20000; i++) {
        snprintf(key, sizeof key, "key.%u", i);
        build_u32(&b, key, i);
    }
    struct bytes f = build_finish(&b);
    CHECK(gguf_open_memory(&g, f.p, f.n, &e) == 0);
    CHECK(!gguf_get_u32(g, "key.0", &v, &e) && v == 0 && !gguf_get_u32(g, "key.19999", &v, &e) && v == 19999);
    gguf_close(g);
    free(f.p);
    /* the low bits of FNV-1a are easy to choose: 1500 names for one slot of 4096 */
    for (uint32_t i = 0, n = 0; n < 1500; i++) {
        uint64_t h = 14695981039346656037u;
        snprintf(key, sizeof key, "%x", i);
        for (const char *s = key; *s; s++) h = (h ^ (unsigned char)*s) * 1099511628211u;
        if ((uint32_t)(h ^ h >> 32) & 4095) continue;
        build_u32(&b, key, i);
        n++;
    }
    f = build_finish(&b);
    CHECK(gguf_open_memory(&g, f.p, f.n, &e) == ST_LIMIT && strstr(e.text, "colliding names"));
    free(f.p);
}

/* ---- files on disk ---- */

struct dir { char path[64]; };

static struct dir make_dir(void) {
    struct dir d = { "/tmp/moed-gguf-XXXXXX" };
    if (!mkdtemp(d.path)) d.path[0] = '\0';
    return d;
}

static const char *in_dir(const struct dir *d, const char *name) {
    static char path[8][160]; /* a few live at once; tests are single-threaded */
    static int next;
    char *p = path[next++ % 8];
    snprintf(p, sizeof path[0], "%s/%s", d->path, name);
    return p;
}

static void write_file(const struct dir *d, const char *name, const unsigned char *p, size_t n) {
    FILE *f = fopen(in_dir(d, name), "wb");
    if (!f) return;
    if (n) fwrite(p, 1, n, f);
    fclose(f);
}

static void remove_dir(const struct dir *d) {
    static const char *const NAMES[] = { "m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf", "other.gguf", "empty.gguf" };
    for (size_t i = 0; i < sizeof NAMES / sizeof NAMES[0]; i++) unlink(in_dir(d, NAMES[i]));
    rmdir(d->path);
}

/* Part `no` of 3 with one tensor `name`; the first has the metadata. */
static void write_part(const struct dir *d, const char *file, uint16_t no, uint16_t count, uint32_t n_tensors, const char *name) {
    struct gguf_build b;
    build_init(&b);
    if (no == 0) build_str(&b, "general.architecture", "llama");
    build_raw(&b, "split.no", GGUF_U16, &no, 2);
    build_raw(&b, "split.count", GGUF_U16, &count, 2);
    build_raw(&b, "split.tensors.count", GGUF_I32, &n_tensors, 4);
    build_tensor(&b, name, DTYPE_F32, 4, 0, 0, no + 1);
    struct bytes f = build_finish(&b);
    write_file(d, file, f.p, f.n);
    free(f.p);
}

static void write_parts(const struct dir *d) {
    write_part(d, "m-00001-of-00003.gguf", 0, 3, 3, "a");
    write_part(d, "m-00002-of-00003.gguf", 1, 3, 3, "b");
    write_part(d, "m-00003-of-00003.gguf", 2, 3, 3, "c");
}

/* Letting go of pages and bringing them in never changes a byte, of a mapped file or of borrowed memory. */
TEST(fetch_and_drop_keep_the_bytes) {
    struct dir d = make_dir();
    struct bytes f = good_file();
    struct gguf *g[2];
    write_file(&d, "other.gguf", f.p, f.n);
    CHECK(gguf_open(&g[0], in_dir(&d, "other.gguf"), NULL) == 0);
    CHECK(gguf_open_memory(&g[1], f.p, f.n, NULL) == 0);
    for (int i = 0; i < 2; i++) {
        const struct tensor *t = gguf_find_tensor(g[i], "w");
        unsigned char before[64 / 32 * 34 * 3];
        CHECK(t && t->n_bytes == sizeof before);
        memcpy(before, t->data, sizeof before);
        gguf_drop(g[i], t, 0, t->n_bytes);
        CHECK(memcmp(before, t->data, sizeof before) == 0);
        gguf_drop(g[i], t, 17, 5);
        gguf_fetch(g[i], t, 3, t->n_bytes - 3);
        gguf_fetch(g[i], t, t->n_bytes, 0);
        CHECK(memcmp(before, t->data, sizeof before) == 0);
        gguf_close(g[i]);
    }
    free(f.p);
    remove_dir(&d);
}

TEST(opens_split_files) {
    struct dir d = make_dir();
    struct gguf *g;
    struct err e;
    struct gguf_str s;
    write_parts(&d);
    CHECKF(gguf_open(&g, in_dir(&d, "m-00001-of-00003.gguf"), &e) == 0, "%s", e.text);
    CHECK(gguf_n_files(g) == 3 && gguf_n_tensors(g) == 3 && strstr(gguf_file_path(g, 2), "/m-00003-of-00003.gguf"));
    CHECK(!gguf_get_str(g, "general.architecture", &s, &e) && s.len == 5);
    const struct tensor *c = gguf_find_tensor(g, "c");
    CHECK(c && c->file == 2 && *(const unsigned char *)c->data == 3);
    gguf_touch(g);
    gguf_close(g);
    remove_dir(&d);
}

/* One part replaced by something wrong; words of the error. */
static const char *split_error(const struct dir *d, const char *open_name, int want, struct err *e) {
    struct gguf *g;
    e->text[0] = '\0';
    int rc = gguf_open(&g, in_dir(d, open_name), e);
    if (rc != want) snprintf(e->text, sizeof e->text, "status %d", rc);
    return e->text;
}

TEST(refuses_bad_split_files) {
    struct dir d = make_dir();
    struct err e;
    const char *first = "m-00001-of-00003.gguf";
    write_parts(&d);
    unlink(in_dir(&d, "m-00002-of-00003.gguf"));
    CHECKF(strstr(split_error(&d, first, ST_NOT_FOUND, &e), "m-00002-of-00003.gguf: part 2 of 3 of the split model is missing"), "%s", e.text);
    write_part(&d, "m-00002-of-00003.gguf", 2, 3, 3, "b");
    CHECKF(strstr(split_error(&d, first, ST_INVALID, &e), "split.no is 2, expected 1 for this file name"), "%s", e.text);
    write_part(&d, "m-00002-of-00003.gguf", 1, 4, 3, "b");
    CHECKF(strstr(split_error(&d, first, ST_INVALID, &e), "split.count is 4, expected 3"), "%s", e.text);
    write_part(&d, "m-00002-of-00003.gguf", 1, 3, 3, "c");
    CHECKF(strstr(split_error(&d, first, ST_INVALID, &e), "m-00003-of-00003.gguf: tensor 'c': occurs twice"), "%s", e.text);
    write_file(&d, "m-00002-of-00003.gguf", (const unsigned char *)"GGUF", 4);
    CHECKF(strstr(split_error(&d, first, ST_INVALID, &e), "m-00002-of-00003.gguf: file is truncated"), "%s", e.text);
    write_parts(&d);
    CHECKF(strstr(split_error(&d, "m-00002-of-00003.gguf", ST_INVALID, &e), "open the file ending in -00001-of-00003.gguf"), "%s", e.text);
    write_part(&d, first, 0, 3, 7, "a");
    CHECKF(strstr(split_error(&d, first, ST_INVALID, &e), "split.tensors.count is 7, but the 3 parts have 3 tensors"), "%s", e.text);
    write_part(&d, "other.gguf", 0, 3, 3, "a");
    CHECKF(strstr(split_error(&d, "other.gguf", ST_INVALID, &e), "must end in -00001-of-00003.gguf"), "%s", e.text);
    remove_dir(&d);
}

TEST(refuses_odd_files) {
    struct dir d = make_dir();
    struct err e;
    write_file(&d, "empty.gguf", NULL, 0);
    CHECKF(strstr(split_error(&d, "empty.gguf", ST_INVALID, &e), "the file is empty"), "%s", e.text);
    CHECKF(strstr(split_error(&d, "nothing.gguf", ST_NOT_FOUND, &e), "nothing.gguf: cannot open the file: No such file"), "%s", e.text);
    mkfifo(in_dir(&d, "other.gguf"), 0600);
    CHECKF(strstr(split_error(&d, "other.gguf", ST_INVALID, &e), "expected a regular file, found a special file"), "%s", e.text);
    CHECKF(strstr(split_error(&d, ".", ST_INVALID, &e), "expected a regular file, found a directory"), "%s", e.text);
    remove_dir(&d);
}

TEST(split_files_leak_nothing_without_memory) {
    struct dir d = make_dir();
    struct mem_stats before, after;
    struct gguf *g = NULL;
    struct err e;
    write_parts(&d);
    mem_stats(&before);
    const char *path = in_dir(&d, "m-00001-of-00003.gguf");
    int rc, n = 0;
    do {
        mem_fail_after((uint64_t)n++);
        rc = gguf_open(&g, path, &e);
        mem_fail_after(UINT64_MAX);
        mem_stats(&after);
        CHECKF(rc == 0 || (rc == ST_NOMEM && after.n_live == before.n_live), "allocation %d: status %d, %s", n - 1, rc, e.text);
    } while (rc && n < 1000);
    gguf_close(g);
    mem_stats(&after);
    CHECK(rc == 0 && after.n_live == before.n_live);
    remove_dir(&d);
}

int main(void) {
    RUN(reads_scalars);
    RUN(reads_arrays);
    RUN(reads_tensors);
    RUN(honours_alignment_and_version_2);
    RUN(allows_overlapping_tensors);
    RUN(knows_the_formats);
    RUN(refuses_hostile_files);
    RUN(refuses_other_magic);
    RUN(truncation_at_every_byte);
    RUN(random_flips_never_crash);
    RUN(failed_allocations_leak_nothing);
    RUN(many_keys_and_colliding_names);
    RUN(fetch_and_drop_keep_the_bytes);
    RUN(opens_split_files);
    RUN(refuses_bad_split_files);
    RUN(refuses_odd_files);
    RUN(split_files_leak_nothing_without_memory);
    return test_failed_;
}
