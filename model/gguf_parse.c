/* SPDX-License-Identifier: Apache-2.0
 *
 * Turns the bytes of one GGUF file into metadata entries and tensors. The file is hostile: a cursor refuses every
 * read past the end, counts are bounded by constants and by what could fit in the rest of the file before anything
 * is allocated, and sums and products of file numbers are checked before they are used.
 *
 * Tensors may overlap: data is only ever read, so overlap can make a model wrong but not unsafe, and each tensor
 * alone is inside the file. Everything is little-endian and unaligned, so numbers are copied out. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "model/gguf_internal.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF numbers are read as they lie in the file");
_Static_assert(sizeof(size_t) == 8, "file offsets are kept in size_t");

struct cursor {
    const unsigned char *bytes;
    size_t n, at;
    const char *path;
    const char *kind;      /* "key" or "tensor" while inside one, else NULL */
    const char *name;      /* its name, once read                           */
    uint64_t number;       /* its index                                     */
    struct err *e;
};

/* Fills the error with the file, the key or tensor being read, and the text. */
static int refuse(const struct cursor *c, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static int refuse(const struct cursor *c, int code, const char *fmt, ...) {
    char text[300], where[160] = "";
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (c->name) snprintf(where, sizeof where, "%s '%.100s': ", c->kind, c->name);
    else if (c->kind) snprintf(where, sizeof where, "%s %llu: ", c->kind, (unsigned long long)c->number);
    return err_set(c->e, code, "%s: %s%s", c->path, where, text);
}

static int no_memory(const struct cursor *c, const char *what) {
    return refuse(c, ST_NOMEM, "out of memory for %s", what);
}

/* Steps over n bytes and gives their address. */
static int take(struct cursor *c, uint64_t n, const char *what, const unsigned char **p) {
    *p = c->bytes + c->at;
    if (n > c->n - c->at)
        return refuse(c, ST_INVALID, "file is truncated: %s needs %llu bytes at offset %zu, the file ends at %zu",
                      what, (unsigned long long)n, c->at, c->n);
    c->at += n;
    return ST_OK;
}

static int take_u32(struct cursor *c, const char *what, uint32_t *v) {
    const unsigned char *p;
    int rc = take(c, sizeof *v, what, &p);
    *v = 0;
    if (!rc) memcpy(v, p, sizeof *v);
    return rc;
}

static int take_u64(struct cursor *c, const char *what, uint64_t *v) {
    const unsigned char *p;
    int rc = take(c, sizeof *v, what, &p);
    *v = 0;
    if (!rc) memcpy(v, p, sizeof *v);
    return rc;
}

/* A count of things that take at least min_bytes each in the rest of the file. */
static int take_count(struct cursor *c, const char *what, uint64_t limit, uint64_t min_bytes, uint64_t *v) {
    int rc = take_u64(c, what, v);
    if (rc) return rc;
    if (*v > limit)
        return refuse(c, ST_LIMIT, "%s is %llu, expected at most %llu", what, (unsigned long long)*v, (unsigned long long)limit);
    uint64_t room = (c->n - c->at) / min_bytes;
    if (*v > room)
        return refuse(c, ST_INVALID, "file is truncated: %s is %llu, but the rest of the file has room for %llu",
                      what, (unsigned long long)*v, (unsigned long long)room);
    return ST_OK;
}

/* The name of a key or tensor: copied, printable, not empty. From here on errors carry it. */
static int take_name(struct gguf *g, struct cursor *c, uint64_t limit, const char **name) {
    const unsigned char *p;
    uint64_t n;
    int rc = take_count(c, "length of the name", limit, 1, &n);
    if (!rc) rc = take(c, n, "name", &p);
    if (rc) return rc;
    if (n == 0) return refuse(c, ST_INVALID, "name is empty");
    for (uint64_t i = 0; i < n; i++)
        if (p[i] < 0x20 || p[i] == 0x7f)
            return refuse(c, ST_INVALID, "name has the control byte 0x%02x at position %llu", p[i], (unsigned long long)i);
    char *copy = arena_strndup(&g->names, (const char *)p, n);
    if (!copy) return no_memory(c, "its name");
    c->name = *name = copy;
    return ST_OK;
}

static int parse_header(struct cursor *c, struct gguf__file *f, uint64_t *n_tensors, uint64_t *n_keys) {
    const unsigned char *m;
    int rc = take(c, 4, "magic", &m);
    if (rc) return rc;
    if (memcmp(m, "GGUF", 4))
        return refuse(c, ST_INVALID, "not a GGUF file: expected the magic bytes 47 47 55 46 (\"GGUF\"), found %02x %02x %02x %02x",
                      m[0], m[1], m[2], m[3]);
    if ((rc = take_u32(c, "version", &f->version))) return rc;
    if (f->version && !(f->version & 0xffff))
        return refuse(c, ST_UNSUPPORTED, "version field is 0x%08x: this is a big-endian file; convert it to little-endian",
                      f->version);
    if (f->version != 2 && f->version != 3)
        return refuse(c, ST_UNSUPPORTED, "GGUF version is %u, expected 2 or 3; convert the model again", f->version);
    /* a tensor takes at least name 8 + 1, n_dims 4, ne 8, type 4, offset 8; a key name 8 + 1, type 4, value 1 */
    rc = take_count(c, "number of tensors", GGUF_MAX_TENSORS, 33, n_tensors);
    return rc ? rc : take_count(c, "number of keys", GGUF_MAX_KEYS, 14, n_keys);
}

/* Steps over n strings and remembers where each begins, for O(1) access. n is already bounded by the file size. */
static int parse_strings(struct cursor *c, struct gguf__kv *kv) {
    const unsigned char *p;
    kv->data = c->bytes + c->at;
    kv->str_at = mem_alloc((kv->n ? kv->n : 1) * sizeof *kv->str_at);
    if (!kv->str_at) return no_memory(c, "the table of an array of strings");
    for (uint64_t i = 0; i < kv->n; i++) {
        uint64_t len;
        kv->str_at[i] = (uint64_t)(c->bytes + c->at - kv->data);
        int rc = take_u64(c, "length of a string", &len);
        if (!rc) rc = take(c, len, "string", &p);
        if (rc) return rc;
    }
    return ST_OK;
}

static int parse_type(struct cursor *c, const char *what, enum gguf_type *type) {
    uint32_t t;
    int rc = take_u32(c, what, &t);
    *type = GGUF_U8;
    if (rc) return rc;
    if (t > GGUF_F64) return refuse(c, ST_INVALID, "%s is %u, expected 0 to %d", what, t, GGUF_F64);
    *type = (enum gguf_type)t;
    return ST_OK;
}

static int parse_value(struct cursor *c, struct gguf__kv *kv) {
    int rc = parse_type(c, "value type", &kv->type);
    if (rc) return rc;
    kv->elem = kv->type;
    kv->n = 1;
    if (kv->type == GGUF_ARRAY) {
        if ((rc = parse_type(c, "element type", &kv->elem))) return rc;
        if (kv->elem == GGUF_ARRAY) return refuse(c, ST_UNSUPPORTED, "array of arrays; no known model needs one");
        uint64_t min_bytes = kv->elem == GGUF_STRING ? 8 : gguf__type_bytes(kv->elem);
        if ((rc = take_count(c, "number of elements", GGUF_MAX_ARRAY, min_bytes, &kv->n))) return rc;
    }
    if (kv->elem == GGUF_STRING) return parse_strings(c, kv);
    if ((rc = take(c, kv->n * gguf__type_bytes(kv->elem), "value", &kv->data))) return rc;
    for (uint64_t i = 0; kv->elem == GGUF_BOOL && i < kv->n; i++)
        if (kv->data[i] > 1) return refuse(c, ST_INVALID, "bool is %u, expected 0 or 1", kv->data[i]);
    return ST_OK;
}

static int parse_keys(struct gguf *g, struct cursor *c, struct gguf__file *f, uint32_t n) {
    f->kv = mem_zalloc(n ? n : 1, sizeof *f->kv);
    if (!f->kv) return no_memory(c, "the keys");
    c->kind = "key";
    for (f->n_kv = 0; f->n_kv < n;) {
        struct gguf__kv *kv = &f->kv[f->n_kv++]; /* counted first: gguf__file_clear frees its table on failure */
        c->name = NULL;
        c->number = f->n_kv - 1;
        int rc = take_name(g, c, GGUF_MAX_KEY_BYTES, &kv->key);
        if (!rc) rc = parse_value(c, kv);
        if (rc) return rc;
    }
    c->name = NULL;
    uint32_t dup = 0;
    int rc = gguf__index_build(&f->by_key, f->kv, sizeof *f->kv, n, &dup);
    if (rc == ST_NOMEM) return no_memory(c, "the index of keys");
    if (rc == ST_OK) return ST_OK;
    c->name = f->kv[dup].key;
    return refuse(c, rc, rc == ST_INVALID ? "occurs twice" : "too many keys with colliding names");
}

static int parse_alignment(struct cursor *c, const struct gguf__file *f, uint32_t *align) {
    *align = GGUF_DEFAULT_ALIGN;
    int rc = gguf__kv_u32(f, "general.alignment", align, c->e);
    if (rc && rc != ST_NOT_FOUND) return rc;
    if (*align < GGUF_MIN_ALIGN || *align > GGUF_MAX_ALIGN || (*align & (*align - 1))) {
        c->kind = "key";
        c->name = "general.alignment";
        return refuse(c, ST_INVALID, "value is %u, expected a power of two from %d to %d", *align, GGUF_MIN_ALIGN, GGUF_MAX_ALIGN);
    }
    return ST_OK;
}

/* Shape and type: every dimension at least 1, elements and bytes without overflow, rows made of whole blocks. */
static int parse_shape(struct cursor *c, struct tensor *t) {
    uint64_t n_elems = 1;
    uint32_t type;
    int rc = take_u32(c, "number of dimensions", &t->n_dims);
    if (rc) return rc;
    if (t->n_dims < 1 || t->n_dims > 4) return refuse(c, ST_INVALID, "number of dimensions is %u, expected 1 to 4", t->n_dims);
    for (uint32_t d = 0; d < 4; d++) {
        t->ne[d] = 1;
        if (d >= t->n_dims) continue;
        if ((rc = take_u64(c, "dimension", &t->ne[d]))) return rc;
        if (t->ne[d] == 0) return refuse(c, ST_INVALID, "dimension %u is 0, expected at least 1", d);
        if (__builtin_mul_overflow(n_elems, t->ne[d], &n_elems))
            return refuse(c, ST_INVALID, "product of the dimensions up to %u overflows 64 bits", d);
    }
    if ((rc = take_u32(c, "tensor type", &type))) return rc;
    const struct dtype_info *fmt = dtype__known(type);
    if (!fmt) return refuse(c, ST_UNSUPPORTED, "tensor type %u is unknown", type);
    if (!fmt->block_bytes)
        return refuse(c, ST_UNSUPPORTED, "tensor type %u (%s) was withdrawn from GGUF; quantise the model again", type, fmt->name);
    if (t->ne[0] % fmt->block_elems)
        return refuse(c, ST_INVALID, "row length %llu is not a multiple of the block of %s (%u)",
                      (unsigned long long)t->ne[0], fmt->name, fmt->block_elems);
    uint64_t n_bytes;
    if (__builtin_mul_overflow(n_elems / fmt->block_elems, (uint64_t)fmt->block_bytes, &n_bytes))
        return refuse(c, ST_INVALID, "size in bytes overflows 64 bits");
    t->dtype = (enum dtype)type;
    t->n_bytes = n_bytes;
    return ST_OK;
}

/* One row of the tensor table. file_offset is relative to the data section until place_tensors. */
static int parse_tensor(struct gguf *g, struct cursor *c, uint32_t align, struct tensor *t) {
    int rc = take_name(g, c, GGUF_MAX_NAME_BYTES, &t->name);
    if (!rc) rc = parse_shape(c, t);
    if (!rc) rc = take_u64(c, "data offset", &t->file_offset);
    if (rc) return rc;
    if (t->file_offset % align)
        return refuse(c, ST_INVALID, "data offset is %llu, expected a multiple of the alignment %u",
                      (unsigned long long)t->file_offset, align);
    return ST_OK;
}

/* Puts the tensors of this file into its data section. */
static int place_tensors(struct cursor *c, size_t start, struct tensor *t, uint64_t n) {
    size_t room = c->n - start;
    for (uint64_t i = 0; i < n; i++) {
        c->name = t[i].name;
        if (t[i].file_offset > room || t[i].n_bytes > room - t[i].file_offset)
            return refuse(c, ST_INVALID, "data is outside the file: offset %llu + %zu bytes, but the data section has %zu "
                          "(is the file truncated?)", (unsigned long long)t[i].file_offset, t[i].n_bytes, room);
        t[i].file_offset += start;
        t[i].data = c->bytes + t[i].file_offset;
    }
    return ST_OK;
}

static int parse_tensors(struct gguf *g, uint32_t file, struct cursor *c, uint64_t n, uint32_t align) {
    if (n > GGUF_MAX_TENSORS - g->n_tensors)
        return refuse(c, ST_LIMIT, "more than %d tensors in all files", GGUF_MAX_TENSORS);
    g->files[file].data_at = c->n;
    if (n == 0) return ST_OK;
    struct tensor *all = mem_realloc(g->tensors, (g->n_tensors + n) * sizeof *all);
    if (!all) return no_memory(c, "the tensor table");
    g->tensors = all;
    struct tensor *mine = all + g->n_tensors;
    c->kind = "tensor";
    for (uint64_t i = 0; i < n; i++) {
        c->name = NULL;
        c->number = i;
        mine[i] = (struct tensor){ .file = file };
        int rc = parse_tensor(g, c, align, &mine[i]);
        if (rc) return rc;
    }
    size_t start = (c->at + align - 1) / align * align; /* the next aligned offset; at <= file size: no overflow */
    g->files[file].data_at = start < c->n ? start : c->n;
    int rc = place_tensors(c, g->files[file].data_at, mine, n);
    if (!rc) g->n_tensors += n;
    return rc;
}

int gguf__parse_file(struct gguf *g, uint32_t file, struct err *e) {
    struct gguf__file *f = &g->files[file];
    struct cursor c = { .bytes = f->bytes, .n = f->n_bytes, .path = f->path, .e = e };
    uint64_t n_tensors = 0, n_keys = 0;
    uint32_t align = GGUF_DEFAULT_ALIGN;
    int rc = parse_header(&c, f, &n_tensors, &n_keys);
    if (!rc) rc = parse_keys(g, &c, f, (uint32_t)n_keys);
    if (!rc) rc = parse_alignment(&c, f, &align);
    return rc ? rc : parse_tensors(g, file, &c, n_tensors, align);
}

void gguf__file_clear(struct gguf__file *f) {
    for (uint32_t i = 0; i < f->n_kv; i++) mem_free(f->kv[i].str_at);
    mem_free(f->kv);
    gguf__index_clear(&f->by_key);
    mem_free(f->path);
    *f = (struct gguf__file){ 0 };
}
