/* SPDX-License-Identifier: Apache-2.0
 *
 * The attention half of a layer: project, norm and rotate, store K and V, attend, project back. In the last layer
 * only rows whose logits are wanted continue after the store, so a prefill chunk does not pay for an FFN and a
 * head that nobody reads. Input xn, output proj, left pending for the next norm to add. */
#include "engine/internal.h"

#include <string.h>

struct kern_attn engine__attn_desc(const struct engine_opts *o) {
    const struct model_hparams *hp = model_hparams(o->model);
    static const enum kern_kv_type types[] = {
        [ENGINE_KV_F16] = KERN_KV_F16,
        [ENGINE_KV_BF16] = KERN_KV_BF16,
        [ENGINE_KV_F32] = KERN_KV_F32,
        [ENGINE_KV_Q8] = KERN_KV_Q8,
    };
    return (struct kern_attn){
        .kv_type = types[o->kv_type],
        .page_tokens = ENGINE__PAGE_TOKENS,
        .n_heads = hp->n_heads,
        .n_kv_heads = hp->n_kv_heads,
        .head_dim_k = hp->head_dim_k,
        .head_dim_v = hp->head_dim_v,
        .scale = hp->attn_scale,
        .q_stride = (size_t)hp->n_heads * hp->head_dim_k,
        .out_stride = (size_t)hp->n_heads * hp->head_dim_v,
    };
}

static void project_qkv(struct engine__pass *p) {
    const struct engine__scratch *s = &p->en->s;
    const struct engine__layer *l = &p->en->layers[p->layer];
    const struct kern_gemm d[] = {
        engine__gemm(&l->wq, &s->xn, 0, p->n_rows, s->q),
        engine__gemm(&l->wk, &s->xn, 0, p->n_rows, s->k),
        engine__gemm(&l->wv, &s->xn, 0, p->n_rows, s->v),
    };
    engine__run_gemms(p->en, d, 3);
}

static void add_bias(float *x, const float *bias, size_t n) {
    for (size_t i = 0; bias && i < n; i++) {
        x[i] += bias[i];
    }
}

static void norm_heads(const struct engine *en, const float *w, float *x, uint32_t n_heads) {
    const size_t dim = en->hp->head_dim_k;
    if (!w) {
        return;
    }
    if (en->hp->qk_norm == QK_NORM_ROW) {
        en->kern->rms_norm(x, w, en->hp->rms_eps, n_heads * dim, x);
        return;
    }
    for (uint32_t h = 0; h < n_heads; h++) {
        en->kern->rms_norm(x + h * dim, w, en->hp->rms_eps, dim, x + h * dim);
    }
}

/* Bias, QK-norm and RoPE of q and k, then k and v into their page. */
static void store_rows(struct engine__pass *p, uint32_t row0, uint32_t row1) {
    const struct engine *en = p->en;
    const struct engine__scratch *s = &en->s;
    const struct model_hparams *hp = en->hp;
    const struct engine__layer *l = &en->layers[p->layer];
    const size_t q_dim = (size_t)hp->n_heads * hp->head_dim_k, k_dim = (size_t)hp->n_kv_heads * hp->head_dim_k,
                 v_dim = (size_t)hp->n_kv_heads * hp->head_dim_v;
    const struct kern_attn shape = engine__attn_desc(&en->o);
    const struct kern_kv_store store = {
        .kv_type = shape.kv_type,
        .k = engine__kv_k(&en->kv, p->layer),
        .v = engine__kv_v(&en->kv, p->layer),
        .page_tokens = ENGINE__PAGE_TOKENS,
        .n_kv_heads = hp->n_kv_heads,
        .head_dim_k = hp->head_dim_k,
        .head_dim_v = hp->head_dim_v,
    };
    for (uint32_t r = row0; r < row1; r++) {
        float *q = s->q + r * q_dim, *k = s->k + r * k_dim, *v = s->v + r * v_dim;
        const float *cs = s->rope_cs + (size_t)r * hp->rope_dim;
        add_bias(q, l->bq, q_dim);
        add_bias(k, l->bk, k_dim);
        add_bias(v, l->bv, v_dim);
        norm_heads(en, l->q_norm, q, hp->n_heads);
        norm_heads(en, l->k_norm, k, hp->n_kv_heads);
        kern_rope_apply(&en->rope, cs, q, hp->n_heads);
        kern_rope_apply(&en->rope, cs, k, hp->n_kv_heads);
        uint32_t pos = s->row_pos[r];
        int32_t page = engine__kv_table(&en->kv, s->row_seq[r])[pos / ENGINE__PAGE_TOKENS];
        en->kern->kv_store(&store, page, pos % ENGINE__PAGE_TOKENS, k, v);
    }
}

/* Cuts n consecutive rows of one sequence into attention tasks; their outputs go to consecutive rows. */
static uint32_t add_spans(struct engine__pass *p, const struct engine__span *whole) {
    for (uint32_t i = 0; i < whole->n_rows; i += ENGINE__ATTN_ROWS) {
        uint32_t left = whole->n_rows - i;
        p->en->s.spans[p->n_spans++] = (struct engine__span){
            .seq = whole->seq,
            .pos = whole->pos + i,
            .n_rows = left < ENGINE__ATTN_ROWS ? left : ENGINE__ATTN_ROWS,
            .q_row = whole->q_row + i,
            .out_row = whole->out_row + i,
        };
    }
    return whole->n_rows;
}

static struct kern_attn span_desc(const struct engine__pass *p, const struct engine__span *span) {
    const struct engine *en = p->en;
    struct kern_attn d = engine__attn_desc(&en->o);
    d.k = engine__kv_k(&en->kv, p->layer);
    d.v = engine__kv_v(&en->kv, p->layer);
    d.pages = engine__kv_table(&en->kv, span->seq);
    d.q = en->s.q + span->q_row * d.q_stride;
    d.out = en->s.att.f32 + span->out_row * d.out_stride;
    d.pos0 = span->pos;
    d.n_tokens = span->n_rows;
    return d;
}

/* Numbers the tasks. A long sequence alone would leave threads idle: its spans are cut into the segments that the
 * kernels compute one by one anyway, as far as there is room for their parts. */
static void cut_spans(struct engine__pass *p) {
    const struct engine *en = p->en;
    const uint32_t n_kv = en->hp->n_kv_heads;
    const bool few = (uint64_t)p->n_spans * n_kv < (uint64_t)ENGINE__ATTN_TASKS * (uint32_t)pool_n_threads(en->o.pool);
    uint64_t used = 0;
    p->n_attn_tasks = 0;
    p->attn_cut = false;
    for (uint32_t i = 0; i < p->n_spans; i++) {
        struct engine__span *span = &en->s.spans[i];
        const struct kern_attn d = span_desc(p, span);
        const uint32_t n = kern_attn_segments(span->pos + span->n_rows);
        const uint64_t floats = (uint64_t)n_kv * n * kern_attn_part_floats(&d);
        span->first_task = p->n_attn_tasks;
        span->n_segments = 1;
        if (few && n > 1 && used + floats <= en->plan.part_floats) {
            span->n_segments = n;
            span->parts = en->s.parts + used;
            used += floats;
            p->attn_cut = true;
        }
        p->n_attn_tasks += n_kv * span->n_segments;
    }
}

static void make_spans(struct engine__pass *p) {
    p->n_spans = 0;
    for (uint32_t i = 0, row = 0; i < p->batch->n_items; i++) {
        const struct batch_item *it = &p->batch->items[i];
        row += add_spans(p, &(struct engine__span){ .seq = it->seq, .pos = it->pos, .n_rows = it->n_tokens, .q_row = row, .out_row = row });
    }
    cut_spans(p);
}

/* From here on a row is a wanted row: spans read q where it lies, x moves together. Wanted rows of an item are
 * consecutive (all, all but the last, or the last). */
static void keep_wanted(struct engine__pass *p) {
    const struct engine__scratch *s = &p->en->s;
    const size_t n_embd = p->en->hp->n_embd;
    p->n_spans = 0;
    for (uint32_t i = 0, n; i < p->n_wants; i += n) {
        const struct engine__want *w = &s->wants[i];
        for (n = 1; i + n < p->n_wants && s->wants[i + n].item == w->item; n++) {
        }
        const struct batch_item *it = &p->batch->items[w->item];
        add_spans(p, &(struct engine__span){ .seq = it->seq, .pos = it->pos + w->index, .n_rows = n, .q_row = w->row, .out_row = i });
        if (w->row != i) {
            memmove(s->x + i * n_embd, s->x + w->row * n_embd, n * n_embd * sizeof *s->x);
        }
    }
    p->n_rows = p->n_wants;
    cut_spans(p);
}

static void attend_task(void *ctx, int task, int worker) {
    const struct engine__pass *p = ctx;
    const struct engine *en = p->en;
    const uint32_t n_kv = en->hp->n_kv_heads;
    uint32_t i = (uint32_t)task / n_kv, local = (uint32_t)task % n_kv;
    if (p->attn_cut) { /* there are few spans then */
        for (i = 0; i + 1 < p->n_spans && en->s.spans[i + 1].first_task <= (uint32_t)task; i++) {
        }
        local = (uint32_t)task - en->s.spans[i].first_task;
    }
    const struct engine__span *span = &en->s.spans[i];
    const uint32_t kv_head = local % n_kv;
    struct kern_attn d = span_desc(p, span);
    d.scratch = engine__worker(en, worker);
    if (span->n_segments > 1) {
        d.segment = local / n_kv;
        d.part = span->parts + ((size_t)kv_head * span->n_segments + d.segment) * kern_attn_part_floats(&d);
    }
    en->kern->attn(&d, kv_head);
}

static void merge_task(void *ctx, int task, int worker) {
    const struct engine__pass *p = ctx;
    const uint32_t n_kv = p->en->hp->n_kv_heads, kv_head = (uint32_t)task % n_kv;
    const struct engine__span *span = &p->en->s.spans[(uint32_t)task / n_kv];
    (void)worker;
    if (span->n_segments > 1) {
        const struct kern_attn d = span_desc(p, span);
        kern_attn_merge(&d, kv_head, span->parts + (size_t)kv_head * span->n_segments * kern_attn_part_floats(&d));
    }
}

static void round_att(struct engine__pass *p, uint32_t row0, uint32_t row1) {
    const struct engine *en = p->en;
    const struct engine__matrix *wo = &en->layers[p->layer].wo;
    const size_t n = wo->n_in;
    for (uint32_t r = row0; r < row1; r++) {
        engine__round(en, wo->form, en->s.att.f32 + r * n, n, &en->s.att, r * n);
    }
}

static void project_out(struct engine__pass *p) {
    const struct engine__scratch *s = &p->en->s;
    const struct engine__layer *l = &p->en->layers[p->layer];
    if (l->wo.form != ENGINE__F32) {
        engine__run_rows(p, p->n_rows, round_att);
    }
    const struct kern_gemm d = engine__gemm(&l->wo, &s->att, 0, p->n_rows, s->proj);
    engine__run_gemms(p->en, &d, 1);
    p->pending = ENGINE__PENDING_ATTN;
}

void engine__attention_add(const struct engine__pass *p, uint32_t row, float *x) {
    const struct engine *en = p->en;
    const size_t n = en->hp->n_embd;
    float *proj = en->s.proj + row * n;
    add_bias(proj, en->layers[p->layer].bo, n);
    en->kern->axpy(1.0f, proj, n, x);
}

void engine__attention(struct engine__pass *p) {
    project_qkv(p);
    engine__run_rows(p, p->n_rows, store_rows);
    if (p->layer == 0) {
        make_spans(p); /* the same for every layer ... */
    }
    if (p->layer + 1 == p->en->hp->n_layers) {
        keep_wanted(p); /* ... but the last */
    }
    if (p->n_rows == 0) {
        return;
    }
    engine__run(p->en, p->n_attn_tasks, attend_task, p);
    if (p->attn_cut) {
        engine__run(p->en, p->n_spans * p->en->hp->n_kv_heads, merge_task, p);
    }
    project_out(p);
}
