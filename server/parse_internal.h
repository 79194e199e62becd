/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parsers of request bodies share: parse_fields.c (common fields), parse_req.c (completions), parse_prompt.c (prompt
 * forms, tokens), parse_chat.c (messages) and parse_tools.c. */
#ifndef MOED_SERVER_PARSE_INTERNAL_H
#define MOED_SERVER_PARSE_INTERNAL_H

#include <cjson/cJSON.h>

#include "base/json.h"
#include "server/parse_req.h"

enum field {
    F_MODEL, F_PROMPT, F_MESSAGES, F_MAX_TOKENS, F_MAX_COMPLETION_TOKENS, F_MIN_TOKENS, F_TEMPERATURE, F_TOP_P, F_TOP_K, F_MIN_P,
    F_REPETITION_PENALTY, F_REPEAT_PENALTY, F_FREQUENCY_PENALTY, F_PRESENCE_PENALTY, F_SEED, F_STOP, F_STOP_TOKEN_IDS,
    F_LOGIT_BIAS, F_LOGPROBS, F_TOP_LOGPROBS, F_N, F_BEST_OF, F_ECHO, F_IGNORE_EOS, F_STREAM, F_STREAM_OPTIONS, F_SUFFIX, F_CACHE_PROMPT, F_LOSSY_EXPERTS,
    F_PRIORITY, F_TIMEOUT, F_T_MAX_PREDICT_MS,
    F_TOOLS, F_TOOL_CHOICE, F_PARALLEL_TOOL_CALLS, F_ADD_GENERATION_PROMPT, F_CONTINUE_FINAL_MESSAGE, F_CHAT_TEMPLATE_KWARGS,
    F_REASONING_EFFORT, F_ENABLE_THINKING, F_THINKING, F_THINKING_BUDGET, F_REASONING_FORMAT, F_INCLUDE_REASONING,
    F_RESPONSE_FORMAT, F_GRAMMAR, F_GUIDED_GRAMMAR, F_REGEX, F_GUIDED_REGEX, F_JSON_SCHEMA, F_GUIDED_JSON, F_CHOICE, F_GUIDED_CHOICE, F_STRUCTURED_OUTPUTS,
    F_CONTENT, F_TOKENS, F_ADD_SPECIAL, F_ADD_SPECIAL_TOKENS, F_PARSE_SPECIAL, F_WITH_PIECES,
    F_INPUT, F_ENCODING_FORMAT, F_DIMENSIONS,
    N_FIELDS
};

enum parse_endpoint { PARSE_COMPLETION = 1, PARSE_CHAT = 2, PARSE_TEXT = 4, PARSE_EMBEDDING = 8 };

/* Of a chat request: a prompt that leaves room for an answer, its text, or its tokens however many they are. */
enum parse_want { WANT_PROMPT, WANT_TEXT, WANT_TOKENS };

struct fields {
    const cJSON *v[N_FIELDS];             /* NULL = absent or null, or not a field of this endpoint */
    struct json_member raw[N_FIELDS];     /* the same as it stands in the body                      */
};

struct parse {
    const struct parse_env *env;
    struct arena *arena;
    struct gen_params *out;
    struct parse_error *e;
    enum parse_endpoint endpoint;
    enum parse_want want;
    bool echo;
};

/* Scans and parses the body, finds the endpoint's fields, and gives them to `take`. */
int parse__body(struct parse *p, const char *body, size_t n_bytes, int (*take)(struct parse *p, const struct fields *f));
/* Text of the client as ids in the arena. */
int parse__encode(struct parse *p, const char *text, size_t n, unsigned flags, const int32_t **ids, size_t *n_ids);
int parse__constraint(struct parse *p, const struct fields *f); /* response_format and relatives: fills out->constraint */
int parse__common(struct parse *p, const struct fields *f); /* everything but prompt, messages and what belongs to those */
int parse__terms(struct parse *p, const struct fields *f);  /* priority and time */
int parse__room(struct parse *p);                           /* after the prompts: every choice has to fit */

const char *parse__field_name(enum field k, unsigned *endpoints);   /* of enum parse_endpoint */

/* Fills the error and returns ST_INVALID. param NULL = none. */
int parse__fail(struct parse *p, const char *param, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int parse__no_memory(struct parse *p);

/* The integer in `v` when it is one (5 and 5.0, not true, not "5"); exact up to 2^53. */
bool parse__integer(const cJSON *v, int64_t *out);

int parse__bool(struct parse *p, const cJSON *v, const char *name, bool *out); /* absent leaves *out alone; so below */
int parse__bool_field(struct parse *p, const struct fields *f, enum field k, bool *out);
int parse__u32(struct parse *p, const struct fields *f, enum field k, int64_t lo, int64_t hi, uint32_t *out);

/* 400 when the prompt's n_ids tokens, or a text of n bytes at least, leave no room in the context. */
int parse__fits(struct parse *p, const char *param, uint64_t n_ids);
int parse__text_fits(struct parse *p, const char *param, size_t n_bytes);

/* Fills out->prompts from the field of that name; at most `most` of them, which option `limit` sets (NULL = none does). */
int parse__prompt(struct parse *p, const cJSON *prompt, const char *name, uint32_t most, const char *limit);

int parse__model(struct parse *p, const struct fields *f); /* whether it is the one that is served */

#endif
