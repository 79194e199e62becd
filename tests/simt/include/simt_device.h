/* SPDX-License-Identifier: Apache-2.0
 *
 * What a kernel calls: the built-in variables, barriers, warp operations, atomics and arithmetic of CUDA, and the PTX
 * instructions of kernels/cuda/ptx.cuh under the same names. Each names its caller's line, for reports. */
#ifndef MOED_TESTS_SIMT_DEVICE_H
#define MOED_TESTS_SIMT_DEVICE_H

#include <cmath>

#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "tests/simt/simt.h"

/* Objects that read the running thread, not macros: cudaLaunchConfig_t has members of these names. */
#define SIMT_BUILTIN(name, where)                                                          \
    static const struct {                                                                  \
        struct { operator unsigned() const { return simt::self->where.x; } } x;            \
        struct { operator unsigned() const { return simt::self->where.y; } } y;            \
        struct { operator unsigned() const { return simt::self->where.z; } } z;            \
    } name = {}
SIMT_BUILTIN(threadIdx, tid);
SIMT_BUILTIN(blockIdx, blk->bid);
SIMT_BUILTIN(blockDim, blk->bdim);
SIMT_BUILTIN(gridDim, blk->gdim);
#undef SIMT_BUILTIN

template <class T> static inline T *shared_memory(SIMT_SITE) {
    if (alignof(T) > 128) simt::fail("shared memory is aligned to 128 bytes, %s:%d", file, line);
    return reinterpret_cast<T *>(simt::self->blk->smem);
}

/* ---- barriers and warp operations ---- */

static inline void __syncthreads(SIMT_SITE) { simt::block_barrier({ file, line }); }
static inline void __syncwarp(uint32_t mask = ~0u, SIMT_SITE) { simt::warp_exchange(nullptr, 0, mask, { file, line }, nullptr); }
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

/* Reads the register of lane `from`; a lane outside the mask, or beyond the segment of `width`, has its own. */
template <class T> static inline T simt_shuffle(uint32_t mask, T v, unsigned from, simt::site at) {
    static_assert(sizeof(T) <= 8, "a register or two");
    uint64_t mine = 0;
    memcpy(&mine, &v, sizeof v);
    auto slot = simt::warp_exchange(&mine, 1, mask, at, nullptr);
    if (!(mask >> from & 1)) simt::fail("lane reads lane %u, which is not in the mask %08x, %s:%d", from, mask, at.file, at.line);
    memcpy(&v, &slot[from][0], sizeof v);
    return v;
}

template <class T> static inline T __shfl_sync(uint32_t mask, T v, int from, int width = 32, SIMT_SITE) {
    const unsigned base = simt::self->lane & ~(unsigned)(width - 1);
    return simt_shuffle(mask, v, base + ((unsigned)from & (unsigned)(width - 1)), { file, line });
}
template <class T> static inline T __shfl_xor_sync(uint32_t mask, T v, int bits, int width = 32, SIMT_SITE) {
    const unsigned lane = simt::self->lane, from = lane ^ (unsigned)bits;
    return simt_shuffle(mask, v, from / (unsigned)width > lane / (unsigned)width ? lane : from, { file, line });
}
template <class T> static inline T __shfl_up_sync(uint32_t mask, T v, unsigned by, int width = 32, SIMT_SITE) {
    const unsigned lane = simt::self->lane;
    return simt_shuffle(mask, v, lane % (unsigned)width >= by ? lane - by : lane, { file, line });
}
template <class T> static inline T __shfl_down_sync(uint32_t mask, T v, unsigned by, int width = 32, SIMT_SITE) {
    const unsigned lane = simt::self->lane;
    return simt_shuffle(mask, v, lane % (unsigned)width + by < (unsigned)width ? lane + by : lane, { file, line });
}

static inline uint32_t __ballot_sync(uint32_t mask, int p, SIMT_SITE) {
    const uint64_t mine = p != 0;
    auto slot = simt::warp_exchange(&mine, 1, mask, { file, line }, nullptr);
    uint32_t all = 0;
    for (unsigned i = 0; i < 32; i++)
        if (mask >> i & 1 && i < simt::self->blk->warps[simt::self->warp].n) all |= (uint32_t)slot[i][0] << i;
    return all;
}
static inline int __any_sync(uint32_t mask, int p, SIMT_SITE) { return __ballot_sync(mask, p, file, line) != 0; }
static inline int __all_sync(uint32_t mask, int p, SIMT_SITE) { return __ballot_sync(mask, !p, file, line) == 0; }
static inline uint32_t __match_any_sync(uint32_t mask, uint32_t v, SIMT_SITE) {
    const uint64_t mine = v;
    auto slot = simt::warp_exchange(&mine, 1, mask, { file, line }, nullptr);
    uint32_t same = 0;
    for (unsigned i = 0; i < 32; i++)
        if (mask >> i & 1 && i < simt::self->blk->warps[simt::self->warp].n && slot[i][0] == mine) same |= 1u << i;
    return same;
}

/* ---- memory ---- */

template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T atomicAdd(T *p, T v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
/* By the bits: the builtins know no float. */
static inline float atomicAdd(float *p, float v) {
    uint32_t *bits = (uint32_t *)p, old = __atomic_load_n(bits, __ATOMIC_RELAXED), sum;
    float f;
    do {
        memcpy(&f, &old, 4);
        const float g = f + v;
        memcpy(&sum, &g, 4);
    } while (!__atomic_compare_exchange_n(bits, &old, sum, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return f;
}
template <class T> static inline T atomicExch(T *p, T v) { return __atomic_exchange_n(p, v, __ATOMIC_RELAXED); }
template <class T> static inline T atomicCAS(T *p, T want, T v) {
    __atomic_compare_exchange_n(p, &want, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return want;
}
template <class T> static inline T atomicMax(T *p, T v) {
    T old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (old < v && !__atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    return old;
}

/* ---- arithmetic ---- */

static inline int __popc(uint32_t v) { return __builtin_popcount(v); }
static inline int __ffs(uint32_t v) { return __builtin_ffs((int)v); }
static inline int __clz(uint32_t v) { return v ? __builtin_clz(v) : 32; }
#define __expf(v) expf(v) /* libm has a function of this name */
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __frcp_rn(float v) { return 1.0f / v; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __frsqrt_rn(float v) { return 1.0f / sqrtf(v); }
static inline float rsqrtf(float v) { return 1.0f / sqrtf(v); }
static inline int __float2int_rn(float v) { return (int)rintf(v); }
static inline uint32_t __float_as_uint(float v) { uint32_t u; memcpy(&u, &v, 4); return u; }
static inline float __uint_as_float(uint32_t u) { float v; memcpy(&v, &u, 4); return v; }
static inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t s) {
    const uint64_t v = (uint64_t)b << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t pick = s >> (4 * i) & 15;
        uint32_t byte = v >> (8 * (pick & 7)) & 255;
        if (pick & 8) byte = byte & 128 ? 255 : 0;
        r |= byte << (8 * i);
    }
    return r;
}
static inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) c += (int8_t)(a >> (8 * i)) * (int8_t)(b >> (8 * i));
    return c;
}
static inline int __dp4a(unsigned a, int b, int c) = delete; /* the mixed form is ptx_dp4a_us */
template <class T> static inline T min(T a, T b) { return b < a ? b : a; }
template <class T> static inline T max(T a, T b) { return a < b ? b : a; }

/* ---- PTX, see kernels/cuda/ptx.cuh ---- */

static inline int ptx_dp4a_us(uint32_t a, int b, int c) {
    for (int i = 0; i < 4; i++) c += (int)(a >> (8 * i) & 255) * (int8_t)(b >> (8 * i));
    return c;
}
static inline void ptx_cp_async16(void *dst, const void *src, bool read, SIMT_SITE) { simt::cp_async(dst, src, 16, read ? 16 : 0, { file, line }); }
static inline void ptx_cp_async_commit() { simt::cp_async_commit(); }
template <int N> static inline void ptx_cp_async_wait() { simt::cp_async_wait(N); }

static inline uint32_t ptx_load_acquire(const uint32_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static inline uint32_t ptx_add_release(uint32_t *p, uint32_t v) { return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL); }
template <class Done> static inline void ptx_spin_until(Done done, SIMT_SITE) {
    while (!done()) simt::yield_spinning({ file, line });
}

/* Lane l gives the address of row l % 8 of matrix l / 8 (8 rows of 16 bytes); register i of lane l is, of matrix i, row l / 4,
 * bytes 4 (l % 4) on, or with trans the 2-byte elements (2 (l % 4), l / 4) and (2 (l % 4) + 1, l / 4). */
template <int N> static inline void simt_ldmatrix(uint32_t *r, const void *row, bool trans, simt::site at) {
    const uint64_t mine = (uint64_t)(uintptr_t)row;
    if ((int)simt::self->lane < 8 * N) simt::check_aligned(row, 16, at);
    auto slot = simt::warp_exchange(&mine, 1, ~0u, at, nullptr);
    const unsigned l = simt::self->lane;
    for (unsigned i = 0; i < N; i++) {
        if (!trans) {
            memcpy(&r[i], (const char *)(uintptr_t)slot[i * 8 + l / 4][0] + l % 4 * 4, 4);
            continue;
        }
        uint16_t v[2];
        for (unsigned j = 0; j < 2; j++) memcpy(&v[j], (const char *)(uintptr_t)slot[i * 8 + l % 4 * 2 + j][0] + l / 4 * 2, 2);
        memcpy(&r[i], v, 4);
    }
}
static inline void ptx_ldmatrix_x4(uint32_t r[4], const void *row, SIMT_SITE) { simt_ldmatrix<4>(r, row, false, { file, line }); }
static inline void ptx_ldmatrix_x2(uint32_t r[2], const void *row, SIMT_SITE) { simt_ldmatrix<2>(r, row, false, { file, line }); }
static inline void ptx_ldmatrix_x4_trans(uint32_t r[4], const void *row, SIMT_SITE) { simt_ldmatrix<4>(r, row, true, { file, line }); }
static inline void ptx_ldmatrix_x2_trans(uint32_t r[2], const void *row, SIMT_SITE) { simt_ldmatrix<2>(r, row, true, { file, line }); }

/* Who owns which element of D and C [16, 8]: lane l has rows l / 4 and l / 4 + 8, columns 2 (l % 4) and the next. T is float or
 * int, E an element of A and B, PER elements of 4 bytes. */
template <class T, class E, int K, int PER, T (*WIDEN)(E)> static inline void simt_mma(uint64_t (*slot)[simt::MAX_WORDS], uint32_t) {
    T a[16][K], b[K][8], c[16][8];
    for (int l = 0; l < 32; l++) {
        const int g = l / 4, t = l % 4;
        E ea[4 * PER], eb[2 * PER];
        T ec[4];
        memcpy(ea, &slot[l][0], 16);
        memcpy(eb, &slot[l][2], 8);
        memcpy(ec, &slot[l][3], 16);
        for (int i = 0; i < PER; i++) {
            a[g][t * PER + i] = WIDEN(ea[i]);
            a[g + 8][t * PER + i] = WIDEN(ea[PER + i]);
            a[g][t * PER + K / 2 + i] = WIDEN(ea[2 * PER + i]);
            a[g + 8][t * PER + K / 2 + i] = WIDEN(ea[3 * PER + i]);
            b[t * PER + i][g] = WIDEN(eb[i]);
            b[t * PER + K / 2 + i][g] = WIDEN(eb[PER + i]);
        }
        for (int i = 0; i < 4; i++) c[g + i / 2 * 8][t * 2 + i % 2] = ec[i];
    }
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < K; k++)
            for (int j = 0; j < 8; j++) c[i][j] += a[i][k] * b[k][j];
    for (int l = 0; l < 32; l++) {
        T ec[4];
        for (int i = 0; i < 4; i++) ec[i] = c[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2];
        memcpy(&slot[l][3], ec, 16);
    }
}
static inline float simt_widen_bf16(uint16_t v) { return __uint_as_float((uint32_t)v << 16); }
static inline int simt_widen_s8(int8_t v) { return v; }

template <class T> static inline void simt_mma_run(T d[4], const uint32_t a[4], const uint32_t b[2], simt::warp_fn fn, simt::site at) {
    uint64_t mine[5];
    memcpy(&mine[0], a, 16);
    memcpy(&mine[2], b, 8);
    memcpy(&mine[3], d, 16);
    auto slot = simt::warp_exchange(mine, 5, ~0u, at, fn);
    memcpy(d, &slot[simt::self->lane][3], 16);
}
static inline void ptx_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2], SIMT_SITE) {
    simt_mma_run(d, a, b, simt_mma<float, uint16_t, 16, 2, simt_widen_bf16>, { file, line });
}
static inline void ptx_mma_s8(int d[4], const uint32_t a[4], const uint32_t b[2], SIMT_SITE) {
    simt_mma_run(d, a, b, simt_mma<int, int8_t, 32, 4, simt_widen_s8>, { file, line });
}

#endif
