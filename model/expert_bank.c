/* SPDX-License-Identifier: Apache-2.0
 *
 * Slices the stacked expert tensors {in, out, n_experts}: expert i is the i-th contiguous run of `out` rows. */
#include "model/expert_bank.h"

#include <assert.h>

static struct expert_matrix slice(const struct tensor *t, uint32_t expert) {
    const size_t row_bytes = dtype_row_bytes(dtype_info(t->dtype), t->ne[0]);
    const size_t n_bytes = row_bytes * t->ne[1];
    return (struct expert_matrix){
        .dtype = t->dtype,
        .n_in = (uint32_t)t->ne[0],
        .n_out = (uint32_t)t->ne[1],
        .row_bytes = row_bytes,
        .data = (const char *)t->data + expert * n_bytes,
        .file = t->file,
        .file_offset = t->file_offset + expert * n_bytes,
        .n_bytes = n_bytes,
    };
}

void expert_bank_get(const struct model *m, uint32_t layer, uint32_t expert, struct expert *out) {
    const struct model_layer *l = model_layer(m, layer);
    assert(l->router && expert < model_hparams(m)->n_experts);
    out->gate = slice(l->gate_exps, expert);
    out->up = slice(l->up_exps, expert);
    out->down = slice(l->down_exps, expert);
}
