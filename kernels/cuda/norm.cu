/* SPDX-License-Identifier: Apache-2.0
 *
 * RMSNorm of rows with the residual added on the way: one block per row, which stays in registers between the sum of
 * squares and the product (up to MAX_PER float4 a thread; longer rows are read twice). */
#include "kernels/cuda/device.cuh"

#include <assert.h>

static const uint32_t THREADS = 256, MAX_PER = 8;

struct norm_smem {
    float warp_sum[THREADS / 32];
};

static __device__ __forceinline__ float4 residual_at(const struct kern_dev_rms_norm &d, size_t row, uint32_t i) {
    float4 v = reinterpret_cast<const float4 *>(d.x + row * d.n)[i];
    if (!d.add) return v;
    const float4 a = reinterpret_cast<const float4 *>(d.add + row * d.n)[i];
    return make_float4(v.x + a.x, v.y + a.y, v.z + a.z, v.w + a.w);
}

static __device__ __forceinline__ float4 times(float4 v, float scale, float4 w) {
    return make_float4(v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w);
}

/* PER float4 of a thread in registers; 0: a row of any length, read again from x. */
template <int PER> static __global__ void __launch_bounds__(THREADS) rms_norm_kernel(struct kern_dev_rms_norm d) {
    norm_smem *s = shared_memory<norm_smem>();
    const size_t row = blockIdx.x;
    const uint32_t n4 = d.n / 4;
    float4 *x = reinterpret_cast<float4 *>(d.x + row * d.n), *y = reinterpret_cast<float4 *>(d.y + row * d.n), kept[PER ? PER : 1];
    const float4 *w = reinterpret_cast<const float4 *>(d.w);
    float sum = 0;
    for (uint32_t j = 0, i = threadIdx.x; PER ? j < PER : i < n4; j++, i += THREADS) {
        if (i >= n4) break;
        const float4 v = residual_at(d, row, i);
        if (PER) kept[j] = v;
        if (d.add) x[i] = v;
        sum += v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w);
    }
    sum = warp_sum(sum);
    if (lane_id() == 0) s->warp_sum[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (uint32_t i = 0; i < THREADS / 32; i++) sum += s->warp_sum[i];
    const float scale = 1.0f / sqrtf(sum / (float)d.n + d.eps);
    for (uint32_t j = 0, i = threadIdx.x; PER ? j < PER : i < n4; j++, i += THREADS) {
        if (i >= n4) break;
        y[i] = times(PER ? kept[j] : x[i], scale, w[i]);
    }
}

int kern_dev_rms_norm(const struct kern_dev_rms_norm *d, kern_stream stream) {
    assert(d->n >= 4 && d->n % 4 == 0);
    if (d->n_rows == 0) return ST_OK;
    const uint32_t per = (d->n / 4 + THREADS - 1) / THREADS;
    const size_t smem = sizeof(norm_smem);
    if (per <= 1) return launch(rms_norm_kernel<1>, d->n_rows, THREADS, smem, stream, *d);
    if (per <= 2) return launch(rms_norm_kernel<2>, d->n_rows, THREADS, smem, stream, *d);
    if (per <= 4) return launch(rms_norm_kernel<4>, d->n_rows, THREADS, smem, stream, *d);
    if (per <= MAX_PER) return launch(rms_norm_kernel<MAX_PER>, d->n_rows, THREADS, smem, stream, *d);
    return launch(rms_norm_kernel<0>, d->n_rows, THREADS, smem, stream, *d);
}
