/* SPDX-License-Identifier: Apache-2.0
 *
 * The JSON of /v1/chat/completions: a message for a whole response, a delta for a stream chunk. */
#include <string.h>

#include "base/utf8.h"
#include "model/tokenizer.h"
#include "server/gen.h"

/* ---- log-probabilities ---- */

/* "token":"...","bytes":[...]: the text with U+FFFD for what is no text by itself, the bytes as they are. */
static void put_token(struct buf *out, const struct tokenizer *t, int32_t id, float logprob) {
    size_t n;
    const char *piece = tokenizer_piece(t, id, &n);

    buf_puts(out, "{\"token\":");
    json_put_string(out, piece, n);
    buf_puts(out, ",\"logprob\":");
    completion__put_logprob(out, logprob);
    buf_puts(out, ",\"bytes\":[");
    for (size_t i = 0; i < n; i++) buf_printf(out, i ? ",%u" : "%u", (uint8_t)piece[i]);
    buf_putc(out, ']');
}

static void put_logprobs(struct buf *out, const struct choice *c, uint32_t to) {
    const struct tokenizer *t = c->gen->server->opts->tokenizer;

    buf_puts(out, "{\"content\":[");
    for (uint32_t i = c->n_shown; i < to; i++) {
        const struct kern_sampled *s = &c->req.logprobs[i];
        if (i > c->n_shown) buf_putc(out, ',');
        put_token(out, t, s->id, s->logprob);
        buf_puts(out, ",\"top_logprobs\":[");
        for (int32_t k = 0; k < s->n_top; k++) {
            if (k) buf_putc(out, ',');
            put_token(out, t, s->top[k].id, s->top[k].logprob);
            buf_putc(out, '}');
        }
        buf_puts(out, "]}");
    }
    buf_puts(out, "],\"refusal\":null}");
}

/* ---- message and delta ---- */

static void put_calls(struct buf *out, const struct chat_reply *r) {
    buf_puts(out, "\"tool_calls\":[");
    for (uint32_t i = 0; i < r->n_calls; i++) {
        const struct chat_call *call = &r->calls[i];
        buf_puts(out, i > 0 ? ",{\"id\":" : "{\"id\":");
        json_put_string(out, call->id, strlen(call->id));
        buf_puts(out, ",\"type\":\"function\",\"function\":{\"name\":");
        json_put_string(out, r->strings.data + call->name, call->n_name);
        buf_puts(out, ",\"arguments\":");
        json_put_string(out, r->strings.data + call->arguments, call->n_arguments);
        buf_puts(out, "}}");
    }
    buf_putc(out, ']');
}

/* What is new of the calls: the first piece of each has its id and name. */
static void put_call_deltas(struct buf *out, const struct choice *c, const char *sep) {
    struct chat_call_cursor cursor = c->chat->calls_shown;
    struct chat_call_news n;
    bool any = false;

    while (chat_choice_next_call(c, &cursor, &n)) {
        if (!n.begins && n.n_text == 0) continue; /* OpenAI's form does not say that a call ends */
        if (any) buf_putc(out, ',');
        else buf_printf(out, "%s\"tool_calls\":[", sep);
        any = true;
        buf_printf(out, "{\"index\":%u", n.index);
        if (n.begins) {
            buf_puts(out, ",\"id\":");
            json_put_string(out, n.id, strlen(n.id));
            buf_puts(out, ",\"type\":\"function\",\"function\":{\"name\":");
            json_put_string(out, n.name, n.n_name);
            buf_putc(out, ',');
        } else {
            buf_puts(out, ",\"function\":{");
        }
        buf_puts(out, "\"arguments\":");
        json_put_string(out, n.text, n.n_text);
        buf_puts(out, "}}");
    }
    if (any) buf_putc(out, ']');
}

static void put_reasoning(struct buf *out, const struct chat_text *t) {
    buf_puts(out, "\"reasoning_content\":");
    json_put_string(out, t->text.data, t->ready);
}

static void put_message(struct buf *out, const struct choice *c, size_t n_text) {
    const struct chat_reply *r = &c->chat->reply;

    buf_puts(out, "\"message\":{\"role\":\"assistant\",\"content\":");
    if (n_text == 0 && r->n_calls > 0) buf_puts(out, "null");
    else json_put_string(out, c->detok.text.data, n_text);
    buf_puts(out, ",\"refusal\":null");
    if (r->reasoning.ready > 0 && !c->chat->hide_reasoning) {
        buf_putc(out, ',');
        put_reasoning(out, &r->reasoning);
    }
    if (r->n_calls > 0) {
        buf_putc(out, ',');
        put_calls(out, r);
    }
    buf_putc(out, '}');
}

static void put_delta(struct buf *out, const struct choice *c, size_t n_text) {
    const struct chat_choice *chat = c->chat;
    const char *sep = "";

    buf_puts(out, "\"delta\":{");
    if (!chat->role_shown) {
        buf_puts(out, "\"role\":\"assistant\"");
        sep = ",";
    }
    if (chat->reply.reasoning.ready > 0 && !c->chat->hide_reasoning) {
        buf_puts(out, sep);
        put_reasoning(out, &chat->reply.reasoning);
        sep = ",";
    }
    if (n_text > 0 || !chat->role_shown) {
        buf_printf(out, "%s\"content\":", sep);
        json_put_string(out, c->detok.text.data, n_text);
        sep = ",";
    }
    put_call_deltas(out, c, sep);
    buf_putc(out, '}');
}

void chat__put_choice(struct buf *out, const struct choice *c, size_t n_text, uint32_t n_marks) {
    buf_printf(out, "{\"index\":%u,", c->index);
    if (c->gen->params.stream) put_delta(out, c, n_text);
    else put_message(out, c, n_text);
    buf_puts(out, ",\"logprobs\":");
    if (n_marks > c->n_shown) put_logprobs(out, c, n_marks);
    else buf_puts(out, "null");
    if (c->finish_reason) buf_printf(out, ",\"finish_reason\":\"%s\"}", c->finish_reason);
    else buf_puts(out, ",\"finish_reason\":null}");
}

void chat__put_usage(struct buf *out, const struct gen *g) {
    buf_printf(out, "\"usage\":{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%u,\"prompt_tokens_details\":{\"cached_tokens\":%u},"
               "\"completion_tokens_details\":{\"reasoning_tokens\":%u}}",
               g->prompt_tokens, g->completion_tokens, g->prompt_tokens + g->completion_tokens, g->cached_tokens, g->reasoning_tokens);
}
