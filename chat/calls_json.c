/* SPDX-License-Identifier: Apache-2.0
 *
 * Tool calls whose arguments are written as JSON: Hermes, Mistral, Llama 3, DeepSeek, Kimi. See reply_internal.h. */
#include <string.h>

#include "chat/reply_internal.h"

static bool key_is(const struct json_member *m, const char *name) {
    return m->n_key == strlen(name) + 2 && memcmp(m->key + 1, name, m->n_key - 2) == 0;
}

static size_t skip_space(const char *p, size_t n, size_t at) {
    while (at < n && chat__space(p[at])) at++;
    return at;
}

/* The string literal at p[*at], behind space: its view with quotes. */
static int head_string(const char *p, size_t n, size_t *at, struct text_view *out) {
    size_t used;

    *at = skip_space(p, n, *at);
    if (*at == n) return ST_LIMIT;
    if (p[*at] != '"') return ST_INVALID;
    int rc = json_scan_value(p + *at, n - *at, &chat__json_limits, &used);
    *out = (struct text_view){p + *at, used};
    *at += used;
    return rc;
}

static int head_byte(const char *p, size_t n, size_t *at, char c) {
    *at = skip_space(p, n, *at);
    if (*at == n) return ST_LIMIT;
    return p[(*at)++] == c ? 0 : ST_INVALID;
}

int chat__json_head(const char *p, size_t n, struct buf *name, struct call_parts *out) {
    struct text_view key, value;
    size_t at = 0;
    int rc = head_byte(p, n, &at, '{');

    *out = (struct call_parts){0};
    while (rc == 0) {
        struct json_member m = {0};
        if ((rc = head_string(p, n, &at, &key)) || (rc = head_byte(p, n, &at, ':'))) break;
        m.key = key.p, m.n_key = key.n;
        if (out->name && (key_is(&m, "arguments") || key_is(&m, "parameters"))) {
            if ((rc = head_byte(p, n, &at, '{'))) break;
            out->arguments = p + at - 1, out->n_arguments = n - at + 1;
            return 0;
        }
        if ((rc = head_string(p, n, &at, &value)) || (rc = head_byte(p, n, &at, ','))) break;
        if (key_is(&m, "name") && !out->name) {
            json_put_unescaped(name, value.p, value.n);
            if (name->failed || name->len == 0) return ST_INVALID;
            out->name = name->data, out->n_name = name->len;
        } else if (key_is(&m, "id") && !out->id) {
            if (!memchr(value.p, '\\', value.n)) out->id = value.p + 1, out->n_id = value.n - 2;
        } else if (!key_is(&m, "type")) {
            return ST_INVALID;
        }
    }
    return rc;
}

/* {"name": "f", "arguments": {...}, "id": "x"}; "parameters" means the same; {"function": {...}} may stand around it. */
static int any_object(struct chat_reply *r, const char *p, size_t n, struct buf *name) {
    struct call_parts c = {0};
    struct json_member m;
    size_t at = 0;

    while (json_next(p, n, &at, &m)) {
        if (key_is(&m, "function") && *m.value == '{') return any_object(r, m.value, m.n_value, name);
        if (key_is(&m, "name") && *m.value == '"') c.name = m.value, c.n_name = m.n_value;
        if (key_is(&m, "arguments") || key_is(&m, "parameters")) c.arguments = m.value, c.n_arguments = m.n_value;
        if (key_is(&m, "id") && *m.value == '"' && m.n_value > 2) c.id = m.value + 1, c.n_id = m.n_value - 2;
    }
    if (!c.name) return ST_INVALID;
    json_put_unescaped(name, c.name, c.n_name);
    c.name = name->data;
    c.n_name = name->len;
    if (c.n_id && memchr(c.id, '\\', c.n_id)) c.n_id = 0;
    if (c.n_arguments == 4 && memcmp(c.arguments, "null", 4) == 0) c.n_arguments = 0;
    return name->failed ? ST_INVALID : chat__add_call(r, &c);
}

/* An object whose head tells all was shown as a draft from there on: what stands behind its arguments changes nothing. */
static int one_object(struct chat_reply *r, const char *p, size_t n, bool drafted) {
    struct call_parts c;
    struct buf name;
    int rc = ST_INVALID;

    buf_init(&name, 2 * CHAT_MAX_NAME_BYTES);
    if (drafted && (rc = chat__json_head(p, n, &name, &c)) == 0) {
        json_scan_value(c.arguments, c.n_arguments, &chat__json_limits, &c.n_arguments); /* part of what was scanned */
        rc = chat__add_call(r, &c);
    } else {
        buf_reset(&name);
        rc = any_object(r, p, n, &name);
    }
    buf_clear(&name);
    return rc;
}

int chat__json_call(struct chat_reply *r, const char *p, size_t n) {
    struct json_member m;
    size_t at = 0;
    int rc = 0, k = 0;

    if (*p == '{') return one_object(r, p, n, true);
    if (*p != '[') return ST_INVALID;
    while (rc == 0 && json_next(p, n, &at, &m)) {
        rc = *m.value == '{' ? one_object(r, m.value, m.n_value, false) : ST_INVALID;
        k++;
    }
    return rc ? rc : k ? 0 : ST_INVALID;
}

/* The JSON value the text begins with, as calls; *used its length. */
static int leading_call(struct chat_reply *r, const char *p, size_t n, size_t *used) {
    int rc = json_scan_value(p, n, &chat__json_limits, used);
    struct text_view v = chat__trim(p, *used);

    return rc ? rc : chat__json_call(r, v.p, v.n);
}

/* Hermes and Qwen write JSON here, Qwen3-Coder and GLM have forms of their own; models know more than one. */
int chat__parse_tool_call(struct chat_reply *r, const struct chat_mark *m, const char *p, size_t n) {
    static const char function[] = "<function=";
    struct text_view v = chat__trim(p, n);
    size_t used;

    if (chat__starts(v.p, v.n, function)) {
        static const char end[] = "</function>";
        if (v.n < sizeof end + sizeof function || !chat__starts(v.p + v.n - sizeof end + 1, sizeof end, end)) return ST_LIMIT;
        return chat__parse_function_tag(r, m, v.p + sizeof function - 1, v.n - (sizeof function - 1) - (sizeof end - 1));
    }
    if (v.n == 0) return ST_INVALID;
    if (*v.p != '{' && *v.p != '[') return chat__parse_arg_pairs(r, v.p, v.n);
    int rc = leading_call(r, v.p, v.n, &used);
    return rc ? rc : used == v.n ? 0 : ST_INVALID;
}

/* Both marks may lack. */
void chat__mistral_head(const char *p, size_t n, struct call_parts *out) {
    struct text_view head = chat__trim(p, n), ident = {0};
    const char *args = chat__find(head.p, head.n, "[ARGS]"), *id;

    if (args) head = chat__trim(head.p, (size_t)(args - head.p));
    if ((id = chat__find(head.p, head.n, "[CALL_ID]"))) {
        ident = chat__trim(id + 9, head.n - (size_t)(id + 9 - head.p));
        head = chat__trim(head.p, (size_t)(id - head.p));
    }
    *out = (struct call_parts){.name = head.p, .n_name = head.n, .id = ident.p, .n_id = ident.n};
}

static int mistral_named(struct chat_reply *r, const char *p, size_t n, size_t *used) {
    const char *brace = memchr(p, '{', n);
    struct call_parts c;
    size_t len;

    if (!brace) return ST_LIMIT;
    int rc = json_scan_value(brace, n - (size_t)(brace - p), &chat__json_limits, &len);
    if (rc) return rc;
    *used = (size_t)(brace - p) + len;
    chat__mistral_head(p, (size_t)(brace - p), &c);
    c.arguments = brace;
    c.n_arguments = len;
    return chat__add_call(r, &c);
}

int chat__parse_mistral(struct chat_reply *r, const struct chat_mark *m, const char *p, size_t n) {
    const char *end = p + n;

    for (;;) {
        size_t used = 0;
        while (p < end && chat__space(*p)) p++;
        if (p == end) return ST_LIMIT;
        int rc = *p == '[' || *p == '{' ? leading_call(r, p, (size_t)(end - p), &used) : mistral_named(r, p, (size_t)(end - p), &used);
        if (rc) return rc;
        p += used;
        while (p < end && chat__space(*p)) p++;
        if (p == end) return 0;
        size_t len = strlen(m->open), have = (size_t)(end - p) < len ? (size_t)(end - p) : len;
        if (memcmp(p, m->open, have) != 0) return ST_INVALID;
        p += have;
    }
}

/* {...} or {...}; {...}, every name one of the request's tools: the answer may be JSON for other reasons. */
int chat__parse_llama(struct chat_reply *r, const struct chat_mark *m, const char *p, size_t n) {
    const char *end = p + n;

    (void)m;
    for (;;) {
        size_t used;
        uint32_t before = r->n_calls;
        int rc = leading_call(r, p, (size_t)(end - p), &used);
        if (rc) return rc;
        for (uint32_t i = before; i < r->n_calls; i++) {
            if (!chat__find_tool(r, r->strings.data + r->calls[i].name, r->calls[i].n_name)) return ST_INVALID;
        }
        p += used;
        while (p < end && (chat__space(*p) || *p == ';')) p++;
        if (p == end) return 0;
        if (*p != '{') return ST_INVALID;
    }
}

/* A Python literal as JSON: strings in either quote, numbers, True, False, None. */
static int put_python_value(struct buf *out, struct text_view v) {
    size_t used;

    if (v.n >= 2 && (*v.p == '\'' || *v.p == '"') && v.p[v.n - 1] == *v.p) {
        struct buf plain;
        buf_init(&plain, v.n);
        for (size_t i = 1; i + 1 < v.n; i++) {
            if (v.p[i] == '\\' && i + 2 < v.n) i++, buf_putc(&plain, v.p[i] == 'n' ? '\n' : v.p[i] == 't' ? '\t' : v.p[i]);
            else buf_putc(&plain, v.p[i]);
        }
        json_put_string(out, plain.data, plain.len);
        buf_clear(&plain);
        return 0;
    }
    if (v.n == 4 && memcmp(v.p, "True", 4) == 0) return buf_puts(out, "true");
    if (v.n == 5 && memcmp(v.p, "False", 5) == 0) return buf_puts(out, "false");
    if (v.n == 4 && memcmp(v.p, "None", 4) == 0) return buf_puts(out, "null");
    if (json_scan_value(v.p, v.n, &chat__json_limits, &used) || used != v.n) return ST_INVALID;
    return buf_append(out, v.p, v.n);
}

/* End of a keyword argument: a comma outside quotes and brackets, or the end. */
static size_t argument_end(const char *p, size_t n) {
    int depth = 0;
    char quote = 0;

    for (size_t i = 0; i < n; i++) {
        char c = p[i];
        if (quote) {
            if (c == '\\') i++;
            else if (c == quote) quote = 0;
        } else if (c == '\'' || c == '"') {
            quote = c;
        } else if (c == '[' || c == '{' || c == '(') {
            depth++;
        } else if (c == ']' || c == '}' || c == ')') {
            depth--;
        } else if (c == ',' && depth == 0) {
            return i;
        }
    }
    return n;
}

/* name.call(a="x", b=1) */
static int python_call(struct chat_reply *r, struct text_view v) {
    static const char call[] = ".call(";
    const char *at = chat__find(v.p, v.n, call), *end = v.p + v.n - 1;
    struct buf args;
    int rc = 0;

    if (!at || *end != ')') return ST_INVALID;
    buf_init(&args, 2 * v.n + 64);
    buf_putc(&args, '{');
    for (const char *p = at + sizeof call - 1; p < end && rc == 0;) {
        size_t n = argument_end(p, (size_t)(end - p));
        const char *eq = memchr(p, '=', n);
        if (!eq) rc = ST_INVALID;
        struct text_view key = chat__trim(p, eq ? (size_t)(eq - p) : 0);
        if (args.len > 1) buf_putc(&args, ',');
        json_put_string(&args, key.p, key.n);
        buf_putc(&args, ':');
        if (eq) rc = put_python_value(&args, chat__trim(eq + 1, n - (size_t)(eq + 1 - p)));
        p += n + 1;
    }
    buf_putc(&args, '}');
    if (args.failed) rc = ST_INVALID;
    if (rc == 0) rc = chat__add_call(r, &(struct call_parts){v.p, args.data, NULL, (size_t)(at - v.p), args.len, 0});
    buf_clear(&args);
    return rc;
}

/* Behind <|python_tag|>: JSON as without it, a built-in tool's call, or Python code for a tool that runs it. */
int chat__parse_python_tag(struct chat_reply *r, const struct chat_mark *m, const char *p, size_t n) {
    static const char *const runners[] = {"python", "ipython", "code_interpreter"};
    struct text_view v = chat__trim(p, n);
    struct buf args;

    if (!r->final) return ST_LIMIT; /* code is complete at the end only */
    if (v.n == 0) return ST_INVALID;
    if (*v.p == '{') return chat__parse_llama(r, m, v.p, v.n);
    int rc = python_call(r, v);
    for (size_t i = 0; i < 3 && rc == ST_INVALID; i++) {
        if (!chat__find_tool(r, runners[i], strlen(runners[i]))) continue;
        buf_init(&args, 6 * v.n + 64);
        buf_puts(&args, "{\"code\":");
        json_put_string(&args, v.p, v.n);
        buf_putc(&args, '}');
        if (!args.failed) rc = chat__add_call(r, &(struct call_parts){runners[i], args.data, NULL, strlen(runners[i]), args.len, 0});
        buf_clear(&args);
    }
    return rc;
}

/* function SEP name \n fenced arguments (V3, R1), or name SEP arguments (V3.1). */
int chat__deepseek_head(const char *p, size_t n, struct call_parts *out) {
    static const char fence[] = "```";
    const char *mark = chat__syntaxes[CHAT_SYNTAX_DEEPSEEK].inner[0], *sep = chat__find(p, n, mark), *end = p + n;

    *out = (struct call_parts){0};
    if (!sep) return ST_LIMIT;
    struct text_view name = chat__trim(p, (size_t)(sep - p)), args = chat__trim(sep + strlen(mark), (size_t)(end - sep) - strlen(mark));
    if (args.n > 0 && *args.p != '{') {
        const char *line = memchr(args.p, '\n', (size_t)(end - args.p));
        if (!line) return ST_LIMIT;
        name = chat__trim(args.p, (size_t)(line - args.p));
        args = chat__trim(line, (size_t)(end - line));
        if (args.n > 0 && *args.p == *fence) {
            if (args.n >= 3 && !chat__starts(args.p, args.n, fence)) return ST_INVALID;
            line = memchr(args.p, '\n', (size_t)(end - args.p));
            if (!line) return ST_LIMIT;
            args = chat__trim(line, (size_t)(end - line));
        }
    }
    *out = (struct call_parts){.name = name.p, .n_name = name.n, .arguments = args.p, .n_arguments = args.n};
    return 0;
}

int chat__parse_deepseek(struct chat_reply *r, const struct chat_mark *m, const char *p, size_t n) {
    struct call_parts c;
    int rc = chat__deepseek_head(p, n, &c);

    (void)m;
    if (rc) return ST_INVALID;
    if (c.n_arguments >= 3 && memcmp(c.arguments + c.n_arguments - 3, "```", 3) == 0) c.n_arguments -= 3;
    return chat__add_call(r, &c);
}

/* functions.NAME:INDEX MARK arguments; the first part is also the id, which the template wants back. */
int chat__kimi_head(const char *p, size_t n, struct call_parts *out) {
    const char *mark = chat__syntaxes[CHAT_SYNTAX_KIMI].inner[0], *sep = chat__find(p, n, mark);
    static const char prefix[] = "functions.";

    *out = (struct call_parts){0};
    if (!sep) return ST_LIMIT;
    struct text_view id = chat__trim(p, (size_t)(sep - p)), name = id;
    if (chat__starts(name.p, name.n, prefix)) name.p += sizeof prefix - 1, name.n -= sizeof prefix - 1;
    const char *colon = memrchr(name.p, ':', name.n);
    if (colon) name.n = (size_t)(colon - name.p);
    sep += strlen(mark);
    *out = (struct call_parts){name.p, sep, id.p, name.n, n - (size_t)(sep - p), id.n};
    return 0;
}

int chat__parse_kimi(struct chat_reply *r, const struct chat_mark *m, const char *p, size_t n) {
    struct call_parts c;

    (void)m;
    return chat__kimi_head(p, n, &c) ? ST_INVALID : chat__add_call(r, &c);
}
