/* SPDX-License-Identifier: Apache-2.0
 *
 * Made-up routing with the statistics of real models, for choosing budgets and policies before a model has run. An expert's
 * logit is the sum of a fixed popularity, a topic that drifts over hundreds of tokens and is drawn anew with every
 * text, a context that drifts over a few tokens, and noise of the token; the k highest are chosen. With
 * SYNTH_QWEN3 and the shape of Qwen3-30B-A3B (8 of 128, 48 layers) it has the reuse and the LRU hit rates published for that
 * model (docs/NUMBERS.md). Deterministic in the seed. No threads. */
#ifndef MOED_OFFLOAD_SYNTH_H
#define MOED_OFFLOAD_SYNTH_H

#include <stdint.h>

#include "base/err.h"

struct synth_params {           /* standard deviations and time constants in tokens                   */
    float popularity;           /* fixed                                                              */
    float topic, topic_tokens;  /* drifts slowly                                                      */
    float context, context_tokens; /* drifts fast                                                     */
    float noise;                /* of every token                                                     */
    float text_tokens;          /* mean length of a text: then topic and context are drawn anew       */
};

extern const struct synth_params SYNTH_QWEN3;
extern const struct synth_params SYNTH_POPULAR; /* the same figures within 4 points, with more of it fixed popularity */
extern const struct synth_params SYNTH_UNIFORM; /* every expert as likely as any other: no reuse but chance */

struct synth_shape { uint32_t n_layers, n_experts, k; }; /* routed layers only */

struct synth; /* opaque */
int synth_open(struct synth **out, const struct synth_shape *shape, const struct synth_params *p, uint64_t seed, struct err *e);
void synth_close(struct synth *s);
void synth_token(struct synth *s, int32_t *ids); /* ids [n_layers, k] of the next token, best first */

#endif
