/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls while they are written. What is shown of one must be how its arguments begin when the block ends and its `parse`
 * takes it apart, so both use the same functions for heads and parameters, and of arguments written as JSON every byte is
 * walked: they are copied as they stand. Arguments between tags are put together one whole parameter at a time. What this cannot
 * tell in time (arrays of calls, code, names of no tool) is not shown before its end. The last brace of a draft is not shown until
 * the next draft of the block begins: nobody shall run a call that comes to nothing. See reply_internal.h. */
#include <string.h>

#include "chat/reply_internal.h"

enum { MAX_HEAD_BYTES = 1024 };
enum phase { HEAD, JSON, PARAMETERS, BETWEEN, STUCK };

/* Closed blocks decide; until then this much text without a head is taken for none. */
static bool give_up(struct chat_reply *r, size_t n) {
    if (n - r->progress.at > MAX_HEAD_BYTES) r->progress.phase = STUCK;
    return false;
}

static bool stuck(struct chat_reply *r) {
    r->progress.phase = STUCK;
    return false;
}

static struct chat_call *newest(struct chat_reply *r) {
    return &r->drafts[r->n_drafts - 1];
}

static void grown(struct chat_reply *r) {
    if (r->partial.failed) r->failed = true;
    newest(r)->n_arguments = r->partial.len - newest(r)->arguments;
}

/* A draft of a known tool. */
static bool begin(struct chat_reply *r, const struct call_parts *c, enum phase phase) {
    if (!chat__find_tool(r, c->name, c->n_name) || r->n_calls + r->n_drafts == CHAT_MAX_CALLS || !chat__calls_room(r)) return stuck(r);
    struct chat_call *d = &r->drafts[r->n_drafts];
    *d = (struct chat_call){0};
    if (r->n_drafts > 0) {
        buf_putc(&r->partial, '}');
        grown(r);
    }
    if (chat__head_call(r, c, &r->partial, r->n_drafts, d)) return stuck(r);
    d->arguments = r->partial.len;
    r->n_drafts++;
    r->progress.phase = phase;
    return true;
}

void chat__drop_drafts(struct chat_reply *r) {
    r->n_drafts = 0;
    buf_reset(&r->partial);
    r->progress.phase = STUCK;
}

/* ---- arguments written as JSON ---- */

/* A head was found, and its arguments begin with a brace. */
static bool begin_json(struct chat_reply *r, const struct call_parts *c, const char *p) {
    if (!begin(r, c, JSON)) return false;
    json_walk_init(&r->progress.json, chat__json_limits.max_depth);
    r->progress.at = (size_t)(c->arguments - p);
    return true;
}

/* Takes what is new of them. */
static void walk_json(struct chat_reply *r, const char *p, size_t n) {
    struct chat_progress *g = &r->progress;
    size_t k = json_walk(&g->json, p + g->at, n - g->at);

    buf_append(&r->partial, p + g->at, k - g->json.done);
    g->at += k;
    grown(r);
    if (g->json.done) g->phase = BETWEEN;
    else if (g->json.bad) g->phase = STUCK;
}

static size_t skip_space(const char *p, size_t n, size_t at) {
    while (at < n && chat__space(p[at])) at++;
    return at;
}

/* The object that stands at `at`. */
static void draft_object(struct chat_reply *r, const char *p, size_t n, size_t at) {
    struct call_parts c;
    struct buf name;

    if (r->progress.phase == HEAD) {
        buf_init(&name, 2 * CHAT_MAX_NAME_BYTES);
        int rc = chat__json_head(p + at, n - at, &name, &c);
        if (rc == 0) begin_json(r, &c, p);
        else if (rc == ST_LIMIT) give_up(r, n);
        else stuck(r);
        buf_clear(&name);
    }
    if (r->progress.phase == JSON) walk_json(r, p, n);
}

/* Behind a head that was found: the brace, or what is none. */
static void draft_headed(struct chat_reply *r, const char *p, size_t n, int rc, struct call_parts *c) {
    if (r->progress.phase == HEAD) {
        size_t at = rc ? n : skip_space(p, n, (size_t)(c->arguments - p));
        if (rc && rc != ST_LIMIT) stuck(r);
        else if (at == n) give_up(r, n);
        else if (p[at] != '{') stuck(r);
        else c->arguments = p + at, begin_json(r, c, p);
    }
    if (r->progress.phase == JSON) walk_json(r, p, n);
}

void chat__draft_llama(struct chat_reply *r, const struct chat_mark *m, const char *p, size_t n) {
    (void)m;
    draft_object(r, p, n, skip_space(p, n, 0));
}

void chat__draft_deepseek(struct chat_reply *r, const struct chat_mark *m, const char *p, size_t n) {
    struct call_parts c = {0};

    (void)m;
    draft_headed(r, p, n, r->progress.phase == HEAD ? chat__deepseek_head(p, n, &c) : 0, &c);
}

void chat__draft_kimi(struct chat_reply *r, const struct chat_mark *m, const char *p, size_t n) {
    struct call_parts c = {0};

    (void)m;
    draft_headed(r, p, n, r->progress.phase == HEAD ? chat__kimi_head(p, n, &c) : 0, &c);
}

void chat__draft_harmony(struct chat_reply *r) {
    struct call_parts c = {.name = r->channel_to, .n_name = strlen(r->channel_to), .arguments = r->held.data, .n_arguments = r->held.len};

    draft_headed(r, r->held.data, r->held.len, 0, &c);
}

/* NAME[ARGS]{...}[TOOL_CALLS]NAME[ARGS]{...} */
void chat__draft_mistral(struct chat_reply *r, const struct chat_mark *m, const char *p, size_t n) {
    struct chat_progress *g = &r->progress;
    struct call_parts c;

    for (bool more = true; more;) {
        more = false;
        size_t at = skip_space(p, n, g->at);
        if (g->phase == HEAD && at < n && p[at] != '[') {
            const char *brace = memchr(p + at, '{', n - at);
            if (p[at] == '{') {
                draft_object(r, p, n, at);
                return;
            }
            if (!brace) {
                give_up(r, n);
                return;
            }
            chat__mistral_head(p + at, (size_t)(brace - p) - at, &c);
            c.arguments = brace;
            begin_json(r, &c, p);
        } else if (g->phase == HEAD && at < n) {
            stuck(r);
        }
        if (g->phase == JSON) walk_json(r, p, n);
        if (g->phase != BETWEEN) return;
        at = skip_space(p, n, g->at);
        if (n - at < strlen(m->open)) return;
        if (!chat__starts(p + at, n - at, m->open)) {
            stuck(r);
            return;
        }
        g->at = at + strlen(m->open);
        g->phase = HEAD;
        more = true;
    }
}

/* ---- arguments between tags ---- */

/* Every part ends with '>': without a new one there is nothing to find, and long values are not searched token by token. */
static bool tag_ended(struct chat_reply *r, const char *p, size_t n) {
    size_t from = r->progress.seen;

    r->progress.seen = n;
    return r->progress.phase != STUCK && n > from && memchr(p + from, '>', n - from);
}

static bool begin_tags(struct chat_reply *r, struct text_view name, size_t at) {
    struct call_parts c = {.name = name.p, .n_name = name.n};

    if (!begin(r, &c, PARAMETERS)) return false;
    r->progress.at = at;
    buf_putc(&r->partial, '{');
    grown(r);
    return true;
}

/* NAME> at `at`, then parameters. */
static void draft_function(struct chat_reply *r, const char *p, size_t n, size_t at) {
    struct chat_progress *g = &r->progress;
    const char *gt = g->phase == HEAD ? memchr(p + at, '>', n - at) : NULL;

    if (gt) begin_tags(r, chat__trim(p + at, (size_t)(gt - p) - at), (size_t)(gt + 1 - p));
    else if (g->phase == HEAD) give_up(r, n);
    if (g->phase != PARAMETERS) return;
    const struct chat_tool *tool = chat__find_tool(r, r->partial.data + newest(r)->name, newest(r)->n_name);
    struct text_view rest = {p + g->at, n - g->at};
    while (chat__take_parameter(tool, &rest, &r->partial) == 0) {
    }
    g->at = (size_t)(rest.p - p);
    grown(r);
}

static void draft_pairs(struct chat_reply *r, const char *p, size_t n) {
    struct chat_progress *g = &r->progress;
    const char *first = g->phase == HEAD ? chat__find(p, n, "<arg_key>") : NULL;

    if (first) begin_tags(r, chat__trim(p, (size_t)(first - p)), (size_t)(first - p));
    else if (g->phase == HEAD) give_up(r, n);
    if (g->phase != PARAMETERS) return;
    const struct chat_tool *tool = chat__find_tool(r, r->partial.data + newest(r)->name, newest(r)->n_name);
    struct text_view rest = {p + g->at, n - g->at};
    while (chat__take_arg_pair(tool, &rest, &r->partial) == 0) {
    }
    g->at = (size_t)(rest.p - p);
    grown(r);
}

void chat__draft_function_tag(struct chat_reply *r, const struct chat_mark *m, const char *p, size_t n) {
    (void)m;
    if (tag_ended(r, p, n)) draft_function(r, p, n, 0);
}

void chat__draft_tool_call(struct chat_reply *r, const struct chat_mark *m, const char *p, size_t n) {
    static const char function[] = "<function=";
    size_t at = skip_space(p, n, 0), n_function = sizeof function - 1;

    (void)m;
    if (at == n || r->progress.phase == STUCK) return;
    if (p[at] == '{') {
        draft_object(r, p, n, at);
    } else if (p[at] == '<') {
        if (chat__starts(p + at, n - at, function) && tag_ended(r, p, n)) draft_function(r, p, n, at + n_function);
    } else if (p[at] != '[' && tag_ended(r, p, n)) {
        draft_pairs(r, p, n);
    }
}

void chat__draft_invoke(struct chat_reply *r, const struct chat_mark *m, const char *p, size_t n) {
    struct chat_progress *g = &r->progress;
    const char *prefix = chat__invoke_prefix(m);
    struct text_view v = chat__trim(p + g->at, n - g->at), name;

    for (bool moved = tag_ended(r, p, n); moved && g->phase != STUCK;) {
        moved = false;
        if (g->phase == HEAD) {
            if (chat__take_invoke(&v, prefix, &name)) break;
            moved = begin_tags(r, name, (size_t)(v.p - p));
        } else {
            const struct chat_tool *tool = chat__find_tool(r, r->partial.data + newest(r)->name, newest(r)->n_name);
            while (chat__take_invoke_parameter(tool, &v, prefix, &r->partial) == 0) {
            }
            moved = chat__take_invoke_end(&v, prefix) == 0;
            if (moved) g->phase = HEAD;
            g->at = (size_t)(v.p - p);
            grown(r);
        }
    }
}

/* ---- as a stream shows them ---- */

static const struct chat_call *find(const struct chat_call *calls, uint32_t n, uint32_t from_serial) {
    for (uint32_t i = 0; i < n; i++) {
        if (calls[i].serial >= from_serial) return &calls[i];
    }
    return NULL;
}

bool chat_reply_next_call(const struct chat_reply *r, struct chat_call_cursor *c, bool last, struct chat_call_news *out) {
    const struct chat_call *call = find(r->calls, r->n_calls, c->next - c->open), *draft = last ? NULL : find(r->drafts, r->n_drafts, c->next - c->open);
    const char *strings = call ? r->strings.data : r->partial.data;
    const struct chat_call *now = call ? call : draft;

    *out = (struct chat_call_news){.index = c->open ? c->index - 1 : c->index};
    if (c->open && (!now || now->serial != c->next - 1)) {
        out->ends = out->broken = true;
        c->open = false;
        return true;
    }
    if (!now) return false;
    if (!c->open) {
        *c = (struct chat_call_cursor){.index = c->index + 1, .next = now->serial + 1, .open = true};
        out->begins = true;
        out->id = now->id;
        out->name = strings + now->name;
        out->n_name = now->n_name;
    }
    out->text = strings + now->arguments + c->n_shown;
    out->n_text = now->n_arguments - c->n_shown;
    out->ends = call || draft < r->drafts + r->n_drafts - 1;
    if (!out->begins && !out->ends && out->n_text == 0) return false;
    c->n_shown = now->n_arguments;
    c->open = !out->ends;
    return true;
}
