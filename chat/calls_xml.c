/* SPDX-License-Identifier: Apache-2.0
 *
 * Tool calls whose arguments are written one by one between tags: Qwen3-Coder, GLM, MiniMax, DeepSeek V4. A value is
 * text; whether it means a string or JSON is in the tool's schema, or in an attribute. See reply_internal.h. */
#include <stdio.h>
#include <string.h>

#include "chat/reply_internal.h"

/* One line break on either side belongs to the markup. */
static struct text_view unline(const char *p, size_t n) {
    if (n > 0 && *p == '\n') p++, n--;
    if (n > 0 && p[n - 1] == '\n') n--;
    return (struct text_view){p, n};
}

/* What the schema says of a parameter; -1 when it says nothing. */
static int is_string_param(const struct chat_tool *t, struct text_view name) {
    for (uint32_t i = 0; t && i < t->n_params; i++) {
        if (strlen(t->params[i].name) == name.n && memcmp(t->params[i].name, name.p, name.n) == 0) return t->params[i].is_string;
    }
    return -1;
}

static void put_value(struct buf *out, struct text_view v, bool as_string) {
    struct text_view t = chat__trim(v.p, v.n);
    size_t used;

    if (!as_string && t.n == 4 && memcmp(t.p, "True", 4) == 0) buf_puts(out, "true");
    else if (!as_string && t.n == 5 && memcmp(t.p, "False", 5) == 0) buf_puts(out, "false");
    else if (!as_string && t.n == 4 && memcmp(t.p, "None", 4) == 0) buf_puts(out, "null");
    else if (!as_string && t.n > 0 && json_scan_value(t.p, t.n, &chat__json_limits, &used) == 0 && used == t.n) buf_append(out, t.p, t.n);
    else json_put_string(out, v.p, v.n);
}

static void put_pair(struct buf *args, struct text_view key, struct text_view value, bool as_string) {
    buf_puts(args, args->len > 0 && args->data[args->len - 1] != '{' ? ", " : "");
    json_put_string(args, key.p, key.n);
    buf_puts(args, ": ");
    put_value(args, value, as_string);
}

static int finish_call(struct chat_reply *r, struct text_view name, struct buf *args, int rc) {
    buf_putc(args, '}');
    if (rc == 0 && args->failed) rc = ST_INVALID;
    if (rc == 0) rc = chat__add_call(r, &(struct call_parts){name.p, args->data, NULL, name.n, args->len, 0});
    buf_clear(args);
    return rc;
}

static void begin_args(struct buf *args, size_t n) {
    buf_init(args, 8 * n + 1024);
    buf_putc(args, '{');
}

/* <parameter=KEY> VALUE </parameter> */
int chat__take_parameter(const struct chat_tool *tool, struct text_view *rest, struct buf *args) {
    static const char open[] = "<parameter=", close[] = "</parameter>";
    const char *end = rest->p + rest->n;
    struct text_view v = chat__trim(rest->p, rest->n);

    if (!chat__starts(v.p, v.n, open)) return ST_INVALID;
    const char *key = v.p + sizeof open - 1, *stop = memchr(key, '>', (size_t)(end - key));
    const char *last = stop ? chat__find(stop, (size_t)(end - stop), close) : NULL;
    if (!last) return ST_LIMIT;
    struct text_view k = chat__trim(key, (size_t)(stop - key));
    put_pair(args, k, unline(stop + 1, (size_t)(last - stop - 1)), is_string_param(tool, k) != 0);
    rest->p = last + sizeof close - 1;
    rest->n = (size_t)(end - rest->p);
    return 0;
}

/* NAME> and parameters */
int chat__parse_function_tag(struct chat_reply *r, const struct chat_mark *m, const char *p, size_t n) {
    const char *gt = memchr(p, '>', n);
    struct buf args;
    int rc = 0;

    (void)m;
    if (!gt) return ST_LIMIT;
    struct text_view name = chat__trim(p, (size_t)(gt - p)), rest = {gt + 1, n - (size_t)(gt + 1 - p)};
    const struct chat_tool *tool = chat__find_tool(r, name.p, name.n);
    begin_args(&args, n);
    while (rc == 0 && chat__trim(rest.p, rest.n).n > 0) rc = chat__take_parameter(tool, &rest, &args);
    return finish_call(r, name, &args, rc);
}

/* <arg_key>KEY</arg_key> <arg_value>VALUE</arg_value> */
int chat__take_arg_pair(const struct chat_tool *tool, struct text_view *rest, struct buf *args) {
    static const char *const tags[4] = {"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"};
    const char *end = rest->p + rest->n;
    struct text_view v = chat__trim(rest->p, rest->n);
    const char *at[4] = {v.p};

    if (!chat__starts(v.p, v.n, tags[0])) return ST_INVALID;
    for (int i = 1; i < 4; i++) {
        const char *from = at[i - 1] + strlen(tags[i - 1]);
        if (!(at[i] = chat__find(from, (size_t)(end - from), tags[i]))) return ST_LIMIT;
    }
    struct text_view key = chat__trim(at[0] + 9, (size_t)(at[1] - at[0] - 9));
    put_pair(args, key, (struct text_view){at[2] + 11, (size_t)(at[3] - at[2] - 11)}, is_string_param(tool, key) != 0);
    rest->p = at[3] + strlen(tags[3]);
    rest->n = (size_t)(end - rest->p);
    return 0;
}

/* NAME and pairs */
int chat__parse_arg_pairs(struct chat_reply *r, const char *p, size_t n) {
    const char *first = chat__find(p, n, "<arg_key>"), *end = p + n;
    struct text_view name = chat__trim(p, first ? (size_t)(first - p) : n), rest = {first ? first : end, first ? (size_t)(end - first) : 0};
    const struct chat_tool *tool = chat__find_tool(r, name.p, name.n);
    struct buf args;
    int rc = 0;

    if (!first && !tool) return ST_INVALID; /* only words */
    begin_args(&args, n);
    while (rc == 0 && chat__trim(rest.p, rest.n).n > 0) rc = chat__take_arg_pair(tool, &rest, &args);
    return finish_call(r, name, &args, rc);
}

/* ---- <invoke name="f"><parameter name="p" string="true">v</parameter></invoke> ---- */

/* A tag `<`, prefix, word at the start of *v; *v goes behind it, *attrs gets what stands in it. */
static int take_tag(struct text_view *v, const char *prefix, const char *word, struct text_view *attrs) {
    size_t n_prefix = strlen(prefix), n_word = strlen(word);
    const char *p = v->p + 1;

    if (v->n == 0) return ST_LIMIT;
    if (*v->p != '<' || v->n < 2 + n_prefix + n_word || memcmp(p, prefix, n_prefix) != 0 || memcmp(p + n_prefix, word, n_word) != 0) return ST_INVALID;
    p += n_prefix + n_word;
    const char *gt = memchr(p, '>', v->n - (size_t)(p - v->p));
    if (!gt) return ST_LIMIT;
    *attrs = chat__trim(p, (size_t)(gt - p));
    *v = chat__trim(gt + 1, v->n - (size_t)(gt + 1 - v->p));
    return 0;
}

/* The value of name="..."; empty when there is none. */
static struct text_view attribute(struct text_view attrs, const char *name) {
    size_t n = strlen(name);

    for (const char *p = attrs.p, *end = p + attrs.n; (p = chat__find(p, (size_t)(end - p), name)); p += n) {
        const char *q = p + n;
        if (end - q < 2 || q[0] != '=' || q[1] != '"' || (p > attrs.p && !chat__space(p[-1]))) continue;
        const char *close = memchr(q + 2, '"', (size_t)(end - q - 2));
        return close ? (struct text_view){q + 2, (size_t)(close - q - 2)} : (struct text_view){0};
    }
    return (struct text_view){0};
}

int chat__take_invoke_parameter(const struct chat_tool *tool, struct text_view *rest, const char *prefix, struct buf *args) {
    struct text_view attrs, v = *rest;
    const char *from, *end = v.p + v.n;
    char close[48];
    int rc = take_tag(&v, prefix, "parameter", &attrs);

    if (rc) return rc;
    snprintf(close, sizeof close, "</%sparameter>", prefix);
    from = memchr(attrs.p + attrs.n, '>', (size_t)(end - attrs.p) - attrs.n);
    const char *last = chat__find(from, (size_t)(end - from), close);
    if (!last) return ST_LIMIT;
    struct text_view key = attribute(attrs, "name"), string = attribute(attrs, "string");
    bool as_string = string.n > 0 ? chat__starts(string.p, string.n, "true") : is_string_param(tool, key) != 0;
    if (key.n == 0) return ST_INVALID;
    struct text_view value = {from + 1, (size_t)(last - from - 1)};
    put_pair(args, key, string.n > 0 ? value : unline(value.p, value.n), as_string);
    *rest = chat__trim(last + strlen(close), (size_t)(end - last) - strlen(close));
    return 0;
}

const char *chat__invoke_prefix(const struct chat_mark *m) {
    const char *dsml = chat__syntaxes[CHAT_SYNTAX_INVOKE].inner[0];

    return chat__find(m->open, strlen(m->open), dsml) ? dsml : "";
}

int chat__take_invoke(struct text_view *rest, const char *prefix, struct text_view *name) {
    struct text_view attrs, v = *rest;
    int rc = take_tag(&v, prefix, "invoke", &attrs);

    if (rc) return rc;
    *name = attribute(attrs, "name");
    *rest = v;
    return 0;
}

int chat__take_invoke_end(struct text_view *rest, const char *prefix) {
    struct text_view none, v = *rest;
    char close[32];

    snprintf(close, sizeof close, "/%s", prefix);
    int rc = take_tag(&v, close, "invoke", &none);
    if (rc == 0) *rest = v;
    return rc;
}

int chat__parse_invoke(struct chat_reply *r, const struct chat_mark *m, const char *p, size_t n) {
    const char *prefix = chat__invoke_prefix(m);
    struct text_view v = chat__trim(p, n), name;
    int rc = v.n == 0 ? ST_INVALID : 0;

    while (rc == 0 && v.n > 0) {
        struct buf args;
        if ((rc = chat__take_invoke(&v, prefix, &name))) break;
        const struct chat_tool *tool = chat__find_tool(r, name.p, name.n);
        begin_args(&args, n);
        while (rc == 0 && !chat__starts(v.p, v.n, "</")) rc = chat__take_invoke_parameter(tool, &v, prefix, &args);
        if (rc == 0) rc = chat__take_invoke_end(&v, prefix);
        rc = finish_call(r, name, &args, rc);
    }
    return rc;
}
