/* SPDX-License-Identifier: Apache-2.0
 *
 * Expert choice, all router forms in one kernel: a warp per token, its experts' scores in registers (expert 32 i + lane in
 * place i of a lane). The order "falling score, ties to the lower index, NaN last" is one 64-bit key, so that a choice is a
 * maximum: the score's bits made monotonic above, the index inverted below. A token takes k rounds of maximum over the
 * lanes: five shuffles each.
 *
 * The choice among groups is done by one lane per group, from shared memory, in index order as on the CPU. */
#include "kernels/cuda/device.cuh"

#include <assert.h>
#include <math.h>

static const int WARPS = 4;           /* tokens per block */
static const float MIN_WEIGHT_SUM = 1.0f / 16384;

struct route_smem {
    float sel[WARPS][KERN_DEV_MAX_EXPERTS];
    int32_t counts[KERN_DEV_MAX_EXPERTS];
};

static __device__ __forceinline__ bool ranks_higher(float a, float b) { return a > b || (!isnan(a) && isnan(b)); }

/* Monotonic in the order of the choice; 0 is below every expert: "not there, or taken". */
static __device__ __forceinline__ uint64_t rank_key(float score, uint32_t index) {
    uint32_t bits = __float_as_uint(score == 0 ? 0.0f : score); /* -0 ties with 0 */
    bits = isnan(score) ? 0 : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)bits << 32 | (0xffffffffu - index);
}
static __device__ __forceinline__ uint32_t key_index(uint64_t key) { return 0xffffffffu - (uint32_t)key; }

static __device__ __forceinline__ uint64_t warp_max_key(uint64_t v) {
    for (int bits = 16; bits > 0; bits /= 2) {
        const uint64_t other = __shfl_xor_sync(ALL_LANES, v, bits);
        v = other > v ? other : v;
    }
    return v;
}

/* kern__fast_exp (ref/exp.h), NaN staying one: the intrinsics keep products and sums apart, so the bits are the CPU's. 0 below
 * -87, so that very weak experts tie as they do there. */
static __device__ __forceinline__ float exp_neg(float x) {
    if (isnan(x)) return x;
    if (x < -87.0f) return 0;
    const float round = 12582912.0f, t = __fadd_rn(__fmul_rn(x, 1.44269502f), round), n = t - round; /* 1.5 * 2^23 */
    float r = __fadd_rn(x, -__fmul_rn(n, 0.693145752f));
    r = __fadd_rn(r, -__fmul_rn(n, 1.42860677e-6f));
    float q = 1.98412701e-4f;
    q = __fadd_rn(__fmul_rn(q, r), 1.38888892e-3f);
    q = __fadd_rn(__fmul_rn(q, r), 8.33333377e-3f);
    q = __fadd_rn(__fmul_rn(q, r), 4.16666679e-2f);
    q = __fadd_rn(__fmul_rn(q, r), 0.166666672f);
    q = __fadd_rn(__fmul_rn(q, r), 0.5f);
    q = __fadd_rn(__fmul_rn(q, __fmul_rn(r, r)), r);
    const float scale = __uint_as_float((__float_as_uint(t) + 127) << 23);
    return __fadd_rn(__fmul_rn(q, scale), scale);
}

/* p [PER] of every lane, places beyond n_experts left alone: logits to probabilities. */
template <int PER> static __device__ __forceinline__ void to_probs(const struct kern_router &r, float *p) {
    const unsigned lane = lane_id();
    if (r.gate == KERN_GATE_SOFTMAX) {
        float most = -INFINITY, sum = 0;
        UNROLL for (int i = 0; i < PER; i++)
            if (32 * i + lane < r.n_experts && p[i] > most) most = p[i];
        most = warp_max(most);
        UNROLL for (int i = 0; i < PER; i++) {
            if (32 * i + lane >= r.n_experts) continue;
            p[i] = p[i] == most ? 1.0f : exp_neg(p[i] - most);
            if (!isnan(p[i])) sum += p[i]; /* a NaN stays one and does not hide the others */
        }
        sum = warp_sum(sum);
        UNROLL for (int i = 0; i < PER; i++) p[i] /= sum;
    } else if (r.gate == KERN_GATE_SIGMOID) {
        UNROLL for (int i = 0; i < PER; i++) {
            const float e = exp_neg(-fabsf(p[i]));
            p[i] = (p[i] < 0 ? e : 1.0f) / (1.0f + e);
        }
    } else if (r.gate == KERN_GATE_SQRT_SOFTPLUS) {
        UNROLL for (int i = 0; i < PER; i++) p[i] = sqrtf((p[i] > 0 ? p[i] : 0) + log1pf(exp_neg(-fabsf(p[i]))));
    } /* KERN_GATE_SOFTMAX_WEIGHT ranks raw logits */
}

/* Lane g < n_groups has the score of group g: the sum of its two best; NaN when it has none. */
static __device__ __forceinline__ float group_score(const float *sel, uint32_t size) {
    float a = NAN, b = NAN;
    for (uint32_t i = 0; i < size; i++) {
        const float v = sel[i];
        if (ranks_higher(v, a)) {
            b = a;
            a = v;
        } else if (ranks_higher(v, b)) {
            b = v;
        }
    }
    return isnan(b) ? a : a + b;
}

/* sel of experts outside the best groups becomes -inf. shared: n_experts floats of this warp. */
template <int PER> static __device__ __forceinline__ void drop_weak_groups(const struct kern_router &r, float *sel, float *shared) {
    const unsigned lane = lane_id();
    const uint32_t size = r.n_experts / r.n_groups;
    UNROLL for (int i = 0; i < PER; i++)
        if (32 * i + lane < r.n_experts) shared[32 * i + lane] = sel[i];
    __syncwarp();
    uint64_t key = lane < r.n_groups ? rank_key(group_score(shared + lane * size, size), lane) : 0;
    uint32_t kept = 0;
    for (uint32_t j = 0; j < r.n_groups_used; j++) {
        const uint64_t best = warp_max_key(key);
        kept |= 1u << key_index(best);
        if (key == best) key = 0;
    }
    UNROLL for (int i = 0; i < PER; i++)
        if (32 * i + lane < r.n_experts && !(kept >> ((32 * i + lane) / size) & 1)) sel[i] = -INFINITY;
    __syncwarp(); /* the next use of shared */
}

/* Lane j < k gets the j-th choice. */
template <int PER> static __device__ __forceinline__ int32_t top_k(const struct kern_router &r, const float *sel) {
    const unsigned lane = lane_id();
    uint64_t key[PER];
    int32_t mine = -1;
    UNROLL for (int i = 0; i < PER; i++) key[i] = 32 * i + lane < r.n_experts ? rank_key(sel[i], 32 * i + lane) : 0;
    for (uint32_t j = 0; j < r.k; j++) {
        uint64_t best = key[0];
        UNROLL for (int i = 1; i < PER; i++) best = key[i] > best ? key[i] : best;
        best = warp_max_key(best);
        UNROLL for (int i = 0; i < PER; i++)
            if (key[i] == best) key[i] = 0;
        if (lane == j) mine = (int32_t)key_index(best);
    }
    return mine;
}

/* Register i of the lane that holds expert e, for a different e in every lane. */
template <int PER> static __device__ __forceinline__ float at_expert(const float *p, int32_t e) {
    float v = 0;
    UNROLL for (int i = 0; i < PER; i++) {
        const float there = __shfl_sync(ALL_LANES, p[i], e & 31);
        if (e >> 5 == i) v = there;
    }
    return v;
}

template <int PER> static __device__ __forceinline__ int32_t choose(const struct kern_router &r, const float *p, float *shared) {
    const unsigned lane = lane_id();
    float sel[PER];
    UNROLL for (int i = 0; i < PER; i++) sel[i] = p[i] + (r.select_bias && 32 * i + lane < r.n_experts ? r.select_bias[32 * i + lane] : 0);
    if (r.n_groups > 1) drop_weak_groups<PER>(r, sel, shared);
    int32_t id = top_k<PER>(r, sel);
    if (!r.prefer) return id;
    const unsigned n_preferred = __popc(__ballot_sync(ALL_LANES, lane < r.k && r.prefer[id >= 0 ? id : 0]));
    if (n_preferred == r.k) return id;
    const float weakest = at_expert<PER>(sel, __shfl_sync(ALL_LANES, id, (int)r.k - 1));
    const float gain = r.margin * (r.gate == KERN_GATE_SOFTMAX_WEIGHT ? 1 : fabsf(weakest));
    UNROLL for (int i = 0; i < PER; i++)
        if (32 * i + lane < r.n_experts && r.prefer[32 * i + lane]) sel[i] += gain;
    return top_k<PER>(r, sel);
}

/* The sum of v over lanes [0, n), in lane order as the CPU adds; the same in every lane. */
static __device__ __forceinline__ float sum_in_order(float v, uint32_t n) {
    float sum = 0;
    for (uint32_t j = 0; j < n; j++) sum += __shfl_sync(ALL_LANES, v, (int)j);
    return sum;
}

/* Lane j has the score of choice j: its weight. May empty the slot. */
static __device__ __forceinline__ float weigh(const struct kern_router &r, float w, int32_t *id) {
    const unsigned lane = lane_id();
    if (r.gate == KERN_GATE_SOFTMAX_WEIGHT) {
        const float most = warp_max(lane < r.k && !isnan(w) ? w : -INFINITY);
        w = lane >= r.k ? 0 : w == most ? 1.0f : exp_neg(w - most);
        w /= sum_in_order(isnan(w) ? 0 : w, r.k);
    }
    if (r.enough > 0) {
        const uint32_t keep = (r.k + 1) / 2;
        const float kept = sum_in_order(w, keep), all = sum_in_order(w, r.k);
        if (kept >= r.enough * all && lane >= keep) {
            *id = -1;
            w = 0;
        }
    }
    if (r.norm) {
        const float sum = sum_in_order(w, r.k);
        w /= sum < MIN_WEIGHT_SUM ? MIN_WEIGHT_SUM : sum;
    }
    return r.scale != 0 && r.scale != 1 ? w * r.scale : w;
}

template <int PER> static __global__ void __launch_bounds__(WARPS * 32) route_kernel(struct kern_dev_route d) {
    route_smem *s = shared_memory<route_smem>();
    const struct kern_router &r = d.router;
    const unsigned lane = lane_id(), warp = threadIdx.x / 32;
    const uint32_t token = blockIdx.x * WARPS + warp;

    for (uint32_t e = threadIdx.x; e < r.n_experts && d.counts; e += WARPS * 32) s->counts[e] = 0;
    __syncthreads();
    if (token < d.n_tokens) {
        float p[PER];
        UNROLL for (int i = 0; i < PER; i++) p[i] = 32 * i + lane < r.n_experts ? d.logits[(size_t)token * r.n_experts + 32 * i + lane] : 0;
        to_probs<PER>(r, p);
        int32_t id = choose<PER>(r, p, s->sel[warp]);
        const float w = weigh(r, at_expert<PER>(p, id), &id);
        if (lane < r.k) {
            d.ids[(size_t)token * r.k + lane] = id;
            d.w[(size_t)token * r.k + lane] = w;
            if (d.counts && id >= 0) atomicAdd(&s->counts[id], 1);
        }
    }
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < r.n_experts && d.counts; e += WARPS * 32)
        if (s->counts[e]) atomicAdd(&d.counts[e], s->counts[e]);
}

int kern_dev_route(const struct kern_dev_route *d, kern_stream stream) {
    const struct kern_router *r = &d->router;
    assert(r->n_experts >= 1 && r->n_experts <= KERN_DEV_MAX_EXPERTS && r->k >= 1 && r->k <= r->n_experts && r->k <= KERN_DEV_MAX_TOP_K);
    assert(r->n_groups <= KERN_DEV_MAX_GROUPS && (r->n_groups <= 1 || r->n_experts % r->n_groups == 0));
    if (d->n_tokens == 0) return ST_OK;
    const dim3 grid((d->n_tokens + WARPS - 1) / WARPS), block(WARPS * 32);
    const size_t smem = sizeof(route_smem);
    const uint32_t per = (r->n_experts + 31) / 32;
    if (per <= 1) return launch(route_kernel<1>, grid, block, smem, stream, *d);
    if (per <= 2) return launch(route_kernel<2>, grid, block, smem, stream, *d);
    if (per <= 4) return launch(route_kernel<4>, grid, block, smem, stream, *d);
    if (per <= 8) return launch(route_kernel<8>, grid, block, smem, stream, *d);
    if (per <= 16) return launch(route_kernel<16>, grid, block, smem, stream, *d);
    return launch(route_kernel<32>, grid, block, smem, stream, *d);
}
