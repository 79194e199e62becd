/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix product for AVX2 with AVX-VNNI (client CPUs from Alder Lake on, Zen 5): gemm_avx2.c with vpdpbusd for the
 * byte products, which adds four at a time into 32 bits: nothing saturates and nothing has to be widened. It wants
 * unsigned codes, so signed bytes carry a bias of 128 as they do in gemm_avx512.c. */
#define GEMM_DPBUSD
#define GEMM_NAME kern__gemm_avxvnni
#include "kernels/cpu/gemm_avx2.c"
