/* SPDX-License-Identifier: Apache-2.0
 *
 * Bookkeeping of a mixture-of-experts layer: group (token, slot) pairs by expert with a stable counting sort, so
 * that each expert's rows are contiguous and the order never depends on threads. */
#ifndef MOED_KERNELS_MOE_H
#define MOED_KERNELS_MOE_H

#include <stdint.h>

struct kern_moe_group {
    uint32_t n_tokens, k, n_experts;
    const int32_t *ids;   /* [n_tokens, k] in [0, n_experts), or -1: an empty slot             */
    int32_t *first;       /* out [n_experts + 1]: rows of expert e are [first[e], first[e+1])  */
    int32_t *row_token;   /* out [n_tokens * k]: token of sorted row i                         */
    int32_t *pair_row;    /* out [n_tokens, k]: sorted row of pair (t, j), for the combine; -1: empty */
};

void kern_moe_group(const struct kern_moe_group *d);

#endif
