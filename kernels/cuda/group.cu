/* SPDX-License-Identifier: Apache-2.0
 *
 * (token, slot) pairs sorted by expert, stably: a counting sort whose counters are per warp, so that no atomic decides an
 * order. A block takes CHUNK pairs, a thread each. Within a warp, lanes with the same expert find each other by
 * __match_any_sync and rank by lane; across the block's warps the counts are added up in warp order; across blocks in block order.
 *
 * Up to CHUNK pairs (128 tokens of 8 experts: every decode step) one launch does it all. More take three: counts of each
 * chunk, one block that adds them up, and the scatter, which counts its chunk again rather than have the first keep it. */
#include "kernels/cuda/device.cuh"

#include <assert.h>

static const uint32_t CHUNK = 1024, WARPS = CHUNK / 32;

struct group_smem {
    uint16_t count[WARPS][KERN_DEV_MAX_EXPERTS]; /* of a warp; then of the warps before it */
    int32_t total[KERN_DEV_MAX_EXPERTS];         /* of the chunk                           */
    int32_t warp_sum[WARPS];
};

/* Inclusive sum over the threads before and up to this one; every thread of the block takes part. */
static __device__ __forceinline__ int32_t block_scan(int32_t v, int32_t *warp_sum) {
    const unsigned lane = lane_id(), warp = threadIdx.x / 32;
    for (unsigned by = 1; by < 32; by *= 2) {
        const int32_t before = __shfl_up_sync(ALL_LANES, v, by);
        if (lane >= by) v += before;
    }
    if (lane == 31) warp_sum[warp] = v;
    __syncthreads();
    if (warp == 0) {
        int32_t sum = warp_sum[lane];
        for (unsigned by = 1; by < 32; by *= 2) {
            const int32_t before = __shfl_up_sync(ALL_LANES, sum, by);
            if (lane >= by) sum += before;
        }
        warp_sum[lane] = sum;
    }
    __syncthreads();
    const int32_t before = warp ? warp_sum[warp - 1] : 0;
    __syncthreads(); /* warp_sum may be used again */
    return v + before;
}

/* This thread's pair: its expert (-1: none) and how many pairs of it in the chunk come before. Fills total. */
static __device__ __forceinline__ int32_t count_chunk(const struct kern_dev_group &d, group_smem *s, uint32_t pair, int32_t *before) {
    const unsigned lane = lane_id(), warp = threadIdx.x / 32;
    for (uint32_t i = threadIdx.x; i < WARPS * d.n_experts; i += CHUNK) s->count[i / d.n_experts][i % d.n_experts] = 0;
    __syncthreads();
    const int32_t expert = pair < d.n_tokens * d.k ? d.ids[pair] : -1;
    const uint32_t same = __match_any_sync(ALL_LANES, (uint32_t)expert);
    const uint32_t rank = (uint32_t)__popc(same & ((1u << lane) - 1));
    if (expert >= 0 && rank == 0) s->count[warp][expert] = (uint16_t)__popc(same);
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < d.n_experts; e += CHUNK) {
        int32_t sum = 0;
        for (uint32_t w = 0; w < WARPS; w++) {
            const int32_t n = s->count[w][e];
            s->count[w][e] = (uint16_t)sum;
            sum += n;
        }
        s->total[e] = sum;
    }
    __syncthreads();
    *before = expert >= 0 ? (int32_t)(rank + s->count[warp][expert]) : 0;
    return expert;
}

static __device__ __forceinline__ void place(const struct kern_dev_group &d, uint32_t pair, int32_t expert, int32_t row) {
    if (pair >= d.n_tokens * d.k) return;
    d.pair_row[pair] = expert >= 0 ? row : -1;
    if (expert >= 0) d.row_token[row] = (int32_t)(pair / d.k);
}

/* Thread e has the rows of expert e (0 beyond n_experts): writes first and the tiles; returns the first row of e. */
static __device__ __forceinline__ int32_t write_bounds(const struct kern_dev_group &d, int32_t n, int32_t *warp_sum) {
    const uint32_t e = threadIdx.x;
    const int32_t end = block_scan(n, warp_sum), first = end - n;
    if (e < d.n_experts) d.first[e + 1] = end;
    if (e == 0) d.first[0] = 0;
    if (!d.tile_rows) return first;
    const int32_t rows = (int32_t)d.tile_rows, n_tiles = (n + rows - 1) / rows, tiles_end = block_scan(n_tiles, warp_sum);
    for (int32_t i = 0; i < n_tiles; i++) {
        const int32_t at = i * rows;
        d.tiles[tiles_end - n_tiles + i] = { (int32_t)e, first + at, n - at < rows ? n - at : rows };
    }
    if (e == CHUNK - 1) *d.n_tiles = tiles_end;
    return first;
}

static __global__ void __launch_bounds__(CHUNK) group_small_kernel(struct kern_dev_group d) {
    group_smem *s = shared_memory<group_smem>();
    int32_t before;
    const int32_t expert = count_chunk(d, s, threadIdx.x, &before);
    const int32_t n = threadIdx.x < d.n_experts ? s->total[threadIdx.x] : 0;
    const int32_t first = write_bounds(d, n, s->warp_sum);
    __syncthreads();
    if (threadIdx.x < d.n_experts) s->total[threadIdx.x] = first;
    __syncthreads();
    place(d, threadIdx.x, expert, expert >= 0 ? s->total[expert] + before : -1);
}

/* scratch [chunks, n_experts]: pairs of each expert in each chunk ... */
static __global__ void __launch_bounds__(CHUNK) group_count_kernel(struct kern_dev_group d) {
    group_smem *s = shared_memory<group_smem>();
    int32_t before;
    count_chunk(d, s, blockIdx.x * CHUNK + threadIdx.x, &before);
    for (uint32_t e = threadIdx.x; e < d.n_experts; e += CHUNK) d.scratch[(size_t)blockIdx.x * d.n_experts + e] = s->total[e];
}

/* ... become the first row of each chunk's pairs of each expert. */
static __global__ void __launch_bounds__(CHUNK) group_scan_kernel(struct kern_dev_group d, uint32_t n_chunks) {
    group_smem *s = shared_memory<group_smem>();
    const uint32_t e = threadIdx.x;
    int32_t n = 0;
    for (uint32_t c = 0; c < n_chunks && e < d.n_experts; c++) n += d.scratch[(size_t)c * d.n_experts + e];
    int32_t row = write_bounds(d, n, s->warp_sum);
    for (uint32_t c = 0; c < n_chunks && e < d.n_experts; c++) {
        int32_t *at = &d.scratch[(size_t)c * d.n_experts + e];
        n = *at;
        *at = row;
        row += n;
    }
}

static __global__ void __launch_bounds__(CHUNK) group_scatter_kernel(struct kern_dev_group d) {
    group_smem *s = shared_memory<group_smem>();
    const uint32_t pair = blockIdx.x * CHUNK + threadIdx.x;
    int32_t before;
    const int32_t expert = count_chunk(d, s, pair, &before);
    place(d, pair, expert, expert >= 0 ? d.scratch[(size_t)blockIdx.x * d.n_experts + expert] + before : -1);
}

uint32_t kern_dev_max_tiles(uint32_t n_pairs, uint32_t n_experts, uint32_t tile_rows) {
    const uint32_t used = n_pairs < n_experts ? n_pairs : n_experts; /* each can end in a tile that is not full */
    return tile_rows ? used + (n_pairs - used) / tile_rows : 0;
}

uint64_t kern_dev_group_scratch(uint32_t n_pairs, uint32_t n_experts) {
    return n_pairs <= CHUNK ? 0 : (uint64_t)((n_pairs + CHUNK - 1) / CHUNK) * n_experts;
}

int kern_dev_group(const struct kern_dev_group *d, kern_stream stream) {
    const uint64_t n_pairs = (uint64_t)d->n_tokens * d->k;
    const uint32_t n_chunks = (uint32_t)((n_pairs + CHUNK - 1) / CHUNK);
    const size_t smem = sizeof(group_smem);
    assert(d->n_experts >= 1 && d->n_experts <= KERN_DEV_MAX_EXPERTS && n_pairs < 1u << 30);
    assert(n_chunks <= 1 || d->scratch);
    int status = allow_smem(group_small_kernel, smem) | allow_smem(group_count_kernel, smem) | allow_smem(group_scan_kernel, smem) |
                 allow_smem(group_scatter_kernel, smem);
    if (status) return status;
    if (n_chunks <= 1) return launch(group_small_kernel, 1, CHUNK, smem, stream, *d);
    status = launch(group_count_kernel, n_chunks, CHUNK, smem, stream, *d);
    if (!status) status = launch(group_scan_kernel, 1, CHUNK, smem, stream, *d, n_chunks);
    return status ? status : launch(group_scatter_kernel, n_chunks, CHUNK, smem, stream, *d);
}
