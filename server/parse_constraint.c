/* SPDX-License-Identifier: Apache-2.0
 *
 * Structured output: response_format and its relatives, and the calls that tool_choice demands, as the alternatives of a
 * grammar. Nothing is compiled here: constraint_compile does that, on a worker. */
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "server/parse_chat.h"

enum { MAX_PARTS = 4096, MAX_CALLS_FORCED = 16 };

static int add_part(struct parse *p, enum grammar_kind kind, bool alternative, const char *text, size_t n) {
    struct constraint *c = &p->out->constraint;

    if (!c->parts && !(c->parts = arena_zalloc(p->arena, MAX_PARTS, sizeof *c->parts))) return parse__no_memory(p);
    if (c->n_parts == MAX_PARTS) return parse__fail(p, c->param, "has too many alternatives");
    /* Models write line breaks behind their reasoning. */
    bool leading = c->behind_reasoning && (alternative || c->n_parts == 0);
    if (leading) {
        c->parts[c->n_parts++] = (struct grammar_part){.kind = GRAMMAR_REGEX, .alternative = alternative, .text = "\\n{0,2}", .n_bytes = 7};
        return add_part(p, kind, false, text, n);
    }
    char *copy = arena_strndup(p->arena, text, n);
    if (!copy) return parse__no_memory(p);
    c->parts[c->n_parts++] = (struct grammar_part){.kind = kind, .alternative = alternative, .text = copy, .n_bytes = n};
    return 0;
}

/* One constraint per request: the first field that gives one names it. */
static int begin(struct parse *p, const char *param) {
    struct constraint *c = &p->out->constraint;

    if (c->n_parts > 0) return parse__fail(p, param, "and %s both constrain the output; give one of them", c->param);
    c->param = param;
    return 0;
}

static int add_text(struct parse *p, const char *param, const cJSON *v, enum grammar_kind kind) {
    int rc = begin(p, param);

    if (rc) return rc;
    if (!cJSON_IsString(v) || !*v->valuestring) return parse__fail(p, param, "must be a string that is not empty");
    return add_part(p, kind, false, v->valuestring, strlen(v->valuestring));
}

static int add_schema(struct parse *p, const char *param, struct json_member raw) {
    int rc = begin(p, param);

    if (rc) return rc;
    if (!raw.value || !strchr("{tf", *raw.value)) return parse__fail(p, param, "must be a JSON schema");
    return add_part(p, GRAMMAR_SCHEMA, false, raw.value, raw.n_value);
}

static int add_choice(struct parse *p, const char *param, const cJSON *v) {
    const cJSON *item;
    bool first = true;
    int rc = begin(p, param);

    if (rc) return rc;
    if (!cJSON_IsArray(v) || !v->child) return parse__fail(p, param, "must be a list of strings that is not empty");
    cJSON_ArrayForEach(item, v) {
        if (!cJSON_IsString(item) || !*item->valuestring) return parse__fail(p, param, "must be a list of strings, none of them empty");
        if ((rc = add_part(p, GRAMMAR_LITERAL, !first, item->valuestring, strlen(item->valuestring)))) return rc;
        first = false;
    }
    return 0;
}

/* A key as it stands in the body, where it may be written with escapes. */
static bool key_is(const struct json_member *m, const char *name) {
    size_t n = strlen(name);
    struct buf plain;

    if (!memchr(m->key, '\\', m->n_key)) return m->n_key == n + 2 && memcmp(m->key + 1, name, n) == 0;
    buf_init(&plain, m->n_key);
    json_put_unescaped(&plain, m->key, m->n_key);
    bool same = plain.len == n && memcmp(plain.data, name, n) == 0;
    buf_clear(&plain);
    return same;
}

/* The member `name` of an object as it stands in the body. */
static struct json_member raw_member(const struct json_member *object, const char *name) {
    struct json_member item, found = {0};
    size_t at = 0;

    while (json_next(object->value, object->n_value, &at, &item)) {
        if (key_is(&item, name) && *item.value != 'n') found = item;
    }
    return found;
}

static int take_format(struct parse *p, const cJSON *v, const struct json_member *raw) {
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(v, "type");
    int rc;

    if (!cJSON_IsObject(v) || !cJSON_IsString(type)) return parse__fail(p, "response_format", "must be an object with a type");
    if (strcmp(type->valuestring, "text") == 0) return 0;
    struct json_member schema = raw_member(raw, "schema"); /* llama-server has it here, OpenAI in json_schema */
    if (strcmp(type->valuestring, "json_object") == 0 && !schema.value) {
        if ((rc = begin(p, "response_format"))) return rc;
        return add_part(p, GRAMMAR_JSON, false, "", 0);
    }
    if (strcmp(type->valuestring, "json_object") != 0 && strcmp(type->valuestring, "json_schema") != 0)
        return parse__fail(p, "response_format", "type must be \"text\", \"json_object\" or \"json_schema\"");
    struct json_member inner = raw_member(raw, "json_schema");
    if (inner.value && *inner.value == '{') schema = raw_member(&inner, "schema");
    if (!schema.value) return parse__fail(p, "response_format", "json_schema needs a schema");
    return add_schema(p, "response_format", schema);
}

/* vLLM's object of the same five. */
static int take_structured(struct parse *p, const cJSON *v, const struct json_member *raw) {
    static const char *const name = "structured_outputs";
    const cJSON *item;
    int rc = 0;

    if (!cJSON_IsObject(v)) return parse__fail(p, name, "must be an object");
    cJSON_ArrayForEach(item, v) {
        if (rc) return rc;
        if (cJSON_IsNull(item)) continue;
        if (strcmp(item->string, "json") == 0) rc = add_schema(p, name, raw_member(raw, "json"));
        else if (strcmp(item->string, "regex") == 0) rc = add_text(p, name, item, GRAMMAR_REGEX);
        else if (strcmp(item->string, "grammar") == 0) rc = add_text(p, name, item, GRAMMAR_GBNF);
        else if (strcmp(item->string, "choice") == 0) rc = add_choice(p, name, item);
        else if (strcmp(item->string, "json_object") == 0 && cJSON_IsTrue(item) && (rc = begin(p, name)) == 0) rc = add_part(p, GRAMMAR_JSON, false, "", 0);
        else if (strcmp(item->string, "structural_tag") == 0) rc = parse__fail(p, name, "structural_tag is not supported");
    }
    return rc;
}

int parse__constraint(struct parse *p, const struct fields *f) {
    static const struct { enum field field; const char *name; enum grammar_kind kind; } texts[] = {
        {F_GRAMMAR, "grammar", GRAMMAR_GBNF}, {F_GUIDED_GRAMMAR, "guided_grammar", GRAMMAR_GBNF}, {F_REGEX, "regex", GRAMMAR_REGEX}, {F_GUIDED_REGEX, "guided_regex", GRAMMAR_REGEX},
    };
    int rc = 0;

    if (f->v[F_RESPONSE_FORMAT]) rc = take_format(p, f->v[F_RESPONSE_FORMAT], &f->raw[F_RESPONSE_FORMAT]);
    for (size_t i = 0; i < sizeof texts / sizeof *texts && rc == 0; i++) {
        if (f->v[texts[i].field]) rc = add_text(p, texts[i].name, f->v[texts[i].field], texts[i].kind);
    }
    if (rc == 0 && f->v[F_JSON_SCHEMA]) rc = add_schema(p, "json_schema", f->raw[F_JSON_SCHEMA]);
    if (rc == 0 && f->v[F_GUIDED_JSON]) rc = add_schema(p, "guided_json", f->raw[F_GUIDED_JSON]);
    if (rc == 0 && f->v[F_CHOICE]) rc = add_choice(p, "choice", f->v[F_CHOICE]);
    if (rc == 0 && f->v[F_GUIDED_CHOICE]) rc = add_choice(p, "guided_choice", f->v[F_GUIDED_CHOICE]);
    if (rc == 0 && f->v[F_STRUCTURED_OUTPUTS]) rc = take_structured(p, f->v[F_STRUCTURED_OUTPUTS], &f->raw[F_STRUCTURED_OUTPUTS]);
    return rc;
}

/* ---- calls ---- */

/* What stands before the name, between name and arguments, and behind them. All of it is what the reply parsers read. */
struct call_form { const char *before, *between, *after, *separator; };

#define DS(name) "<\xEF\xBD\x9Ctool\xE2\x96\x81" name "\xEF\xBD\x9C>"

static bool find_form(const struct parse *p, struct call_form *out) {
    static const struct call_form forms[CHAT_N_SYNTAXES] = {
        [CHAT_SYNTAX_HERMES] = {"<tool_call>\n{\"name\": \"", "\", \"arguments\": ", "}\n</tool_call>", "\n"},
        [CHAT_SYNTAX_QWEN_XML] = {"<tool_call>\n{\"name\": \"", "\", \"arguments\": ", "}\n</tool_call>", "\n"},
        [CHAT_SYNTAX_GLM] = {"<tool_call>\n{\"name\": \"", "\", \"arguments\": ", "}\n</tool_call>", "\n"},
        [CHAT_SYNTAX_MISTRAL] = {"[TOOL_CALLS][{\"name\": \"", "\", \"arguments\": ", "}]", NULL},
        [CHAT_SYNTAX_LLAMA3] = {"{\"name\": \"", "\", \"parameters\": ", "}", "; "},
        [CHAT_SYNTAX_DEEPSEEK] = {DS("call\xE2\x96\x81" "begin"), DS("sep"), DS("call\xE2\x96\x81" "end"), "\n"},
        [CHAT_SYNTAX_KIMI] = {"<|tool_calls_section_begin|><|tool_call_begin|>functions.", ":0<|tool_call_argument_begin|>", "<|tool_call_end|><|tool_calls_section_end|>", NULL},
        [CHAT_SYNTAX_HARMONY] = {"<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", "", NULL},
    };
    static const struct call_form named = {"[TOOL_CALLS]", "[ARGS]", "", ""};
    enum chat_syntax s = p->out->chat.dialect.syntax;

    *out = s == CHAT_SYNTAX_MISTRAL && strstr(p->env->chat->text, "[ARGS]") ? named : forms[s];
    return out->before != NULL;
}

static int add_call(struct parse *p, const struct call_form *form, const char *name, const struct json_member *schema) {
    char head[512];
    int n = snprintf(head, sizeof head, "%s%s%s", form->before, name, form->between);
    int rc = add_part(p, GRAMMAR_LITERAL, p->out->constraint.n_parts > 0, head, (size_t)n);

    if (rc == 0 && schema->value) {
        rc = add_part(p, GRAMMAR_SCHEMA, false, schema->value, schema->n_value);
        if (rc == 0) p->out->constraint.parts[p->out->constraint.n_parts - 1].closed = true;
    } else if (rc == 0) {
        rc = add_part(p, GRAMMAR_LITERAL, false, "{}", 2); /* no parameters */
    }
    return rc || !*form->after ? rc : add_part(p, GRAMMAR_LITERAL, false, form->after, strlen(form->after));
}

int parse__forced_calls(struct parse *p, const struct fields *f) {
    struct gen_chat *chat = &p->out->chat;
    struct constraint *c = &p->out->constraint;
    bool forced = chat->choice == TOOL_CHOICE_REQUIRED || chat->choice == TOOL_CHOICE_NAMED, beside = !forced && chat->n_tools > 0 && c->n_parts > 0;
    struct json_member item;
    struct call_form form;
    size_t at = 0;
    uint32_t i = 0;
    int rc = 0;

    if (!forced && !beside) return 0;
    if (forced && c->n_parts > 0) return parse__fail(p, "tool_choice", "demands a call, and %s another output; give one of them", c->param);
    if (!find_form(p, &form)) {
        return forced ? parse__fail(p, "tool_choice", "\"required\" and named functions are not supported for this model's way of writing calls (%s)", chat_syntax_name(chat->dialect.syntax)) : 0;
    }
    if (forced) c->param = "tools";
    for (; rc == 0 && json_next(f->raw[F_TOOLS].value, f->raw[F_TOOLS].n_value, &at, &item); i++) {
        if (chat->choice == TOOL_CHOICE_NAMED && i != chat->chosen) continue;
        struct json_member function = raw_member(&item, "function"), schema = raw_member(&function, "parameters");
        rc = add_call(p, &form, chat->tools[i].name, &schema);
    }
    if (forced && form.separator && !chat->one_call) {
        c->max_repeat = MAX_CALLS_FORCED;
        c->separator = form.separator;
    }
    return rc;
}
