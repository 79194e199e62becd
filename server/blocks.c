/* SPDX-License-Identifier: Apache-2.0
 *
 * A reply as a row of blocks: reasoning, text and tool calls in the order in which they became certain. */
#include <string.h>

#include "server/gen.h"

bool blocks__event(struct choice *c, const char *name) {
    const struct buf *out = &c->gen->server->api->scratch;

    if (!out->failed) sse_event(c->gen->x, name, out->data, out->len);
    return !out->failed;
}

static bool close_open(struct choice *c, const struct block_writer *w, struct block b) {
    struct reply_blocks *r = &c->chat->blocks;

    b.kind = r->open;
    b.index = r->n - 1;
    b.id = r->id;
    b.name = r->name;
    b.n_name = r->n_name;
    r->open = BLOCK_NONE;
    return b.kind == BLOCK_NONE || w->close(c, &b);
}

static bool add(struct choice *c, const struct block_writer *w, enum block_kind kind, const char *text, size_t n) {
    struct reply_blocks *r = &c->chat->blocks;

    if (n == 0) return true;
    if (r->open != kind) {
        if (!close_open(c, w, (struct block){0})) return false;
        r->open = kind;
        if (!w->open(c, &(struct block){.kind = kind, .index = r->n++})) return false;
    }
    return w->delta(c, &(struct block){.kind = kind, .index = r->n - 1, .text = text, .n_text = n});
}

static bool add_call(struct choice *c, const struct block_writer *w, const struct chat_call_news *n) {
    struct reply_blocks *r = &c->chat->blocks;
    struct block b = {.kind = BLOCK_CALL, .id = r->id, .name = r->name, .text = n->text, .n_text = n->n_text};

    if (n->begins) {
        if (!close_open(c, w, (struct block){0})) return false;
        memcpy(r->id, n->id, strlen(n->id) + 1);
        memcpy(r->name, n->name, n->n_name);
        b.n_name = r->n_name = n->n_name;
        r->open = BLOCK_CALL;
        b.index = r->n++;
        if (!w->open(c, &(struct block){.kind = BLOCK_CALL, .index = b.index, .id = b.id, .name = b.name, .n_name = b.n_name})) return false;
    }
    b.n_name = r->n_name;
    b.index = r->n - 1;
    if (n->n_text > 0 && !w->delta(c, &b)) return false;
    return !n->ends || close_open(c, w, (struct block){.broken = n->broken, .last = c->finished && n->broken});
}

/* What is new of the calls; first only of the one that is open, since the text behind it comes after. */
static bool add_calls(struct choice *c, const struct block_writer *w, bool open_only) {
    struct chat_call_cursor *cursor = &c->chat->calls_shown;
    struct chat_call_news n;

    while ((!open_only || cursor->open) && chat_choice_next_call(c, cursor, &n)) {
        if (!add_call(c, w, &n)) return false;
    }
    return true;
}

bool blocks__send(struct choice *c, size_t n_text, const struct block_writer *w) {
    struct chat_choice *chat = c->chat;
    const struct chat_text *reasoning = &chat->reply.reasoning;

    if (!add_calls(c, w, true)) return false;
    if (!chat->hide_reasoning && !add(c, w, BLOCK_REASONING, reasoning->text.data, reasoning->ready)) return false;
    if (!add(c, w, BLOCK_TEXT, c->detok.text.data, n_text)) return false;
    if (!add_calls(c, w, false)) return false;
    return !c->finished || close_open(c, w, (struct block){.last = true});
}
