/* SPDX-License-Identifier: Apache-2.0
 *
 * Metadata "{arch}.*" -> struct model_hparams. Every number is bounded here, so that the rest of the program can
 * multiply them. A key that asks for arithmetic the engine does not have is refused, not ignored: a model that
 * answers nonsense is worse than one that does not load. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/gguf_internal.h"
#include "model/model_internal.h"

static const struct model__arch ARCHS[] = {
    { "llama", MODEL_LLAMA, ROPE_NORM, QK_NORM_NONE, true, false },
    { "qwen3moe", MODEL_QWEN3MOE, ROPE_NEOX, QK_NORM_HEAD, true, true },
    { "olmoe", MODEL_OLMOE, ROPE_NEOX, QK_NORM_ROW, false, true },
};

int model__find_arch(const struct gguf *g, const struct model__arch **out, struct err *e) {
    struct gguf_str s;
    char name[64];
    int rc = gguf_get_str(g, "general.architecture", &s, e);
    if (rc) return rc;
    for (size_t i = 0; i < sizeof ARCHS / sizeof ARCHS[0]; i++) {
        *out = &ARCHS[i];
        if (strlen(ARCHS[i].name) == s.len && !memcmp(ARCHS[i].name, s.s, s.len)) return ST_OK;
    }
    return err_set(e, ST_UNSUPPORTED, "%s: architecture '%s' is not supported; supported are llama (also Mixtral), qwen3moe, olmoe",
                   gguf_file_path(g, 0), gguf__printable(s, name, sizeof name));
}

struct reader {
    const struct gguf *g;
    const char *arch;
    uint32_t n_layers; /* expected length of per-layer arrays */
    char key[96];      /* the key last asked for              */
    struct err *e;
};

static const char *full_key(struct reader *r, const char *suffix) {
    snprintf(r->key, sizeof r->key, "%s.%s", r->arch, suffix);
    return r->key;
}

static int out_of_range(struct reader *r, double value, double lo, double hi) {
    return err_set(r->e, ST_INVALID, "%s: key '%s' is %g, expected %g to %g", gguf_file_path(r->g, 0), r->key, value, lo, hi);
}

/* Required integer lo..hi. */
static int read_dim(struct reader *r, const char *suffix, uint32_t lo, uint32_t hi, uint32_t *out) {
    int rc = gguf_get_u32(r->g, full_key(r, suffix), out, r->e);
    if (!rc && (*out < lo || *out > hi)) rc = out_of_range(r, *out, lo, hi);
    return rc;
}

/* Optional integer lo..hi. */
static int read_dim_or(struct reader *r, const char *suffix, uint32_t fallback, uint32_t lo, uint32_t hi, uint32_t *out) {
    int rc = read_dim(r, suffix, lo, hi, out);
    if (rc != ST_NOT_FOUND) return rc;
    *out = fallback;
    return ST_OK;
}

/* An integer that some files write as one value per layer: all of them must then be equal. */
static int read_uniform(struct reader *r, const char *suffix, uint32_t lo, uint32_t hi, uint32_t *out) {
    int at = gguf_find(r->g, full_key(r, suffix));
    if (at < 0 || gguf_key_type(r->g, at) != GGUF_ARRAY) return read_dim(r, suffix, lo, hi, out);
    enum gguf_type type;
    uint64_t n;
    int64_t first = 0, v = 0;
    int rc = gguf_get_array(r->g, r->key, &type, &n, r->e);
    if (rc) return rc;
    if (n != r->n_layers)
        return err_set(r->e, ST_INVALID, "%s: key '%s' has %llu entries, expected one per layer (%u)", gguf_file_path(r->g, 0),
                       r->key, (unsigned long long)n, r->n_layers);
    for (uint64_t i = 0; i < n; i++) {
        if (gguf_array_i64(r->g, at, i, &v))
            return err_set(r->e, ST_INVALID, "%s: key '%s' must hold integers", gguf_file_path(r->g, 0), r->key);
        if (i == 0) first = v;
        if (v != first)
            return err_set(r->e, ST_UNSUPPORTED, "%s: key '%s' differs between layers (%lld in layer 0, %lld in layer %llu)",
                           gguf_file_path(r->g, 0), r->key, (long long)first, (long long)v, (unsigned long long)i);
    }
    if (first < lo || first > hi) return out_of_range(r, (double)first, lo, hi);
    *out = (uint32_t)first;
    return ST_OK;
}

static int read_float_or(struct reader *r, const char *suffix, float fallback, float lo, float hi, float *out) {
    int rc = gguf_get_f32(r->g, full_key(r, suffix), out, r->e);
    if (rc == ST_NOT_FOUND) {
        *out = fallback;
        return ST_OK;
    }
    return !rc && !(*out >= lo && *out <= hi) ? out_of_range(r, *out, lo, hi) : rc;
}

/* Keys whose only supported values are the ones that change nothing. */
static const struct neutral {
    const char *suffix;
    double a, b; /* either is fine */
} NEUTRAL[] = {
    { "attention.clamp_kqv", 0, 0 },
    { "attention.causal", 1, 1 },
    { "attn_logit_softcapping", 0, 0 },
    { "final_logit_softcapping", 0, 0 },
    { "embedding_scale", 0, 1 },
    { "residual_scale", 0, 1 },
    { "logit_scale", 0, 1 },
    { "use_parallel_residual", 0, 0 },
    { "expert_group_count", 0, 1 },
    { "expert_shared_count", 0, 0 },
    { "nextn_predict_layers", 0, 0 },
    { "rope.scaling.yarn_log_multiplier", 0, 0 },
    { "rope.scaling.yarn_ext_factor", -1, 1 },
    { "rope.scaling.yarn_attn_factor", -1, 1 },
    { "rope.scaling.yarn_beta_fast", 32, 32 },
    { "rope.scaling.yarn_beta_slow", 1, 1 },
};

static int refuse_unsupported_keys(struct reader *r) {
    for (size_t i = 0; i < sizeof NEUTRAL / sizeof NEUTRAL[0]; i++) {
        const struct neutral *k = &NEUTRAL[i];
        int at = gguf_find(r->g, full_key(r, k->suffix));
        if (at < 0) continue;
        float f = 0;
        int64_t v = 0;
        enum gguf_type type = gguf_key_type(r->g, at);
        bool is_float = type == GGUF_F32 || type == GGUF_F64;
        if (type == GGUF_ARRAY || type == GGUF_STRING || (!is_float && gguf_array_i64(r->g, at, 0, &v)))
            return err_set(r->e, ST_INVALID, "%s: key '%s' has type %s, expected a number", gguf_file_path(r->g, 0), r->key,
                           gguf__type_name(type));
        int rc = is_float ? gguf_get_f32(r->g, r->key, &f, r->e) : ST_OK;
        if (rc) return rc;
        double value = is_float ? (double)f : (double)v;
        if (value != k->a && value != k->b)
            return err_set(r->e, ST_UNSUPPORTED, "%s: key '%s' is %g; this build only computes the case %g", gguf_file_path(r->g, 0),
                           r->key, value, k->b);
    }
    return ST_OK;
}

static int read_attention(struct reader *r, struct model_hparams *hp) {
    int rc = read_uniform(r, "attention.head_count", 1, MODEL_MAX_HEADS, &hp->n_heads);
    if (rc) return rc;
    rc = read_uniform(r, "attention.head_count_kv", 1, MODEL_MAX_HEADS, &hp->n_kv_heads);
    if (rc == ST_NOT_FOUND) {
        hp->n_kv_heads = hp->n_heads;
        rc = ST_OK;
    }
    if (!rc && hp->n_heads % hp->n_kv_heads)
        rc = err_set(r->e, ST_INVALID, "%s: %u attention heads do not divide into %u groups (attention.head_count, head_count_kv)",
                     gguf_file_path(r->g, 0), hp->n_heads, hp->n_kv_heads);
    uint32_t dim = hp->n_embd / hp->n_heads;
    if (!rc) rc = read_dim_or(r, "attention.key_length", dim, 1, MODEL_MAX_HEAD_DIM, &hp->head_dim_k);
    if (!rc) rc = read_dim_or(r, "attention.value_length", dim, 1, MODEL_MAX_HEAD_DIM, &hp->head_dim_v);
    if (!rc && (dim < 1 || dim > MODEL_MAX_HEAD_DIM) && (hp->head_dim_k == dim || hp->head_dim_v == dim)) /* the fallback was used */
        rc = err_set(r->e, ST_INVALID, "%s: head size %u (embedding_length %u / head_count %u) is outside 1 to %d",
                     gguf_file_path(r->g, 0), dim, hp->n_embd, hp->n_heads, MODEL_MAX_HEAD_DIM);
    if (!rc) rc = read_float_or(r, "attention.scale", 0, 0, 1e3f, &hp->attn_scale);
    if (!rc && hp->attn_scale == 0) hp->attn_scale = 1.0f / sqrtf((float)hp->head_dim_k);
    return rc;
}

/* Inside its window a sliding-window model is an ordinary one, so serve exactly that much. */
static int clamp_to_window(struct reader *r, struct model_hparams *hp) {
    uint32_t window = 0;
    int rc = read_dim_or(r, "attention.sliding_window", 0, 0, UINT32_MAX, &window);
    if (!rc && window > 0 && window < hp->n_ctx_train) hp->n_ctx_train = window;
    return rc;
}

static int read_scaling_type(struct reader *r, struct model_hparams *hp) {
    struct gguf_str s;
    char name[32];
    int rc = gguf_get_str(r->g, full_key(r, "rope.scaling.type"), &s, r->e);
    hp->rope_scaling = ROPE_SCALING_LINEAR; /* a factor without a type is linear; see read_rope for no factor */
    if (rc == ST_NOT_FOUND) return ST_OK;
    if (rc) return rc;
    gguf__printable(s, name, sizeof name);
    if (!strcmp(name, "none")) hp->rope_scaling = ROPE_SCALING_NONE;
    else if (!strcmp(name, "yarn")) hp->rope_scaling = ROPE_SCALING_YARN;
    else if (strcmp(name, "linear"))
        return err_set(r->e, ST_UNSUPPORTED, "%s: key '%s' is '%s', supported are none, linear, yarn", gguf_file_path(r->g, 0),
                       r->key, name);
    return ST_OK;
}

static int read_rope(struct reader *r, struct model_hparams *hp) {
    int rc = read_dim_or(r, "rope.dimension_count", hp->head_dim_k, 2, hp->head_dim_k, &hp->rope_dim);
    if (!rc && (hp->rope_dim % 2 || hp->rope_dim < 2))
        rc = err_set(r->e, ST_INVALID, "%s: %u rotated dimensions per head, expected an even number of at least 2",
                     gguf_file_path(r->g, 0), hp->rope_dim);
    if (!rc) rc = read_float_or(r, "rope.freq_base", 10000, 1, 1e12f, &hp->rope_theta);
    if (!rc) rc = read_scaling_type(r, hp);
    float legacy = 1; /* the older key of the linear factor */
    if (!rc) rc = read_float_or(r, "rope.scale_linear", 1, 0, 1e6f, &legacy);
    if (!rc) rc = read_float_or(r, "rope.scaling.factor", legacy, 0, 1e6f, &hp->rope_factor);
    if (!rc) rc = read_dim_or(r, "rope.scaling.original_context_length", hp->n_ctx_train, 1, MODEL_MAX_CTX, &hp->rope_ctx_orig);
    if (!rc) rc = read_float_or(r, "rope.scaling.attn_factor", 1, 1e-3f, 1e3f, &hp->rope_attn_factor);
    if (rc) return rc;
    if (hp->rope_factor == 0 || hp->rope_scaling == ROPE_SCALING_NONE) hp->rope_factor = 1;
    if (hp->rope_scaling == ROPE_SCALING_LINEAR && hp->rope_factor == 1) hp->rope_scaling = ROPE_SCALING_NONE;
    return ST_OK;
}

static int read_router(struct reader *r, const struct model__arch *arch, struct model_hparams *hp) {
    int rc = read_dim_or(r, "expert_count", 0, 0, MODEL_MAX_EXPERTS, &hp->n_experts);
    if (rc) return rc;
    if (hp->n_experts == 0) {
        if (!arch->needs_experts) return ST_OK;
        return err_set(r->e, ST_INVALID, "%s: key '%s' is missing or 0, but %s models have experts", gguf_file_path(r->g, 0),
                       r->key, arch->name);
    }
    uint32_t gating = ROUTER_SOFTMAX;
    rc = read_dim(r, "expert_used_count", 1, hp->n_experts, &hp->n_experts_used);
    if (!rc) rc = read_dim_or(r, "expert_feed_forward_length", hp->ff_dim, 1, MODEL_MAX_FF, &hp->expert_ff_dim);
    if (!rc && hp->expert_ff_dim == 0)
        rc = err_set(r->e, ST_INVALID, "%s: neither '%s' nor '%s.feed_forward_length' is there", gguf_file_path(r->g, 0),
                     r->key, r->arch);
    if (!rc) rc = read_dim_or(r, "expert_gating_func", ROUTER_SOFTMAX, 0, ROUTER_SQRT_SOFTPLUS, &gating);
    if (!rc) rc = read_float_or(r, "expert_weights_scale", 1, 0, 1e3f, &hp->router_scale);
    if (rc) return rc;
    hp->router_gating = gating ? (enum router_gating)gating : ROUTER_SOFTMAX; /* 0: written as "unset" by some tools */
    if (hp->router_scale == 0) hp->router_scale = 1;
    hp->router_norm = arch->router_norm;
    rc = gguf_get_bool(r->g, full_key(r, "expert_weights_norm"), &hp->router_norm, r->e);
    return rc == ST_NOT_FOUND ? ST_OK : rc;
}

int model__read_hparams(const struct gguf *g, const struct model__arch *arch, struct model_hparams *hp, struct err *e) {
    struct reader r = { .g = g, .arch = arch->name, .e = e };
    *hp = (struct model_hparams){
        .arch = arch->id, .rope_type = arch->rope_type, .qk_norm = arch->qk_norm, .router_gating = ROUTER_SOFTMAX, .router_scale = 1,
    };
    int rc = read_dim(&r, "block_count", 1, MODEL_MAX_LAYERS, &hp->n_layers);
    r.n_layers = hp->n_layers;
    if (!rc) rc = read_dim(&r, "embedding_length", 1, MODEL_MAX_EMBD, &hp->n_embd);
    if (!rc) rc = read_dim(&r, "context_length", 1, MODEL_MAX_CTX, &hp->n_ctx_train);
    if (!rc) rc = gguf_get_f32(g, full_key(&r, "attention.layer_norm_rms_epsilon"), &hp->rms_eps, e);
    if (!rc && !(hp->rms_eps >= 0 && hp->rms_eps <= 1)) rc = out_of_range(&r, hp->rms_eps, 0, 1);
    if (rc) return rc;
    rc = read_uniform(&r, "feed_forward_length", 0, MODEL_MAX_FF, &hp->ff_dim);
    if (rc == ST_NOT_FOUND) rc = ST_OK; /* fine without a dense layer, which model.c finds out */
    if (!rc) rc = read_attention(&r, hp);
    if (!rc) rc = read_rope(&r, hp);
    if (!rc) rc = read_router(&r, arch, hp);
    if (!rc) rc = clamp_to_window(&r, hp);
    uint32_t pooling = MODEL_POOLING_NONE;
    if (!rc) rc = read_dim_or(&r, "pooling_type", MODEL_POOLING_NONE, MODEL_POOLING_NONE, MODEL_POOLING_RANK, &pooling);
    hp->pooling = (enum model_pooling)pooling;
    return rc ? rc : refuse_unsupported_keys(&r);
}
