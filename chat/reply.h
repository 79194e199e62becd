/* SPDX-License-Identifier: Apache-2.0
 *
 * What a model wrote, taken apart: reasoning, the visible answer, and tool calls. Text goes in as it is generated and
 * comes out as soon as it is certain what it is; the parts are the same however the text was cut.
 *
 * A tool call is in `calls` when it is complete and its arguments are a JSON object. What begins like a call and does not
 * become one is content, marks included: nothing the model wrote is lost but the marks of calls and reasoning and the
 * space around them. A call of a known tool that is being written shows before, as a draft: its name, and as much of its arguments as
 * will be the same bytes if it becomes a call. chat_reply_next_call gives both as a stream shows them. Plain state of one choice;
 * one thread at a time. */
#ifndef MOED_CHAT_REPLY_H
#define MOED_CHAT_REPLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/json_walk.h"

enum {
    CHAT_MAX_CALLS = 64,        /* of one reply; later ones are content */
    CHAT_MAX_NAME_BYTES = 256,
    CHAT_ID_BYTES = 64,
};

/* How a family of models writes tool calls. */
enum chat_syntax {
    CHAT_SYNTAX_NONE,
    CHAT_SYNTAX_HERMES,   /* <tool_call>{"name": ..., "arguments": {...}}</tool_call>: Hermes, Qwen          */
    CHAT_SYNTAX_QWEN_XML, /* <tool_call><function=f><parameter=p>v</parameter></function></tool_call>        */
    CHAT_SYNTAX_GLM,      /* <tool_call>f<arg_key>p</arg_key><arg_value>v</arg_value></tool_call>            */
    CHAT_SYNTAX_MISTRAL,  /* [TOOL_CALLS][{"name": ..., "arguments": {...}}], [TOOL_CALLS]f[ARGS]{...}       */
    CHAT_SYNTAX_LLAMA3,   /* {"name": ..., "parameters": {...}}, <|python_tag|>f.call(p="v")                 */
    CHAT_SYNTAX_DEEPSEEK, /* <｜tool▁call▁begin｜>f<｜tool▁sep｜>{...}<｜tool▁call▁end｜>                    */
    CHAT_SYNTAX_KIMI,     /* <|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{...}<|tool_call_end|> */
    CHAT_SYNTAX_INVOKE,   /* <invoke name="f"><parameter name="p">v</parameter></invoke>: MiniMax, DeepSeek V4 */
    CHAT_SYNTAX_HARMONY,  /* <|channel|>commentary to=functions.f<|message|>{...}<|call|>: gpt-oss           */
    CHAT_N_SYNTAXES
};

const char *chat_syntax_name(enum chat_syntax s);             /* "hermes", ...; for options */
bool chat_syntax_find(const char *name, enum chat_syntax *out);

struct chat_think { const char *open, *close; };

/* How a model writes, as far as its chat template tells. */
struct chat_dialect {
    enum chat_syntax syntax;
    const struct chat_think *think; /* marks of its reasoning; NULL = none, and with harmony, which has channels */
};

void chat_dialect_detect(struct chat_dialect *out, const char *template_text, size_t n);

/* Whether a prompt that ends in this text has opened the reasoning already. */
bool chat_dialect_in_reasoning(const struct chat_dialect *d, const char *prompt, size_t n);

/* What the parsers need to know of a tool: which of its parameters are strings, where the syntax does not say. */
struct chat_param { const char *name; bool is_string; };
struct chat_tool {
    const char *name;
    const struct chat_param *params; /* [n_params] */
    uint32_t n_params;
};

struct chat_call {
    char id[CHAT_ID_BYTES];          /* the model's where its syntax has ids, else made from id_seed  */
    size_t name, n_name;             /* places in chat_reply.strings, of a draft in chat_reply.partial */
    size_t arguments, n_arguments;   /* a JSON object, or how it begins                               */
    uint32_t serial;                 /* grows along the text, however it was cut                      */
};

struct chat_text {
    struct buf text;
    size_t ready;                    /* of these, certain and not taken                               */
    bool begun;                      /* something was ready once                                      */
};

struct chat_reply_opts {
    struct chat_dialect dialect;     /* think = NULL leaves reasoning marks in the content            */
    const struct chat_tool *tools;   /* [n_tools], borrowed; none: calls are not looked for           */
    uint32_t n_tools;
    bool in_reasoning;               /* the prompt has opened the reasoning                           */
    uint64_t id_seed;
    size_t max_bytes;                /* of each text                                                  */
};

struct chat_reply {
    struct chat_reply_opts o;
    struct chat_text reasoning, content;
    struct chat_call *calls;         /* [n_calls], owned                                              */
    uint32_t n_calls;
    struct buf strings;
    struct chat_call *drafts;        /* [n_drafts] of the block held, in the same memory; only the last one grows */
    uint32_t n_drafts;
    struct buf partial;
    bool failed;                     /* out of memory, or beyond max_bytes                            */

    int state;                       /* below: reply.c's own                                          */
    struct buf held;                 /* not decided                                                   */
    size_t seen, tried;              /* of held: searched; length at the last trial                   */
    const struct chat_mark *mark;    /* of the block held                                             */
    struct chat_progress {           /* calls_draft.c: how far the drafts of the block are            */
        uint32_t serial, n_before;   /* of its first call; calls before it                            */
        int phase;
        size_t at, seen;             /* behind the open mark: what was read; what was looked at for tags */
        struct json_walk json;
    } progress;
    uint32_t n_blocks;               /* begun                                                         */
    bool final, analysis;            /* finish was called; harmony: in the analysis channel           */
    char channel_to[CHAT_MAX_NAME_BYTES + 1]; /* harmony: the recipient of the message               */
};

void chat_reply_init(struct chat_reply *r, const struct chat_reply_opts *o); /* allocates nothing */
void chat_reply_clear(struct chat_reply *r);

void chat_reply_push(struct chat_reply *r, const char *text, size_t n); /* whole UTF-8 characters */
void chat_reply_finish(struct chat_reply *r);                           /* no more text: everything becomes ready */
void chat_text_take(struct chat_text *t, size_t n);                     /* drops n <= ready bytes */

/* The calls as a stream shows them: each begins, grows and ends, one after the other. A zeroed cursor is before all. A draft that
 * came to nothing ends broken: what was shown of it cannot be taken back. */
struct chat_call_cursor { uint32_t index, next; size_t n_shown; bool open; };
struct chat_call_news {
    uint32_t index;                  /* of the call in the stream                                     */
    bool begins, ends, broken;
    const char *id, *name, *text;    /* id and name when it begins; text: more of the arguments; views until the next push */
    size_t n_name, n_text;
};
/* What is new behind the cursor; false when nothing is. last: nothing will be added, drafts are broken. */
bool chat_reply_next_call(const struct chat_reply *r, struct chat_call_cursor *c, bool last, struct chat_call_news *out);

/* Is the text of this control token part of the syntax? Then it is pushed; other control tokens are no text. */
bool chat_reply_wants(const struct chat_reply *r, const char *piece, size_t n);
bool chat_reply_in_reasoning(const struct chat_reply *r);

#endif
