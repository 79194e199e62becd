/* SPDX-License-Identifier: Apache-2.0
 *
 * How the served model chats: its templates, the marks around its reasoning and its tool calls. Made once by the
 * composition root, immutable afterwards, any thread. */
#ifndef MOED_SERVER_CHAT_MODEL_H
#define MOED_SERVER_CHAT_MODEL_H

#include "base/err.h"
#include "chat/reply.h"
#include "chat/template.h"

struct chat_model {
    struct chat_template *plain;      /* NULL = the model has none: chat is refused                     */
    struct chat_template *with_tools; /* the variant for requests with tools; NULL = plain              */
    char *text;                       /* plain's source, owned                                          */
    size_t n_text;
    struct chat_dialect dialect;
    const char *bos, *eos;            /* views of the tokenizer's, NUL-terminated copies owned          */
    bool string_arguments;            /* the template wants a call's arguments as JSON text, not a dict */
    bool takes_tools;                 /* the template shows the tools to the model                      */
};

struct chat_model_opts {
    const struct tokenizer *tokenizer;
    const char *text;                 /* [n_text] the template; NULL = none: ChatML where the vocabulary has its marks */
    size_t n_text;
    const char *tools_text;           /* [n_tools_text] the variant "tool_use"; NULL = none             */
    size_t n_tools_text;
    const char *syntax;               /* "auto", or a name of chat_syntax_find                          */
};

int chat_model_open(struct chat_model **out, const struct chat_model_opts *o, struct err *e); /* returns owned, free with chat_model_close */
void chat_model_close(struct chat_model *m);                                                  /* takes m; NULL is fine */

/* The text of a template file: returns owned, free with mem_free. */
int chat_model_read_file(const char *path, char **text, size_t *n, struct err *e);

#endif
