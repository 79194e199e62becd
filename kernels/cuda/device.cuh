/* SPDX-License-Identifier: Apache-2.0
 *
 * What every kernel file includes: CUDA's headers, or on the emulated device (tests/simt/) the ones of the same names.
 *
 * Rules that let one source be proven without a GPU and be right on one:
 *   - dynamic shared memory only, one struct per kernel: shared_memory<struct>(); no `__shared__`, no `<<<>>>`
 *   - PTX only through ptx.cuh
 *   - warp operations name all lanes, and what lanes hand each other through memory has a __syncwarp between
 *   - no thread returns while others of its warp may still ask it
 *   - waiting for another block only through ptx_spin_until, in a cooperative launch
 *   - sums in a fixed order; float atomics nowhere
 *   - launchers check, choose, launch; they neither allocate nor wait nor use the default stream */
#ifndef MOED_KERNELS_CUDA_DEVICE_CUH
#define MOED_KERNELS_CUDA_DEVICE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "base/status.h"
#include "kernels/dev.h"

#ifdef __CUDACC__
#include "kernels/cuda/ptx.cuh"

/* Before a loop over registers: an index that is not known at compile time would put them into memory. */
#define UNROLL _Pragma("unroll")

template <class T> static __device__ __forceinline__ T *shared_memory() {
    extern __shared__ __align__(128) unsigned char moed_shared[];
    return reinterpret_cast<T *>(moed_shared);
}
#else
#define UNROLL
#endif

static const unsigned ALL_LANES = 0xffffffffu;

static __device__ __forceinline__ unsigned lane_id() { return threadIdx.x % 32; }

/* Butterflies: every lane ends with the same bits, whichever order the lanes run in. */
static __device__ __forceinline__ float warp_sum(float v) {
    for (int bits = 16; bits > 0; bits /= 2) v += __shfl_xor_sync(ALL_LANES, v, bits);
    return v;
}
static __device__ __forceinline__ float warp_max(float v) {
    for (int bits = 16; bits > 0; bits /= 2) v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, bits));
    return v;
}

/* More than 48 KiB of dynamic shared memory are asked for by name. Cheap, and allowed while a graph is captured. */
template <class... P> static inline int allow_smem(void (*kernel)(P...), size_t bytes) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes) == cudaSuccess ? ST_OK : ST_DEVICE;
}

/* A launch that cannot start is a bug of the launcher's checks or a device that is gone; either way the caller's step fails. */
template <class... P, class... A>
static inline int launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t smem, kern_stream stream, A... args) {
    cudaLaunchConfig_t c = {};
    c.gridDim = grid;
    c.blockDim = block;
    c.dynamicSmemBytes = smem;
    c.stream = (cudaStream_t)stream;
    return cudaLaunchKernelEx(&c, kernel, args...) == cudaSuccess ? ST_OK : ST_DEVICE;
}

#endif
