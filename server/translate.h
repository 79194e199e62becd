/* SPDX-License-Identifier: Apache-2.0
 *
 * How a request of another API becomes a chat request: its fields are taken apart, a chat body is written from the pieces as
 * they stand, and parse_chat.c reads that. So there is one parser of everything that means something, and a translator
 * knows only where its API puts things. What the chat parser refuses is reported under the name the client used. */
#ifndef MOED_SERVER_TRANSLATE_H
#define MOED_SERVER_TRANSLATE_H

#include "server/parse_internal.h"

struct translate {
    struct parse p;               /* for parse__fail                                            */
    struct buf out;               /* the chat body                                              */
    struct buf text, reasoning, calls; /* of the message being put together                     */
    struct buf scratch;
    const char *role;             /* of that message; NULL = none is open                       */
    bool any;                     /* a message was written                                      */
};

/* A field that the chat request has under another name. */
struct translate_name { const char *chat, *here; };

void translate_open(struct translate *t, struct parse_error *e, size_t n_bytes); /* of the body */
void translate_close(struct translate *t);

/* Checks the body and finds its fields by name: value NULL = absent or null. */
int translate_fields(struct translate *t, const char *body, size_t n_bytes, const char *const *names, int n_names, struct json_member *out);

/* The member of an object; value NULL = absent or null, or `object` is no object. */
struct json_member translate_member(struct translate *t, const struct json_member *object, const char *name);
bool translate_is(struct translate *t, const struct json_member *v, const char *text); /* the string `text`? */
bool translate_is_string(const struct json_member *v);
const char *translate_show(struct translate *t, const struct json_member *v);          /* its beginning, for a message; until the next call */

/* Messages. Views are of the body, checked to be string literals, or objects and lists where the chat request has those. */
void translate_begin(struct translate *t, const char *role);     /* goes on with the open message when it has the same role */
void translate_end(struct translate *t);                         /* writes the open message */
void translate_text(struct translate *t, const struct json_member *text);
void translate_reasoning(struct translate *t, const struct json_member *text);
void translate_call(struct translate *t, const struct json_member *id, const struct json_member *name, const struct json_member *arguments);
void translate_result(struct translate *t, const struct json_member *id); /* a tool's: the texts since translate_end */

/* ,"name":value, or nothing when it is absent. */
void translate_put(struct translate *t, const char *name, const struct json_member *v);

/* Fields that both APIs lack and pass on to the chat request as they are. */
enum { TRANSLATE_N_PASSED = 15 };
extern const char *const translate_passed[TRANSLATE_N_PASSED];

/* Reads the chat body. `names` [n] tells how a field that is refused is called here; "messages" covers what is in them. */
int translate_parse(struct translate *t, int (*parse)(const struct parse_env *env, const char *body, size_t n_bytes, struct arena *a, struct gen_params *out, struct parse_error *e),
                    const struct parse_env *env, struct arena *a, struct gen_params *out, const struct translate_name *names, size_t n);

#endif
