/* SPDX-License-Identifier: Apache-2.0
 *
 * Template text -> tokens, as jinja2's lexer with trim_blocks and lstrip_blocks: newlines become \n and one at the end
 * goes; a tag's '-' strips whitespace on its side, '+' keeps it; a block or comment alone on its line takes the line
 * along. A closing delimiter counts only outside of brackets. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "chat/internal.h"

struct lexer {
    struct chat_compile *c;
    const char *p;      /* newlines normalised */
    size_t n, at;
    size_t counted;     /* `line` is the line of this byte */
    uint32_t line;
    bool line_starting; /* the last match ended with a newline */
    char open[CHAT_MAX_NESTING];
    uint32_t n_open;
};

void chat__syntax(struct chat_compile *c, uint32_t line, const char *fmt, ...)
{
    if (c->status)
        return;
    c->status = ST_INVALID;
    if (!c->e)
        return;
    c->e->kind = CHAT_ERROR_SYNTAX;
    c->e->line = (int)line;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(c->e->text, sizeof(c->e->text), fmt, ap);
    va_end(ap);
}

void chat__nomem(struct chat_compile *c)
{
    if (c->status)
        return;
    c->status = ST_NOMEM;
    if (c->e)
        *c->e = (struct chat_error){.kind = CHAT_ERROR_MEMORY, .text = "out of memory while compiling the template"};
}

const struct chat_str *chat__intern(struct chat_compile *c, const char *p, size_t n)
{
    struct chat_str probe = {.p = p, .len = (uint32_t)n};
    struct chat_value key = {.type = CHAT_STRING, .s = &probe};
    struct chat_value known = chat__dict_find(c->names.d, key);
    if (known.type == CHAT_STRING)
        return known.s;
    struct chat_value made = chat_string(c->arena, p, n, CHAT_TRUSTED);
    if (made.type == CHAT_INVALID || chat__dict_put(c->scratch, c->names.d, made, made)) {
        chat__nomem(c);
        return NULL;
    }
    return made.s;
}

static uint32_t line_at(struct lexer *l, size_t at)
{
    for (; l->counted < at; l->counted++)
        l->line += l->p[l->counted] == '\n';
    return l->line;
}

static void emit(struct lexer *l, enum chat_token_kind kind, size_t at, struct chat_value v)
{
    struct chat_compile *c = l->c;
    if (c->n_tokens == c->cap_tokens) {
        uint32_t cap = c->cap_tokens ? c->cap_tokens * 2 : 256;
        struct chat_token *more = arena_alloc(c->scratch, cap * sizeof(*more));
        if (!more) {
            chat__nomem(c);
            return;
        }
        if (c->n_tokens)
            memcpy(more, c->token, c->n_tokens * sizeof(*more));
        c->token = more;
        c->cap_tokens = cap;
    }
    c->token[c->n_tokens++] = (struct chat_token){.kind = (uint8_t)kind, .line = line_at(l, at), .value = v};
}

static bool starts(const struct lexer *l, size_t at, const char *z)
{
    size_t n = strlen(z);
    return l->n - at >= n && memcmp(l->p + at, z, n) == 0;
}

static size_t skip_space(const struct lexer *l, size_t at)
{
    while (at < l->n) {
        size_t len;
        if (!chat__is_space(chat__char_at(l->p + at, l->n - at, &len)))
            break;
        at += len;
    }
    return at;
}

static size_t rstrip(const struct lexer *l, size_t start, size_t end)
{
    size_t keep = start;
    for (size_t i = start, len; i < end; i += len)
        if (!chat__is_space(chat__char_at(l->p + i, end - i, &len)))
            keep = i + len;
    return keep;
}

/* Where the text [start, end) before a tag ends once the tag's sign and lstrip_blocks took their part. */
static size_t strip_before(const struct lexer *l, size_t start, size_t end, char sign, bool is_block)
{
    if (sign == '-')
        return rstrip(l, start, end);
    if (sign == '+' || !is_block)
        return end;
    size_t bol = end;
    while (bol > start && l->p[bol - 1] != '\n')
        bol--;
    if (bol == start && !l->line_starting)
        return end;
    return rstrip(l, bol, end) == bol ? bol : end;
}

static void data(struct lexer *l, size_t start, size_t end)
{
    if (end > start) {
        struct chat_value v = chat_string(l->c->arena, l->p + start, end - start, CHAT_TRUSTED);
        if (v.type == CHAT_INVALID)
            chat__nomem(l->c);
        emit(l, T_DATA, start, v);
    }
}

/* If a tag ends at `at` ("%}", "-%}", "+%}" for blocks and comments), the position behind it and what it strips. */
static size_t tag_end(const struct lexer *l, size_t at, const char *close, bool is_block)
{
    if (at < l->n && l->p[at] == '-' && starts(l, at + 1, close))
        return skip_space(l, at + 3);
    if (is_block && at < l->n && l->p[at] == '+' && starts(l, at + 1, close))
        return at + 3;
    if (!starts(l, at, close))
        return 0;
    return at + 2 + (is_block && at + 2 < l->n && l->p[at + 2] == '\n');
}

static void moved(struct lexer *l, size_t to)
{
    l->line_starting = to > l->at && l->p[to - 1] == '\n';
    l->at = to;
}

static char sign_at(const struct lexer *l, size_t at)
{
    return at < l->n && (l->p[at] == '-' || l->p[at] == '+') ? l->p[at] : 0;
}

/* "{%- raw -%}" at `at`: the position behind, or 0. */
static size_t raw_begin(const struct lexer *l, size_t at)
{
    size_t i = at + 2;
    i = skip_space(l, i + (sign_at(l, i) != 0));
    if (!starts(l, i, "raw"))
        return 0;
    i = skip_space(l, i + 3);
    if (i < l->n && l->p[i] == '-' && starts(l, i + 1, "%}"))
        return skip_space(l, i + 3);
    return starts(l, i, "%}") ? i + 2 : 0;
}

static void lex_raw(struct lexer *l)
{
    size_t start = l->at;
    for (size_t i = start; i < l->n; i++) {
        if (!starts(l, i, "{%"))
            continue;
        char sign = sign_at(l, i + 2);
        size_t j = skip_space(l, i + 2 + (sign != 0));
        if (!starts(l, j, "endraw"))
            continue;
        size_t end = tag_end(l, skip_space(l, j + 6), "%}", true);
        if (!end)
            continue;
        data(l, start, strip_before(l, start, i, sign, true));
        moved(l, end);
        return;
    }
    if (start < l->n)
        chat__syntax(l->c, line_at(l, start), "Missing end of raw directive");
    l->at = l->n;
}

static void lex_comment(struct lexer *l)
{
    for (size_t i = l->at; i < l->n; i++) {
        size_t end = tag_end(l, i, "#}", true);
        if (end) {
            moved(l, end);
            return;
        }
    }
    if (l->at < l->n)
        chat__syntax(l->c, line_at(l, l->at), "Missing end of comment tag");
    l->at = l->n;
}

/* ---- inside of tags ---- */

static const struct {
    char text[3];
    uint8_t kind;
} operators[] = {
    {"//", T_FLOORDIV}, {"**", T_POW}, {"==", T_EQ}, {"!=", T_NE}, {">=", T_GE}, {"<=", T_LE},
    {"+", T_ADD}, {"-", T_SUB}, {"/", T_DIV}, {"*", T_MUL}, {"%", T_MOD}, {"~", T_TILDE}, {"[", T_LBRACKET}, {"]", T_RBRACKET},
    {"(", T_LPAREN}, {")", T_RPAREN}, {"{", T_LBRACE}, {"}", T_RBRACE}, {">", T_GT}, {"<", T_LT}, {"=", T_ASSIGN}, {".", T_DOT},
    {":", T_COLON}, {"|", T_PIPE}, {",", T_COMMA}, {";", T_SEMICOLON},
};

const char *chat__token_text(const struct chat_token *t, char *tmp, size_t n_tmp)
{
    static const char *const names[] = {"end of template", "template data / text", "begin of statement block", "end of statement block",
                                        "begin of print statement", "end of print statement", "name", "string", "integer", "float"};
    if (t->kind == T_NAME) {
        snprintf(tmp, n_tmp, "%.*s", chat__prefix(t->value.s, 64), t->value.s->p);
        return tmp;
    }
    if (t->kind <= T_FLOAT)
        return names[t->kind];
    for (size_t i = 0; i < sizeof(operators) / sizeof(operators[0]); i++)
        if (operators[i].kind == t->kind)
            return operators[i].text;
    return "?";
}

static void balance(struct lexer *l, char op)
{
    char tmp[2] = {op, 0};
    if (op == '(' || op == '[' || op == '{') {
        if (l->n_open == CHAT_MAX_NESTING) {
            chat__syntax(l->c, line_at(l, l->at), "brackets nested deeper than %d", CHAT_MAX_NESTING);
            return;
        }
        l->open[l->n_open++] = op == '(' ? ')' : op == '[' ? ']' : '}';
    } else if (op == ')' || op == ']' || op == '}') {
        if (l->n_open == 0)
            chat__syntax(l->c, line_at(l, l->at), "unexpected '%s'", tmp);
        else if (l->open[--l->n_open] != op)
            chat__syntax(l->c, line_at(l, l->at), "unexpected '%s', expected '%c'", tmp, l->open[l->n_open]);
    }
}

static bool is_digit(const struct lexer *l, size_t at)
{
    return at < l->n && l->p[at] >= '0' && l->p[at] <= '9';
}

/* Digits with single underscores between; the position behind, or `at` when there is none. */
static size_t digits(const struct lexer *l, size_t at)
{
    size_t i = at;
    while (is_digit(l, i) || (i > at && i < l->n && l->p[i] == '_' && is_digit(l, i - 1) && is_digit(l, i + 1)))
        i++;
    return i;
}

static size_t float_end(const struct lexer *l, size_t at)
{
    size_t i = digits(l, at), frac = i;
    if (at > 0 && l->p[at - 1] == '.')
        return 0;
    if (i < l->n && l->p[i] == '.' && is_digit(l, i + 1))
        frac = digits(l, i + 1);
    size_t e = frac;
    if (e < l->n && (l->p[e] | 32) == 'e') {
        e += 1 + (e + 1 < l->n && (l->p[e + 1] == '+' || l->p[e + 1] == '-'));
        if (is_digit(l, e))
            return digits(l, e);
    }
    return frac > i ? frac : 0;
}

static bool digit_of(char c, int base, int *value)
{
    *value = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : 99;
    return *value < base;
}

static size_t int_end(const struct lexer *l, size_t at, int *base)
{
    char x = at + 1 < l->n && l->p[at] == '0' ? (char)(l->p[at + 1] | 32) : 0;
    *base = x == 'b' ? 2 : x == 'o' ? 8 : x == 'x' ? 16 : 10;
    size_t i = at + (*base != 10 ? 2 : 0), first = i;
    int v;
    bool zero = *base == 10 && l->p[at] == '0'; /* 0, 00, 0_0: another digit begins the next token */
    while (i < l->n) {
        size_t d = i + (l->p[i] == '_' && (i > first || *base != 10));
        if (d >= l->n || !digit_of(l->p[d], *base, &v) || (zero && v != 0))
            break;
        i = d + 1;
    }
    if (i == first) {
        *base = 10; /* "0x" with nothing behind is a zero and a name */
        return at + 1;
    }
    return i;
}

static void lex_number(struct lexer *l)
{
    char text[512];
    size_t end = float_end(l, l->at), n = 0;
    int base = 10;
    bool is_float = end != 0;
    if (!is_float)
        end = int_end(l, l->at, &base);
    for (size_t i = l->at + (base != 10 ? 2 : 0); i < end && n + 1 < sizeof(text); i++)
        if (l->p[i] != '_')
            text[n++] = l->p[i];
    text[n] = 0;
    errno = 0;
    int64_t v = is_float ? 0 : strtoll(text, NULL, base);
    if (errno || n + 1 == sizeof(text))
        chat__syntax(l->c, line_at(l, l->at), "the number %.32s is too large", text);
    emit(l, is_float ? T_FLOAT : T_INT, l->at, is_float ? chat_float(strtod(text, NULL)) : chat_int(v));
    moved(l, end);
}

static void lex_name(struct lexer *l)
{
    size_t i = l->at, len = 0;
    while (i < l->n) {
        uint32_t ch = chat__char_at(l->p + i, l->n - i, &len);
        if (ch != '_' && !(chat__unicode(ch) & UNICODE_ALNUM))
            break;
        i += len;
    }
    const struct chat_str *name = chat__intern(l->c, l->p + l->at, i - l->at);
    if (name)
        emit(l, T_NAME, l->at, (struct chat_value){.type = CHAT_STRING, .s = name});
    moved(l, i);
}

/* One escape behind a backslash at l->p[i]; the position behind it. */
static size_t lex_escape(struct lexer *l, struct chat_text *t, size_t i, size_t end)
{
    static const char simple[] = "abfnrtv\\'\"", value[] = "\a\b\f\n\r\t\v\\'\"";
    char c = l->p[i];
    const char *s = c ? strchr(simple, c) : NULL;
    int v, n_hex = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    uint32_t ch = 0;
    if (c == '\n')
        return i + 1;
    if (s) {
        chat__text_put(t, &value[s - simple], 1, false);
        return i + 1;
    }
    if (c >= '0' && c <= '7') {
        size_t first = i;
        while (i < end && i < first + 3 && digit_of(l->p[i], 8, &v))
            ch = ch * 8 + (uint32_t)(l->p[i++] - '0');
        chat__text_char(t, ch, false);
        return i;
    }
    if (!n_hex) {
        if (c == 'N')
            chat__syntax(l->c, line_at(l, i), "\\N{name} escapes are not supported");
        chat__text_put(t, "\\", 1, false); /* as Python: an unknown escape stands for itself */
        return i;
    }
    i++;
    for (int k = 0; k < n_hex; k++, i++) {
        if (i >= end || !digit_of(l->p[i], 16, &v)) {
            chat__syntax(l->c, line_at(l, i), "truncated \\%c escape", c);
            return end;
        }
        ch = ch << 4 | (uint32_t)v;
    }
    if (ch > 0x10ffff || (ch >= 0xd800 && ch < 0xe000))
        chat__syntax(l->c, line_at(l, i), "illegal Unicode character");
    else
        chat__text_char(t, ch, false);
    return i;
}

static void lex_string(struct lexer *l)
{
    char quote = l->p[l->at];
    size_t end = l->at + 1;
    while (end < l->n && l->p[end] != quote)
        end += l->p[end] == '\\' ? 2 : 1;
    if (end >= l->n) {
        chat__syntax(l->c, line_at(l, l->at), "a string begins here and never ends");
        return;
    }
    struct chat_text t;
    chat__text_init(&t, l->c->arena, CHAT_MAX_TEMPLATE);
    for (size_t i = l->at + 1; i < end;) {
        if (l->p[i] == '\\') {
            i = lex_escape(l, &t, i + 1, end);
        } else {
            size_t run = i;
            while (run < end && l->p[run] != '\\')
                run++;
            chat__text_put(&t, l->p + i, run - i, false);
            i = run;
        }
    }
    struct chat_value v = chat__text_value(&t);
    if (v.type == CHAT_INVALID)
        chat__nomem(l->c);
    else
        emit(l, T_STRING, l->at, v);
    moved(l, end + 1);
}

static void lex_operator(struct lexer *l)
{
    for (size_t i = 0; i < sizeof(operators) / sizeof(operators[0]); i++)
        if (starts(l, l->at, operators[i].text)) {
            if (!operators[i].text[1])
                balance(l, operators[i].text[0]);
            emit(l, operators[i].kind, l->at, chat_none());
            moved(l, l->at + strlen(operators[i].text));
            return;
        }
    size_t len;
    chat__char_at(l->p + l->at, l->n - l->at, &len);
    chat__syntax(l->c, line_at(l, l->at), "unexpected char '%.*s'", (int)len, l->p + l->at);
}

/* Tokens up to and including the tag's end. */
static void lex_tag(struct lexer *l, bool is_block)
{
    l->n_open = 0;
    while (l->at < l->n && !l->c->status) {
        size_t end = l->n_open ? 0 : tag_end(l, l->at, is_block ? "%}" : "}}", is_block);
        if (end) {
            emit(l, is_block ? T_BLOCK_END : T_VAR_END, l->at, chat_none());
            moved(l, end);
            return;
        }
        size_t len;
        uint32_t ch = chat__char_at(l->p + l->at, l->n - l->at, &len);
        if (chat__is_space(ch))
            moved(l, skip_space(l, l->at));
        else if (ch >= '0' && ch <= '9')
            lex_number(l);
        else if (ch == '_' || chat__unicode(ch) & UNICODE_ALPHA)
            lex_name(l);
        else if (ch == '\'' || ch == '"')
            lex_string(l);
        else
            lex_operator(l);
    }
}

/* The text up to the next tag, and that tag. */
static void lex_root(struct lexer *l)
{
    size_t start = l->at, i = start;
    while (i < l->n && !(l->p[i] == '{' && i + 1 < l->n && (l->p[i + 1] == '{' || l->p[i + 1] == '%' || l->p[i + 1] == '#')))
        i++;
    if (i == l->n) {
        data(l, start, l->n);
        l->at = l->n;
        return;
    }
    char what = l->p[i + 1], sign = sign_at(l, i + 2);
    data(l, start, strip_before(l, start, i, sign, what != '{'));
    size_t raw = what == '%' ? raw_begin(l, i) : 0;
    moved(l, raw ? raw : i + 2 + (sign != 0));
    if (raw) {
        lex_raw(l);
    } else if (what == '#') {
        lex_comment(l);
    } else {
        emit(l, what == '%' ? T_BLOCK_BEGIN : T_VAR_BEGIN, i, chat_none());
        lex_tag(l, what == '%');
    }
}

void chat__lex(struct chat_compile *c, const char *text, size_t n)
{
    char *p = arena_alloc(c->scratch, n + 1);
    struct lexer *l = arena_zalloc(c->scratch, 1, sizeof(*l));
    if (!p || !l) {
        chat__nomem(c);
        return;
    }
    size_t len = 0;
    for (size_t i = 0; i < n; i++) {
        p[len++] = text[i] == '\r' ? '\n' : text[i];
        if (text[i] == '\r' && i + 1 < n && text[i + 1] == '\n')
            i++;
    }
    if (len && p[len - 1] == '\n')
        len--;
    p[len] = 0;
    *l = (struct lexer){.c = c, .p = p, .n = len, .line = 1, .line_starting = true};
    while (l->at < l->n && !c->status)
        lex_root(l);
    emit(l, T_EOF, l->n, chat_none());
}
