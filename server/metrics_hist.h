/* SPDX-License-Identifier: Apache-2.0
 *
 * Histograms with fixed buckets in the Prometheus text form. Observed and printed by L only; a scrape never
 * resets anything. */
#ifndef MOED_SERVER_METRICS_HIST_H
#define MOED_SERVER_METRICS_HIST_H

#include <stdint.h>

#include "base/buf.h"

enum { HIST_MAX_BOUNDS = 24 };

struct hist {
    const double *bounds;               /* [n_bounds] rising upper bounds, static; +Inf is implied */
    uint32_t n_bounds;
    uint64_t counts[HIST_MAX_BOUNDS + 1]; /* per bucket, not cumulative                            */
    double sum;
};

void hist_init(struct hist *h, const double *bounds, uint32_t n_bounds);
void hist_observe(struct hist *h, double v);
void hist_put(const struct hist *h, struct buf *out, const char *name, const char *help);

#endif
