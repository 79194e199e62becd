/* SPDX-License-Identifier: Apache-2.0
 *
 * Grouping of (token, slot) pairs by expert: a counting sort in three passes over the pairs, with `first` as the
 * only counters, so no scratch is needed. Pairs of one expert keep their (token, slot) order. */
#include "kernels/moe.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

void kern_moe_group(const struct kern_moe_group *d) {
    size_t n_pairs = (size_t)d->n_tokens * d->k;
    memset(d->first, 0, (d->n_experts + 1) * sizeof *d->first);

    for (size_t i = 0; i < n_pairs; i++) {
        assert(d->ids[i] >= -1 && d->ids[i] < (int32_t)d->n_experts);
        if (d->ids[i] >= 0) d->first[d->ids[i] + 1]++;
    }
    for (uint32_t e = 0; e < d->n_experts; e++) d->first[e + 1] += d->first[e];

    /* first[e] walks over expert e's rows while they are handed out and ends where expert e + 1 starts ... */
    for (size_t i = 0; i < n_pairs; i++) {
        if (d->ids[i] < 0) {
            d->pair_row[i] = -1;
            continue;
        }
        int32_t row = d->first[d->ids[i]]++;
        d->row_token[row] = (int32_t)(i / d->k);
        d->pair_row[i] = row;
    }
    /* ... so moving all of them up by one restores the starts. */
    memmove(d->first + 1, d->first, d->n_experts * sizeof *d->first);
    d->first[0] = 0;
}
