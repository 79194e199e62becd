/* SPDX-License-Identifier: Apache-2.0
 *
 * POST /v1/chat/completions: what a chat choice does with the bytes of its tokens. The rest is generate.c. */
#include <string.h>
#include <sys/random.h>

#include "server/gen.h"
#include "server/limits.h"

void api_chat(struct exchange *x) {
    static const struct gen_format format = {.object = "chat.completion", .chunk_object = "chat.completion.chunk", .id_prefix = "chatcmpl-",
                                             .parse = parse_chat, .put_choice = chat__put_choice, .put_usage = chat__put_usage};

    gen_start(x, &format);
}

struct chat_choice *chat_choice_new(struct gen *g) {
    const struct gen_chat *p = &g->params.chat;
    struct chat_choice *c = arena_zalloc(&g->arena, 1, sizeof *c);
    struct chat_reply_opts o = {.dialect = p->dialect, .tools = p->tools, .n_tools = p->n_tools, .in_reasoning = p->in_reasoning,
                                .max_bytes = LIMIT_RESPONSE_BYTES};

    if (!c || getrandom(&o.id_seed, sizeof o.id_seed, 0) != sizeof o.id_seed) return NULL;
    detok_init(&c->raw, NULL, 0, LIMIT_RESPONSE_BYTES);
    buf_init(&c->blocks.text, LIMIT_RESPONSE_BYTES);
    buf_init(&c->blocks.done, LIMIT_RESPONSE_BYTES);
    chat_reply_init(&c->reply, &o);
    c->one_call = p->one_call;
    c->hide_reasoning = p->hide_reasoning;
    return c;
}

void chat_choice_clear(struct chat_choice *c) {
    if (!c) return;
    detok_clear(&c->raw);
    buf_clear(&c->blocks.text);
    buf_clear(&c->blocks.done);
    chat_reply_clear(&c->reply);
}

/* What became certain of the answer goes on to where stop strings are looked for. */
static void flow(struct choice *c, bool match) {
    struct chat_choice *chat = c->chat;
    struct chat_text *answer = &chat->reply.content;
    size_t n = detok_ready(&chat->raw);

    if (chat->raw.text.failed) chat->reply.failed = true;
    chat_reply_push(&chat->reply, chat->raw.text.data, n);
    detok_take(&chat->raw, n);
    if (answer->ready == 0) return;
    detok_push(&c->detok, answer->text.data, answer->ready, match, NULL);
    chat_text_take(answer, answer->ready);
}

void chat_choice_push(struct choice *c, const char *bytes, size_t n, bool match, struct detok_mark *at) {
    struct chat_choice *chat = c->chat;

    *at = c->detok.end;
    if (chat_reply_in_reasoning(&chat->reply)) c->gen->reasoning_tokens++;
    detok_push(&chat->raw, bytes, n, false, NULL);
    flow(c, match);
}

void chat_choice_finish(struct choice *c) {
    struct chat_choice *chat = c->chat;

    detok_finish(&chat->raw);
    flow(c, true);
    if (!c->detok.stopped) chat_reply_finish(&chat->reply);
    flow(c, true);
    if (chat->one_call && chat->reply.n_calls > 1) chat->reply.n_calls = 1;
}

/* Of one call allowed no second one is shown. */
bool chat_choice_next_call(const struct choice *c, struct chat_call_cursor *cursor, struct chat_call_news *out) {
    if (c->chat->one_call && cursor->index > 0 && !cursor->open) return false;
    return chat_reply_next_call(&c->chat->reply, cursor, c->finished, out);
}

bool chat_choice_has_news(const struct choice *c) {
    const struct chat_choice *chat = c->chat;
    struct chat_call_cursor cursor = chat->calls_shown;
    struct chat_call_news news;

    return !chat->role_shown || (chat->reply.reasoning.ready > 0 && !chat->hide_reasoning) || chat_choice_next_call(c, &cursor, &news);
}

void chat_choice_sent(struct choice *c) {
    struct chat_choice *chat = c->chat;
    struct chat_call_news news;

    chat->role_shown = true;
    while (chat_choice_next_call(c, &chat->calls_shown, &news)) {
    }
    chat_text_take(&chat->reply.reasoning, chat->reply.reasoning.ready);
}

bool chat_choice_is_done(const struct chat_choice *c) {
    return c->one_call && c->reply.n_calls > 0;
}
