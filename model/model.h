/* SPDX-License-Identifier: Apache-2.0
 *
 * A model on disk: hyper-parameters and named weights of one architecture, checked for shape and type so that
 * the engine can trust every pointer. No compute, no CUDA. Immutable after model_open: any thread may read. */
#ifndef MOED_MODEL_MODEL_H
#define MOED_MODEL_MODEL_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "model/tensor.h"

struct gguf;
struct model; /* opaque */

enum model_arch { MODEL_LLAMA, MODEL_QWEN3MOE, MODEL_OLMOE };
enum rope_type { ROPE_NORM /* pairs (2i, 2i+1) */, ROPE_NEOX /* halves (i, i + n/2) */ };
enum rope_scaling { ROPE_SCALING_NONE, ROPE_SCALING_LINEAR, ROPE_SCALING_YARN };
enum qk_norm { QK_NORM_NONE, QK_NORM_HEAD /* per head, [head_dim] */, QK_NORM_ROW /* whole projection, [heads * head_dim] */ };
enum model_pooling { MODEL_POOLING_NONE, MODEL_POOLING_MEAN, MODEL_POOLING_CLS, MODEL_POOLING_LAST, MODEL_POOLING_RANK }; /* as in GGUF */
enum router_gating { ROUTER_SOFTMAX = 1, ROUTER_SIGMOID = 2, ROUTER_SOFTMAX_WEIGHT = 3, ROUTER_SQRT_SOFTPLUS = 4 };

/* Source of every field: GGUF metadata keys "{arch}.*"; nothing is hard-coded. Dimensions are bounded by model_open. */
struct model_hparams {
    enum model_arch arch;
    uint32_t n_layers, n_embd, n_vocab, n_ctx_train;
    uint32_t n_heads, n_kv_heads;       /* n_heads % n_kv_heads == 0                                */
    uint32_t head_dim_k, head_dim_v;
    uint32_t ff_dim;                    /* dense FFN                                                */
    uint32_t n_experts, n_experts_used; /* 0 for a dense model                                      */
    uint32_t expert_ff_dim;
    float rms_eps;
    float attn_scale;                   /* 1 / sqrt(head_dim_k) unless the file says otherwise      */
    enum rope_type rope_type;
    uint32_t rope_dim;                  /* rotated dims per head, even, <= head_dim_k               */
    float rope_theta;
    enum rope_scaling rope_scaling;
    float rope_factor;                  /* > 0; 1 when unscaled                                     */
    uint32_t rope_ctx_orig;             /* YaRN                                                     */
    float rope_attn_factor;             /* YaRN                                                     */
    enum qk_norm qk_norm;
    enum router_gating router_gating;
    bool router_norm;                   /* renormalise the chosen weights                           */
    float router_scale;                 /* 1 when absent                                            */
    enum model_pooling pooling;         /* what an embedding model was trained with; NONE when absent */
};

/* Weights of one layer. Matrices are ne = {in, out}; experts ne = {in, out, n_experts}. NULL = this layer has none. */
struct model_layer {
    const struct tensor *attn_norm, *wq, *wk, *wv, *wo;
    const struct tensor *bq, *bk, *bv, *bo;                /* optional F32 biases                    */
    const struct tensor *q_norm, *k_norm;
    const struct tensor *ffn_norm;
    const struct tensor *ffn_gate, *ffn_up, *ffn_down;     /* dense FFN, a layer without a router    */
    const struct tensor *router;                           /* {n_embd, n_experts}                    */
    const struct tensor *gate_exps, *up_exps, *down_exps;  /* of a packed model: type and shape, data NULL   */
};

int model_open(struct model **out, const char *path, struct err *e); /* returns owned, free with model_close */
void model_close(struct model *m);

const struct model_hparams *model_hparams(const struct model *m);
const struct model_layer *model_layer(const struct model *m, uint32_t layer);
const struct tensor *model_token_embd(const struct model *m);   /* {n_embd, n_vocab}                           */
const struct tensor *model_output_norm(const struct model *m);
const struct tensor *model_output(const struct model *m);       /* {n_embd, n_vocab}; token_embd when tied     */
const struct tensor *model_rope_factors(const struct model *m); /* optional F32 {rope_dim / 2} (llama-3 files) */
const struct gguf *model_gguf(const struct model *m);           /* for the tokenizer and the chat template     */
const char *model_name(const struct model *m);                  /* general.name, or the file's base name       */
const char *model_arch_name(const struct model *m);

int model_inspect(const char *path, FILE *out, struct err *e);  /* `moed inspect FILE`: prints to out what is in a file */

#endif
