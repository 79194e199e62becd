/* SPDX-License-Identifier: Apache-2.0
 *
 * The body of POST /v1/messages and /v1/messages/count_tokens, the Anthropic Messages API, as a chat request. See
 * parse_req.h for the rules. */
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "server/translate.h"

enum { MODEL, MESSAGES, SYSTEM, MAX_TOKENS, STOP_SEQUENCES, TEMPERATURE, TOP_P, TOP_K, STREAM, TOOLS, TOOL_CHOICE, THINKING, OUTPUT_CONFIG, OUTPUT_FORMAT, FIRST_PASSED,
       N_OURS = FIRST_PASSED + TRANSLATE_N_PASSED };

const char *const parse_messages_fields[] = {"model", "messages", "system", "max_tokens", "stop_sequences", "temperature", "top_p", "top_k", "stream", "tools",
                                             "tool_choice", "thinking", "output_config", "output_format", NULL};

/* ---- content ---- */

static int fail_at(struct translate *t, uint32_t message, uint32_t block, const char *what) {
    char param[64];

    snprintf(param, sizeof param, "messages.%u.content.%u", message, block);
    return parse__fail(&t->p, param, "%s", what);
}

static int text_block(struct translate *t, const char *param, const struct json_member *block) {
    struct json_member type = translate_member(t, block, "type"), text = translate_member(t, block, "text");

    if (!translate_is(t, &type, "text"))
        return parse__fail(&t->p, param, "a block of type \"%s\" is not supported here: this model reads text only", translate_show(t, &type));
    if (!translate_is_string(&text)) return parse__fail(&t->p, param, "a text block needs a text");
    translate_text(t, &text);
    return 0;
}

static int text_blocks(struct translate *t, const char *param, const struct json_member *list) {
    struct json_member block;
    size_t at = 0;
    int rc = 0;

    if (translate_is_string(list)) {
        translate_text(t, list);
        return 0;
    }
    if (*list->value != '[') return parse__fail(&t->p, param, "must be a string or a list of text blocks");
    while (rc == 0 && json_next(list->value, list->n_value, &at, &block)) rc = text_block(t, param, &block);
    return rc;
}

static int tool_result(struct translate *t, uint32_t i, uint32_t k, const struct json_member *block) {
    struct json_member id = translate_member(t, block, "tool_use_id"), content = translate_member(t, block, "content");
    char param[64];
    int rc;

    if (!translate_is_string(&id)) return fail_at(t, i, k, "a tool_result needs the tool_use_id of the call it answers");
    snprintf(param, sizeof param, "messages.%u.content.%u.content", i, k);
    translate_end(t);
    if (content.value && (rc = text_blocks(t, param, &content))) return rc;
    translate_result(t, &id);
    return 0;
}

static int tool_use(struct translate *t, uint32_t i, uint32_t k, const struct json_member *block) {
    struct json_member id = translate_member(t, block, "id"), name = translate_member(t, block, "name"), input = translate_member(t, block, "input");

    if (!translate_is_string(&id) || !translate_is_string(&name)) return fail_at(t, i, k, "a tool_use needs an id and a name");
    if (!input.value || *input.value != '{') return fail_at(t, i, k, "the input of a tool_use must be an object");
    translate_begin(t, "assistant");
    translate_call(t, &id, &name, &input);
    return 0;
}

static int content_block(struct translate *t, uint32_t i, uint32_t k, bool assistant, const struct json_member *block) {
    struct json_member type = translate_member(t, block, "type"), thinking;
    char param[64];

    if (*block->value != '{') return fail_at(t, i, k, "must be an object with a type");
    if (!translate_is_string(&type)) return fail_at(t, i, k, "needs a type");
    if (!assistant && translate_is(t, &type, "tool_result")) return tool_result(t, i, k, block);
    if (assistant && translate_is(t, &type, "tool_use")) return tool_use(t, i, k, block);
    if (assistant && translate_is(t, &type, "redacted_thinking")) return 0;
    if (assistant && translate_is(t, &type, "thinking")) {
        thinking = translate_member(t, block, "thinking");
        if (!translate_is_string(&thinking)) return fail_at(t, i, k, "a thinking block needs its thinking");
        translate_begin(t, "assistant");
        translate_reasoning(t, &thinking);
        return 0;
    }
    snprintf(param, sizeof param, "messages.%u.content.%u", i, k);
    translate_begin(t, assistant ? "assistant" : "user");
    return text_block(t, param, block);
}

/* ---- messages ---- */

static int message(struct translate *t, uint32_t i, const struct json_member *value) {
    struct json_member role = translate_member(t, value, "role"), content = translate_member(t, value, "content"), block;
    bool assistant = translate_is(t, &role, "assistant");
    char param[64];
    size_t at = 0;
    uint32_t k = 0;
    int rc = 0;

    snprintf(param, sizeof param, "messages.%u", i);
    if (*value->value != '{') return parse__fail(&t->p, param, "must be an object");
    if (!assistant && !translate_is(t, &role, "user")) return parse__fail(&t->p, param, "its role must be \"user\" or \"assistant\"");
    if (!content.value || !strchr("\"[", *content.value)) return parse__fail(&t->p, param, "its content must be a string or a list of blocks");
    if (*content.value == '"') {
        translate_begin(t, assistant ? "assistant" : "user");
        translate_text(t, &content);
        return 0;
    }
    while (rc == 0 && json_next(content.value, content.n_value, &at, &block)) rc = content_block(t, i, k++, assistant, &block);
    if (rc == 0 && k == 0) rc = parse__fail(&t->p, param, "its content must not be an empty list");
    return rc;
}

static int take_messages(struct translate *t, const struct json_member *system, const struct json_member *messages) {
    struct json_member item;
    size_t at = 0, start;
    uint32_t n = 0;
    int rc = 0;

    buf_puts(&t->out, "{\"messages\":[");
    start = t->out.len;
    if (system->value) {
        translate_begin(t, "system");
        if ((rc = text_blocks(t, "system", system))) return rc;
    }
    if (!messages->value) return parse__fail(&t->p, "messages", "is required");
    if (*messages->value != '[') return parse__fail(&t->p, "messages", "must be a list");
    while (rc == 0 && json_next(messages->value, messages->n_value, &at, &item)) rc = message(t, n++, &item);
    if (rc == 0 && n == 0) rc = parse__fail(&t->p, "messages", "must not be empty");
    translate_end(t);
    if (rc == 0 && t->out.len == start) rc = parse__fail(&t->p, "messages", "redacted thinking is left out, and there is nothing else");
    buf_putc(&t->out, ']');
    return rc;
}

/* ---- tools ---- */

static int take_tool(struct translate *t, uint32_t i, const struct json_member *v) {
    struct json_member type = translate_member(t, v, "type"), name = translate_member(t, v, "name"), schema = translate_member(t, v, "input_schema");
    struct json_member description = translate_member(t, v, "description");

    if (*v->value != '{') return parse__fail(&t->p, "tools", "item %u must be an object", i);
    if (type.value && !translate_is(t, &type, "custom"))
        return parse__fail(&t->p, "tools", "item %u has type \"%s\"; this server runs no tools, only \"custom\" ones are supported", i, translate_show(t, &type));
    if (!translate_is_string(&name)) return parse__fail(&t->p, "tools", "item %u needs a name", i);
    if (!schema.value || *schema.value != '{') return parse__fail(&t->p, "tools", "item %u needs an input_schema, an object", i);
    buf_puts(&t->out, i ? ",{\"type\":\"function\",\"function\":{\"name\":" : "{\"type\":\"function\",\"function\":{\"name\":");
    buf_append(&t->out, name.value, name.n_value);
    translate_put(t, "description", &description);
    translate_put(t, "parameters", &schema);
    buf_puts(&t->out, "}}");
    return 0;
}

static int take_tools(struct translate *t, const struct json_member *tools) {
    struct json_member item;
    size_t at = 0;
    uint32_t n = 0;
    int rc = 0;

    if (!tools->value) return 0;
    if (*tools->value != '[') return parse__fail(&t->p, "tools", "must be a list");
    buf_puts(&t->out, ",\"tools\":[");
    while (rc == 0 && json_next(tools->value, tools->n_value, &at, &item)) rc = take_tool(t, n++, &item);
    buf_putc(&t->out, ']');
    return rc;
}

static int take_choice(struct translate *t, const struct json_member *v) {
    struct json_member type = translate_member(t, v, "type"), name = translate_member(t, v, "name"), serial = translate_member(t, v, "disable_parallel_tool_use");

    if (!v->value) return 0;
    if (name.value && !translate_is_string(&name)) return parse__fail(&t->p, "tool_choice", "name must be a string");
    if (translate_is(t, &type, "tool")) {
        if (!name.value) return parse__fail(&t->p, "tool_choice", "needs the name of a tool");
        buf_puts(&t->out, ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":");
        buf_append(&t->out, name.value, name.n_value);
        buf_puts(&t->out, "}}");
    } else if (translate_is(t, &type, "any")) {
        buf_puts(&t->out, ",\"tool_choice\":\"required\"");
    } else if (translate_is(t, &type, "auto") || translate_is(t, &type, "none")) {
        translate_put(t, "tool_choice", &type);
    } else {
        return parse__fail(&t->p, "tool_choice", "must be an object with type \"auto\", \"any\", \"tool\" or \"none\"");
    }
    if (serial.value && *serial.value != 't' && *serial.value != 'f') return parse__fail(&t->p, "tool_choice", "disable_parallel_tool_use must be true or false");
    if (serial.value) buf_puts(&t->out, *serial.value == 't' ? ",\"parallel_tool_calls\":false" : ",\"parallel_tool_calls\":true");
    return 0;
}

/* ---- the rest ---- */

/* {"type": "json_schema", "schema": {...}} */
static int take_format(struct translate *t, const char *param, const struct json_member *v) {
    struct json_member type = translate_member(t, v, "type"), schema = translate_member(t, v, "schema");

    if (!v->value) return 0;
    if (!translate_is(t, &type, "json_schema") || !schema.value || !strchr("{tf", *schema.value)) return parse__fail(&t->p, param, "must be an object with type \"json_schema\" and a schema");
    buf_puts(&t->out, ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"output\"");
    translate_put(t, "schema", &schema);
    buf_puts(&t->out, "}}");
    return 0;
}

static int take_output(struct translate *t, const struct json_member *config, const struct json_member *format) {
    struct json_member effort = translate_member(t, config, "effort"), inner = translate_member(t, config, "format");

    if (config->value && *config->value != '{') return parse__fail(&t->p, "output_config", "must be an object");
    if (inner.value && format->value) return parse__fail(&t->p, "output_format", "means the same as output_config.format; give one of them");
    translate_put(t, "reasoning_effort", &effort);
    return inner.value ? take_format(t, "output_config.format", &inner) : take_format(t, "output_format", format);
}

static int take_all(struct translate *t, const struct json_member *f, bool generate) {
    static const struct { int field; const char *chat; } same[] = {
        {MODEL, "model"}, {MAX_TOKENS, "max_tokens"}, {TEMPERATURE, "temperature"}, {TOP_P, "top_p"}, {TOP_K, "top_k"}, {STREAM, "stream"},
        {STOP_SEQUENCES, "stop"}, {THINKING, "thinking"},
    };
    int rc;

    if (generate && !f[MAX_TOKENS].value) return parse__fail(&t->p, "max_tokens", "is required");
    if (f[STOP_SEQUENCES].value && *f[STOP_SEQUENCES].value != '[') return parse__fail(&t->p, "stop_sequences", "must be a list of strings");
    if ((rc = take_messages(t, &f[SYSTEM], &f[MESSAGES]))) return rc;
    if ((rc = take_tools(t, &f[TOOLS]))) return rc;
    if ((rc = take_choice(t, &f[TOOL_CHOICE]))) return rc;
    if ((rc = take_output(t, &f[OUTPUT_CONFIG], &f[OUTPUT_FORMAT]))) return rc;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) translate_put(t, same[i].chat, &f[same[i].field]);
    for (int i = 0; i < TRANSLATE_N_PASSED; i++) translate_put(t, translate_passed[i], &f[FIRST_PASSED + i]);
    buf_putc(&t->out, '}');
    return 0;
}

static int parse_as(bool generate, const struct parse_env *env, const char *body, size_t n_bytes, struct arena *a, struct gen_params *out, struct parse_error *e) {
    static const struct translate_name names[] = {{"stop", "stop_sequences"}, {"messages", "messages"}, {"response_format", "output_config.format"}, {"reasoning_effort", "output_config.effort"}};
    const char *fields[N_OURS];
    struct json_member f[N_OURS] = {{0}};
    struct translate t;

    memcpy(fields, parse_messages_fields, FIRST_PASSED * sizeof *fields);
    memcpy(fields + FIRST_PASSED, translate_passed, sizeof translate_passed);
    translate_open(&t, e, n_bytes);
    int rc = translate_fields(&t, body, n_bytes, fields, N_OURS, f);
    if (rc == 0) rc = take_all(&t, f, generate);
    if (rc == 0) rc = translate_parse(&t, generate ? parse_chat : parse_chat_tokens, env, a, out, names, sizeof names / sizeof *names);
    translate_close(&t);
    return rc;
}

int parse_messages(const struct parse_env *env, const char *body, size_t n_bytes, struct arena *a, struct gen_params *out, struct parse_error *e) {
    return parse_as(true, env, body, n_bytes, a, out, e);
}

int parse_messages_tokens(const struct parse_env *env, const char *body, size_t n_bytes, struct arena *a, struct gen_params *out, struct parse_error *e) {
    return parse_as(false, env, body, n_bytes, a, out, e);
}
