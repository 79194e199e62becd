/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of scheduler/ share. Two threads: L (submits, cancels, polls; sched.c) and E (everything else).
 * They meet in two SPSC rings and a handful of atomics, all in the "crossing" part of struct sched.
 *
 * Life of a sequence:   queued -> running -> done -> cached (KV kept for reuse) -> gone
 *                                  |   ^
 *                                  v   |
 *                               preempted       and from every live state straight to done when cancelled
 *
 * The one idea: a sequence is a token list and the number of them whose KV is computed. Prefill, decode, resuming after a
 * preemption and starting from a shared prefix differ only in those two numbers. */
#ifndef MOED_SCHEDULER_INTERNAL_H
#define MOED_SCHEDULER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/park.h"
#include "base/spsc.h"
#include "scheduler/scheduler.h"

struct seq;

/* ---- prefix.c: which computed page-sized blocks exist, by the hash of all tokens up to their end ---- */

struct prefix_block {
    uint64_t hash;              /* of tokens [0, (own index + 1) * page_tokens)            */
    struct seq *seq;            /* owner; the block is an element of seq->blocks           */
    struct prefix_block *next;  /* same bucket; meaningful while indexed                   */
    struct prefix_block **link; /* what points at this block                               */
};

struct prefix_index {
    struct prefix_block **buckets; /* [mask + 1], owned                                    */
    uint64_t mask;
    uint64_t seed;              /* so that nobody can prepare prompts that share a bucket  */
    uint32_t page_tokens;
};

int prefix__init(struct prefix_index *x, uint32_t n_pages, uint32_t page_tokens); /* 0 or ST_NOMEM */
void prefix__clear(struct prefix_index *x);
/* Hashes the blocks of q that its present tokens fill. */
void prefix__hash(const struct prefix_index *x, struct seq *q);
/* Makes the blocks of q whose KV is computed findable. */
void prefix__publish(struct prefix_index *x, struct seq *q);
/* Makes none of them findable. */
void prefix__withdraw(struct seq *q);
/* The longest run of whole blocks, at most max_tokens, with which q's tokens start and whose KV *from has. Returns tokens
 * (a multiple of page_tokens, 0 = nothing); tokens are compared, so a hash collision cannot change an answer. */
uint32_t prefix__find(const struct prefix_index *x, struct seq *q, uint32_t max_tokens, struct seq **from);
/* True when everything `a` published is also the beginning of what `b` published. */
bool prefix__covers(const struct prefix_index *x, const struct seq *b, const struct seq *a);

/* ---- seq.c: one sequence ---- */

struct seq {                    /* E's own once submitted; one allocation with its arrays   */
    struct request *request;    /* NULL once EVENT_DONE was pushed                          */
    int32_t *tokens;            /* [cap_tokens] prompt, then output                         */
    struct prefix_block *blocks; /* [cap_tokens / page_tokens]                              */
    uint32_t cap_tokens;
    uint32_t n_prompt;
    uint32_t n_tokens;          /* prompt and output so far                                 */
    uint32_t n_computed;        /* of them in KV                                            */
    uint32_t n_reserved;        /* positions the engine has room for; whole pages           */
    uint32_t n_reused;          /* of n_computed came from another sequence                 */
    uint32_t n_hashed;          /* blocks with a hash                                       */
    uint32_t n_published;       /* blocks in the index                                      */
    seq_id id;                  /* valid while running or cached                            */
    bool share;                 /* may reuse and leave KV                                   */
    uint64_t deadline_ns;       /* UINT64_MAX = none                                        */
    bool ran;                   /* had a place in the batch                                 */
    bool started;               /* EVENT_STARTED was pushed                                 */
    bool cached;                /* ended; its KV is kept for others                         */
    uint64_t last_step;         /* running: last step it was part of                        */
    uint64_t last_used;         /* cached: for LRU                                          */
    struct seq *next;           /* queued: FIFO of its group                                */
    struct kern_sample banned;  /* request->sample with the stop ids banned                 */
    uint32_t *mask;             /* [n_vocab / 32 rounded up] of the request's filter, or NULL */
    bool masked;                /* mask holds for the next draw                             */
    int filter_status;          /* of the filter's last call                                */
};

int seq__new(struct seq **out, struct request *r, const struct engine_info *info, bool share); /* 0 or ST_NOMEM; L */
void seq__free(struct seq *q);
bool seq__cancelled(const struct seq *q);
static inline uint32_t seq__n_output(const struct seq *q) { return q->n_tokens - q->n_prompt; }
/* Describes the next n_take tokens of q to the engine. */
void seq__item(const struct seq *q, uint32_t n_take, struct batch_item *item);
/* Asks the request's filter, if any, what may be drawn after this item. */
void seq__mask(struct seq *q, struct batch_item *item);
/* Takes a drawn token into q and writes its logprobs to the request. FINISH_NONE, or why the sequence ends with it;
 * FINISH_ERROR: the token was not taken, filter_status says why. */
enum finish_reason seq__append(struct seq *q, const struct kern_sampled *drawn);

/* ---- batcher.c: pure policy ---- */

struct batch_want {
    uint32_t n_pending;  /* tokens that could be computed now; 0 = nothing                        */
    bool decode;         /* one new output token is all that is pending                           */
    uint64_t last_step;  /* decode: last step it was part of                                      */
    uint32_t n_take;     /* out: tokens in this step                                              */
};

/* Shares `budget` >= 1 tokens among the n wants, which come in the order they have. `turn` counts steps. Returns tokens taken. */
uint32_t batcher__plan(struct batch_want *wants, uint32_t n, uint32_t budget, uint64_t turn);

/* ---- queue.c: fair order of waiting sequences ---- */

struct queue_group {
    uint64_t key;
    struct queue_lane *lane;
    struct seq *head, *tail;        /* FIFO, not empty                              */
    struct queue_group *next_turn;  /* line of the lane's groups; free list         */
    struct queue_group *next_hash;  /* same bucket                                  */
};

struct queue_lane {
    uint32_t tenant;
    int8_t priority;
    struct queue_group *turn, *turn_tail; /* not empty; turn: whose turn is next    */
    struct queue_lane *next;        /* oldest first; free list                      */
};

enum { QUEUE_COUNT_SCALE = 1 << 16 }; /* so that a token counts for something at any weight */

struct queue_tenant {
    uint64_t count;                 /* tokens given, times QUEUE_COUNT_SCALE / weight */
    uint32_t weight;
    uint32_t n;                     /* waiting sequences                            */
};

struct queue {
    struct queue_tenant *tenants;   /* [n_tenants], owned                           */
    struct queue_lane *lane_pool;   /* [cap], owned                                 */
    struct queue_group *groups;     /* [cap], owned                                 */
    struct queue_group **buckets;   /* [mask + 1], owned                            */
    struct queue_lane *lanes, *free_lanes;
    struct queue_group *free;
    uint64_t mask;
    uint32_t n;                     /* waiting sequences                            */
    uint32_t last;                  /* tenant whose sequence left last              */
};

int queue__init(struct queue *w, uint32_t cap, uint32_t n_tenants); /* 0 or ST_NOMEM; at most cap sequences */
void queue__clear(struct queue *w);
void queue__push(struct queue *w, struct seq *q);
struct seq *queue__peek(const struct queue *w);  /* next by fair order, NULL when empty */
void queue__pop(struct queue *w);                /* removes it; its group goes to the end of its lane's line */
/* Takes out every sequence for which pick(ctx, q) says so; returns them linked through `next`, those of a group in order. */
struct seq *queue__extract(struct queue *w, bool (*pick)(void *ctx, const struct seq *q), void *ctx);
/* The tenant of r, which waited here before, was given n_tokens. */
void queue__charge(struct queue *w, const struct request *r, uint64_t n_tokens);

/* ---- metrics.c ---- */

struct metrics {                    /* relaxed atomics; one writer each: L for n_submitted, E for the rest */
    _Atomic uint64_t n_submitted, n_taken, n_stop, n_length, n_cancelled, n_failed, n_expired, n_preempted;
    _Atomic uint64_t prompt_tokens, cached_tokens, output_tokens;
    _Atomic uint64_t n_steps, step_ns, n_ring_waits;
    _Atomic uint64_t stay_ns;       /* engine time a request had its place, on average over the last ones; 0 = not known yet */
    _Atomic uint32_t n_running, n_queued, n_cached_seqs, last_batch_tokens;
    _Atomic uint32_t n_paused, n_places, n_free; /* preempted; the batch as KV allows; of it, not taken */
    uint64_t place_ns;              /* E: engine time, once for each that runs ...     */
    uint32_t n_left, window;        /* E: ... and how many ended in it; counts halve at `window` */
};

/* Single writer, so a plain load and store is enough and cheaper than a locked add. */
static inline void metrics__add(_Atomic uint64_t *c, uint64_t n) {
    atomic_store_explicit(c, atomic_load_explicit(c, memory_order_relaxed) + n, memory_order_relaxed);
}
void metrics__init(struct metrics *m, uint32_t max_running);
void metrics__step(struct metrics *m, uint64_t ns, uint32_t n_tokens, uint32_t n_running);
void metrics__done(struct metrics *m, enum finish_reason why, bool ran);

/* ---- wait.c: places, and how long one waits for them ---- */

int wait__init(struct sched *s);  /* 0 or ST_NOMEM */
void wait__clear(struct sched *s);
bool wait__has_place(const struct sched *s, const struct request *r); /* L, as the next two */
void wait__submitted(struct sched *s, const struct request *r);
void wait__done(struct sched *s, const struct request *r);            /* its EVENT_DONE was polled */
void wait__left(struct sched *s, const struct request *r);            /* E: it waits no more, for the first time */

/* ---- the scheduler ---- */

struct sched {
    /* fixed after sched_start */
    struct sched_opts o;
    struct engine_info info;
    uint32_t max_live;              /* requests between submit and the poll of their EVENT_DONE            */
    uint32_t max_cached;
    pthread_t thread;

    /* crossing */
    struct spsc submits;            /* struct request *, L -> E                                            */
    struct spsc events;             /* struct event, E -> L; the last max_live places are for EVENT_DONE   */
    struct park wake;               /* E sleeps here                                                       */
    struct park quiet;              /* L sleeps here in sched_quiesce                                      */
    _Atomic uint64_t n_cancels;     /* L, release: some cancel flag was set; acquire in loop.c             */
    atomic_bool cancel_all;         /* L, release: sched_quiesce                                           */
    atomic_bool stop;               /* L, release: sched_stop                                              */
    atomic_bool quiesced;           /* E, release: nothing left after cancel_all                           */
    atomic_bool failed;             /* E: the engine returned an error                                     */
    struct metrics m;

    /* L */
    bool refuse;
    uint32_t n_live;
    _Atomic uint32_t n_tenants_seen; /* all that submitted are below it                                     */
    struct waiting *waiting;        /* [o.n_tenants], owned; E counts in it too                            */

    /* E */
    struct queue queue;
    struct prefix_index index;
    struct seq **slots;             /* [info.n_seqs] who has KV under that id: running or cached; NULL = free */
    struct seq **active;            /* [max_running] by priority, then age: n_running running, then preempted */
    uint32_t n_running, n_active, n_cached;
    uint64_t n_cancels_seen;
    uint64_t queue_deadline_ns;     /* no deadline of a waiting sequence is before it                      */
    uint64_t turn;                  /* steps so far                                                        */
    uint64_t lru_clock;             /* last_used of cached sequences                                       */
    bool event_pushed;              /* since the last notify                                               */
    bool kv_short;                  /* the last one that wanted a place did not get KV                     */
    struct batch_want *wants;       /* [max_running] scratch of one step, as the next four                 */
    struct batch_item *items;
    struct seq **item_seqs;
    struct kern_sampled *sampled;
    struct step_item *outcome;
};

/* slots.c: who has KV. A broken promise of the engine sets s->failed; the loop looks after every call. */
void slots__admit(struct sched *s);   /* resumes and admits while KV and places last                           */
void slots__grow(struct sched *s);    /* room for the next token of every running sequence; may preempt        */
/* True when q should compute now; false when an older sequence is about to compute the very block that q needs next.
 * Starts q from a longer prefix when one appeared since it was admitted. */
bool slots__ready(struct sched *s, uint32_t i_active);
void slots__retire(struct sched *s, struct seq *q); /* takes q out of active; caches or frees it              */
void slots__clear(struct sched *s);   /* frees what is cached, when nothing is active                          */

void *loop__main(void *sched);        /* thread E */

#endif
