/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the keys of a packed model (expert_pack.h) and stands in for its expert tensors: type and shape, no data. The
 * file is hostile: what can be derived from the metadata and the types is derived, and the file's numbers are only
 * compared with it; the head is covered by a checksum, so that a bit that rotted there is found before anything is used.
 * The checksum is no protection against intent: every number is bounded all the same. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#define XXH_STATIC_LINKING_ONLY /* the state's size, to have it on the stack */
#include <xxhash.h>

#include "base/alloc.h"
#include "model/gguf_internal.h"
#include "model/model_internal.h"

static const char *const PART_NAMES[3] = { "gate", "up", "down" };

void expert_pack_layout(size_t gate_bytes, size_t up_bytes, size_t down_bytes, struct expert_record *out) {
    const size_t part = EXPERT_PACK_PART_ALIGN - 1, whole = EXPERT_PACK_ALIGN - 1;
    out->gate_at = 0;
    out->up_at = (gate_bytes + part) & ~part;
    out->down_at = (out->up_at + up_bytes + part) & ~part;
    out->n_bytes = (out->down_at + down_bytes + whole) & ~whole;
}

uint64_t expert_pack_index_checksum(const void *head, size_t n_bytes, size_t checksum_at) {
    static const unsigned char zeros[sizeof(uint64_t)];
    const unsigned char *p = head;
    const size_t after = checksum_at + sizeof zeros;
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH3_64bits_reset(&state);
    XXH3_64bits_update(&state, p, checksum_at);
    XXH3_64bits_update(&state, zeros, sizeof zeros);
    XXH3_64bits_update(&state, p + after, n_bytes - after);
    return XXH3_64bits_digest(&state);
}

static const char *path_of(const struct model__pack *p) { return gguf_file_path(p->gguf, 0); }

/* The integers of `key`, n of them, none above max. NULL: not kept. */
static int read_u64s(const struct model__pack *p, const char *key, uint64_t n, uint64_t max, uint64_t *out, struct err *e) {
    enum gguf_type type;
    uint64_t found;
    int rc = gguf_get_array(p->gguf, key, &type, &found, e);
    if (rc == ST_NOT_FOUND) return err_set(e, ST_INVALID, "%s: key '%s' is missing from a packed model", path_of(p), key);
    if (rc) return rc;
    if (found != n)
        return err_set(e, ST_INVALID, "%s: key '%s' has %" PRIu64 " elements, expected %" PRIu64, path_of(p), key, found, n);
    for (uint64_t i = 0; i < n; i++) {
        int64_t v = -1;
        if (gguf_array_i64(p->gguf, gguf_find(p->gguf, key), i, &v) || v < 0 || (uint64_t)v > max)
            return err_set(e, ST_INVALID, "%s: key '%s': element %" PRIu64 " is not an integer from 0 to %" PRIu64, path_of(p), key, i, max);
        out[i] = (uint64_t)v;
    }
    return ST_OK;
}

static int expect_u64(const struct model__pack *p, const char *key, uint64_t want, int code, struct err *e) {
    uint64_t v = 0;
    int rc = read_u64s(p, key, 1, INT64_MAX, &v, e);
    return rc || v == want ? rc : err_set(e, code, "%s: key '%s' is %" PRIu64 ", expected %" PRIu64, path_of(p), key, v, want);
}

/* Checksums: any 64 bits, in i64s. *at: the key's index. */
static int find_checksums(const struct model__pack *p, const char *key, uint64_t n, int *at, struct err *e) {
    enum gguf_type type;
    uint64_t found;
    int rc = gguf_get_array(p->gguf, key, &type, &found, e);
    if (rc == ST_NOT_FOUND) return err_set(e, ST_INVALID, "%s: key '%s' is missing from a packed model", path_of(p), key);
    if (rc) return rc;
    if (type != GGUF_I64 || found != n)
        return err_set(e, ST_INVALID, "%s: key '%s' has %" PRIu64 " elements of type %s, expected %" PRIu64 " of type i64", path_of(p), key,
                       found, gguf__type_name(type), n);
    *at = gguf_find(p->gguf, key);
    return ST_OK;
}

static uint64_t checksum_of(const struct gguf *g, int key, uint64_t i) {
    int64_t v = 0;
    gguf_array_i64(g, key, i, &v);
    return (uint64_t)v;
}

static int check_index(const struct model__pack *p, struct err *e) {
    const struct gguf__file *f = &p->gguf->files[0];
    int key;
    int rc = find_checksums(p, EXPERT_PACK_KEY_INDEX_CHECKSUM, 1, &key, e);
    if (rc) return rc;
    const uint64_t want = checksum_of(p->gguf, key, 0);
    const uint64_t got = expert_pack_index_checksum(f->bytes, f->data_at, (size_t)(f->kv[key].data - f->bytes));
    if (got != want)
        return err_set(e, ST_INVALID, "%s: the head of the file is corrupt: its checksum is %016" PRIx64 ", key '%s' says %016" PRIx64
                       "; pack the model again", path_of(p), got, EXPERT_PACK_KEY_INDEX_CHECKSUM, want);
    return ST_OK;
}

/* Version first: another one may mean other keys. */
int model__pack_open(const struct gguf *g, struct model__pack *p, struct err *e) {
    *p = (struct model__pack){ .gguf = g, .checksums = -1 };
    if (gguf_find(g, EXPERT_PACK_KEY_VERSION) < 0) return ST_OK;
    int rc = expect_u64(p, EXPERT_PACK_KEY_VERSION, EXPERT_PACK_VERSION, ST_UNSUPPORTED, e);
    if (!rc && gguf_n_files(g) != 1)
        rc = err_set(e, ST_INVALID, "%s: key '%s' in a model of %u files, expected one", path_of(p), EXPERT_PACK_KEY_VERSION, gguf_n_files(g));
    if (!rc) rc = check_index(p, e);
    if (!rc) rc = expect_u64(p, EXPERT_PACK_KEY_ALIGN, EXPERT_PACK_ALIGN, ST_UNSUPPORTED, e);
    p->is_packed = !rc;
    return rc;
}

static int fill_part(const struct model__pack *p, struct model__pack_layer *pl, uint32_t layer, int i, uint64_t type, const uint64_t ne[3],
                     struct err *e) {
    const struct dtype_info *fmt = dtype_info((uint32_t)type);
    struct tensor *t = &pl->part[i];
    if (!fmt)
        return err_set(e, ST_UNSUPPORTED, "%s: key '%s': type of %s of layer %u is %" PRIu64 ", which this build cannot compute with",
                       path_of(p), EXPERT_PACK_KEY_TYPES, PART_NAMES[i], layer, type);
    if (ne[0] % fmt->block_elems)
        return err_set(e, ST_INVALID, "%s: key '%s': type of %s of layer %u is %s, but rows of %" PRIu64 " weights are no whole blocks of %u",
                       path_of(p), EXPERT_PACK_KEY_TYPES, PART_NAMES[i], layer, fmt->name, ne[0], fmt->block_elems);
    snprintf(pl->name[i], sizeof pl->name[i], "blk.%u.ffn_%s_exps.weight", layer, PART_NAMES[i]);
    *t = (struct tensor){ .name = pl->name[i], .dtype = (enum dtype)type, .n_dims = 3, .ne = { ne[0], ne[1], ne[2], 1 } };
    t->n_bytes = dtype_row_bytes(fmt, ne[0]) * ne[1] * ne[2]; /* below 2^52: the MODEL_MAX_* bounds */
    return ST_OK;
}

static int fill_layer(const struct model__pack *p, const struct model_hparams *hp, struct model__pack_layer *pl, uint32_t layer,
                      const uint64_t types[3], struct err *e) {
    const uint64_t d = hp->n_embd, ff = hp->expert_ff_dim, n = hp->n_experts;
    const uint64_t in[3] = { d, ff, n }, out[3] = { ff, d, n };
    for (int i = 0; i < 3; i++) {
        int rc = fill_part(p, pl, layer, i, types[i], i < 2 ? in : out, e);
        if (rc) return rc;
    }
    expert_pack_layout(pl->part[0].n_bytes / n, pl->part[1].n_bytes / n, pl->part[2].n_bytes / n, &pl->record);
    return ST_OK;
}

/* What the file says about its routed layers, as read_u64s gives it. */
struct claims { uint64_t *layers, *types, *record_bytes; };

static int read_claims(const struct model__pack *p, uint64_t n, struct claims *c, struct err *e) {
    c->layers = mem_zalloc(5 * n, sizeof *c->layers);
    if (!c->layers) return err_set(e, ST_NOMEM, "%s: out of memory for the index of a packed model", path_of(p));
    c->types = c->layers + n;
    c->record_bytes = c->types + 3 * n;
    int rc = read_u64s(p, EXPERT_PACK_KEY_LAYERS, n, UINT32_MAX, c->layers, e);
    if (!rc) rc = read_u64s(p, EXPERT_PACK_KEY_TYPES, 3 * n, UINT32_MAX, c->types, e);
    return rc ? rc : read_u64s(p, EXPERT_PACK_KEY_RECORD_BYTES, n, INT64_MAX, c->record_bytes, e);
}

static int check_shape(const struct model__pack *p, const struct model_hparams *hp, struct err *e) {
    const uint64_t want[3] = { hp->n_embd, hp->expert_ff_dim, hp->n_experts };
    uint64_t got[3];
    int rc = read_u64s(p, EXPERT_PACK_KEY_SHAPE, 3, UINT32_MAX, got, e);
    if (!rc && memcmp(got, want, sizeof got))
        rc = err_set(e, ST_INVALID, "%s: key '%s' is %" PRIu64 ", %" PRIu64 ", %" PRIu64 ", expected %" PRIu64 ", %" PRIu64 ", %" PRIu64
                     " from the metadata", path_of(p), EXPERT_PACK_KEY_SHAPE, got[0], got[1], got[2], want[0], want[1], want[2]);
    return rc;
}

/* The records are the end of the file, nothing missing and nothing after them. */
static int check_place(const struct model__pack *p, struct err *e) {
    const struct gguf__file *f = &p->gguf->files[0];
    const uint64_t at = p->records_at;
    if (at % EXPERT_PACK_ALIGN || at < f->data_at || at > f->n_bytes)
        return err_set(e, ST_INVALID, "%s: key '%s' is %" PRIu64 ", expected a multiple of %d from %zu to %zu (is the file truncated?)",
                       path_of(p), EXPERT_PACK_KEY_RECORDS_AT, at, EXPERT_PACK_ALIGN, f->data_at, f->n_bytes);
    if (p->records_bytes != f->n_bytes - at)
        return err_set(e, ST_INVALID, "%s: the file has %zu bytes, expected %" PRIu64 " with its records (is it truncated?)", path_of(p),
                       f->n_bytes, at + p->records_bytes);
    for (uint64_t i = 0; i < p->gguf->n_tensors; i++) {
        const struct tensor *t = &p->gguf->tensors[i];
        if (t->file_offset + t->n_bytes > at)
            return err_set(e, ST_INVALID, "%s: tensor '%s' reaches into the records, which key '%s' puts at %" PRIu64, path_of(p), t->name,
                           EXPERT_PACK_KEY_RECORDS_AT, at);
    }
    return ST_OK;
}

static int fill_layers(struct model__pack *p, const struct model_hparams *hp, struct model_layer *layers, const struct claims *c, struct err *e) {
    uint64_t k = 0;
    for (uint32_t l = 0; l < hp->n_layers; l++) {
        if (!layers[l].router) continue;
        struct model__pack_layer *pl = &p->layers[l];
        if (c->layers[k] != l)
            return err_set(e, ST_INVALID, "%s: key '%s': element %" PRIu64 " is %" PRIu64 ", expected %u, the next layer with a router",
                           path_of(p), EXPERT_PACK_KEY_LAYERS, k, c->layers[k], l);
        int rc = fill_layer(p, hp, pl, l, c->types + 3 * k, e);
        if (rc) return rc;
        if (c->record_bytes[k] != pl->record.n_bytes)
            return err_set(e, ST_INVALID, "%s: key '%s': element %" PRIu64 " is %" PRIu64 ", expected %zu from types and shape", path_of(p),
                           EXPERT_PACK_KEY_RECORD_BYTES, k, c->record_bytes[k], pl->record.n_bytes);
        pl->first = k * hp->n_experts;
        pl->record.file_offset = p->records_at + p->records_bytes; /* both below 2^63, by the MODEL_MAX_* bounds */
        p->records_bytes += (uint64_t)pl->record.n_bytes * hp->n_experts;
        layers[l].gate_exps = &pl->part[0];
        layers[l].up_exps = &pl->part[1];
        layers[l].down_exps = &pl->part[2];
        k++;
    }
    return ST_OK;
}

int model__pack_bind(struct model__pack *p, const struct model_hparams *hp, struct model_layer *layers, struct err *e) {
    struct claims c = { 0 };
    uint64_t n = 0;
    for (uint32_t l = 0; l < hp->n_layers; l++) n += layers[l].router != NULL;
    if (n == 0)
        return err_set(e, ST_INVALID, "%s: key '%s' in a model without a router", path_of(p), EXPERT_PACK_KEY_VERSION);
    p->n_records = n * hp->n_experts;
    p->layers = mem_zalloc(hp->n_layers, sizeof *p->layers);
    int rc = p->layers ? read_claims(p, n, &c, e) : err_set(e, ST_NOMEM, "%s: out of memory for %u layers", path_of(p), hp->n_layers);
    if (!rc) rc = check_shape(p, hp, e);
    if (!rc) rc = read_u64s(p, EXPERT_PACK_KEY_RECORDS_AT, 1, INT64_MAX, &p->records_at, e);
    if (!rc) rc = find_checksums(p, EXPERT_PACK_KEY_CHECKSUMS, p->n_records, &p->checksums, e);
    if (!rc) rc = find_checksums(p, EXPERT_PACK_KEY_DENSE_CHECKSUM, 1, &p->dense_checksum, e);
    if (!rc) rc = fill_layers(p, hp, layers, &c, e);
    if (!rc) rc = check_place(p, e);
    mem_free(c.layers);
    if (rc) return rc;
    struct gguf_str name = { "(unknown)", 9 };
    gguf_get_str(p->gguf, EXPERT_PACK_KEY_SOURCE_NAME, &name, NULL);
    gguf__printable(name, p->source_name, sizeof p->source_name);
    if (read_u64s(p, EXPERT_PACK_KEY_SOURCE_BYTES, 1, INT64_MAX, &p->source_bytes, NULL)) p->source_bytes = 0;
    return ST_OK;
}

void model__pack_clear(struct model__pack *p) {
    mem_free(p->layers);
    *p = (struct model__pack){ 0 };
}

/* ---- the public side ---- */

void model__pack_record(const struct model__pack *p, uint32_t layer, uint32_t expert, struct expert_record *out) {
    const struct model__pack_layer *pl = &p->layers[layer];
    *out = pl->record;
    out->file_offset += (uint64_t)expert * pl->record.n_bytes;
    out->checksum = checksum_of(p->gguf, p->checksums, pl->first + expert);
}

void model__pack_info(const struct model__pack *p, struct expert_pack_info *out) {
    const struct gguf__file *f = &p->gguf->files[0];
    *out = (struct expert_pack_info){
        .n_records = p->n_records,
        .records_at = p->records_at,
        .records_bytes = p->records_bytes,
        .dense_at = f->data_at,
        .dense_bytes = p->records_at - f->data_at,
        .dense_checksum = checksum_of(p->gguf, p->dense_checksum, 0),
        .source_name = p->source_name,
        .source_bytes = p->source_bytes,
    };
}
