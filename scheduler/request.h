/* SPDX-License-Identifier: Apache-2.0
 *
 * One sequence to generate: the object that crosses threads. L fills it, sched_submit lends it to E, the
 * EVENT_DONE gives it back; only L frees. While E has it, L may sched_cancel it, read prompt_logprobs after
 * EVENT_STARTED and logprobs[i] after the event that names i, nothing else. An API request with n choices or several prompts is several of these. */
#ifndef MOED_SCHEDULER_REQUEST_H
#define MOED_SCHEDULER_REQUEST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "grammar/token_filter.h"
#include "kernels/sample.h"

enum { SCHED_PRIORITY_MIN = -10, SCHED_PRIORITY_MAX = 10 };

struct request {
    /* set by L before submit, read-only afterwards */
    const int32_t *prompt;        /* [n_prompt], n_prompt >= 1; must live until EVENT_DONE             */
    uint32_t n_prompt;
    uint32_t max_tokens;          /* n_prompt + max_tokens <= n_ctx is checked by sched_submit; 0 = prompt only (echo with logprobs) */
    struct kern_sample sample;    /* arrays it points to must live until EVENT_DONE                     */
    struct token_filter filter;   /* ops NULL = none. Masks every draw; called by E alone until EVENT_DONE. A failing one ends
                                     the sequence with FINISH_ERROR and its status. A drawn stop id then ends it always */
    const int32_t *stop_ids;      /* [n_stop_ids] end-of-generation ids; the token is reported, then FINISH_STOP */
    uint32_t n_stop_ids;
    bool ignore_eos;              /* stop_ids are then never drawn: not even reported, generation goes on to max_tokens */
    uint32_t min_tokens;          /* stop_ids are banned before this many                                */
    bool no_prefix_cache;         /* neither reuse nor leave KV                                          */
    uint8_t lossy;                /* enum engine_lossy; not 0: neither reuse nor leave KV                */
    struct kern_sampled *prompt_logprobs; /* NULL, or [n_prompt - 1]; written by E before EVENT_STARTED  */
    int32_t n_prompt_top;
    double *pooled;               /* NULL, or [n_embd] written by E until EVENT_DONE, with max_tokens 0: the hidden states of the prompt
                                     as `pooling` says. A mean needs every token computed: it neither reuses nor leaves KV */
    enum engine_pooling pooling;
    struct kern_sampled *logprobs; /* NULL, or [max_tokens]; entry i written by E before event i          */
    uint64_t group;               /* requests of one API call share it; calls of a tenant take turns     */
    uint32_t tenant;              /* < sched_opts.n_tenants: on whose account it runs; tenants share by tokens */
    uint32_t weight;              /* of the tenant: its share beside others; 0 = 1                       */
    int8_t priority;              /* SCHED_PRIORITY_MIN..MAX; a lower one goes first                     */
    uint64_t deadline_ns;         /* of clock_mono_ns: no step is begun for it afterwards; 0 = none      */
    uint64_t predict_ns;          /* the same, counted from EVENT_STARTED; 0 = none                      */
    void *user;                   /* L's own                                                             */

    atomic_bool cancel;           /* set by sched_cancel on L, read by E; false at submit                */

    /* What the expert store did in the steps this request was part of, other requests of the step included. E adds with
     * relaxed stores, L may read at any time; 0 at submit. */
    struct request_experts { _Atomic uint64_t hits, misses, load_bytes, stall_ns; } experts;

    /* E's own */
    struct seq *seq;
};

#endif
