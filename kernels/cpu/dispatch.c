/* SPDX-License-Identifier: Apache-2.0
 *
 * Which kernels this machine may run. x86-64: instruction sets from cpuid, vector state the OS saves from XGETBV;
 * aarch64: what Linux reports in the auxiliary vector. The tables are constant; the caller keeps the pointer it gets,
 * so nothing is cached here. */
#include "kernels/kernels.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include "kernels/internal.h"

static const char *const level_names[KERN_N_LEVELS] = {
    [KERN_SCALAR] = "scalar", [KERN_AVX2] = "avx2", [KERN_AVXVNNI] = "avxvnni", [KERN_AVX512] = "avx512",
    [KERN_AVX512BF16] = "avx512bf16", [KERN_NEON] = "neon",
};

/* The levels of the matrix product, of the one for BF16, and of everything else. */
#define OPS(GEMM, BF16, REST)                                                                                    \
    .gemm = kern__gemm_##GEMM, .gemm_bf16 = kern__gemm_bf16_##BF16, .quantize = kern__quantize_##REST,           \
    .attn = kern__attn_##REST, .kv_store = kern__kv_store_##REST, .rms_norm = kern__rms_norm_##REST,             \
    .swiglu = kern__swiglu_##REST, .axpy = kern__axpy_##REST

static const struct kern_ops ops_table[KERN_N_LEVELS] = {
    [KERN_SCALAR] = { KERN_SCALAR, "scalar", OPS(scalar, scalar, scalar) },
#if defined(__x86_64__)
    [KERN_AVX2] = { KERN_AVX2, "avx2", OPS(avx2, avx2, avx2) },
    [KERN_AVXVNNI] = { KERN_AVXVNNI, "avxvnni", OPS(avxvnni, avx2, avx2) },
    [KERN_AVX512] = { KERN_AVX512, "avx512", OPS(avx512, avx512, avx512) },
    [KERN_AVX512BF16] = { KERN_AVX512BF16, "avx512bf16", OPS(avx512, avx512bf16, avx512) },
#elif defined(__aarch64__)
    [KERN_NEON] = { KERN_NEON, "neon", OPS(neon, neon, neon) },
#endif
};

#define BIT(level) (1u << (level))
#define HAS(reg, bits) (((reg) & (bits)) == (bits))

#if defined(__x86_64__)
/* Register state that the OS saves on a context switch (XCR0). Needs OSXSAVE. */
static uint32_t xcr0(void) {
    uint32_t lo, hi;
    __asm__("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return lo;
}

/* A BIT per level that this CPU can run. */
static uint32_t levels(void) {
    enum { XCR0_YMM = 0x06, XCR0_ZMM = 0xe6, AVXVNNI_7_1_EAX = 1 << 4, BF16_7_1_EAX = 1 << 5 };
    uint32_t a, b, c, d, max7, b7, c7, a71 = 0, found = BIT(KERN_SCALAR);
    if (!__get_cpuid(1, &a, &b, &c, &d) || !HAS(c, bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C))
        return found;
    if (!__get_cpuid_count(7, 0, &max7, &b7, &c7, &d) || !HAS(b7, bit_AVX2 | bit_BMI2) || !HAS(xcr0(), XCR0_YMM))
        return found;
    found |= BIT(KERN_AVX2);
    if (max7 >= 1 && __get_cpuid_count(7, 1, &a71, &b, &c, &d) && HAS(a71, AVXVNNI_7_1_EAX))
        found |= BIT(KERN_AVXVNNI);
    if (HAS(b7, bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ) && HAS(c7, bit_AVX512VNNI) && HAS(xcr0(), XCR0_ZMM))
        found |= BIT(KERN_AVX512) | (HAS(a71, BF16_7_1_EAX) ? BIT(KERN_AVX512BF16) : 0);
    return found;
}
#elif defined(__aarch64__)
static uint32_t levels(void) {
    return BIT(KERN_SCALAR) | (HAS(getauxval(AT_HWCAP), HWCAP_ASIMDDP) ? BIT(KERN_NEON) : 0);
}
#else
static uint32_t levels(void) {
    return BIT(KERN_SCALAR);
}
#endif

enum kern_level kern_cpu_best(void) {
    enum kern_level best = KERN_SCALAR;
    for (uint32_t left = levels() >> 1; left; left >>= 1)
        best++;
    return best;
}

const struct kern_ops *kern_cpu_ops(enum kern_level level) {
    return level >= KERN_SCALAR && level < KERN_N_LEVELS && levels() & BIT(level) ? &ops_table[level] : NULL;
}

const char *kern_level_name(enum kern_level level) {
    return level_names[level];
}

bool kern_level_find(const char *name, enum kern_level *out) {
    for (int i = 0; i < KERN_N_LEVELS; i++)
        if (strcmp(name, level_names[i]) == 0) {
            *out = (enum kern_level)i;
            return true;
        }
    return false;
}
