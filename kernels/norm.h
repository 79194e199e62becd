/* SPDX-License-Identifier: Apache-2.0
 *
 * Row-wise element kernels. */
#ifndef MOED_KERNELS_NORM_H
#define MOED_KERNELS_NORM_H

#include <stddef.h>

/* y[i] = x[i] / sqrt(mean(x^2) + eps) * w[i]; y may alias x. */
typedef void (*kern_rms_norm_fn)(const float *x, const float *w, float eps, size_t n, float *y);

/* y[i] = silu(g[i]) * u[i]; y may alias g or u. */
typedef void (*kern_swiglu_fn)(const float *g, const float *u, size_t n, float *y);

/* y[i] += a * x[i] */
typedef void (*kern_axpy_fn)(float a, const float *x, size_t n, float *y);

#endif
