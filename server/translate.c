/* SPDX-License-Identifier: Apache-2.0
 *
 * See translate.h. */
#include "server/translate.h"

#include <stdio.h>
#include <string.h>

#include "base/status.h"

/* A translated body is at most one object deeper than what it was made of, and not four times as long. */
enum { MAX_DEPTH = PARSE_MAX_DEPTH - 2, GROWTH = 4, SLACK_BYTES = 64 * 1024, SHOWN_BYTES = 40 };

const char *const translate_passed[TRANSLATE_N_PASSED] = {
    "seed", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias",
    "min_tokens", "stop_token_ids", "ignore_eos", "cache_prompt", "lossy_experts", "chat_template_kwargs",
    "priority", "timeout", "t_max_predict_ms",
};

void translate_open(struct translate *t, struct parse_error *e, size_t n_bytes) {
    struct buf *all[] = {&t->out, &t->text, &t->reasoning, &t->calls, &t->scratch};

    *t = (struct translate){.p = {.e = e}};
    *e = (struct parse_error){0};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) buf_init(all[i], n_bytes * GROWTH + SLACK_BYTES);
}

void translate_close(struct translate *t) {
    buf_clear(&t->out);
    buf_clear(&t->text);
    buf_clear(&t->reasoning);
    buf_clear(&t->calls);
    buf_clear(&t->scratch);
}

/* ---- reading ---- */

static bool literal_is(struct translate *t, const char *p, size_t n, const char *text) {
    size_t len = strlen(text);

    if (!memchr(p, '\\', n)) return n == len + 2 && memcmp(p + 1, text, len) == 0;
    buf_reset(&t->scratch);
    json_put_unescaped(&t->scratch, p, n);
    return t->scratch.len == len && memcmp(t->scratch.data, text, len) == 0;
}

static void drop_null(struct json_member *m) {
    if (m->value && *m->value == 'n') m->value = NULL;
}

int translate_fields(struct translate *t, const char *body, size_t n_bytes, const char *const *names, int n_names, struct json_member *out) {
    static const struct json_limits limits = {MAX_DEPTH, PARSE_MAX_NODES};
    struct json_member item;
    struct err why;
    size_t at = 0;

    if (json_prescan(body, n_bytes, &limits, &why)) parse__fail(&t->p, NULL, "the body is not acceptable JSON: %s", why.text);
    else if (body[strspn(body, " \t\r\n")] != '{') parse__fail(&t->p, NULL, "the body must be a JSON object");
    if (t->p.e->status) {
        t->p.e->code = "invalid_json";
        return ST_INVALID;
    }
    while (json_next(body, n_bytes, &at, &item)) {
        for (int k = 0; k < n_names; k++) {
            if (!literal_is(t, item.key, item.n_key, names[k])) continue;
            if (out[k].key) return parse__fail(&t->p, names[k], "is given twice");
            out[k] = item;
        }
    }
    for (int k = 0; k < n_names; k++) drop_null(&out[k]);
    return 0;
}

struct json_member translate_member(struct translate *t, const struct json_member *object, const char *name) {
    struct json_member item, found = {0};
    size_t at = 0;

    if (!object->value || *object->value != '{') return found;
    while (json_next(object->value, object->n_value, &at, &item)) {
        if (literal_is(t, item.key, item.n_key, name)) found = item;
    }
    drop_null(&found);
    return found;
}

bool translate_is_string(const struct json_member *v) {
    return v->value && *v->value == '"';
}

bool translate_is(struct translate *t, const struct json_member *v, const char *text) {
    return translate_is_string(v) && literal_is(t, v->value, v->n_value, text);
}

const char *translate_show(struct translate *t, const struct json_member *v) {
    buf_reset(&t->scratch);
    if (translate_is_string(v)) json_put_unescaped(&t->scratch, v->value, v->n_value);
    if (t->scratch.len > SHOWN_BYTES) t->scratch.len = SHOWN_BYTES;
    buf_putc(&t->scratch, '\0');
    return t->scratch.failed ? "" : t->scratch.data;
}

/* ---- writing ---- */

void translate_begin(struct translate *t, const char *role) {
    if (t->role && strcmp(t->role, role) == 0) return;
    translate_end(t);
    t->role = role;
}

static void put_separator(struct translate *t) {
    if (t->any) buf_putc(&t->out, ',');
    t->any = true;
}

/* The texts collected, as parts. */
static void put_texts(struct translate *t, const char *none) {
    if (t->text.len == 0) {
        buf_puts(&t->out, none);
    } else {
        buf_putc(&t->out, '[');
        buf_append(&t->out, t->text.data, t->text.len);
        buf_putc(&t->out, ']');
    }
    if (t->text.failed) t->out.failed = true;
    buf_reset(&t->text);
}

void translate_end(struct translate *t) {
    if (!t->role) return;
    put_separator(t);
    buf_printf(&t->out, "{\"role\":\"%s\",\"content\":", t->role);
    put_texts(t, t->calls.len > 0 ? "null" : "\"\"");
    if (t->reasoning.len > 0) {
        buf_puts(&t->out, ",\"reasoning_content\":\"");
        buf_append(&t->out, t->reasoning.data, t->reasoning.len);
        buf_putc(&t->out, '"');
    }
    if (t->calls.len > 0) {
        buf_puts(&t->out, ",\"tool_calls\":[");
        buf_append(&t->out, t->calls.data, t->calls.len);
        buf_putc(&t->out, ']');
    }
    buf_putc(&t->out, '}');
    if (t->reasoning.failed || t->calls.failed) t->out.failed = true;
    buf_reset(&t->reasoning);
    buf_reset(&t->calls);
    t->role = NULL;
}

static void put_literal(struct buf *out, const struct json_member *v) {
    buf_append(out, v->value, v->n_value);
}

void translate_text(struct translate *t, const struct json_member *text) {
    buf_puts(&t->text, t->text.len > 0 ? ",{\"type\":\"text\",\"text\":" : "{\"type\":\"text\",\"text\":");
    put_literal(&t->text, text);
    buf_putc(&t->text, '}');
}

/* Literals without their quotes join as their texts do. */
void translate_reasoning(struct translate *t, const struct json_member *text) {
    buf_append(&t->reasoning, text->value + 1, text->n_value - 2);
}

void translate_call(struct translate *t, const struct json_member *id, const struct json_member *name, const struct json_member *arguments) {
    buf_puts(&t->calls, t->calls.len > 0 ? ",{\"type\":\"function\",\"id\":" : "{\"type\":\"function\",\"id\":");
    put_literal(&t->calls, id);
    buf_puts(&t->calls, ",\"function\":{\"name\":");
    put_literal(&t->calls, name);
    if (arguments->value) buf_puts(&t->calls, ",\"arguments\":");
    if (arguments->value) put_literal(&t->calls, arguments);
    buf_puts(&t->calls, "}}");
}

void translate_result(struct translate *t, const struct json_member *id) {
    put_separator(t);
    buf_puts(&t->out, "{\"role\":\"tool\",\"tool_call_id\":");
    put_literal(&t->out, id);
    buf_puts(&t->out, ",\"content\":");
    put_texts(t, "\"\"");
    buf_putc(&t->out, '}');
}

void translate_put(struct translate *t, const char *name, const struct json_member *v) {
    if (!v->value) return;
    buf_printf(&t->out, ",\"%s\":", name);
    put_literal(&t->out, v);
}

/* ---- the chat request ---- */

/* "messages[3].content: text" becomes "input: text". */
static void rename_param(struct parse_error *e, const struct translate_name *names, size_t n) {
    size_t root = strcspn(e->param, "["), len = strlen(e->param);
    char text[sizeof e->message];

    for (size_t i = 0; i < n; i++) {
        if (strlen(names[i].chat) != root || memcmp(names[i].chat, e->param, root) != 0) continue;
        const char *rest = strncmp(e->message, e->param, len) == 0 ? e->message + len : NULL;
        snprintf(text, sizeof text, "%s%.400s", names[i].here, rest ? rest : "");
        if (rest) memcpy(e->message, text, sizeof text);
        snprintf(e->param, sizeof e->param, "%s", names[i].here);
        return;
    }
}

int translate_parse(struct translate *t, int (*parse)(const struct parse_env *env, const char *body, size_t n_bytes, struct arena *a, struct gen_params *out, struct parse_error *e),
                    const struct parse_env *env, struct arena *a, struct gen_params *out, const struct translate_name *names, size_t n) {
    if (t->out.failed) return parse__no_memory(&t->p);
    int rc = parse(env, t->out.data, t->out.len, a, out, t->p.e);
    if (rc) rename_param(t->p.e, names, n);
    return rc;
}
