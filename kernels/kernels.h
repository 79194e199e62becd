/* SPDX-License-Identifier: Apache-2.0
 *
 * Compute kernels. One header per family; this one brings them all and the dispatch table. Kernels know shapes
 * and formats, not models. A kernel works on a caller-chosen slice of its output, so the caller decides the
 * threading; no kernel allocates, locks, logs or spawns.
 *
 * Batch invariance: every output row depends on its own input row and on the weights alone, with a fixed order
 * of floating-point operations. The same row alone, in a batch, at any slice or thread count: the same bits.
 *
 * Level invariance: that order is the same at every level, so a request gives the same bits on every CPU (but for the
 * payload of a NaN). The scalar level in ref/ is its definition; what all families have in common:
 *   products   element i of a row goes to lane i % 16 by fused multiply-add, in order; then one fixed tree adds the lanes
 *   exp        one polynomial with one sequence of operations, ref/exp.h
 *   the rest   IEEE operations one by one, never contracted (-ffp-contract=off); conversions round to nearest even
 * 16 lanes are one register of AVX-512, two of AVX2, four of NEON. A level without fused multiply-add in hardware calls
 * fmaf, which is slow and right. gemm_bf16 has the order and the flushed denormals of vpdpbf16ps instead, ref/gemm_bf16.c. */
#ifndef MOED_KERNELS_KERNELS_H
#define MOED_KERNELS_KERNELS_H

#include "kernels/attn.h"
#include "kernels/gemm.h"
#include "kernels/moe.h"
#include "kernels/norm.h"
#include "kernels/pack.h"
#include "kernels/quant.h"
#include "kernels/rope.h"
#include "kernels/router.h"
#include "kernels/sample.h"

/* In order of preference. A CPU may have a later level and not an earlier one: AVX-512 without AVX-VNNI is common. */
enum kern_level {
    KERN_SCALAR,
    KERN_AVX2,       /* with FMA, F16C, BMI2        */
    KERN_AVXVNNI,    /* AVX2 and AVX-VNNI           */
    KERN_AVX512,     /* F BW VL DQ VNNI             */
    KERN_AVX512BF16, /* the same and BF16 (Zen 4, Cooper Lake, Sapphire Rapids) */
    KERN_NEON,       /* aarch64 with dotprod        */
    KERN_N_LEVELS
};

/* Only what has more than one implementation is in the table; the rest are plain functions in the family headers. */
struct kern_ops {
    enum kern_level level;
    const char *name; /* "scalar", "avx2", "avxvnni", "avx512", "avx512bf16", "neon" */
    kern_gemm_fn gemm;
    kern_gemm_fn gemm_bf16; /* BF16 weights, activations rounded to bf16 */
    kern_quantize_fn quantize;
    kern_attn_fn attn;
    kern_kv_store_fn kv_store;
    kern_rms_norm_fn rms_norm;
    kern_swiglu_fn swiglu;
    kern_axpy_fn axpy;
};

/* Both ask the CPU on every call, and cpuid costs tens of microseconds in a virtual machine: call once, keep the pointer. */
enum kern_level kern_cpu_best(void);                      /* last level that this CPU can run (CPU and OS state) */
const struct kern_ops *kern_cpu_ops(enum kern_level level); /* static table; NULL when the CPU cannot run it */

/* Names of all levels, those of other CPUs too. */
const char *kern_level_name(enum kern_level level);
bool kern_level_find(const char *name, enum kern_level *out); /* false, *out untouched: no such level */

#endif
