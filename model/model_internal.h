/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of the model loader: model.c binds names to tensors, model_hparams.c reads the metadata, inspect.c prints. */
#ifndef MOED_MODEL_MODEL_INTERNAL_H
#define MOED_MODEL_MODEL_INTERNAL_H

#include "model/expert_pack.h"
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

/* ---- model_pack.c ---- */

struct model__pack_layer {          /* all zero: a dense layer */
    struct tensor part[3];          /* stand-ins for the stacked gate, up and down: no data */
    char name[3][40];
    struct expert_record record;    /* of expert 0; checksum not set */
    uint64_t first;                 /* expert 0 in the array of checksums */
};
struct model__pack {
    const struct gguf *gguf;        /* borrowed until model__pack_clear */
    bool is_packed;                 /* else the rest is not set */
    int checksums, dense_checksum;  /* keys */
    uint64_t n_records, records_at, records_bytes;
    struct model__pack_layer *layers; /* owned, n_layers */
    char source_name[128];
    uint64_t source_bytes;
};
int model__pack_open(const struct gguf *g, struct model__pack *p, struct err *e); /* is it packed, and is its head intact? */
/* For a packed model whose routers are bound: checks everything else, fills the expert tensors of layers [n_layers]. */
int model__pack_bind(struct model__pack *p, const struct model_hparams *hp, struct model_layer *layers, struct err *e);
void model__pack_clear(struct model__pack *p);
void model__pack_record(const struct model__pack *p, uint32_t layer, uint32_t expert, struct expert_record *out);
void model__pack_info(const struct model__pack *p, struct expert_pack_info *out);
const struct model__pack *model__pack(const struct model *m);

/* model_open for an open file; takes g on success only. */
int model__open(struct model **out, struct gguf *g, struct err *e);

#endif
