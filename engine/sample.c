/* SPDX-License-Identifier: Apache-2.0
 *
 * From wanted rows to tokens: the head in chunks of rows, so that the logits buffer stays small, then one pool task
 * per row. A row may give a prompt log-probability, a sample, or both. */
#include "engine/internal.h"

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
