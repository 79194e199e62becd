/* SPDX-License-Identifier: Apache-2.0
 *
 * The body of POST /v1/responses, the OpenAI Responses API without its memory, as a chat request. See parse_req.h for the
 * rules. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "server/translate.h"

enum { MODEL, INPUT, INSTRUCTIONS, MAX_OUTPUT_TOKENS, TEMPERATURE, TOP_P, TOP_K, STOP, STREAM, TOOLS, TOOL_CHOICE, PARALLEL, REASONING, TEXT, METADATA, USER, INCLUDE,
       STORE, PREVIOUS, CONVERSATION, PROMPT, BACKGROUND, TRUNCATION, TOP_LOGPROBS, FIRST_PASSED, N_OURS = FIRST_PASSED + TRANSLATE_N_PASSED };

const char *const parse_responses_fields[] = {"model", "input", "instructions", "max_output_tokens", "temperature", "top_p", "top_k", "stop", "stream", "tools", "tool_choice",
                                              "parallel_tool_calls", "reasoning", "text", "metadata", "user", "include", "store", "previous_response_id",
                                              "conversation", "prompt", "background", "truncation", "top_logprobs", NULL};

/* ---- items ---- */

static int fail_item(struct translate *t, uint32_t i, const char *what) {
    char param[64];

    snprintf(param, sizeof param, "input[%u]", i);
    return parse__fail(&t->p, param, "%s", what);
}

/* A string, or a list of parts with a text each. */
static int take_texts(struct translate *t, uint32_t i, const struct json_member *v, void (*add)(struct translate *t, const struct json_member *text)) {
    struct json_member part;
    size_t at = 0;
    char param[64];

    snprintf(param, sizeof param, "input[%u]", i);
    if (translate_is_string(v)) {
        add(t, v);
        return 0;
    }
    if (!v->value || *v->value != '[') return fail_item(t, i, "its content must be a string or a list of parts");
    while (json_next(v->value, v->n_value, &at, &part)) {
        struct json_member type = translate_member(t, &part, "type"), text = translate_member(t, &part, "text");
        bool known = translate_is(t, &type, "input_text") || translate_is(t, &type, "output_text") || translate_is(t, &type, "text") ||
                     translate_is(t, &type, "reasoning_text") || translate_is(t, &type, "summary_text");
        if (!known) return parse__fail(&t->p, param, "a part of type \"%s\" is not supported: this model reads text only", translate_show(t, &type));
        if (!translate_is_string(&text)) return fail_item(t, i, "a part needs a text");
        add(t, &text);
    }
    return 0;
}

static int take_message(struct translate *t, uint32_t i, const struct json_member *item) {
    static const char *const roles[] = {"user", "assistant", "system", "developer"};
    struct json_member role = translate_member(t, item, "role"), content = translate_member(t, item, "content");

    for (size_t k = 0; k < sizeof roles / sizeof *roles; k++) {
        if (!translate_is(t, &role, roles[k])) continue;
        if (strcmp(roles[k], "assistant") != 0) translate_end(t); /* items of an assistant are one message, others are themselves */
        translate_begin(t, roles[k]);
        return take_texts(t, i, &content, translate_text);
    }
    return fail_item(t, i, "its role must be \"user\", \"assistant\", \"system\" or \"developer\"");
}

static int take_call(struct translate *t, uint32_t i, const struct json_member *item) {
    struct json_member id = translate_member(t, item, "call_id"), name = translate_member(t, item, "name"), arguments = translate_member(t, item, "arguments");

    if (!translate_is_string(&id) || !translate_is_string(&name) || !translate_is_string(&arguments)) return fail_item(t, i, "a function_call needs a call_id, a name and arguments, all strings");
    translate_begin(t, "assistant");
    translate_call(t, &id, &name, &arguments);
    return 0;
}

static int take_output(struct translate *t, uint32_t i, const struct json_member *item) {
    struct json_member id = translate_member(t, item, "call_id"), output = translate_member(t, item, "output");
    int rc;

    if (!translate_is_string(&id)) return fail_item(t, i, "a function_call_output needs the call_id of the call it answers");
    translate_end(t);
    if ((rc = take_texts(t, i, &output, translate_text))) return rc;
    translate_result(t, &id);
    return 0;
}

/* Its text, or else its summary. */
static int take_thought(struct translate *t, uint32_t i, const struct json_member *item) {
    struct json_member content = translate_member(t, item, "content"), summary = translate_member(t, item, "summary"), first;
    size_t at = 0;
    bool whole = content.value && *content.value == '[' && json_next(content.value, content.n_value, &at, &first);

    if (!whole && !summary.value) return 0;
    translate_begin(t, "assistant");
    return take_texts(t, i, whole ? &content : &summary, translate_reasoning);
}

static int take_item(struct translate *t, uint32_t i, const struct json_member *item) {
    struct json_member type = translate_member(t, item, "type");
    char param[64];

    snprintf(param, sizeof param, "input[%u]", i);
    if (*item->value != '{') return fail_item(t, i, "must be an object");
    if (!type.value || translate_is(t, &type, "message")) return take_message(t, i, item);
    if (translate_is(t, &type, "function_call")) return take_call(t, i, item);
    if (translate_is(t, &type, "function_call_output")) return take_output(t, i, item);
    if (translate_is(t, &type, "reasoning")) return take_thought(t, i, item);
    return parse__fail(&t->p, param, "an item of type \"%s\" is not supported", translate_show(t, &type));
}

static int take_input(struct translate *t, const struct json_member *instructions, const struct json_member *input) {
    struct json_member item;
    size_t at = 0;
    uint32_t n = 0;
    int rc = 0;

    buf_puts(&t->out, "{\"messages\":[");
    if (instructions->value) {
        if (!translate_is_string(instructions)) return parse__fail(&t->p, "instructions", "must be a string");
        translate_begin(t, "system");
        translate_text(t, instructions);
        translate_end(t);
    }
    if (!input->value) return parse__fail(&t->p, "input", "is required");
    if (translate_is_string(input)) {
        translate_begin(t, "user");
        translate_text(t, input);
    } else if (*input->value == '[') {
        while (rc == 0 && json_next(input->value, input->n_value, &at, &item)) rc = take_item(t, n++, &item);
        if (rc == 0 && n == 0) rc = parse__fail(&t->p, "input", "must not be empty");
    } else {
        rc = parse__fail(&t->p, "input", "must be a string or a list of items");
    }
    translate_end(t);
    buf_puts(&t->out, "],\"add_generation_prompt\":true");
    return rc;
}

/* ---- tools ---- */

static int take_tool(struct translate *t, uint32_t i, const struct json_member *v) {
    struct json_member type = translate_member(t, v, "type"), name = translate_member(t, v, "name");
    struct json_member description = translate_member(t, v, "description"), parameters = translate_member(t, v, "parameters"), strict = translate_member(t, v, "strict");

    if (*v->value != '{') return parse__fail(&t->p, "tools", "item %u must be an object", i);
    if (!translate_is(t, &type, "function")) return parse__fail(&t->p, "tools", "item %u has type \"%s\"; only \"function\" is supported", i, translate_show(t, &type));
    if (!translate_is_string(&name)) return parse__fail(&t->p, "tools", "item %u needs a name", i);
    buf_puts(&t->out, i ? ",{\"type\":\"function\",\"function\":{\"name\":" : "{\"type\":\"function\",\"function\":{\"name\":");
    buf_append(&t->out, name.value, name.n_value);
    translate_put(t, "description", &description);
    translate_put(t, "parameters", &parameters);
    translate_put(t, "strict", &strict);
    buf_puts(&t->out, "}}");
    return 0;
}

static int take_tools(struct translate *t, const struct json_member *tools, const struct json_member *choice) {
    struct json_member item, type = translate_member(t, choice, "type"), name = translate_member(t, choice, "name");
    size_t at = 0;
    uint32_t n = 0;
    int rc = 0;

    if (tools->value && *tools->value != '[') return parse__fail(&t->p, "tools", "must be a list");
    if (tools->value) buf_puts(&t->out, ",\"tools\":[");
    while (rc == 0 && tools->value && json_next(tools->value, tools->n_value, &at, &item)) rc = take_tool(t, n++, &item);
    if (tools->value) buf_putc(&t->out, ']');
    if (rc || !choice->value) return rc;
    if (*choice->value == '"') {
        translate_put(t, "tool_choice", choice);
        return 0;
    }
    if (!translate_is(t, &type, "function") || !translate_is_string(&name))
        return parse__fail(&t->p, "tool_choice", "must be \"none\", \"auto\", \"required\" or {\"type\": \"function\", \"name\": ...}");
    buf_puts(&t->out, ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":");
    buf_append(&t->out, name.value, name.n_value);
    buf_puts(&t->out, "}}");
    return 0;
}

/* ---- the rest ---- */

static int take_text(struct translate *t, const struct json_member *v) {
    struct json_member format = translate_member(t, v, "format"), type = translate_member(t, &format, "type"), schema = translate_member(t, &format, "schema");

    if (v->value && *v->value != '{') return parse__fail(&t->p, "text", "must be an object");
    if (!format.value || translate_is(t, &type, "text")) return 0;
    if (translate_is(t, &type, "json_object")) {
        buf_puts(&t->out, ",\"response_format\":{\"type\":\"json_object\"}");
        return 0;
    }
    if (!translate_is(t, &type, "json_schema") || !schema.value)
        return parse__fail(&t->p, "text.format", "must be an object with type \"text\", \"json_object\", or \"json_schema\" and a schema");
    buf_puts(&t->out, ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"output\"");
    translate_put(t, "schema", &schema);
    buf_puts(&t->out, "}}");
    return 0;
}

/* What would need a memory of responses, or is not there; `accepted` is the one value that asks for nothing. */
static int refuse_others(struct translate *t, const struct json_member *f) {
    static const struct { int field; const char *accepted, *why; } rows[] = {
        {STORE, "false", "must be false: this server keeps no responses"},
        {PREVIOUS, NULL, "is not supported: this server keeps no responses; send the whole conversation as input"},
        {CONVERSATION, NULL, "is not supported: this server keeps no conversations; send the whole conversation as input"},
        {PROMPT, NULL, "is not supported: this server has no prompt templates of its own"},
        {BACKGROUND, "false", "must be false: this server keeps no responses"},
        {TRUNCATION, "\"disabled\"", "must be \"disabled\": an input that does not fit is refused"},
        {TOP_LOGPROBS, "0", "is not supported here; /v1/chat/completions has it"},
    };
    struct json_member item;
    size_t at = 0;

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct json_member *v = &f[rows[i].field];
        bool fine = !v->value || (rows[i].accepted && strlen(rows[i].accepted) == v->n_value && memcmp(v->value, rows[i].accepted, v->n_value) == 0);
        if (!fine) return parse__fail(&t->p, parse_responses_fields[rows[i].field], "%s", rows[i].why);
    }
    if (f[INCLUDE].value && *f[INCLUDE].value != '[') return parse__fail(&t->p, "include", "must be a list");
    while (f[INCLUDE].value && json_next(f[INCLUDE].value, f[INCLUDE].n_value, &at, &item)) {
        if (!translate_is(t, &item, "reasoning.encrypted_content")) return parse__fail(&t->p, "include", "\"%s\" is not supported", translate_show(t, &item));
    }
    return 0;
}

static int take_all(struct translate *t, const struct json_member *f) {
    static const struct { int field; const char *chat; } same[] = {
        {MODEL, "model"}, {MAX_OUTPUT_TOKENS, "max_completion_tokens"}, {TEMPERATURE, "temperature"}, {TOP_P, "top_p"}, {TOP_K, "top_k"}, {STOP, "stop"}, {STREAM, "stream"},
        {PARALLEL, "parallel_tool_calls"},
    };
    struct json_member effort = translate_member(t, &f[REASONING], "effort");
    int rc;

    if ((rc = refuse_others(t, f))) return rc;
    if ((rc = take_input(t, &f[INSTRUCTIONS], &f[INPUT]))) return rc;
    if ((rc = take_tools(t, &f[TOOLS], &f[TOOL_CHOICE]))) return rc;
    if ((rc = take_text(t, &f[TEXT]))) return rc;
    if (f[REASONING].value && *f[REASONING].value != '{') return parse__fail(&t->p, "reasoning", "must be an object");
    translate_put(t, "reasoning_effort", &effort);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) translate_put(t, same[i].chat, &f[same[i].field]);
    for (int i = 0; i < TRANSLATE_N_PASSED; i++) translate_put(t, translate_passed[i], &f[FIRST_PASSED + i]);
    buf_putc(&t->out, '}');
    return 0;
}

/* A response repeats what it answers. */
static int repeat_fields(struct translate *t, const struct json_member *f, struct arena *a, struct gen_params *out) {
    static const struct { int field; const char *absent; } rows[] = {
        {INSTRUCTIONS, "null"}, {MAX_OUTPUT_TOKENS, "null"}, {METADATA, "{}"}, {PARALLEL, "true"}, {REASONING, "{\"effort\":null,\"summary\":null}"}, {TEMPERATURE, "1"},
        {TEXT, "{\"format\":{\"type\":\"text\"}}"}, {TOOL_CHOICE, "\"auto\""}, {TOOLS, "[]"}, {TOP_P, "1"}, {USER, "null"},
    };

    buf_reset(&t->out);
    buf_printf(&t->out, "\"created_at\":%" PRId64 ",\"background\":false,\"previous_response_id\":null,\"store\":false,\"truncation\":\"disabled\"", clock_unix_s());
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct json_member *v = &f[rows[i].field];
        translate_put(t, parse_responses_fields[rows[i].field], v->value ? v : &(struct json_member){.value = rows[i].absent, .n_value = strlen(rows[i].absent)});
    }
    for (size_t i = 0; i < t->out.len; i++) {
        if (t->out.data[i] == '\n' || t->out.data[i] == '\r') t->out.data[i] = ' '; /* between tokens: a string has none */
    }
    out->repeated = t->out.failed ? NULL : arena_strndup(a, t->out.data, t->out.len);
    return out->repeated ? 0 : parse__no_memory(&t->p);
}

int parse_responses(const struct parse_env *env, const char *body, size_t n_bytes, struct arena *a, struct gen_params *out, struct parse_error *e) {
    static const struct translate_name names[] = {{"messages", "input"}, {"max_completion_tokens", "max_output_tokens"}, {"max_tokens", "max_output_tokens"},
                                                  {"response_format", "text.format"}, {"reasoning_effort", "reasoning.effort"}};
    const char *fields[N_OURS];
    struct json_member f[N_OURS] = {{0}};
    struct translate t;

    memcpy(fields, parse_responses_fields, FIRST_PASSED * sizeof *fields);
    memcpy(fields + FIRST_PASSED, translate_passed, sizeof translate_passed);
    translate_open(&t, e, n_bytes);
    int rc = translate_fields(&t, body, n_bytes, fields, N_OURS, f);
    if (rc == 0) rc = take_all(&t, f);
    if (rc == 0) rc = translate_parse(&t, parse_chat, env, a, out, names, sizeof names / sizeof *names);
    if (rc == 0) rc = repeat_fields(&t, f, a, out);
    translate_close(&t);
    return rc;
}
