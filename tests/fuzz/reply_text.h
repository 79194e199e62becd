/* SPDX-License-Identifier: Apache-2.0
 *
 * What fuzz_tools and fuzz_reasoning share: bytes of the fuzzer as a reply (low bytes stand for marks, so that marks are found
 * quickly), and a reply taken apart in pieces of any size. */
#ifndef MOED_FUZZ_REPLY_TEXT_H
#define MOED_FUZZ_REPLY_TEXT_H

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/status.h"
#include "base/utf8.h"
#include "chat/reply.h"

#define REQUIRE(cond)                                                                                \
    do {                                                                                             \
        if (!(cond)) __builtin_trap();                                                               \
    } while (0)

enum { MAX_TEXT = 1 << 16 };

#define DS "<\xEF\xBD\x9Ctool\xE2\x96\x81"

static const char *const fuzz_marks[32] = {
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=a>", "</parameter>", "<arg_key>a</arg_key>", "\t", "\n",
    "<arg_value>", "</arg_value>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", DS "call\xE2\x96\x81" "begin\xEF\xBD\x9C>", DS "sep\xEF\xBD\x9C>",
    DS "call\xE2\x96\x81" "end\xEF\xBD\x9C>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<minimax:tool_call>", "</minimax:tool_call>",
    "<invoke name=\"f\">", "</invoke>", "<parameter name=\"a\">", "<|channel|>", "<|message|>", "<|end|><|start|>assistant", "{\"name\":\"f\",\"arguments\":{",
};

/* Valid UTF-8, owned. */
static inline char *fuzz_text(const uint8_t *data, size_t size, size_t *n) {
    char *out = malloc(MAX_TEXT + 64);
    size_t len = 0;

    REQUIRE(out);
    for (size_t i = 0; i < size && len < MAX_TEXT;) {
        unsigned bad, k = data[i] < 32 ? 0 : utf8_next(data + i, size - i, &bad);
        const char *from = data[i] < 32 ? fuzz_marks[data[i]] : k ? (const char *)data + i : "?";
        size_t add = data[i] < 32 || !k ? strlen(from) : k;
        memcpy(out + len, from, add);
        len += add;
        i += k ? k : 1;
    }
    *n = len;
    return out;
}

/* A call as a client of a stream puts it together. */
struct fuzz_shown { char id[CHAT_ID_BYTES]; struct buf text; bool ended, broken; };
enum { MAX_SHOWN = 4096 };
struct fuzz_got { struct chat_reply r; struct buf reasoning, content; struct chat_call_cursor cursor; struct fuzz_shown *shown; uint32_t n_shown; };

static inline void fuzz_take_calls(struct fuzz_got *g, bool last) {
    struct chat_call_news n;

    while (chat_reply_next_call(&g->r, &g->cursor, last, &n)) {
        REQUIRE(n.begins ? n.index == g->n_shown : n.index + 1 == g->n_shown);
        if (n.begins && g->n_shown == MAX_SHOWN) exit(1);
        if (n.begins) {
            g->shown[g->n_shown++] = (struct fuzz_shown){0};
            buf_init(&g->shown[n.index].text, 4 * MAX_TEXT);
            memcpy(g->shown[n.index].id, n.id, CHAT_ID_BYTES);
            buf_append(&g->shown[n.index].text, n.name, n.n_name);
            buf_putc(&g->shown[n.index].text, '\n');
        }
        struct fuzz_shown *s = &g->shown[n.index];
        REQUIRE(!s->ended);
        buf_append(&s->text, n.text, n.n_text);
        s->ended = n.ends;
        s->broken = n.broken;
    }
    REQUIRE(!last || g->n_shown == 0 || g->shown[g->n_shown - 1].ended);
}

/* Every call was shown, byte for byte as it is; what came to nothing is a beginning of JSON behind its name. */
static inline void fuzz_check_shown(const struct fuzz_got *g) {
    static const struct json_limits limits = {64, 1 << 20};
    uint32_t n_found = 0;

    for (uint32_t i = 0; i < g->n_shown; i++) {
        const struct fuzz_shown *s = &g->shown[i];
        const struct chat_call *c = NULL;
        size_t used, n_name = (size_t)((char *)memchr(s->text.data, '\n', s->text.len) - s->text.data);
        const char *args = s->text.data + n_name + 1;
        size_t n_args = s->text.len - n_name - 1;
        for (uint32_t k = 0; k < g->r.n_calls && !c; k++) {
            if (strcmp(s->id, g->r.calls[k].id) == 0 && n_name == g->r.calls[k].n_name && n_args == g->r.calls[k].n_arguments &&
                memcmp(s->text.data, g->r.strings.data + g->r.calls[k].name, n_name) == 0 && memcmp(args, g->r.strings.data + g->r.calls[k].arguments, n_args) == 0) c = &g->r.calls[k];
        }
        n_found += c && !s->broken;
        if (s->broken && n_args > 0) REQUIRE(json_scan_value(args, n_args, &limits, &used) != 0);
    }
    REQUIRE(n_found >= g->r.n_calls);
}

static inline void fuzz_take(struct fuzz_got *g) {
    buf_append(&g->reasoning, g->r.reasoning.text.data, g->r.reasoning.ready);
    chat_text_take(&g->r.reasoning, g->r.reasoning.ready);
    buf_append(&g->content, g->r.content.text.data, g->r.content.ready);
    chat_text_take(&g->r.content, g->r.content.ready);
    fuzz_take_calls(g, false);
}

/* In pieces of at least `step` bytes, whole characters; 0 = all at once. */
static inline void fuzz_run(struct fuzz_got *g, const struct chat_reply_opts *o, const char *text, size_t n, size_t step) {
    buf_init(&g->reasoning, 4 * MAX_TEXT);
    buf_init(&g->content, 4 * MAX_TEXT);
    chat_reply_init(&g->r, o);
    g->cursor = (struct chat_call_cursor){0};
    g->n_shown = 0;
    REQUIRE((g->shown = malloc(MAX_SHOWN * sizeof *g->shown)));
    for (size_t i = 0, end; i < n; i = end) {
        end = step == 0 || n - i < step ? n : i + step;
        while (end < n && ((uint8_t)text[end] & 0xC0) == 0x80) end++;
        chat_reply_push(&g->r, text + i, end - i);
        fuzz_take(g);
    }
    chat_reply_finish(&g->r);
    fuzz_take(g);
    fuzz_take_calls(g, true);
    fuzz_check_shown(g);
    REQUIRE(!g->r.failed);
}

static inline void fuzz_clear(struct fuzz_got *g) {
    for (uint32_t i = 0; i < g->n_shown; i++) buf_clear(&g->shown[i].text);
    free(g->shown);
    chat_reply_clear(&g->r);
    buf_clear(&g->reasoning);
    buf_clear(&g->content);
}

static inline bool fuzz_same_buf(const struct buf *a, const struct buf *b) {
    return a->len == b->len && (a->len == 0 || memcmp(a->data, b->data, a->len) == 0);
}

static inline void fuzz_require_same(const struct fuzz_got *a, const struct fuzz_got *b) {
    REQUIRE(fuzz_same_buf(&a->reasoning, &b->reasoning) && fuzz_same_buf(&a->content, &b->content));
    REQUIRE(a->r.n_calls == b->r.n_calls);
    for (uint32_t i = 0; i < a->r.n_calls; i++) {
        const struct chat_call *x = &a->r.calls[i], *y = &b->r.calls[i];
        REQUIRE(strcmp(x->id, y->id) == 0 && x->n_name == y->n_name && x->n_arguments == y->n_arguments);
        REQUIRE(memcmp(a->r.strings.data + x->name, b->r.strings.data + y->name, x->n_name) == 0);
        REQUIRE(memcmp(a->r.strings.data + x->arguments, b->r.strings.data + y->arguments, x->n_arguments) == 0);
    }
}

#endif
