/* SPDX-License-Identifier: Apache-2.0
 *
 * One API call that generates: its choices, each of them one request lent to the scheduler, and what the client has
 * been told so far. Belongs to L, except that a worker has it while it parses the body and E has each choice's
 * `req` until that choice's EVENT_DONE. A gen therefore outlives its exchange: the client gets its answer as soon
 * as the text is complete, the memory goes when the last request is back.
 *
 * generate.c drives it; api_completions.c with completion_json.c and api_chat.c with chat_json.c are the two forms of it, and
 * api_embeddings.c the one that generates nothing. */
#ifndef MOED_SERVER_GEN_H
#define MOED_SERVER_GEN_H

#include "scheduler/request.h"
#include "server/internal.h"
#include "server/metrics_hist.h"
#include "server/parse_req.h"

enum {
    GEN_ARENA_BYTES = 192 * 1024 * 1024,  /* hard cap; what a request asks for is bounded field by field below it  */
    GEN_LOGPROB_BYTES = 64 * 1024 * 1024, /* of which log-probabilities; untouched pages cost nothing              */
    GEN_MAX_CHOICES = 1024,
};

struct gen;
struct choice;

/* The documents of an API that are not OpenAI's with choices. It has one choice, streams named events, and sends no [DONE].
 * Writers that say false ran out of room. */
struct gen_events {
    bool (*send)(struct choice *c, size_t n_text);                               /* what is new; the first time also what comes before all */
    bool (*end)(struct gen *g);                                                  /* what comes after all                                   */
    void (*put_whole)(struct buf *out, struct choice *c, size_t n_text);         /* the response in one piece                              */
    const char *(*put_error)(struct buf *out, const struct gen *g, const struct api_error *e); /* in a stream; returns the event's name */
};

/* What an endpoint does in its own way. */
struct gen_format {
    const char *object, *chunk_object, *id_prefix;
    const struct gen_events *events; /* NULL, or instead of all but parse */
    int (*parse)(const struct parse_env *env, const char *body, size_t n, struct arena *a, struct gen_params *out, struct parse_error *e);
    void (*put_embeddings)(struct buf *out, const struct gen *g); /* NULL, or instead of all but parse: the whole response, on a worker */
    /* One choice as it is so far, for a whole response or as a chunk: n_text bytes of detok's text, marks n_shown..n_marks. */
    void (*put_choice)(struct buf *out, const struct choice *c, size_t n_text, uint32_t n_marks);
    void (*put_usage)(struct buf *out, const struct gen *g); /* "usage":{...} */
};

/* A reply as a row of blocks, for APIs that show it so: which one is open, and how many there were. */
enum block_kind { BLOCK_NONE, BLOCK_REASONING, BLOCK_TEXT, BLOCK_CALL };
struct reply_blocks {
    enum block_kind open;
    uint32_t n;                     /* begun; the open one is n - 1                                 */
    char id[CHAT_ID_BYTES];         /* of the open one, a call: its id and name                     */
    char name[CHAT_MAX_NAME_BYTES];
    size_t n_name;
    uint32_t n_events;              /* api_responses.c: sent                                        */
    struct buf text, done;          /* api_responses.c: of the open block; of those closed, as JSON */
};

/* What a block writer is told. */
struct block {
    enum block_kind kind;
    uint32_t index;
    bool last, broken;              /* closed because the reply ends; a call that came to nothing   */
    const char *id, *name, *text;   /* of a call its id and name; of the delta: reasoning, text, arguments */
    size_t n_name, n_text;
};
struct block_writer { bool (*open)(struct choice *c, const struct block *b), (*delta)(struct choice *c, const struct block *b), (*close)(struct choice *c, const struct block *b); };

/* What a chat choice has besides: its bytes become text in `raw`, the reply parser takes that apart, and the answer goes
 * through the choice's detok, which looks for stop strings there. */
struct chat_choice {
    struct detok raw;
    struct chat_reply reply;
    struct reply_blocks blocks;     /* of gen_events                                                */
    struct chat_call_cursor calls_shown;
    bool role_shown, one_call, hide_reasoning;
};

struct choice {
    struct request req;             /* E's between sched_submit and EVENT_DONE (cancel excepted)    */
    struct gen *gen;
    const struct gen_prompt *prompt;
    struct detok detok;
    struct grammar_state *grammar;  /* owned; NULL = free                                           */
    struct thinking_limit *limit;   /* owned; NULL = none                                           */
    struct chat_choice *chat;       /* NULL = not chat; the gen's arena                             */
    struct detok_mark *marks;       /* NULL, or where each token's text begins: [echoed + max_tokens] */
    uint32_t n_echoed;              /* prompt tokens among the marks                                */
    uint32_t n_tokens;              /* generated and counted; tokens after a stop string are not    */
    uint32_t n_marks, n_shown;      /* marks filled; of these already sent                          */
    uint32_t index;
    bool with_scheduler;            /* submitted, no EVENT_DONE yet                                 */
    bool started, finished;         /* finished: the client's view                                  */
    const char *finish_reason;      /* "stop", "length", "tool_calls"; NULL until finished                        */
    uint64_t last_token_ns;
};

struct gen {
    struct gen *prev, *next;        /* api's list */
    struct server *server;
    const struct gen_format *format;
    struct exchange *x;             /* NULL once answered                                           */
    struct arena arena;
    struct gen_params params;
    struct parse_error error;
    uv_work_t work;
    struct grammar *grammar;        /* one reference; NULL = the output is free                     */
    bool on_worker;                 /* or about to be                                               */
    bool gone;                      /* the client went away: drop everything                        */
    bool cancelled;                 /* by shutdown                                                  */
    struct choice *choices;         /* [n_choices], prompt-major: index = prompt * n + j            */
    uint32_t n_choices;
    uint32_t n_submitted;           /* the first ones; embeddings go in a few at a time             */
    uint32_t n_out, n_unfinished;   /* choices the scheduler has; choices the client waits for      */
    struct buf document;            /* what put_embeddings wrote                                    */
    const char *head;               /* JSON shared by all documents of this call, up to "choices"   */
    uint32_t head_len;
    uint32_t prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens;
    uint64_t submit_ns, first_start_ns, last_start_ns, last_token_ns;
    uint64_t deadline_ns;           /* of clock_mono_ns; 0 = none                                   */
    int8_t priority;
};

struct api {
    struct parse_env env;
    int32_t *eog;                   /* owned, env.eog */
    struct grammar_vocab *vocab;
    struct gen *gens;
    uint32_t n_live;
    uint64_t last_group;
    struct buf scratch;             /* one document at a time                                       */
    struct hist ttft, itl, e2e, prompt_tokens, output_tokens;
};

/* ---- admission.c ---- */
struct admission_refusal { struct api_error error; char text[160]; /* its message */ };
void admission_set_terms(struct gen *g);                                   /* deadline and priority, from the request and whose it is */
int admission_check(const struct gen *g, struct admission_refusal *r);    /* 0, or why it is not let in */
void admission_expired(const struct gen *g, struct admission_refusal *r); /* its deadline passed before anything came */

/* ---- generate.c ---- */
void gen_start(struct exchange *x, const struct gen_format *format);
void gen__free(struct gen *g);
void gen__cancel(struct gen *g);

/* ---- api_chat.c ---- */
struct chat_choice *chat_choice_new(struct gen *g); /* NULL when out of memory */
void chat_choice_clear(struct chat_choice *c);      /* NULL is fine */
void chat_choice_push(struct choice *c, const char *bytes, size_t n, bool match, struct detok_mark *at); /* as detok_push */
void chat_choice_finish(struct choice *c);
bool chat_choice_has_news(const struct choice *c);      /* something to stream besides detok's text */
void chat_choice_sent(struct choice *c);                /* all of that went out */
bool chat_choice_is_done(const struct chat_choice *c);  /* the one call allowed is there */
bool chat_choice_next_call(const struct choice *c, struct chat_call_cursor *cursor, struct chat_call_news *out); /* as chat_reply_next_call */

/* ---- blocks.c ---- */
bool blocks__send(struct choice *c, size_t n_text, const struct block_writer *w); /* what is new; closes the last block when the choice is finished */
bool blocks__event(struct choice *c, const char *name);                           /* sends the scratch buffer as an event; false when it ran full */

/* ---- completion_json.c, chat_json.c. All append to `out`; a buffer that ran full says so in out->failed. ---- */
void completion__put_choice(struct buf *out, const struct choice *c, size_t n_text, uint32_t n_marks);
void completion__put_usage(struct buf *out, const struct gen *g);
void completion__put_timings(struct buf *out, const struct gen *g); /* "timings":{...} */
void completion__put_logprob(struct buf *out, float v); /* JSON has no infinity: banned tokens are -9999 */
void chat__put_choice(struct buf *out, const struct choice *c, size_t n_text, uint32_t n_marks);
void chat__put_usage(struct buf *out, const struct gen *g);

#endif
