/* SPDX-License-Identifier: Apache-2.0
 *
 * One step through the model: embed the rows of the batch, walk the layers, norm the rows whose logits are wanted.
 * A residual branch is not added to x at once: the next norm adds it while it has the row in cache.
 * The two halves of a layer are in layer_attn.c and layer_moe.c. */
#include "engine/internal.h"

#include <string.h>

static bool item_valid(const struct engine *en, const struct batch_item *it) {
    if (!engine__kv_writable(&en->kv, it->seq, it->pos, it->n_tokens) || it->next_token >= (int32_t)en->hp->n_vocab) {
        return false;
    }
    if (it->pooled && (it->sample || it->prompt_logprobs)) {
        return false;
    }
    if ((it->sample && !it->params) || (uint64_t)it->pos + it->n_tokens > en->plan.n_ctx) {
        return false;
    }
    for (uint32_t i = 0; i < it->n_tokens; i++) {
        if (it->tokens[i] < 0 || (uint32_t)it->tokens[i] >= en->hp->n_vocab) {
            return false;
        }
    }
    return true;
}

int engine__batch_check(struct engine *en, const struct batch *b) {
    uint64_t n_tokens = 0;
    if (b->n_items > en->o.n_seqs || b->n_tokens > en->o.max_batch_tokens) {
        return ST_INVALID;
    }
    memset(en->s.seq_seen, 0, en->o.n_seqs);
    for (uint32_t i = 0; i < b->n_items; i++) {
        const struct batch_item *it = &b->items[i];
        if (!item_valid(en, it) || en->s.seq_seen[it->seq]) {
            return ST_INVALID;
        }
        en->s.seq_seen[it->seq] = 1;
        n_tokens += it->n_tokens;
    }
    return n_tokens == b->n_tokens ? ST_OK : ST_INVALID;
}

static bool row_wanted(const struct engine__pass *p, const struct batch_item *it, uint32_t index) {
    bool last = index + 1 == it->n_tokens;
    if (it->pooled) {
        return last || it->pooling == ENGINE_POOLING_MEAN;
    }
    return p->all_logits || (last && it->sample) || (it->prompt_logprobs && (!last || it->next_token >= 0));
}

/* Flattens the batch: rows item after item, and the list of those that must reach the head. */
static void lay_out_rows(struct engine__pass *p) {
    struct engine__scratch *s = &p->en->s;
    for (uint32_t i = 0; i < p->batch->n_items; i++) {
        const struct batch_item *it = &p->batch->items[i];
        p->lossy |= it->lossy;
        for (uint32_t t = 0; t < it->n_tokens; t++, p->n_rows++) {
            s->row_token[p->n_rows] = it->tokens[t];
            s->row_pos[p->n_rows] = it->pos + t;
            s->row_seq[p->n_rows] = it->seq;
            s->row_lossy[p->n_rows] = it->lossy;
            if (row_wanted(p, it, t)) {
                s->wants[p->n_wants++] = (struct engine__want){ .row = p->n_rows, .item = i, .index = t };
            }
        }
    }
}

static void embed_rows(struct engine__pass *p, uint32_t row0, uint32_t row1) {
    const struct engine *en = p->en;
    const struct engine__scratch *s = &en->s;
    const struct engine__matrix *m = &en->embd;
    const size_t n = en->hp->n_embd;
    for (uint32_t r = row0; r < row1; r++) {
        const size_t token = (size_t)s->row_token[r];
        if (m->packed) {
            kern_dequant_packed_row(m->dtype, m->w, (uint32_t)token, n, s->x + r * n);
        } else {
            kern_dequant_row(m->dtype, (const unsigned char *)m->w + token * m->row_bytes, n, s->x + r * n);
        }
        kern_rope_table(&en->rope, s->row_pos[r], s->rope_cs + (size_t)r * en->hp->rope_dim);
    }
}

static void add_norm_rows(struct engine__pass *p, uint32_t row0, uint32_t row1) {
    const struct engine *en = p->en;
    const struct engine__scratch *s = &en->s;
    const size_t n = en->hp->n_embd;
    for (uint32_t r = row0; r < row1; r++) {
        float *x = s->x + r * n, *xn = s->xn.f32 + r * n;
        if (p->pending == ENGINE__PENDING_ATTN) {
            engine__attention_add(p, r, x);
        } else if (p->pending == ENGINE__PENDING_FFN) {
            engine__ffn_add(p, r, x);
        }
        en->kern->rms_norm(x, p->norm, en->hp->rms_eps, n, xn);
        engine__round(en, p->norm_forms, xn, n, &s->xn, r * n);
    }
}

void engine__add_norm(struct engine__pass *p, const float *norm, unsigned forms) {
    p->norm = norm;
    p->norm_forms = forms;
    engine__run_rows(p, p->n_rows, add_norm_rows);
    p->pending = ENGINE__PENDING_NONE;
}

void engine__forward(struct engine__pass *p) {
    struct engine *en = p->en;
    lay_out_rows(p);
    engine__run_rows(p, p->n_rows, embed_rows);
    for (p->layer = 0; p->layer < en->hp->n_layers; p->layer++) {
        const struct engine__layer *l = &en->layers[p->layer];
        engine__add_norm(p, l->attn_norm, l->attn_forms);
        engine__attention(p); /* the last one lets only wanted rows go on */
        if (p->n_rows == 0) {
            return;           /* a prefill chunk nobody reads: its KV is all that counts */
        }
        engine__add_norm(p, l->ffn_norm, l->ffn_forms);
        engine__ffn(p);
        if (p->n_failed == p->batch->n_items) {
            p->n_wants = 0;   /* nobody waits for the rest */
            return;
        }
    }
    engine__add_norm(p, en->out_norm, en->head.form);
}

void engine__head(struct engine__pass *p, uint32_t want0, uint32_t n, float *logits) {
    const struct engine *en = p->en;
    const struct kern_gemm d = engine__gemm(&en->head, &en->s.xn, want0, n, logits);
    engine__run_gemms(p->en, &d, 1);
}
