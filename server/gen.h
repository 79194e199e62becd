/* SPDX-License-Identifier: Apache-2.0
 *
 * One API call that generates: its choices, each of them one request lent to the scheduler, and what the client has
 * been told so far. Belongs to L, except that a worker has it while it parses the body and E has each choice's
 * `req` until that choice's EVENT_DONE. A gen therefore outlives its exchange: the client gets its answer as soon
 * as the text is complete, the memory goes when the last request is back.
 *
 * api_completions.c drives it; completion_json.c turns it into JSON. */
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

struct choice {
    struct request req;             /* E's between sched_submit and EVENT_DONE (cancel excepted)    */
    struct gen *gen;
    const struct gen_prompt *prompt;
    struct detok detok;
    struct detok_mark *marks;       /* NULL, or where each token's text begins: [echoed + max_tokens] */
    uint32_t n_echoed;              /* prompt tokens among the marks                                */
    uint32_t n_tokens;              /* generated and counted; tokens after a stop string are not    */
    uint32_t n_marks, n_shown;      /* marks filled; of these already sent                          */
    uint32_t index;
    bool with_scheduler;            /* submitted, no EVENT_DONE yet                                 */
    bool started, finished;         /* finished: the client's view                                  */
    const char *finish_reason;      /* "stop", "length"; NULL until finished                        */
    uint64_t last_token_ns;
};

struct gen {
    struct gen *prev, *next;        /* api's list */
    struct server *server;
    struct exchange *x;             /* NULL once answered                                           */
    struct arena arena;
    struct gen_params params;
    struct parse_error error;
    uv_work_t work;
    bool parsing;                   /* on a worker, or about to be                                  */
    bool gone;                      /* the client went away: drop everything                        */
    bool cancelled;                 /* by shutdown                                                  */
    struct choice *choices;         /* [n_choices], prompt-major: index = prompt * n + j            */
    uint32_t n_choices;
    uint32_t n_out, n_unfinished;   /* choices the scheduler has; choices the client waits for      */
    const char *head;               /* JSON shared by all documents of this call, up to "choices"   */
    uint32_t head_len;
    uint32_t prompt_tokens, cached_tokens, completion_tokens;
    uint64_t submit_ns, first_start_ns, last_start_ns, last_token_ns;
};

struct api {
    struct parse_env env;
    int32_t *eog;                   /* owned, env.eog */
    struct gen *gens;
    uint32_t n_live;
    uint64_t last_group;
    struct buf scratch;             /* one document at a time                                       */
    struct hist ttft, itl, e2e, prompt_tokens, output_tokens;
};

/* completion_json.c. All append to `out`; a buffer that ran full says so in out->failed. */
int completion__make_head(struct gen *g);  /* fills head; 0 or ST_NOMEM */
void completion__put_choice(struct buf *out, const struct choice *c, size_t n_text, uint32_t n_marks); /* detok text, marks n_shown..n_marks */
void completion__put_usage(struct buf *out, const struct gen *g);   /* "usage":{...}   */
void completion__put_timings(struct buf *out, const struct gen *g); /* "timings":{...} */
void completion__put_error(struct buf *out, const struct api_error *e);

#endif
