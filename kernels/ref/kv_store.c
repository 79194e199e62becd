/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing K and V rows into their page: where a row goes, which all levels share, and the scalar conversion. */
#include "kernels/attn_walk.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

static void store_heads(const struct kern_kv_store *d, char *run, uint32_t offset, uint32_t dim, const float *x,
                        kern__kv_row_fn row) {
    const size_t row_bytes = dim * kern__kv_elem_bytes(d->kv_type);
    const size_t stride = kern_kv_page_bytes(d->kv_type, d->page_tokens, 1, dim);
    for (uint32_t h = 0; h < d->n_kv_heads; h++, run += stride, x += dim) {
        float *scales = (float *)(void *)(run + kern__kv_scales_at(d->page_tokens, dim));
        row(d->kv_type, x, dim, run + offset * row_bytes, d->kv_type == KERN_KV_Q8 ? scales + offset : NULL);
    }
}

void kern__kv_store_rows(const struct kern_kv_store *d, int32_t page, uint32_t offset, const float *k, const float *v,
                         kern__kv_row_fn row) {
    assert(page >= 0 && offset < d->page_tokens);
    const size_t k_bytes = kern_kv_page_bytes(d->kv_type, d->page_tokens, d->n_kv_heads, d->head_dim_k);
    const size_t v_bytes = kern_kv_page_bytes(d->kv_type, d->page_tokens, d->n_kv_heads, d->head_dim_v);
    store_heads(d, (char *)d->k + (size_t)page * k_bytes, offset, d->head_dim_k, k, row);
    store_heads(d, (char *)d->v + (size_t)page * v_bytes, offset, d->head_dim_v, v, row);
}

static void to_q8(const float *x, uint32_t n, int8_t *q, float *scale) {
    float max = 0;
    bool finite = true;
    for (uint32_t i = 0; i < n; i++) {
        finite &= fabsf(x[i]) <= FLT_MAX;
        max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
    }
    bool zero = !finite || max < KERN__Q8_TINY;
    float inv = zero ? 0 : 127.0f / max;
    *scale = !finite ? NAN : zero ? 0 : max / 127.0f;
    for (uint32_t i = 0; i < n; i++) q[i] = zero ? 0 : (int8_t)lrintf(x[i] * inv);
}

static void row_scalar(enum kern_kv_type type, const float *x, uint32_t n, void *row, float *scale) {
    uint16_t *h = row;
    switch (type) {
    case KERN_KV_F16:
        for (uint32_t i = 0; i < n; i++) h[i] = kern_f32_to_f16(x[i]);
        break;
    case KERN_KV_BF16:
        for (uint32_t i = 0; i < n; i++) h[i] = kern_f32_to_bf16(x[i]);
        break;
    case KERN_KV_F32:
        memcpy(row, x, n * sizeof *x);
        break;
    case KERN_KV_Q8:
        to_q8(x, n, row, scale);
        break;
    }
}

void kern__kv_store_scalar(const struct kern_kv_store *d, int32_t page, uint32_t offset, const float *k, const float *v) {
    kern__kv_store_rows(d, page, offset, k, v, row_scalar);
}
