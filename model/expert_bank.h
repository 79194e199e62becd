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

/* A packed model (`moed pack`) holds each expert as one record: gate, up and down in the layout of kernels/pack.h, one
 * after the other, starting at a multiple of 4096 and padded to one. Its `data` views above are in that layout too. */
struct expert_record {
    uint32_t file;
    uint64_t file_offset;            /* multiple of 4096                    */
    size_t n_bytes;                  /* multiple of 4096                    */
    size_t gate_at, up_at, down_at;  /* within the record, multiples of 64  */
    uint64_t checksum;               /* XXH3, 64 bits, of the n_bytes       */
};
bool expert_bank_is_packed(const struct model *m);
void expert_bank_record(const struct model *m, uint32_t layer, uint32_t expert, struct expert_record *out); /* packed models only */

/* Packed models only: brings a record into memory and compares its checksum; ST_INVALID names layer and expert. */
int expert_bank_check(const struct model *m, uint32_t layer, uint32_t expert, struct err *e);

#endif
