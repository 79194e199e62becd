/* SPDX-License-Identifier: Apache-2.0
 *
 * See constraint.h. */
#include "server/constraint.h"

#include <string.h>

#include "base/alloc.h"
#include "base/status.h"

/* ---- grammar ---- */

int constraint_vocab_open(struct grammar_vocab **out, const struct tokenizer *t, const struct chat_dialect *d, struct err *e) {
    static const struct chat_tool any = {.name = "any"};
    uint32_t n = (uint32_t)tokenizer_n_vocab(t);
    struct grammar_token *tokens = mem_zalloc(n + 1u, sizeof *tokens);
    struct chat_reply probe;

    if (!tokens) return err_set(e, ST_NOMEM, "no memory for the tokens of grammars");
    chat_reply_init(&probe, &(struct chat_reply_opts){.dialect = *d, .tools = &any, .n_tools = 1});
    for (uint32_t id = 0; id < n; id++) {
        size_t len;
        const char *piece = tokenizer_piece(t, (int32_t)id, &len);
        bool control = tokenizer_is_control(t, (int32_t)id) && !chat_reply_wants(&probe, piece, len);
        tokens[id] = (struct grammar_token){.bytes = piece, .n_bytes = (uint32_t)len, .kind = tokenizer_is_eog(t, (int32_t)id) ? GRAMMAR_EOG : control ? GRAMMAR_CONTROL : GRAMMAR_TEXT};
    }
    chat_reply_clear(&probe);
    int rc = grammar_vocab_open(out, tokens, n, e);
    mem_free(tokens);
    return rc;
}

int constraint_compile(struct grammar **out, const struct grammar_vocab *v, const struct constraint *c, const struct chat_dialect *d, struct err *e) {
    const char *trigger = d->think ? d->think->close : NULL;
    struct grammar_spec spec = {.parts = c->parts, .n_parts = c->n_parts, .max_repeat = c->max_repeat, .separator = c->separator,
                                .triggers = &trigger, .n_triggers = c->behind_reasoning && trigger ? 1 : 0};

    return grammar_compile(out, v, &spec, e);
}

/* ---- reasoning budget ---- */

enum { MAX_CLOSE_IDS = 64, TAIL_BYTES = 64 };

enum thinking_state {
    NOT_BEGUN, /* the reply may still open its reasoning: `tail` is its whole text so far */
    THINKING,  /* `tail` holds the end of the text                                        */
    CLOSING,   /* the close mark is being written                                         */
    OVER,
};

struct thinking_limit {
    struct thinking_limit_opts o;
    enum thinking_state state;
    uint32_t n_words, n_thought;
    int32_t close[MAX_CLOSE_IDS];
    uint32_t n_close, at;
    char tail[TAIL_BYTES];
    size_t n_tail;
};

int thinking_limit_open(struct thinking_limit **out, const struct thinking_limit_opts *o) {
    struct thinking_limit *t = mem_zalloc(1, sizeof *t);
    const char *mark = o->think->close;

    if (!t) return ST_NOMEM;
    t->o = *o;
    t->n_words = ((uint32_t)tokenizer_n_vocab(o->tokenizer) + 31) / 32;
    int64_t n = tokenizer_encode(o->tokenizer, mark, strlen(mark), TOK_PARSE_SPECIAL, t->close, MAX_CLOSE_IDS);
    if (n <= 0) {
        mem_free(t);
        return ST_NOMEM;
    }
    t->n_close = (uint32_t)n;
    t->state = !o->in_reasoning ? NOT_BEGUN : o->budget == 0 ? CLOSING : THINKING;
    *out = t;
    return 0;
}

void thinking_limit_close(struct thinking_limit *t) {
    mem_free(t);
}

static int limit_mask(void *self, uint32_t *allowed) {
    struct thinking_limit *t = self;
    uint32_t n_vocab = (uint32_t)tokenizer_n_vocab(t->o.tokenizer);

    if (t->state != CLOSING && t->o.inner.ops) return t->o.inner.ops->mask(t->o.inner.self, allowed);
    memset(allowed, t->state == CLOSING ? 0 : 0xFF, t->n_words * sizeof *allowed);
    if (t->state == CLOSING) allowed[t->close[t->at] / 32] |= 1u << (t->close[t->at] % 32);
    else if (n_vocab % 32) allowed[t->n_words - 1] = (1u << (n_vocab % 32)) - 1;
    return 0;
}

/* Keeps the end of the text; a mark is shorter than half of it. */
static void add_tail(struct thinking_limit *t, const char *p, size_t n) {
    size_t keep = sizeof t->tail / 2;

    for (; n > 0; p++, n--) {
        if (t->n_tail == sizeof t->tail) {
            memmove(t->tail, t->tail + t->n_tail - keep, keep);
            t->n_tail = keep;
        }
        t->tail[t->n_tail++] = *p;
    }
}

/* Has the reply opened its reasoning, or can it not any more? */
static void look_for_open(struct thinking_limit *t) {
    const char *open = t->o.think->open, *p = t->tail;
    size_t n = t->n_tail, len = strlen(open);

    while (n > 0 && strchr(" \t\r\n", *p)) p++, n--;
    if (memcmp(p, open, n < len ? n : len) != 0) t->state = OVER;
    else if (n >= len) t->state = t->o.budget == 0 ? CLOSING : THINKING;
}

static int limit_accept(void *self, int32_t token) {
    struct thinking_limit *t = self;
    size_t n;
    const char *piece = tokenizer_piece(t->o.tokenizer, token, &n);

    if (t->state == CLOSING) {
        if (++t->at == t->n_close) t->state = OVER;
    } else if (t->state != OVER) {
        add_tail(t, piece, n);
        if (t->state == NOT_BEGUN) look_for_open(t);
        else if (memmem(t->tail, t->n_tail, t->o.think->close, strlen(t->o.think->close))) t->state = OVER;
        else if (++t->n_thought >= t->o.budget) t->state = CLOSING;
    }
    return t->o.inner.ops ? t->o.inner.ops->accept(t->o.inner.self, token) : 0;
}

struct token_filter thinking_limit_filter(struct thinking_limit *t) {
    static const struct token_filter_ops ops = {limit_mask, limit_accept};

    return (struct token_filter){&ops, t};
}
