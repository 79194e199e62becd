/* SPDX-License-Identifier: Apache-2.0
 *
 * Slices the stacked expert tensors {in, out, n_experts}: expert i is the i-th contiguous run of `out` rows; or the
 * records of a packed model. */
#include "model/expert_bank.h"

#include <assert.h>
#include <inttypes.h>
#include <xxhash.h>

#include "model/gguf_internal.h"
#include "model/model_internal.h"

static struct expert_matrix slice(const struct tensor *t, uint32_t expert) {
    const size_t row_bytes = dtype_row_bytes(dtype_info(t->dtype), t->ne[0]);
    const size_t n_bytes = row_bytes * t->ne[1];
    const bool here = t->data;  /* else the caller places it */
    return (struct expert_matrix){
        .dtype = t->dtype,
        .n_in = (uint32_t)t->ne[0],
        .n_out = (uint32_t)t->ne[1],
        .row_bytes = row_bytes,
        .data = here ? (const char *)t->data + expert * n_bytes : NULL,
        .file = t->file,
        .file_offset = t->file_offset + expert * n_bytes,
        .n_bytes = n_bytes,
    };
}

/* The part of a record, `at` bytes in. */
static void place(const struct model *m, const struct expert_record *r, size_t at, struct expert_matrix *x) {
    x->file = r->file;
    x->file_offset = r->file_offset + at;
    x->data = model_gguf(m)->files[r->file].bytes + x->file_offset;
}

void expert_bank_get(const struct model *m, uint32_t layer, uint32_t expert, struct expert *out) {
    const struct model_layer *l = model_layer(m, layer);
    assert(l->router && expert < model_hparams(m)->n_experts);
    out->gate = slice(l->gate_exps, expert);
    out->up = slice(l->up_exps, expert);
    out->down = slice(l->down_exps, expert);
    if (expert_bank_is_packed(m)) {
        struct expert_record r;
        expert_bank_record(m, layer, expert, &r);
        place(m, &r, r.gate_at, &out->gate);
        place(m, &r, r.up_at, &out->up);
        place(m, &r, r.down_at, &out->down);
    }
}

bool expert_bank_is_packed(const struct model *m) { return model__pack(m)->is_packed; }

void expert_bank_record(const struct model *m, uint32_t layer, uint32_t expert, struct expert_record *out) {
    assert(expert_bank_is_packed(m) && model_layer(m, layer)->router && expert < model_hparams(m)->n_experts);
    model__pack_record(model__pack(m), layer, expert, out);
}

void expert_pack_info(const struct model *m, struct expert_pack_info *out) {
    assert(expert_bank_is_packed(m));
    model__pack_info(model__pack(m), out);
}

int expert_bank_check(const struct model *m, uint32_t layer, uint32_t expert, struct err *e) {
    struct expert_record r;
    expert_bank_record(m, layer, expert, &r);
    const struct gguf *g = model_gguf(m);
    const struct tensor bytes = { .data = g->files[r.file].bytes + r.file_offset, .file = r.file };
    gguf_fetch(g, &bytes, 0, r.n_bytes);
    const uint64_t got = XXH3_64bits(bytes.data, r.n_bytes);
    if (got == r.checksum) return ST_OK;
    return err_set(e, ST_INVALID, "%s: the record of layer %u, expert %u at offset %" PRIu64 " is corrupt: its checksum is %016" PRIx64
                   ", expected %016" PRIx64, gguf_file_path(g, r.file), layer, expert, r.file_offset, got, r.checksum);
}
