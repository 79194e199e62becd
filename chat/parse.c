/* SPDX-License-Identifier: Apache-2.0
 *
 * Statements: tokens -> tree. One function per tag; a body runs until one of its closing tags, whose name the caller
 * then takes. */
#include <stdio.h>
#include <string.h>

#include "chat/internal.h"

static struct chat_node *parse_body(struct chat_compile *c, const char *const *ends);

/* ":"? "%}" body, up to the closing tag's name, which is not taken. */
static struct chat_node *statements(struct chat_compile *c, const char *const *ends)
{
    chat__skip(c, T_COLON);
    if (!chat__expect(c, T_BLOCK_END))
        return NULL;
    struct chat_node *body = parse_body(c, ends);
    if (!c->status && chat__peek(c, 0)->kind == T_EOF)
        chat__syntax(c, chat__peek(c, 0)->line, "Unexpected end of template. Jinja was looking for the following tags: '%s'%s%s%s.", ends[0],
                     ends[1] ? " or '" : "", ends[1] ? ends[1] : "", ends[1] ? "'" : "");
    return c->status ? NULL : body;
}

/* The same with one possible closing tag, which is taken. */
static struct chat_node *statements_to(struct chat_compile *c, const char *end)
{
    const char *const ends[] = {end, NULL};
    struct chat_node *body = statements(c, ends);
    if (body)
        chat__take(c);
    return body;
}

static void *zalloc(struct chat_compile *c, size_t n)
{
    void *p = c->status ? NULL : arena_zalloc(c->arena, 1, n);
    if (!p)
        chat__nomem(c);
    return p;
}

static struct chat_node *parse_for(struct chat_compile *c, uint32_t line)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    struct chat_node *n = chat__node(c, N_FOR, line);
    struct chat_for *f = zalloc(c, sizeof(*f));
    bool outer = c->in_loop;
    if (!n || !f)
        return NULL;
    n->loop = f;
    uint32_t target_at = c->at;
    f->target = chat__parse_target(c, TUPLE_UNTIL_IN, false);
    if (!c->status && !chat__skip_name(c, "in"))
        chat__syntax(c, chat__peek(c, 0)->line, "expected token 'in'");
    f->iter = chat__parse_tuple(c, false, TUPLE_UNTIL_RECURSIVE, false);
    if (!c->status && chat__skip_name(c, "if")) {
        f->test = zalloc(c, sizeof(*f->test));
        struct chat_node *test = chat__parse_expression(c, true);
        if (f->test)
            f->test->body = test;
        uint32_t resume = c->at; /* the test has its own copy of the target, which lives in its own scope */
        c->at = target_at;
        f->test_target = chat__parse_target(c, TUPLE_UNTIL_IN, false);
        c->at = resume;
    }
    if (!c->status && chat__skip_name(c, "recursive"))
        f->recursive = zalloc(c, sizeof(*f->recursive));
    c->in_loop = true;
    f->body = statements(c, ends);
    c->in_loop = outer;
    if (!c->status && chat__is_name(chat__take(c), "else"))
        f->otherwise = statements_to(c, "endfor");
    return n;
}

/* list: test, body, test, body, ..., and the body of else when there is one. */
static struct chat_node *parse_if(struct chat_compile *c, uint32_t line)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct chat_node *n = chat__node(c, N_IF, line);
    while (!c->status) {
        chat__append(c, n, chat__parse_tuple(c, false, TUPLE_PLAIN, false));
        chat__append(c, n, statements(c, ends));
        if (c->status)
            break;
        const struct chat_token *t = chat__take(c);
        if (chat__is_name(t, "elif"))
            continue;
        if (chat__is_name(t, "else"))
            chat__append(c, n, statements_to(c, "endif"));
        break;
    }
    return n;
}

static struct chat_node *block_node(struct chat_compile *c, enum chat_kind kind, uint32_t line)
{
    struct chat_node *n = chat__node(c, kind, line);
    if (n)
        n->scope = zalloc(c, sizeof(*n->scope));
    return n;
}

static struct chat_node *parse_set(struct chat_compile *c, uint32_t line)
{
    struct chat_node *target = chat__parse_target(c, TUPLE_PLAIN, true);
    if (!c->status && chat__skip(c, T_ASSIGN)) {
        struct chat_node *n = chat__node(c, N_SET, line);
        struct chat_node *value = chat__parse_tuple(c, true, TUPLE_PLAIN, false);
        if (n) {
            n->kid[0] = target;
            n->kid[1] = value;
        }
        return n;
    }
    struct chat_node *n = block_node(c, N_SET_BLOCK, line);
    if (n) {
        n->target = target;
        n->filter = chat__parse_filters(c, NULL, false);
        n->block = statements_to(c, "endset");
    }
    return n;
}

static struct chat_node *parse_name_target(struct chat_compile *c)
{
    const struct chat_token *t = chat__peek(c, 0);
    if (!chat__expect(c, T_NAME))
        return NULL;
    struct chat_node *n = chat__node(c, N_NAME, t->line);
    if (n)
        n->var.name = t->value.s;
    return n;
}

/* "(a, b=1)" */
static void parse_signature(struct chat_compile *c, struct chat_function *f)
{
    struct chat_node *params = chat__node(c, N_TUPLE, 0), *defaults = chat__node(c, N_TUPLE, 0);
    chat__expect(c, T_LPAREN);
    while (!c->status && chat__peek(c, 0)->kind != T_RPAREN) {
        if (params->n && !chat__expect(c, T_COMMA))
            break;
        chat__append(c, params, parse_name_target(c));
        if (!c->status && chat__skip(c, T_ASSIGN))
            chat__append(c, defaults, chat__parse_expression(c, true));
        else if (!c->status && defaults->n)
            chat__syntax(c, chat__peek(c, 0)->line, "non-default argument follows default argument");
    }
    chat__expect(c, T_RPAREN);
    if (c->status)
        return;
    f->param = params->list;
    f->n_params = params->n;
    f->defaults = defaults->list;
    f->n_defaults = defaults->n;
}

/* The body of a function of its own: loops outside do not reach in. */
static void parse_function_body(struct chat_compile *c, struct chat_function *f, const char *end)
{
    bool outer = c->in_loop;
    c->in_loop = false;
    f->body = statements_to(c, end);
    c->in_loop = outer;
}

static struct chat_node *parse_macro(struct chat_compile *c, uint32_t line)
{
    struct chat_node *n = chat__node(c, N_MACRO, line), *name = parse_name_target(c);
    struct chat_function *f = zalloc(c, sizeof(*f));
    if (!n || !name || !f)
        return NULL;
    n->function = f;
    n->macro_var = name->var;
    f->name = name->var.name;
    parse_signature(c, f);
    parse_function_body(c, f, "endmacro");
    return n;
}

static struct chat_node *parse_call_block(struct chat_compile *c, uint32_t line)
{
    struct chat_node *n = chat__node(c, N_CALL_BLOCK, line);
    struct chat_function *f = zalloc(c, sizeof(*f));
    if (!n || !f)
        return NULL;
    n->function = f;
    if (chat__peek(c, 0)->kind == T_LPAREN)
        parse_signature(c, f);
    n->call = chat__parse_expression(c, true);
    if (!c->status && n->call->kind != N_CALL)
        chat__syntax(c, line, "expected call");
    parse_function_body(c, f, "endcall");
    return n;
}

static struct chat_node *parse_filter_block(struct chat_compile *c, uint32_t line)
{
    struct chat_node *n = block_node(c, N_FILTER_BLOCK, line);
    if (n) {
        n->filter = chat__parse_filters(c, NULL, true);
        n->block = statements_to(c, "endfilter");
    }
    return n;
}

/* list: target, value, target, value, ... */
static struct chat_node *parse_with(struct chat_compile *c, uint32_t line)
{
    struct chat_node *n = block_node(c, N_WITH, line);
    while (!c->status && chat__peek(c, 0)->kind != T_BLOCK_END) {
        if (n->n && !chat__expect(c, T_COMMA))
            break;
        chat__append(c, n, chat__parse_target(c, TUPLE_PLAIN, false));
        chat__expect(c, T_ASSIGN);
        chat__append(c, n, chat__parse_expression(c, true));
    }
    if (n && !c->status)
        n->block = statements_to(c, "endwith");
    return n;
}

static struct chat_node *parse_generation(struct chat_compile *c, uint32_t line)
{
    struct chat_node *n = block_node(c, N_SCOPE, line);
    bool outer = c->in_loop;
    c->in_loop = false;
    if (n)
        n->block = statements_to(c, "endgeneration");
    c->in_loop = outer;
    return n;
}

static struct chat_node *parse_block(struct chat_compile *c, uint32_t line)
{
    struct chat_node *n = chat__node(c, N_BLOCK, line), *name = parse_name_target(c);
    struct chat_function *f = zalloc(c, sizeof(*f));
    if (!n || !name || !f)
        return NULL;
    n->function = f;
    f->name = name->var.name;
    if (chat__skip_name(c, "scoped") || chat__skip_name(c, "required"))
        chat__syntax(c, line, "scoped and required blocks are not supported");
    parse_function_body(c, f, "endblock");
    if (!c->status && chat__peek(c, 0)->kind == T_NAME && chat__peek(c, 0)->value.s == f->name)
        chat__take(c);
    return n;
}

static struct chat_node *parse_print(struct chat_compile *c, uint32_t line)
{
    struct chat_node *n = chat__node(c, N_OUTPUT, line);
    while (!c->status && chat__peek(c, 0)->kind != T_BLOCK_END) {
        if (n->n && !chat__expect(c, T_COMMA))
            break;
        chat__append(c, n, chat__parse_expression(c, true));
    }
    return n;
}

static struct chat_node *parse_loop_control(struct chat_compile *c, uint32_t line, bool is_break)
{
    if (!c->in_loop)
        chat__syntax(c, line, "'%s' outside loop", is_break ? "break" : "continue");
    return chat__node(c, is_break ? N_BREAK : N_CONTINUE, line);
}

/* extends, include, import, from: a chat template stands alone, so running one of these is an error. */
static struct chat_node *parse_no_loader(struct chat_compile *c, uint32_t line)
{
    chat__parse_expression(c, true);
    while (!c->status && chat__peek(c, 0)->kind != T_BLOCK_END && chat__peek(c, 0)->kind != T_EOF)
        chat__take(c);
    return chat__node(c, N_NO_LOADER, line);
}

static struct chat_node *parse_tag(struct chat_compile *c, const struct chat_token *t)
{
    static struct chat_node *(*const parsers[])(struct chat_compile *, uint32_t) = {
        parse_for, parse_if, parse_set, parse_macro, parse_call_block, parse_filter_block, parse_with, parse_generation,
        parse_block, parse_print, parse_no_loader, parse_no_loader, parse_no_loader, parse_no_loader,
    };
    static const char *const names[] = {"for", "if", "set", "macro", "call", "filter", "with", "generation",
                                        "block", "print", "extends", "include", "import", "from"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (chat__is_name(t, names[i]))
            return parsers[i](c, t->line);
    if (chat__is_name(t, "break") || chat__is_name(t, "continue"))
        return parse_loop_control(c, t->line, chat__is_name(t, "break"));
    char tmp[80];
    if (t->kind == T_NAME)
        chat__syntax(c, t->line, "Encountered unknown tag '%s'.", chat__token_text(t, tmp, sizeof(tmp)));
    else
        chat__syntax(c, t->line, "tag name expected");
    return NULL;
}

static bool at_end(struct chat_compile *c, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (chat__is_name(chat__peek(c, 0), *ends))
            return true;
    return false;
}

/* Text and {{ }} into the output statement under construction. */
static void parse_output(struct chat_compile *c, struct chat_node **out)
{
    const struct chat_token *t = chat__take(c);
    if (!*out)
        *out = chat__node(c, N_OUTPUT, t->line);
    struct chat_node *item;
    if (t->kind == T_DATA) {
        item = chat__node(c, N_CONST, t->line);
        if (item)
            item->value = t->value;
    } else {
        item = chat__parse_tuple(c, true, TUPLE_PLAIN, false);
        chat__expect(c, T_VAR_END);
    }
    chat__append(c, *out, item);
}

/* Up to one of the closing tags (the "{%" before it taken), or the end of the template. */
static struct chat_node *parse_body(struct chat_compile *c, const char *const *ends)
{
    struct chat_node *body = chat__node(c, N_BODY, chat__peek(c, 0)->line), *out = NULL;
    if (!chat__enter(c))
        return NULL;
    while (!c->status && chat__peek(c, 0)->kind != T_EOF) {
        if (chat__peek(c, 0)->kind != T_BLOCK_BEGIN) {
            bool fresh = !out;
            parse_output(c, &out);
            if (fresh)
                chat__append(c, body, out);
            continue;
        }
        out = NULL;
        chat__take(c);
        if (at_end(c, ends))
            break;
        chat__append(c, body, parse_tag(c, chat__take(c)));
        chat__expect(c, T_BLOCK_END);
    }
    chat__leave(c);
    return body;
}

struct chat_node *chat__parse_template(struct chat_compile *c)
{
    struct chat_node *body = parse_body(c, NULL);
    return c->status ? NULL : body;
}
