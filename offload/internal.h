/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of offload/ share. Three layers: catalog.c says what an expert is made of; slots.c is the state machine
 * of slots and of the running step, pure, without threads, memory or a disk, so that a test can step it through every
 * interleaving; store.c (the engine's side) and loader.c (the reader thread) drive it under one mutex. */
#ifndef MOED_OFFLOAD_INTERNAL_H
#define MOED_OFFLOAD_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "model/quant_fmt.h"
#include "offload/disk.h"
#include "offload/offload.h"
#include "offload/plan.h"
#include "offload/policy.h"

enum {
    OFFLOAD__PARTS = 3,           /* gate, up, down                                                                 */
    OFFLOAD__CLASSES = 4,         /* most slot sizes: layers of a file differ in a format or two                    */
    OFFLOAD__STAGES = 8,          /* most staging buffers                                                           */
    OFFLOAD__GUESSES = 16,        /* most guesses kept per layer                                                    */
    OFFLOAD__ATTEMPTS = 4,        /* of one load: the first and three retries                                       */
    OFFLOAD__MAX_KEYS = 1 << 20,  /* a tag of a read is generation, slot and span                                   */
    OFFLOAD__GENERATIONS = 1 << 10,
};
#define OFFLOAD__NONE UINT32_MAX

/* ---- catalog.c: (layer, expert) -> reads and what to do with their bytes ---- */

struct offload__span {
    uint32_t file;
    uint64_t offset;
    size_t n_bytes, need;
    size_t at;                    /* where in the slot, or in the staging buffer when staged */
};

struct offload__part {
    enum dtype dtype;
    size_t n_in, n_bytes;
    size_t from;                  /* in the staging buffer                                    */
    size_t at;                    /* in the slot                                              */
    bool pack;                    /* kernels/pack.h; else copied                              */
};

struct offload__recipe {
    uint32_t n_spans;
    struct offload__span spans[OFFLOAD__PARTS];
    struct offload__part parts[OFFLOAD__PARTS];
    bool staged;                  /* parts are brought from a staging buffer into the slot    */
    bool checked;                 /* checksum is of the first checked_bytes of the slot       */
    uint64_t checksum;
    size_t checked_bytes;
};

struct offload__catalog {
    uint32_t n_layers, n_experts, n_used;
    void (*recipe)(const void *ctx, uint32_t layer, uint32_t expert, struct offload__recipe *out);
    const void *ctx;
    uint8_t *layer_class;         /* [n_layers], owned; OFFLOAD__CLASSES: a layer without experts                     */
    uint32_t n_classes;
    size_t slot_bytes[OFFLOAD__CLASSES];  /* multiple of DISK_ALIGN                                                   */
    uint32_t n_keys[OFFLOAD__CLASSES];
    uint32_t n_spans;             /* of every recipe                                                                  */
    size_t stage_bytes;           /* one staging buffer; 0: reads go straight into slots                              */
    uint64_t identity;            /* changes when (layer, expert) means other weights: saved heat belongs to it       */
};
int offload__catalog_init(struct offload__catalog *c, const struct model *m, bool packed, struct err *e);
void offload__catalog_clear(struct offload__catalog *c);

/* A budget as slots of each class and staging buffers. ST_INVALID when it is too small. Pure. */
struct offload__budget { uint32_t slots[OFFLOAD__CLASSES], n_stages; uint64_t slot_bytes; };
uint64_t offload__min_bytes(const struct offload__catalog *c);
uint64_t offload__all_bytes(const struct offload__catalog *c);
int offload__budget(const struct offload__catalog *c, uint64_t ram_bytes, struct offload__budget *out);

/* ---- slots.c: the state machine ---- */

/* EMPTY -> RESERVED (its reads are queued or in flight) -> FILLED (all bytes are here, neither checked nor packed) -> READY
 * -> EMPTY. Pinned while a want of the running step holds it; only a READY slot without pins is evicted. A slot with a
 * read in flight is never given away: the disk may still write to it. */
enum offload__slot_state { SLOT_EMPTY, SLOT_RESERVED, SLOT_FILLED, SLOT_READY };
enum offload__why { WHY_DEMAND, WHY_GUESS, WHY_AHEAD /* of a prefill: the next layer */, WHY_FILL };

struct offload__slot {
    uint32_t key;                 /* NONE when EMPTY                                                    */
    uint32_t generation;          /* counts reservations; a completion of an older one is not taken     */
    uint32_t pins;
    uint32_t prev, next;          /* in a queue of reads, or in the free list                           */
    uint32_t stage;               /* staging buffer, or NONE                                            */
    uint8_t state, why, class;
    uint8_t n_spans, next_span, in_flight, attempts;
    bool queued;                  /* spans are left to submit                                           */
    bool failed, cancelled;       /* of the reads since the last attempt began                          */
    bool unwanted, told;          /* let its reads be cancelled; the disk was told                      */
    bool dead;                    /* the disk holds its reads without end; holds no key any more        */
    bool busy;                    /* FILLED and somebody is at it                                       */
    bool stream, guess;           /* brought in by a prefill; by a guess (or ahead) not judged yet      */
    uint64_t not_before;          /* retry time                                                         */
    uint64_t tick;                /* of the reservation                                                 */
    size_t at[OFFLOAD__PARTS];    /* of the parts in the slot, written before READY by whoever is at it */
};

enum offload__want_state { WANT_WAITING /* for a slot */, WANT_COMING, WANT_READY, WANT_FAILED, WANT_HANDED, WANT_DONE };
struct offload__want { uint32_t expert, slot, n_rows; uint8_t state; };

struct offload__queue { uint32_t head, tail; };
struct offload__victims { uint64_t tick; uint32_t n, slots[16], generations[16]; };

/* Guesses: what was said about a layer last, how often each rank was right, and what is still to be loaded. A rank is
 * judged whether or not it was loaded, so one that does not pay is tried again as soon as it would. */
struct offload__guess { uint32_t expert; bool absent; /* when it was guessed */ };
struct offload__guess_list { uint32_t n; struct offload__guess at[OFFLOAD__GUESSES]; };
struct offload__guesses {
    struct offload__guess_list *layers;   /* [n_layers], owned */
    double precision[OFFLOAD__GUESSES];   /* by rank, of those absent; smoothed */
    struct { uint32_t key, rank; } wait[64]; /* ring: to be loaded, best first */
    uint32_t wait_head, n_wait;
    uint32_t n_unjudged;                  /* slots with the mark */
};

struct offload__slots {
    uint32_t n_layers, n_experts, n_used, n_keys, n_classes, n_spans;
    const uint8_t *layer_class;           /* [n_layers], borrowed                                        */
    size_t slot_bytes[OFFLOAD__CLASSES];
    uint32_t first[OFFLOAD__CLASSES];     /* slots of class c: first[c] .. first[c] + active[c]          */
    uint32_t active[OFFLOAD__CLASSES];
    uint32_t n_resident, n_stream[OFFLOAD__CLASSES];
    uint32_t free[OFFLOAD__CLASSES];      /* list of EMPTY slots                                         */
    uint32_t stages, free_stages;         /* how many, and a bit for each free one; 0: none are needed   */
    bool staged;
    struct offload__slot *slots;          /* [n_keys]                                                    */
    uint32_t *slot_of;                    /* [n_keys]                                                    */
    struct policy policy;
    struct offload__victims victims[OFFLOAD__CLASSES];

    /* The running step. */
    uint32_t layer, n_wants, n_left /* not handed out */, n_waiting;
    bool stream, begun;                   /* begun: a step was, once                                     */
    struct offload__want *wants;          /* [n_experts]                                                 */
    uint32_t *want_of;                    /* [n_experts], NONE outside the step                          */
    uint32_t *ready;                      /* [n_experts] wants: released, handed out, to hand out        */
    uint32_t n_released, n_handed, n_ready_wants;

    /* Reads. */
    struct offload__queue demand, low, filled;
    uint32_t in_flight, n_dead, n_filled, n_unwanted;
    uint32_t low_in_flight, low_most;     /* spans of guesses and filling, few so that a demand read has the disk soon */
    struct offload__guesses guesses;
    uint32_t ahead_layer, ahead_next, n_ahead; /* of a prefill: layer and next expert; slots with WHY_AHEAD, unjudged */
    const uint32_t *fill_order;           /* [n_keys] hottest first, or NULL: nothing is filled; borrowed */
    uint32_t fill_next;
    bool draining;                        /* no read is begun                                            */
    uint64_t work;                        /* changes when the reader may have something to do            */

    struct offload_stats stats;           /* counters only                                               */
};

struct offload__read { uint32_t slot, span, generation, stage; bool demand; };

int offload__slots_init(struct offload__slots *s, const struct offload__catalog *c, const struct offload__budget *b,
                        enum offload_policy policy);
void offload__slots_clear(struct offload__slots *s);

void offload__slots_begin(struct offload__slots *s, uint32_t layer, const struct offload_want *wants, uint32_t n, bool stream);
/* Wants to hand out, at most cap of them; 0 with n_left > 0: wait. */
uint32_t offload__slots_next(struct offload__slots *s, uint32_t *wants, uint32_t cap);
void offload__slots_release(struct offload__slots *s);
void offload__slots_end(struct offload__slots *s);
void offload__slots_drop_loads(struct offload__slots *s); /* those that no want asks for: at once, or as soon as the disk lets go */

/* A guess about a layer, best first: judged when the layer comes; loaded as far as its rank pays. */
void offload__slots_guess(struct offload__slots *s, uint32_t layer, const uint32_t *experts, uint32_t n);

/* The next span to read, demand first; false: nothing that may begin at time `now`. Then either submitted for good, or
 * put back. */
bool offload__slots_take(struct offload__slots *s, uint64_t now, struct offload__read *out);
void offload__slots_put_back(struct offload__slots *s, uint32_t slot);
void offload__slots_read_done(struct offload__slots *s, uint32_t slot, uint32_t generation, int status, uint64_t now);
/* A FILLED slot to check and pack, or NONE; then the outcome. */
uint32_t offload__slots_claim(struct offload__slots *s);
void offload__slots_settle(struct offload__slots *s, uint32_t slot, bool good, uint64_t now);
uint64_t offload__slots_retry_at(const struct offload__slots *s, uint64_t now); /* the earliest after now; UINT64_MAX: none */
/* The disk gives nothing back any more: every want that is not here fails, slots with reads in flight are dead. */
void offload__slots_stuck(struct offload__slots *s);

/* Nothing in flight, no step running. move: the bytes of one slot to another. */
void offload__slots_resize(struct offload__slots *s, const struct offload__budget *b,
                           void (*move)(void *ctx, uint32_t from, uint32_t to), void *ctx);

/* Between slots.c and guess.c. */
void offload__slot_reserve(struct offload__slots *s, uint32_t slot, uint32_t key, enum offload__why why);
void offload__slot_make_empty(struct offload__slots *s, uint32_t slot);
void offload__slot_set_stream(struct offload__slots *s, struct offload__slot *x, bool stream);
void offload__slot_set_unwanted(struct offload__slots *s, struct offload__slot *x, bool unwanted);
void offload__slot_set_guess(struct offload__slots *s, struct offload__slot *x, bool guess);
void offload__slot_judge(struct offload__slots *s, struct offload__slot *x, bool useful);     /* if it is a guess         */
bool offload__slot_awaited(const struct offload__slots *s, const struct offload__slot *x);    /* a guess not judged yet   */
uint32_t offload__slot_lowest(struct offload__slots *s, uint32_t class);                      /* to evict; NONE           */
uint32_t offload__slot_evict(struct offload__slots *s, uint32_t slot);                        /* returns it, to be filled */
uint32_t offload__slot_take_free(struct offload__slots *s, uint32_t class);
uint32_t offload__slot_take(struct offload__slots *s, uint32_t class, bool stream);           /* free, else evicted; NONE */
uint32_t offload__stream_quota(const struct offload__slots *s, uint32_t class);
void offload__guess_init(struct offload__slots *s);
void offload__guess_judge(struct offload__slots *s);      /* the running step's layer                           */
void offload__guess_look_ahead(struct offload__slots *s); /* from the running step                              */
bool offload__guess_start(struct offload__slots *s);      /* reserves a slot and queues its reads, if one may be */

/* ---- heat.c: what was learned about experts, kept from run to run ---- */

/* entries [n_keys] and *now as of the last save; false: no such file, or of other weights, or damaged (a warning says so). */
bool offload__heat_load(const char *path, uint64_t identity, uint32_t n_keys, struct policy_entry *entries, uint64_t *now);
/* Replaces the file as a whole or not at all. */
int offload__heat_save(const char *path, uint64_t identity, const struct policy *p, struct err *e);
/* Keys, most used first. order [n_keys]. */
void offload__heat_order(const struct policy *p, uint32_t *order);

/* ---- store.c and loader.c: threads around it ---- */

struct offload {
    struct offload_opts o;
    char *heat_path;                      /* owned copy */
    struct offload__catalog catalog;
    struct offload_disk *disk, own;       /* own: opened here; disk points at it, or is borrowed         */
    bool own_uring, own_threads;
    uint32_t depth;                       /* reads in flight                                             */
    double probe_bytes_per_s;             /* 0: not probed                                               */

    /* Arenas: address space for every expert of a class, committed as far as the budget goes. Addresses never move. */
    unsigned char *arena[OFFLOAD__CLASSES], *stages;
    size_t committed[OFFLOAD__CLASSES], stages_committed;

    pthread_mutex_t mutex;                /* held for decisions, never for reading, checking or packing  */
    pthread_cond_t changed;               /* the engine waits for the reader                             */
    struct offload__slots s;              /* under mutex                                                 */
    struct offload__budget budget;        /* under mutex; written by the engine's thread                 */
    uint64_t ram_bytes;                   /* under mutex                                                 */
    uint32_t *fill_order;                 /* [n_keys], owned, or NULL                                    */
    uint64_t stall_ns;                    /* under mutex                                                 */
    double read_bytes_per_s;              /* under mutex                                                 */
    bool stopping;                        /* under mutex                                                 */
    pthread_cond_t saving;                /* on CLOCK_MONOTONIC: the saver waits for its time or the end */
    struct policy_entry *heat_copy;       /* [n_keys], owned, the saver's; NULL: there is none           */
    _Atomic uint64_t wanted_bytes;        /* a resize to be applied; 0: none                             */
    pthread_t reader, saver;

    /* The plan of the running step: the engine's thread, but loop is read under mutex. */
    struct plan_loop loop;
    struct plan_expert *planned;          /* [n_experts], owned */
    uint32_t *plan_order;
    struct offload_want *ordered;
    double row_s, predicted_s;            /* row_s: measured, smoothed; predicted_s: 0, nothing is missing */
    uint64_t begun_ns, handed_ns, n_rows, n_rows_handed;

    /* The reader's own. */
    uint64_t progress_ns;                 /* last time the disk gave something back, or was idle         */
    uint64_t window_ns, window_bytes, last_ns; /* of the bandwidth being measured                        */
};

/* order.c: the order in which a step's wants are read, and what became of the prediction. With the mutex. */
const struct offload_want *offload__order(struct offload *o, uint32_t layer, const struct offload_want *wants, uint32_t n);
void offload__order_computed(struct offload *o);  /* what was handed out before is done */
void offload__order_handed(struct offload *o, const uint32_t *wants, uint32_t n); /* n 0: the step is over */

int offload__open(struct offload **out, const struct offload_opts *o, struct offload__catalog *c, struct err *e); /* takes c */
void offload__probe(struct offload *o);   /* sets depth, at most what it is, and probe_bytes_per_s; before the reader starts */
void *offload__slot_at(const struct offload *o, uint32_t slot);
/* Checks and packs what arrived in a claimed slot; without the mutex. false: the bytes are wrong. */
bool offload__process(struct offload *o, uint32_t slot);
void *offload__reader_main(void *store);
void *offload__saver_main(void *store);   /* saver.c: heat, while the store is open */

#endif
