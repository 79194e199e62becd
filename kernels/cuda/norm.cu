/* SPDX-License-Identifier: Apache-2.0
 *
 * RMSNorm of rows, with the bits of ref/norm.c: the square of element i goes to double lane i % 16 in order, the halves are
 * added as a tree. A block per row keeps the row in shared memory; 16 threads of it run the lanes, whose products are exact, so that
 * a fused multiply-add changes nothing. The chains are n / 16 long: 128 additions for 2,048 elements, beside a launch's cost. */
#include "kernels/cuda/device.cuh"

#include <assert.h>

static const uint32_t THREADS = 256, LANES = 16;

struct norm_smem {
    double lane[LANES];
    float scale;
    float row[1]; /* n of them */
};

static __global__ void __launch_bounds__(THREADS) rms_norm_kernel(struct kern_dev_rms_norm d) {
    norm_smem *s = shared_memory<norm_smem>();
    const size_t row = blockIdx.x;
    float *kept = s->row;
    for (uint32_t i = threadIdx.x; i < d.n; i += THREADS) kept[i] = d.x[row * d.n + i];
    __syncthreads();
    if (threadIdx.x < LANES) {
        double sum = 0;
        for (uint32_t i = threadIdx.x; i < d.n; i += LANES) sum += (double)kept[i] * (double)kept[i];
        s->lane[threadIdx.x] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (uint32_t half = LANES / 2; half > 0; half /= 2)
            for (uint32_t l = 0; l < half; l++) s->lane[l] += s->lane[l + half];
        s->scale = (float)(1.0 / sqrt(s->lane[0] / (double)d.n + (double)d.eps));
    }
    __syncthreads();
    const float scale = s->scale;
    for (uint32_t i = threadIdx.x; i < d.n; i += THREADS) d.y[row * d.n + i] = __fmul_rn(__fmul_rn(kept[i], scale), d.w[i]);
}

int kern_dev_rms_norm(const struct kern_dev_rms_norm *d, kern_stream stream) {
    const size_t smem = sizeof(norm_smem) + (size_t)d->n * sizeof(float);
    assert(d->n >= 1);
    if (d->n_rows == 0) return ST_OK;
    const int status = allow_smem(rms_norm_kernel, smem);
    return status ? status : launch(rms_norm_kernel, d->n_rows, THREADS, smem, stream, *d);
}
