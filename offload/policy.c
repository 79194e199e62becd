/* SPDX-License-Identifier: Apache-2.0
 *
 * Scores of the eviction policies. Uses decay lazily: an entry holds its value as of its last touch. */
#include "offload/policy.h"

#include <math.h>
#include <string.h>

static const char *const names[OFFLOAD_N_POLICIES] = { "lru", "lfu", "lfru", "auto" };

const char *policy_name(enum offload_policy kind) {
    return names[kind];
}

bool policy_from_name(const char *name, enum offload_policy *out) {
    for (int i = 0; i < OFFLOAD_N_POLICIES; i++) {
        if (!strcmp(name, names[i])) {
            *out = (enum offload_policy)i;
            return true;
        }
    }
    return false;
}

void policy_init(struct policy *p, enum offload_policy kind, struct policy_entry *entries, uint32_t n_keys, uint32_t n_layers) {
    kind = kind == OFFLOAD_AUTO ? OFFLOAD_LFRU : kind;
    *p = (struct policy){
        .kind = kind,
        .n_layers = n_layers,
        .half_life = (double)n_layers * (kind == OFFLOAD_LFU ? POLICY_LFU_HALF_LIFE : POLICY_LFRU_HALF_LIFE),
        .n_keys = n_keys,
        .entries = entries,
    };
}

void policy_tick(struct policy *p) {
    p->now++;
}

static double decayed(const struct policy *p, const struct policy_entry *e, uint64_t age) {
    return e->uses * exp2(-(double)age / p->half_life);
}

void policy_touch(struct policy *p, uint32_t key) {
    struct policy_entry *e = &p->entries[key];
    e->uses = (float)(decayed(p, e, p->now - e->last) + 1);
    e->last = p->now;
}

/* An expert that its layer does not want in this tick is not wanted before the next step. */
static double score_at_next_visit(const struct policy *p, const struct policy_entry *e) {
    const uint64_t age = p->now - e->last, then = (age / p->n_layers + 1) * p->n_layers, wait = then - age;
    return decayed(p, e, then) / (double)(then + wait);
}

double policy_score(const struct policy *p, uint32_t key) {
    const struct policy_entry *e = &p->entries[key];
    switch (p->kind) {
    case OFFLOAD_LFU: return decayed(p, e, p->now - e->last);
    case OFFLOAD_LFRU: return score_at_next_visit(p, e);
    default: return (double)e->last;
    }
}

double policy_score_due(const struct policy *p, uint32_t key) {
    const struct policy_entry *e = &p->entries[key];
    const double uses = decayed(p, e, p->now - e->last) + 1;
    switch (p->kind) {
    case OFFLOAD_LFU: return uses;
    case OFFLOAD_LFRU: return uses / (double)(p->n_layers + 1);
    default: return (double)p->now;
    }
}
