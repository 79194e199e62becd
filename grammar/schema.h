/* SPDX-License-Identifier: Apache-2.0
 *
 * What the schema files share: JSON values, and the compilation of a JSON schema.
 *
 * The one idea: a rule stands for "a value that satisfies all of these schemas". $ref and allOf put more schemas into the
 * set, anyOf makes one rule per branch, a property's rule is the set of what each schema says about that property.
 * Equal sets are one rule, which is also what makes recursion end. */
#ifndef MOED_GRAMMAR_SCHEMA_H
#define MOED_GRAMMAR_SCHEMA_H

#include "grammar/internal.h"

/* ---- json.c ---- */

enum json_type { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

struct json_value {
    enum json_type type;
    bool checked;                     /* schema.c: its keywords are known                          */
    const char *s;                    /* string: UTF-8, escapes undone; number: as written         */
    size_t n;
    const char *key;                  /* within an object                                          */
    size_t n_key;
    struct json_value *child, *next, *parent;
    uint32_t index, n_children;       /* index within the parent                                   */
};

struct json_value *json__read(struct build *b, const char *s, size_t n); /* NULL: failed */
struct json_value *json__get(const struct json_value *object, const char *key); /* the last of that name, or NULL */
struct json_value *json__get_n(const struct json_value *object, const char *key, size_t n);
bool json__equal(const struct json_value *a, const struct json_value *b); /* numbers by their text */
bool json__names(const struct json_value *v, const char *key);          /* v's key is this */
bool json__is(const struct json_value *v, const char *text);           /* a string with this text */

/* ---- schema.c ---- */

enum item_kind {
    WHOLE,    /* a schema                                                              */
    LOCAL,    /* a schema without its $ref, allOf, anyOf, oneOf, which are elsewhere   */
    BRANCHES, /* the array of an anyOf or oneOf                                        */
};

struct item { const struct json_value *v; enum item_kind kind; };
struct items { struct item *at; uint32_t n, cap; };

enum type_bit { TYPE_NULL = 1, TYPE_BOOLEAN = 2, TYPE_INTEGER = 4, TYPE_NUMBER = 8, TYPE_STRING = 16, TYPE_ARRAY = 32, TYPE_OBJECT = 64, TYPE_ALL = 127 };

struct schema;

/* Fails the build: "schema: #/path/of/v/keyword: what". keyword may be NULL. */
void schema__bad(struct schema *x, int code, const struct json_value *v, const char *keyword, const char *what);
struct build *schema__build(struct schema *x);
void schema__item(struct schema *x, struct items *s, const struct json_value *v, enum item_kind kind);
uint32_t schema__rule_of(struct schema *x, const struct items *s); /* takes the array */
const struct json_value *schema__resolve(struct schema *x, const struct json_value *ref); /* $ref -> schema; NULL: failed */
uint32_t schema__types(struct schema *x, const struct json_value *v); /* bits of "type" (and nullable), all when there is none */
/* A count such as minLength; `absent` when the keyword is not there. */
uint32_t schema__count(struct schema *x, const struct json_value *v, const char *keyword, uint32_t absent);

/* One automaton for the rule from `from` to `to`, for the schemas l (all LOCAL). */
void schema__string(struct schema *x, const struct items *l, uint32_t rule, uint32_t from, uint32_t to);
void schema__number(struct schema *x, const struct items *l, bool integer, uint32_t rule, uint32_t from, uint32_t to);
void schema__array(struct schema *x, const struct items *l, uint32_t rule, uint32_t from, uint32_t to);
void schema__object(struct schema *x, const struct items *l, uint32_t rule, uint32_t from, uint32_t to);
/* Fails unless no value can satisfy two branches. */
void schema__check_one_of(struct schema *x, const struct json_value *branches);

/* ---- schema_json.c: plain JSON ---- */

enum json_rule { JSON_RULE_VALUE, JSON_RULE_OBJECT, JSON_RULE_ARRAY, JSON_RULE_STRING, JSON_RULE_NUMBER, JSON_RULE_INTEGER, JSON_RULE_SPACE };

uint32_t json__rule(struct build *b, enum json_rule which);
void json__byte(struct build *b, uint32_t rule, uint32_t from, uint32_t to, char c);
void json__call(struct build *b, uint32_t rule, uint32_t from, uint32_t to, enum json_rule which);
/* c, then optional white space. */
void json__byte_space(struct build *b, uint32_t rule, uint32_t from, uint32_t to, char c);
/* Exactly this value; strings in their shortest form. */
void json__exactly(struct build *b, uint32_t rule, uint32_t from, uint32_t to, const struct json_value *v);
void json__exactly_string(struct build *b, uint32_t rule, uint32_t from, uint32_t to, const char *s, size_t n);
/* " and the texts of d and ". */
void json__string_of(struct build *b, uint32_t rule, uint32_t from, uint32_t to, const struct dfa *d);
/* ASCII texts of d as they are. */
void json__plain_of(struct build *b, uint32_t rule, uint32_t from, uint32_t to, const struct dfa *d);

#endif
