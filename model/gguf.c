/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens GGUF files and answers lookups. Files are mapped shared and read-only: pages come in on first touch and are
 * shared with other processes and the page cache. A file that shrinks after it was mapped raises SIGBUS on access;
 * no check here can prevent that, so models must not be edited in place while they are served (replace by rename). */
#include "model/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "model/gguf_internal.h"

/* Maps a regular, non-empty file. */
static int map_file(struct gguf__file *f, struct err *e) {
    struct stat st;
    int rc = ST_OK;
    int fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not block the open */
    if (fd < 0)
        return err_set(e, errno == ENOENT ? ST_NOT_FOUND : ST_IO, "%s: cannot open the file: %s", f->path, strerror(errno));
    if (fstat(fd, &st)) {
        rc = err_set(e, ST_IO, "%s: cannot read the size of the file: %s", f->path, strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        rc = err_set(e, ST_INVALID, "%s: expected a regular file, found %s", f->path,
                     S_ISDIR(st.st_mode) ? "a directory" : "a special file");
    } else if (st.st_size == 0) {
        rc = err_set(e, ST_INVALID, "%s: the file is empty", f->path);
    } else {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED) {
            rc = err_set(e, ST_IO, "%s: cannot map %lld bytes: %s", f->path, (long long)st.st_size, strerror(errno));
        } else {
            f->bytes = p;
            f->n_bytes = (size_t)st.st_size;
            f->mapped = true;
        }
    }
    close(fd); /* the mapping stays */
    return rc;
}

/* Appends a file entry without bytes; NULL when out of memory. */
static struct gguf__file *new_file(struct gguf *g, const char *path, struct err *e) {
    char *copy = mem_strndup(path, strlen(path));
    struct gguf__file *files = copy ? mem_realloc(g->files, (g->n_files + 1) * sizeof *files) : NULL;
    if (!files) {
        mem_free(copy);
        err_set(e, ST_NOMEM, "%s: out of memory for the list of files", path);
        return NULL;
    }
    g->files = files;
    files[g->n_files] = (struct gguf__file){ .path = copy };
    return &files[g->n_files++];
}

int gguf__add_file(struct gguf *g, const char *path, struct err *e) {
    struct gguf__file *f = new_file(g, path, e);
    int rc = f ? map_file(f, e) : ST_NOMEM;
    return rc ? rc : gguf__parse_file(g, g->n_files - 1, e);
}

static int index_tensors(struct gguf *g, struct err *e) {
    uint32_t dup = 0;
    int rc = gguf__index_build(&g->by_name, g->tensors, sizeof *g->tensors, (uint32_t)g->n_tensors, &dup);
    if (rc == ST_NOMEM) return err_set(e, rc, "%s: out of memory for the index of tensors", g->files[0].path);
    if (rc)
        return err_set(e, rc, "%s: tensor '%s': %s", g->files[g->tensors[dup].file].path, g->tensors[dup].name,
                       rc == ST_INVALID ? "occurs twice" : "too many tensors with colliding names");
    return ST_OK;
}

static struct gguf *new_gguf(void) {
    struct gguf *g = mem_zalloc(1, sizeof *g);
    if (g) arena_init(&g->names, SIZE_MAX / 2); /* every byte in it is also in a file: bounded by their size */
    return g;
}

/* Common end of both ways to open. Takes g. */
static int finish_open(struct gguf **out, struct gguf *g, int rc, struct err *e) {
    if (!rc) rc = gguf__open_splits(g, e);
    if (!rc) rc = index_tensors(g, e);
    if (rc) {
        gguf_close(g);
        return rc;
    }
    *out = g;
    return ST_OK;
}

int gguf_open(struct gguf **out, const char *path, struct err *e) {
    *out = NULL;
    struct gguf *g = new_gguf();
    if (!g) return err_set(e, ST_NOMEM, "%s: out of memory", path);
    return finish_open(out, g, gguf__add_file(g, path, e), e);
}

int gguf_open_memory(struct gguf **out, const void *bytes, size_t n_bytes, struct err *e) {
    *out = NULL;
    struct gguf *g = new_gguf();
    if (!g) return err_set(e, ST_NOMEM, "(memory): out of memory");
    struct gguf__file *f = new_file(g, "(memory)", e);
    int rc = ST_NOMEM;
    if (f) {
        f->bytes = bytes;
        f->n_bytes = n_bytes;
        rc = gguf__parse_file(g, 0, e);
    }
    return finish_open(out, g, rc, e);
}

void gguf_prefault(const struct gguf *g) {
    for (uint32_t i = 0; i < g->n_files; i++) {
        const struct gguf__file *f = &g->files[i];
        if (f->mapped && madvise((void *)f->bytes, f->n_bytes, MADV_POPULATE_READ)) madvise((void *)f->bytes, f->n_bytes, MADV_WILLNEED);
    }
}

void gguf_close(struct gguf *g) {
    if (!g) return;
    for (uint32_t i = 0; i < g->n_files; i++) {
        struct gguf__file *f = &g->files[i];
        if (f->mapped) munmap((void *)f->bytes, f->n_bytes);
        gguf__file_clear(f);
    }
    mem_free(g->files);
    mem_free(g->tensors);
    gguf__index_clear(&g->by_name);
    arena_clear(&g->names);
    mem_free(g);
}

/* Whole pages around a range; the last one may pass the end of the file, whose mapping is whole pages too. */
static int advise(const struct gguf *g, const struct tensor *t, size_t from, size_t n_bytes, int advice) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)t->data + from, start = at & ~(page - 1);
    return g->files[t->file].mapped && n_bytes ? madvise((void *)start, at + n_bytes - start, advice) : 0;
}

void gguf_fetch(const struct gguf *g, const struct tensor *t, size_t from, size_t n_bytes) {
    enum { AHEAD_BYTES = 128 * 1024 }; /* what the kernel takes of one advice at least */
    for (size_t at = from, end = from + n_bytes; at < end; at += AHEAD_BYTES)
        advise(g, t, at, end - at < AHEAD_BYTES ? end - at : AHEAD_BYTES, MADV_WILLNEED);
    advise(g, t, from, n_bytes, MADV_POPULATE_READ);
}

void gguf_no_readahead(const struct gguf *g) {
    for (uint32_t i = 0; i < g->n_files; i++) {
        const struct gguf__file *f = &g->files[i];
        if (f->mapped) madvise((void *)f->bytes, f->n_bytes, MADV_RANDOM);
    }
}

void gguf_drop(const struct gguf *g, const struct tensor *t, size_t from, size_t n_bytes) {
    advise(g, t, from, n_bytes, MADV_DONTNEED);
}

uint32_t gguf_version(const struct gguf *g) { return g->files[0].version; }
uint32_t gguf_n_files(const struct gguf *g) { return g->n_files; }
const char *gguf_file_path(const struct gguf *g, uint32_t file) { return g->files[file].path; }

uint64_t gguf_total_bytes(const struct gguf *g) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < g->n_files; i++) sum += g->files[i].n_bytes;
    return sum;
}

const void *gguf_head(const struct gguf *g, uint32_t file, size_t *n_bytes) {
    *n_bytes = g->files[file].data_at;
    return g->files[file].bytes;
}

/* ---- metadata ---- */

static const struct {
    const char *name;
    size_t n_bytes;
} TYPES[] = {
    [GGUF_U8] = { "u8", 1 },      [GGUF_I8] = { "i8", 1 },       [GGUF_U16] = { "u16", 2 },  [GGUF_I16] = { "i16", 2 },
    [GGUF_U32] = { "u32", 4 },    [GGUF_I32] = { "i32", 4 },     [GGUF_F32] = { "f32", 4 },  [GGUF_BOOL] = { "bool", 1 },
    [GGUF_STRING] = { "string", 0 }, [GGUF_ARRAY] = { "array", 0 }, [GGUF_U64] = { "u64", 8 }, [GGUF_I64] = { "i64", 8 },
    [GGUF_F64] = { "f64", 8 },
};

const char *gguf__type_name(enum gguf_type t) { return TYPES[t].name; }
size_t gguf__type_bytes(enum gguf_type t) { return TYPES[t].n_bytes; }

const char *gguf__printable(struct gguf_str s, char *out, size_t cap) {
    size_t n = s.len < cap - 1 ? s.len : cap - 1;
    for (size_t i = 0; i < n; i++) {
        unsigned char b = (unsigned char)s.s[i];
        out[i] = b < 0x20 || b >= 0x7f ? '?' : (char)b;
    }
    out[n] = '\0';
    return out;
}

/* Element i of an integer or bool entry; false for other types and for u64 values above INT64_MAX. */
static bool read_i64(const struct gguf__kv *kv, uint64_t i, int64_t *out) {
    const unsigned char *p = kv->data + i * TYPES[kv->elem].n_bytes;
    union { int8_t i8; int16_t i16; int32_t i32; int64_t i64; uint16_t u16; uint32_t u32; uint64_t u64; } v = { .u64 = 0 };
    memcpy(&v, p, TYPES[kv->elem].n_bytes);
    switch (kv->elem) {
    case GGUF_U8:
    case GGUF_BOOL: *out = (uint8_t)v.i8; return true;
    case GGUF_I8: *out = v.i8; return true;
    case GGUF_U16: *out = v.u16; return true;
    case GGUF_I16: *out = v.i16; return true;
    case GGUF_U32: *out = v.u32; return true;
    case GGUF_I32: *out = v.i32; return true;
    case GGUF_I64: *out = v.i64; return true;
    case GGUF_U64: *out = v.i64; return v.u64 <= INT64_MAX;
    default: return false;
    }
}

static struct gguf_str read_str(const struct gguf__kv *kv, uint64_t i) {
    const unsigned char *p = kv->data + kv->str_at[i];
    uint64_t len;
    memcpy(&len, p, sizeof len);
    return (struct gguf_str){ (const char *)p + sizeof len, len };
}

const struct gguf__kv *gguf__find_kv(const struct gguf__file *f, const char *key) {
    int64_t i = gguf__index_find(&f->by_key, f->kv, sizeof *f->kv, key);
    return i < 0 ? NULL : &f->kv[i];
}

/* The scalar `key`, or ST_NOT_FOUND. An array is refused here, so that no getter reads its first element only. */
static int find_scalar(const struct gguf__file *f, const char *key, const char *want, const struct gguf__kv **kv, struct err *e) {
    *kv = gguf__find_kv(f, key);
    if (!*kv) return err_set(e, ST_NOT_FOUND, "%s: key '%s' is missing", f->path, key);
    if ((*kv)->type == GGUF_ARRAY)
        return err_set(e, ST_INVALID, "%s: key '%s' is an array of %llu %s, expected one %s", f->path, key,
                       (unsigned long long)(*kv)->n, TYPES[(*kv)->elem].name, want);
    return ST_OK;
}

static int wrong_type(const struct gguf__file *f, const struct gguf__kv *kv, const char *want, struct err *e) {
    return err_set(e, ST_INVALID, "%s: key '%s' has type %s, expected %s", f->path, kv->key, TYPES[kv->type].name, want);
}

int gguf__kv_u32(const struct gguf__file *f, const char *key, uint32_t *out, struct err *e) {
    const struct gguf__kv *kv;
    int64_t v;
    int rc = find_scalar(f, key, "integer", &kv, e);
    if (rc) return rc;
    if (kv->type == GGUF_STRING || kv->type == GGUF_F32 || kv->type == GGUF_F64 || kv->type == GGUF_BOOL)
        return wrong_type(f, kv, "an integer", e);
    if (!read_i64(kv, 0, &v) || v < 0 || v > UINT32_MAX)
        return err_set(e, ST_INVALID, "%s: key '%s' is outside 0..%u", f->path, key, UINT32_MAX);
    *out = (uint32_t)v;
    return ST_OK;
}

int gguf_n_keys(const struct gguf *g) { return (int)g->files[0].n_kv; }
int gguf_find(const struct gguf *g, const char *key) {
    const struct gguf__file *f = &g->files[0];
    return (int)gguf__index_find(&f->by_key, f->kv, sizeof *f->kv, key);
}
const char *gguf_key(const struct gguf *g, int i) { return g->files[0].kv[i].key; }
enum gguf_type gguf_key_type(const struct gguf *g, int i) { return g->files[0].kv[i].type; }

const void *gguf_key_entry(const struct gguf *g, int i, size_t *n_bytes) {
    const struct gguf__kv *kv = &g->files[0].kv[i];
    const size_t head = sizeof(uint64_t) + strlen(kv->key) + sizeof(uint32_t); /* names have no NUL inside */
    const unsigned char *start = kv->data - head - (kv->type == GGUF_ARRAY ? sizeof(uint32_t) + sizeof(uint64_t) : 0);
    const unsigned char *end = kv->data + kv->n * TYPES[kv->elem].n_bytes;
    if (kv->elem == GGUF_STRING && kv->n) {
        struct gguf_str last = read_str(kv, kv->n - 1);
        end = (const unsigned char *)last.s + last.len;
    }
    *n_bytes = (size_t)(end - start);
    return start;
}

int gguf_get_u32(const struct gguf *g, const char *key, uint32_t *out, struct err *e) {
    return gguf__kv_u32(&g->files[0], key, out, e);
}

int gguf_get_f32(const struct gguf *g, const char *key, float *out, struct err *e) {
    const struct gguf__kv *kv;
    double v;
    int rc = find_scalar(&g->files[0], key, "f32", &kv, e);
    if (rc) return rc;
    if (kv->type == GGUF_F32) {
        float f;
        memcpy(&f, kv->data, sizeof f);
        v = f;
    } else if (kv->type == GGUF_F64) {
        memcpy(&v, kv->data, sizeof v);
    } else {
        return wrong_type(&g->files[0], kv, "f32 or f64", e);
    }
    if (!(fabs(v) <= 3.4028234663852886e38)) /* FLT_MAX; false for NaN */
        return err_set(e, ST_INVALID, "%s: key '%s' is %g, expected a finite number", g->files[0].path, key, v);
    *out = (float)v;
    return ST_OK;
}

int gguf_get_bool(const struct gguf *g, const char *key, bool *out, struct err *e) {
    const struct gguf__kv *kv;
    int rc = find_scalar(&g->files[0], key, "bool", &kv, e);
    if (rc) return rc;
    if (kv->type != GGUF_BOOL) return wrong_type(&g->files[0], kv, "bool", e);
    *out = kv->data[0] != 0;
    return ST_OK;
}

int gguf_get_str(const struct gguf *g, const char *key, struct gguf_str *out, struct err *e) {
    const struct gguf__kv *kv;
    int rc = find_scalar(&g->files[0], key, "string", &kv, e);
    if (rc) return rc;
    if (kv->type != GGUF_STRING) return wrong_type(&g->files[0], kv, "string", e);
    *out = read_str(kv, 0);
    return ST_OK;
}

int gguf_get_array(const struct gguf *g, const char *key, enum gguf_type *elem_type, uint64_t *n, struct err *e) {
    const struct gguf__kv *kv = gguf__find_kv(&g->files[0], key);
    if (!kv) return err_set(e, ST_NOT_FOUND, "%s: key '%s' is missing", g->files[0].path, key);
    int64_t ignored;
    if (kv->type != GGUF_ARRAY && (kv->elem == GGUF_STRING || !read_i64(kv, 0, &ignored)))
        return wrong_type(&g->files[0], kv, "an array", e);
    *elem_type = kv->elem;
    *n = kv->n;
    return ST_OK;
}

struct gguf_str gguf_array_str(const struct gguf *g, int key_index, uint64_t i) {
    const struct gguf__kv *kv = &g->files[0].kv[key_index];
    if (kv->elem != GGUF_STRING || i >= kv->n) return (struct gguf_str){ "", 0 };
    return read_str(kv, i);
}

int gguf_array_i64(const struct gguf *g, int key_index, uint64_t i, int64_t *out) {
    const struct gguf__kv *kv = &g->files[0].kv[key_index];
    return i < kv->n && read_i64(kv, i, out) ? ST_OK : ST_INVALID;
}

float gguf_array_f32(const struct gguf *g, int key_index, uint64_t i) {
    const struct gguf__kv *kv = &g->files[0].kv[key_index];
    float v = 0;
    if (kv->elem == GGUF_F32 && i < kv->n) memcpy(&v, kv->data + i * sizeof v, sizeof v);
    return v;
}

/* ---- tensors ---- */

uint64_t gguf_n_tensors(const struct gguf *g) { return g->n_tensors; }
const struct tensor *gguf_tensor(const struct gguf *g, uint64_t i) { return &g->tensors[i]; }

const struct tensor *gguf_find_tensor(const struct gguf *g, const char *name) {
    int64_t i = gguf__index_find(&g->by_name, g->tensors, sizeof *g->tensors, name);
    return i < 0 ? NULL : &g->tensors[i];
}
