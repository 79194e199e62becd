/* SPDX-License-Identifier: Apache-2.0
 *
 * Which kernels this machine may run: instruction sets from cpuid, vector state the OS saves from XGETBV. The
 * tables are constant; the caller keeps the pointer it gets, so nothing is cached here. */
#include "kernels/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "kernels/internal.h"

#if defined(__x86_64__)
#define OPS(LEVEL, NAME)                                                                                         \
    { .level = LEVEL, .name = #NAME, .gemm = kern__gemm_##NAME, .quantize = kern__quantize_##NAME,               \
      .attn = kern__attn_##NAME, .rms_norm = kern__rms_norm_##NAME, .swiglu = kern__swiglu_##NAME,               \
      .axpy = kern__axpy_##NAME }

static const struct kern_ops ops_table[KERN_N_LEVELS] = {
    [KERN_SCALAR] = OPS(KERN_SCALAR, scalar),
    [KERN_AVX2] = OPS(KERN_AVX2, avx2),
    [KERN_AVX512] = OPS(KERN_AVX512, avx512),
};

/* Register state that the OS saves on a context switch (XCR0). Needs OSXSAVE. */
static uint32_t xcr0(void) {
    uint32_t lo, hi;
    __asm__("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return lo;
}

#define HAS(reg, bits) (((reg) & (bits)) == (bits))

enum kern_level kern_cpu_best(void) {
    enum { XCR0_YMM = 0x06, XCR0_ZMM = 0xe6 };
    uint32_t a, b, c, d, b7, c7;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !HAS(c, bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C))
        return KERN_SCALAR;
    if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d) || !HAS(b7, bit_AVX2 | bit_BMI2) || !HAS(xcr0(), XCR0_YMM))
        return KERN_SCALAR;
    if (!HAS(b7, bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ) || !HAS(c7, bit_AVX512VNNI) ||
        !HAS(xcr0(), XCR0_ZMM))
        return KERN_AVX2;
    return KERN_AVX512;
}
#else
static const struct kern_ops ops_table[1] = {
    { .level = KERN_SCALAR, .name = "scalar", .gemm = kern__gemm_scalar, .quantize = kern__quantize_scalar,
      .attn = kern__attn_scalar, .rms_norm = kern__rms_norm_scalar, .swiglu = kern__swiglu_scalar,
      .axpy = kern__axpy_scalar },
};

enum kern_level kern_cpu_best(void) {
    return KERN_SCALAR;
}
#endif

const struct kern_ops *kern_cpu_ops(enum kern_level level) {
    return level >= KERN_SCALAR && level <= kern_cpu_best() ? &ops_table[level] : NULL;
}
