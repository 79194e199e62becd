/* SPDX-License-Identifier: Apache-2.0
 *
 * Binding a GGUF to a model: the three architectures, the defaults and oddities of their metadata, every refusal with
 * the words of its error, mutations that must never crash, and the report of `moed inspect`. */
#include <inttypes.h>
#include <math.h>

#include "base/alloc.h"
#include "model/expert_bank.h"
#include "model/model_internal.h"
#include "tests/unit/gguf_build.h"
#include "tests/unit/test.h"

enum { L = 2, D = 64, NH = 4, NKV = 2, FF = 96, E = 4, V = 40 };

/* A change to the tiny model: leave one key or tensor out, then add things. */
struct edit {
    const char *drop;
    void (*add)(struct gguf_build *b);
};

static const char *key(const char *arch, const char *suffix) {
    static char buf[96];
    snprintf(buf, sizeof buf, "%s.%s", arch, suffix);
    return buf;
}

static void add_keys(struct gguf_build *b, const char *arch, bool moe) {
    build_str(b, "general.architecture", arch);
    build_str(b, "general.name", "Tiny\x1b Model");
    build_u32(b, key(arch, "block_count"), L);
    build_u32(b, key(arch, "context_length"), 512);
    build_u32(b, key(arch, "embedding_length"), D);
    build_u32(b, key(arch, "feed_forward_length"), FF);
    build_u32(b, key(arch, "attention.head_count"), NH);
    build_u32(b, key(arch, "attention.head_count_kv"), NKV);
    build_f32(b, key(arch, "attention.layer_norm_rms_epsilon"), 1e-5f);
    build_f32(b, key(arch, "rope.freq_base"), 5000.0f);
    if (!strcmp(arch, "qwen3moe")) {
        build_u32(b, key(arch, "attention.key_length"), 24);
        build_u32(b, key(arch, "attention.value_length"), 24);
    }
    if (!moe) return;
    build_u32(b, key(arch, "expert_count"), E);
    build_u32(b, key(arch, "expert_used_count"), 2);
    build_u32(b, key(arch, "expert_feed_forward_length"), 32);
}

static void add_layer(struct gguf_build *b, const char *arch, int layer, bool moe) {
    char name[64];
    const bool qwen = !strcmp(arch, "qwen3moe"), olmoe = !strcmp(arch, "olmoe");
    const uint64_t hd = qwen ? 24 : D / NH;
#define T(suffix, type, n0, n1, n2) (snprintf(name, sizeof name, "blk.%d.%s", layer, suffix), build_tensor(b, name, type, n0, n1, n2, 1))
    T("attn_norm.weight", DTYPE_F32, D, 0, 0);
    T("attn_q.weight", DTYPE_Q8_0, D, NH * hd, 0);
    T("attn_k.weight", DTYPE_Q8_0, D, NKV * hd, 0);
    T("attn_v.weight", DTYPE_F16, D, NKV * hd, 0);
    T("attn_output.weight", DTYPE_Q8_0, NH * hd, D, 0);
    if (qwen || olmoe) {
        T("attn_q_norm.weight", DTYPE_F32, qwen ? hd : NH * hd, 0, 0);
        T("attn_k_norm.weight", DTYPE_F32, qwen ? hd : NKV * hd, 0, 0);
    }
    T("ffn_norm.weight", DTYPE_F32, D, 0, 0);
    if (moe) {
        T("ffn_gate_inp.weight", DTYPE_F32, D, E, 0);
        T("ffn_gate_exps.weight", DTYPE_Q4_0, D, 32, E);
        T("ffn_up_exps.weight", DTYPE_Q4_1, D, 32, E);
        T("ffn_down_exps.weight", DTYPE_Q5_0, 32, D, E);
    } else {
        T("ffn_gate.weight", DTYPE_Q4_0, D, FF, 0);
        T("ffn_up.weight", DTYPE_Q4_0, D, FF, 0);
        T("ffn_down.weight", DTYPE_Q4_0, FF, D, 0);
    }
#undef T
}

/* The arch with a "+moe" suffix has experts in every layer, with "+mixed" only in layer 1. */
static struct bytes tiny(const char *arch_spec, const struct edit *edit) {
    struct gguf_build b;
    char arch[32];
    build_init(&b);
    snprintf(arch, sizeof arch, "%s", arch_spec);
    char *plus = strchr(arch, '+');
    if (plus) *plus = '\0';
    b.drop = edit ? edit->drop : NULL;
    add_keys(&b, arch, plus != NULL);
    build_tensor(&b, "token_embd.weight", DTYPE_Q8_0, D, V, 0, 1);
    build_tensor(&b, "output_norm.weight", DTYPE_F32, D, 0, 0, 1);
    for (int i = 0; i < L; i++) add_layer(&b, arch, i, plus && (i == 1 || !strcmp(plus + 1, "moe")));
    b.drop = NULL;
    if (edit && edit->add) edit->add(&b);
    return build_finish(&b);
}

/* Opens; *f must outlive the model. The file is freed by close_tiny. */
static struct model *open_tiny(struct bytes f, struct err *e) {
    struct gguf *g;
    struct model *m;
    if (gguf_open_memory(&g, f.p, f.n, e)) return NULL;
    if (model__open(&m, g, e)) gguf_close(g);
    return m;
}

TEST(reads_dense_hparams) {
    struct err e;
    struct bytes f = tiny("llama", NULL);
    struct model *m = open_tiny(f, &e);
    CHECKF(m, "%s", e.text);
    const struct model_hparams *h = model_hparams(m);
    CHECK(h->arch == MODEL_LLAMA && h->n_layers == L && h->n_embd == D && h->n_vocab == V && h->n_ctx_train == 512);
    CHECK(h->n_heads == NH && h->n_kv_heads == NKV && h->head_dim_k == 16 && h->head_dim_v == 16 && h->ff_dim == FF);
    CHECK(h->n_experts == 0 && h->n_experts_used == 0 && h->rms_eps == 1e-5f && h->attn_scale == 0.25f);
    CHECK(h->rope_type == ROPE_NORM && h->rope_dim == 16 && h->rope_theta == 5000.0f && h->rope_scaling == ROPE_SCALING_NONE);
    CHECK(h->rope_factor == 1 && h->rope_attn_factor == 1 && h->rope_ctx_orig == 512 && h->qk_norm == QK_NORM_NONE);
    model_close(m);
    free(f.p);
}

TEST(binds_dense_llama) {
    struct err e;
    struct bytes f = tiny("llama", NULL);
    struct model *m = open_tiny(f, &e);
    CHECKF(m, "%s", e.text);
    CHECK(model_output(m) == model_token_embd(m) && !model_rope_factors(m) && model_output_norm(m));
    const struct model_layer *l = model_layer(m, 1);
    CHECK(l->attn_norm && l->wq && l->wk && l->wv && l->wo && l->ffn_norm && l->ffn_gate && l->ffn_up && l->ffn_down);
    CHECK(!l->router && !l->gate_exps && !l->q_norm && !l->bq && !l->bo && !strcmp(l->wq->name, "blk.1.attn_q.weight"));
    CHECK(!strcmp(model_name(m), "Tiny? Model") && !strcmp(model_arch_name(m), "llama"));
    model_close(m);
    free(f.p);
}

TEST(binds_moe_architectures) {
    struct err e;
    static const struct { const char *spec; enum model_arch arch; enum rope_type rope; enum qk_norm qk; bool norm; } CASES[] = {
        { "llama+moe", MODEL_LLAMA, ROPE_NORM, QK_NORM_NONE, true },
        { "qwen3moe+moe", MODEL_QWEN3MOE, ROPE_NEOX, QK_NORM_HEAD, true },
        { "olmoe+moe", MODEL_OLMOE, ROPE_NEOX, QK_NORM_ROW, false },
    };
    for (size_t i = 0; i < 3; i++) {
        struct bytes f = tiny(CASES[i].spec, NULL);
        struct model *m = open_tiny(f, &e);
        CHECKF(m, "%s: %s", CASES[i].spec, e.text);
        const struct model_hparams *h = model_hparams(m);
        CHECK(h->arch == CASES[i].arch && h->rope_type == CASES[i].rope && h->qk_norm == CASES[i].qk && h->router_norm == CASES[i].norm);
        CHECK(h->n_experts == E && h->n_experts_used == 2 && h->expert_ff_dim == 32 && h->router_gating == ROUTER_SOFTMAX && h->router_scale == 1);
        CHECK(h->head_dim_k == (i == 1 ? 24 : 16) && h->rope_dim == h->head_dim_k);
        CHECK(model_layer(m, 0)->router && !model_layer(m, 0)->ffn_gate && (model_layer(m, 0)->q_norm != NULL) == (i > 0));
        model_close(m);
        free(f.p);
    }
}

TEST(binds_dense_layer_inside_moe) {
    struct err e;
    struct bytes f = tiny("qwen3moe+mixed", NULL);
    struct model *m = open_tiny(f, &e);
    CHECKF(m, "%s", e.text);
    CHECK(!model_layer(m, 0)->router && model_layer(m, 0)->ffn_gate && model_layer(m, 1)->router && !model_layer(m, 1)->ffn_gate);
    model_close(m);
    free(f.p);
}

TEST(slices_experts) {
    struct err e;
    struct bytes f = tiny("olmoe+moe", NULL);
    struct model *m = open_tiny(f, &e);
    CHECKF(m, "%s", e.text);
    for (uint32_t i = 0; i < E; i++) {
        struct expert x;
        const struct model_layer *l = model_layer(m, 1);
        expert_bank_get(m, 1, i, &x);
        CHECK(x.gate.dtype == DTYPE_Q4_0 && x.gate.n_in == D && x.gate.n_out == 32 && x.gate.row_bytes == 36 && x.gate.n_bytes == 36 * 32);
        CHECK(x.up.dtype == DTYPE_Q4_1 && x.up.row_bytes == 40 && x.up.n_bytes == 40 * 32);
        CHECK(x.down.dtype == DTYPE_Q5_0 && x.down.n_in == 32 && x.down.n_out == D && x.down.row_bytes == 22 && x.down.n_bytes == 22 * D);
        CHECK(x.gate.data == (const char *)l->gate_exps->data + i * x.gate.n_bytes && x.gate.file == 0);
        CHECK(x.down.data == f.p + x.down.file_offset && x.up.data == f.p + x.up.file_offset);
        CHECK(i + 1 < E || (const char *)x.down.data + x.down.n_bytes == (const char *)l->down_exps->data + l->down_exps->n_bytes);
    }
    model_close(m);
    free(f.p);
}

/* ---- metadata variants that must be understood ---- */

static void v_heads_array(struct gguf_build *b) { build_array(b, "llama.attention.head_count", GGUF_I32, 2, (const int32_t[2]){ NH, NH }, 8); }
static void v_yarn(struct gguf_build *b) {
    build_str(b, "llama.rope.scaling.type", "yarn");
    build_f32(b, "llama.rope.scaling.factor", 4);
    build_u32(b, "llama.rope.scaling.original_context_length", 128);
    build_f32(b, "llama.rope.scaling.attn_factor", 1.5f);
    build_f32(b, "llama.rope.scaling.yarn_beta_fast", 32);
    build_f32(b, "llama.rope.scaling.yarn_log_multiplier", 0);
}
static void v_linear_without_type(struct gguf_build *b) { build_f32(b, "llama.rope.scaling.factor", 2); }
static void v_linear_legacy(struct gguf_build *b) { build_f32(b, "llama.rope.scale_linear", 8); }
static void v_scaling_none(struct gguf_build *b) {
    build_str(b, "llama.rope.scaling.type", "none");
    build_f32(b, "llama.rope.scaling.factor", 8);
}
static void v_router_keys(struct gguf_build *b) {
    build_bool(b, "llama.expert_weights_norm", 0);
    build_f32(b, "llama.expert_weights_scale", 2.5f);
    build_u32(b, "llama.expert_gating_func", ROUTER_SIGMOID);
    build_u32(b, "llama.expert_group_count", 1);
}
static void v_partial_rope(struct gguf_build *b) { build_u32(b, "llama.rope.dimension_count", 8); }
static void v_scale_and_window(struct gguf_build *b) {
    build_f32(b, "llama.attention.scale", 0.5f);
    build_u32(b, "llama.attention.sliding_window", 100);
    build_u32(b, "llama.pooling_type", MODEL_POOLING_LAST);
}
static void v_factors(struct gguf_build *b) {
    build_tensor(b, "rope_freqs.weight", DTYPE_F32, 8, 0, 0, 0x3f);
    build_tensor(b, "output.weight", DTYPE_F16, D, V, 0, 0);
    build_tensor(b, "blk.0.attn_q.bias", DTYPE_F32, D, 0, 0, 0);
    build_tensor(b, "blk.0.attn_output.bias", DTYPE_F32, D, 0, 0, 0);
}

/* Opens a variant that must be accepted. */
static struct model *variant(const char *test_name_, struct bytes *f, const char *spec, const char *drop, void (*add)(struct gguf_build *b)) {
    struct err e = { 0 };
    *f = tiny(spec, &(const struct edit){ drop, add });
    struct model *m = open_tiny(*f, &e);
    CHECKF(m, "%s without %s: %s", spec, drop ? drop : "nothing", e.text);
    return m;
}

static struct model_hparams variant_hparams(const char *test_name_, const char *spec, const char *drop, void (*add)(struct gguf_build *b)) {
    struct bytes f;
    struct model *m = variant(test_name_, &f, spec, drop, add);
    struct model_hparams h = *model_hparams(m);
    model_close(m);
    free(f.p);
    return h;
}

TEST(understands_metadata_variants) {
    struct model_hparams h = variant_hparams(test_name_, "llama", "llama.attention.head_count", v_heads_array);
    CHECK(h.n_heads == NH);
    h = variant_hparams(test_name_, "llama", "llama.rope.freq_base", v_yarn);
    CHECK(h.rope_scaling == ROPE_SCALING_YARN && h.rope_factor == 4 && h.rope_ctx_orig == 128 && h.rope_attn_factor == 1.5f);
    CHECK(h.rope_theta == 10000);
    h = variant_hparams(test_name_, "llama", NULL, v_linear_without_type);
    CHECK(h.rope_scaling == ROPE_SCALING_LINEAR && h.rope_factor == 2);
    h = variant_hparams(test_name_, "llama", NULL, v_linear_legacy);
    CHECK(h.rope_scaling == ROPE_SCALING_LINEAR && h.rope_factor == 8);
    h = variant_hparams(test_name_, "llama", NULL, v_scaling_none);
    CHECK(h.rope_scaling == ROPE_SCALING_NONE && h.rope_factor == 1);
    h = variant_hparams(test_name_, "llama+moe", NULL, v_router_keys);
    CHECK(!h.router_norm && h.router_scale == 2.5f && h.router_gating == ROUTER_SIGMOID);
    h = variant_hparams(test_name_, "llama", NULL, v_partial_rope);
    CHECK(h.rope_dim == 8 && h.head_dim_k == 16 && h.pooling == MODEL_POOLING_NONE);
    h = variant_hparams(test_name_, "llama", NULL, v_scale_and_window);
    CHECK(h.attn_scale == 0.5f && h.n_ctx_train == 100 && h.rope_ctx_orig == 512); /* no further than the window, where it equals full attention */
    CHECK(h.pooling == MODEL_POOLING_LAST);
    h = variant_hparams(test_name_, "qwen3moe+moe", "qwen3moe.feed_forward_length", NULL);
    CHECK(h.ff_dim == 0 && h.expert_ff_dim == 32);
}

TEST(binds_optional_tensors) {
    struct bytes f;
    struct model *m = variant(test_name_, &f, "llama", NULL, v_factors);
    CHECK(model_rope_factors(m) && model_output(m) != model_token_embd(m) && model_output(m)->dtype == DTYPE_F16);
    CHECK(model_layer(m, 0)->bq && model_layer(m, 0)->bo && !model_layer(m, 0)->bk && !model_layer(m, 1)->bq);
    model_close(m);
    free(f.p);
}

/* ---- what must be refused ---- */

static void x_heads_array_short(struct gguf_build *b) { build_array(b, "llama.attention.head_count", GGUF_I32, 1, (const int32_t[1]){ NH }, 4); }
static void x_heads_array_differs(struct gguf_build *b) { build_array(b, "llama.attention.head_count", GGUF_I32, 2, (const int32_t[2]){ NH, 2 }, 8); }
static void x_heads_array_floats(struct gguf_build *b) { build_array(b, "llama.attention.head_count", GGUF_F32, 2, (const float[2]){ 4, 4 }, 8); }
static void x_kv_heads_3(struct gguf_build *b) { build_u32(b, "llama.attention.head_count_kv", 3); }
static void x_kv_heads_0(struct gguf_build *b) { build_u32(b, "llama.attention.head_count_kv", 0); }
static void x_layers_0(struct gguf_build *b) { build_u32(b, "llama.block_count", 0); }
static void x_layers_huge(struct gguf_build *b) { build_u32(b, "llama.block_count", UINT32_MAX); }
static void x_layers_3(struct gguf_build *b) { build_u32(b, "llama.block_count", 3); }
static void x_layers_1(struct gguf_build *b) { build_u32(b, "llama.block_count", 1); }
static void x_embd_huge(struct gguf_build *b) { build_u32(b, "llama.embedding_length", 1u << 31); }
static void x_embd_96(struct gguf_build *b) { build_u32(b, "llama.embedding_length", 96); }
static void x_embd_2(struct gguf_build *b) { build_u32(b, "llama.embedding_length", 2); }
static void x_eps_negative(struct gguf_build *b) { build_f32(b, "llama.attention.layer_norm_rms_epsilon", -1); }
static void x_eps_nan(struct gguf_build *b) { build_f32(b, "llama.attention.layer_norm_rms_epsilon", NAN); }
static void x_theta(struct gguf_build *b) { build_f32(b, "llama.rope.freq_base", 0); }
static void x_rope_odd(struct gguf_build *b) { build_u32(b, "llama.rope.dimension_count", 7); }
static void x_rope_wide(struct gguf_build *b) { build_u32(b, "llama.rope.dimension_count", 18); }
static void x_longrope(struct gguf_build *b) { build_str(b, "llama.rope.scaling.type", "longrope"); }
static void x_beta(struct gguf_build *b) { build_f32(b, "llama.rope.scaling.yarn_beta_fast", 16); }
static void x_softcap(struct gguf_build *b) { build_f32(b, "llama.final_logit_softcapping", 30); }
static void x_softcap_type(struct gguf_build *b) { build_str(b, "llama.final_logit_softcapping", "30"); }
static void x_not_causal(struct gguf_build *b) { build_bool(b, "llama.attention.causal", 0); }
static void x_groups(struct gguf_build *b) { build_u32(b, "llama.expert_group_count", 8); }
static void x_used_5(struct gguf_build *b) { build_u32(b, "llama.expert_used_count", 5); }
static void x_experts_huge(struct gguf_build *b) { build_u32(b, "llama.expert_count", 4096); }
static void x_gating(struct gguf_build *b) { build_u32(b, "llama.expert_gating_func", 9); }
static void x_old_experts(struct gguf_build *b) { build_tensor(b, "blk.0.ffn_gate.0.weight", DTYPE_Q8_0, D, 32, 0, 0); }
static void x_shared_expert(struct gguf_build *b) { build_tensor(b, "blk.0.ffn_gate_shexp.weight", DTYPE_Q8_0, D, 32, 0, 0); }
static void x_router_bias(struct gguf_build *b) { build_tensor(b, "blk.0.exp_probs_b.bias", DTYPE_F32, E, 0, 0, 0); }
static void x_norm_f16(struct gguf_build *b) { build_tensor(b, "output_norm.weight", DTYPE_F16, D, 0, 0, 0); }
static void x_norm_matrix(struct gguf_build *b) { build_tensor(b, "output_norm.weight", DTYPE_F32, D, 2, 0, 0); }
static void x_q2_k(struct gguf_build *b) { build_info(b, "blk.1.attn_k.weight", 2, (const uint64_t[2]){ 256, 1 }, 10, 0); }
static void x_factor_zero(struct gguf_build *b) { build_tensor(b, "rope_freqs.weight", DTYPE_F32, 8, 0, 0, 0); }
static void x_factor_nan(struct gguf_build *b) { build_tensor(b, "rope_freqs.weight", DTYPE_F32, 8, 0, 0, 0xff); }
static void x_vocab_huge(struct gguf_build *b) {
    unsigned char *zeros = calloc((1u << 22) + 1, 1);
    build_info(b, "token_embd.weight", 2, (const uint64_t[2]){ 1, (1u << 22) + 1 }, 24 /* I8 */, b->data.n);
    put(&b->data, zeros, (1u << 22) + 1);
    free(zeros);
}
static void x_arch_escape(struct gguf_build *b) { build_str(b, "general.architecture", "gpt\x1b[2J2"); }
static void x_arch_type(struct gguf_build *b) { build_u32(b, "general.architecture", 1); }

static const struct refusal {
    const char *name, *spec, *drop;
    void (*add)(struct gguf_build *b);
    int status;
    const char *words;
} REFUSALS[] = {
    { "no architecture", "llama", "general.architecture", NULL, ST_NOT_FOUND, "key 'general.architecture' is missing" },
    { "architecture is a number", "llama", "general.architecture", x_arch_type, ST_INVALID, "has type u32, expected string" },
    { "other architecture", "mamba", NULL, NULL, ST_UNSUPPORTED, "'mamba' is not supported; supported are llama (also Mixtral), qwen3moe, olmoe" },
    { "escape code in it", "llama", "general.architecture", x_arch_escape, ST_UNSUPPORTED, "'gpt?[2J2' is not supported" },
    { "no layer count", "llama", "llama.block_count", NULL, ST_NOT_FOUND, "key 'llama.block_count' is missing" },
    { "0 layers", "llama", "llama.block_count", x_layers_0, ST_INVALID, "key 'llama.block_count' is 0, expected 1 to 1024" },
    { "2^32 layers", "llama", "llama.block_count", x_layers_huge, ST_INVALID, "expected 1 to 1024" },
    { "a layer more than there is", "llama", "llama.block_count", x_layers_3, ST_INVALID, "tensor 'blk.2.attn_norm.weight' is missing" },
    { "a layer less than there is", "llama", "llama.block_count", x_layers_1, ST_UNSUPPORTED, "tensor 'blk.1.attn_norm.weight' is not part of a llama model with 1 layers" },
    { "no context", "llama", "llama.context_length", NULL, ST_NOT_FOUND, "'llama.context_length' is missing" },
    { "2^31 hidden", "llama", "llama.embedding_length", x_embd_huge, ST_INVALID, "'llama.embedding_length' is 2.14748e+09" },
    { "other hidden size", "llama", "llama.embedding_length", x_embd_96, ST_INVALID, "'token_embd.weight' has shape [64, 40, 1, 1], expected [96, 40, 1, 1]" },
    { "heads of size 0", "llama", "llama.embedding_length", x_embd_2, ST_INVALID, "head size 0 (embedding_length 2 / head_count 4)" },
    { "no heads", "llama", "llama.attention.head_count", NULL, ST_NOT_FOUND, "'llama.attention.head_count' is missing" },
    { "heads for one layer", "llama", "llama.attention.head_count", x_heads_array_short, ST_INVALID, "has 1 entries, expected one per layer (2)" },
    { "heads differ", "llama", "llama.attention.head_count", x_heads_array_differs, ST_UNSUPPORTED, "differs between layers (4 in layer 0, 2 in layer 1)" },
    { "heads are floats", "llama", "llama.attention.head_count", x_heads_array_floats, ST_INVALID, "must hold integers" },
    { "3 kv heads of 4", "llama", "llama.attention.head_count_kv", x_kv_heads_3, ST_INVALID, "4 attention heads do not divide into 3 groups" },
    { "0 kv heads", "llama", "llama.attention.head_count_kv", x_kv_heads_0, ST_INVALID, "head_count_kv' is 0, expected 1 to 1024" },
    { "no epsilon", "llama", "llama.attention.layer_norm_rms_epsilon", NULL, ST_NOT_FOUND, "layer_norm_rms_epsilon' is missing" },
    { "epsilon < 0", "llama", "llama.attention.layer_norm_rms_epsilon", x_eps_negative, ST_INVALID, "is -1, expected 0 to 1" },
    { "epsilon is NaN", "llama", "llama.attention.layer_norm_rms_epsilon", x_eps_nan, ST_INVALID, "expected a finite number" },
    { "rope theta 0", "llama", "llama.rope.freq_base", x_theta, ST_INVALID, "rope.freq_base' is 0, expected 1 to" },
    { "odd rope", "llama", NULL, x_rope_odd, ST_INVALID, "7 rotated dimensions per head, expected an even number" },
    { "rope wider than the head", "llama", NULL, x_rope_wide, ST_INVALID, "rope.dimension_count' is 18, expected 2 to 16" },
    { "longrope", "llama", NULL, x_longrope, ST_UNSUPPORTED, "'llama.rope.scaling.type' is 'longrope', supported are none, linear, yarn" },
    { "yarn with another beta", "llama", NULL, x_beta, ST_UNSUPPORTED, "yarn_beta_fast' is 16; this build only computes the case 32" },
    { "soft-capped logits", "llama", NULL, x_softcap, ST_UNSUPPORTED, "final_logit_softcapping' is 30" },
    { "soft cap is a string", "llama", NULL, x_softcap_type, ST_INVALID, "has type string, expected a number" },
    { "not causal", "llama", NULL, x_not_causal, ST_UNSUPPORTED, "attention.causal' is 0" },
    { "grouped routing", "llama+moe", NULL, x_groups, ST_UNSUPPORTED, "expert_group_count' is 8" },
    { "5 of 4 experts", "llama+moe", "llama.expert_used_count", x_used_5, ST_INVALID, "expert_used_count' is 5, expected 1 to 4" },
    { "4096 experts", "llama+moe", "llama.expert_count", x_experts_huge, ST_INVALID, "expert_count' is 4096, expected 0 to 1024" },
    { "gating 9", "llama+moe", NULL, x_gating, ST_INVALID, "expert_gating_func' is 9" },
    { "router without expert count", "llama+moe", "llama.expert_count", NULL, ST_INVALID, "has a router, but the key 'llama.expert_count' is missing" },
    { "olmoe without experts", "olmoe", NULL, NULL, ST_INVALID, "'olmoe.expert_count' is missing or 0, but olmoe models have experts" },
    { "experts but no router", "llama+mixed", "blk.1.ffn_gate_inp.weight", NULL, ST_INVALID, "'blk.1.ffn_gate.weight' is missing" },
    { "wrong expert size", "llama+moe", "llama.expert_feed_forward_length", NULL, ST_INVALID, "'blk.0.ffn_gate_exps.weight' has shape [64, 32, 4, 1], expected [64, 96, 4, 1]" },
    { "dense layer without its size", "qwen3moe+mixed", "qwen3moe.feed_forward_length", NULL, ST_INVALID, "layer 'blk.0.' has no router, so it needs the key 'qwen3moe.feed_forward_length'" },
    { "experts one by one", "llama+moe", "blk.0.ffn_gate_exps.weight", x_old_experts, ST_UNSUPPORTED, "'blk.0.ffn_gate.0.weight': experts are stored one tensor each" },
    { "shared expert", "llama+moe", NULL, x_shared_expert, ST_UNSUPPORTED, "tensor 'blk.0.ffn_gate_shexp.weight' is not part of a llama model" },
    { "router bias", "llama+moe", NULL, x_router_bias, ST_UNSUPPORTED, "tensor 'blk.0.exp_probs_b.bias' is not part of" },
    { "no embedding", "llama", "token_embd.weight", NULL, ST_INVALID, "tensor 'token_embd.weight' is missing" },
    { "vocabulary of 2^22 + 1", "llama", "token_embd.weight", x_vocab_huge, ST_INVALID, "'token_embd.weight' has 4194305 rows, expected 1 to 4194304" },
    { "no q norm", "qwen3moe+moe", "blk.1.attn_q_norm.weight", NULL, ST_INVALID, "tensor 'blk.1.attn_q_norm.weight' is missing" },
    { "norm in F16", "llama", "output_norm.weight", x_norm_f16, ST_UNSUPPORTED, "'output_norm.weight' has type F16, expected F32" },
    { "norm is a matrix", "llama", "output_norm.weight", x_norm_matrix, ST_INVALID, "'output_norm.weight' has shape [64, 2, 1, 1], expected [64, 1, 1, 1]" },
    { "wrong shape of another type", "llama", "blk.1.attn_k.weight", x_q2_k, ST_INVALID, "'blk.1.attn_k.weight' has shape [256, 1, 1, 1]" },
    { "rope factor 0", "llama", NULL, x_factor_zero, ST_INVALID, "'rope_freqs.weight': element 0 is 0, expected a positive number" },
    { "rope factor NaN", "llama", NULL, x_factor_nan, ST_INVALID, "'rope_freqs.weight': element 0 is" },
};

TEST(refuses_what_it_cannot_serve) {
    for (size_t i = 0; i < sizeof REFUSALS / sizeof REFUSALS[0]; i++) {
        const struct refusal *r = &REFUSALS[i];
        struct err e = { 0 };
        struct bytes f = tiny(r->spec, &(const struct edit){ r->drop, r->add });
        struct model *m = open_tiny(f, &e);
        CHECKF(!m, "%s: accepted", r->name);
        CHECKF(e.code == r->status && strstr(e.text, r->words), "%s: expected %d '%s', got %d '%s'", r->name, r->status, r->words, e.code, e.text);
        free(f.p);
    }
}

/* Q2_K has a known size, so the file opens; serving it is refused by name. */
TEST(names_the_unsupported_type) {
    struct gguf_build b;
    struct err e = { 0 };
    build_init(&b);
    add_keys(&b, "llama", false);
    build_info(&b, "token_embd.weight", 2, (const uint64_t[2]){ 256, V }, 10, 0);
    put(&b.data, (const unsigned char[84 * V]){ 0 }, 84 * V);
    struct bytes f = build_finish(&b);
    for (size_t i = 0; i + 4 < f.n; i++) /* embedding_length 64 -> 256, to get past the shape */
        if (!memcmp(f.p + i, "\x04\0\0\0\x40\0\0\0", 8)) f.p[i + 4] = 0, f.p[i + 5] = 1;
    struct model *m = open_tiny(f, &e);
    CHECKF(!m && e.code == ST_UNSUPPORTED && strstr(e.text, "tensor 'token_embd.weight' has type Q2_K (10), which this build cannot compute with"), "%s", e.text);
    free(f.p);
}

/* Everything the engine would read through the model: ends of all tensors, all experts. */
static uint64_t model_touch(const struct model *m) {
    uint64_t sum = gguf_touch(model_gguf(m)) + strlen(model_name(m));
    const struct model_hparams *h = model_hparams(m);
    for (uint32_t l = 0; l < h->n_layers; l++) {
        for (uint32_t i = 0; model_layer(m, l)->router && i < h->n_experts; i++) {
            struct expert x;
            expert_bank_get(m, l, i, &x);
            sum += ((const unsigned char *)x.gate.data)[x.gate.n_bytes - 1] + ((const unsigned char *)x.up.data)[x.up.n_bytes - 1] +
                   ((const unsigned char *)x.down.data)[x.down.n_bytes - 1];
        }
    }
    return sum;
}

/* Only the part before the data can change what is bound, so flips go there. */
TEST(random_flips_never_crash) {
    struct err e;
    struct bytes f = tiny("qwen3moe+mixed", NULL);
    struct model *m = open_tiny(f, &e);
    CHECKF(m, "%s", e.text);
    const size_t head = model_token_embd(m)->file_offset;
    model_close(m);
    uint64_t seed = 12345, n_ok = 0;
    for (int round = 0; round < 10000; round++) {
        struct bytes copy = { malloc(f.n), f.n, f.n };
        memcpy(copy.p, f.p, f.n);
        for (uint64_t flips = 1 + test_random(&seed) % 2; flips; flips--) {
            uint64_t r = test_random(&seed);
            copy.p[test_random(&seed) % head] = r & 1 ? (unsigned char)(r >> 40) : (unsigned char)(1u << (r >> 40) % 8);
        }
        m = open_tiny(copy, &e);
        if (m) model_touch(m);
        if (m) n_ok++;
        model_close(m);
        free(copy.p);
    }
    CHECKF(n_ok > 10 && n_ok < 9000, "%" PRIu64 " of 10000 opened", n_ok);
    free(f.p);
}

TEST(truncation_at_every_byte_of_the_head) {
    struct err e;
    struct bytes f = tiny("olmoe+moe", NULL);
    struct model *m = open_tiny(f, &e);
    CHECKF(m, "%s", e.text);
    const size_t head = model_token_embd(m)->file_offset;
    model_close(m);
    for (size_t n = 0; n <= head; n++) {
        struct bytes copy = { malloc(n ? n : 1), n, n };
        memcpy(copy.p, f.p, n);
        CHECKF(!open_tiny(copy, &e) && e.code < 0, "cut at %zu", n);
        free(copy.p);
    }
    free(f.p);
}

TEST(failed_allocations_leak_nothing) {
    struct bytes f = tiny("llama+moe", NULL);
    struct mem_stats before, after;
    struct model *m;
    struct err e;
    int n = 0;
    mem_stats(&before);
    do {
        mem_fail_after((uint64_t)n++);
        m = open_tiny(f, &e);
        mem_fail_after(UINT64_MAX);
        mem_stats(&after);
        CHECKF(m || (e.code == ST_NOMEM && after.n_live == before.n_live), "allocation %d: %d %s", n - 1, e.code, e.text);
    } while (!m && n < 1000);
    CHECK(m && n > 10);
    model_close(m);
    mem_stats(&after);
    CHECK(after.n_live == before.n_live);
    free(f.p);
}

/* ---- the committed fixtures, and inspect ---- */

TEST(opens_the_logit_fixtures) {
    static const struct { const char *name; uint32_t n_experts, n_used, n_kv_heads, head_dim; enum rope_scaling scaling; bool tied, factors; } CASES[] = {
        { "qwen3moe", 6, 2, 2, 24, ROPE_SCALING_NONE, false, false }, { "olmoe", 8, 3, 4, 16, ROPE_SCALING_NONE, false, false },
        { "mixtral", 4, 2, 2, 16, ROPE_SCALING_NONE, false, false },  { "llama", 0, 0, 1, 16, ROPE_SCALING_NONE, true, false },
        { "llama-rope3", 0, 0, 2, 16, ROPE_SCALING_NONE, true, true }, { "llama-yarn", 0, 0, 2, 16, ROPE_SCALING_YARN, true, false },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        char path[96];
        struct model *m;
        struct err e;
        snprintf(path, sizeof path, "tests/data/logits/%s.gguf", CASES[i].name);
        CHECKF(model_open(&m, path, &e) == 0, "%s", e.text);
        const struct model_hparams *h = model_hparams(m);
        CHECK(h->n_vocab == 269 && h->n_experts == CASES[i].n_experts && h->n_experts_used == CASES[i].n_used);
        CHECK(h->n_kv_heads == CASES[i].n_kv_heads && h->head_dim_k == CASES[i].head_dim && h->rope_scaling == CASES[i].scaling);
        CHECK((model_output(m) == model_token_embd(m)) == CASES[i].tied && (model_rope_factors(m) != NULL) == CASES[i].factors);
        CHECK((uintptr_t)model_token_embd(m)->data % 32 == 0);
        model_touch(m);
        model_close(m);
    }
}

TEST(opens_every_format) {
    struct model *m;
    struct err e;
    uint64_t seen = 0;
    CHECKF(model_open(&m, "tests/data/logits/quants.gguf", &e) == 0, "%s", e.text);
    for (uint64_t i = 0; i < gguf_n_tensors(model_gguf(m)); i++) seen |= 1ull << gguf_tensor(model_gguf(m), i)->dtype;
    for (uint32_t id = 0; id < 64; id++) CHECKF(((seen >> id) & 1) == (dtype_info(id) != NULL), "type %u", id);
    model_touch(m);
    model_close(m);
}

static char *inspect(const char *path, struct err *e, int *rc) {
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    *rc = model_inspect(path, out, e);
    fclose(out);
    return text;
}

TEST(inspects_a_supported_file) {
    struct err e;
    int rc;
    char *text = inspect("tests/data/logits/olmoe.gguf", &e, &rc);
    static const char *const WORDS[] = {
        "GGUF version 3, 1 file,", "architecture      olmoe", "can serve it", "vocabulary        269", "qk norm whole row",
        "8 per layer in 2 of 2 layers, 3 used per token, ffn 16", "weights as they are", "gpt2, pre gpt-2, 269 tokens",
        "olmoe.expert_used_count", "[269 string]", ", ...", "blk.1.ffn_down_exps.weight", "16 x 64 x 8", "32768 bytes", "32.000",
    };
    CHECKF(rc == 0, "%s", e.text);
    for (size_t i = 0; i < sizeof WORDS / sizeof WORDS[0]; i++) CHECKF(strstr(text, WORDS[i]), "'%s' is not in:\n%s", WORDS[i], text);
    free(text);
}

TEST(inspects_an_unsupported_file) {
    char path[] = "/tmp/moed-inspect-XXXXXX";
    struct gguf_build b;
    struct err e;
    int rc, fd = mkstemp(path);
    build_init(&b);
    build_str(&b, "general.architecture", "mamba");
    build_str(&b, "mamba.secret", "red \x1b[31m");
    build_info(&b, "w", 1, (const uint64_t[1]){ 256 }, 10, 0);
    put(&b.data, (const unsigned char[84]){ 0 }, 84);
    struct bytes f = build_finish(&b);
    FILE *file = fdopen(fd, "wb");
    fwrite(f.p, 1, f.n, file);
    fclose(file);
    char *text = inspect(path, &e, &rc);
    remove(path);
    CHECKF(rc == 0, "%s", e.text);
    CHECK(strstr(text, "cannot serve it: ") && strstr(text, "'mamba' is not supported") && strstr(text, "Q2_K") && strstr(text, "(not supported)"));
    CHECK(strstr(text, "red ?[31m") && !strchr(text, '\x1b') && strstr(text, "2.625"));
    free(text);
    free(f.p);
    free(inspect("/nonexistent", &e, &rc));
    CHECK(rc == ST_NOT_FOUND);
}

int main(void) {
    RUN(reads_dense_hparams);
    RUN(binds_dense_llama);
    RUN(binds_moe_architectures);
    RUN(binds_dense_layer_inside_moe);
    RUN(slices_experts);
    RUN(understands_metadata_variants);
    RUN(binds_optional_tensors);
    RUN(refuses_what_it_cannot_serve);
    RUN(names_the_unsupported_type);
    RUN(random_flips_never_crash);
    RUN(truncation_at_every_byte_of_the_head);
    RUN(failed_allocations_leak_nothing);
    RUN(opens_the_logit_fixtures);
    RUN(opens_every_format);
    RUN(inspects_a_supported_file);
    RUN(inspects_an_unsupported_file);
    return test_failed_;
}
