/* SPDX-License-Identifier: Apache-2.0
 *
 * One sequence: its memory, what the engine is told about its next tokens, and when it ends. The object, its tokens,
 * its prefix blocks and its list of banned ids are one allocation made in sched_submit, so E never allocates. It outlives
 * its request when its KV stays cached, which is why it holds a copy of the prompt. */
#include "scheduler/internal.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"

/* A ban is a logit bias of -infinity: built here once, so no step allocates or edits a list. */
static void ban_stop_ids(struct seq *q, struct kern_logit_bias *list, uint32_t n_vocab) {
    const struct request *r = q->request;
    uint32_t n = r->sample.n_bias;

    if (n > 0)
        memcpy(list, r->sample.bias, n * sizeof *list);
    for (uint32_t i = 0; i < r->n_stop_ids; i++)
        if (r->stop_ids[i] >= 0 && (uint32_t)r->stop_ids[i] < n_vocab)
            list[n++] = (struct kern_logit_bias){.id = r->stop_ids[i], .bias = -INFINITY};
    q->banned = r->sample;
    q->banned.bias = list;
    q->banned.n_bias = n;
}

int seq__new(struct seq **out, struct request *r, const struct engine_info *info, bool share) {
    size_t cap = (size_t)r->n_prompt + r->max_tokens;
    size_t blocks_bytes = cap / info->page_tokens * sizeof(struct prefix_block);
    size_t bans_bytes = ((size_t)r->sample.n_bias + r->n_stop_ids) * sizeof(struct kern_logit_bias);
    size_t mask_bytes = r->filter.ops ? ((size_t)info->n_vocab + 31) / 32 * sizeof(uint32_t) : 0;
    unsigned char *p = mem_alloc(sizeof(struct seq) + blocks_bytes + bans_bytes + mask_bytes + cap * sizeof(int32_t));
    struct seq *q = (struct seq *)p;

    if (!q)
        return ST_NOMEM;
    /* falling alignment, so no padding is needed between the parts */
    *q = (struct seq){.request = r, .cap_tokens = (uint32_t)cap, .n_prompt = r->n_prompt, .n_tokens = r->n_prompt};
    q->deadline_ns = r->deadline_ns > 0 ? r->deadline_ns : UINT64_MAX;
    q->share = share && !r->no_prefix_cache && !r->lossy && !(r->pooled && r->pooling == ENGINE_POOLING_MEAN);
    q->blocks = (struct prefix_block *)(p + sizeof *q);
    q->mask = mask_bytes > 0 ? (uint32_t *)(p + sizeof *q + blocks_bytes + bans_bytes) : NULL;
    q->tokens = (int32_t *)(p + sizeof *q + blocks_bytes + bans_bytes + mask_bytes);
    memcpy(q->tokens, r->prompt, r->n_prompt * sizeof *q->tokens);
    ban_stop_ids(q, (struct kern_logit_bias *)(p + sizeof *q + blocks_bytes), info->n_vocab);
    *out = q;
    return ST_OK;
}

void seq__free(struct seq *q) {
    mem_free(q);
}

bool seq__cancelled(const struct seq *q) {
    return atomic_load_explicit(&q->request->cancel, memory_order_relaxed);
}

static bool stop_ids_banned(const struct seq *q) {
    return q->request->ignore_eos || seq__n_output(q) < q->request->min_tokens;
}

void seq__item(const struct seq *q, uint32_t n_take, struct batch_item *item) {
    const struct request *r = q->request;
    uint32_t end = q->n_computed + n_take;

    *item = (struct batch_item){
        .seq = q->id,
        .pos = q->n_computed,
        .n_tokens = n_take,
        .tokens = q->tokens + q->n_computed,
        .sample = end == q->n_tokens && r->max_tokens > 0,
        .params = stop_ids_banned(q) ? &q->banned : &r->sample,
        .history = q->tokens,
        .n_history = q->n_tokens,
        .n_prompt = q->n_prompt,
        .counter = seq__n_output(q),
        .next_token = -1,
        .lossy = r->lossy,
    };
    if (r->pooled && (r->pooling == ENGINE_POOLING_MEAN || end == q->n_prompt)) {
        item->pooled = r->pooled;
        item->pooling = r->pooling;
    }
    /* Once EVENT_STARTED is out L may read them: a resumed sequence must not write them again. */
    if (r->prompt_logprobs && !q->started && q->n_computed + 1 < q->n_prompt) {
        item->prompt_logprobs = r->prompt_logprobs + q->n_computed;
        item->next_token = end < q->n_prompt ? q->tokens[end] : -1;
        item->n_top = r->n_prompt_top;
    }
}

void seq__mask(struct seq *q, struct batch_item *item) {
    const struct token_filter *f = &q->request->filter;

    if (!f->ops || !item->sample)
        return;
    if (!q->masked)
        q->filter_status = f->ops->mask(f->self, q->mask);
    q->masked = true;
    item->mask = q->filter_status == ST_OK ? q->mask : NULL; /* else the draw is not taken */
}

static int filter_accept(struct seq *q, int32_t id) {
    const struct token_filter *f = &q->request->filter;

    if (f->ops && q->filter_status == ST_OK)
        q->filter_status = f->ops->accept(f->self, id);
    q->masked = false;
    return q->filter_status;
}

static bool is_stop_id(const struct request *r, int32_t id) {
    for (uint32_t i = 0; i < r->n_stop_ids; i++)
        if (r->stop_ids[i] == id)
            return true;
    return false;
}

enum finish_reason seq__append(struct seq *q, const struct kern_sampled *drawn) {
    const struct request *r = q->request;
    uint32_t index = seq__n_output(q);
    bool may_stop = r->filter.ops || !stop_ids_banned(q); /* a finished form leaves nothing else to draw */

    if (filter_accept(q, drawn->id) != ST_OK)
        return FINISH_ERROR;
    if (r->logprobs)
        r->logprobs[index] = *drawn;
    q->tokens[q->n_tokens++] = drawn->id;
    if (may_stop && is_stop_id(r, drawn->id))
        return FINISH_STOP;
    return index + 1 == r->max_tokens ? FINISH_LENGTH : FINISH_NONE;
}
