/* SPDX-License-Identifier: Apache-2.0
 *
 * (layer, expert) -> where its three matrices lie. The unit the expert store moves. Pure functions over an
 * open model; any thread. */
#ifndef MOED_MODEL_EXPERT_BANK_H
#define MOED_MODEL_EXPERT_BANK_H

#include "model/model.h"

struct expert_matrix {
    enum dtype dtype;
    uint32_t n_in, n_out;    /* row length, rows            */
    size_t row_bytes;
    const void *data;        /* view into the mapped file   */
    uint32_t file;
    uint64_t file_offset;
    size_t n_bytes;          /* n_out * row_bytes           */
};

struct expert { struct expert_matrix gate, up, down; };

/* layer must have a router and expert < n_experts. */
void expert_bank_get(const struct model *m, uint32_t layer, uint32_t expert, struct expert *out);

#endif
