/* SPDX-License-Identifier: Apache-2.0
 *
 * Names -> slots. jinja2 compiles a template to Python functions and decides statically which function's variable a
 * name means; the rules below are its. A scope (loop body, set block, ...) first sees all names it loads and stores:
 *   load of a name no enclosing scope has      -> asked of the caller's variables when the scope is entered
 *   store to a name an enclosing scope has     -> a copy of that one, made when the scope is entered
 *   store to a new name                        -> unset; or asked of the caller if only a branch of an `if` stores
 * then its expressions are bound, and scopes inside see its final state. Slots of one function are never shared. */
#include <string.h>

#include "chat/internal.h"

struct entry {
    struct chat_load load;
    bool stored;
};

struct symbols {
    struct symbols *parent;
    struct chat_function *fn;
    uint32_t fn_depth;
    struct entry *entry;
    uint32_t n, cap;
    uint32_t *order; /* entries in the order they were first stored, [n_order] */
    uint32_t n_order, cap_order;
};

struct resolver {
    struct chat_compile *c;
    struct symbols *sym;
    bool soft;        /* inside `if`: an unknown filter is an error only when it runs */
    uint32_t n_loops; /* around this place                                            */
    const struct chat_str *wanted; /* of mentions()                                    */
    bool found, hidden;
};

typedef void visit_fn(struct resolver *r, struct chat_node *n);

static void visit_function(struct resolver *r, const struct chat_function *f, visit_fn *fn)
{
    for (uint32_t i = 0; i < f->n_defaults; i++)
        fn(r, f->defaults[i]);
    fn(r, f->body);
}

/* The children that are not in n->list. */
static void visit_kids(struct resolver *r, struct chat_node *n, visit_fn *fn)
{
    switch (n->kind) {
    case N_CONST: case N_NAME: case N_NSREF: case N_BREAK: case N_CONTINUE: case N_NO_LOADER:
        break;
    case N_CALL: case N_FILTER: case N_TEST:
        if (n->subject)
            fn(r, n->subject);
        break;
    case N_FOR:
        fn(r, n->loop->target);
        fn(r, n->loop->iter);
        fn(r, n->loop->body);
        if (n->loop->otherwise)
            fn(r, n->loop->otherwise);
        if (n->loop->test)
            fn(r, n->loop->test->body);
        break;
    case N_MACRO: case N_BLOCK:
        visit_function(r, n->function, fn);
        break;
    case N_CALL_BLOCK:
        fn(r, n->call);
        visit_function(r, n->function, fn);
        break;
    case N_SET_BLOCK: case N_FILTER_BLOCK: case N_WITH: case N_SCOPE:
        if (n->target)
            fn(r, n->target);
        if (n->filter)
            fn(r, n->filter);
        fn(r, n->block);
        break;
    default:
        for (int i = 0; i < 3; i++)
            if (n->kid[i])
                fn(r, n->kid[i]);
    }
}

/* Calls fn for every child. All recursion over the tree passes here. */
static void visit(struct resolver *r, struct chat_node *n, visit_fn *fn)
{
    if (r->c->status)
        return;
    if (++r->c->depth > CHAT_MAX_TREE)
        chat__syntax(r->c, n->line, "an expression of more than %d steps", CHAT_MAX_TREE);
    if (!r->c->status) {
        visit_kids(r, n, fn);
        for (uint32_t i = 0; i < n->n && !r->c->status; i++)
            fn(r, n->list[i]);
    }
    r->c->depth--;
}

/* ---- does a body use a name it does not store first? ---- */

static void look_for(struct resolver *r, struct chat_node *n);

static void look_in_target(struct resolver *r, struct chat_node *n)
{
    if (n->kind == N_NAME)
        r->hidden |= n->var.name == r->wanted;
    else
        visit(r, n, look_in_target);
}

static void look_for(struct resolver *r, struct chat_node *n)
{
    if (r->found || r->hidden || n->kind == N_BLOCK)
        return;
    if (n->kind == N_NAME) {
        r->found = n->var.name == r->wanted;
    } else if (n->kind == N_SET) {
        look_in_target(r, n->kid[0]);
        look_for(r, n->kid[1]);
    } else if (n->kind == N_SET_BLOCK) {
        look_in_target(r, n->target);
        if (n->filter)
            look_for(r, n->filter);
        look_for(r, n->block);
    } else if (n->kind == N_FOR) {
        look_in_target(r, n->loop->target);
        look_for(r, n->loop->iter);
        look_for(r, n->loop->body);
        if (n->loop->otherwise)
            look_for(r, n->loop->otherwise);
        if (n->loop->test)
            look_for(r, n->loop->test->body);
    } else {
        visit(r, n, look_for);
    }
}

static bool mentions(struct resolver *r, struct chat_node *body, const char *name)
{
    r->wanted = chat__intern(r->c, name, strlen(name));
    r->found = r->hidden = false;
    look_for(r, body);
    return r->found;
}

/* ---- symbols ---- */

static struct entry *own(struct symbols *s, const struct chat_str *name)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (s->entry[i].load.name == name)
            return &s->entry[i];
    return NULL;
}

static struct entry *find(struct symbols *s, const struct chat_str *name, struct symbols **where)
{
    for (; s; s = s->parent) {
        struct entry *e = own(s, name);
        if (e) {
            *where = s;
            return e;
        }
    }
    return NULL;
}

static void *grow(struct chat_compile *c, void *p, uint32_t n, uint32_t *cap, size_t size)
{
    if (n < *cap)
        return p;
    uint32_t bigger = *cap ? *cap * 2 : 8;
    void *q = arena_alloc(c->scratch, bigger * size);
    if (!q) {
        chat__nomem(c);
        return NULL;
    }
    if (n)
        memcpy(q, p, n * size);
    *cap = bigger;
    return q;
}

static struct entry *define(struct resolver *r, const struct chat_str *name, enum chat_load_kind kind)
{
    struct symbols *s = r->sym;
    struct entry *e = own(s, name);
    if (!e) {
        struct entry *more = grow(r->c, s->entry, s->n, &s->cap, sizeof(*more));
        if (!more)
            return NULL;
        s->entry = more;
        e = &more[s->n++];
        *e = (struct entry){.load = {.name = name, .slot = s->fn->n_slots++}};
    }
    e->load.kind = (uint8_t)kind;
    return e;
}

static void alias(struct symbols *s, struct entry *e, enum chat_load_kind otherwise)
{
    struct symbols *where;
    struct entry *outer = find(s->parent, e->load.name, &where);
    e->load.kind = (uint8_t)(outer ? LOAD_ALIAS : otherwise);
    if (outer) {
        e->load.from = outer->load.slot;
        e->load.hops = s->fn_depth - where->fn_depth;
    }
}

static void mark_stored(struct resolver *r, struct entry *e)
{
    struct symbols *s = r->sym;
    if (!e || e->stored)
        return;
    e->stored = true;
    uint32_t *more = grow(r->c, s->order, s->n_order, &s->cap_order, sizeof(*more));
    if (!more)
        return;
    s->order = more;
    more[s->n_order++] = (uint32_t)(e - s->entry);
}

static void store(struct resolver *r, const struct chat_str *name)
{
    struct entry *e = own(r->sym, name);
    if (!e && (e = define(r, name, LOAD_UNDEFINED)))
        alias(r->sym, e, LOAD_UNDEFINED);
    mark_stored(r, e);
}

static uint32_t param(struct resolver *r, const struct chat_str *name)
{
    struct entry *e = name ? define(r, name, LOAD_PARAM) : NULL;
    mark_stored(r, e);
    return e ? e->load.slot : UINT32_MAX;
}

static void load(struct resolver *r, const struct chat_str *name)
{
    struct symbols *where;
    if (!find(r->sym, name, &where))
        define(r, name, LOAD_RESOLVE);
}

/* ---- what a scope loads and stores ---- */

static void analyze(struct resolver *r, struct chat_node *n);

static void analyze_target(struct resolver *r, struct chat_node *n)
{
    if (n->kind == N_NAME)
        store(r, n->var.name);
    else if (n->kind == N_NSREF)
        load(r, n->var.name);
    else
        visit(r, n, analyze_target);
}

static void analyze_params(struct resolver *r, struct chat_node *n)
{
    if (n->kind == N_NAME)
        param(r, n->var.name);
    else
        visit(r, n, analyze_params);
}

static void analyze_if(struct resolver *r, struct chat_node *n)
{
    struct symbols *s = r->sym;
    uint32_t before = s->n_order;
    visit(r, n, analyze);
    for (uint32_t i = before; i < s->n_order; i++) /* perhaps stored, perhaps not: what is there otherwise counts */
        alias(s, &s->entry[s->order[i]], LOAD_RESOLVE);
}

static void analyze(struct resolver *r, struct chat_node *n)
{
    switch (n->kind) {
    case N_NAME:
    case N_NSREF:
        load(r, n->var.name);
        break;
    case N_IF:
        analyze_if(r, n);
        break;
    case N_SET:
        analyze(r, n->kid[1]);
        analyze_target(r, n->kid[0]);
        break;
    case N_SET_BLOCK:
        analyze_target(r, n->target);
        break;
    case N_FOR:
        analyze(r, n->loop->iter);
        break;
    case N_MACRO:
        store(r, n->macro_var.name);
        break;
    case N_CALL_BLOCK:
        analyze(r, n->call);
        break;
    case N_FILTER_BLOCK:
        analyze(r, n->filter);
        break;
    case N_WITH:
        for (uint32_t i = 1; i < n->n; i += 2)
            analyze(r, n->list[i]);
        break;
    case N_SCOPE:
    case N_BLOCK:
        break;
    default:
        visit(r, n, analyze);
    }
}

/* ---- binding ---- */

static void bind(struct resolver *r, struct chat_node *n);

static void bind_var(struct resolver *r, struct chat_var *v, uint32_t line)
{
    struct symbols *where;
    struct entry *e = find(r->sym, v->name, &where);
    if (!e) {
        chat__syntax(r->c, line, "the name '%.*s' is not known here", (int)v->name->len, v->name->p);
        return;
    }
    v->hops = r->sym->fn_depth - where->fn_depth;
    v->slot = e->load.slot;
}

static void bind_target(struct resolver *r, struct chat_node *n)
{
    if (n->kind == N_NAME || n->kind == N_NSREF) {
        bind_var(r, &n->var, n->line);
        if (n->kind == N_NAME && r->n_loops && chat__str_eq(n->var.name, "loop"))
            chat__syntax(r->c, n->line, "Can't assign to special loop variable in for-loop target");
    } else {
        visit(r, n, bind_target);
    }
}

static void begin(struct resolver *r, struct symbols *s, struct chat_function *fn)
{
    struct symbols *up = r->sym;
    *s = (struct symbols){.parent = up, .fn = fn ? fn : up->fn, .fn_depth = up ? up->fn_depth + (fn != NULL) : 0};
    r->sym = s;
}

/* The scope's names are known: what entering it has to do. */
static void fix(struct resolver *r, struct chat_scope *out)
{
    struct symbols *s = r->sym;
    out->load = arena_alloc(r->c->arena, (s->n + 1) * sizeof(*out->load));
    if (!out->load) {
        chat__nomem(r->c);
        return;
    }
    for (uint32_t i = 0; i < s->n; i++)
        if (s->entry[i].load.kind != LOAD_PARAM)
            out->load[out->n++] = s->entry[i].load;
}

static void end(struct resolver *r)
{
    r->sym = r->sym->parent;
}

/* caller, varargs and kwargs are parameters of a body that mentions them. */
static void special_params(struct resolver *r, struct chat_function *f, bool isolated)
{
    static const char *const names[] = {"caller", "kwargs", "varargs"};
    uint32_t *const slots[] = {&f->caller, &f->kwargs, &f->varargs};
    for (int i = 0; i < 3; i++) {
        bool is_param = false;
        *slots[i] = UINT32_MAX;
        for (uint32_t k = 0; k < f->n_params; k++)
            is_param |= chat__str_eq(f->param[k]->var.name, names[i]);
        if (i == 0)
            f->caller_param = is_param;
        if (!isolated && !is_param && mentions(r, f->body, names[i]))
            *slots[i] = param(r, r->wanted);
    }
}

static void bind_function(struct resolver *r, struct chat_function *f, bool isolated)
{
    struct symbols s, *outer = r->sym;
    bool soft = r->soft;
    if (isolated)
        r->sym = NULL;
    begin(r, &s, f);
    r->soft = false;
    for (uint32_t i = 0; i < f->n_params; i++)
        param(r, f->param[i]->var.name);
    special_params(r, f, isolated);
    visit_function(r, f, analyze);
    fix(r, &f->scope);
    for (uint32_t i = 0; i < f->n_params; i++)
        bind_target(r, f->param[i]);
    visit_function(r, f, bind);
    r->sym = outer;
    r->soft = soft;
}

static void bind_block(struct resolver *r, struct chat_node *n)
{
    struct symbols s;
    bool soft = r->soft;
    for (uint32_t i = 1; n->kind == N_WITH && i < n->n; i += 2)
        bind(r, n->list[i]);
    begin(r, &s, NULL);
    r->soft = false;
    for (uint32_t i = 0; n->kind == N_WITH && i < n->n; i += 2)
        analyze_params(r, n->list[i]);
    if (n->filter)
        analyze(r, n->filter);
    analyze(r, n->block);
    fix(r, n->scope);
    for (uint32_t i = 0; n->kind == N_WITH && i < n->n; i += 2)
        bind_target(r, n->list[i]);
    bind(r, n->block);
    if (n->filter)
        bind(r, n->filter);
    end(r);
    r->soft = soft;
    if (n->target)
        bind_target(r, n->target);
}

static void bind_test(struct resolver *r, struct chat_for *f)
{
    struct symbols s;
    begin(r, &s, f->test);
    analyze_params(r, f->test_target);
    analyze(r, f->test->body);
    fix(r, &f->test->scope);
    bind_target(r, f->test_target);
    bind(r, f->test->body);
    end(r);
}

static void bind_for(struct resolver *r, struct chat_for *f)
{
    struct symbols s, outer;
    bool soft = r->soft;
    bind(r, f->iter);
    r->soft = false;
    r->n_loops++;
    if (f->test)
        bind_test(r, f);
    if (f->recursive) /* a function of its own, which its scopes are inside of */
        begin(r, &outer, f->recursive);
    bool extended = f->recursive || mentions(r, f->body, "loop");
    begin(r, &s, NULL);
    f->loop_slot = extended ? param(r, chat__intern(r->c, "loop", 4)) : UINT32_MAX;
    analyze_params(r, f->target);
    analyze(r, f->body);
    fix(r, &f->scope);
    bind_target(r, f->target);
    bind(r, f->body);
    end(r);
    if (f->otherwise) {
        begin(r, &s, NULL);
        analyze(r, f->otherwise);
        fix(r, &f->else_scope);
        bind(r, f->otherwise);
        end(r);
    }
    if (f->recursive)
        end(r);
    r->n_loops--;
    r->soft = soft;
}

static void bind_call(struct resolver *r, struct chat_node *n)
{
    if (n->kind != N_CALL && !n->fn && !r->soft)
        chat__syntax(r->c, n->line, "No %s named '%.*s'.", n->kind == N_FILTER ? "filter" : "test", (int)n->fn_name->len, n->fn_name->p);
    visit(r, n, bind);
}

static void bind_soft(struct resolver *r, struct chat_node *n)
{
    bool soft = r->soft;
    r->soft = true;
    visit(r, n, bind);
    r->soft = soft;
}

static void bind(struct resolver *r, struct chat_node *n)
{
    switch (n->kind) {
    case N_NAME:
    case N_NSREF:
        bind_var(r, &n->var, n->line);
        break;
    case N_IF:
    case N_COND:
        bind_soft(r, n);
        break;
    case N_SET:
        bind_target(r, n->kid[0]);
        bind(r, n->kid[1]);
        break;
    case N_FOR:
        bind_for(r, n->loop);
        break;
    case N_MACRO:
        bind_function(r, n->function, false);
        bind_var(r, &n->macro_var, n->line);
        break;
    case N_CALL_BLOCK:
        bind_function(r, n->function, false);
        bind(r, n->call);
        break;
    case N_BLOCK:
        bind_function(r, n->function, true);
        break;
    case N_SET_BLOCK:
    case N_FILTER_BLOCK:
    case N_WITH:
    case N_SCOPE:
        bind_block(r, n);
        break;
    case N_CALL:
    case N_FILTER:
    case N_TEST:
        bind_call(r, n);
        break;
    default:
        visit(r, n, bind);
    }
}

void chat__resolve(struct chat_compile *c, struct chat_function *main)
{
    struct resolver r = {.c = c};
    c->depth = 0;
    bind_function(&r, main, true);
}
