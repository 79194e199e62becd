/* SPDX-License-Identifier: Apache-2.0
 *
 * What lies between the products of an expert layer: SwiGLU of gate and up with the rounding to kern_q8 that the down
 * product wants, and the sum of a token's experts in slot order. Operations and order are those of ref/norm.c, ref/exp.h and
 * ref/quantize.c, so the bits are the CPU's. */
#include "kernels/cuda/device.cuh"

#include <assert.h>
#include <math.h>

static const uint32_t THREADS = 128;

/* kern__exp (ref/exp.h); the intrinsics keep products and sums apart. */
static __device__ __forceinline__ float exp_ref(float x) {
    if (x < -87.336544f) return 0;
    const float round = 12582912.0f, c = x > 89 ? 89 : x; /* 1.5 * 2^23 */
    const float n = __fadd_rn(__fadd_rn(__fmul_rn(c, 1.44269502f), round), -round);
    float r = fmaf(-n, 0.693145752f, c);
    r = fmaf(-n, 1.42860677e-6f, r);
    float q = 1.98412701e-4f;
    q = fmaf(q, r, 1.38888892e-3f);
    q = fmaf(q, r, 8.33333377e-3f);
    q = fmaf(q, r, 4.16666679e-2f);
    q = fmaf(q, r, 0.166666672f);
    q = fmaf(q, r, 0.5f);
    q = fmaf(q, __fmul_rn(r, r), r);
    if (isnan(q)) return q;
    const int i = (int)n, half = i / 2;
    return __fmul_rn(__fmul_rn(__fadd_rn(q, 1), __uint_as_float((uint32_t)(half + 127) << 23)), __uint_as_float((uint32_t)(i - half + 127) << 23));
}

/* The lanes of a warp hold a block of 32 values: lane l writes q[l], the first one the rest. */
static __device__ __forceinline__ void quantize_block(float v, struct kern_q8 *out) {
    const unsigned lane = lane_id();
    const float a = fabsf(v), most = warp_max(a);
    const bool finite = __all_sync(ALL_LANES, a <= 3.40282347e+38f), tiny = most < 7.88860905e-31f; /* 2^-100 */
    int q = 0;
    if (finite && !tiny) q = (int)rintf(__fmul_rn(v, 127.0f / most));
    int sum = q; /* of the half that the lane is in */
    for (int bits = 8; bits > 0; bits /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, bits);
    out->q[lane] = (int8_t)q;
    if (lane % 16 == 0) out->sum[lane / 16] = (int16_t)sum;
    if (lane == 0) out->d = finite ? tiny ? 0 : most / 127.0f : NAN;
}

static __global__ void __launch_bounds__(THREADS) swiglu_q8_kernel(struct kern_dev_swiglu d) {
    const uint32_t per_row = d.n / 32;
    const uint64_t block = (uint64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32, row = block / per_row;
    if (row >= d.n_rows) return; /* whole warps */
    const uint64_t at = row * d.n + block % per_row * 32 + lane_id();
    float v = d.gate[at];
    if (d.up) v = __fmul_rn(v / __fadd_rn(1.0f, exp_ref(-v)), d.up[at]);
    quantize_block(v, d.y + block);
}

static __global__ void __launch_bounds__(THREADS) combine_kernel(struct kern_dev_combine d) {
    const uint32_t i = blockIdx.y * THREADS + threadIdx.x;
    if (i >= d.n) return;
    const size_t token = blockIdx.x;
    float sum = d.x[token * d.n + i];
    for (uint32_t j = 0; j < d.k; j++) {
        const int32_t row = d.pair_row[token * d.k + j];
        if (row >= 0) sum = fmaf(d.w[token * d.k + j], d.down[(size_t)row * d.n + i], sum);
    }
    d.x[token * d.n + i] = sum;
}

int kern_dev_swiglu(const struct kern_dev_swiglu *d, kern_stream stream) {
    assert(d->n >= 32 && d->n % 32 == 0);
    const uint64_t n_blocks = (uint64_t)d->n_rows * (d->n / 32), per = THREADS / 32;
    if (n_blocks == 0) return ST_OK;
    return launch(swiglu_q8_kernel, dim3((unsigned)((n_blocks + per - 1) / per)), THREADS, 0, stream, *d);
}

int kern_dev_combine(const struct kern_dev_combine *d, kern_stream stream) {
    if (d->n_tokens == 0) return ST_OK;
    return launch(combine_kernel, dim3(d->n_tokens, (d->n + THREADS - 1) / THREADS), THREADS, 0, stream, *d);
}
