/* SPDX-License-Identifier: Apache-2.0
 *
 * What parse_req.c (fields) and parse_prompt.c (prompt forms, tokens) share. */
#ifndef MOED_SERVER_PARSE_INTERNAL_H
#define MOED_SERVER_PARSE_INTERNAL_H

#include <cjson/cJSON.h>

#include "server/parse_req.h"

struct parse {
    const struct parse_env *env;
    struct arena *arena;
    struct gen_params *out;
    struct parse_error *e;
    bool echo;
};

/* Fills the error and returns ST_INVALID. param NULL = none. */
int parse__fail(struct parse *p, const char *param, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int parse__no_memory(struct parse *p);

/* The integer in `v` when it is one (5 and 5.0, not true, not "5"); exact up to 2^53. */
bool parse__integer(const cJSON *v, int64_t *out);

/* Fills out->prompts. */
int parse__prompt(struct parse *p, const cJSON *prompt);

#endif
