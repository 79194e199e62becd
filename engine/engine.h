/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine: walks the layers for one batch and samples. Entered by one thread at a time (the scheduler's E
 * thread); its CPU pool stays behind this header. Memory is planned before loading and reserved at open;
 * engine_step allocates nothing.
 *
 * The scheduler sees only `struct engine_ops`, so tests can hand in a fake engine. */
#ifndef MOED_ENGINE_ENGINE_H
#define MOED_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels/sample.h"
#include "offload/offload.h"

/* A sequence slot of the engine, 0 .. n_seqs - 1, chosen by the scheduler. An id with no KV is "free". */
typedef uint32_t seq_id;

/* Ways to answer faster and not quite as the model would; bits. A row with none of them has the bits it always has. */
enum engine_lossy {
    ENGINE_LOSSY_FEWER = 1,     /* half the experts where they carry lossy_share of the weight (kern_router.enough). After MoBiLE
                                   (arXiv 2510.12357), which halves the experts of unimportant tokens; here a token is unimportant
                                   to a layer whose lighter half of experts would add little                 */
    ENGINE_LOSSY_CACHED = 2,    /* among near-ties the expert that is in memory (kern_router.prefer, lossy_margin), after
                                   cache-aware routing (arXiv 2412.00099). The answer depends on what else runs: a batch,
                                   a budget or a restart may change it. Without a store it does nothing      */
};

/* What batch_item.pooled takes of the hidden states behind the output norm. */
enum engine_pooling {
    ENGINE_POOLING_MEAN,        /* the sum over all positions: every one of them must be computed, none forked */
    ENGINE_POOLING_LAST,        /* that of the item's last token                                                */
};

/* Part of one sequence in one step: a prefill chunk, or one decode token. */
struct batch_item {
    seq_id seq;
    uint32_t pos;               /* position of tokens[0]; equals the tokens of seq already in KV           */
    uint32_t n_tokens;          /* >= 1                                                                    */
    const int32_t *tokens;      /* [n_tokens], borrowed for the step                                       */
    bool sample;                /* draw the token after the last one of this item                          */
    const struct kern_sample *params; /* borrowed; needed when sample                                      */
    const int32_t *history;     /* [n_history] prompt and output so far, for penalties; borrowed           */
    uint32_t n_history, n_prompt;
    uint64_t counter;           /* index of the drawn token within the output                              */
    const uint32_t *mask;       /* NULL, or a bit per id: only set ids may be drawn; replaces params->allowed; borrowed */
    struct kern_sampled *prompt_logprobs; /* NULL, or [n_tokens] out: entry i is the log-probability of the token
                                   after tokens[i], which is tokens[i + 1], or next_token for the last i   */
    int32_t next_token;         /* -1: entry n_tokens - 1 is not filled                                    */
    int32_t n_top;              /* alternatives in prompt_logprobs                                         */
    uint8_t lossy;              /* enum engine_lossy; its KV is not to be forked to sequences without     */
    double *pooled;             /* NULL, or [n_embd] in and out, without sample and prompt_logprobs. The chunks of a sequence hand
                                   the same on; pos 0 starts from zeros. Added in token order, so that chunks make no
                                   difference. Untouched when the item fails; borrowed */
    enum engine_pooling pooling;
};

struct batch {
    const struct batch_item *items; /* each seq at most once */
    uint32_t n_items;
    uint32_t n_tokens;              /* sum over items, <= engine_info.max_batch_tokens */
};

struct step_item {                  /* what became of one item */
    int status;                     /* ST_OK; ST_IO: an expert it needed cannot be read. Its sampled and prompt_logprobs mean
                                       nothing, its positions are not in KV: run it again, or free its sequence */
    uint32_t layer, expert;         /* ST_IO: which one */
};

struct step_experts { uint64_t hits, misses, load_bytes, stall_ns; }; /* as in offload_stats, of one step */

struct step_out {
    struct kern_sampled *sampled;   /* [n_items], caller's memory; entry i valid when items[i].sample and no failure */
    struct step_item *items;        /* [n_items], caller's memory; NULL: step returns ST_IO when any item failed */
    struct step_experts experts;    /* out; all 0 when every expert is resident */
};

struct engine_stats {
    uint64_t kv_pages_total, kv_pages_free;
    uint64_t n_steps, n_tokens;     /* since open */
    uint64_t moe_rows;              /* (token, expert) pairs computed */
    uint64_t experts_read;          /* distinct (layer, expert) per step, summed */
    uint64_t guesses, guesses_right; /* experts of the next layer foretold, and of these wanted there */
};

struct engine_info {                /* fixed after open */
    uint32_t n_ctx;                 /* positions one sequence may have            */
    uint32_t n_seqs;                /* ids 0 .. n_seqs - 1                        */
    uint32_t page_tokens;           /* KV granularity                             */
    uint32_t n_pages;
    uint32_t max_batch_tokens;
    uint32_t n_vocab;
    uint32_t n_embd;
    uint32_t n_layers, n_experts; /* n_experts of each layer with a router; 0 = a dense model */
};

/* 0 or a status. step: ST_INTERNAL means the engine is unusable; nothing else is returned for valid batches when
 * step_out.items is there. Items are independent: what fails one changes nothing of another's result.
 * kv_reserve makes room for n_tokens positions of id in total (existing ones included) or changes nothing and
 * returns ST_KV_FULL. kv_fork gives `to` (which must be free) the first n_tokens of `from`; n_tokens is a multiple
 * of page_tokens; pages are shared. kv_free of a free id is a no-op. kv_truncate is not needed: positions beyond
 * what was computed are simply overwritten. */
struct engine_ops {
    int (*step)(void *self, const struct batch *b, struct step_out *out);
    int (*kv_reserve)(void *self, seq_id id, uint32_t n_tokens);
    void (*kv_free)(void *self, seq_id id);
    int (*kv_fork)(void *self, seq_id from, seq_id to, uint32_t n_tokens);
    void (*info)(void *self, struct engine_info *out);
    void (*stats)(void *self, struct engine_stats *out); /* any thread */

    /* The expert store; any thread. NULL in an engine that never has one. */
    bool (*experts)(void *self, struct offload_stats *out);  /* false: there is none, every expert is resident */
    void (*experts_map)(void *self, uint8_t *bits);          /* as offload_resident */
    int (*resize)(void *self, uint64_t ram_bytes, struct err *e); /* a new engine_opts.ram_bytes: changes the store's share */
};

struct model;
struct pool;
struct kern_ops;
struct trace_writer;
struct engine; /* opaque */

enum engine_kv_type { ENGINE_KV_F16, ENGINE_KV_BF16, ENGINE_KV_F32, ENGINE_KV_Q8 };

/* AUTO: resident when they fit beside everything else, with a context worth having; else streamed. */
enum engine_experts { ENGINE_EXPERTS_RESIDENT, ENGINE_EXPERTS_STREAM, ENGINE_EXPERTS_AUTO };

struct engine_opts {
    const struct model *model;       /* borrowed until engine_close */
    struct pool *pool;               /* borrowed until engine_close */
    const struct kern_ops *kern;     /* static */
    uint32_t n_ctx;                  /* 0 = the model's, cut to what fits                               */
    uint32_t n_seqs;                 /* running + cached sequences                                      */
    uint32_t kv_tokens;              /* 0 = as many as fit, at most n_running * n_ctx                   */
    uint32_t n_running;
    uint32_t max_batch_tokens;
    enum engine_kv_type kv_type;
    bool exact;                      /* activations stay float for quantised weights too: several times slower, no rounding */
    uint64_t ram_bytes;              /* ceiling for weights + KV + scratch; 0 = no ceiling              */
    bool repack;                     /* copy weights into the kernels' layout at open; else read them from the file */
    struct trace_writer *trace;      /* NULL, or where the routing of every step without lossy items is recorded (offload/trace.h); borrowed */
    float lossy_share, lossy_margin; /* of enum engine_lossy; 0 = 0.75 and 0.1                          */

    enum engine_experts experts;     /* the rest is about streamed ones, see offload_opts               */
    uint64_t expert_bytes;           /* the store's budget; 0 = what the ceiling leaves                 */
    enum offload_policy policy;
    enum offload_io io;
    uint32_t queue_depth;            /* 0 = from a probe                                                */
    bool prefetch;
    const char *heat_path;           /* NULL = none; borrowed until engine_close                        */
    uint32_t heat_every_ms;          /* 0 = saved at close only                                         */
    struct offload_disk *disk;       /* NULL = the model's files; borrowed until engine_close           */
};

struct engine_memory {               /* bytes */
    uint64_t weights, kv, scratch, total;
    uint64_t repacked;               /* of weights: what open copies into memory of its own; the rest is the mapped file */
    uint64_t experts;                /* budget of the expert store, whose experts are not among weights; 0 = all resident */
    uint64_t experts_min, experts_all; /* streamed: the least that works, and what holds every one       */
    uint64_t slack;                  /* streamed: of total, for what is not planned: program, tokenizer, HTTP */
    uint32_t n_ctx, kv_tokens;       /* what the plan settled on */
};

/* ST_NOMEM says how many bytes are missing and which option to change. Pure: reads no memory state. */
int engine_plan_memory(const struct engine_opts *o, struct engine_memory *out, struct err *e);
int engine_open(struct engine **out, const struct engine_opts *o, struct err *e); /* returns owned, free with engine_close */
void engine_close(struct engine *en);
const struct engine_ops *engine_ops(void); /* static table; `self` is the struct engine */

/* Tests and tools: logits [n_tokens, n_vocab] of every token of one item, after the step's usual KV update. */
int engine_logits(struct engine *en, const struct batch_item *item, float *logits);

#endif
