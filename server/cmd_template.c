/* SPDX-License-Identifier: Apache-2.0
 *
 * See cmd_template.h. A template of the model file that does not compile costs the chat endpoint, not the server: many files
 * in circulation carry broken ones, and completions need none. */
#include "server/cmd_template.h"

#include <string.h>

#include "base/alloc.h"
#include "base/log.h"

static int open_file(struct chat_model **out, const struct config *c, struct chat_model_opts *o, struct err *e) {
    char *text;
    int rc = chat_model_read_file(c->chat_template, &text, &o->n_text, e);

    if (rc) return rc;
    o->text = text;
    rc = chat_model_open(out, o, e);
    mem_free(text);
    return rc;
}

int cmd_open_chat(struct chat_model **out, const struct config *c, const struct gguf *g, const struct tokenizer *t, struct err *e) {
    struct chat_model_opts o = {.tokenizer = t, .syntax = c->tool_syntax};
    struct gguf_str text, tools;

    if (*c->chat_template) return open_file(out, c, &o, e);
    if (gguf_get_str(g, "tokenizer.chat_template", &text, NULL) == 0) o.text = text.s, o.n_text = text.len;
    if (gguf_get_str(g, "tokenizer.chat_template.tool_use", &tools, NULL) == 0) o.tools_text = tools.s, o.n_tools_text = tools.len;
    int rc = chat_model_open(out, &o, e);
    if (rc != ST_INVALID && rc != ST_LIMIT) {
        if (rc == 0 && (*out)->plain) log_info("chat", "template of %zu bytes, tool calls as %s, reasoning %s", (*out)->n_text, chat_syntax_name((*out)->dialect.syntax),
                                               (*out)->dialect.think ? (*out)->dialect.think->open : (*out)->dialect.syntax == CHAT_SYNTAX_HARMONY ? "in channels" : "none");
        return rc;
    }
    log_warn("chat", "chat requests will be refused: %s; option chat-template can replace it", e->text);
    *out = NULL;
    return 0;
}
