/* SPDX-License-Identifier: Apache-2.0
 *
 * Which expert to let go: the eviction policies, as arithmetic on per-expert history. Shared by the store and by the
 * simulator, so that what is simulated is what is shipped. No slots, no I/O, no threads: the caller owns the state
 * and is its only user.
 *
 * An expert has a key, layer * n_experts + expert. Time is counted in touches (one per (layer, step)), not in seconds, so
 * that a replay gives the same decisions. The victim is the candidate with the lowest score; ties go to the lower key. */
#ifndef MOED_OFFLOAD_POLICY_H
#define MOED_OFFLOAD_POLICY_H

#include <stdbool.h>
#include <stdint.h>

enum offload_policy {
    OFFLOAD_LRU,   /* last touch                                                                     */
    OFFLOAD_LFU,   /* uses, halved every `half_life` ticks                                           */
    OFFLOAD_LFRU,  /* decayed uses over age: frequency where slots are scarce, recency where not      */
    OFFLOAD_AUTO,  /* LFRU below a fifth of the experts resident, LRU above (docs/NUMBERS.md)         */
    OFFLOAD_N_POLICIES,
};

struct policy_entry { float uses; uint64_t last; }; /* uses as of tick `last` */

struct policy {
    enum offload_policy kind;
    double half_life;             /* ticks; > 0                             */
    uint64_t now;                 /* tick of the running (layer, step)      */
    uint32_t n_keys;
    struct policy_entry *entries; /* [n_keys], owned by whoever called init */
};

const char *policy_name(enum offload_policy kind);                 /* "lru", ... */
bool policy_from_name(const char *name, enum offload_policy *out);
/* n_resident of n_keys settles AUTO. entries [n_keys] is the caller's memory, zeroed or restored from saved heat. */
void policy_init(struct policy *p, enum offload_policy kind, uint32_t n_keys, uint32_t n_resident, struct policy_entry *entries);
void policy_tick(struct policy *p);                                /* a new (layer, step) begins */
void policy_touch(struct policy *p, uint32_t key);                 /* used in this tick          */
double policy_score(const struct policy *p, uint32_t key);         /* higher is worth keeping    */

#endif
