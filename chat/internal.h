/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of chat/: the values a running template has beside the public ones, the tree a template is compiled to, and
 * the state of one render. The first failure of a render is sticky (chat_run.status): everything after it returns
 * quickly with some value, loops end, and nothing has to check in between. */
#ifndef MOED_CHAT_INTERNAL_H
#define MOED_CHAT_INTERNAL_H

#include "base/arena.h"
#include "chat/template.h"

/* ---- values ---- */

enum chat_private_type {
    CHAT_UNDEFINED = CHAT_N_PUBLIC, /* p: struct chat_undefined, or NULL               */
    CHAT_MISSING,                   /* a slot nothing was assigned to                  */
    CHAT_TUPLE,                     /* l; flag CHAT_GROUP: of groupby                  */
    CHAT_RANGE,                     /* p: struct chat_range_obj                        */
    CHAT_VIEW,                      /* d; flags: enum chat_view                        */
    CHAT_ITER,                      /* p: struct chat_iter, consumed by iteration      */
    CHAT_NAMESPACE,                 /* d                                               */
    CHAT_LOOP,                      /* p: struct chat_loop                             */
    CHAT_MACRO,                     /* p: struct chat_closure                          */
    CHAT_FUNC,                      /* p: struct chat_bound                            */
    CHAT_CYCLER,                    /* p: struct chat_cycler                           */
    CHAT_JOINER,                    /* p: struct chat_joiner                           */
};

enum chat_flags { CHAT_MARKUP = 1 /* of strings: |safe, |escape */, CHAT_GROUP = 1 };
enum chat_view { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS };

struct chat_range { /* bytes a client wrote */
    uint32_t start, end;
};

struct chat_str {
    const char *p;
    uint32_t len;     /* bytes            */
    uint32_t n_chars; /* code points      */
    uint32_t n_ranges;
    const struct chat_range *ranges; /* ordered, disjoint, not adjacent */
};

struct chat_list {
    struct chat_value *item;
    uint32_t n, cap;
};

struct chat_entry {
    struct chat_value key, value;
};

struct chat_dict {
    struct chat_entry *entry;
    uint32_t n, cap;
    uint32_t *slot; /* [mask + 1] entry + 1, 0 = empty; NULL while small */
    uint32_t mask;
};

struct chat_undefined {
    const char *hint;       /* NULL: made from the rest                 */
    uint8_t owner;          /* type of the object that lacks `name`, 0: a variable */
    bool security;          /* using it is a sandbox violation          */
    struct chat_value name;
};

struct chat_range_obj {
    int64_t start, stop, step, len;
};

struct chat_cycler {
    struct chat_value items; /* list */
    uint32_t pos;
};

struct chat_joiner {
    struct chat_value sep;
    bool used;
};

struct chat_run;
struct chat_node;

struct chat_args { /* of one call */
    struct chat_value *pos;
    struct chat_entry *kw; /* keys are strings */
    uint32_t n_pos, n_kw;
};

/* A filter, test, method or function written in C. `a` holds the arguments bound to `params` ("name name", preceded by
 * "/" when Python takes them by position only), CHAT_INVALID where absent; with params NULL use `raw`. */
typedef struct chat_value chat_native(struct chat_run *r, struct chat_value self, const struct chat_value *a, const struct chat_args *raw);
struct chat_builtin {
    const char *name;
    chat_native *fn;
    const char *params;
    uint8_t n_required;
};
enum { CHAT_MAX_PARAMS = 8 };

struct chat_bound { /* a builtin with its object */
    const struct chat_builtin *fn;
    struct chat_value self;
};

/* ---- strings under construction: str.c ---- */

struct chat_text {
    struct arena *arena;
    char *p;
    size_t len, cap, max;
    struct chat_range *ranges;
    uint32_t n_ranges, cap_ranges;
    bool failed;  /* out of memory, or (over) longer than max */
    bool over;
};

struct chat_value chat__str_n(struct arena *a, const char *p, size_t n, enum chat_origin origin); /* borrows p until the arena goes */
struct chat_value chat__str_slice(struct arena *a, struct chat_value s, size_t start, size_t end); /* bytes                        */
size_t chat__char_len(const char *p, size_t n);           /* bytes of the character at p: 1 for what is not UTF-8; n > 0 */
uint32_t chat__char_at(const char *p, size_t n, size_t *len); /* U+FFFD for what is not UTF-8                          */
size_t chat__char_put(uint32_t c, char out[4]);
size_t chat__char_offset(const struct chat_str *s, size_t i); /* byte offset of character i <= n_chars               */
int chat__prefix(const struct chat_str *s, int max);      /* bytes of the whole characters in the first `max` bytes    */
bool chat__str_eq(const struct chat_str *s, const char *z);
int chat__str_cmp(const struct chat_str *a, const struct chat_str *b);

void chat__text_init(struct chat_text *t, struct arena *a, size_t max);
void chat__text_put(struct chat_text *t, const char *p, size_t n, bool request);
void chat__text_puts(struct chat_text *t, const char *z);             /* trusted */
void chat__text_char(struct chat_text *t, uint32_t c, bool request);
void chat__text_part(struct chat_text *t, const struct chat_str *s, size_t start, size_t end);
void chat__text_str(struct chat_text *t, struct chat_value s);
bool chat__is_request(const struct chat_str *s, size_t at);           /* the byte at `at` */
struct chat_value chat__text_value(struct chat_text *t);              /* hands over; CHAT_INVALID when failed */

/* ---- unicode.c ---- */

enum unicode_flags {
    UNICODE_ALPHA = 1, UNICODE_DECIMAL = 2, UNICODE_DIGIT = 4, UNICODE_NUMERIC = 8, UNICODE_LOWER = 16, UNICODE_UPPER = 32,
    UNICODE_TITLE = 64, UNICODE_PRINTABLE = 128, UNICODE_IGNORABLE = 256,
    UNICODE_ALNUM = 15, UNICODE_CASED = 16 + 32 + 64,
};
enum unicode_case { CASE_LOWER, CASE_UPPER, CASE_TITLE };
unsigned chat__unicode(uint32_t c);
bool chat__is_space(uint32_t c);                                        /* str.isspace of one character */
size_t chat__to_case(uint32_t c, enum unicode_case how, uint32_t out[3]); /* how many characters it becomes */

/* ---- containers: value.c ---- */

struct chat_value chat__tuple(struct arena *a);
struct chat_value chat__dict_find(const struct chat_dict *d, struct chat_value key); /* CHAT_INVALID: absent; key must be hashable */
int chat__dict_put(struct arena *a, struct chat_dict *d, struct chat_value key, struct chat_value value);
bool chat__hashable(struct chat_value v);
struct chat_budget { /* of a walk over data that may share parts so often that it never ends */
    uint32_t left, depth;
    bool over; /* the walk was cut short */
};
bool chat__equal(struct chat_value a, struct chat_value b, struct chat_budget *budget);
static inline bool chat__is_seq(struct chat_value v)
{
    return v.type == CHAT_LIST || v.type == CHAT_TUPLE;
}

/* ---- the tree: parse.c, parse_expr.c, scope.c ---- */

enum chat_kind {
    /* expressions */
    N_CONST, N_NAME, N_NSREF, N_TUPLE, N_LIST, N_DICT, N_COND, N_AND, N_OR, N_NOT, N_NEG, N_POS, N_BINARY, N_CONCAT, N_COMPARE,
    N_OPERAND, N_GETATTR, N_GETITEM, N_SLICE, N_CALL, N_KEYWORD, N_STAR, N_STARSTAR, N_FILTER, N_TEST,
    /* statements */
    N_BODY, N_OUTPUT, N_FOR, N_IF, N_SET, N_SET_BLOCK, N_MACRO, N_CALL_BLOCK, N_FILTER_BLOCK, N_WITH, N_SCOPE, N_BLOCK, N_BREAK,
    N_CONTINUE, N_NO_LOADER,
};

enum chat_op {
    OP_ADD, OP_SUB, OP_MUL, OP_DIV, OP_FLOORDIV, OP_MOD, OP_POW,
    OP_EQ, OP_NE, OP_LT, OP_LE, OP_GT, OP_GE, OP_IN, OP_NOT_IN,
};

/* A variable's place: `slot` of the frame `hops` functions out. */
struct chat_var {
    const struct chat_str *name; /* interned: equal names, equal pointers */
    uint32_t hops, slot;
};

enum chat_load_kind { LOAD_RESOLVE, LOAD_ALIAS, LOAD_UNDEFINED, LOAD_PARAM };
struct chat_load {
    const struct chat_str *name;
    uint32_t slot;
    uint32_t hops, from;       /* LOAD_ALIAS */
    uint8_t kind;
};

/* What entering a scope does to its slots. Scopes of one function own disjoint runs of its frame. */
struct chat_scope {
    struct chat_load *load;
    uint32_t n;
};

struct chat_function { /* code with a frame of its own: the template, macros, call bodies, recursive loops, blocks */
    struct chat_scope scope;
    uint32_t n_slots;
    const struct chat_str *name; /* NULL: a call block */
    struct chat_node **param;    /* N_NAME, [n_params]                                  */
    struct chat_node **defaults; /* of the last n_defaults parameters                    */
    uint32_t n_params, n_defaults;
    uint32_t caller, kwargs, varargs; /* slots, UINT32_MAX when the body does not use it */
    bool caller_param;
    struct chat_node *body;
};

struct chat_for {
    struct chat_node *target, *iter, *body, *otherwise; /* otherwise may be NULL */
    struct chat_function *test;                         /* `for .. if`: body is the test; NULL */
    struct chat_node *test_target;                      /* a copy in the scope of the test     */
    struct chat_scope scope, else_scope;
    uint32_t loop_slot;                                 /* UINT32_MAX: not used  */
    struct chat_function *recursive;                    /* NULL: a plain loop    */
};

struct chat_node {
    uint8_t kind, op;
    bool parens;
    uint32_t line;
    uint32_t n;
    struct chat_node **list; /* [n] items, arguments, statements */
    union {
        struct chat_node *kid[3];
        struct chat_value value;                                  /* N_CONST */
        struct {
            struct chat_var var;
            const struct chat_str *attr;                          /* N_NSREF */
        };
        struct {
            struct chat_node *subject;                            /* N_FILTER (NULL in a filter block), N_TEST, N_CALL */
            const struct chat_builtin *fn;                        /* NULL: unknown                    */
            const struct chat_str *fn_name;
        };
        struct chat_for *loop;
        struct {
            struct chat_function *function;                       /* N_MACRO, N_CALL_BLOCK, N_BLOCK  */
            struct chat_node *call;                               /* N_CALL_BLOCK                     */
            struct chat_var macro_var;                            /* N_MACRO                          */
        };
        struct {
            struct chat_node *target, *filter, *block;            /* N_SET_BLOCK, N_FILTER_BLOCK, N_WITH, N_SCOPE */
            struct chat_scope *scope;
        };
    };
};

struct chat_template {
    struct arena arena;
    char *text;
    size_t n_text;
    struct chat_function main;
};

enum {
    CHAT_MAX_TEMPLATE = 1 << 20,
    CHAT_MAX_NESTING = 200,      /* of the template's text: bounds the parser and every walk over the tree */
    CHAT_MAX_TREE = 1000,        /* of the tree: a + b + c + ... is deep without being nested              */
    CHAT_MAX_DATA_DEPTH = 256,   /* of values, when compared or printed                                    */
};

/* ---- compile: state shared by lexer and parser ---- */

enum chat_token_kind {
    T_EOF, T_DATA, T_BLOCK_BEGIN, T_BLOCK_END, T_VAR_BEGIN, T_VAR_END, T_NAME, T_STRING, T_INT, T_FLOAT,
    T_ADD, T_SUB, T_DIV, T_FLOORDIV, T_MUL, T_MOD, T_POW, T_TILDE, T_LBRACKET, T_RBRACKET, T_LPAREN, T_RPAREN, T_LBRACE,
    T_RBRACE, T_EQ, T_NE, T_GT, T_GE, T_LT, T_LE, T_ASSIGN, T_DOT, T_COLON, T_PIPE, T_COMMA, T_SEMICOLON,
};

struct chat_token {
    uint8_t kind;
    uint32_t line;
    struct chat_value value; /* T_DATA, T_NAME (interned), T_STRING: string; T_INT, T_FLOAT */
};

struct chat_compile {
    struct arena *arena;       /* what the template keeps */
    struct arena *scratch;     /* tokens, symbols         */
    struct chat_error *e;
    int status;
    struct chat_value names;   /* dict: interned */
    struct chat_token *token;  /* [n_tokens], T_EOF last */
    uint32_t n_tokens, cap_tokens, at;
    uint32_t depth;
    bool in_loop;
};

const struct chat_str *chat__intern(struct chat_compile *c, const char *p, size_t n); /* NULL: out of memory */
void chat__syntax(struct chat_compile *c, uint32_t line, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void chat__nomem(struct chat_compile *c);
void chat__lex(struct chat_compile *c, const char *text, size_t n);
const char *chat__token_text(const struct chat_token *t, char *tmp, size_t n_tmp); /* for messages */

struct chat_node *chat__parse_template(struct chat_compile *c);
/* parse_expr.c; every one returns NULL after a failure */
struct chat_node *chat__node(struct chat_compile *c, enum chat_kind kind, uint32_t line);
bool chat__append(struct chat_compile *c, struct chat_node *n, struct chat_node *item);
struct chat_node *chat__parse_expression(struct chat_compile *c, bool with_cond);
enum chat_tuple_end { TUPLE_PLAIN, TUPLE_UNTIL_IN, TUPLE_UNTIL_RECURSIVE };
struct chat_node *chat__parse_tuple(struct chat_compile *c, bool with_cond, enum chat_tuple_end end, bool parens);
struct chat_node *chat__parse_target(struct chat_compile *c, enum chat_tuple_end end, bool with_namespace);
struct chat_node *chat__parse_filters(struct chat_compile *c, struct chat_node *subject, bool start_inline);
bool chat__enter(struct chat_compile *c); /* one nesting level deeper; false after a failure */
void chat__leave(struct chat_compile *c);
const struct chat_token *chat__peek(const struct chat_compile *c, uint32_t ahead);
const struct chat_token *chat__take(struct chat_compile *c);
bool chat__is_name(const struct chat_token *t, const char *name);
bool chat__skip_name(struct chat_compile *c, const char *name);
bool chat__skip(struct chat_compile *c, enum chat_token_kind kind);
bool chat__expect(struct chat_compile *c, enum chat_token_kind kind);

void chat__resolve(struct chat_compile *c, struct chat_function *main); /* scope.c */

/* ---- the run: eval.c, expr.c, call.c, iter.c ---- */

struct chat_frame { /* of one activation of a function */
    struct chat_frame *up;
    struct chat_value slot[];
};

struct chat_closure {
    const struct chat_function *fn;
    struct chat_frame *up;
};

enum chat_flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };

struct chat_run {
    const struct chat_template *t;
    struct arena arena;
    struct chat_limits limits;
    struct chat_value vars;    /* dict */
    struct chat_frame *main;   /* the template's own level: blocks see what it assigned */
    struct chat_frame *frame;
    struct chat_text *out;
    uint64_t steps;
    size_t depth;
    int status;
    uint32_t line;
    int64_t now_s;
    struct chat_error *e;
    char *tail;                /* the newest text block: concatenation grows its last string in place */
    size_t n_tail, cap_tail;
};

struct chat_value chat__fail(struct chat_run *r, enum chat_error_kind kind, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
struct chat_value chat__out_of_memory(struct chat_run *r);
bool chat__step(struct chat_run *r, size_t n_bytes); /* counts work; false when the run has failed or is over its limit */
void *chat__alloc(struct chat_run *r, size_t n);     /* NULL after a failure */

struct chat_value chat__eval(struct chat_run *r, const struct chat_node *n);
enum chat_flow chat__exec(struct chat_run *r, const struct chat_node *body);
void chat__assign(struct chat_run *r, const struct chat_node *target, struct chat_value v);
void chat__scope_enter(struct chat_run *r, const struct chat_scope *s);
struct chat_value chat__run_recursive(struct chat_run *r, const struct chat_for *f, struct chat_frame *up, struct chat_value iterable, uint32_t depth);
struct chat_value chat__lookup(struct chat_run *r, const struct chat_str *name); /* CHAT_MISSING: no such variable */

struct chat_value chat__binary(struct chat_run *r, enum chat_op op, struct chat_value a, struct chat_value b);
bool chat__compare(struct chat_run *r, enum chat_op op, struct chat_value a, struct chat_value b);
int chat__order(struct chat_run *r, struct chat_value a, struct chat_value b, const char *op); /* < 0, 0, > 0; a NaN gives 2 */
bool chat__contains(struct chat_run *r, struct chat_value item, struct chat_value in);
bool chat__truth(struct chat_run *r, struct chat_value v);
int64_t chat__len(struct chat_value v); /* -1: has none */
struct chat_value chat__attribute(struct chat_run *r, struct chat_value v, struct chat_value name); /* CHAT_MISSING: none */
struct chat_value chat__getattr(struct chat_run *r, struct chat_value v, struct chat_value name);
struct chat_value chat__getitem(struct chat_run *r, struct chat_value v, struct chat_value key);
struct chat_value chat__slice(struct chat_run *r, struct chat_value v, struct chat_value start, struct chat_value stop, struct chat_value step);
struct chat_value chat__path(struct chat_run *r, struct chat_value v, struct chat_value path); /* "a.b.0", as attribute= of filters */
struct chat_value chat__undefined(struct chat_run *r, uint8_t owner, struct chat_value name);
struct chat_value chat__undefined_hint(struct chat_run *r, const char *hint);
struct chat_value chat__fail_undefined(struct chat_run *r, struct chat_value v);
struct chat_value chat__concat(struct chat_run *r, struct chat_value a, struct chat_value b); /* strings */
bool chat__to_int(struct chat_run *r, struct chat_value v, int64_t *out); /* bool and int; else a TypeError */

struct chat_value chat__call(struct chat_run *r, struct chat_value callee, struct chat_args *args);
struct chat_value chat__call_builtin(struct chat_run *r, const struct chat_builtin *fn, struct chat_value self, const struct chat_args *args);
bool chat__eval_args(struct chat_run *r, const struct chat_node *n, struct chat_args *out, const struct chat_value *caller);
struct chat_frame *chat__frame(struct chat_run *r, const struct chat_function *f, struct chat_frame *up);
struct chat_value chat__capture(struct chat_run *r, const struct chat_node *body, enum chat_flow *flow); /* its output as a string */
struct chat_value chat__func(struct chat_run *r, const struct chat_builtin *fn, struct chat_value self);
struct chat_value chat__global(struct chat_run *r, const struct chat_str *name); /* CHAT_MISSING */

/* Iteration. */
enum chat_iter_kind { ITER_SEQ, ITER_STR, ITER_RANGE, ITER_DICT, ITER_MAP, ITER_SELECT, ITER_UNIQUE, ITER_BATCH, ITER_TEST, ITER_LOOP };
struct chat_iter {
    uint8_t kind, view;            /* enum chat_iter_kind, enum chat_view                   */
    bool negate;                   /* SELECT: reject; UNIQUE: case counts                   */
    struct chat_value over;        /* what is walked                                        */
    uint64_t at;
    struct chat_iter *source;      /* of the lazy kinds                                     */
    const struct chat_builtin *fn; /* MAP: filter; SELECT: test; NULL: none                 */
    struct chat_value path;        /* attribute to take first; CHAT_INVALID or None: none   */
    struct chat_value fallback;    /* MAP: for an undefined attribute; BATCH: fills up      */
    struct chat_args args;
    int64_t batch;
    const struct chat_for *test;   /* TEST */
    struct chat_frame *frame;      /* TEST: of the test's function                          */
};

struct chat_loop {
    struct chat_iter *it;
    struct chat_value iterable;
    int64_t index0, length;                     /* length -1: not asked yet                */
    struct chat_value before, current, after;   /* after: CHAT_MISSING when not looked at  */
    struct chat_value changed;                  /* CHAT_MISSING before the first call      */
    const struct chat_for *recursive;
    struct chat_frame *up;
    uint32_t depth0;
};

struct chat_iter *chat__iter(struct chat_run *r, struct chat_value v); /* NULL: not iterable, or failed */
bool chat__next(struct chat_run *r, struct chat_iter *it, struct chat_value *out);
bool chat__iterable(struct chat_value v);
struct chat_value chat__to_list(struct chat_run *r, struct chat_value v); /* a new list */
int64_t chat__loop_len(struct chat_run *r, struct chat_loop *l);
bool chat__loop_next(struct chat_run *r, struct chat_loop *l, struct chat_value *out);
struct chat_value chat__loop_attr(struct chat_run *r, struct chat_loop *l, const struct chat_str *name); /* CHAT_MISSING */
struct chat_value chat__iter_value(struct chat_iter *it);

/* ---- what templates call ---- */

const struct chat_builtin *chat__filter(const struct chat_str *name);      /* filters.c; NULL: unknown */
const struct chat_builtin *chat__test(const struct chat_str *name);        /* tests.c                  */
const struct chat_builtin *chat__method(struct chat_value v, const struct chat_str *name, bool *unsafe); /* methods.c */
const struct chat_builtin *chat__find_builtin(const struct chat_builtin *table, size_t n, const struct chat_str *name);
extern const struct chat_builtin chat__filters_seq[];                      /* filters_seq.c            */
extern const size_t chat__n_filters_seq;
extern const struct chat_builtin chat__str_methods[];                      /* methods_str.c            */
extern const size_t chat__n_str_methods;

/* str_ops.c: shared by methods and filters; indices are characters */
struct chat_value chat__strip(struct chat_run *r, struct chat_value s, struct chat_value chars, int sides); /* 1 left, 2 right */
struct chat_value chat__replace(struct chat_run *r, struct chat_value s, struct chat_value old, struct chat_value with, int64_t count);
size_t chat__case_at(const struct chat_str *s, size_t at, enum unicode_case how, uint32_t out[3]); /* knows the final sigma */
struct chat_value chat__case(struct chat_run *r, struct chat_value s, enum unicode_case how);
struct chat_value chat__capitalize(struct chat_run *r, struct chat_value s);
struct chat_value chat__split(struct chat_run *r, struct chat_value s, struct chat_value sep, int64_t max, bool from_right);
struct chat_value chat__splitlines(struct chat_run *r, struct chat_value s, bool keep_ends);
struct chat_value chat__join(struct chat_run *r, struct chat_value sep, struct chat_value items, bool convert);
struct chat_value chat__pad(struct chat_run *r, struct chat_value s, int64_t width, struct chat_value fill, int align); /* '<' '>' '^' */
struct chat_value chat__escape(struct chat_run *r, struct chat_value s);   /* HTML */

/* ---- text of values: format.c, printf.c, json.c ---- */

struct chat_value chat__to_str(struct chat_run *r, struct chat_value v);   /* str(v) */
void chat__put_str(struct chat_run *r, struct chat_text *t, struct chat_value v);
void chat__put_repr(struct chat_run *r, struct chat_text *t, struct chat_value v, unsigned depth);
size_t chat__float_repr(double f, char out[32]);
const char *chat__type_name(struct chat_value v);
struct chat_value chat__percent(struct chat_run *r, struct chat_value fmt, struct chat_value args); /* fmt % args */
struct chat_value chat__format(struct chat_run *r, struct chat_value fmt, const struct chat_args *args); /* fmt.format() */
struct chat_value chat__format_spec(struct chat_run *r, struct chat_value v, const char *spec, size_t n);
struct chat_value chat__to_json(struct chat_run *r, struct chat_value v, const struct chat_value *options);
bool chat__parse_int(const struct chat_str *s, int base, int64_t *out);    /* int(s, base)    */
bool chat__parse_float(const struct chat_str *s, double *out);             /* float(s)        */
bool chat__float_to_int(double f, int64_t *out);
void chat__text_for(struct chat_run *r, struct chat_text *t);              /* an empty text of this run */
struct chat_value chat__text_done(struct chat_run *r, struct chat_text *t);

#endif
