/* SPDX-License-Identifier: Apache-2.0
 *
 * See chat_model.h. */
#include "server/chat_model.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "base/buf.h"
#include "model/tokenizer.h"

enum { MAX_TEMPLATE_BYTES = 1 << 20, PROBE_BYTES = 1 << 20 };

/* What most models without a template of their own were trained on. */
static const char chatml[] =
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

static char *piece_copy(const struct tokenizer *t, int32_t id) {
    size_t n = 0;
    const char *piece = id >= 0 ? tokenizer_piece(t, id, &n) : "";

    return mem_strndup(piece, n);
}

/* ---- the probe ---- */

/* Renders a conversation whose assistant calls a tool, with the arguments as a dict or as JSON text. */
static int render_call(const struct chat_model *m, bool as_text, struct chat_output *out) {
    static const char args[] = "{\"probe_key\": \"probe_value\"}";
    const enum chat_origin us = CHAT_TRUSTED;
    struct arena a;

    arena_init(&a, PROBE_BYTES);
    struct chat_value vars = chat_dict(&a), messages = chat_list(&a), user = chat_dict(&a), reply = chat_dict(&a), calls = chat_list(&a);
    struct chat_value call = chat_dict(&a), function = chat_dict(&a), dict = chat_dict(&a);
    chat_dict_set(&a, user, "role", 4, us, chat_string(&a, "user", 4, us));
    chat_dict_set(&a, user, "content", 7, us, chat_string(&a, "hi", 2, us));
    chat_list_push(&a, messages, user);
    chat_dict_set(&a, dict, "probe_key", 9, us, chat_string(&a, "probe_value", 11, us));
    chat_dict_set(&a, function, "name", 4, us, chat_string(&a, "probe", 5, us));
    chat_dict_set(&a, function, "arguments", 9, us, as_text ? chat_string(&a, args, sizeof args - 1, us) : dict);
    chat_dict_set(&a, call, "id", 2, us, chat_string(&a, "abcdefghi", 9, us));
    chat_dict_set(&a, call, "type", 4, us, chat_string(&a, "function", 8, us));
    chat_dict_set(&a, call, "function", 8, us, function);
    chat_list_push(&a, calls, call);
    chat_dict_set(&a, reply, "role", 4, us, chat_string(&a, "assistant", 9, us));
    chat_dict_set(&a, reply, "content", 7, us, chat_none());
    chat_dict_set(&a, reply, "tool_calls", 10, us, calls);
    chat_list_push(&a, messages, reply);
    chat_dict_set(&a, vars, "messages", 8, us, messages);
    chat_dict_set(&a, vars, "tools", 5, us, chat_none());
    chat_dict_set(&a, vars, "documents", 9, us, chat_none());
    chat_dict_set(&a, vars, "bos_token", 9, us, chat_string(&a, m->bos, strlen(m->bos), us));
    chat_dict_set(&a, vars, "eos_token", 9, us, chat_string(&a, m->eos, strlen(m->eos), us));
    int rc = chat_dict_set(&a, vars, "add_generation_prompt", 21, us, chat_bool(false));
    if (rc == 0) rc = chat_template_render(m->with_tools ? m->with_tools : m->plain, &(struct chat_render){.vars = vars}, out, NULL);
    arena_clear(&a);
    return rc;
}

static bool shows(const struct chat_output *o, const char *what) {
    return o->len > 0 && memmem(o->text, o->len, what, strlen(what)) != NULL;
}

/* Templates disagree on what `arguments` is: some write it out as JSON, some paste it. A pasted dict fails, or shows as
 * Python writes it. */
static bool wants_text(const struct chat_model *m) {
    struct chat_output dict = {0}, text = {0};
    int rc_dict = render_call(m, false, &dict), rc_text = render_call(m, true, &text);
    bool dict_ok = rc_dict == 0 && shows(&dict, "probe_key") && !shows(&dict, "'probe_key'");
    bool text_ok = rc_text == 0 && shows(&text, "\"probe_key\"");

    chat_output_clear(&dict);
    chat_output_clear(&text);
    return !dict_ok && text_ok;
}

/* ---- life ---- */

static int compile(struct chat_template **out, const char *text, size_t n, const char *which, struct err *e) {
    struct chat_error why = {0};
    int rc = chat_template_compile(out, text, n, &why);

    if (rc) return err_set(e, rc, "the %s does not compile, line %d: %s", which, why.line, why.text);
    return 0;
}

static int fill(struct chat_model *m, const struct chat_model_opts *o, struct err *e) {
    const char *text = o->text;
    size_t n = o->n_text;
    int rc;

    m->bos = piece_copy(o->tokenizer, tokenizer_bos(o->tokenizer));
    m->eos = piece_copy(o->tokenizer, tokenizer_eos(o->tokenizer));
    if (!m->bos || !m->eos) return err_set(e, ST_NOMEM, "no memory for the chat template");
    if (!text && tokenizer_find(o->tokenizer, "<|im_start|>", 12) >= 0) text = chatml, n = sizeof chatml - 1;
    if (!text) return 0;
    if (!(m->text = mem_strndup(text, n))) return err_set(e, ST_NOMEM, "no memory for the chat template");
    m->n_text = n;
    if ((rc = compile(&m->plain, text, n, "chat template", e))) return rc;
    if (o->tools_text && (rc = compile(&m->with_tools, o->tools_text, o->n_tools_text, "chat template for tool_use", e))) return rc;
    const struct chat_template *tools = m->with_tools ? m->with_tools : m->plain;
    chat_dialect_detect(&m->dialect, o->tools_text ? o->tools_text : text, o->tools_text ? o->n_tools_text : n);
    if (strcmp(o->syntax, "auto") != 0 && !chat_syntax_find(o->syntax, &m->dialect.syntax))
        return err_set(e, ST_INVALID, "tool-syntax: %s is none of those known", o->syntax);
    m->takes_tools = chat_template_mentions(tools, "tools");
    if (!m->takes_tools && strcmp(o->syntax, "auto") == 0) m->dialect.syntax = CHAT_SYNTAX_HERMES; /* what parse_tools.c then explains */
    m->string_arguments = chat_template_mentions(tools, "tool_calls") && wants_text(m);
    return 0;
}

int chat_model_open(struct chat_model **out, const struct chat_model_opts *o, struct err *e) {
    struct chat_model *m = mem_zalloc(1, sizeof *m);
    int rc = m ? fill(m, o, e) : err_set(e, ST_NOMEM, "no memory for the chat template");

    if (rc) {
        chat_model_close(m);
        return rc;
    }
    *out = m;
    return 0;
}

void chat_model_close(struct chat_model *m) {
    if (!m) return;
    chat_template_free(m->plain);
    chat_template_free(m->with_tools);
    mem_free(m->text);
    mem_free((char *)m->bos);
    mem_free((char *)m->eos);
    mem_free(m);
}

int chat_model_read_file(const char *path, char **text, size_t *n, struct err *e) {
    FILE *f = fopen(path, "rbe");
    struct buf b;
    char chunk[8192];
    size_t got;

    if (!f) return err_set(e, ST_IO, "chat-template: cannot open %s: %s", path, strerror(errno));
    buf_init(&b, MAX_TEMPLATE_BYTES);
    while ((got = fread(chunk, 1, sizeof chunk, f)) > 0 && buf_append(&b, chunk, got) == 0) {}
    bool bad = ferror(f);
    fclose(f);
    int rc = bad ? err_set(e, ST_IO, "chat-template: cannot read %s", path) : b.failed ? err_set(e, ST_LIMIT, "chat-template: %s has more than 1 MiB", path) : 0;
    if (rc == 0 && !(*text = mem_strndup(b.data, b.len))) rc = err_set(e, ST_NOMEM, "no memory for the chat template");
    *n = b.len;
    buf_clear(&b);
    return rc;
}
