/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes a small GGUF model with random weights to a temporary file: any of the architectures, any weight format.
 * The weights are a function of the seed. For tests of the engine; include once per program. */
#ifndef MOED_TESTS_TINY_GGUF_H
#define MOED_TESTS_TINY_GGUF_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/quant.h"
#include "model/gguf.h"

struct tiny_model {
    const char *arch;          /* "llama", "qwen3moe", "olmoe"              */
    uint32_t n_layers, n_embd, n_vocab, n_ctx;
    uint32_t n_heads, n_kv_heads, head_dim;
    uint32_t ff;               /* dense, or of an expert when n_experts > 0 */
    uint32_t n_experts, n_used;
    enum dtype attn, gate, down, head; /* weight formats: attention, gate and up, down, embedding and output */
    bool tied;                 /* no output matrix: the embedding is the head */
    uint64_t seed;
};

enum { TINY_MAX_TENSORS = 256 };

struct tiny_tensor { char name[64]; uint32_t n_dims; uint64_t ne[3]; enum dtype dtype; float center; uint64_t offset; };

struct tiny_file {
    FILE *f;
    uint64_t rng;
    uint32_t n_tensors;
    struct tiny_tensor tensors[TINY_MAX_TENSORS];
};

static inline uint32_t tiny_u32(uint64_t *rng) {
    *rng = *rng * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*rng >> 32);
}

static inline float tiny_gauss(uint64_t *rng) { /* sum of four uniforms, scaled to unit variance: normal enough */
    float sum = 0;
    for (int i = 0; i < 4; i++) {
        sum += (float)(tiny_u32(rng) >> 8) / 8388608.0f - 1.0f;
    }
    return sum * 0.866f;
}

static inline void tiny_add(struct tiny_file *t, const char *name, enum dtype dtype, float center, uint64_t n0, uint64_t n1,
                            uint64_t n2) {
    struct tiny_tensor *x = &t->tensors[t->n_tensors++];
    *x = (struct tiny_tensor){ .n_dims = n2 ? 3 : n1 ? 2 : 1, .ne = { n0, n1 ? n1 : 1, n2 ? n2 : 1 }, .dtype = dtype, .center = center };
    snprintf(x->name, sizeof x->name, "%s", name);
}

static inline void tiny_put(struct tiny_file *t, const void *p, size_t n) { fwrite(p, 1, n, t->f); }
static inline void tiny_put_u32(struct tiny_file *t, uint32_t v) { tiny_put(t, &v, 4); }
static inline void tiny_put_u64(struct tiny_file *t, uint64_t v) { tiny_put(t, &v, 8); }
static inline void tiny_put_str(struct tiny_file *t, const char *s) {
    tiny_put_u64(t, strlen(s));
    tiny_put(t, s, strlen(s));
}
static inline void tiny_key(struct tiny_file *t, const char *arch, const char *key, uint32_t type) {
    char full[96];
    snprintf(full, sizeof full, "%s%s%s", arch, *arch ? "." : "", key);
    tiny_put_str(t, full);
    tiny_put_u32(t, type);
}
static inline void tiny_key_u32(struct tiny_file *t, const char *arch, const char *key, uint32_t v) {
    tiny_key(t, arch, key, GGUF_U32);
    tiny_put_u32(t, v);
}
static inline void tiny_key_f32(struct tiny_file *t, const char *arch, const char *key, float v) {
    tiny_key(t, arch, key, GGUF_F32);
    tiny_put(t, &v, 4);
}
static inline void tiny_key_str(struct tiny_file *t, const char *key, const char *v) {
    tiny_key(t, "", key, GGUF_STRING);
    tiny_put_str(t, v);
}

/* Sets the scale fields of a block of random bits so that a row of n_in weights keeps the variance of its input. */
static inline void tiny_scale_block(enum dtype dtype, uint8_t *b, uint64_t n_in) {
    float unit = 1.0f / sqrtf((float)n_in);
    const struct { enum dtype dtype; float std, min_per_d; int d_at, m_at; } forms[] = {
        { DTYPE_Q4_0, 4.6f, 0, 0, -1 },      { DTYPE_Q4_1, 4.6f, -7.5f, 0, 2 },  { DTYPE_Q5_0, 9.2f, 0, 0, -1 },
        { DTYPE_Q5_1, 9.2f, -15.5f, 0, 2 },  { DTYPE_Q8_0, 74, 0, 0, -1 },       { DTYPE_Q4_K, 300, 7.5f, 0, 2 },
        { DTYPE_Q5_K, 600, 15.5f, 0, 2 },    { DTYPE_Q6_K, 1370, 0, 208, -1 },   { DTYPE_IQ4_NL, 65, 0, 0, -1 },
        { DTYPE_IQ4_XS, 1200, 0, 0, -1 },
    };
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        if (forms[i].dtype == dtype) {
            uint16_t d = kern_f32_to_f16(unit / forms[i].std), m = kern_f32_to_f16(unit / forms[i].std * forms[i].min_per_d);
            memcpy(b + forms[i].d_at, &d, 2);
            if (forms[i].m_at >= 0) {
                memcpy(b + forms[i].m_at, &m, 2);
            }
        }
    }
    if (dtype == DTYPE_MXFP4) {
        b[0] = 123; /* 2^-4 */
    }
}

static inline void tiny_write_tensor(struct tiny_file *t, const struct tiny_tensor *x) {
    const struct dtype_info *info = dtype_info(x->dtype);
    uint64_t n = x->ne[0] * x->ne[1] * x->ne[2];
    float std = x->n_dims == 1 ? 0.1f : 1.0f / sqrtf((float)x->ne[0]);
    for (uint64_t i = 0; i < n; i += info->block_elems) {
        uint8_t block[256];
        if (info->block_elems == 1) {
            float v = x->center + std * tiny_gauss(&t->rng);
            uint16_t h = x->dtype == DTYPE_F16 ? kern_f32_to_f16(v) : kern_f32_to_bf16(v);
            tiny_put(t, x->dtype == DTYPE_F32 ? (void *)&v : (void *)&h, info->block_bytes);
            continue;
        }
        for (uint32_t j = 0; j < info->block_bytes; j++) {
            block[j] = (uint8_t)tiny_u32(&t->rng);
        }
        tiny_scale_block(x->dtype, block, x->ne[0]);
        tiny_put(t, block, info->block_bytes);
    }
}

static inline void tiny_layer(struct tiny_file *t, const struct tiny_model *m, uint32_t layer) {
    char name[64];
    const uint64_t q = (uint64_t)m->n_heads * m->head_dim, kv = (uint64_t)m->n_kv_heads * m->head_dim, e = m->n_experts;
    bool olmoe = !strcmp(m->arch, "olmoe"), qwen = !strcmp(m->arch, "qwen3moe");
    const struct { const char *name; enum dtype dtype; float center; uint64_t ne[3]; } rows[] = {
        { "attn_norm", DTYPE_F32, 1, { m->n_embd } },
        { "attn_q", m->attn, 0, { m->n_embd, q } },
        { "attn_k", m->attn, 0, { m->n_embd, kv } },
        { "attn_v", m->attn, 0, { m->n_embd, kv } },
        { "attn_output", m->attn, 0, { q, m->n_embd } },
        { "attn_q_norm", DTYPE_F32, 1, { olmoe ? q : qwen ? m->head_dim : 0 } },
        { "attn_k_norm", DTYPE_F32, 1, { olmoe ? kv : qwen ? m->head_dim : 0 } },
        { "ffn_norm", DTYPE_F32, 1, { m->n_embd } },
        { "ffn_gate_inp", DTYPE_F32, 0, { e ? m->n_embd : 0, e } },
        { e ? "ffn_gate_exps" : "ffn_gate", m->gate, 0, { m->n_embd, m->ff, e } },
        { e ? "ffn_up_exps" : "ffn_up", m->gate, 0, { m->n_embd, m->ff, e } },
        { e ? "ffn_down_exps" : "ffn_down", m->down, 0, { m->ff, m->n_embd, e } },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].ne[0]) {
            snprintf(name, sizeof name, "blk.%u.%s.weight", layer, rows[i].name);
            tiny_add(t, name, rows[i].dtype, rows[i].center, rows[i].ne[0], rows[i].ne[1], rows[i].ne[2]);
        }
    }
}

static inline void tiny_header(struct tiny_file *t, const struct tiny_model *m) {
    const struct { const char *key; uint32_t v; } u32s[] = {
        { "block_count", m->n_layers },           { "context_length", m->n_ctx },
        { "embedding_length", m->n_embd },        { "feed_forward_length", m->ff },
        { "attention.head_count", m->n_heads },   { "attention.head_count_kv", m->n_kv_heads },
        { "attention.key_length", m->head_dim },  { "attention.value_length", m->head_dim },
        { "rope.dimension_count", m->head_dim },  { "vocab_size", m->n_vocab },
        { "expert_count", m->n_experts },         { "expert_used_count", m->n_used },
        { "expert_feed_forward_length", m->ff },
    };
    const uint32_t n = m->n_experts ? 13 : 10;
    tiny_put(t, "GGUF", 4);
    tiny_put_u32(t, 3);
    tiny_put_u64(t, t->n_tensors);
    tiny_put_u64(t, n + 4);
    tiny_key_str(t, "general.architecture", m->arch);
    tiny_key_str(t, "tokenizer.ggml.model", "none");
    tiny_key_f32(t, m->arch, "attention.layer_norm_rms_epsilon", 1e-5f);
    tiny_key_f32(t, m->arch, "rope.freq_base", 10000.0f);
    for (uint32_t i = 0; i < n; i++) {
        tiny_key_u32(t, m->arch, u32s[i].key, u32s[i].v);
    }
    uint64_t offset = 0;
    for (uint32_t i = 0; i < t->n_tensors; i++) {
        struct tiny_tensor *x = &t->tensors[i];
        x->offset = offset;
        tiny_put_str(t, x->name);
        tiny_put_u32(t, x->n_dims);
        for (uint32_t d = 0; d < x->n_dims; d++) {
            tiny_put_u64(t, x->ne[d]);
        }
        tiny_put_u32(t, x->dtype);
        tiny_put_u64(t, offset);
        uint64_t n_bytes = dtype_row_bytes(dtype_info(x->dtype), x->ne[0]) * x->ne[1] * x->ne[2];
        offset += (n_bytes + 31) / 32 * 32;
    }
}

static inline void tiny_pad(struct tiny_file *t) {
    while (ftell(t->f) % 32) {
        fputc(0, t->f);
    }
}

/* path [64] receives the file's name; the caller unlinks it. 0 or -1. */
static inline int tiny_write(const struct tiny_model *m, char *path) {
    struct tiny_file *t = calloc(1, sizeof *t);
    strcpy(path, "/tmp/moed-tiny-XXXXXX");
    int fd = t ? mkstemp(path) : -1;
    if (fd < 0 || !(t->f = fdopen(fd, "wb"))) {
        free(t);
        return -1;
    }
    t->rng = m->seed;
    tiny_add(t, "token_embd.weight", m->head, 0, m->n_embd, m->n_vocab, 0);
    tiny_add(t, "output_norm.weight", DTYPE_F32, 1, m->n_embd, 0, 0);
    if (!m->tied) {
        tiny_add(t, "output.weight", m->head, 0, m->n_embd, m->n_vocab, 0);
    }
    for (uint32_t i = 0; i < m->n_layers; i++) {
        tiny_layer(t, m, i);
    }
    tiny_header(t, m);
    tiny_pad(t);
    for (uint32_t i = 0; i < t->n_tensors; i++) {
        tiny_write_tensor(t, &t->tensors[i]);
        tiny_pad(t);
    }
    int failed = fclose(t->f);
    free(t);
    return failed ? -1 : 0;
}

#endif
