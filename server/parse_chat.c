/* SPDX-License-Identifier: Apache-2.0
 *
 * The body of POST /v1/chat/completions: messages checked and made into values, the model's template rendered over them,
 * the result as token ids. See parse_req.h for the rules.
 *
 * Messages are read from the text of the body, not from the tree: members keep their order and numbers their form. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "model/tokenizer.h"
#include "server/json_value.h"
#include "server/parse_chat.h"

enum { VALUES_BYTES = 256 * 1024 * 1024 }; /* of messages and tools as values; gone after the parse */

enum role { ROLE_SYSTEM, ROLE_DEVELOPER, ROLE_USER, ROLE_ASSISTANT, ROLE_TOOL, N_ROLES };
static const char *const role_name[N_ROLES] = {"system", "developer", "user", "assistant", "tool"};

struct message {
    enum role role;
    struct json_member content, calls, call_id, reasoning; /* value NULL = absent or null */
    bool has_reasoning_content;
    uint32_t index;
};

/* ---- helpers ---- */

static int fail_at(struct chat_parse *c, uint32_t i, const char *member, const char *fmt, const char *detail) {
    char param[64], text[300];

    snprintf(param, sizeof param, "messages[%u]%s%s", i, *member ? "." : "", member);
    snprintf(text, sizeof text, fmt, detail);
    return parse__fail(c->p, param, "%s", text);
}

static bool is_null(const struct json_member *m) {
    return !m->value || *m->value == 'n';
}

/* The unescaped string literal; valid until the next call. */
const char *parse__literal(struct chat_parse *c, const char *p, size_t n, size_t *len) {
    buf_reset(&c->scratch);
    json_put_unescaped(&c->scratch, p, n);
    buf_putc(&c->scratch, '\0');
    c->lost |= c->scratch.failed;
    *len = c->scratch.failed ? 0 : c->scratch.len - 1;
    return c->scratch.failed ? "" : c->scratch.data;
}

static bool literal_is(struct chat_parse *c, const char *p, size_t n, const char *want) {
    size_t len;
    const char *s = parse__literal(c, p, n, &len);

    return strlen(want) == len && memcmp(s, want, len) == 0;
}

int parse__set(struct chat_parse *c, struct chat_value dict, const char *key, struct chat_value v) {
    return chat_dict_set(&c->values, dict, key, strlen(key), CHAT_TRUSTED, v) ? parse__no_memory(c->p) : 0;
}

struct chat_value parse__string(struct chat_parse *c, const char *s) {
    return chat_string(&c->values, s, strlen(s), CHAT_TRUSTED);
}

/* ---- content ---- */

/* {"type": "text", "text": "..."} appended to `out`. */
static int add_part(struct chat_parse *c, const struct message *m, uint32_t k, const struct json_member *part, struct buf *out) {
    struct json_member type = {0}, text = {0}, item;
    char member[40];
    size_t at = 0, n;

    snprintf(member, sizeof member, "content[%u]", k);
    if (*part->value != '{') return fail_at(c, m->index, member, "must be an object with a type%s", "");
    while (json_next(part->value, part->n_value, &at, &item)) {
        if (literal_is(c, item.key, item.n_key, "type")) type = item;
        if (literal_is(c, item.key, item.n_key, "text")) text = item;
    }
    snprintf(member, sizeof member, "content[%u].type", k);
    if (is_null(&type) || *type.value != '"') return fail_at(c, m->index, member, "must be a string%s", "");
    if (!literal_is(c, type.value, type.n_value, "text"))
        return fail_at(c, m->index, member, "\"%.40s\" is not supported: this model reads text only", parse__literal(c, type.value, type.n_value, &n));
    snprintf(member, sizeof member, "content[%u].text", k);
    if (is_null(&text) || *text.value != '"') return fail_at(c, m->index, member, "must be a string%s", "");
    if (k > 0) buf_putc(out, '\n');
    json_put_unescaped(out, text.value, text.n_value);
    return out->failed ? parse__no_memory(c->p) : 0;
}

static int parts(struct chat_parse *c, const struct message *m, struct chat_value *out) {
    struct json_member part;
    struct buf text;
    size_t at = 0;
    uint32_t k = 0;
    int rc = 0;

    buf_init(&text, m->content.n_value);
    while (rc == 0 && json_next(m->content.value, m->content.n_value, &at, &part)) rc = add_part(c, m, k++, &part, &text);
    if (rc == 0 && k == 0) rc = fail_at(c, m->index, "content", "must not be an empty list%s", "");
    if (rc == 0) *out = chat_string(&c->values, text.len ? text.data : "", text.len, CHAT_REQUEST);
    buf_clear(&text);
    return rc;
}

static int put_content(struct chat_parse *c, const struct message *m, struct chat_value dict) {
    struct chat_value v = chat_none();
    int rc = 0;

    if (is_null(&m->content)) {
        if (m->role != ROLE_ASSISTANT || (is_null(&m->calls) && is_null(&m->reasoning))) return fail_at(c, m->index, "content", "is required%s", "");
    } else if (*m->content.value == '[') {
        rc = parts(c, m, &v);
    } else if (*m->content.value == '"') {
        v = json_value(&c->values, m->content.value, m->content.n_value, CHAT_REQUEST);
    } else {
        return fail_at(c, m->index, "content", "must be a string or a list of text parts%s", "");
    }
    return rc ? rc : parse__set(c, dict, "content", v);
}

/* ---- tool calls of an assistant ---- */

/* JSON text of an object, or the object itself; the template gets the form it wants. */
static int call_arguments(struct chat_parse *c, uint32_t i, const struct json_member *m, struct chat_value *out) {
    static const struct json_limits limits = {PARSE_MAX_DEPTH - 8, PARSE_MAX_NODES};
    bool as_text = c->p->env->chat->string_arguments;
    const char *text = m->value;
    size_t n = m->n_value;
    struct err why;

    if (is_null(m)) text = "{}", n = 2;
    if (*text == '"') {
        text = parse__literal(c, text, n, &n);
        if (n == 0) text = "{}", n = 2;
        if (json_prescan(text, n, &limits, &why)) return fail_at(c, i, "tool_calls", "arguments must be JSON: %.200s", why.text);
    }
    while (n > 0 && strchr(" \t\r\n", *text)) text++, n--;
    if (*text != '{') return fail_at(c, i, "tool_calls", "arguments must be a JSON object%s", "");
    *out = as_text ? chat_string(&c->values, text, n, CHAT_REQUEST) : json_value(&c->values, text, n, CHAT_REQUEST);
    return 0;
}

static int check_call(struct chat_parse *c, uint32_t i, const struct json_member *type, const struct json_member *id) {
    if (!is_null(type) && (*type->value != '"' || !literal_is(c, type->value, type->n_value, "function")))
        return fail_at(c, i, "tool_calls", "the type of a call must be \"function\"%s", "");
    return is_null(id) || *id->value == '"' ? 0 : fail_at(c, i, "tool_calls", "an id must be a string%s", "");
}

static int one_call(struct chat_parse *c, uint32_t i, const struct json_member *m, struct chat_value list) {
    struct json_member item, function = {0}, name = {0}, args = {0}, id = {0}, type = {0};
    struct chat_value call = chat_dict(&c->values), f = chat_dict(&c->values), v;
    size_t at = 0;
    int rc;

    if (*m->value != '{') return fail_at(c, i, "tool_calls", "must be a list of objects%s", "");
    while (json_next(m->value, m->n_value, &at, &item)) {
        if (literal_is(c, item.key, item.n_key, "function")) function = item;
        if (literal_is(c, item.key, item.n_key, "id")) id = item;
        if (literal_is(c, item.key, item.n_key, "type")) type = item;
    }
    if ((rc = check_call(c, i, &type, &id))) return rc;
    if (is_null(&function) || *function.value != '{') return fail_at(c, i, "tool_calls", "every call needs a function%s", "");
    for (at = 0; json_next(function.value, function.n_value, &at, &item);) {
        if (literal_is(c, item.key, item.n_key, "name")) name = item;
        if (literal_is(c, item.key, item.n_key, "arguments")) args = item;
    }
    if (is_null(&name) || *name.value != '"') return fail_at(c, i, "tool_calls", "every function needs a name%s", "");
    if ((rc = call_arguments(c, i, &args, &v))) return rc;
    rc = parse__set(c, f, "name", json_value(&c->values, name.value, name.n_value, CHAT_REQUEST));
    if (rc == 0) rc = parse__set(c, f, "arguments", v);
    if (rc == 0 && !is_null(&id)) rc = parse__set(c, call, "id", json_value(&c->values, id.value, id.n_value, CHAT_REQUEST));
    if (rc == 0) rc = parse__set(c, call, "type", parse__string(c, "function"));
    if (rc == 0) rc = parse__set(c, call, "function", f);
    if (rc == 0 && chat_list_push(&c->values, list, call)) rc = parse__no_memory(c->p);
    return rc;
}

static int put_calls(struct chat_parse *c, const struct message *m, struct chat_value dict) {
    struct chat_value list = chat_list(&c->values);
    struct json_member item;
    size_t at = 0;
    int rc = 0;

    if (is_null(&m->calls)) return 0;
    if (*m->calls.value != '[') return fail_at(c, m->index, "tool_calls", "must be a list%s", "");
    while (rc == 0 && json_next(m->calls.value, m->calls.n_value, &at, &item)) rc = one_call(c, m->index, &item, list);
    if (rc || chat_list_len(list) == 0) return rc;
    return parse__set(c, dict, "tool_calls", list);
}

/* ---- messages ---- */

static int find_role(struct chat_parse *c, struct message *m, const struct json_member *v) {
    size_t n;

    if (!v->value) return fail_at(c, m->index, "role", "is required%s", "");
    if (*v->value != '"') return fail_at(c, m->index, "role", "must be a string%s", "");
    for (int k = 0; k < N_ROLES; k++) {
        if (!literal_is(c, v->value, v->n_value, role_name[k])) continue;
        m->role = (enum role)k;
        return 0;
    }
    return fail_at(c, m->index, "role", "\"%.40s\" is none of system, developer, user, assistant and tool", parse__literal(c, v->value, v->n_value, &n));
}

/* Members that have no rule of their own go to the template as they are, null ones as if absent. */
static int put_others(struct chat_parse *c, const struct json_member *m, struct chat_value dict) {
    static const char *const known[] = {"role", "content", "tool_calls", "reasoning"};
    struct json_member item;
    size_t at = 0, n;

    while (json_next(m->value, m->n_value, &at, &item)) {
        const char *key = parse__literal(c, item.key, item.n_key, &n);
        bool skip = is_null(&item);
        for (size_t k = 0; k < sizeof known / sizeof *known; k++) skip |= strcmp(key, known[k]) == 0;
        if (skip) continue;
        if (chat_dict_set(&c->values, dict, key, n, CHAT_REQUEST, json_value(&c->values, item.value, item.n_value, CHAT_REQUEST))) return parse__no_memory(c->p);
    }
    return 0;
}

static int put_reasoning(struct chat_parse *c, const struct message *m, struct chat_value dict) {
    int rc = 0;

    if (is_null(&m->reasoning) || m->role != ROLE_ASSISTANT) return 0;
    if (*m->reasoning.value != '"') return fail_at(c, m->index, "reasoning_content", "must be a string%s", "");
    struct chat_value v = json_value(&c->values, m->reasoning.value, m->reasoning.n_value, CHAT_REQUEST);
    if (!m->has_reasoning_content) rc = parse__set(c, dict, "reasoning_content", v);
    if (rc == 0 && chat_template_mentions(c->tmpl, "thinking")) rc = parse__set(c, dict, "thinking", v); /* gpt-oss */
    return rc;
}

/* The members of a message that have rules. */
static void find_members(struct chat_parse *c, const struct json_member *value, struct message *m, struct json_member *role) {
    struct json_member item;
    size_t at = 0;

    while (json_next(value->value, value->n_value, &at, &item)) {
        if (literal_is(c, item.key, item.n_key, "role")) *role = item;
        else if (literal_is(c, item.key, item.n_key, "content")) m->content = item;
        else if (literal_is(c, item.key, item.n_key, "tool_calls")) m->calls = item;
        else if (literal_is(c, item.key, item.n_key, "tool_call_id")) m->call_id = item;
        else if (literal_is(c, item.key, item.n_key, "reasoning_content")) m->reasoning = item, m->has_reasoning_content = !is_null(&item);
        else if (literal_is(c, item.key, item.n_key, "reasoning") && is_null(&m->reasoning)) m->reasoning = item;
    }
    at = 0;
    if (!is_null(&m->calls) && *m->calls.value == '[' && !json_next(m->calls.value, m->calls.n_value, &at, &item)) m->calls = (struct json_member){0}; /* no call is no calls */
}

static int take_message(struct chat_parse *c, uint32_t index, const struct json_member *value) {
    struct message m = {.index = index};
    struct json_member role = {0};
    struct chat_value dict = chat_dict(&c->values);
    int rc;

    if (*value->value != '{') return fail_at(c, index, "", "must be an object%s", "");
    find_members(c, value, &m, &role);
    if ((rc = find_role(c, &m, &role))) return rc;
    if (m.role == ROLE_TOOL && (is_null(&m.call_id) || *m.call_id.value != '"')) return fail_at(c, index, "tool_call_id", "a tool message needs the id of the call it answers%s", "");
    if (m.role == ROLE_DEVELOPER && !chat_template_mentions(c->tmpl, "developer")) m.role = ROLE_SYSTEM;
    rc = parse__set(c, dict, "role", parse__string(c, role_name[m.role]));
    if (rc == 0) rc = put_content(c, &m, dict);
    if (rc == 0) rc = put_calls(c, &m, dict);
    if (rc == 0) rc = put_others(c, value, dict);
    if (rc == 0) rc = put_reasoning(c, &m, dict);
    if (rc == 0 && index == 0 && c->tools_text.type == CHAT_STRING) rc = parse__tools_in_system(c, dict);
    if (rc == 0 && chat_list_push(&c->values, c->messages, dict)) rc = parse__no_memory(c->p);
    c->n_last_assistant = m.role == ROLE_ASSISTANT ? c->n_last_assistant + 1 : 0;
    c->last_has_calls = !is_null(&m.calls) && m.role == ROLE_ASSISTANT;
    return rc;
}

static int take_messages(struct chat_parse *c, const struct fields *f) {
    const struct json_member *raw = &f->raw[F_MESSAGES];
    struct json_member item;
    size_t at = 0;
    uint32_t n = 0;
    int rc = 0;

    if (!f->v[F_MESSAGES]) return parse__fail(c->p, "messages", "is required");
    if (*raw->value != '[') return parse__fail(c->p, "messages", "must be a list");
    while (rc == 0 && json_next(raw->value, raw->n_value, &at, &item)) rc = take_message(c, n++, &item);
    if (rc == 0 && n == 0) rc = parse__fail(c->p, "messages", "must not be empty");
    if (rc == 0 && c->n_last_assistant > 1) rc = parse__fail(c->p, "messages", "two assistant messages at the end: there is nothing to answer, and only one can be continued");
    return rc;
}

/* ---- how the prompt ends ---- */

static int take_ending(struct chat_parse *c, const struct fields *f) {
    bool generate = true, go_on = false;
    int rc;

    if ((rc = parse__bool_field(c->p, f, F_ADD_GENERATION_PROMPT, &generate))) return rc;
    if ((rc = parse__bool_field(c->p, f, F_CONTINUE_FINAL_MESSAGE, &go_on))) return rc;
    if (go_on && generate && f->v[F_ADD_GENERATION_PROMPT])
        return parse__fail(c->p, "continue_final_message", "and add_generation_prompt cannot both be true");
    bool prefilled = c->n_last_assistant == 1 && !c->last_has_calls;
    if (!f->v[F_CONTINUE_FINAL_MESSAGE] && !f->v[F_ADD_GENERATION_PROMPT]) go_on = prefilled;
    c->continues = go_on;
    return parse__set(c, c->vars, "add_generation_prompt", chat_bool(generate && !go_on));
}

/* ---- template variables ---- */

static int take_kwargs(struct chat_parse *c, const struct fields *f) {
    static const char *const ours[] = {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "bos_token", "eos_token"};
    const struct json_member *raw = &f->raw[F_CHAT_TEMPLATE_KWARGS];
    struct json_member item;
    size_t at = 0, n;

    if (!f->v[F_CHAT_TEMPLATE_KWARGS]) return 0;
    if (*raw->value != '{') return parse__fail(c->p, "chat_template_kwargs", "must be an object");
    while (json_next(raw->value, raw->n_value, &at, &item)) {
        const char *key = parse__literal(c, item.key, item.n_key, &n);
        for (size_t k = 0; k < sizeof ours / sizeof *ours; k++) {
            if (strcmp(key, ours[k]) == 0) return parse__fail(c->p, "chat_template_kwargs", "must not hold %s: the request has a field for it", key);
        }
        if (chat_dict_set(&c->values, c->vars, key, n, CHAT_REQUEST, json_value(&c->values, item.value, item.n_value, CHAT_REQUEST))) return parse__no_memory(c->p);
    }
    return 0;
}

static int set_thinking(struct chat_parse *c, bool on) {
    int rc = parse__set(c, c->vars, "enable_thinking", chat_bool(on));

    return rc ? rc : parse__set(c, c->vars, "thinking", chat_bool(on));
}

/* {"type": "enabled" | "disabled", "budget_tokens": n}, or a bool. */
static int take_thinking_object(struct chat_parse *c, const cJSON *v) {
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(v, "type"), *budget = cJSON_GetObjectItemCaseSensitive(v, "budget_tokens");
    int64_t n;

    if (cJSON_IsBool(v)) return set_thinking(c, cJSON_IsTrue(v));
    if (!cJSON_IsObject(v)) return parse__fail(c->p, "thinking", "must be true, false, or an object with a type");
    if (budget && !cJSON_IsNull(budget)) {
        if (!parse__integer(budget, &n) || n < 0 || n > INT32_MAX) return parse__fail(c->p, "thinking", "budget_tokens must be an integer from 0");
        c->p->out->chat.thinking_budget = (uint32_t)n;
    }
    if (!cJSON_IsString(type)) return parse__fail(c->p, "thinking", "needs a type, \"enabled\" or \"disabled\"");
    if (strcmp(type->valuestring, "adaptive") == 0 || strcmp(type->valuestring, "auto") == 0) return 0;
    if (strcmp(type->valuestring, "enabled") != 0 && strcmp(type->valuestring, "disabled") != 0)
        return parse__fail(c->p, "thinking", "type must be \"enabled\" or \"disabled\"");
    return set_thinking(c, *type->valuestring == 'e');
}

static int take_reasoning(struct chat_parse *c, const struct fields *f) {
    struct gen_chat *chat = &c->p->out->chat;
    const cJSON *effort = f->v[F_REASONING_EFFORT], *format = f->v[F_REASONING_FORMAT];
    bool on = true, include = true;
    int rc = 0;

    chat->thinking_budget = UINT32_MAX;
    if (effort && !cJSON_IsString(effort)) return parse__fail(c->p, "reasoning_effort", "must be a string");
    if (effort && strcmp(effort->valuestring, "none") == 0) rc = set_thinking(c, false);
    else if (effort) rc = parse__set(c, c->vars, "reasoning_effort", chat_string(&c->values, effort->valuestring, strlen(effort->valuestring), CHAT_REQUEST));
    if (rc == 0 && f->v[F_THINKING]) rc = take_thinking_object(c, f->v[F_THINKING]);
    if (rc == 0) rc = parse__bool_field(c->p, f, F_ENABLE_THINKING, &on);
    if (rc == 0 && f->v[F_ENABLE_THINKING]) rc = set_thinking(c, on);
    if (rc == 0) rc = parse__u32(c->p, f, F_THINKING_BUDGET, 0, INT32_MAX, &chat->thinking_budget);
    if (rc == 0) rc = parse__bool_field(c->p, f, F_INCLUDE_REASONING, &include);
    chat->hide_reasoning = !include;
    if (rc || !format) return rc;
    if (!cJSON_IsString(format)) return parse__fail(c->p, "reasoning_format", "must be a string");
    if (strcmp(format->valuestring, "none") == 0) chat->dialect.think = NULL;
    else if (strcmp(format->valuestring, "auto") != 0 && strcmp(format->valuestring, "deepseek") != 0)
        return parse__fail(c->p, "reasoning_format", "must be \"auto\", \"deepseek\" or \"none\"");
    return 0;
}

static int set_tokens(struct chat_parse *c) {
    const struct chat_model *m = c->p->env->chat;
    int rc = parse__set(c, c->vars, "messages", c->messages);

    if (rc == 0) rc = parse__set(c, c->vars, "documents", chat_none());
    if (rc == 0) rc = parse__set(c, c->vars, "bos_token", parse__string(c, m->bos));
    return rc ? rc : parse__set(c, c->vars, "eos_token", parse__string(c, m->eos));
}

/* ---- the prompt ---- */

static int template_failed(struct chat_parse *c, int rc, const struct chat_error *e) {
    if (e->kind == CHAT_ERROR_MEMORY) return parse__no_memory(c->p);
    if (e->kind == CHAT_ERROR_RAISED) parse__fail(c->p, "messages", "the model's chat template says: %s", e->text);
    else if (e->kind == CHAT_ERROR_CONTINUE) parse__fail(c->p, "continue_final_message", "%s", e->text);
    else parse__fail(c->p, "messages", "the model's chat template fails in line %d: %s", e->line, e->text);
    c->p->e->code = "chat_template_error";
    return rc;
}

static int encode(struct chat_parse *c, const struct chat_output *o, struct gen_prompt *out) {
    const struct tokenizer *t = c->p->env->tokenizer;
    size_t cap = tokenizer_max_ids(t, o->len) + 1;
    bool any = c->p->want == WANT_TOKENS;
    int rc = any ? 0 : parse__text_fits(c->p, "messages", o->len);

    if (rc) return rc;
    int32_t *scratch = mem_zalloc(cap, sizeof *scratch), *ids;
    int64_t n = scratch ? chat_output_encode(o, t, scratch, cap) : ST_NOMEM;
    if (n < 0) rc = parse__no_memory(c->p);
    else if (n == 0) rc = parse__fail(c->p, "messages", "the model's chat template makes an empty prompt of them");
    else if (!any) rc = parse__fits(c->p, "messages", (uint64_t)n);
    if (rc == 0 && !(ids = arena_alloc(c->p->arena, (size_t)n * sizeof *ids))) rc = parse__no_memory(c->p);
    if (rc == 0) {
        memcpy(ids, scratch, (size_t)n * sizeof *ids);
        *out = (struct gen_prompt){.ids = ids, .n_ids = (uint32_t)n};
    }
    mem_free(scratch);
    return rc;
}

/* Where a continued message stands: its own text says, not the end of the prompt. */
static bool ends_in_reasoning(const struct chat_parse *c, const struct chat_output *o) {
    const struct chat_dialect *d = &c->p->out->chat.dialect;
    size_t n = 0, open;

    if (chat_dialect_in_reasoning(d, o->text, o->len)) return true;
    if (!c->continues || !d->think) return false;
    struct chat_value last = chat_dict_get(chat_list_at(c->messages, chat_list_len(c->messages) - 1), "content");
    const char *text = last.type == CHAT_STRING ? chat_string_bytes(last, &n) : "";
    while (n > 0 && strchr(" \t\r\n", *text)) text++, n--;
    open = strlen(d->think->open);
    return n >= open && memcmp(text, d->think->open, open) == 0 && !memmem(text, n, d->think->close, strlen(d->think->close));
}

static int render(struct chat_parse *c) {
    struct gen_prompt *prompt = arena_zalloc(c->p->arena, 1, sizeof *prompt);
    struct chat_render r = {.vars = c->vars, .now_s = clock_unix_s(), .continue_final_message = c->continues};
    struct chat_output o = {0};
    struct chat_error why = {0};

    if (!prompt) return parse__no_memory(c->p);
    int rc = chat_template_render(c->tmpl, &r, &o, &why);
    if (rc) return template_failed(c, rc, &why);
    c->p->out->chat.in_reasoning = ends_in_reasoning(c, &o);
    if (c->p->want == WANT_TEXT) {
        prompt->n_bytes = o.len;
        if (!(prompt->text = arena_strndup(c->p->arena, o.len ? o.text : "", o.len))) rc = parse__no_memory(c->p);
    } else {
        rc = encode(c, &o, prompt);
    }
    chat_output_clear(&o);
    c->p->out->prompts = prompt;
    c->p->out->n_prompts = 1;
    return rc;
}

/* ---- the body ---- */

static int take_all(struct chat_parse *c, const struct fields *f) {
    struct parse *p = c->p;
    const struct chat_model *m = p->env->chat;
    int rc = parse__common(p, f);

    if (rc) return rc;
    if (!m || !m->plain) return parse__fail(p, NULL, "the model has no chat template; give one with the option chat-template, or use /v1/completions");
    p->out->is_chat = true;
    p->out->chat.dialect = m->dialect;
    c->tmpl = m->plain;
    c->messages = chat_list(&c->values);
    c->vars = chat_dict(&c->values);
    if ((rc = parse__tools(c, f))) return rc;
    if ((rc = take_messages(c, f))) return rc;
    if ((rc = set_tokens(c))) return rc;
    if ((rc = take_ending(c, f))) return rc;
    if ((rc = take_reasoning(c, f))) return rc;
    if ((rc = take_kwargs(c, f))) return rc;
    if ((rc = render(c))) return rc;
    if (p->want != WANT_PROMPT) return 0;
    p->out->constraint.behind_reasoning = p->out->chat.in_reasoning;
    if ((rc = parse__constraint(p, f))) return rc;
    if ((rc = parse__forced_calls(p, f))) return rc;
    return parse__room(p);
}

static int take_chat(struct parse *p, const struct fields *f) {
    struct chat_parse c = {.p = p};

    arena_init(&c.values, VALUES_BYTES);
    buf_init(&c.scratch, VALUES_BYTES);
    int rc = take_all(&c, f);
    if (c.lost) rc = parse__no_memory(p); /* whatever was made of the missing string */
    buf_clear(&c.scratch);
    arena_clear(&c.values);
    return rc;
}

static int parse_as(enum parse_want want, const struct parse_env *env, const char *body, size_t n_bytes, struct arena *a,
                    struct gen_params *out, struct parse_error *e) {
    struct parse p = {.env = env, .arena = a, .out = out, .e = e, .endpoint = PARSE_CHAT, .want = want};

    return parse__body(&p, body, n_bytes, take_chat);
}

int parse_chat(const struct parse_env *env, const char *body, size_t n_bytes, struct arena *a, struct gen_params *out,
               struct parse_error *e) {
    return parse_as(WANT_PROMPT, env, body, n_bytes, a, out, e);
}

int parse_chat_text(const struct parse_env *env, const char *body, size_t n_bytes, struct arena *a, struct gen_params *out,
                    struct parse_error *e) {
    return parse_as(WANT_TEXT, env, body, n_bytes, a, out, e);
}

int parse_chat_tokens(const struct parse_env *env, const char *body, size_t n_bytes, struct arena *a, struct gen_params *out,
                      struct parse_error *e) {
    return parse_as(WANT_TOKENS, env, body, n_bytes, a, out, e);
}
