/* SPDX-License-Identifier: Apache-2.0
 *
 * Token choice from one row of logits. Pure: the random number is a function of (seed, counter), so a request's
 * samples do not depend on what else is in the batch. Order of steps: logit bias, mask, penalties, then
 * temperature 0 -> argmax (ties to the lower id), else top-k, temperature, top-p, min-p, draw.
 * NaN and -inf logits are never chosen. When that leaves nothing: the lowest id of the mask, or without a mask the
 * argmax of the raw logits, or 0. Ids outside [0, n_vocab) in bias and history are ignored. */
#ifndef MOED_KERNELS_SAMPLE_H
#define MOED_KERNELS_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KERN_MAX_TOP_LOGPROBS = 20 };

struct kern_logit_bias { int32_t id; float bias; }; /* -INFINITY bans the token */

struct kern_sample {
    float temperature;         /* 0 = greedy                                                     */
    float top_p;               /* (0, 1], 1 = off                                                */
    float min_p;               /* [0, 1], 0 = off                                                */
    int32_t top_k;             /* 0 = off                                                        */
    float repetition_penalty;  /* 1 = off; over prompt and output (Keskar et al. 2019)           */
    float frequency_penalty;   /* 0 = off; over the output only, as OpenAI and vLLM do           */
    float presence_penalty;    /* 0 = off                                                        */
    uint64_t seed;
    const struct kern_logit_bias *bias; /* [n_bias]                                              */
    uint32_t n_bias;
    const uint32_t *allowed;   /* NULL, or bit mask of n_vocab bits: only set ids may be chosen  */
    int32_t n_top_logprobs;    /* -1 = no logprobs at all, 0 = chosen token only, up to KERN_MAX_TOP_LOGPROBS */
};

struct kern_top { int32_t id; float logprob; };

struct kern_sampled {
    int32_t id;
    float logprob;             /* of id under softmax of the raw logits (temperature 1, no filters); -INFINITY when
                                  its logit is NaN or -inf; 0 when no logprobs were asked for */
    int32_t n_top;
    struct kern_top top[KERN_MAX_TOP_LOGPROBS]; /* raw distribution, by falling logprob, ties to the lower id */
};

size_t kern_sample_workspace(uint32_t n_vocab); /* bytes of `work`, which must be 8-byte aligned; nothing is kept in it */

/* logits [n_vocab] is overwritten. history [n_history] = prompt then output; output starts at n_prompt.
 * counter = index of the token being drawn. */
void kern_sample(const struct kern_sample *p, float *logits, uint32_t n_vocab, const int32_t *history,
                 uint32_t n_history, uint32_t n_prompt, uint64_t counter, void *work, struct kern_sampled *out);

/* Log-probability of `id` and the n_top best ids of one row; logits are not changed. For prompt logprobs. */
void kern_logprobs(const float *logits, uint32_t n_vocab, int32_t id, int32_t n_top, struct kern_sampled *out);

#endif
