/* SPDX-License-Identifier: Apache-2.0
 *
 * The walk over a reply: start, reasoning, content, and blocks that may hold calls. Every decision is made on text that
 * no later text can change, so it does not matter how the text arrives: what may become a mark is held back, a block
 * is held until it is complete. See reply.h. */
#include "chat/reply.h"

#include <string.h>

#include "base/alloc.h"
#include "chat/reply_internal.h"

enum { MAX_MARKS = 8 };

/* ---- text ---- */

bool chat__space(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

struct text_view chat__trim(const char *p, size_t n) {
    while (n > 0 && chat__space(*p)) p++, n--;
    while (n > 0 && chat__space(p[n - 1])) n--;
    return (struct text_view){p, n};
}

bool chat__starts(const char *p, size_t n, const char *prefix) {
    size_t k = strlen(prefix);

    return n >= k && memcmp(p, prefix, k) == 0;
}

const char *chat__find(const char *p, size_t n, const char *what) {
    return n == 0 ? NULL : memmem(p, n, what, strlen(what));
}

struct mark_hit chat__find_mark(const char *p, size_t n, const char *const *marks, int n_marks, bool final) {
    for (size_t i = 0; i < n; i++) {
        for (int k = 0; k < n_marks; k++) {
            size_t len = strlen(marks[k]), have = n - i < len ? n - i : len;
            if (p[i] != marks[k][0] || memcmp(p + i, marks[k], have) != 0) continue;
            if (have == len) return (struct mark_hit){i, k};
            if (!final) return (struct mark_hit){i, -1};
        }
    }
    return (struct mark_hit){n, -1};
}

/* ---- parts ---- */

/* Appends. `lead`: space before the first text goes; `trail`: space at the end waits for what follows it. */
static void text_add(struct chat_reply *r, struct chat_text *t, struct text_view v, bool lead, bool trail) {
    while (lead && !t->begun && v.n > 0 && chat__space(*v.p)) v.p++, v.n--;
    if (v.n == 0) return;
    if (buf_append(&t->text, v.p, v.n) != 0) r->failed = true;
    size_t ready = t->text.len;
    while (trail && ready > t->ready && chat__space(t->text.data[ready - 1])) ready--;
    t->ready = ready;
    t->begun |= ready > 0;
}

static bool looks_for_calls(const struct chat_reply *r) {
    return r->o.n_tools > 0 && r->o.dialect.syntax != CHAT_SYNTAX_NONE;
}

/* The answer keeps its space unless something stands before it or a call may come behind it. */
void chat__content(struct chat_reply *r, const char *p, size_t n) {
    text_add(r, &r->content, (struct text_view){p, n}, r->o.in_reasoning || r->n_calls > 0, looks_for_calls(r));
}

void chat__reasoning(struct chat_reply *r, const char *p, size_t n) {
    text_add(r, &r->reasoning, (struct text_view){p, n}, true, true);
}

void chat__drop_held(struct chat_reply *r, size_t n) {
    buf_consume(&r->held, n);
    r->seen = r->tried = 0;
}

void chat_text_take(struct chat_text *t, size_t n) {
    buf_consume(&t->text, n);
    t->ready -= n;
}

/* ---- calls ---- */

const struct chat_tool *chat__find_tool(const struct chat_reply *r, const char *name, size_t n) {
    for (uint32_t i = 0; i < r->o.n_tools; i++) {
        if (strlen(r->o.tools[i].name) == n && memcmp(r->o.tools[i].name, name, n) == 0) return &r->o.tools[i];
    }
    return NULL;
}

static void make_id(const struct chat_reply *r, uint32_t serial, char *out) {
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    const struct chat_syntax_row *s = &chat__syntaxes[r->o.dialect.syntax];
    size_t n = strlen(s->id_prefix);
    uint64_t v = 0;

    memcpy(out, s->id_prefix, n);
    for (uint32_t i = 0; i < s->id_chars; i++, v /= 62) {
        if (i % 10 == 0) { /* 62^10 < 2^64: splitmix64 of seed, call and ten digits */
            v = r->o.id_seed + 0x9E3779B97F4A7C15u * (serial * UINT64_C(16) + i / 10 + 1);
            v = (v ^ v >> 30) * 0xBF58476D1CE4E5B9u;
            v = (v ^ v >> 27) * 0x94D049BB133111EBu;
            v ^= v >> 31;
        }
        out[n + i] = digits[v % 62];
    }
    out[n + s->id_chars] = '\0';
}

static bool printable(const char *p, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if ((uint8_t)p[i] < 0x20 || p[i] == 0x7F) return false;
    }
    return true;
}

static int put_arguments(struct chat_reply *r, const struct call_parts *c, struct chat_call *call) {
    struct buf *s = &r->strings;
    struct text_view a = chat__trim(c->arguments, c->n_arguments);
    size_t used;

    call->arguments = s->len;
    if (a.n == 0) buf_puts(s, "{}");
    else if (*a.p == '"') json_put_unescaped(s, a.p, a.n);
    else buf_append(s, a.p, a.n);
    call->n_arguments = s->len - call->arguments;
    if (s->failed) return ST_NOMEM;
    const char *text = s->data + call->arguments;
    if (*text != '{' || json_scan_value(text, call->n_arguments, &chat__json_limits, &used) || used != call->n_arguments) return ST_INVALID;
    return 0;
}

int chat__head_call(struct chat_reply *r, const struct call_parts *c, struct buf *strings, uint32_t nth, struct chat_call *out) {
    if (c->n_name == 0 || c->n_name > CHAT_MAX_NAME_BYTES || !printable(c->name, c->n_name)) return ST_INVALID;
    out->serial = r->progress.serial + nth;
    out->name = strings->len;
    out->n_name = c->n_name;
    if (buf_append(strings, c->name, c->n_name)) return ST_NOMEM;
    if (c->n_id > 0 && c->n_id < CHAT_ID_BYTES && printable(c->id, c->n_id)) {
        memcpy(out->id, c->id, c->n_id);
        out->id[c->n_id] = '\0';
    } else {
        make_id(r, out->serial, out->id);
    }
    return 0;
}

bool chat__calls_room(struct chat_reply *r) {
    if (!r->calls) r->calls = mem_zalloc(2 * CHAT_MAX_CALLS, sizeof *r->calls);
    r->drafts = r->calls ? r->calls + CHAT_MAX_CALLS : NULL;
    return r->calls != NULL;
}

int chat__add_call(struct chat_reply *r, const struct call_parts *c) {
    size_t mark = r->strings.len;

    if (r->n_calls == CHAT_MAX_CALLS) return ST_INVALID;
    struct chat_call *call = chat__calls_room(r) ? &r->calls[r->n_calls] : NULL;
    int rc = call ? chat__head_call(r, c, &r->strings, r->n_calls - r->progress.n_before, call) : ST_NOMEM;
    if (rc == 0) rc = put_arguments(r, c, call);
    if (rc == ST_NOMEM) r->failed = true;
    if (rc) {
        r->strings.len = mark < r->strings.len ? mark : r->strings.len;
        return rc;
    }
    r->n_calls++;
    return 0;
}

void chat__begin_block(struct chat_reply *r) {
    r->progress = (struct chat_progress){.serial = r->n_blocks++ * CHAT_MAX_CALLS, .n_before = r->n_calls};
}

void chat__undo_calls(struct chat_reply *r, uint32_t n_calls, size_t n_strings) {
    r->n_calls = n_calls;
    r->strings.len = n_strings;
}

/* ---- the walk ---- */

/* Open marks of the syntax first, then those to be skipped. */
static int collect_marks(const struct chat_reply *r, const char **out, int *n_open) {
    const struct chat_syntax_row *s = &chat__syntaxes[r->o.dialect.syntax];
    int n = 0;

    for (const struct chat_mark *m = s->marks; m && m->open && n < MAX_MARKS; m++) out[n++] = *m->open ? m->open : "\xFF";
    *n_open = n;
    for (const char *const *k = s->skip; k && *k && n < MAX_MARKS; k++) out[n++] = *k;
    return n;
}

static void begin_block(struct chat_reply *r, const struct chat_mark *m) {
    chat__begin_block(r);
    r->mark = m;
    r->state = REPLY_BLOCK;
    r->seen = strlen(m->open);
    r->tried = 0;
}

/* Space, then the mark that opens the reasoning, or a '{' that may begin a call; else it is the answer already. */
static bool step_start(struct chat_reply *r) {
    const struct chat_think *think = r->o.dialect.think;
    size_t i = 0, n = r->held.len;

    while (i < n && chat__space(r->held.data[i])) i++;
    if (i == n && !r->final) return false;
    size_t len = think ? strlen(think->open) : 0, have = n - i < len ? n - i : len;
    if (len > 0 && have > 0 && !r->o.in_reasoning && memcmp(r->held.data + i, think->open, have) == 0) {
        if (have < len && !r->final) return false;
        if (have == len) {
            chat__drop_held(r, i + len);
            r->o.in_reasoning = true;
            r->state = REPLY_REASONING;
            return true;
        }
    }
    const struct chat_syntax_row *s = &chat__syntaxes[r->o.dialect.syntax];
    if (looks_for_calls(r) && s->bare && i < n && r->held.data[i] == '{') begin_block(r, s->marks);
    else r->state = REPLY_CONTENT;
    return true;
}

static bool step_reasoning(struct chat_reply *r) {
    const char *close = r->o.dialect.think->close;
    struct mark_hit hit = chat__find_mark(r->held.data, r->held.len, &close, 1, r->final);

    chat__reasoning(r, r->held.data, hit.at);
    chat__drop_held(r, hit.at);
    if (hit.index < 0) return false;
    chat__drop_held(r, strlen(close));
    r->state = REPLY_CONTENT;
    const struct chat_syntax_row *s = &chat__syntaxes[r->o.dialect.syntax];
    if (looks_for_calls(r) && s->bare) r->state = REPLY_START;
    return true;
}

static bool step_content(struct chat_reply *r) {
    const char *marks[MAX_MARKS];
    int n_open = 0, n = looks_for_calls(r) ? collect_marks(r, marks, &n_open) : 0;
    struct mark_hit hit = chat__find_mark(r->held.data, r->held.len, marks, n, r->final);

    chat__content(r, r->held.data, hit.at);
    chat__drop_held(r, hit.at);
    if (hit.index < 0) return false;
    if (hit.index < n_open) begin_block(r, &chat__syntaxes[r->o.dialect.syntax].marks[hit.index]);
    else chat__drop_held(r, strlen(marks[hit.index]));
    return true;
}

/* Tries the block held[0..n), whose body ends n_close bytes before. 0: its calls are there; else nothing changed. */
static int try_block(struct chat_reply *r, size_t n, size_t n_close) {
    uint32_t n_calls = r->n_calls;
    size_t n_strings = r->strings.len, n_open = strlen(r->mark->open);
    int rc = r->mark->parse(r, r->mark, r->held.data + n_open, n - n_open - n_close);

    if (rc) chat__undo_calls(r, n_calls, n_strings);
    return rc;
}

static bool end_block(struct chat_reply *r, size_t n, bool is_call) {
    if (is_call) r->content.text.len = r->content.ready; /* space before a call is not part of the answer */
    else chat__content(r, r->held.data, n);
    chat__drop_held(r, n);
    chat__drop_drafts(r);
    r->state = REPLY_CONTENT;
    return true;
}

/* No call after all: the mark is content, and what follows it is looked at again. So it does not matter when this is found. */
static bool let_go(struct chat_reply *r) {
    size_t n = strlen(r->mark->open);

    chat__content(r, r->held.data, n);
    chat__drop_held(r, n);
    chat__drop_drafts(r);
    r->state = REPLY_CONTENT;
    return true;
}

static bool draft_block(struct chat_reply *r) {
    size_t n_open = strlen(r->mark->open);

    if (r->held.len > n_open && !r->final) r->mark->draft(r, r->mark, r->held.data + n_open, r->held.len - n_open);
    return false;
}

/* Without a close mark only the end decides; what can be no call is let go as soon as that is seen. */
static bool step_open_block(struct chat_reply *r) {
    size_t n = r->held.len;

    if (!r->final && n < 2 * r->tried + 64) return draft_block(r);
    r->tried = n;
    uint32_t n_calls = r->n_calls;
    size_t n_strings = r->strings.len;
    int rc = try_block(r, n, 0);
    if (r->final) return rc == 0 ? end_block(r, n, true) : let_go(r);
    if (rc == 0) chat__undo_calls(r, n_calls, n_strings);
    return rc == ST_INVALID ? let_go(r) : draft_block(r);
}

static bool step_block(struct chat_reply *r) {
    const char *close = r->mark->close;
    size_t n_open = strlen(r->mark->open);

    if (!close) return step_open_block(r);
    size_t from = r->seen > n_open ? r->seen : n_open, n_close = strlen(close);
    const char *at = r->held.len > from ? chat__find(r->held.data + from, r->held.len - from, close) : NULL;
    if (at) {
        size_t end = (size_t)(at - r->held.data) + n_close;
        int rc = try_block(r, end, n_close);
        if (rc != ST_LIMIT) return end_block(r, end, rc == 0);
        r->seen = end;
        return true;
    }
    if (r->held.len - from >= n_close) r->seen = r->held.len - n_close + 1;
    if (!r->final) return draft_block(r);
    return end_block(r, r->held.len, try_block(r, r->held.len, 0) == 0);
}

static void run(struct chat_reply *r) {
    bool moved = true;

    while (moved && !r->failed && r->held.len > 0) {
        switch (r->state) {
        case REPLY_START: moved = step_start(r); break;
        case REPLY_REASONING: moved = step_reasoning(r); break;
        case REPLY_CONTENT: moved = step_content(r); break;
        case REPLY_BLOCK: moved = step_block(r); break;
        default: moved = chat__harmony_step(r); break;
        }
    }
}

/* ---- public ---- */

void chat_reply_init(struct chat_reply *r, const struct chat_reply_opts *o) {
    *r = (struct chat_reply){.o = *o};
    r->state = o->dialect.syntax == CHAT_SYNTAX_HARMONY ? REPLY_HEADER : o->dialect.think && o->in_reasoning ? REPLY_REASONING : REPLY_START;
    buf_init(&r->reasoning.text, o->max_bytes);
    buf_init(&r->content.text, o->max_bytes);
    buf_init(&r->held, o->max_bytes);
    buf_init(&r->strings, o->max_bytes);
    buf_init(&r->partial, o->max_bytes);
}

void chat_reply_clear(struct chat_reply *r) {
    buf_clear(&r->reasoning.text);
    buf_clear(&r->content.text);
    buf_clear(&r->held);
    buf_clear(&r->strings);
    buf_clear(&r->partial);
    mem_free(r->calls);
    r->calls = r->drafts = NULL;
}

void chat_reply_push(struct chat_reply *r, const char *text, size_t n) {
    if (n == 0 || r->failed) return;
    if (buf_append(&r->held, text, n) != 0) r->failed = true;
    run(r);
}

void chat_reply_finish(struct chat_reply *r) {
    r->final = true;
    run(r);
    r->reasoning.text.len = r->reasoning.ready;
    if (r->n_calls == 0) r->content.ready = r->content.text.len;
    else r->content.text.len = r->content.ready;
}

static bool in_list(const char *const *list, const char *piece, size_t n) {
    for (; list && *list; list++) {
        if (strlen(*list) == n && memcmp(*list, piece, n) == 0) return true;
    }
    return false;
}

bool chat_reply_wants(const struct chat_reply *r, const char *piece, size_t n) {
    const struct chat_think *think = r->o.dialect.think;
    const struct chat_syntax_row *s = &chat__syntaxes[r->o.dialect.syntax];

    if (n == 0) return false;
    if (think && ((n <= strlen(think->open) && memcmp(think->open, piece, n) == 0) || in_list((const char *const[]){think->close, NULL}, piece, n))) return true;
    if (r->o.dialect.syntax == CHAT_SYNTAX_HARMONY) return chat__harmony_wants(piece, n);
    if (!looks_for_calls(r)) return false;
    for (const struct chat_mark *m = s->marks; m && m->open; m++) {
        if (in_list((const char *const[]){m->open, m->close, NULL}, piece, n)) return true;
    }
    return in_list(s->skip, piece, n) || in_list(s->inner, piece, n);
}

bool chat_reply_in_reasoning(const struct chat_reply *r) {
    return r->state == REPLY_REASONING || (r->state == REPLY_BODY && r->analysis);
}
