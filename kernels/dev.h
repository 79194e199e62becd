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
#include <stddef.h>
#include <stdint.h>

#include "kernels/quant.h"
#include "kernels/router.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kern_stream_handle *kern_stream; /* a cudaStream_t */

/* ---- routing ---- */

enum { KERN_DEV_MAX_EXPERTS = 1024, KERN_DEV_MAX_TOP_K = 32, KERN_DEV_MAX_GROUPS = 32 };

/* kern_route for every row: router.h says what it computes. The pointers of `router` are device memory; n_groups at most
 * KERN_DEV_MAX_GROUPS, k at most KERN_DEV_MAX_TOP_K. counts, unless NULL, gains for each expert the rows that chose it.
 * The weights are the CPU's but for rounding: the softmax adds its terms in another order. */
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

/* kern_rms_norm_fn (norm.h) of every row, and its bits. A row fits shared memory: n up to 50,000 or so, else ST_DEVICE. */
struct kern_dev_rms_norm {
    uint32_t n_rows, n;
    const float *x;  /* [n_rows, n]                  */
    const float *w;  /* [n]                          */
    float eps;
    float *y;        /* out [n_rows, n], may alias x */
};
int kern_dev_rms_norm(const struct kern_dev_rms_norm *d, kern_stream s);

/* ---- an expert layer ---- */

enum { KERN_DEV_GEMM_ROWS = 8 };

/* y[row, r] = sum_k w[expert of row][r, k] * x[gather[row], k] for the rows of a list of tiles (kern_dev_group with tile_rows
 * at most KERN_DEV_GEMM_ROWS), in the arithmetic of gemm.h: the CPU's bits. All quantised formats, packed (pack.h) as on the CPU,
 * so that an expert goes to the device as it is; ST_UNSUPPORTED for others. Every weight is read once per tile. */
struct kern_dev_gemm {
    enum dtype dtype;
    uint32_t n_in, n_out;            /* n_out a multiple of 16                                  */
    const void *const *w;            /* [n_experts]: where each expert's matrix lies; entries that no tile names are not read */
    const struct kern_q8 *x;         /* rows of n_in / 32 blocks                                */
    size_t x_stride;                 /* blocks between rows                                     */
    const int32_t *gather;           /* NULL: x has sorted rows; or [rows]: row of x            */
    const struct kern_dev_tile *tiles;
    const int32_t *n_tiles;          /* [1]                                                     */
    uint32_t max_tiles;              /* at least *n_tiles: the size of the grid                 */
    float *y;                        /* out [sorted rows, n_out]                                */
    size_t y_stride;                 /* floats between rows                                     */
};
int kern_dev_gemm(const struct kern_dev_gemm *d, kern_stream s);

/* y = kern_q8 of silu(gate) * up, or of gate where up is NULL; kern_swiglu_fn and kern_quantize_fn, and their bits. */
struct kern_dev_swiglu {
    uint32_t n_rows, n;       /* n a multiple of 32        */
    const float *gate, *up;   /* [n_rows, n]               */
    struct kern_q8 *y;        /* out [n_rows, n / 32]      */
};
int kern_dev_swiglu(const struct kern_dev_swiglu *d, kern_stream s);

/* x[t] += sum_j w[t, j] * down[pair_row[t, j]], slots in order, by fma; empty slots (-1) add nothing. */
struct kern_dev_combine {
    uint32_t n_tokens, k, n;
    const int32_t *pair_row;  /* [n_tokens, k]             */
    const float *w;           /* [n_tokens, k]             */
    const float *down;        /* [sorted rows, n]          */
    float *x;                 /* in and out [n_tokens, n]  */
};
int kern_dev_combine(const struct kern_dev_combine *d, kern_stream s);

#ifdef __cplusplus
}
#endif

#endif
