/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: any bytes as a routing trace, read to its end, every view touched. The unit test's seed comes from
 * `moed trace record`; the format is small enough for the fuzzer to find its records from the magic alone. */
#include <stdlib.h>

#include "offload/trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t touch(const struct trace *t, const struct trace_layer *l) {
    const struct trace_info *info = trace_info(t);
    uint64_t sum = 0;
    if (l->layer >= info->n_layers || l->n_distinct > info->n_experts) abort();
    for (uint32_t i = 0; i < l->n_distinct; i++) {
        if (l->experts[i] >= info->n_experts || l->rows[i] > l->n_rows) abort();
        sum += l->rows[i];
    }
    if (sum != (uint64_t)l->n_rows * info->k) abort();
    for (uint32_t i = 0; l->ids && i < l->n_rows * info->k; i++) {
        if (l->ids[i] >= info->n_experts) abort();
    }
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct trace *t;
    struct trace_layer l;
    struct err e;
    uint64_t sum = 0;
    if (trace_open_memory(&t, data, size, &e)) return 0;
    while (trace_next(t, &l, &e) == 1) sum += touch(t, &l);
    trace_close(t);
    __asm__ volatile("" : : "r"(sum)); /* the reads must happen */
    return 0;
}
