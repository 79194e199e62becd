/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of the model loader: model.c binds names to tensors, model_hparams.c reads the metadata, inspect.c prints. */
#ifndef MOED_MODEL_MODEL_INTERNAL_H
#define MOED_MODEL_MODEL_INTERNAL_H

#include "model/gguf.h"
#include "model/model.h"

/* Bounds on metadata. Products of up to three of them (matrix elements, head rows) stay far below 2^63. */
enum {
    MODEL_MAX_LAYERS = 1024,
    MODEL_MAX_EMBD = 1 << 17,
    MODEL_MAX_FF = 1 << 20,
    MODEL_MAX_HEADS = 1024,
    MODEL_MAX_HEAD_DIM = 1024,
    MODEL_MAX_EXPERTS = 1024, /* as kernels/router.h */
    MODEL_MAX_VOCAB = 1 << 22,
    MODEL_MAX_CTX = 1 << 30,
};

/* What an architecture name implies beyond the metadata. */
struct model__arch {
    const char *name;
    enum model_arch id;
    enum rope_type rope_type;
    enum qk_norm qk_norm;
    bool router_norm;    /* when expert_weights_norm is absent        */
    bool needs_experts;  /* a file without experts is a broken file   */
};

/* The architecture general.architecture names; ST_UNSUPPORTED lists the supported ones. */
int model__find_arch(const struct gguf *g, const struct model__arch **out, struct err *e);

/* Fills everything but n_vocab, which is a property of token_embd. */
int model__read_hparams(const struct gguf *g, const struct model__arch *arch, struct model_hparams *hp, struct err *e);

/* model_open for an open file; takes g on success only. */
int model__open(struct model **out, struct gguf *g, struct err *e);

#endif
