/* SPDX-License-Identifier: Apache-2.0
 *
 * gpt-oss: a reply is a row of messages, <|start|>assistant<|channel|>NAME to=RECIPIENT <|constrain|>json<|message|>TEXT
 * and an end mark; the prompt has written the first "<|start|>assistant". Channel "analysis" is reasoning, a recipient
 * "functions.NAME" makes the text a call, everything else is the answer. */
#include <string.h>

#include "chat/reply_internal.h"

enum { MAX_HEADER_BYTES = 1024, MAX_CUT_BYTES = 128 };

static const char *const ends[] = {"<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>"};
enum { N_ENDS = sizeof ends / sizeof *ends, N_CLOSING = 3 }; /* the first three belong to the message they end */

bool chat__harmony_wants(const char *piece, size_t n) {
    static const char *const marks[] = {"<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"};

    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        if (strlen(marks[i]) == n && memcmp(marks[i], piece, n) == 0) return true;
    }
    return false;
}

/* The recipient stands in the role or the channel part: "to=functions.f". */
static void find_recipient(struct chat_reply *r, const char *p, size_t n) {
    static const char to[] = "to=functions.";
    const char *at = chat__find(p, n, to);
    size_t len = 0;

    r->channel_to[0] = '\0';
    if (!at) return;
    at += sizeof to - 1;
    while (at + len < p + n && !chat__space(at[len]) && at[len] != '<') len++;
    if (len == 0 || len > CHAT_MAX_NAME_BYTES) return;
    memcpy(r->channel_to, at, len);
    r->channel_to[len] = '\0';
}

static bool to_body(struct chat_reply *r, size_t n_header) {
    static const char mark[] = "<|channel|>";
    const char *p = r->held.data, *channel = chat__find(p, n_header, mark);

    r->analysis = false;
    if (channel) {
        channel += sizeof mark - 1;
        r->analysis = chat__starts(channel, n_header - (size_t)(channel - p), "analysis");
    }
    find_recipient(r, p, n_header);
    if (r->o.n_tools == 0) r->channel_to[0] = '\0';
    chat__drop_held(r, n_header);
    r->state = *r->channel_to ? REPLY_CALL : REPLY_BODY;
    if (r->state == REPLY_CALL) chat__begin_block(r);
    if (r->analysis && r->state == REPLY_BODY) r->o.in_reasoning = true;
    return true;
}

/* No header where one is due: the model just answers. */
static bool headless(struct chat_reply *r) {
    r->analysis = false;
    r->state = REPLY_BODY;
    return true;
}

/* Does the text begin with what can begin a header, or may it when more comes? */
static bool begins_header(const char *p, size_t n) {
    static const char *const begins[] = {"<|start|>", "<|channel|>", "<|message|>", "assistant"};

    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++) {
        size_t len = strlen(begins[i]);
        if (memcmp(p, begins[i], n < len ? n : len) == 0) return true;
    }
    return false;
}

static bool step_header(struct chat_reply *r) {
    static const char message[] = "<|message|>";
    const char *p = r->held.data;
    size_t n = r->held.len, i = 0;

    while (i < n && chat__space(p[i])) i++;
    if (i == n) return false;
    if (!begins_header(p + i, n - i)) return headless(r);
    const char *at = chat__find(p, n < MAX_HEADER_BYTES ? n : MAX_HEADER_BYTES, message);
    if (at) return to_body(r, (size_t)(at - p) + sizeof message - 1);
    if (n >= MAX_HEADER_BYTES || (r->final && (p[i] != '<' || n > MAX_CUT_BYTES))) {
        r->state = REPLY_CONTENT; /* not of this form: all that is left is the answer */
        return true;
    }
    if (r->final) chat__drop_held(r, n); /* cut inside a header: marks only */
    return false;
}

static void add_text(struct chat_reply *r, const char *p, size_t n) {
    if (r->analysis) chat__reasoning(r, p, n);
    else chat__content(r, p, n);
}

/* Behind an end mark comes the next header. */
static bool leave(struct chat_reply *r, struct mark_hit hit) {
    chat__drop_held(r, hit.index < N_CLOSING ? strlen(ends[hit.index]) : 0);
    r->state = REPLY_HEADER;
    return r->held.len > 0;
}

static bool step_body(struct chat_reply *r) {
    struct mark_hit hit = chat__find_mark(r->held.data, r->held.len, ends, N_ENDS, r->final);

    add_text(r, r->held.data, hit.at);
    chat__drop_held(r, hit.at);
    return hit.index >= 0 && leave(r, hit);
}

static bool step_call(struct chat_reply *r) {
    struct mark_hit hit = chat__find_mark(r->held.data, r->held.len, ends, N_ENDS, r->final);

    if (hit.index < 0 && !r->final) {
        chat__draft_harmony(r);
        return false;
    }
    struct call_parts c = {.name = r->channel_to, .n_name = strlen(r->channel_to), .arguments = r->held.data, .n_arguments = hit.at};
    if (chat__add_call(r, &c)) add_text(r, r->held.data, hit.at);
    else r->content.text.len = r->content.ready;
    chat__drop_held(r, hit.at);
    chat__drop_drafts(r);
    r->state = REPLY_BODY;
    return hit.index >= 0 && leave(r, hit);
}

bool chat__harmony_step(struct chat_reply *r) {
    switch (r->state) {
    case REPLY_HEADER: return step_header(r);
    case REPLY_CALL: return step_call(r);
    default: return step_body(r);
    }
}
