/* SPDX-License-Identifier: Apache-2.0
 *
 * Binds the model's tensors to the form the layer loop wants: matrices as (type, shape, rows), norms and biases as
 * float arrays, and in which forms inputs are wanted. Copies nothing: every pointer is a view into the mapped file;
 * repack.c may move matrices out of it. Runs once at open. */
#include "engine/internal.h"

#include "model/expert_pack.h"
#include "model/gguf.h"

struct engine__matrix engine__matrix_of(const struct engine_opts *o, const struct tensor *t) {
    if (!t) {
        return (struct engine__matrix){ 0 };
    }
    const size_t row_bytes = dtype_row_bytes(dtype_info(t->dtype), t->ne[0]);
    return (struct engine__matrix){
        .dtype = t->dtype,
        .n_in = (uint32_t)t->ne[0],
        .n_out = (uint32_t)t->ne[1],
        .row_bytes = row_bytes,
        .expert_bytes = row_bytes * t->ne[1],
        .w = t->data,
        .form = engine__form_of(o, t->dtype),
    };
}

int engine__weights_floats(const struct tensor *t, const float **out, struct err *e) {
    *out = t ? t->data : NULL;
    if (t && t->dtype != DTYPE_F32) {
        return err_set(e, ST_UNSUPPORTED, "tensor %s: expected type F32, found %s; convert the model with F32 norms and biases",
                       t->name, dtype_info(t->dtype)->name);
    }
    return ST_OK;
}

static int bind_layer(const struct engine_opts *o, const struct model_layer *m, struct engine__layer *l, struct err *e) {
    const struct { const struct tensor *t; const float **out; } floats[] = {
        { m->attn_norm, &l->attn_norm }, { m->ffn_norm, &l->ffn_norm }, { m->q_norm, &l->q_norm }, { m->k_norm, &l->k_norm },
        { m->bq, &l->bq },               { m->bk, &l->bk },             { m->bv, &l->bv },         { m->bo, &l->bo },
    };
    for (size_t i = 0; i < sizeof floats / sizeof floats[0]; i++) {
        int st = engine__weights_floats(floats[i].t, floats[i].out, e);
        if (st) {
            return st;
        }
    }
    const struct tensor *gate = m->router ? m->gate_exps : m->ffn_gate;
    const struct tensor *up = m->router ? m->up_exps : m->ffn_up;
    const struct tensor *down = m->router ? m->down_exps : m->ffn_down;
    l->wq = engine__matrix_of(o, m->wq);
    l->wk = engine__matrix_of(o, m->wk);
    l->wv = engine__matrix_of(o, m->wv);
    l->wo = engine__matrix_of(o, m->wo);
    l->router = engine__matrix_of(o, m->router);
    l->gate = engine__matrix_of(o, gate);
    l->up = engine__matrix_of(o, up);
    l->down = engine__matrix_of(o, down);
    l->attn_forms = l->wq.form | l->wk.form | l->wv.form;
    l->ffn_forms = l->gate.form | l->up.form | l->router.form;
    return ST_OK;
}

/* The experts of a packed model are computed where their records lie. */
static void bind_records(const struct model *m, uint32_t layer, struct engine__layer *l) {
    struct expert x;
    struct expert_record r;
    expert_bank_get(m, layer, 0, &x);
    expert_bank_record(m, layer, 0, &r);
    const struct { struct engine__matrix *m; const void *w; } all[] = { { &l->gate, x.gate.data }, { &l->up, x.up.data }, { &l->down, x.down.data } };
    for (int i = 0; i < 3; i++) {
        all[i].m->w = all[i].w;
        all[i].m->packed = kern_pack_fits(all[i].m->dtype, all[i].m->n_out);
        all[i].m->expert_bytes = r.n_bytes;
    }
}

int engine__weights_bind(const struct engine_opts *o, struct engine__layer *layers, struct err *e) {
    for (uint32_t i = 0; i < model_hparams(o->model)->n_layers; i++) {
        int st = bind_layer(o, model_layer(o->model, i), &layers[i], e);
        if (st) {
            return st;
        }
        if (layers[i].router.w && expert_bank_is_packed(o->model)) {
            bind_records(o->model, i, &layers[i]);
        }
    }
    return ST_OK;
}

uint64_t engine__weights_bytes(const struct model *m, bool records) {
    const struct gguf *g = model_gguf(m);
    uint64_t sum = 0;
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        sum += gguf_tensor(g, i)->n_bytes; /* each lies inside its file: no overflow */
    }
    if (records && expert_bank_is_packed(m)) {
        struct expert_pack_info p;
        expert_pack_info(m, &p);
        sum += p.records_bytes;
    }
    return sum;
}
