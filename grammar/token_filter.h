/* SPDX-License-Identifier: Apache-2.0
 *
 * What the scheduler sees of a constraint on the output: a bit per token that may come next, and word of the token that
 * came. One filter serves one sequence; the E thread is the only one to call it while the request runs. */
#ifndef MOED_GRAMMAR_TOKEN_FILTER_H
#define MOED_GRAMMAR_TOKEN_FILTER_H

#include <stdint.h>

struct token_filter {
    const struct token_filter_ops *ops; /* static; NULL = no filter */
    void *self;                         /* borrowed until EVENT_DONE */
};

struct token_filter_ops {
    /* Writes every word of allowed [ceil(n_vocab / 32)], at least one bit of it set; bits beyond n_vocab are 0. A
     * negative status ends the sequence with it. Called before each draw, again with the same result after a resume. */
    int (*mask)(void *self, uint32_t *allowed);
    /* Takes the drawn token, which the last mask allowed. A negative status ends the sequence with it. */
    int (*accept)(void *self, int32_t token);
};

#endif
