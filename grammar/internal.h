/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of grammar/ share. From text to masks:
 *
 *   gbnf.c regex.c schema*.c   text -> rules, each a nondeterministic automaton (nfa.c) over bytes and calls of rules
 *   dfa.c                      one automaton made deterministic; algebra of regular languages of code points
 *   encode.c                   ranges of code points -> bytes, as UTF-8 or inside a JSON string
 *   program.c                  all rules -> struct program, dead parts removed
 *   run.c                      where a text stands: a set of (state, stack), stacks sharing their tails
 *   mask.c                     walks the vocabulary's trie from a state; remembers what it found
 *   vocab.c compile.c state.c  the public interface
 *
 * Everything up to struct program lives in one arena with a cap, so a compilation frees nothing and cannot grow without
 * end; its first failure is kept in struct build and makes the rest of it cheap. */
#ifndef MOED_GRAMMAR_INTERNAL_H
#define MOED_GRAMMAR_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/arena.h"
#include "base/status.h"
#include "grammar/grammar.h"

enum {
    MAX_CODE_POINT = 0x10FFFF,
    LABEL_CALL = 0x110000,          /* + rule: the text of that rule                                    */
    LABEL_FREE = 0x7FFFFFF0,        /* mark on a state: free text before a trigger                      */
    LABEL_TRIGGERED,                /* leads to the state behind a trigger                              */
    MAX_RULES = 1 << 20,
    MAX_STATES = 1 << 18,           /* of a program                                                     */
    MAX_NESTING = 200,              /* of any input language                                            */
    COMPILE_BYTES = 160 << 20,
    COMPILE_WORK = 30 * 1000 * 1000,
    MAX_TOKEN_BYTES = 1024,         /* longer tokens are never allowed                                  */
};

/* ---- nfa.c: one automaton under construction ---- */

struct nfa_edge { uint32_t from, to, lo, hi; }; /* a range of labels; lo > hi: no label, an empty step */

struct nfa {
    struct nfa_edge *edges;
    uint32_t n_edges, cap_edges, n_nodes;
};

struct frag { uint32_t from, to; }; /* the texts of the paths from one node to another */

struct rule { struct nfa nfa; struct frag frag; };

struct build {
    struct arena arena;
    struct err *e;
    int status;                     /* first failure; later ones are ignored                            */
    uint64_t work_left;
    struct rule *rules;
    uint32_t n_rules, cap_rules;
    bool closed;                    /* grammar_part.closed of the schema in work                        */
    uint32_t json[8];               /* schema_json.c: 1 + rules of plain JSON, 0 = not made yet         */
};

int build__fail(struct build *b, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void *build__alloc(struct build *b, size_t n, size_t size);                        /* zeroed; NULL: failed */
/* Room for one more in a growing array; NULL: failed. */
void *build__grow(struct build *b, void *array, uint32_t n, uint32_t *cap, size_t size);
bool build__work(struct build *b, uint64_t n);                                      /* false: out of it     */
uint32_t build__rule(struct build *b);                                              /* new rule, nothing in it yet */

uint32_t nfa__node(struct build *b, struct nfa *n);
struct frag nfa__frag(struct build *b, struct nfa *n);                              /* two new nodes        */
void nfa__edge(struct build *b, struct nfa *n, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi);
void nfa__eps(struct build *b, struct nfa *n, uint32_t from, uint32_t to);
void nfa__call(struct build *b, struct nfa *n, uint32_t from, uint32_t to, uint32_t rule);
void nfa__text(struct build *b, struct nfa *n, uint32_t from, uint32_t to, const char *s, size_t n_bytes); /* bytes */
/* f is all that was built since `mark`. Replaces it by f{min,max}; max UINT32_MAX = no end. */
struct nfa_mark { uint32_t n_nodes, n_edges; };
struct nfa_mark nfa__mark(const struct nfa *n);
struct frag nfa__repeat(struct build *b, struct nfa *n, struct nfa_mark mark, struct frag f, uint32_t min, uint32_t max);

/* ---- dfa.c ---- */

struct dfa_edge { uint32_t lo, hi, to; };

struct dfa {                        /* start 0; no states: the empty language                           */
    uint32_t n_states;
    uint32_t *first;                /* [n_states + 1] into edges, of each state by rising label, disjoint */
    struct dfa_edge *edges;
    bool *final;
};

/* All of them: NULL when the build failed. Only states from which an end can be reached (calls taken as passable) stay. */
struct dfa *dfa__of(struct build *b, const struct nfa *n, struct frag f);
/* live[s]: an end can be reached from s. productive: by rule, which calls can be passed; NULL = all. False: failed. */
bool dfa__live(struct build *b, const struct dfa *d, const bool *productive, bool *live);
struct dfa *dfa__and(struct build *b, const struct dfa *x, const struct dfa *y);
struct dfa *dfa__without(struct build *b, const struct dfa *x, const struct dfa *y);

/* ---- regex.c: code points ---- */

struct cp_range { uint32_t lo, hi; };
struct cp_set { struct cp_range *ranges; uint32_t n, cap; };

void cp_set__add(struct build *b, struct cp_set *s, uint32_t lo, uint32_t hi);
void cp_set__finish(struct build *b, struct cp_set *s, bool invert); /* sorted, disjoint, without surrogates */
/* One code point of UTF-8 at *at; false when it is none. */
bool utf8__next(const char *s, size_t n, size_t *at, uint32_t *cp);

enum regex_anchor { REGEX_WHOLE, REGEX_SEARCH }; /* SEARCH: may match anywhere, ^ and $ pin it, as in JSON schema */

/* Over code points. `where` begins the message of an error. NULL when the build failed. */
struct dfa *regex__dfa(struct build *b, const char *s, size_t n, enum regex_anchor anchor, const char *where);

/* ---- encode.c: code points -> bytes ---- */

enum encoding { ENCODE_UTF8, ENCODE_JSON };

void encode__range(struct build *b, struct nfa *n, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi, enum encoding enc);
void encode__set(struct build *b, struct nfa *n, uint32_t from, uint32_t to, const struct cp_set *s, enum encoding enc);
/* The texts of d, every code point encoded. */
void encode__dfa(struct build *b, struct nfa *n, uint32_t from, uint32_t to, const struct dfa *d, enum encoding enc);

/* ---- front ends: the rule that stands for the whole text; UINT32_MAX when the build failed ---- */

uint32_t gbnf__rule(struct build *b, const char *s, size_t n);
uint32_t schema__rule(struct build *b, const char *s, size_t n);
uint32_t schema__json_object(struct build *b);

/* ---- program.c ---- */

struct prog_edge { uint8_t lo, hi; uint32_t to; };
struct prog_call { uint32_t rule, to; };

struct prog_state {
    uint32_t edges, calls;          /* first of each; the next state's are the ends                     */
    uint32_t same;                  /* the state that stands for all that no token can tell apart       */
    bool final;                     /* the rule's text may end here                                     */
    bool tail;                      /* final and nothing else                                           */
    bool free;                      /* free text                                                        */
    bool top;                       /* of the rule that nothing calls                                   */
};

struct prog_rule { uint32_t start; bool nullable; };

struct program {
    struct prog_state *states;      /* [n_states + 1] */
    struct prog_edge *edges;
    struct prog_call *calls;
    struct prog_rule *rules;        /* those that are used, renumbered; rule 0 is the top */
    uint32_t n_states, n_edges, n_calls, n_rules;
    uint32_t triggered;             /* state behind a trigger, or UINT32_MAX */
};

int program__make(struct program *p, struct build *b, uint32_t top, uint32_t max_token_bytes); /* owned arrays */
void program__clear(struct program *p);

/* ---- vocab.c ---- */

/* Depth first; the subtree is [self + 1, end). plain: all tokens from here down are, see below. */
struct trie_node { uint32_t end, tok; uint8_t byte; bool plain; };

struct grammar_vocab {
    uint32_t n_vocab, n_words, n_nodes, max_token_bytes;
    struct trie_node *nodes;        /* [n_nodes + 1]; node 0 is the root                                */
    int32_t *ids;                   /* text tokens in the order of nodes; of node i: [nodes[i].tok, nodes[i + 1].tok) */
    uint8_t *kind;                  /* [n_vocab] enum grammar_token_kind                                 */
    uint32_t *text_at;              /* [n_vocab + 1] into text                                           */
    char *text;
    uint32_t *eog, *control;        /* bit masks, control with eog                                       */
    /* Plain tokens are whole code points that a JSON string takes as they are: no control characters, no " and no \. Most of
     * a vocabulary is plain, and most long walks are through states to which all plain code points are alike. */
    uint32_t *plain;                /* bit mask                                                          */
    int32_t *plain_ids;             /* [n_plain] by rising number of code points                         */
    uint32_t *plain_end;            /* [max_plain + 1] how many of them have at most so many              */
    uint32_t n_plain, max_plain;
};

/* ---- run.c ---- */

struct config { uint32_t state, frame; };
struct frame { uint32_t edges; };                  /* first of a list; UINT32_MAX ends it                */
struct frame_edge { uint32_t to, parent, next; };  /* after this rule: state `to` of the caller, on frame `parent` */

/* Stacks that share their tails: a frame is "this rule, begun at this position", its edges are all the callers that wait for
 * it. Frame 0 is the bottom. Frames of earlier positions never change. */
struct stacks {
    struct frame *frames;
    struct frame_edge *edges;
    uint32_t n_frames, cap_frames, n_edges, cap_edges;
};

struct run {                        /* scratch of one grammar, under its lock                            */
    const struct program *p;
    struct stacks *k;               /* of the sequence, or of the mask being computed                    */
    struct config *set;             /* sets of one path of the trie, one behind the other                */
    uint32_t n, cap;
    uint32_t *rule_frame, *rule_stamp; /* [n_rules] frame made for the rule at this position             */
    struct { uint32_t stamp, state, frame; } *seen; /* [1 << SEEN_BITS]                                  */
    uint32_t stamp;
    bool hashed;                    /* the present set is in `seen`                                      */
    bool bottom;                    /* the last closure got to the end of the bottom frame's rule        */
    uint64_t work_left;
    int status;
};

int run__init(struct run *r, const struct program *p);
void run__clear(struct run *r);
int stacks__init(struct stacks *k);                /* with frame 0 */
void stacks__clear(struct stacks *k);
int stacks__copy(struct stacks *to, const struct stacks *from);
/* Keeps what set [n] can reach; renumbers its frames. */
int stacks__compact(struct stacks *k, struct config *set, uint32_t n);

bool run__work(struct run *r);                     /* one step of work; false: no more, see status      */
void run__begin(struct run *r, uint32_t *base);    /* a new empty set at the end of r->set              */
void run__add(struct run *r, uint32_t base, uint32_t state, uint32_t frame);
void run__close(struct run *r, uint32_t base);     /* follows calls and ends; keeps what waits for bytes; sets r->bottom */
/* The set after one more byte, behind the others; true when it is not empty or the bottom was reached. */
bool run__step(struct run *r, uint32_t base, uint32_t end, uint8_t byte);

/* ---- mask.c ---- */

struct entry;

struct cache {
    struct entry **by_state;        /* [n_states] */
    size_t bytes;
    uint32_t *words;                /* [n_words] scratch */
    uint32_t *exits;                /* scratch */
    uint32_t n_exits, cap_exits;
    struct stacks stacks;           /* of walks from a state alone */
};

int cache__init(struct cache *c, const struct program *p, const struct grammar_vocab *v);
void cache__clear(struct cache *c, const struct program *p);

struct grammar {
    atomic_uint refs;
    const struct grammar_vocab *v;
    int32_t *trigger_tokens;
    uint32_t n_trigger_tokens;
    struct program p;
    pthread_mutex_t lock;           /* of the rest */
    struct run run;
    struct cache cache;
};

/* Adds to `allowed` every text token that can follow the set. Under the lock. */
int mask__tokens(struct grammar *g, const struct config *set, uint32_t n, struct stacks *k, uint32_t *allowed);
void mask__warm(struct grammar *g, uint32_t budget_us);

struct grammar_state {
    struct grammar *g;              /* a reference */
    struct stacks k;
    struct config *set;
    uint32_t n, cap;
    uint32_t compact_at;            /* number of frames */
    bool complete, ended;
};

#endif
