/* SPDX-License-Identifier: Apache-2.0
 *
 * From wanted rows to pooled hidden states, and to tokens: the head in chunks of rows, so that the logits buffer stays small,
 * then one pool task per row. A row may give a prompt log-probability, a sample, or both. */
#include "engine/internal.h"

#include <string.h>

/* Cut along columns: each is one sum in token order. */
static void pool_columns(struct engine__pass *p, uint32_t column0, uint32_t column1) {
    const struct engine__scratch *s = &p->en->s;
    const size_t n_embd = p->en->hp->n_embd;
    for (uint32_t i = 0; i < p->n_wants; i++) {
        const struct batch_item *it = &p->batch->items[s->wants[i].item];
        if (!it->pooled || s->outcome[s->wants[i].item].status) {
            continue;
        }
        const bool first = it->pooling == ENGINE_POOLING_LAST || it->pos + s->wants[i].index == 0;
        for (uint32_t k = column0; k < column1; k++) {
            it->pooled[k] = (first ? 0 : it->pooled[k]) + (double)s->xn.f32[i * n_embd + k];
        }
    }
}

static void keep_for_head(struct engine__pass *p) {
    const struct engine__scratch *s = &p->en->s;
    const size_t n = p->en->hp->n_embd;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < p->n_wants; i++) {
        if (p->batch->items[s->wants[i].item].pooled) {
            continue;
        }
        if (i != kept) {
            memcpy(s->xn.f32 + kept * n, s->xn.f32 + i * n, n * sizeof *s->xn.f32);
            engine__round(p->en, p->en->head.form, s->xn.f32 + kept * n, n, &s->xn, kept * n);
            s->wants[kept] = s->wants[i];
        }
        kept++;
    }
    p->n_wants = kept;
}

void engine__pool(struct engine__pass *p) {
    bool any = false;
    for (uint32_t i = 0; i < p->batch->n_items; i++) {
        any |= p->batch->items[i].pooled != NULL;
    }
    if (any) {
        engine__run_rows(p, p->en->hp->n_embd, pool_columns);
        keep_for_head(p);
    }
}

struct sample_job {
    const struct engine__pass *p;
    struct step_out *out;
    uint32_t want0;
};

static void sample_task(void *ctx, int task, int worker) {
    const struct sample_job *j = ctx;
    const struct engine *en = j->p->en;
    const struct engine__want *w = &en->s.wants[j->want0 + (uint32_t)task];
    const struct batch_item *it = &j->p->batch->items[w->item];
    const uint32_t n_vocab = en->hp->n_vocab;
    const bool last = w->index + 1 == it->n_tokens;
    float *logits = en->s.logits + (size_t)task * n_vocab;
    if (it->prompt_logprobs) {
        int32_t next = last ? it->next_token : it->tokens[w->index + 1];
        if (next >= 0) {
            kern_logprobs(logits, n_vocab, next, it->n_top, &it->prompt_logprobs[w->index]);
        }
    }
    if (last && it->sample) { /* overwrites logits, so it comes second */
        struct kern_sample params = *it->params;
        if (it->mask) params.allowed = it->mask;
        kern_sample(&params, logits, n_vocab, it->history, it->n_history, it->n_prompt, it->counter,
                    engine__worker(en, worker), &j->out->sampled[w->item]);
    }
}

void engine__sample(struct engine__pass *p, struct step_out *out) {
    struct engine *en = p->en;
    for (uint32_t i = 0; i < p->n_wants; i += en->plan.logits_rows) {
        uint32_t left = p->n_wants - i, n = left < en->plan.logits_rows ? left : en->plan.logits_rows;
        struct sample_job j = { .p = p, .out = out, .want0 = i };
        engine__head(p, i, n, en->s.logits);
        engine__run(en, n, sample_task, &j);
    }
}
