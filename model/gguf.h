/* SPDX-License-Identifier: Apache-2.0
 *
 * GGUF v2/v3 reader, split files included ("name-00001-of-00003.gguf": open the first). The file is hostile:
 * every count, offset, string and dimension is bounded before use, and a bad file gives one error naming the
 * field, what was expected and what was found. Files are mapped read-only (MAP_SHARED).
 * Immutable after gguf_open: any thread may read. Format: ggml/docs/gguf.md. */
#ifndef MOED_MODEL_GGUF_H
#define MOED_MODEL_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "model/tensor.h"

struct gguf; /* opaque */

enum gguf_type {
    GGUF_U8, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_F32, GGUF_BOOL,
    GGUF_STRING, GGUF_ARRAY, GGUF_U64, GGUF_I64, GGUF_F64,
};

struct gguf_str { const char *s; size_t len; }; /* view; not NUL-terminated */

int gguf_open(struct gguf **out, const char *path, struct err *e); /* returns owned, free with gguf_close */
void gguf_close(struct gguf *g);

/* Parse from memory, for fuzzing and tests; `bytes` is borrowed until gguf_close. Single file only. Tensor data is
 * as aligned as `bytes` is. */
int gguf_open_memory(struct gguf **out, const void *bytes, size_t n_bytes, struct err *e);

uint32_t gguf_version(const struct gguf *g);
uint32_t gguf_n_files(const struct gguf *g);
const char *gguf_file_path(const struct gguf *g, uint32_t file);
uint64_t gguf_total_bytes(const struct gguf *g); /* all split files */
/* Everything before the tensors' data: header, metadata, tensor table and the padding behind it. View. */
const void *gguf_head(const struct gguf *g, uint32_t file, size_t *n_bytes);

/* Brings the files into memory now, so that the first use of a weight is not a page fault. Advice: a kernel that
 * cannot (before Linux 5.14) reads ahead instead. For models that fit into RAM. */
void gguf_prefault(const struct gguf *g);
/* The same for a range of one tensor's bytes, and the opposite: drop lets this process go of its pages; the data comes
 * back from the file when touched again. */
void gguf_fetch(const struct gguf *g, const struct tensor *t, size_t from, size_t n_bytes);
/* From now on a fault brings in its own page only, and gguf_fetch its own range: without it the kernel reads megabytes
 * around either, which for parts of a model larger than memory is most of the file. */
void gguf_no_readahead(const struct gguf *g);
void gguf_drop(const struct gguf *g, const struct tensor *t, size_t from, size_t n_bytes);

/* Key lookups. gguf_find returns an index or -1. The typed getters return 0, ST_NOT_FOUND, or ST_INVALID with
 * *e filled when the key has another type or the value does not fit; the integer getter accepts every integer type
 * but not bool, the float getter f32 and f64, finite only. *e is filled for ST_NOT_FOUND too. */
int gguf_n_keys(const struct gguf *g);
int gguf_find(const struct gguf *g, const char *key);
const char *gguf_key(const struct gguf *g, int i);             /* NUL-terminated view */
enum gguf_type gguf_key_type(const struct gguf *g, int i);
const void *gguf_key_entry(const struct gguf *g, int i, size_t *n_bytes); /* name, type and value as they lie in the file */
int gguf_get_u32(const struct gguf *g, const char *key, uint32_t *out, struct err *e);
int gguf_get_f32(const struct gguf *g, const char *key, float *out, struct err *e);
int gguf_get_bool(const struct gguf *g, const char *key, bool *out, struct err *e);
int gguf_get_str(const struct gguf *g, const char *key, struct gguf_str *out, struct err *e);

/* Arrays. A scalar integer or bool reads as an array of length 1 (some keys are either). key_index must be one that
 * gguf_find gave; an i out of range or another element type gives "", ST_INVALID or 0. */
int gguf_get_array(const struct gguf *g, const char *key, enum gguf_type *elem_type, uint64_t *n, struct err *e);
struct gguf_str gguf_array_str(const struct gguf *g, int key_index, uint64_t i); /* GGUF_STRING arrays; O(1) */
int gguf_array_i64(const struct gguf *g, int key_index, uint64_t i, int64_t *out); /* integer and bool arrays */
float gguf_array_f32(const struct gguf *g, int key_index, uint64_t i);             /* F32 arrays          */

/* Every tensor's data lies inside its file and its rows are whole blocks. A tensor may have a dtype that dtype_info
 * refuses: opening succeeds so that the file can be inspected; model_open refuses such a model. */
uint64_t gguf_n_tensors(const struct gguf *g);
const struct tensor *gguf_tensor(const struct gguf *g, uint64_t i);
const struct tensor *gguf_find_tensor(const struct gguf *g, const char *name); /* NULL when absent; hashed */

#endif
