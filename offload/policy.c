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

void policy_init(struct policy *p, enum offload_policy kind, uint32_t n_keys, uint32_t n_resident, struct policy_entry *entries) {
    if (kind == OFFLOAD_AUTO) {
        kind = (uint64_t)n_resident * 5 < n_keys ? OFFLOAD_LFRU : OFFLOAD_LRU;
    }
    *p = (struct policy){ .kind = kind, .half_life = 4096, .n_keys = n_keys, .entries = entries };
}

void policy_tick(struct policy *p) {
    p->now++;
}

static double decayed_uses(const struct policy *p, const struct policy_entry *e) {
    return e->uses * exp2(-(double)(p->now - e->last) / p->half_life);
}

void policy_touch(struct policy *p, uint32_t key) {
    struct policy_entry *e = &p->entries[key];
    e->uses = (float)(decayed_uses(p, e) + 1);
    e->last = p->now;
}

double policy_score(const struct policy *p, uint32_t key) {
    const struct policy_entry *e = &p->entries[key];
    switch (p->kind) {
    case OFFLOAD_LFU: return decayed_uses(p, e);
    case OFFLOAD_LFRU: return decayed_uses(p, e) / (double)(p->now - e->last + 1);
    default: return (double)e->last;
    }
}
