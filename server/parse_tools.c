/* SPDX-License-Identifier: Apache-2.0
 *
 * The tools of a chat request: checked, given to the template, and kept as what the reply parsers need of them. */
#include <string.h>

#include "base/status.h"
#include "server/json_value.h"
#include "server/parse_chat.h"

enum { MAX_TOOLS = 1024, MAX_NAME_BYTES = 128 };

static bool name_ok(const char *s) {
    size_t n = strlen(s);

    return n > 0 && n <= MAX_NAME_BYTES && strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:/") == n;
}

/* "string", or a list of types with "string" in it. */
static bool is_string_type(const cJSON *schema) {
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(schema, "type"), *item;

    if (cJSON_IsString(type)) return strcmp(type->valuestring, "string") == 0;
    cJSON_ArrayForEach(item, type) {
        if (cJSON_IsString(item) && strcmp(item->valuestring, "string") == 0) return true;
    }
    return false;
}

static int take_params(struct parse *p, const cJSON *schema, struct chat_tool *out) {
    const cJSON *properties = cJSON_GetObjectItemCaseSensitive(schema, "properties"), *item;
    int n = cJSON_IsObject(properties) ? cJSON_GetArraySize(properties) : 0;
    struct chat_param *params = arena_zalloc(p->arena, (size_t)n + 1, sizeof *params);

    if (!params) return parse__no_memory(p);
    out->params = params;
    if (n == 0) return 0;
    cJSON_ArrayForEach(item, properties) {
        struct chat_param *param = &params[out->n_params++];
        param->name = arena_strndup(p->arena, item->string, strlen(item->string));
        param->is_string = is_string_type(item);
        if (!param->name) return parse__no_memory(p);
    }
    return 0;
}

static bool absent(const cJSON *v) {
    return v == NULL || cJSON_IsNull(v);
}

static int take_tool(struct parse *p, const cJSON *v, int i, struct chat_tool *out) {
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(v, "type"), *function = cJSON_GetObjectItemCaseSensitive(v, "function");
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(function, "name"), *schema = cJSON_GetObjectItemCaseSensitive(function, "parameters");
    const cJSON *description = cJSON_GetObjectItemCaseSensitive(function, "description"), *strict = cJSON_GetObjectItemCaseSensitive(function, "strict");

    if (!cJSON_IsObject(v)) return parse__fail(p, "tools", "item %d must be an object", i);
    if (!cJSON_IsString(type)) return parse__fail(p, "tools", "item %d needs a type", i);
    if (strcmp(type->valuestring, "function") != 0) return parse__fail(p, "tools", "item %d has type \"%.40s\"; only \"function\" is supported", i, type->valuestring);
    if (!cJSON_IsObject(function)) return parse__fail(p, "tools", "item %d needs a function", i);
    if (!cJSON_IsString(name) || !name_ok(name->valuestring))
        return parse__fail(p, "tools", "the name of item %d must have 1 to %d letters, digits, and _-.:/", i, MAX_NAME_BYTES);
    if (!absent(description) && !cJSON_IsString(description)) return parse__fail(p, "tools", "the description of %s must be a string", name->valuestring);
    if (!absent(strict) && !cJSON_IsBool(strict)) return parse__fail(p, "tools", "strict of %s must be true or false", name->valuestring);
    if (!absent(schema) && !cJSON_IsObject(schema)) return parse__fail(p, "tools", "the parameters of %s must be a JSON schema, an object", name->valuestring);
    out->name = arena_strndup(p->arena, name->valuestring, strlen(name->valuestring));
    return out->name ? take_params(p, schema, out) : parse__no_memory(p);
}

static int take_list(struct parse *p, const cJSON *v, struct chat_tool **out, uint32_t *n_out) {
    int n = cJSON_IsArray(v) ? cJSON_GetArraySize(v) : 0, i = 0, rc;
    struct chat_tool *tools;
    const cJSON *item;

    if (v && !cJSON_IsArray(v)) return parse__fail(p, "tools", "must be a list");
    if (n > MAX_TOOLS) return parse__fail(p, "tools", "has %d tools, at most %d are accepted", n, MAX_TOOLS);
    if (!(tools = arena_zalloc(p->arena, (size_t)n + 1, sizeof *tools))) return parse__no_memory(p);
    cJSON_ArrayForEach(item, v) {
        if ((rc = take_tool(p, item, i, &tools[i]))) return rc;
        for (int k = 0; k < i; k++) {
            if (strcmp(tools[k].name, tools[i].name) == 0) return parse__fail(p, "tools", "two of them are named %s", tools[i].name);
        }
        i++;
    }
    *out = tools;
    *n_out = (uint32_t)n;
    return 0;
}

static int take_choice(struct parse *p, const cJSON *v, const struct chat_tool *tools, uint32_t n) {
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(v, "function"), "name"), *type = cJSON_GetObjectItemCaseSensitive(v, "type");
    struct gen_chat *chat = &p->out->chat;

    chat->choice = TOOL_CHOICE_AUTO;
    if (!v) return 0;
    if (cJSON_IsString(v)) {
        if (strcmp(v->valuestring, "auto") == 0) return 0;
        if (strcmp(v->valuestring, "none") == 0) chat->choice = TOOL_CHOICE_NONE;
        else if (strcmp(v->valuestring, "required") == 0) chat->choice = TOOL_CHOICE_REQUIRED;
        else return parse__fail(p, "tool_choice", "must be \"none\", \"auto\", \"required\" or a function");
        return chat->choice == TOOL_CHOICE_REQUIRED && n == 0 ? parse__fail(p, "tool_choice", "\"required\" needs tools") : 0;
    }
    bool function = absent(type) || (cJSON_IsString(type) && strcmp(type->valuestring, "function") == 0);
    if (!cJSON_IsObject(v) || !function || !cJSON_IsString(name)) return parse__fail(p, "tool_choice", "must be \"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": ...}}");
    for (uint32_t i = 0; i < n; i++) {
        if (strcmp(tools[i].name, name->valuestring) != 0) continue;
        chat->choice = TOOL_CHOICE_NAMED;
        chat->chosen = i;
        return 0;
    }
    return parse__fail(p, "tool_choice", "names %.128s, which is not among the tools", name->valuestring);
}

/* Hermes form, in words. */
static int explain(struct chat_parse *c, const struct json_member *raw) {
    static const char intro[] = "You can call these functions:\n<tools>\n", outro[] =
        "</tools>\nTo call one, write for each call the function's name and its arguments as JSON between these tags, and nothing after them:\n"
        "<tool_call>\n{\"name\": \"NAME\", \"arguments\": {...}}\n</tool_call>";
    struct json_member item;
    struct buf b;
    size_t at = 0;

    buf_init(&b, 2 * raw->n_value + sizeof intro + sizeof outro);
    buf_puts(&b, intro);
    while (json_next(raw->value, raw->n_value, &at, &item)) {
        buf_append(&b, item.value, item.n_value);
        buf_putc(&b, '\n');
    }
    buf_puts(&b, outro);
    c->tools_text = chat_string(&c->values, b.len ? b.data : "", b.len, CHAT_REQUEST);
    bool failed = b.failed || c->tools_text.type != CHAT_STRING;
    buf_clear(&b);
    return failed ? parse__no_memory(c->p) : 0;
}

int parse__tools_in_system(struct chat_parse *c, struct chat_value first) {
    struct chat_value role = chat_dict_get(first, "role"), content = chat_dict_get(first, "content"), both;
    size_t n_role, n, n_text;
    const char *name = chat_string_bytes(role, &n_role), *old, *text = chat_string_bytes(c->tools_text, &n_text);
    struct buf b;

    if (n_role != 6 || memcmp(name, "system", 6) != 0) {
        struct chat_value message = chat_dict(&c->values);
        int rc = parse__set(c, message, "role", parse__string(c, "system"));
        if (rc == 0) rc = parse__set(c, message, "content", c->tools_text);
        return rc || chat_list_push(&c->values, c->messages, message) == 0 ? rc : parse__no_memory(c->p);
    }
    old = chat_string_bytes(content, &n);
    buf_init(&b, n + n_text + 2);
    buf_append(&b, old, n);
    buf_puts(&b, "\n\n");
    buf_append(&b, text, n_text);
    both = chat_string(&c->values, b.len ? b.data : "", b.len, CHAT_REQUEST);
    bool failed = b.failed;
    buf_clear(&b);
    return failed ? parse__no_memory(c->p) : parse__set(c, first, "content", both);
}

int parse__tools(struct chat_parse *c, const struct fields *f) {
    struct parse *p = c->p;
    const struct chat_model *m = p->env->chat;
    struct chat_tool *tools = NULL;
    struct chat_value list = chat_none();
    uint32_t n = 0;
    bool parallel = true;
    int rc;

    c->tools_text = chat_none();
    rc = take_list(p, f->v[F_TOOLS], &tools, &n);

    if (rc == 0) rc = take_choice(p, f->v[F_TOOL_CHOICE], tools, n);
    if (rc == 0) rc = parse__bool_field(p, f, F_PARALLEL_TOOL_CALLS, &parallel);
    if (rc) return rc;
    p->out->chat.one_call = !parallel;
    if (n > 0 && p->out->chat.choice != TOOL_CHOICE_NONE) {
        p->out->chat.tools = tools;
        p->out->chat.n_tools = n;
        list = json_value(&c->values, f->raw[F_TOOLS].value, f->raw[F_TOOLS].n_value, CHAT_REQUEST);
        if (m->with_tools) c->tmpl = m->with_tools;
        if (!m->takes_tools && m->dialect.syntax == CHAT_SYNTAX_HERMES && (rc = explain(c, &f->raw[F_TOOLS]))) return rc;
    }
    return parse__set(c, c->vars, "tools", list);
}
