/* SPDX-License-Identifier: Apache-2.0
 *
 * A model's chat template: Jinja as the `transformers` library runs it (jinja2 3.1, ImmutableSandboxedEnvironment,
 * trim_blocks, lstrip_blocks, loop controls, {% generation %}, raise_exception, strftime_now, tojson without HTML
 * escaping), compiled once and interpreted per request. The same bytes as there, or an error where it has one.
 *
 * A compiled template is immutable: any thread may render it, at the same time too. Rendering touches nothing but its
 * arguments, its own memory and libc's time zone; it is bounded in depth, steps, output and memory whatever the
 * template and the messages are.
 *
 * The result says which bytes came from the request, so that chat_output_encode finds control tokens only in what the
 * template itself wrote: text of a message, a tool or a keyword argument stays text. */
#ifndef MOED_CHAT_TEMPLATE_H
#define MOED_CHAT_TEMPLATE_H

#include "chat/value.h"
#include "model/tokenizer.h"

struct chat_template; /* opaque */

enum chat_error_kind {
    CHAT_ERROR_NONE,
    CHAT_ERROR_SYNTAX,    /* compile: not a template; names the line                              */
    CHAT_ERROR_RAISED,    /* the template called raise_exception; text is its own message          */
    CHAT_ERROR_UNDEFINED, /* something was done with a variable or attribute that is not there     */
    CHAT_ERROR_SECURITY,  /* the sandbox refuses: list.append, private attributes                  */
    CHAT_ERROR_RUNTIME,   /* TypeError, ValueError and the other exceptions Python would raise     */
    CHAT_ERROR_CONTINUE,  /* continue_final_message: nothing to continue, or the template drops it */
    CHAT_ERROR_LIMIT,     /* depth, steps, output or memory of struct chat_limits                  */
    CHAT_ERROR_MEMORY,    /* the process is out of memory                                          */
};

struct chat_error {
    enum chat_error_kind kind;
    int line;        /* of the template, 1-based; 0 = unknown                                      */
    char text[1024]; /* NUL-terminated valid UTF-8, cut with "..."; without the line               */
};

/* Returns owned, free with chat_template_free; copies the text. ST_INVALID (syntax), ST_LIMIT (more than 1 MiB, or
 * nested deeper than 200), ST_NOMEM; then *out is NULL and *e (may be NULL) filled. */
int chat_template_compile(struct chat_template **out, const char *text, size_t n, struct chat_error *e);
void chat_template_free(struct chat_template *t); /* takes t; NULL is fine */

/* Whether the template's text mentions the name anywhere in code ("tools", "enable_thinking", "reasoning_content"). */
bool chat_template_mentions(const struct chat_template *t, const char *name);

struct chat_limits {      /* 0 = the default                                                       */
    size_t max_depth;     /* nested evaluations, default 4000                                      */
    uint64_t max_steps;   /* evaluations plus bytes moved / 64, default 50 million (about a second) */
    size_t max_output;    /* bytes, default 16 MiB                                                 */
    size_t max_memory;    /* bytes, default 256 MiB; a normal prompt needs a few times its size     */
};

struct chat_render {
    struct chat_value vars;      /* dict of every variable: messages, add_generation_prompt, bos_token, eos_token and
                                  * the chat_template_kwargs. transformers defines tools and documents always: put
                                  * chat_none() when the request has none. Borrowed for the call.               */
    int64_t now_s;               /* the clock of strftime_now, Unix seconds; shown in local time              */
    bool continue_final_message; /* end the prompt inside the last message's content, as transformers does    */
    struct chat_limits limits;
};

struct chat_output {
    char *text; /* owned, not NUL-terminated */
    size_t len;
    struct tokenizer_span *request; /* owned, ordered, disjoint: the bytes that came from the request */
    size_t n_request;
};

/* 0, or ST_INVALID, ST_LIMIT, ST_NOMEM with *e (may be NULL) filled; then *out is empty. */
int chat_template_render(const struct chat_template *t, const struct chat_render *r, struct chat_output *out, struct chat_error *e);
void chat_output_clear(struct chat_output *o);

/* The prompt as token ids, at most cap (tokenizer_max_ids(t, o->len) is enough): control tokens where the template
 * wrote them, nowhere else; text between them is encoded as one piece, whoever wrote it. No BOS is added: templates
 * write their own. Result as tokenizer_encode. */
int64_t chat_output_encode(const struct chat_output *o, const struct tokenizer *t, int32_t *ids, size_t cap);

#endif
