/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels of a device with memory of its own (CUDA). Host code sees descriptors and an opaque stream, never CUDA's headers.
 * Pointers are device memory unless said otherwise; descriptors are read during the call. A launcher checks the
 * descriptor (assert: our bug), chooses, launches and returns: ST_OK, or ST_DEVICE when the launch was refused. It neither
 * allocates nor waits; results are there when the stream has come to them. One host thread at a time per stream.
 *
 * Like their CPU counterparts these are batch invariant: every output row is a function of its own input row, in a fixed
 * order of floating-point operations, and no result depends on the order in which blocks or warps run. */
#ifndef MOED_KERNELS_DEV_H
#define MOED_KERNELS_DEV_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/router.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kern_stream_handle *kern_stream; /* a cudaStream_t */

/* ---- routing ---- */

enum { KERN_DEV_MAX_EXPERTS = 1024, KERN_DEV_MAX_TOP_K = 32, KERN_DEV_MAX_GROUPS = 32 };

/* kern_route for every row: router.h says what it computes. The pointers of `router` are device memory; n_groups at most
 * KERN_DEV_MAX_GROUPS, k at most KERN_DEV_MAX_TOP_K. counts, unless NULL, gains for each expert the rows that chose it. */
struct kern_dev_route {
    struct kern_router router;
    uint32_t n_tokens;
    const float *logits; /* [n_tokens, n_experts]                     */
    int32_t *ids;        /* out [n_tokens, k], -1: an empty slot      */
    float *w;            /* out [n_tokens, k]                         */
    int32_t *counts;     /* NULL, or in and out [n_experts]           */
};
int kern_dev_route(const struct kern_dev_route *d, kern_stream s);

/* Rows of one expert that one block of a grouped product works on. */
struct kern_dev_tile {
    int32_t expert, first, n; /* rows [first, first + n) of the sorted rows, 1 <= n <= tile_rows */
};

/* kern_moe_group (moe.h) and the list of tiles of the sorted rows: experts in order, each cut from its first row on into
 * tiles of tile_rows. A fixed grid of at most kern_dev_max_tiles blocks can work off the list without the host knowing
 * how long it is. */
struct kern_dev_group {
    uint32_t n_tokens, k, n_experts; /* n_experts <= KERN_DEV_MAX_EXPERTS */
    const int32_t *ids;              /* [n_tokens, k] in [0, n_experts), or -1 */
    int32_t *first;                  /* out [n_experts + 1]                 */
    int32_t *row_token;              /* out [n_tokens * k]                  */
    int32_t *pair_row;               /* out [n_tokens, k]                   */
    uint32_t tile_rows;              /* 0: no list                          */
    struct kern_dev_tile *tiles;     /* out [kern_dev_max_tiles]            */
    int32_t *n_tiles;                /* out [1]                             */
    int32_t *scratch;                /* [kern_dev_group_scratch] words; NULL when that is 0 */
};
uint32_t kern_dev_max_tiles(uint32_t n_pairs, uint32_t n_experts, uint32_t tile_rows);
uint64_t kern_dev_group_scratch(uint32_t n_pairs, uint32_t n_experts); /* in words of 4 bytes */
int kern_dev_group(const struct kern_dev_group *d, kern_stream s);

/* ---- rows ---- */

/* x = x + add (add NULL: x as it is), written back; y = x / sqrt(mean(x^2) + eps) * w. The sum of squares is in float:
 * 1024 threads' partial sums in index order, then a fixed tree. */
struct kern_dev_rms_norm {
    uint32_t n_rows, n;  /* n a multiple of 4                */
    float *x;            /* in and out [n_rows, n]           */
    const float *add;    /* NULL, or [n_rows, n]             */
    const float *w;      /* [n]                              */
    float eps;
    float *y;            /* out [n_rows, n], may alias add   */
};
int kern_dev_rms_norm(const struct kern_dev_rms_norm *d, kern_stream s);

#ifdef __cplusplus
}
#endif

#endif
