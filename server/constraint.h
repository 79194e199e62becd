/* SPDX-License-Identifier: Apache-2.0
 *
 * What a request demands of its output: a grammar, and a bound on its reasoning. Both act as filters of one sequence.
 * Parsing fills a struct constraint, a worker compiles it, every choice opens filters of its own. */
#ifndef MOED_SERVER_CONSTRAINT_H
#define MOED_SERVER_CONSTRAINT_H

#include "chat/reply.h"
#include "grammar/grammar.h"
#include "model/tokenizer.h"

struct constraint {
    struct grammar_part *parts;   /* [n_parts] the arena's; none = free                                  */
    uint32_t n_parts;
    uint32_t max_repeat;          /* as grammar_spec                                                     */
    const char *separator;
    const char *param;            /* the field to blame                                                  */
    bool behind_reasoning;        /* the prompt ends in the reasoning: the grammar begins behind it      */
};

/* The tokens of the served model. Control tokens that the dialect's calls are made of count as text. */
int constraint_vocab_open(struct grammar_vocab **out, const struct tokenizer *t, const struct chat_dialect *d, struct err *e);

int constraint_compile(struct grammar **out, const struct grammar_vocab *v, const struct constraint *c, const struct chat_dialect *d, struct err *e);

/* A filter that ends the reasoning after `budget` tokens of it by writing its close mark; `inner` may be empty. */
struct thinking_limit;
struct thinking_limit_opts {
    const struct tokenizer *tokenizer;
    const struct chat_think *think;
    bool in_reasoning;
    uint32_t budget;
    struct token_filter inner;
};
int thinking_limit_open(struct thinking_limit **out, const struct thinking_limit_opts *o); /* returns owned, free with thinking_limit_close; 0 or ST_NOMEM */
void thinking_limit_close(struct thinking_limit *t);                                       /* takes t; NULL is fine */
struct token_filter thinking_limit_filter(struct thinking_limit *t);                       /* borrows t until the request ends */

#endif
