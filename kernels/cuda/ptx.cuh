/* SPDX-License-Identifier: Apache-2.0
 *
 * Every PTX instruction behind one function; kernels hold no assembly of their own. The emulated device has the same
 * functions (tests/simt/include/simt_device.h), so what is added here is added there, with a test. */
#ifndef MOED_KERNELS_CUDA_PTX_CUH
#define MOED_KERNELS_CUDA_PTX_CUH

#include <stdint.h>

#define PTX static __device__ __forceinline__

/* u8 of a times s8 of b, four of each, added to c. */
PTX int ptx_dp4a_us(uint32_t a, int b, int c) {
    int d;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

/* 16 bytes of device memory to shared memory, both aligned to 16, or 16 zeros when read is false. They are there for the
 * thread that asked after ptx_cp_async_wait, for others after a barrier behind it. */
PTX void ptx_cp_async16(void *dst, const void *src, bool read) {
    const int n = read ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(dst)), "l"(src), "r"(n) : "memory");
}
PTX void ptx_cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> PTX void ptx_cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

/* Flags between blocks. */
PTX uint32_t ptx_load_acquire(const uint32_t *p) {
    uint32_t v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
PTX uint32_t ptx_add_release(uint32_t *p, uint32_t v) {
    uint32_t old;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
    return old;
}
template <class Done> PTX void ptx_spin_until(Done done) {
    while (!done()) __nanosleep(20);
}

/* Matrices of 8 rows of 16 bytes in shared memory: lane l names row l % 8 of matrix l / 8. */
PTX void ptx_ldmatrix_x4(uint32_t r[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((uint32_t)__cvta_generic_to_shared(row)) : "memory");
}
PTX void ptx_ldmatrix_x4_trans(uint32_t r[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((uint32_t)__cvta_generic_to_shared(row)) : "memory");
}
PTX void ptx_ldmatrix_x2(uint32_t r[2], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"((uint32_t)__cvta_generic_to_shared(row)) : "memory");
}
PTX void ptx_ldmatrix_x2_trans(uint32_t r[2], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"((uint32_t)__cvta_generic_to_shared(row)) : "memory");
}

/* d [16, 8] += a [16, K] b [K, 8], K 16 for bf16 and 32 for s8. Lane l, g = l / 4, t = l % 4, holds of d rows g and g + 8,
 * columns 2 t and 2 t + 1; of a, 4 bytes each: row g, row g + 8, then the same rows in the second half of K, at K elements
 * 4 t bytes on; of b column g likewise. */
PTX void ptx_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
PTX void ptx_mma_s8(int d[4], const uint32_t a[4], const uint32_t b[2]) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#undef PTX
#endif
