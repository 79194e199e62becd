/* SPDX-License-Identifier: Apache-2.0
 *
 * POST /v1/messages, the Anthropic Messages API: a chat request (parse_messages.c) whose answer is a list of content blocks. */
#include <string.h>

#include "server/gen.h"

static struct buf *fresh(const struct choice *c) {
    struct buf *out = &c->gen->server->api->scratch;

    buf_reset(out);
    return out;
}

/* ---- pieces ---- */

static void put_text(struct buf *out, const char *type, const char *member, const char *s, size_t n) {
    buf_printf(out, "{\"type\":\"%s\",\"%s\":", type, member);
    json_put_string(out, s, n);
}

/* The block as a whole, or as it begins: without text, a call without input. */
static void put_block(struct buf *out, const struct block *b, bool whole) {
    size_t n = whole ? b->n_text : 0;

    switch (b->kind) {
    case BLOCK_REASONING:
        put_text(out, "thinking", "thinking", b->text, n);
        buf_puts(out, ",\"signature\":\"\"}");
        break;
    case BLOCK_CALL:
        put_text(out, "tool_use", "id", b->id, strlen(b->id));
        buf_puts(out, ",\"name\":");
        json_put_string(out, b->name, b->n_name);
        buf_puts(out, ",\"input\":");
        buf_append(out, whole ? b->text : "{}", whole ? n : 2);
        buf_putc(out, '}');
        break;
    default:
        put_text(out, "text", "text", b->text, n);
        buf_putc(out, '}');
        break;
    }
}

/* Tokens read from the prefix cache are not input tokens here; both together are the prompt. */
static void put_usage(struct buf *out, const struct gen *g) {
    buf_printf(out, "\"usage\":{\"input_tokens\":%u,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%u,\"output_tokens\":%u,"
               "\"output_tokens_details\":{\"thinking_tokens\":%u}}",
               g->prompt_tokens - g->cached_tokens, g->cached_tokens, g->completion_tokens, g->reasoning_tokens);
}

static void put_stop(struct buf *out, const struct choice *c) {
    bool sequence = c->detok.stopped && strcmp(c->finish_reason, "stop") == 0;
    const char *reason = strcmp(c->finish_reason, "tool_calls") == 0 ? "tool_use" : strcmp(c->finish_reason, "length") == 0 ? "max_tokens" : sequence ? "stop_sequence" : "end_turn";

    buf_printf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", reason);
    if (sequence) json_put_string(out, c->detok.stops[c->detok.matched].text, c->detok.stops[c->detok.matched].n_bytes);
    else buf_puts(out, "null");
}

static void put_head(struct buf *out, const struct gen *g) {
    const char *model = g->server->opts->model_name;

    buf_printf(out, "{\"id\":\"msg_%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", g->x->request_id);
    json_put_string(out, model, strlen(model));
    buf_puts(out, ",\"content\":[");
}

/* ---- the stream ---- */

static bool block_open(struct choice *c, const struct block *b) {
    struct buf *out = fresh(c);

    buf_printf(out, "{\"type\":\"content_block_start\",\"index\":%u,\"content_block\":", b->index);
    put_block(out, b, false);
    buf_putc(out, '}');
    return blocks__event(c, "content_block_start");
}

static bool block_delta(struct choice *c, const struct block *b) {
    struct buf *out = fresh(c);

    buf_printf(out, "{\"type\":\"content_block_delta\",\"index\":%u,\"delta\":", b->index);
    if (b->kind == BLOCK_REASONING) put_text(out, "thinking_delta", "thinking", b->text, b->n_text);
    else if (b->kind == BLOCK_TEXT) put_text(out, "text_delta", "text", b->text, b->n_text);
    else put_text(out, "input_json_delta", "partial_json", b->text, b->n_text);
    buf_puts(out, "}}");
    return blocks__event(c, "content_block_delta");
}

static bool block_close(struct choice *c, const struct block *b) {
    buf_printf(fresh(c), "{\"type\":\"content_block_stop\",\"index\":%u}", b->index);
    return blocks__event(c, "content_block_stop");
}

static bool start(struct choice *c) {
    struct buf *out = fresh(c);

    buf_puts(out, "{\"type\":\"message_start\",\"message\":");
    put_head(out, c->gen);
    buf_puts(out, "],\"stop_reason\":null,\"stop_sequence\":null,");
    put_usage(out, c->gen);
    buf_puts(out, "}}");
    if (!blocks__event(c, "message_start")) return false;
    buf_puts(fresh(c), "{\"type\":\"ping\"}");
    return blocks__event(c, "ping");
}

static bool send_new(struct choice *c, size_t n_text) {
    static const struct block_writer w = {block_open, block_delta, block_close};

    if (!c->chat->role_shown && !start(c)) return false;
    return blocks__send(c, n_text, &w);
}

static bool end(struct gen *g) {
    struct choice *c = &g->choices[0];
    struct buf *out = fresh(c);

    buf_puts(out, "{\"type\":\"message_delta\",\"delta\":{");
    put_stop(out, c);
    buf_puts(out, "},");
    put_usage(out, g);
    buf_putc(out, '}');
    if (!blocks__event(c, "message_delta")) return false;
    buf_puts(fresh(c), "{\"type\":\"message_stop\"}");
    return blocks__event(c, "message_stop");
}

/* ---- the whole ---- */

static bool whole_open(struct choice *c, const struct block *b) {
    if (b->index > 0) buf_putc(&c->gen->server->api->scratch, ',');
    return true;
}

/* Everything is there, so a block has one delta. */
static bool whole_delta(struct choice *c, const struct block *b) {
    put_block(&c->gen->server->api->scratch, b, true);
    return true;
}

static bool whole_close(struct choice *c, const struct block *b) {
    (void)c, (void)b;
    return true;
}

static void put_whole(struct buf *out, struct choice *c, size_t n_text) {
    static const struct block_writer w = {whole_open, whole_delta, whole_close};

    put_head(out, c->gen);
    blocks__send(c, n_text, &w);
    buf_puts(out, "],");
    put_stop(out, c);
    buf_putc(out, ',');
    put_usage(out, c->gen);
    buf_putc(out, '}');
}

static const char *put_error(struct buf *out, const struct gen *g, const struct api_error *e) {
    reply_put_error(g->x, out, e);
    return "error";
}

void api_messages(struct exchange *x) {
    static const struct gen_events events = {send_new, end, put_whole, put_error};
    static const struct gen_format format = {.events = &events, .parse = parse_messages};

    gen_start(x, &format);
}
