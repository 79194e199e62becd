/* SPDX-License-Identifier: Apache-2.0
 *
 * Replays a routing trace against a budget: how often an expert is there, what has to be moved, how long the engine waits
 * and how many tokens a second are left. The eviction decisions are those of offload/policy.h, the code the store runs, plus
 * Belady's, which knows the future and bounds them all. Pure: no files, no clock, no threads.
 *
 * Like the store: all experts a layer wants are marked first; none of them is evicted for another one; prefill steps
 * neither count as use nor push out what decode works with (they pass through free slots or none). Prefetching is not
 * simulated, so what it would gain comes on top.
 *
 * Time: weights are read from memory once per step at `dram`, experts that are missing arrive over `link` one after the
 * other, each is computed once it is there, and what is there already is computed meanwhile. */
#ifndef MOED_OFFLOAD_SIMULATE_H
#define MOED_OFFLOAD_SIMULATE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "offload/policy.h"

struct trace;
struct trace_info;
struct synth_params;
struct sim; /* opaque: a trace in memory, ready for any number of replays */

enum { SIM_BELADY = OFFLOAD_N_POLICIES, SIM_N_POLICIES };
const char *sim_policy_name(int policy);
bool sim_policy_from_name(const char *name, int *out);

int sim_open(struct sim **out, struct trace *t, struct err *e); /* reads t to its end; *out owned, free with sim_close */
/* One sequence of made-up routing (offload/synth.h) of the shape of info. */
int sim_open_synth(struct sim **out, const struct trace_info *info, const struct synth_params *p, uint32_t n_tokens, uint64_t seed,
                   struct err *e);
void sim_close(struct sim *s);
const struct trace_info *sim_info(const struct sim *s);
uint32_t sim_n_keys(const struct sim *s);         /* experts of all routed layers */

struct sim_summary {            /* of decode steps unless said                                                  */
    uint64_t steps, tokens;
    uint64_t prefill_steps, prefill_tokens;
    double distinct;            /* experts a step wants of a layer, mean                                        */
    double prefill_distinct;
    double reuse_next;          /* share of them that the step before wanted too                                */
    double reuse_8;             /* ... any of the 8 steps before                                                */
    uint32_t median_distance;   /* steps since the last use, median; 0 when nothing was used twice              */
    uint32_t keys_used;         /* experts used at least once, prefill included                                 */
};
int sim_summarize(const struct sim *s, struct sim_summary *out); /* ST_NOMEM */

struct sim_opts {
    int policy;                 /* enum offload_policy or SIM_BELADY                                            */
    uint32_t slots;             /* >= 1; what is beyond sim_n_keys stays empty                                  */
    double link, dram;          /* bytes/s, > 0                                                                 */
    uint32_t warm_steps;        /* decode steps that are replayed and not counted                               */
};

struct sim_result {             /* of the counted decode steps unless said                                      */
    uint64_t steps, tokens;
    uint64_t wanted, hits, misses;
    uint64_t prefill_wanted, prefill_misses;
    double bytes;               /* moved                                                                        */
    double stall_s;             /* waited for experts with nothing to compute                                   */
    double seconds;             /* all in all                                                                   */
};

int sim_run(const struct sim *s, const struct sim_opts *o, struct sim_result *out); /* ST_NOMEM, ST_INVALID */

#endif
