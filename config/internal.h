/* SPDX-License-Identifier: Apache-2.0
 *
 * The option table, shared by options.c (rows), parse.c (reading) and print.c (writing). */
#ifndef MOED_CONFIG_INTERNAL_H
#define MOED_CONFIG_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

#include "config/config.h"

enum option_type {
    OPTION_STRING,
    OPTION_ENUM,     /* string out of `choices`                           */
    OPTION_BOOL,     /* on | off                                          */
    OPTION_U32,
    OPTION_BYTES,    /* uint64_t; units k kb m mb g gb                    */
    OPTION_MS,       /* uint32_t milliseconds; units ms s m               */
};

enum option_origin { ORIGIN_DEFAULT, ORIGIN_FILE, ORIGIN_ENV, ORIGIN_FLAG };

struct option {
    const char *name;      /* file and flag name; MOED_NAME with '_' for '-' in the environment */
    char letter;           /* short flag, 0 = none                                               */
    enum option_type type;
    size_t offset;         /* of the field in struct config                                      */
    uint64_t min, max;     /* numbers only                                                       */
    const char *choices;   /* "a|b|c", OPTION_ENUM only                                          */
    const char *fallback;  /* the default, in file syntax                                        */
    const char *section;   /* starts a new section of moed.conf; NULL = same as the row above    */
    const char *brief;     /* one line, for --help                                               */
    const char *text;      /* what, when to change, cost; for moed.conf; lines end in '\n'       */
};

extern const struct option config__options[];
extern const size_t config__n_options;

/* Parses `value` into the option's field. `where` names the source in errors ("moed.conf:12", "MOED_PORT", "--port"). */
int config__set(struct config *c, const struct option *o, const char *value, enum option_origin origin, const char *where,
                struct err *e);
const struct option *config__find(const char *name, size_t len); /* NULL when unknown */
void config__env_name(const struct option *o, char *out, size_t cap);

#endif
