/* SPDX-License-Identifier: Apache-2.0
 *
 * What a packed model will be: the head of its file (the source's metadata, the pack's keys, the table of the tensors
 * that stay) and the place of every record. A function of the source alone, so that two runs plan the same bytes. */
#include <string.h>

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include "base/alloc.h"
#include "kernels/pack.h"
#include "offload/pack_internal.h"

static void put_u32(struct buf *b, uint32_t v) { buf_append(b, &v, sizeof v); }
static void put_u64(struct buf *b, uint64_t v) { buf_append(b, &v, sizeof v); }

static void put_string(struct buf *b, const char *s) {
    put_u64(b, strlen(s));
    buf_puts(b, s);
}

static void put_key(struct buf *b, const char *key, enum gguf_type type) {
    put_string(b, key);
    put_u32(b, type);
}

static void put_array(struct buf *b, const char *key, enum gguf_type type, uint64_t n) {
    put_key(b, key, GGUF_ARRAY);
    put_u32(b, type);
    put_u64(b, n);
}

/* Room for n checksums; returns where. */
static size_t put_blank(struct buf *b, uint64_t n) {
    size_t at = b->len;
    for (uint64_t i = 0; i < n; i++) {
        put_u64(b, 0);
    }
    return at;
}

static void put_padding(struct buf *b, uint32_t align) {
    while (b->len % align && !b->failed) {
        buf_putc(b, 0);
    }
}

static const struct tensor *const *parts_of(const struct model *m, uint32_t layer, const struct tensor *out[3]) {
    const struct model_layer *l = model_layer(m, layer);
    out[0] = l->gate_exps;
    out[1] = l->up_exps;
    out[2] = l->down_exps;
    return out;
}

static void plan_layer(struct pack__plan *p, uint32_t layer) {
    const struct tensor *parts[3];
    parts_of(p->model, layer, parts);
    struct pack__layer *pl = &p->layers[p->n_layers++];
    pl->layer = layer;
    expert_pack_layout(parts[0]->n_bytes / p->n_experts, parts[1]->n_bytes / p->n_experts, parts[2]->n_bytes / p->n_experts, &pl->record);
    for (int i = 0; i < 3; i++) {
        size_t group = KERN_PACK_ROWS * dtype_row_bytes(dtype_info(parts[i]->dtype), parts[i]->ne[0]);
        p->group_bytes = group > p->group_bytes ? group : p->group_bytes;
        p->is_expert[parts[i] - gguf_tensor(p->source, 0)] = true;
    }
}

/* The keys of the source, but how it was split. */
static uint64_t put_source_keys(struct pack__plan *p) {
    uint64_t n = 0;
    for (int i = 0; i < gguf_n_keys(p->source); i++) {
        if (!strncmp(gguf_key(p->source, i), "split.", 6)) {
            continue;
        }
        size_t n_bytes;
        const void *entry = gguf_key_entry(p->source, i, &n_bytes);
        buf_append(&p->head, entry, n_bytes);
        n++;
    }
    return n;
}

static uint64_t hash_heads(const struct gguf *g) {
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH3_64bits_reset(&state);
    for (uint32_t i = 0; i < gguf_n_files(g); i++) {
        size_t n;
        const void *head = gguf_head(g, i, &n);
        XXH3_64bits_update(&state, head, n);
    }
    return XXH3_64bits_digest(&state);
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static void put_layer_keys(struct pack__plan *p) {
    struct buf *b = &p->head;
    put_array(b, EXPERT_PACK_KEY_LAYERS, GGUF_U32, p->n_layers);
    for (uint32_t i = 0; i < p->n_layers; i++) {
        put_u32(b, p->layers[i].layer);
    }
    put_array(b, EXPERT_PACK_KEY_TYPES, GGUF_U32, UINT64_C(3) * p->n_layers);
    for (uint32_t i = 0; i < p->n_layers; i++) {
        const struct tensor *parts[3];
        parts_of(p->model, p->layers[i].layer, parts);
        for (int j = 0; j < 3; j++) {
            put_u32(b, parts[j]->dtype);
        }
    }
    put_array(b, EXPERT_PACK_KEY_RECORD_BYTES, GGUF_U64, p->n_layers);
    for (uint32_t i = 0; i < p->n_layers; i++) {
        put_u64(b, p->layers[i].record.n_bytes);
    }
}

/* *records_at: where the offset of the first record is to be written. Returns the number of keys; the last one is the
 * checksum of the head. */
static uint64_t put_pack_keys(struct pack__plan *p, size_t *records_at) {
    struct buf *b = &p->head;
    const struct model_hparams *hp = model_hparams(p->model);
    put_key(b, EXPERT_PACK_KEY_VERSION, GGUF_U32);
    put_u32(b, EXPERT_PACK_VERSION);
    put_key(b, EXPERT_PACK_KEY_ALIGN, GGUF_U32);
    put_u32(b, EXPERT_PACK_ALIGN);
    put_array(b, EXPERT_PACK_KEY_SHAPE, GGUF_U32, 3);
    put_u32(b, hp->n_embd);
    put_u32(b, hp->expert_ff_dim);
    put_u32(b, hp->n_experts);
    put_layer_keys(p);
    put_key(b, EXPERT_PACK_KEY_SOURCE_NAME, GGUF_STRING);
    put_string(b, base_name(gguf_file_path(p->source, 0)));
    put_key(b, EXPERT_PACK_KEY_SOURCE_BYTES, GGUF_U64);
    put_u64(b, gguf_total_bytes(p->source));
    put_key(b, EXPERT_PACK_KEY_SOURCE_HASH, GGUF_I64);
    put_u64(b, p->source_hash);
    put_key(b, EXPERT_PACK_KEY_RECORDS_AT, GGUF_U64);
    *records_at = put_blank(b, 1);
    put_array(b, EXPERT_PACK_KEY_CHECKSUMS, GGUF_I64, p->n_records);
    p->checksums_at = put_blank(b, p->n_records);
    put_key(b, EXPERT_PACK_KEY_DENSE_CHECKSUM, GGUF_I64);
    p->dense_checksum_at = put_blank(b, 1);
    put_key(b, EXPERT_PACK_KEY_INDEX_CHECKSUM, GGUF_I64);
    p->index_checksum_at = put_blank(b, 1);
    return 13;
}

/* The table of the tensors that stay; tensor_at relative to the data section. Returns the bytes of their data. */
static uint64_t put_tensors(struct pack__plan *p, uint32_t align, uint64_t *n_tensors) {
    uint64_t at = 0;
    for (uint64_t i = 0; i < gguf_n_tensors(p->source); i++) {
        const struct tensor *t = gguf_tensor(p->source, i);
        if (p->is_expert[i]) {
            continue;
        }
        p->tensor_at[i] = at;
        put_string(&p->head, t->name);
        put_u32(&p->head, t->n_dims);
        for (uint32_t d = 0; d < t->n_dims; d++) {
            put_u64(&p->head, t->ne[d]);
        }
        put_u32(&p->head, t->dtype);
        put_u64(&p->head, at);
        at += (t->n_bytes + align - 1) / align * align; /* each lies in a file, and there are at most 2^18: no overflow */
        (*n_tensors)++;
    }
    return at;
}

static void place_records(struct pack__plan *p, uint64_t data_bytes, size_t records_at_at) {
    p->records_at = (p->head.len + data_bytes + EXPERT_PACK_ALIGN - 1) / EXPERT_PACK_ALIGN * EXPERT_PACK_ALIGN;
    p->total_bytes = p->records_at;
    for (uint32_t i = 0; i < p->n_layers; i++) {
        p->layers[i].record.file_offset = p->total_bytes;
        p->total_bytes += (uint64_t)p->layers[i].record.n_bytes * p->n_experts;
    }
    for (uint64_t i = 0; i < gguf_n_tensors(p->source); i++) {
        p->tensor_at[i] += p->head.len;
    }
    memcpy(p->head.data + records_at_at, &p->records_at, sizeof p->records_at);
}

static int put_head(struct pack__plan *p, struct err *e) {
    uint64_t n_tensors = 0, n_keys;
    uint32_t align = 32;
    size_t records_at_at;
    gguf_get_u32(p->source, "general.alignment", &align, NULL); /* absent: the format's 32 */
    buf_append(&p->head, "GGUF", 4);
    put_u32(&p->head, 3);
    const size_t counts_at = put_blank(&p->head, 2);
    n_keys = put_source_keys(p);
    n_keys += put_pack_keys(p, &records_at_at);
    const uint64_t data_bytes = put_tensors(p, align, &n_tensors);
    put_padding(&p->head, align);
    if (p->head.failed) {
        return err_set(e, ST_NOMEM, "out of memory for the head of the packed file");
    }
    memcpy(p->head.data + counts_at, &n_tensors, sizeof n_tensors);
    memcpy(p->head.data + counts_at + sizeof n_tensors, &n_keys, sizeof n_keys);
    place_records(p, data_bytes, records_at_at);
    p->hash = XXH3_64bits(p->head.data, p->head.len);
    return ST_OK;
}

int pack__plan_make(const struct model *m, struct pack__plan *p, struct err *e) {
    const struct model_hparams *hp = model_hparams(m);
    const uint64_t n_tensors = gguf_n_tensors(model_gguf(m));
    *p = (struct pack__plan){ .model = m, .source = model_gguf(m), .n_experts = hp->n_experts };
    const char *path = gguf_file_path(p->source, 0);
    if (expert_bank_is_packed(m)) {
        return err_set(e, ST_INVALID, "%s: is packed already", path);
    }
    p->layers = mem_zalloc(hp->n_layers, sizeof *p->layers);
    p->is_expert = mem_zalloc(n_tensors, sizeof *p->is_expert);
    p->tensor_at = mem_zalloc(n_tensors, sizeof *p->tensor_at);
    if (!p->layers || !p->is_expert || !p->tensor_at) {
        return err_set(e, ST_NOMEM, "%s: out of memory for the plan of the packed file", path);
    }
    for (uint32_t i = 0; i < hp->n_layers; i++) {
        if (model_layer(m, i)->router) {
            plan_layer(p, i);
        }
    }
    if (!p->n_layers) {
        return err_set(e, ST_INVALID, "%s: a dense model has no experts to pack", path);
    }
    p->n_records = p->n_layers * p->n_experts; /* both at most 1024 */
    p->source_hash = hash_heads(p->source);
    buf_init(&p->head, SIZE_MAX / 2);
    return put_head(p, e);
}

void pack__plan_clear(struct pack__plan *p) {
    mem_free(p->layers);
    mem_free(p->is_expert);
    mem_free(p->tensor_at);
    buf_clear(&p->head);
    *p = (struct pack__plan){ 0 };
}

void pack__plan_seal(struct pack__plan *p, const uint64_t *checksums) {
    memcpy(p->head.data + p->checksums_at, checksums, p->n_records * sizeof *checksums);
    memcpy(p->head.data + p->dense_checksum_at, &checksums[p->n_records], sizeof *checksums);
    const uint64_t index = expert_pack_index_checksum(p->head.data, p->head.len, p->index_checksum_at);
    memcpy(p->head.data + p->index_checksum_at, &index, sizeof index);
}

uint64_t pack__unit_bytes(const struct pack__plan *p, uint32_t unit) {
    return unit < p->n_records ? p->layers[unit / p->n_experts].record.n_bytes : p->records_at - p->head.len;
}
