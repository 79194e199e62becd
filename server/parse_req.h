/* SPDX-License-Identifier: Apache-2.0
 *
 * The body of POST /v1/completions, checked and turned into what the scheduler needs. Pure: reads the environment,
 * writes into the caller's arena, so it runs on a libuv worker (bodies from PARSE_INLINE_BYTES on) or on L.
 *
 * The rules, where the OpenAI documents and the peers leave a choice:
 * - null is absent, unknown fields are ignored, a wrong type or range is 400 naming the field. A field this server
 *   reads that is given twice is 400. Bool is never a number; 5.0 is an integer.
 * - model: missing or "" is the served one; any other name than the served id or the alias is 404.
 * - prompt: string, [string], [id] or [[id]], never mixed. Strings may contain special tokens ("<|im_start|>") and
 *   get BOS as the vocabulary says: this endpoint takes whole prompts. Id lists are taken as they are. "" becomes
 *   [BOS], or is 400 without one.
 * - max_tokens: default 16, cut to what fits; 0 evaluates the prompt only; max_completion_tokens is an alias, both
 *   with different values are 400. Prompt + max_tokens beyond the context is 400 context_length_exceeded.
 * - temperature [0, 2], default 1. top_p [0, 1], 0 meaning the best token only. top_k -1 or 0 = off.
 *   repetition_penalty (0, 10], also as repeat_penalty. frequency_ and presence_penalty [-2, 2].
 * - seed: any int64. Choice j of each prompt samples with seed + j; without a seed all choices get random ones.
 * - stop: up to 16 strings of 1 to 1024 bytes. stop_token_ids: up to 64; they are obeyed under ignore_eos too.
 * - logit_bias: up to 1024 ids to [-100, 100]; -100 bans. logprobs 0..20. best_of must equal n.
 * - priority: -10 to 10, lower first; who may ask for what: admission.c. timeout: seconds, 0.001 to 86400.
 *   t_max_predict_ms: -1 and up, -1 and 0 meaning no bound.
 * - suffix other than "" is 400. stream_options needs stream. cache_prompt: false keeps the prompt out of the prefix
 *   cache. lossy_experts: "off" (default), "fewer", "cached", "both", as far as the server's option of that name goes. */
#ifndef MOED_SERVER_PARSE_REQ_H
#define MOED_SERVER_PARSE_REQ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "kernels/sample.h"
#include "server/chat_model.h"
#include "server/constraint.h"
#include "server/detok.h"

struct tokenizer;

enum {
    PARSE_INLINE_BYTES = 16 * 1024,  /* smaller bodies are parsed on L: tens of microseconds               */
    PARSE_MAX_DEPTH = 64,
    PARSE_MAX_NODES = 512 * 1024,    /* cJSON takes 80 bytes each: 40 MiB for the length of a parse         */
    PARSE_MAX_STOP_IDS = 64,
    PARSE_MAX_BIAS = 1024,
    PARSE_DEFAULT_MAX_TOKENS = 16,
    PARSE_MAX_INPUTS = 2048,         /* embeddings of one call, as OpenAI's service takes                    */
};

/* What a request is checked against; fixed at start. */
struct parse_env {
    const struct tokenizer *tokenizer;
    const char *model_name, *model_alias;  /* alias "" or NULL = none                                       */
    uint32_t n_ctx;                        /* tokens of one sequence                                        */
    uint32_t n_embd;                       /* dimensions of an embedding                                    */
    uint32_t max_n, max_prompts, max_choices; /* max_choices bounds n * prompts                            */
    uint32_t max_piece_bytes;              /* longest vocabulary entry; 0 = unknown                         */
    const int32_t *eog;                    /* [n_eog] ids that end a generation                             */
    uint32_t n_eog;
    const struct chat_model *chat;         /* NULL = no chat                                                */
    uint8_t lossy;                         /* enum engine_lossy: what requests may ask for                  */
};

enum tool_choice { TOOL_CHOICE_AUTO, TOOL_CHOICE_NONE, TOOL_CHOICE_REQUIRED, TOOL_CHOICE_NAMED };

/* What a chat request adds: how its replies are taken apart. */
struct gen_chat {
    struct chat_dialect dialect;
    const struct chat_tool *tools;         /* [n_tools]; none when tool_choice is "none"                    */
    uint32_t n_tools;
    enum tool_choice choice;
    uint32_t chosen;                       /* TOOL_CHOICE_NAMED: its index                                  */
    bool in_reasoning;                     /* the prompt ends inside the reasoning                          */
    bool one_call;                         /* parallel_tool_calls: false                                    */
    bool hide_reasoning;                   /* include_reasoning: false                                      */
    uint32_t thinking_budget;              /* tokens; UINT32_MAX = none                                     */
};

struct gen_prompt {
    const char *text;                      /* NULL when given as ids, or when nobody will look              */
    size_t n_bytes;
    const int32_t *ids;                    /* [n_ids], n_ids >= 1                                           */
    uint32_t n_ids;
};

struct gen_params {                        /* pointers: the arena's                                         */
    struct gen_prompt *prompts;            /* [n_prompts]                                                   */
    uint32_t n_prompts, n;
    uint32_t max_tokens, min_tokens;       /* max_tokens is cut per prompt when it was not given            */
    bool max_tokens_given;
    struct kern_sample sample;             /* seed included; n_top_logprobs is -1 or `logprobs`             */
    bool seed_given;
    struct detok_stop *stops;              /* [n_stops]                                                     */
    uint32_t n_stops;
    const int32_t *stop_ids;               /* [n_stop_ids] what ends a sequence, eog included unless ignored */
    uint32_t n_stop_ids;
    bool ignore_eos;                       /* only when nothing but eog would end a sequence                */
    bool echo, stream, include_usage, continuous_usage, no_prefix_cache;
    uint8_t lossy;                         /* enum engine_lossy                                             */
    int8_t priority;                       /* lower goes first; meant when priority_given                   */
    bool priority_given;
    uint32_t timeout_ms;                   /* for the whole request; 0 = not given                          */
    uint32_t max_predict_ms;               /* from the first token on; 0 = no bound                         */
    struct constraint constraint;
    bool embeds, base64;                   /* the prompts' hidden states are wanted, in that form           */
    bool is_chat;
    struct gen_chat chat;
    const char *repeated;                  /* JSON members of the request that its response repeats; /v1/responses */
};

struct parse_error {
    int status;                            /* HTTP                                                          */
    const char *code;                      /* static; NULL = none                                           */
    char param[64];                        /* "" = none                                                     */
    char message[512];
};

/* 0, or a status with *e filled. `out` is meaningful on 0 only and lives as long as `a`. */
int parse_completion(const struct parse_env *env, const char *body, size_t n_bytes, struct arena *a,
                     struct gen_params *out, struct parse_error *e);

/* The body of POST /v1/chat/completions: messages rendered by the model's template become the one prompt. Rules beside
 * those above:
 * - roles: system, developer (system where the template does not know it), user, assistant, tool. Content is a string or
 *   a list of text parts, which are joined by line breaks; a part of another type is 400 naming it. An assistant's may
 *   be null beside tool_calls or reasoning_content. tool_calls' arguments are JSON text of an object, or the object.
 *   Other members of a message are given to the template as they are.
 * - A last assistant message is continued, unless add_generation_prompt is true or continue_final_message false; both
 *   true, or two assistant messages at the end, are 400.
 * - max_tokens defaults to what fits. logprobs is a bool, top_logprobs 0..20 needs it.
 * - Text of a request never becomes a control token. What the template refuses is 400 with its own message. */
int parse_chat(const struct parse_env *env, const char *body, size_t n_bytes, struct arena *a,
               struct gen_params *out, struct parse_error *e);

/* The same messages as text, prompts[0].text, or as tokens; both may be longer than the context. */
int parse_chat_text(const struct parse_env *env, const char *body, size_t n_bytes, struct arena *a,
                    struct gen_params *out, struct parse_error *e);
int parse_chat_tokens(const struct parse_env *env, const char *body, size_t n_bytes, struct arena *a,
                      struct gen_params *out, struct parse_error *e);

/* The bodies of the Anthropic Messages API, translated into chat requests and checked as such. Rules beside those above:
 * - max_tokens is required. system is a string or text blocks. Messages of the same role in a row are one.
 * - Blocks: text; of an assistant tool_use and thinking, of a user tool_result with text. Others are 400 naming them.
 * - tools: those of type "custom". Sampling fields that only the chat request has are taken too. */
int parse_messages(const struct parse_env *env, const char *body, size_t n_bytes, struct arena *a,
                   struct gen_params *out, struct parse_error *e);
int parse_messages_tokens(const struct parse_env *env, const char *body, size_t n_bytes, struct arena *a,
                          struct gen_params *out, struct parse_error *e); /* as parse_chat_tokens */
extern const char *const parse_messages_fields[]; /* up to NULL; without translate_passed */

/* The body of the OpenAI Responses API, the same way. Rules beside those above:
 * - input: a string or items: message, function_call, function_call_output, reasoning. What an assistant said in a row is
 *   one message. instructions come first, as a system message. Nothing is continued.
 * - tools: functions. text.format: text, json_object, json_schema. reasoning.effort.
 * - Nothing is kept: store true, previous_response_id, conversation, prompt and background are 400. */
int parse_responses(const struct parse_env *env, const char *body, size_t n_bytes, struct arena *a,
                    struct gen_params *out, struct parse_error *e);
extern const char *const parse_responses_fields[]; /* up to NULL; without translate_passed */

/* The body of POST /v1/embeddings. input is what prompt is above, with at most PARSE_MAX_INPUTS entries, and a text in it must not
 * be empty. encoding_format: "float" (default) or "base64", of little-endian floats. dimensions: those the model has. */
int parse_embedding(const struct parse_env *env, const char *body, size_t n_bytes, struct arena *a,
                    struct gen_params *out, struct parse_error *e);

/* /tokenize: `content` (or `prompt`) as text, or `messages` as above; /detokenize: `tokens`. */
struct text_params {
    bool is_messages, with_pieces;
    const int32_t *ids;                    /* [n_ids] the arena's                                           */
    size_t n_ids;
};
int parse_tokenize(const struct parse_env *env, const char *body, size_t n_bytes, struct arena *a,
                   struct text_params *out, struct parse_error *e);
int parse_detokenize(const struct parse_env *env, const char *body, size_t n_bytes, struct arena *a,
                     struct text_params *out, struct parse_error *e);

/* enum engine_lossy as requests and the option lossy-experts write it. */
extern const char *const parse_lossy_names[4]; /* by bits */
int parse_lossy(const char *name);             /* bits, or -1 */

/* Tokens that max_tokens allows behind this prompt. */
uint32_t parse_room(const struct parse_env *env, const struct gen_params *p, const struct gen_prompt *prompt);

#endif
