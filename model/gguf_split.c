/* SPDX-License-Identifier: Apache-2.0
 *
 * Split models: N complete GGUF files named "<stem>-00001-of-0000N.gguf" and so on. The first holds the metadata and
 * is the one to open; each carries split.no (from 0) and split.count, and split.tensors.count is the sum over all. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "model/gguf_internal.h"

enum { SPLIT_SUFFIX_BYTES = 20 }; /* "-00001-of-00003.gguf" */

static void split_suffix(char out[32], uint32_t part, uint32_t count) {
    snprintf(out, 32, "-%05u-of-%05u.gguf", part + 1, count);
}

/* Reads an optional u32 of one file; `absent` when it has none. */
static int optional_u32(const struct gguf__file *f, const char *key, uint32_t absent, uint32_t *out, struct err *e) {
    *out = absent;
    int rc = gguf__kv_u32(f, key, out, e);
    return rc == ST_NOT_FOUND ? ST_OK : rc;
}

/* Is this file part `part` of `count`? */
static int check_part(const struct gguf__file *f, uint32_t part, uint32_t count, struct err *e) {
    uint32_t no = 0, n = 0;
    int rc = optional_u32(f, "split.no", UINT32_MAX, &no, e);
    if (!rc) rc = optional_u32(f, "split.count", UINT32_MAX, &n, e);
    if (rc) return rc;
    if (n != count)
        return err_set(e, ST_INVALID, "%s: split.count is %d, expected %u as in the first part", f->path, (int)n, count);
    if (no != part)
        return err_set(e, ST_INVALID, "%s: split.no is %d, expected %u for this file name", f->path, (int)no, part);
    return ST_OK;
}

/* Opening any part but the first is a mistake worth a hint. */
static int check_first(const struct gguf__file *f, uint32_t count, size_t *stem_len, struct err *e) {
    char want[32];
    uint32_t no;
    int rc = optional_u32(f, "split.no", UINT32_MAX, &no, e);
    if (rc) return rc;
    split_suffix(want, 0, count);
    if (no != 0)
        return err_set(e, ST_INVALID, "%s: split.no is %d: this is not the first part of a split model; open the file ending in %s",
                       f->path, (int)no, want);
    size_t len = strlen(f->path);
    if (len < SPLIT_SUFFIX_BYTES || strcmp(f->path + len - SPLIT_SUFFIX_BYTES, want))
        return err_set(e, ST_INVALID, "%s: split.count is %u, so the file name must end in %s; parts are found by name",
                       f->path, count, want);
    *stem_len = len - SPLIT_SUFFIX_BYTES;
    return ST_OK;
}

static int open_part(struct gguf *g, size_t stem_len, uint32_t part, uint32_t count, struct err *e) {
    char suffix[32];
    split_suffix(suffix, part, count);
    char *path = mem_alloc(stem_len + sizeof suffix);
    if (!path) return err_set(e, ST_NOMEM, "out of memory for the path of part %u of %u", part + 1, count);
    memcpy(path, g->files[0].path, stem_len);
    memcpy(path + stem_len, suffix, strlen(suffix) + 1);
    int rc = gguf__add_file(g, path, e);
    if (rc == ST_NOT_FOUND)
        rc = err_set(e, rc, "%s: part %u of %u of the split model is missing", path, part + 1, count);
    if (!rc) rc = check_part(&g->files[part], part, count, e);
    mem_free(path);
    return rc;
}

int gguf__open_splits(struct gguf *g, struct err *e) {
    uint32_t count, n_tensors;
    size_t stem_len = 0;
    int rc = optional_u32(&g->files[0], "split.count", 1, &count, e);
    if (rc || count <= 1) return rc;
    if (count > GGUF_MAX_FILES)
        return err_set(e, ST_LIMIT, "%s: split.count is %u, expected at most %d", g->files[0].path, count, GGUF_MAX_FILES);
    if (!g->files[0].mapped)
        return err_set(e, ST_UNSUPPORTED, "%s: split.count is %u, but a model in memory has one file", g->files[0].path, count);
    if ((rc = check_first(&g->files[0], count, &stem_len, e))) return rc;
    for (uint32_t part = 1; part < count; part++)
        if ((rc = open_part(g, stem_len, part, count, e))) return rc;
    rc = optional_u32(&g->files[0], "split.tensors.count", (uint32_t)g->n_tensors, &n_tensors, e);
    if (!rc && n_tensors != g->n_tensors)
        rc = err_set(e, ST_INVALID, "%s: split.tensors.count is %u, but the %u parts have %llu tensors", g->files[0].path,
                     n_tensors, count, (unsigned long long)g->n_tensors);
    return rc;
}
