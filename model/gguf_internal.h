/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of the GGUF reader: gguf.c opens files and answers lookups, gguf_parse.c turns one hostile file into the
 * structs below, gguf_split.c gathers the parts of a split model, gguf_index.c finds entries by name.
 * Written once during gguf_open, read-only afterwards. */
#ifndef MOED_MODEL_GGUF_INTERNAL_H
#define MOED_MODEL_GGUF_INTERNAL_H

#include "base/arena.h"
#include "model/gguf.h"

/* Bounds on what a file may claim, an order of magnitude above the largest published models. */
enum {
    GGUF_MAX_KEYS = 1 << 16,
    GGUF_MAX_TENSORS = 1 << 18,
    GGUF_MAX_KEY_BYTES = 65535,     /* the format's own limit                                   */
    GGUF_MAX_NAME_BYTES = 255,      /* tensor names; the format says 64                         */
    GGUF_MAX_ARRAY = 1 << 26,       /* elements of a metadata array; vocabularies have 2^18     */
    GGUF_MAX_FILES = 4096,          /* parts of a split model                                   */
    GGUF_MIN_ALIGN = 8,             /* the format wants a multiple of 8; F32 data needs 4       */
    GGUF_MAX_ALIGN = 1 << 16,
    GGUF_DEFAULT_ALIGN = 32,
};

/* One metadata entry. A scalar is an array of one, so that every getter reads data the same way. */
struct gguf__kv {
    const char *key;             /* owned by gguf.names; first field, see gguf__index           */
    enum gguf_type type;         /* as the file says: GGUF_ARRAY or a scalar type               */
    enum gguf_type elem;         /* type of the elements                                        */
    uint64_t n;                  /* elements                                                    */
    const unsigned char *data;   /* first element, in the mapping, not aligned                  */
    uint64_t *str_at;            /* string arrays: byte offset of element i from data; owned    */
};

/* Open-addressing hash from a name to the position of its entry in an array. */
struct gguf__index {
    uint32_t *slots;             /* owned; entry + 1, or 0 when empty                           */
    uint32_t mask;
};

struct gguf__file {
    char *path;                  /* owned                                                       */
    const unsigned char *bytes;
    size_t n_bytes;
    size_t data_at;              /* where the data section starts; at most n_bytes              */
    bool mapped;                 /* bytes came from mmap, not from gguf_open_memory             */
    uint32_t version;
    struct gguf__kv *kv;         /* owned, n_kv                                                 */
    uint32_t n_kv;
    struct gguf__index by_key;
};

struct gguf {
    struct arena names;          /* NUL-terminated copies of all keys and tensor names          */
    struct gguf__file *files;    /* owned, n_files; metadata is that of files[0]                */
    uint32_t n_files;
    struct tensor *tensors;      /* owned, of all files, in file order                          */
    uint64_t n_tensors;
    struct gguf__index by_name;
};

/* gguf_parse.c: reads header, metadata and tensor table of files[file]; appends to g->tensors. */
int gguf__parse_file(struct gguf *g, uint32_t file, struct err *e);
void gguf__file_clear(struct gguf__file *f);

/* gguf.c: maps `path` as the next file and parses it. */
int gguf__add_file(struct gguf *g, const char *path, struct err *e);

/* gguf_split.c: when files[0] is the first part of a split model, adds the others. */
int gguf__open_splits(struct gguf *g, struct err *e);

/* gguf_index.c. `entries` is an array of structs of `stride` bytes that start with their `const char *` name.
 * build returns ST_INVALID with *dup = the second of two equal names, ST_LIMIT when names were chosen to collide. */
int gguf__index_build(struct gguf__index *ix, const void *entries, size_t stride, uint32_t n, uint32_t *dup);
int64_t gguf__index_find(const struct gguf__index *ix, const void *entries, size_t stride, const char *name);
void gguf__index_clear(struct gguf__index *ix);

/* gguf.c: lookups in one file, for the split keys of the later parts. */
const struct gguf__kv *gguf__find_kv(const struct gguf__file *f, const char *key);
int gguf__kv_u32(const struct gguf__file *f, const char *key, uint32_t *out, struct err *e);

const char *gguf__type_name(enum gguf_type t);
size_t gguf__type_bytes(enum gguf_type t);    /* 0 for strings and arrays */

/* Cuts and replaces control and non-ASCII bytes by '?', so that text of a file is safe to print. Returns out. */
const char *gguf__printable(struct gguf_str s, char *out, size_t cap);

/* quant_fmt.c: any format a GGUF may hold, also those dtype_info refuses; block_bytes is 0 for withdrawn ones. */
const struct dtype_info *dtype__known(uint32_t dtype);

#endif
