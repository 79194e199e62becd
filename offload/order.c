/* SPDX-License-Identifier: Apache-2.0
 *
 * The planner at work in the store, where the tiers are RAM and file: experts with many rows are read first, since their
 * computation hides the reads behind them. A step with everything here is neither planned nor measured. */
#include "offload/internal.h"

#include "base/log.h"

static double read_rate(const struct offload *o) {
    return o->read_bytes_per_s > 0 ? o->read_bytes_per_s : o->probe_bytes_per_s > 0 ? o->probe_bytes_per_s : 1e9;
}

const struct offload_want *offload__order(struct offload *o, uint32_t layer, const struct offload_want *wants, uint32_t n) {
    const uint32_t c = o->catalog.layer_class[layer];
    uint32_t n_missing = 0;
    o->predicted_s = 0;
    o->n_rows = o->n_rows_handed = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t slot = o->s.slot_of[layer * o->catalog.n_experts + wants[i].expert];
        const bool here = slot != OFFLOAD__NONE && o->s.slots[slot].state == SLOT_READY;
        o->planned[i] = (struct plan_expert){ .n_rows = wants[i].n_rows, .tier = !here };
        n_missing += !here;
        o->n_rows += wants[i].n_rows;
    }
    if (n_missing == 0) {
        return wants;
    }
    const struct plan_tier tiers[2] = {
        { .computes = true, .row_s = o->row_s, .bytes_per_s = read_rate(o),
          .link_busy_s = (double)o->s.in_flight * (double)o->catalog.slot_bytes[c] / o->catalog.n_spans / read_rate(o) },
        { 0 },
    };
    const enum plan_mode mode = plan_loop_mode(&o->loop);
    o->predicted_s = plan_layer(tiers, 2, o->catalog.slot_bytes[c], mode, o->planned, n, o->plan_order);
    o->begun_ns = o->disk->now_ns(o->disk->self);
    for (uint32_t i = 0; i < n; i++) {
        o->ordered[i] = wants[o->plan_order[i]];
    }
    return mode == PLAN_MIXED ? o->ordered : wants;
}

void offload__order_computed(struct offload *o) {
    if (o->predicted_s > 0 && o->n_rows_handed) {
        const double s = (double)(o->disk->now_ns(o->disk->self) - o->handed_ns) * 1e-9;
        o->row_s = plan_smooth(o->row_s, s / (double)o->n_rows_handed);
        o->n_rows_handed = 0;
    }
}

void offload__order_handed(struct offload *o, const uint32_t *wants, uint32_t n) {
    if (o->predicted_s <= 0) {
        return;
    }
    const uint64_t now = o->disk->now_ns(o->disk->self);
    o->n_rows_handed = 0;
    for (uint32_t i = 0; i < n; i++) {
        o->n_rows_handed += o->s.wants[wants[i]].n_rows;
    }
    o->handed_ns = now;
    if (n || o->s.n_left) {
        return;
    }
    const double measured_s = (double)(now - o->begun_ns) * 1e-9;
    if (plan_loop_observe(&o->loop, plan_loop_mode(&o->loop), o->predicted_s, measured_s, o->n_rows)) {
        log_info("offload", "predictions of steps are off by %.0f %%: wants are read %s", o->loop.error * 100,
                 o->loop.fallen ? "in the order they come" : "as planned");
    }
    o->predicted_s = 0;
}
