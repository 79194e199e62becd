/* SPDX-License-Identifier: Apache-2.0
 *
 * POST /v1/responses, the OpenAI Responses API: a chat request (parse_responses.c) whose answer is a list of items. A stream
 * repeats every item whole when it is done, and all of them at its end, so texts are kept here as they go out. */
#include <string.h>

#include "server/gen.h"

/* ---- items ---- */

static const char *const id_prefix[] = {[BLOCK_REASONING] = "rs", [BLOCK_TEXT] = "msg", [BLOCK_CALL] = "fc"};

static void put_item_id(struct buf *out, const struct choice *c, const struct block *b) {
    buf_printf(out, "\"%s_%s_%u\"", id_prefix[b->kind], c->gen->x->request_id, b->index);
}

static void put_part(struct buf *out, const struct block *b, const char *text, size_t n) {
    buf_puts(out, b->kind == BLOCK_REASONING ? "{\"type\":\"reasoning_text\",\"text\":" : "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[],\"text\":");
    json_put_string(out, text, n);
    buf_putc(out, '}');
}

/* Without text (NULL) as it begins. */
static void put_item(struct buf *out, const struct choice *c, const struct block *b, const char *text, size_t n) {
    static const char *const type[] = {[BLOCK_REASONING] = "reasoning\",\"summary\":[],\"content\":[", [BLOCK_TEXT] = "message\",\"role\":\"assistant\",\"content\":["};
    bool cut = b->broken || (b->last && c->finish_reason && strcmp(c->finish_reason, "length") == 0);

    buf_puts(out, "{\"id\":");
    put_item_id(out, c, b);
    buf_printf(out, ",\"status\":\"%s\",\"type\":\"", !text ? "in_progress" : cut ? "incomplete" : "completed");
    if (b->kind == BLOCK_CALL) {
        buf_puts(out, "function_call\",\"call_id\":");
        json_put_string(out, b->id, strlen(b->id));
        buf_puts(out, ",\"name\":");
        json_put_string(out, b->name, b->n_name);
        buf_puts(out, ",\"arguments\":");
        json_put_string(out, text ? text : "", n);
        buf_putc(out, '}');
        return;
    }
    buf_puts(out, type[b->kind]);
    if (text) put_part(out, b, text, n);
    buf_puts(out, "]}");
}

/* ---- events ---- */

static struct buf *begin(struct choice *c, const char *type) {
    struct buf *out = &c->gen->server->api->scratch;

    buf_reset(out);
    buf_printf(out, "{\"type\":\"%s\",\"sequence_number\":%u", type, c->chat->blocks.n_events++);
    return out;
}

/* An event about a part of an item; `member` NULL = the part itself, else the text under that name. */
static bool part_event(struct choice *c, const struct block *b, const char *type, const char *member, const char *text, size_t n) {
    struct buf *out = begin(c, type);

    buf_puts(out, ",\"item_id\":");
    put_item_id(out, c, b);
    buf_printf(out, ",\"output_index\":%u", b->index);
    if (b->kind != BLOCK_CALL) buf_puts(out, ",\"content_index\":0");
    if (b->kind == BLOCK_TEXT && member) buf_puts(out, ",\"logprobs\":[]");
    buf_printf(out, ",\"%s\":", member ? member : "part");
    if (member) json_put_string(out, text, n);
    else put_part(out, b, text, n);
    buf_putc(out, '}');
    return blocks__event(c, type);
}

static bool item_event(struct choice *c, const struct block *b, const char *type, const char *text, size_t n) {
    struct buf *out = begin(c, type);

    buf_printf(out, ",\"output_index\":%u,\"item\":", b->index);
    put_item(out, c, b, text, n);
    buf_putc(out, '}');
    return blocks__event(c, type);
}

/* ---- the three moments of an item; without a stream only the texts are kept ---- */

static bool item_open(struct choice *c, const struct block *b) {
    buf_reset(&c->chat->blocks.text);
    if (!c->gen->x->streaming) return true;
    if (!item_event(c, b, "response.output_item.added", NULL, 0)) return false;
    return b->kind == BLOCK_CALL || part_event(c, b, "response.content_part.added", NULL, "", 0);
}

static bool item_delta(struct choice *c, const struct block *b) {
    static const char *const type[] = {[BLOCK_REASONING] = "response.reasoning_text.delta", [BLOCK_TEXT] = "response.output_text.delta", [BLOCK_CALL] = "response.function_call_arguments.delta"};

    if (buf_append(&c->chat->blocks.text, b->text, b->n_text)) return false;
    return !c->gen->x->streaming || part_event(c, b, type[b->kind], "delta", b->text, b->n_text);
}

static bool item_close(struct choice *c, const struct block *b) {
    static const char *const type[] = {[BLOCK_REASONING] = "response.reasoning_text.done", [BLOCK_TEXT] = "response.output_text.done", [BLOCK_CALL] = "response.function_call_arguments.done"};
    struct buf *done = &c->chat->blocks.done, *text = &c->chat->blocks.text;
    const char *p = text->len ? text->data : "";

    if (done->len > 0) buf_putc(done, ',');
    put_item(done, c, b, p, text->len);
    if (done->failed) return false;
    if (!c->gen->x->streaming) return true;
    if (!part_event(c, b, type[b->kind], b->kind == BLOCK_CALL ? "arguments" : "text", p, text->len)) return false;
    if (b->kind != BLOCK_CALL && !part_event(c, b, "response.content_part.done", NULL, p, text->len)) return false;
    return item_event(c, b, "response.output_item.done", p, text->len);
}

static const struct block_writer writer = {item_open, item_delta, item_close};

/* ---- the response ---- */

static void put_usage(struct buf *out, const struct gen *g) {
    buf_printf(out, "\"usage\":{\"input_tokens\":%u,\"input_tokens_details\":{\"cached_tokens\":%u,\"cache_write_tokens\":0},\"output_tokens\":%u,"
               "\"output_tokens_details\":{\"reasoning_tokens\":%u},\"total_tokens\":%u}",
               g->prompt_tokens, g->cached_tokens, g->completion_tokens, g->reasoning_tokens, g->prompt_tokens + g->completion_tokens);
}

static const char *status_of(const struct choice *c) {
    return !c->finished ? "in_progress" : strcmp(c->finish_reason, "length") == 0 ? "incomplete" : "completed";
}

/* `e` NULL = it did not fail. */
static void put_response(struct buf *out, const struct choice *c, const struct api_error *e) {
    const struct gen *g = c->gen;
    const char *model = g->server->opts->model_name, *status = e ? "failed" : status_of(c);

    buf_printf(out, "{\"id\":\"resp_%s\",\"object\":\"response\",%s,\"status\":\"%s\",\"error\":", g->x->request_id, g->params.repeated, status);
    if (e) {
        buf_printf(out, "{\"code\":\"%s\",\"message\":", e->status == 429 ? "rate_limit_exceeded" : "server_error");
        json_put_string(out, e->message, strlen(e->message));
        buf_putc(out, '}');
    } else {
        buf_puts(out, "null");
    }
    buf_printf(out, ",\"incomplete_details\":%s,\"model\":", strcmp(status, "incomplete") == 0 ? "{\"reason\":\"max_output_tokens\"}" : "null");
    json_put_string(out, model, strlen(model));
    buf_puts(out, ",\"output\":[");
    buf_append(out, c->chat->blocks.done.len ? c->chat->blocks.done.data : "", c->chat->blocks.done.len);
    buf_puts(out, "],");
    if (c->finished && !e) put_usage(out, g);
    else buf_puts(out, "\"usage\":null");
    buf_putc(out, '}');
}

static void put_response_event(struct buf *out, const struct choice *c, const struct api_error *e) {
    buf_puts(out, ",\"response\":");
    put_response(out, c, e);
    buf_putc(out, '}');
}

static bool response_event(struct choice *c, const char *type) {
    put_response_event(begin(c, type), c, NULL);
    return blocks__event(c, type);
}

static bool send_new(struct choice *c, size_t n_text) {
    if (!c->chat->role_shown && !(response_event(c, "response.created") && response_event(c, "response.in_progress"))) return false;
    return blocks__send(c, n_text, &writer);
}

static bool end(struct gen *g) {
    struct choice *c = &g->choices[0];

    return response_event(c, strcmp(c->finish_reason, "length") == 0 ? "response.incomplete" : "response.completed");
}

static void put_whole(struct buf *out, struct choice *c, size_t n_text) {
    if (!blocks__send(c, n_text, &writer)) out->failed = true;
    put_response(out, c, NULL);
}

static const char *put_error(struct buf *out, const struct gen *g, const struct api_error *e) {
    (void)out; /* begin has it */
    put_response_event(begin(&g->choices[0], "response.failed"), &g->choices[0], e);
    return "response.failed";
}

void api_responses(struct exchange *x) {
    static const struct gen_events events = {send_new, end, put_whole, put_error};
    static const struct gen_format format = {.events = &events, .parse = parse_responses};

    gen_start(x, &format);
}
