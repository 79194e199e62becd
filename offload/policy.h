/* SPDX-License-Identifier: Apache-2.0
 *
 * Which expert to let go: the eviction policies, as arithmetic on per-expert history. Shared by the store and by the
 * simulator, so that what is simulated is what is shipped. No slots, no I/O, no threads: the caller owns the state
 * and is its only user.
 *
 * An expert has a key, layer * n_experts + expert. Time is counted in ticks, one per (layer, step), not in seconds, so that a
 * replay gives the same decisions; a step is as many ticks as the model has routed layers. The victim is the candidate with
 * the lowest score; ties go to the lower key.
 *
 * LFRU is the one to use at any budget (docs/NUMBERS.md): uses, halved every POLICY_LFRU_HALF_LIFE steps, over the age that
 * the expert will have when its layer comes by next, plus the time until then. Counting ages up to the next visit is what
 * keeps a budget below one token's working set useful: plain recency evicts the layer that comes next. */
#ifndef MOED_OFFLOAD_POLICY_H
#define MOED_OFFLOAD_POLICY_H

#include <stdbool.h>
#include <stdint.h>

enum offload_policy {
    OFFLOAD_LRU,   /* last touch                                              */
    OFFLOAD_LFU,   /* uses, halved every POLICY_LFU_HALF_LIFE steps           */
    OFFLOAD_LFRU,  /* uses over age at the next visit                         */
    OFFLOAD_AUTO,  /* the best one known                                      */
    OFFLOAD_N_POLICIES,
};

enum { POLICY_LFU_HALF_LIFE = 64, POLICY_LFRU_HALF_LIFE = 24 };

struct policy_entry { float uses; uint64_t last; }; /* decayed uses as of tick `last`, 0 = never used */

struct policy {
    enum offload_policy kind;     /* never AUTO                             */
    uint32_t n_layers;            /* ticks of a step                        */
    double half_life;             /* ticks                                  */
    uint64_t now;                 /* tick of the running (layer, step)      */
    uint32_t n_keys;
    struct policy_entry *entries; /* [n_keys], owned by whoever called init */
};

const char *policy_name(enum offload_policy kind);                 /* "lru", ... */
bool policy_from_name(const char *name, enum offload_policy *out);
/* entries [n_keys] is the caller's memory, zeroed or restored from saved heat. n_layers: the routed ones, >= 1. */
void policy_init(struct policy *p, enum offload_policy kind, struct policy_entry *entries, uint32_t n_keys, uint32_t n_layers);
void policy_tick(struct policy *p);                                /* a new (layer, step) begins */
void policy_touch(struct policy *p, uint32_t key);                 /* used in this tick          */
double policy_score(const struct policy *p, uint32_t key);         /* higher is worth keeping    */
double policy_score_due(const struct policy *p, uint32_t key);     /* what it would be if the layer that comes next wanted it */

#endif
