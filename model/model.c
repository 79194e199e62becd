/* SPDX-License-Identifier: Apache-2.0
 *
 * Binds the tensor names of an architecture to pointers and checks shape and type of each against the metadata.
 * Every tensor of the file must be used: one this build does not know would change the results if it were ignored. */
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "model/gguf_internal.h"
#include "model/model_internal.h"

enum { MODEL_NAME_BYTES = 128 };

struct model {
    struct gguf *gguf;              /* owned */
    const struct model__arch *arch;
    struct model_hparams hp;
    struct model_layer *layers;     /* owned, hp.n_layers */
    struct model__pack pack;
    const struct tensor *token_embd, *output_norm, *output, *rope_factors;
    char name[MODEL_NAME_BYTES];
};

/* State of model__open only. */
struct binder {
    struct model *m;
    unsigned char *used;            /* [tensors of the file] bound to something */
    struct err *e;
};

enum want_flags { WANT_ANY = 0, WANT_OPTIONAL = 1, WANT_F32 = 2 };

struct want {
    const struct tensor **slot;
    const char *name;               /* within its layer */
    unsigned flags;
    uint64_t ne[4];                 /* expected; 0 = 1  */
};

static const char *path_of(const struct binder *b, const struct tensor *t) {
    return gguf_file_path(b->m->gguf, t ? t->file : 0);
}

static int wrong_shape(struct binder *b, const struct tensor *t, const uint64_t *want) {
    const uint64_t *ne = t->ne;
    return err_set(b->e, ST_INVALID,
                   "%s: tensor '%s' has shape [%llu, %llu, %llu, %llu], expected [%llu, %llu, %llu, %llu] from the metadata",
                   path_of(b, t), t->name, (unsigned long long)ne[0], (unsigned long long)ne[1], (unsigned long long)ne[2],
                   (unsigned long long)ne[3], (unsigned long long)want[0], (unsigned long long)want[1],
                   (unsigned long long)want[2], (unsigned long long)want[3]);
}

/* Finds one tensor, checks it and marks it used. prefix is "" or "blk.N.". */
static int bind_one(struct binder *b, const char *prefix, const struct want *w) {
    char name[64];
    snprintf(name, sizeof name, "%s%s", prefix, w->name);
    const struct tensor *t = gguf_find_tensor(b->m->gguf, name);
    if (!t) {
        if (w->flags & WANT_OPTIONAL) return ST_OK;
        return err_set(b->e, ST_INVALID, "%s: tensor '%s' is missing", path_of(b, NULL), name);
    }
    uint64_t ne[4];
    for (int d = 0; d < 4; d++) ne[d] = w->ne[d] ? w->ne[d] : 1;
    if (memcmp(ne, t->ne, sizeof ne)) return wrong_shape(b, t, ne);
    const char *type = dtype__known(t->dtype)->name;
    if (!dtype_info(t->dtype))
        return err_set(b->e, ST_UNSUPPORTED, "%s: tensor '%s' has type %s (%d), which this build cannot compute with; "
                       "use a file quantised to Q4_K, Q8_0 or another supported type", path_of(b, t), t->name, type, t->dtype);
    if ((w->flags & WANT_F32) && t->dtype != DTYPE_F32)
        return err_set(b->e, ST_UNSUPPORTED, "%s: tensor '%s' has type %s, expected F32 for a vector", path_of(b, t), t->name, type);
    *w->slot = t;
    b->used[t - gguf_tensor(b->m->gguf, 0)] = 1;
    return ST_OK;
}

static int bind_all(struct binder *b, const char *prefix, const struct want *w, size_t n) {
    for (size_t i = 0; i < n; i++) {
        int rc = bind_one(b, prefix, &w[i]);
        if (rc) return rc;
    }
    return ST_OK;
}

#define BIND(b, prefix, wants) bind_all(b, prefix, wants, sizeof(wants) / sizeof((wants)[0]))

static int bind_attention(struct binder *b, const char *prefix, struct model_layer *l) {
    const struct model_hparams *hp = &b->m->hp;
    const uint64_t d = hp->n_embd;
    const uint64_t nq = (uint64_t)hp->n_heads * hp->head_dim_k, nk = (uint64_t)hp->n_kv_heads * hp->head_dim_k;
    const uint64_t nv = (uint64_t)hp->n_kv_heads * hp->head_dim_v, no = (uint64_t)hp->n_heads * hp->head_dim_v;
    const struct want wants[] = {
        { &l->attn_norm, "attn_norm.weight", WANT_F32, { d } },
        { &l->wq, "attn_q.weight", WANT_ANY, { d, nq } },
        { &l->wk, "attn_k.weight", WANT_ANY, { d, nk } },
        { &l->wv, "attn_v.weight", WANT_ANY, { d, nv } },
        { &l->wo, "attn_output.weight", WANT_ANY, { no, d } },
        { &l->bq, "attn_q.bias", WANT_F32 | WANT_OPTIONAL, { nq } },
        { &l->bk, "attn_k.bias", WANT_F32 | WANT_OPTIONAL, { nk } },
        { &l->bv, "attn_v.bias", WANT_F32 | WANT_OPTIONAL, { nv } },
        { &l->bo, "attn_output.bias", WANT_F32 | WANT_OPTIONAL, { d } },
    };
    const bool row = hp->qk_norm == QK_NORM_ROW;
    const struct want norms[] = {
        { &l->q_norm, "attn_q_norm.weight", WANT_F32, { row ? nq : hp->head_dim_k } },
        { &l->k_norm, "attn_k_norm.weight", WANT_F32, { row ? nk : hp->head_dim_k } },
    };
    int rc = BIND(b, prefix, wants);
    return rc || hp->qk_norm == QK_NORM_NONE ? rc : BIND(b, prefix, norms);
}

static int bind_dense_ffn(struct binder *b, const char *prefix, struct model_layer *l) {
    const uint64_t d = b->m->hp.n_embd, ff = b->m->hp.ff_dim;
    if (ff == 0)
        return err_set(b->e, ST_INVALID, "%s: layer '%s' has no router, so it needs the key '%s.feed_forward_length'",
                       path_of(b, NULL), prefix, b->m->arch->name);
    const struct want wants[] = {
        { &l->ffn_gate, "ffn_gate.weight", WANT_ANY, { d, ff } },
        { &l->ffn_up, "ffn_up.weight", WANT_ANY, { d, ff } },
        { &l->ffn_down, "ffn_down.weight", WANT_ANY, { ff, d } },
    };
    return BIND(b, prefix, wants);
}

/* Files of the first Mixtral converters hold one matrix per expert. */
static bool has_old_experts(struct binder *b, const char *prefix) {
    char name[64];
    snprintf(name, sizeof name, "%sffn_gate.0.weight", prefix);
    return gguf_find_tensor(b->m->gguf, name) != NULL;
}

static int bind_moe_ffn(struct binder *b, const char *prefix, struct model_layer *l) {
    const uint64_t d = b->m->hp.n_embd, ff = b->m->hp.expert_ff_dim, n = b->m->hp.n_experts;
    if (n == 0)
        return err_set(b->e, ST_INVALID, "%s: layer '%s' has a router, but the key '%s.expert_count' is missing or 0",
                       path_of(b, NULL), prefix, b->m->arch->name);
    if (has_old_experts(b, prefix))
        return err_set(b->e, ST_UNSUPPORTED, "%s: '%sffn_gate.0.weight': experts are stored one tensor each, a layout given up in 2024; "
                       "convert the model again", path_of(b, NULL), prefix);
    const struct want router[] = { { &l->router, "ffn_gate_inp.weight", WANT_ANY, { d, n } } };
    const struct want wants[] = {
        { &l->gate_exps, "ffn_gate_exps.weight", WANT_ANY, { d, ff, n } },
        { &l->up_exps, "ffn_up_exps.weight", WANT_ANY, { d, ff, n } },
        { &l->down_exps, "ffn_down_exps.weight", WANT_ANY, { ff, d, n } },
    };
    int rc = BIND(b, prefix, router);
    return rc || b->m->pack.is_packed ? rc : BIND(b, prefix, wants);
}

static int bind_layer(struct binder *b, uint32_t layer) {
    struct model_layer *l = &b->m->layers[layer];
    char prefix[24], router[48];
    snprintf(prefix, sizeof prefix, "blk.%u.", layer);
    snprintf(router, sizeof router, "%sffn_gate_inp.weight", prefix);
    const struct want norm[] = { { &l->ffn_norm, "ffn_norm.weight", WANT_F32, { b->m->hp.n_embd } } };
    int rc = bind_attention(b, prefix, l);
    if (!rc) rc = BIND(b, prefix, norm);
    if (rc) return rc;
    return gguf_find_tensor(b->m->gguf, router) ? bind_moe_ffn(b, prefix, l) : bind_dense_ffn(b, prefix, l);
}

/* The engine divides frequencies by these. */
static int check_rope_factors(struct binder *b) {
    const struct tensor *t = b->m->rope_factors;
    for (uint64_t i = 0; t && i < t->ne[0]; i++) {
        float v;
        memcpy(&v, (const char *)t->data + i * sizeof v, sizeof v);
        if (!(v > 0 && v <= 1e6f))
            return err_set(b->e, ST_INVALID, "%s: tensor '%s': element %llu is %g, expected a positive number", path_of(b, t), t->name,
                           (unsigned long long)i, v);
    }
    return ST_OK;
}

static int bind_top(struct binder *b) {
    struct model *m = b->m;
    const struct tensor *embd = gguf_find_tensor(m->gguf, "token_embd.weight");
    if (embd && (embd->ne[1] < 1 || embd->ne[1] > MODEL_MAX_VOCAB))
        return err_set(b->e, ST_INVALID, "%s: tensor 'token_embd.weight' has %llu rows, expected 1 to %d", path_of(b, embd),
                       (unsigned long long)embd->ne[1], MODEL_MAX_VOCAB);
    m->hp.n_vocab = embd ? (uint32_t)embd->ne[1] : 0;
    const uint64_t d = m->hp.n_embd, v = m->hp.n_vocab;
    const struct want wants[] = {
        { &m->token_embd, "token_embd.weight", WANT_ANY, { d, v } },
        { &m->output_norm, "output_norm.weight", WANT_F32, { d } },
        { &m->output, "output.weight", WANT_OPTIONAL, { d, v } },
        { &m->rope_factors, "rope_freqs.weight", WANT_F32 | WANT_OPTIONAL, { m->hp.rope_dim / 2 } },
    };
    int rc = BIND(b, "", wants);
    if (!m->output) m->output = m->token_embd; /* tied */
    return rc ? rc : check_rope_factors(b);
}

static int check_all_used(struct binder *b) {
    for (uint64_t i = 0; i < gguf_n_tensors(b->m->gguf); i++) {
        const struct tensor *t = gguf_tensor(b->m->gguf, i);
        if (!b->used[i])
            return err_set(b->e, ST_UNSUPPORTED, "%s: tensor '%s' is not part of a %s model with %u layers as this build knows it; "
                           "ignoring it could change the results", path_of(b, t), t->name, b->m->arch->name, b->m->hp.n_layers);
    }
    return ST_OK;
}

static int check_has_router(struct binder *b) {
    for (uint32_t i = 0; i < b->m->hp.n_layers; i++)
        if (b->m->layers[i].router) return ST_OK;
    if (b->m->hp.n_experts == 0) return ST_OK;
    return err_set(b->e, ST_INVALID, "%s: key '%s.expert_count' is %u, but no layer has a router ('blk.N.ffn_gate_inp.weight')",
                   path_of(b, NULL), b->m->arch->name, b->m->hp.n_experts);
}

static int bind_model(struct binder *b) {
    int rc = bind_top(b);
    for (uint32_t i = 0; !rc && i < b->m->hp.n_layers; i++) rc = bind_layer(b, i);
    if (!rc) rc = check_has_router(b);
    if (!rc && b->m->pack.is_packed) rc = model__pack_bind(&b->m->pack, &b->m->hp, b->m->layers, b->e);
    return rc ? rc : check_all_used(b);
}

/* general.name, else the base name of the file without ".gguf". */
static void set_name(struct model *m) {
    struct gguf_str s;
    if (gguf_get_str(m->gguf, "general.name", &s, NULL) || s.len == 0) {
        const char *path = gguf_file_path(m->gguf, 0), *slash = strrchr(path, '/');
        s.s = slash ? slash + 1 : path;
        s.len = strlen(s.s);
        if (s.len > 5 && !strcmp(s.s + s.len - 5, ".gguf")) s.len -= 5;
    }
    gguf__printable(s, m->name, sizeof m->name);
}

int model__open(struct model **out, struct gguf *g, struct err *e) {
    *out = NULL;
    const struct model__arch *arch;
    int rc = model__find_arch(g, &arch, e);
    if (rc) return rc;
    struct model *m = mem_zalloc(1, sizeof *m);
    struct binder b = { .m = m, .e = e };
    if (!m) return err_set(e, ST_NOMEM, "%s: out of memory", gguf_file_path(g, 0));
    m->gguf = g;
    m->arch = arch;
    rc = model__pack_open(g, &m->pack, e);
    if (!rc) rc = model__read_hparams(g, arch, &m->hp, e);
    if (rc) goto fail;
    b.used = mem_zalloc(gguf_n_tensors(g) + 1, 1);
    m->layers = mem_zalloc(m->hp.n_layers, sizeof *m->layers);
    if (!b.used || !m->layers) {
        rc = err_set(e, ST_NOMEM, "%s: out of memory for %u layers", gguf_file_path(g, 0), m->hp.n_layers);
        goto fail;
    }
    rc = bind_model(&b);
    if (rc) goto fail;
    mem_free(b.used);
    set_name(m);
    *out = m;
    return ST_OK;
fail:
    mem_free(b.used);
    m->gguf = NULL; /* stays with the caller */
    model_close(m);
    return rc;
}

int model_open(struct model **out, const char *path, struct err *e) {
    *out = NULL;
    struct gguf *g;
    int rc = gguf_open(&g, path, e);
    if (rc) return rc;
    rc = model__open(out, g, e);
    if (rc) gguf_close(g);
    return rc;
}

void model_close(struct model *m) {
    if (!m) return;
    model__pack_clear(&m->pack);
    gguf_close(m->gguf);
    mem_free(m->layers);
    mem_free(m);
}

const struct model_hparams *model_hparams(const struct model *m) { return &m->hp; }
const struct model_layer *model_layer(const struct model *m, uint32_t layer) { return &m->layers[layer]; }
const struct tensor *model_token_embd(const struct model *m) { return m->token_embd; }
const struct tensor *model_output_norm(const struct model *m) { return m->output_norm; }
const struct tensor *model_output(const struct model *m) { return m->output; }
const struct tensor *model_rope_factors(const struct model *m) { return m->rope_factors; }
const struct gguf *model_gguf(const struct model *m) { return m->gguf; }
const struct model__pack *model__pack(const struct model *m) { return &m->pack; }
const char *model_name(const struct model *m) { return m->name; }
const char *model_arch_name(const struct model *m) { return m->arch->name; }
