/* SPDX-License-Identifier: Apache-2.0
 *
 * Expressions: tokens -> tree, with jinja2's precedence: or, and, not, comparisons, + -, ~, * / // %, **, unary, then
 * subscripts and calls, then filters and tests. Recursion is bounded by CHAT_MAX_NESTING. */
#include <string.h>

#include "chat/internal.h"

struct chat_node *chat__node(struct chat_compile *c, enum chat_kind kind, uint32_t line)
{
    if (c->status)
        return NULL;
    struct chat_node *n = arena_zalloc(c->arena, 1, sizeof(*n));
    if (!n) {
        chat__nomem(c);
        return NULL;
    }
    n->kind = (uint8_t)kind;
    n->line = line;
    return n;
}

bool chat__append(struct chat_compile *c, struct chat_node *n, struct chat_node *item)
{
    if (!n || !item || c->status)
        return false;
    if ((n->n & (n->n - 1)) == 0) { /* the capacity is the next power of two */
        struct chat_node **more = arena_alloc(c->arena, (n->n ? n->n * 2 : 1) * sizeof(struct chat_node *));
        if (!more) {
            chat__nomem(c);
            return false;
        }
        if (n->n)
            memcpy(more, n->list, n->n * sizeof(struct chat_node *));
        n->list = more;
    }
    n->list[n->n++] = item;
    return true;
}

bool chat__enter(struct chat_compile *c)
{
    if (c->depth++ >= CHAT_MAX_NESTING)
        chat__syntax(c, chat__peek(c, 0)->line, "nested deeper than %d", CHAT_MAX_NESTING);
    return !c->status;
}

void chat__leave(struct chat_compile *c)
{
    c->depth--;
}

const struct chat_token *chat__peek(const struct chat_compile *c, uint32_t ahead)
{
    uint32_t i = c->at + ahead;
    return &c->token[i < c->n_tokens ? i : c->n_tokens - 1];
}

const struct chat_token *chat__take(struct chat_compile *c)
{
    const struct chat_token *t = chat__peek(c, 0);
    if (c->at < c->n_tokens - 1)
        c->at++;
    return t;
}

bool chat__is_name(const struct chat_token *t, const char *name)
{
    return t->kind == T_NAME && chat__str_eq(t->value.s, name);
}

bool chat__skip_name(struct chat_compile *c, const char *name)
{
    bool found = chat__is_name(chat__peek(c, 0), name);
    if (found)
        chat__take(c);
    return found;
}

bool chat__skip(struct chat_compile *c, enum chat_token_kind kind)
{
    bool found = chat__peek(c, 0)->kind == kind;
    if (found)
        chat__take(c);
    return found;
}

bool chat__expect(struct chat_compile *c, enum chat_token_kind kind)
{
    char want[80], got[80];
    const struct chat_token *t = chat__peek(c, 0), wanted = {.kind = (uint8_t)kind};
    if (t->kind == kind) {
        chat__take(c);
        return true;
    }
    const char *name = kind == T_NAME ? "name" : chat__token_text(&wanted, want, sizeof(want));
    if (t->kind == T_EOF)
        chat__syntax(c, t->line, "unexpected end of template, expected '%s'", name);
    else
        chat__syntax(c, t->line, "expected token '%s', got '%s'", name, chat__token_text(t, got, sizeof(got)));
    return false;
}

static struct chat_node *constant(struct chat_compile *c, struct chat_value v, uint32_t line)
{
    struct chat_node *n = chat__node(c, N_CONST, line);
    if (n)
        n->value = v;
    return n;
}

static struct chat_node *unary(struct chat_compile *c, enum chat_kind kind, struct chat_node *a, uint32_t line)
{
    struct chat_node *n = a ? chat__node(c, kind, line) : NULL;
    if (n)
        n->kid[0] = a;
    return n;
}

static struct chat_node *binary(struct chat_compile *c, enum chat_kind kind, enum chat_op op, struct chat_node *a, struct chat_node *b, uint32_t line)
{
    struct chat_node *n = a && b ? chat__node(c, kind, line) : NULL;
    if (n) {
        n->op = (uint8_t)op;
        n->kid[0] = a;
        n->kid[1] = b;
    }
    return n;
}

/* ---- primaries ---- */

static struct chat_node *parse_list(struct chat_compile *c)
{
    struct chat_node *n = chat__node(c, N_LIST, chat__take(c)->line);
    while (!c->status && chat__peek(c, 0)->kind != T_RBRACKET) {
        if (n->n && (!chat__expect(c, T_COMMA) || chat__peek(c, 0)->kind == T_RBRACKET))
            break;
        chat__append(c, n, chat__parse_expression(c, true));
    }
    chat__expect(c, T_RBRACKET);
    return n;
}

static struct chat_node *parse_dict(struct chat_compile *c)
{
    struct chat_node *n = chat__node(c, N_DICT, chat__take(c)->line);
    while (!c->status && chat__peek(c, 0)->kind != T_RBRACE) {
        if (n->n && (!chat__expect(c, T_COMMA) || chat__peek(c, 0)->kind == T_RBRACE))
            break;
        chat__append(c, n, chat__parse_expression(c, true));
        chat__expect(c, T_COLON);
        chat__append(c, n, chat__parse_expression(c, true));
    }
    chat__expect(c, T_RBRACE);
    return n;
}

static struct chat_node *parse_name(struct chat_compile *c, bool with_namespace)
{
    const struct chat_token *t = chat__take(c);
    if (chat__is_name(t, "true") || chat__is_name(t, "True"))
        return constant(c, chat_bool(true), t->line);
    if (chat__is_name(t, "false") || chat__is_name(t, "False"))
        return constant(c, chat_bool(false), t->line);
    if (chat__is_name(t, "none") || chat__is_name(t, "None"))
        return constant(c, chat_none(), t->line);
    bool ref = with_namespace && chat__skip(c, T_DOT);
    struct chat_node *n = chat__node(c, ref ? N_NSREF : N_NAME, t->line);
    if (!n)
        return NULL;
    n->var.name = t->value.s;
    if (ref) {
        n->attr = chat__peek(c, 0)->value.s;
        if (!chat__expect(c, T_NAME))
            return NULL;
    }
    return n;
}

static struct chat_node *parse_strings(struct chat_compile *c)
{
    uint32_t line = chat__peek(c, 0)->line;
    if (chat__peek(c, 1)->kind != T_STRING)
        return constant(c, chat__take(c)->value, line);
    struct chat_text t;
    chat__text_init(&t, c->arena, CHAT_MAX_TEMPLATE);
    while (chat__peek(c, 0)->kind == T_STRING)
        chat__text_str(&t, chat__take(c)->value);
    struct chat_value v = chat__text_value(&t);
    if (v.type == CHAT_INVALID)
        chat__nomem(c);
    return constant(c, v, line);
}

static struct chat_node *parse_primary(struct chat_compile *c, bool with_namespace)
{
    char tmp[80];
    const struct chat_token *t = chat__peek(c, 0);
    struct chat_node *n = NULL;
    if (!chat__enter(c))
        return NULL;
    switch (t->kind) {
    case T_NAME:
        n = parse_name(c, with_namespace);
        break;
    case T_STRING:
        n = parse_strings(c);
        break;
    case T_INT:
    case T_FLOAT:
        n = constant(c, chat__take(c)->value, t->line);
        break;
    case T_LPAREN:
        chat__take(c);
        n = chat__parse_tuple(c, true, TUPLE_PLAIN, true);
        chat__expect(c, T_RPAREN);
        break;
    case T_LBRACKET:
        n = parse_list(c);
        break;
    case T_LBRACE:
        n = parse_dict(c);
        break;
    default:
        chat__syntax(c, t->line, "unexpected '%s'", chat__token_text(t, tmp, sizeof(tmp)));
    }
    chat__leave(c);
    return n;
}

/* ---- calls, subscripts, filters, tests ---- */

static struct chat_node *parse_argument(struct chat_compile *c, const struct chat_node *call, uint32_t line)
{
    enum chat_kind last = call->n ? (enum chat_kind)call->list[call->n - 1]->kind : N_CONST;
    bool seen_kw = false, seen_star = false;
    for (uint32_t i = 0; i < call->n; i++) {
        seen_kw |= call->list[i]->kind == N_KEYWORD;
        seen_star |= call->list[i]->kind == N_STAR;
    }
    const struct chat_token *t = chat__peek(c, 0);
    bool star = t->kind == T_MUL, starstar = t->kind == T_POW, kw = t->kind == T_NAME && chat__peek(c, 1)->kind == T_ASSIGN;
    if (last == N_STARSTAR || (star && seen_star) || (!star && !starstar && !kw && (seen_kw || seen_star))) {
        chat__syntax(c, line, "invalid syntax for function call expression");
        return NULL;
    }
    if (star || starstar) {
        chat__take(c);
        return unary(c, star ? N_STAR : N_STARSTAR, chat__parse_expression(c, true), t->line);
    }
    if (!kw)
        return chat__parse_expression(c, true);
    chat__take(c);
    chat__take(c);
    return binary(c, N_KEYWORD, 0, chat__parse_expression(c, true), constant(c, t->value, t->line), t->line);
}

/* "(...)" into call->list. */
static void parse_call_args(struct chat_compile *c, struct chat_node *call)
{
    uint32_t line = chat__peek(c, 0)->line;
    chat__expect(c, T_LPAREN);
    while (!c->status && call && chat__peek(c, 0)->kind != T_RPAREN) {
        if (call->n && (!chat__expect(c, T_COMMA) || chat__peek(c, 0)->kind == T_RPAREN))
            break;
        chat__append(c, call, parse_argument(c, call, line));
    }
    chat__expect(c, T_RPAREN);
}

static struct chat_node *parse_call(struct chat_compile *c, struct chat_node *callee)
{
    struct chat_node *n = callee ? chat__node(c, N_CALL, chat__peek(c, 0)->line) : NULL;
    if (n)
        n->subject = callee;
    parse_call_args(c, n);
    return n;
}

/* One subscript: an expression or start:stop:step. */
static struct chat_node *parse_subscribed(struct chat_compile *c)
{
    struct chat_node *part[3] = {NULL, NULL, NULL};
    uint32_t line = chat__peek(c, 0)->line;
    if (chat__peek(c, 0)->kind != T_COLON) {
        part[0] = chat__parse_expression(c, true);
        if (chat__peek(c, 0)->kind != T_COLON)
            return part[0];
    }
    for (int i = 1; i < 3 && chat__skip(c, T_COLON); i++) {
        enum chat_token_kind k = chat__peek(c, 0)->kind;
        if (k != T_COLON && k != T_RBRACKET && k != T_COMMA)
            part[i] = chat__parse_expression(c, true);
    }
    struct chat_node *n = chat__node(c, N_SLICE, line);
    if (n)
        memcpy(n->kid, part, sizeof(part));
    return n;
}

static struct chat_node *parse_subscript(struct chat_compile *c, struct chat_node *node)
{
    const struct chat_token *t = chat__take(c);
    if (t->kind == T_DOT) {
        const struct chat_token *attr = chat__take(c);
        if (attr->kind != T_NAME && attr->kind != T_INT) {
            chat__syntax(c, attr->line, "expected name or number");
            return NULL;
        }
        return binary(c, attr->kind == T_NAME ? N_GETATTR : N_GETITEM, 0, node, constant(c, attr->value, attr->line), t->line);
    }
    struct chat_node *args = chat__node(c, N_TUPLE, t->line);
    while (!c->status && chat__peek(c, 0)->kind != T_RBRACKET) {
        if (args->n && !chat__expect(c, T_COMMA))
            break;
        chat__append(c, args, parse_subscribed(c));
    }
    chat__expect(c, T_RBRACKET);
    if (c->status)
        return NULL;
    return binary(c, N_GETITEM, 0, node, args->n == 1 ? args->list[0] : args, t->line);
}

static struct chat_node *parse_postfix(struct chat_compile *c, struct chat_node *node)
{
    while (!c->status) {
        enum chat_token_kind k = chat__peek(c, 0)->kind;
        if (k == T_DOT || k == T_LBRACKET)
            node = parse_subscript(c, node);
        else if (k == T_LPAREN)
            node = parse_call(c, node);
        else
            break;
    }
    return node;
}

/* The name of a filter or test: "a" or "a.b". */
static const struct chat_str *parse_dotted(struct chat_compile *c)
{
    const struct chat_str *name = chat__peek(c, 0)->value.s;
    if (!chat__expect(c, T_NAME))
        return NULL;
    while (chat__skip(c, T_DOT)) { /* no builtin has such a name; what counts is that it is not found */
        name = chat__intern(c, "a.b", 3);
        if (!chat__expect(c, T_NAME))
            return NULL;
    }
    return name;
}

struct chat_node *chat__parse_filters(struct chat_compile *c, struct chat_node *subject, bool start_inline)
{
    struct chat_node *node = subject;
    while (!c->status && (start_inline || chat__skip(c, T_PIPE))) {
        start_inline = false;
        struct chat_node *n = chat__node(c, N_FILTER, chat__peek(c, 0)->line);
        const struct chat_str *name = parse_dotted(c);
        if (!n || !name)
            return NULL;
        n->subject = node;
        n->fn_name = name;
        n->fn = chat__filter(name);
        if (chat__peek(c, 0)->kind == T_LPAREN)
            parse_call_args(c, n);
        node = n;
    }
    return node;
}

static struct chat_node *parse_test(struct chat_compile *c, struct chat_node *subject)
{
    uint32_t line = chat__take(c)->line;
    bool negated = chat__skip_name(c, "not");
    struct chat_node *n = chat__node(c, N_TEST, line);
    const struct chat_str *name = parse_dotted(c);
    if (!n || !name)
        return NULL;
    n->subject = subject;
    n->fn_name = name;
    n->fn = chat__test(name);
    const struct chat_token *t = chat__peek(c, 0);
    if (t->kind == T_LPAREN) {
        parse_call_args(c, n);
    } else if ((t->kind == T_NAME && !chat__is_name(t, "else") && !chat__is_name(t, "or") && !chat__is_name(t, "and")) ||
               t->kind == T_STRING || t->kind == T_INT || t->kind == T_FLOAT || t->kind == T_LBRACKET || t->kind == T_LBRACE) {
        if (chat__is_name(t, "is"))
            chat__syntax(c, t->line, "You cannot chain multiple tests with is");
        chat__append(c, n, parse_postfix(c, parse_primary(c, false)));
    }
    return negated ? unary(c, N_NOT, n, line) : n;
}

/* ---- operators, loosest last ---- */

static struct chat_node *parse_unary(struct chat_compile *c, bool with_filter)
{
    const struct chat_token *t = chat__peek(c, 0);
    struct chat_node *n;
    if (!chat__enter(c))
        return NULL;
    if (t->kind == T_SUB || t->kind == T_ADD) {
        chat__take(c);
        n = unary(c, t->kind == T_SUB ? N_NEG : N_POS, parse_unary(c, false), t->line);
    } else {
        n = parse_primary(c, false);
    }
    n = parse_postfix(c, n);
    while (with_filter && !c->status) {
        t = chat__peek(c, 0);
        if (t->kind == T_PIPE)
            n = chat__parse_filters(c, n, false);
        else if (chat__is_name(t, "is"))
            n = parse_test(c, n);
        else if (t->kind == T_LPAREN)
            n = parse_call(c, n);
        else
            break;
    }
    chat__leave(c);
    return n;
}

static struct chat_node *parse_pow(struct chat_compile *c)
{
    uint32_t line = chat__peek(c, 0)->line;
    struct chat_node *left = parse_unary(c, true);
    while (!c->status && chat__skip(c, T_POW))
        left = binary(c, N_BINARY, OP_POW, left, parse_unary(c, true), line);
    return left;
}

static struct chat_node *parse_product(struct chat_compile *c)
{
    uint32_t line = chat__peek(c, 0)->line;
    struct chat_node *left = parse_pow(c);
    while (!c->status) {
        enum chat_op op;
        switch (chat__peek(c, 0)->kind) {
        case T_MUL: op = OP_MUL; break;
        case T_DIV: op = OP_DIV; break;
        case T_FLOORDIV: op = OP_FLOORDIV; break;
        case T_MOD: op = OP_MOD; break;
        default: return left;
        }
        chat__take(c);
        left = binary(c, N_BINARY, op, left, parse_pow(c), line);
    }
    return left;
}

static struct chat_node *parse_concat(struct chat_compile *c)
{
    uint32_t line = chat__peek(c, 0)->line;
    struct chat_node *first = parse_product(c);
    if (c->status || chat__peek(c, 0)->kind != T_TILDE)
        return first;
    struct chat_node *n = chat__node(c, N_CONCAT, line);
    chat__append(c, n, first);
    while (!c->status && chat__skip(c, T_TILDE))
        chat__append(c, n, parse_product(c));
    return n;
}

static struct chat_node *parse_sum(struct chat_compile *c)
{
    uint32_t line = chat__peek(c, 0)->line;
    struct chat_node *left = parse_concat(c);
    while (!c->status && (chat__peek(c, 0)->kind == T_ADD || chat__peek(c, 0)->kind == T_SUB)) {
        enum chat_op op = chat__take(c)->kind == T_ADD ? OP_ADD : OP_SUB;
        left = binary(c, N_BINARY, op, left, parse_concat(c), line);
    }
    return left;
}

static bool compare_op(struct chat_compile *c, enum chat_op *op)
{
    const struct chat_token *t = chat__peek(c, 0);
    switch (t->kind) {
    case T_EQ: *op = OP_EQ; break;
    case T_NE: *op = OP_NE; break;
    case T_LT: *op = OP_LT; break;
    case T_LE: *op = OP_LE; break;
    case T_GT: *op = OP_GT; break;
    case T_GE: *op = OP_GE; break;
    default:
        if (chat__is_name(t, "in")) {
            *op = OP_IN;
        } else if (chat__is_name(t, "not") && chat__is_name(chat__peek(c, 1), "in")) {
            *op = OP_NOT_IN;
            chat__take(c);
        } else {
            return false;
        }
    }
    chat__take(c);
    return true;
}

static struct chat_node *parse_compare(struct chat_compile *c)
{
    uint32_t line = chat__peek(c, 0)->line;
    struct chat_node *first = parse_sum(c), *n = NULL;
    enum chat_op op;
    while (!c->status && compare_op(c, &op)) {
        struct chat_node *operand = unary(c, N_OPERAND, parse_sum(c), line);
        if (operand)
            operand->op = (uint8_t)op;
        if (!n && (n = chat__node(c, N_COMPARE, line)))
            n->kid[0] = first;
        chat__append(c, n, operand);
    }
    return n ? n : first;
}

static struct chat_node *parse_not(struct chat_compile *c)
{
    const struct chat_token *t = chat__peek(c, 0);
    if (!chat__is_name(t, "not"))
        return parse_compare(c);
    chat__take(c);
    struct chat_node *n = chat__enter(c) ? unary(c, N_NOT, parse_not(c), t->line) : NULL;
    chat__leave(c);
    return n;
}

static struct chat_node *parse_and(struct chat_compile *c)
{
    uint32_t line = chat__peek(c, 0)->line;
    struct chat_node *left = parse_not(c);
    while (!c->status && chat__skip_name(c, "and"))
        left = binary(c, N_AND, 0, left, parse_not(c), line);
    return left;
}

static struct chat_node *parse_or(struct chat_compile *c)
{
    uint32_t line = chat__peek(c, 0)->line;
    struct chat_node *left = parse_and(c);
    while (!c->status && chat__skip_name(c, "or"))
        left = binary(c, N_OR, 0, left, parse_and(c), line);
    return left;
}

/* a if test else b, to the right as often as it comes */
static struct chat_node *parse_cond(struct chat_compile *c)
{
    struct chat_node *n = chat__enter(c) ? parse_or(c) : NULL;
    while (!c->status && chat__is_name(chat__peek(c, 0), "if")) {
        struct chat_node *cond = chat__node(c, N_COND, chat__take(c)->line);
        struct chat_node *test = parse_or(c), *otherwise = NULL;
        if (!c->status && chat__skip_name(c, "else"))
            otherwise = parse_cond(c);
        if (c->status)
            break;
        cond->kid[0] = test;
        cond->kid[1] = n;
        cond->kid[2] = otherwise;
        n = cond;
    }
    chat__leave(c);
    return c->status ? NULL : n;
}

struct chat_node *chat__parse_expression(struct chat_compile *c, bool with_cond)
{
    if (with_cond)
        return parse_cond(c);
    struct chat_node *n = chat__enter(c) ? parse_or(c) : NULL;
    chat__leave(c);
    return n;
}

static bool tuple_ends(const struct chat_compile *c, enum chat_tuple_end end)
{
    const struct chat_token *t = chat__peek(c, 0);
    return t->kind == T_VAR_END || t->kind == T_BLOCK_END || t->kind == T_RPAREN ||
           (end == TUPLE_UNTIL_IN && chat__is_name(t, "in")) || (end == TUPLE_UNTIL_RECURSIVE && chat__is_name(t, "recursive"));
}

/* Items separated by commas: one alone is itself. `primary` takes names and literals only, for targets. */
static struct chat_node *parse_items(struct chat_compile *c, enum chat_tuple_end end, bool parens, bool primary, bool flag)
{
    char tmp[80];
    struct chat_node *tuple = chat__node(c, N_TUPLE, chat__peek(c, 0)->line);
    bool comma = false;
    while (!c->status) {
        if (tuple->n && !chat__expect(c, T_COMMA))
            break;
        if (tuple_ends(c, end))
            break;
        chat__append(c, tuple, primary ? parse_primary(c, flag) : chat__parse_expression(c, flag));
        if (chat__peek(c, 0)->kind != T_COMMA)
            break;
        comma = true;
    }
    if (c->status || comma)
        return c->status ? NULL : tuple;
    if (tuple->n)
        return tuple->list[0];
    if (!parens) {
        const struct chat_token *t = chat__peek(c, 0);
        chat__syntax(c, t->line, "Expected an expression, got '%s'", chat__token_text(t, tmp, sizeof(tmp)));
    }
    return tuple;
}

struct chat_node *chat__parse_tuple(struct chat_compile *c, bool with_cond, enum chat_tuple_end end, bool parens)
{
    return parse_items(c, end, parens, false, with_cond);
}

static bool assignable(struct chat_compile *c, const struct chat_node *n)
{
    bool ok = n->kind == N_NAME || n->kind == N_NSREF || n->kind == N_TUPLE;
    for (uint32_t i = 0; ok && n->kind == N_TUPLE && i < n->n; i++)
        ok = assignable(c, n->list[i]);
    if (!ok)
        chat__syntax(c, n->line, "can't assign to this expression");
    return ok;
}

struct chat_node *chat__parse_target(struct chat_compile *c, enum chat_tuple_end end, bool with_namespace)
{
    struct chat_node *n = parse_items(c, end, false, true, with_namespace);
    return n && assignable(c, n) ? n : NULL;
}
