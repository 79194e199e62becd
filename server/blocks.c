/* SPDX-License-Identifier: Apache-2.0
 *
 * A reply as a row of blocks: reasoning, text and tool calls in the order in which they became certain. */
#include "server/gen.h"

bool blocks__event(struct choice *c, const char *name) {
    const struct buf *out = &c->gen->server->api->scratch;

    if (!out->failed) sse_event(c->gen->x, name, out->data, out->len);
    return !out->failed;
}

static bool close_open(struct choice *c, const struct block_writer *w, bool last) {
    struct reply_blocks *r = &c->chat->blocks;
    struct block b = {.kind = r->open, .index = r->n - 1, .last = last};

    r->open = BLOCK_NONE;
    return b.kind == BLOCK_NONE || w->close(c, &b);
}

static bool add(struct choice *c, const struct block_writer *w, enum block_kind kind, const char *text, size_t n) {
    struct reply_blocks *r = &c->chat->blocks;

    if (n == 0) return true;
    if (r->open != kind) {
        if (!close_open(c, w, false)) return false;
        r->open = kind;
        if (!w->open(c, &(struct block){.kind = kind, .index = r->n++})) return false;
    }
    return w->delta(c, &(struct block){.kind = kind, .index = r->n - 1, .text = text, .n_text = n});
}

static bool add_call(struct choice *c, const struct block_writer *w, const struct chat_call *call) {
    const struct chat_reply *r = &c->chat->reply;
    struct block b = {.kind = BLOCK_CALL, .call = call, .name = r->strings.data + call->name, .n_name = call->n_name,
                      .text = r->strings.data + call->arguments, .n_text = call->n_arguments};

    if (!close_open(c, w, false)) return false;
    b.index = c->chat->blocks.n++;
    return w->open(c, &b) && w->delta(c, &b) && w->close(c, &b);
}

bool blocks__send(struct choice *c, size_t n_text, const struct block_writer *w) {
    struct chat_choice *chat = c->chat;
    const struct chat_text *reasoning = &chat->reply.reasoning;

    if (!chat->hide_reasoning && !add(c, w, BLOCK_REASONING, reasoning->text.data, reasoning->ready)) return false;
    if (!add(c, w, BLOCK_TEXT, c->detok.text.data, n_text)) return false;
    for (uint32_t i = chat->n_calls_shown; i < chat->reply.n_calls; i++) {
        if (!add_call(c, w, &chat->reply.calls[i])) return false;
    }
    return !c->finished || close_open(c, w, true);
}
