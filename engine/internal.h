/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of engine/ share. Everything here belongs to the thread that calls engine_ops, except the
 * atomics of struct engine__stats and kv.n_free, which any thread may read.
 *
 * Vocabulary: a *row* is one token of the batch (the batch flattened, item after item); a *pair* is (row, slot)
 * of a routed layer; a *pass* is the state of one step. Rows are never reordered, so a row's arithmetic depends on
 * its own inputs only; every split of work over the pool is along rows, output columns or heads, or at
 * fixed positions of the context (attention), never along a sum that another split would add up differently. */
#ifndef MOED_ENGINE_INTERNAL_H
#define MOED_ENGINE_INTERNAL_H

#include <stdatomic.h>
#include <stddef.h>

#include "base/pool.h"
#include "engine/engine.h"
#include "kernels/kernels.h"
#include "model/model.h"

enum {
    ENGINE__PAGE_TOKENS = 32,   /* KV granularity: a page of one head is 8 KiB at 128 f16 dims                    */
    ENGINE__ATTN_ROWS = 16,     /* rows of one attention task: they share every K and V load                      */
    ENGINE__ATTN_TASKS = 2,     /* with fewer attention tasks per thread than this, long spans are cut by position */
    ENGINE__FFN_CELLS = 8192,   /* rows x columns of one gate/up block: its two outputs fill 64 KiB of L2          */
    ENGINE__FEW_ROWS = 8,       /* with up to this many rows per expert weights stream from DRAM: longer strips    */
    ENGINE__STRIP = 128,        /* most FFN columns of one task; a multiple of the 32 of struct kern_q8 ...        */
    ENGINE__STRIP_FEW = 512,    /* ... and with few rows per expert: every start of a stream costs                 */
    ENGINE__LOGITS_ROWS = 64,   /* most rows of logits kept at once ...                                           */
    ENGINE__LOGITS_BYTES = 64 << 20, /* ... within this many bytes, one row at least                              */
    ENGINE__MAX_BATCH = 1 << 16,
    ENGINE__MIN_CTX = 128,      /* an automatic context never shrinks below this: an error is more useful         */
    ENGINE__GOOD_CTX = 4096,    /* experts are streamed rather than let an automatic context shrink below this     */
    ENGINE__SLACK = 64 << 20,   /* beside a store the ceiling holds for the whole process: room for the unplanned  */
    ENGINE__GUESS_ROWS = 16,    /* rows whose next experts are foretold; more rows want most experts anyway        */
};

/* ---- plan.c: sizes, and the one block they are carved from ---- */

/* With base NULL it only counts, so the plan and the reservation are one piece of code. */
struct engine__carver {
    unsigned char *base;
    uint64_t used;
    bool overflow;
};
void *engine__carve(struct engine__carver *c, uint64_t n, uint64_t size); /* 64-byte aligned; NULL while counting */

struct engine__plan {
    bool stream;                /* experts through the store                                              */
    uint32_t n_ctx, n_pages;
    uint32_t logits_rows;
    uint64_t part_floats;       /* of engine__scratch.parts */
    uint64_t worker_bytes;      /* private scratch of one pool worker: the largest phase, they do not overlap */
    struct engine_memory mem;
};
int engine__plan_make(const struct engine_opts *o, struct engine__plan *out, struct err *e);
struct engine;
/* Lays out en's carved fields at base (NULL: counts only) and fills the byte counts of pl. false: overflow. */
bool engine__layout(const struct engine_opts *o, struct engine__plan *pl, struct engine *en, unsigned char *base);

/* ---- weights.c: the model's tensors as the layer loop wants them ---- */

/* What a product takes its input as, and masks of it. */
enum engine__form { ENGINE__F32 = 1, ENGINE__Q8 = 2, ENGINE__BF16 = 4 };

/* [rows, n] inputs of products in every form; one that no consumer wants is stale. */
struct engine__rows {
    float *f32;
    struct kern_q8 *q8;         /* [rows, n / 32] */
    uint16_t *bf16;
};

struct engine__matrix {
    enum dtype dtype;
    bool packed;                /* kernels/pack.h */
    uint32_t n_in, n_out;
    size_t row_bytes;
    size_t expert_bytes;        /* from one expert to the next; more than a matrix in the records of a packed model */
    const void *w;              /* view into the model, or into engine.packed  */
    enum engine__form form;     /* what it takes its input as                  */
};

/* Resident expert i of the stacked matrices {n_in, n_out, n_experts}. */
static inline const void *engine__expert(const struct engine__matrix *m, uint32_t i) {
    return (const unsigned char *)m->w + i * m->expert_bytes;
}

struct engine__layer {
    const float *attn_norm, *ffn_norm;             /* [n_embd]                             */
    const float *q_norm, *k_norm;                  /* NULL, or per head or per row          */
    const float *bq, *bk, *bv, *bo;                /* NULL = no bias                        */
    struct engine__matrix wq, wk, wv, wo;
    struct engine__matrix router;                  /* w == NULL: dense FFN                  */
    struct engine__matrix gate, up, down;          /* dense; routed: expert 0, for its shape */
    unsigned attn_forms, ffn_forms;                /* that the consumers of these inputs want */
};

/* layers [n_layers]. ST_UNSUPPORTED names a norm or bias that is not F32. */
int engine__weights_bind(const struct engine_opts *o, struct engine__layer *layers, struct err *e);
int engine__weights_floats(const struct tensor *t, const float **out, struct err *e); /* t NULL: *out = NULL */
uint64_t engine__weights_bytes(const struct model *m, bool records); /* with a packed model's expert records, or without */
struct engine__matrix engine__matrix_of(const struct engine_opts *o, const struct tensor *t); /* t NULL: all zero */
static inline enum engine__form engine__form_of(const struct engine_opts *o, enum dtype t) {
    return o->exact ? ENGINE__F32 : kern_gemm_wants_q8(t) ? ENGINE__Q8 : t == DTYPE_BF16 ? ENGINE__BF16 : ENGINE__F32;
}

/* ---- repack.c ---- */
/* Fills weights and repacked; stream: without the experts. */
void engine__repack_plan(const struct engine_opts *o, bool stream, struct engine_memory *mem);
int engine__repack(struct engine *en, struct err *e); /* after the matrices are bound: maps en->packed, moves them there */

/* ---- records.c ---- */
int engine__records_check(struct engine *en, struct err *e); /* of a packed model without a store, all of them */

/* ---- kv.c: paged KV cache ---- */

/* Invariant that makes copy-on-write unnecessary: a page with refs > 1 is full and is never written again.
 * Forks share whole pages of positions already computed, and a sequence only writes at positions >= the tokens it
 * shares. engine__kv_writable checks it for every batch. */
struct engine__kv {
    uint32_t n_seqs, n_pages, max_pages;   /* max_pages: of one sequence                    */
    uint32_t n_layers;
    size_t k_page_bytes, v_page_bytes;     /* one page of one layer                         */
    unsigned char *pool;                   /* [n_layers]: K [n_pages] pages, V [n_pages]    */
    int32_t *table;                        /* [n_seqs, max_pages]                           */
    uint32_t *n_held;                      /* [n_seqs] pages in table                       */
    uint32_t *n_done;                      /* [n_seqs] positions computed                   */
    uint32_t *refs;                        /* [n_pages]                                     */
    int32_t *free_pages;                   /* stack of n_free                               */
    _Atomic uint32_t n_free;               /* written by the engine's thread                */
};
struct engine__kv_shape { uint32_t n_seqs, n_pages, n_ctx, n_layers; size_t k_page_bytes, v_page_bytes; };

void engine__kv_init(struct engine__kv *kv, const struct engine__kv_shape *shape, struct engine__carver *c);
int engine__kv_reserve(struct engine__kv *kv, seq_id id, uint32_t n_tokens);
void engine__kv_free(struct engine__kv *kv, seq_id id);
int engine__kv_fork(struct engine__kv *kv, seq_id from, seq_id to, uint32_t n_tokens);
bool engine__kv_writable(const struct engine__kv *kv, seq_id id, uint32_t pos, uint32_t n_tokens);
bool engine__kv_consistent(const struct engine__kv *kv); /* tests: every page is free or held refs times; O(pages + tables) */
static inline const int32_t *engine__kv_table(const struct engine__kv *kv, seq_id id) {
    return kv->table + (size_t)id * kv->max_pages;
}
void *engine__kv_k(const struct engine__kv *kv, uint32_t layer); /* views into the pool */
void *engine__kv_v(const struct engine__kv *kv, uint32_t layer);

/* ---- forward.c and its layers ---- */

struct engine__span {           /* consecutive rows of one sequence: an attention task per kv head and segment */
    seq_id seq;
    uint32_t pos, n_rows;
    uint32_t q_row, out_row;
    uint32_t first_task, n_segments; /* n_segments 1: not cut, a task does all of the row                */
    float *parts;               /* cut: [n_kv_heads, n_segments] parts, see kern_attn_merge          */
};

struct engine__want {           /* a row whose logits are needed */
    uint32_t row;               /* in the batch               */
    uint32_t item, index;       /* tokens[index] of that item */
};

/* What the store's side of a step needs; carved only beside a store. R = ENGINE__GUESS_ROWS. */
struct engine__expert_scratch {
    struct offload_want *wants; /* [n_experts]                              */
    struct offload_item *items; /* [n_experts] handed out, until released   */
    uint32_t *list;             /* [n_experts] a prefetch                   */
    uint8_t *listed;            /* [n_experts] is in list                   */
    uint8_t *here;              /* [n_experts] of the running layer: in memory or on the way; only for ENGINE_LOSSY_CACHED */
    uint8_t *told;              /* [n_layers * n_experts] failure logged    */
    struct engine__rows x;      /* [R, n_embd] as the next layer's router would see it */
    float *logits;              /* [R, n_experts]                           */
    int32_t *ids;               /* [R, k] foretold, best first              */
    float *weights;             /* [k] not used                             */
    uint32_t n_guessed;         /* rows of ids; 0 = nothing is foretold ... */
    uint32_t layer;             /* ... for this layer                       */
    bool quiet;                 /* the latest step missed nothing and read nothing ahead that it needed */
    float gain;                 /* right minus wrong reads ahead of a step, moving average */
    uint32_t n_tried, n_pause;  /* steps with guesses since the last pause; steps left of this one */
};

/* Carved once; sized for T = max_batch_tokens rows and k slots. */
struct engine__scratch {
    int32_t *row_token;         /* [T]                                       */
    uint32_t *row_pos;          /* [T]                                       */
    seq_id *row_seq;            /* [T]                                       */
    uint8_t *row_lossy;         /* [T] enum engine_lossy                     */
    uint8_t *seq_seen;          /* [n_seqs] batch check                      */
    struct engine__span *spans; /* [T]                                       */
    struct engine__want *wants; /* [T]                                       */
    float *rope_cs;             /* [T, rope_dim] cosines, sines of the row   */
    float *x;                   /* [T, n_embd] residual stream               */
    struct engine__rows xn;     /* [T, n_embd] normed input of a matmul     */
    float *q, *k, *v;           /* [T, heads * dim]                          */
    struct engine__rows att;    /* [T, n_heads * head_dim_v]                 */
    float *parts;               /* [part_floats] attention of cut spans     */
    float *proj;                /* [T, n_embd] attention output projection   */
    float *router_logits;       /* [T, n_experts]                            */
    int32_t *ids;               /* [T, k] chosen experts                     */
    float *weights;             /* [T, k]                                    */
    int32_t *first;             /* [n_experts + 1]                           */
    int32_t *sorted_row;        /* [T * k] batch row of a sorted pair        */
    int32_t *pair_sorted;       /* [T, k]                                    */
    int32_t *active;            /* [n_experts] experts with at least one row */
    struct engine__rows act;    /* [pairs, ff] silu(gate) * up; f32 only when a down matrix takes floats */
    float *down;                /* [pairs, n_embd]                           */
    float *logits;              /* [logits_rows, n_vocab]                    */
    struct step_item *outcome;  /* [n_seqs] of the running step's items      */
    struct engine__expert_scratch ex;
    unsigned char *workers;     /* [n_threads][worker_bytes]                 */
};

enum engine__pending { ENGINE__PENDING_NONE, ENGINE__PENDING_ATTN, ENGINE__PENDING_FFN };

struct engine__pass {
    struct engine *en;
    const struct batch *batch;
    bool all_logits;              /* engine_logits: every row is wanted */
    uint32_t n_rows, n_spans, n_wants;
    uint32_t n_attn_tasks;
    bool attn_cut;                /* some span is cut into segments */
    uint32_t layer;
    enum engine__pending pending; /* a residual not yet added to x: the next norm does it in the same sweep */
    const float *norm;            /* arguments of the running engine__add_norm */
    unsigned norm_forms;
    uint32_t n_active, strip;     /* of the FFN wave that runs */
    const struct offload_item *given; /* NULL, or [n_active] where the store has the experts of this wave */
    uint32_t n_failed;            /* items with a status other than 0 in outcome */
    bool foretell;                /* worth it in this step */
    uint8_t lossy;                /* of all items */
};

struct engine__stats {
    _Atomic uint64_t n_steps, n_tokens, moe_rows, experts_read, guesses, guesses_right;
};

struct engine {
    struct engine_opts o;
    const struct model_hparams *hp;
    const struct kern_ops *kern;
    struct engine__plan plan;
    struct kern_rope rope;
    float *inv_freq;
    struct kern_router router;
    struct engine__layer *layers;
    const float *out_norm;
    struct engine__matrix embd, head; /* the same one when tied */
    struct engine__kv kv;
    struct engine__scratch s;
    struct engine__stats stats;
    unsigned char *block;         /* mem_map: everything above that is carved */
    unsigned char *packed;        /* mem_map, plan.mem.repacked bytes: repacked weights, or NULL */
    struct offload *store;        /* owned; NULL = every expert is resident */
};

/* Work over the pool. A task writes only its own part of the output. */
void engine__run(struct engine *en, uint32_t n_tasks, pool_fn fn, void *ctx);
typedef void (*engine__rows_fn)(struct engine__pass *p, uint32_t row0, uint32_t row1);
void engine__run_rows(struct engine__pass *p, uint32_t n_rows, engine__rows_fn fn);
void engine__multiply(const struct engine *en, const struct kern_gemm *d, uint32_t row0, uint32_t row1, int worker);
void engine__run_gemms(struct engine *en, const struct kern_gemm *d, uint32_t n); /* n <= 4, one fork for all */
uint32_t engine__strip(const struct engine *en, uint64_t n_columns, uint32_t multiple, uint32_t most);
static inline void *engine__worker(const struct engine *en, int worker) {
    return en->s.workers + (size_t)worker * en->plan.worker_bytes;
}

/* y = W x for rows row0 .. row0 + n_rows - 1 of x. */
struct kern_gemm engine__gemm(const struct engine__matrix *m, const struct engine__rows *x, size_t row0, uint32_t n_rows, float *y);
/* n numbers from x, in the rounded ones of `forms`, to place `at` of `to`. */
void engine__round(const struct engine *en, unsigned forms, const float *x, size_t n, const struct engine__rows *to, size_t at);

int engine__batch_check(struct engine *en, const struct batch *b); /* ST_INVALID: nothing was changed */
void engine__step_done(struct engine *en, const struct batch *b);  /* the batch's positions are now in KV */
/* Runs all layers and leaves the p->n_wants wanted rows, normed, in xn. p: engine, batch, all_logits set. */
void engine__forward(struct engine__pass *p);
void engine__add_norm(struct engine__pass *p, const float *norm, unsigned forms); /* pending residual, then xn */
struct kern_attn engine__attn_desc(const struct engine_opts *o); /* shape fields only */
void engine__attention(struct engine__pass *p); /* in the last layer only wanted rows go on */
void engine__attention_add(const struct engine__pass *p, uint32_t row, float *x); /* x += the pending branch */
void engine__ffn(struct engine__pass *p);
void engine__ffn_waves(struct engine__pass *p); /* both, over the n_active experts of `active` or `given` */
void engine__ffn_add(const struct engine__pass *p, uint32_t row, float *x);
void engine__head(struct engine__pass *p, uint32_t want0, uint32_t n, float *logits); /* [n, n_vocab] */

/* ---- experts.c: the engine's side of the expert store ---- */
int engine__experts_open(struct engine *en, struct err *e); /* after the matrices are bound; nothing when all are resident */
void engine__experts_begin(struct engine__pass *p, struct offload_stats *before); /* of a step */
void engine__experts_end(struct engine__pass *p, const struct offload_stats *before, struct step_experts *out);
void engine__experts_run(struct engine__pass *p);           /* the routed FFN of one layer */

/* ---- sample.c ---- */
/* What items with `pooled` want of the wanted rows; the other wanted rows move together, so that the head sees only those. */
void engine__pool(struct engine__pass *p);
void engine__sample(struct engine__pass *p, struct step_out *out);

#endif
