/* SPDX-License-Identifier: Apache-2.0
 *
 * See metrics_hist.h. Buckets are kept apart and summed when printed, so the +Inf bucket equals _count by
 * construction. */
#include "server/metrics_hist.h"

#include <inttypes.h>

#include "server/internal.h"

void hist_init(struct hist *h, const double *bounds, uint32_t n_bounds) {
    *h = (struct hist){.bounds = bounds, .n_bounds = n_bounds < HIST_MAX_BOUNDS ? n_bounds : HIST_MAX_BOUNDS};
}

void hist_observe(struct hist *h, double v) {
    uint32_t i = 0;

    while (i < h->n_bounds && v > h->bounds[i]) i++;
    h->counts[i]++;
    h->sum += v;
}

void hist_put(const struct hist *h, struct buf *out, const char *name, const char *help) {
    uint64_t total = 0;

    buf_printf(out, "# HELP %s %s\n# TYPE %s histogram\n", name, help, name);
    for (uint32_t i = 0; i < h->n_bounds; i++) {
        total += h->counts[i];
        buf_printf(out, "%s_bucket{le=\"%g\"} %" PRIu64 "\n", name, h->bounds[i], total);
    }
    total += h->counts[h->n_bounds];
    buf_printf(out, "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n%s_sum ", name, total, name);
    json_put_number(out, h->sum);
    buf_printf(out, "\n%s_count %" PRIu64 "\n", name, total);
}
