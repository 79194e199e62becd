/* SPDX-License-Identifier: Apache-2.0
 *
 * A strict JSON reader for schemas: values in the arena of the build, with a way up, so that an error can name its path. */
#include <string.h>

#include "grammar/schema.h"

enum { MAX_TEXT = 4 << 20 };

struct reader { struct build *b; const char *s; size_t n, at; };

static void *bad(struct reader *r, const char *what) {
    size_t line = 1, start = 0;
    for (size_t i = 0; i < r->at && i < r->n; i++)
        if (r->s[i] == '\n') {
            line++;
            start = i + 1;
        }
    build__fail(r->b, ST_INVALID, "schema: not JSON: %zu:%zu: %s", line, r->at - start + 1, what);
    return NULL;
}

static void skip_space(struct reader *r) {
    while (r->at < r->n && strchr(" \t\r\n", r->s[r->at]) && r->s[r->at]) r->at++;
}

static bool at_char(const struct reader *r, char c) {
    return r->at < r->n && r->s[r->at] == c;
}

static bool read_hex4(struct reader *r, uint32_t *cp) {
    *cp = 0;
    for (int i = 0; i < 4; i++, r->at++) {
        char c = r->at < r->n ? r->s[r->at] : 0;
        uint32_t v = c >= '0' && c <= '9' ? (uint32_t)(c - '0') : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (uint32_t)((c | 0x20) - 'a' + 10) : 16;
        if (v == 16) return bad(r, "expected a hexadecimal digit"), false;
        *cp = *cp << 4 | v;
    }
    return true;
}

static size_t put_utf8(char *out, uint32_t cp) {
    if (cp < 0x80) return out[0] = (char)cp, 1;
    size_t n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    static const uint8_t LEAD[] = { 0, 0, 0xC0, 0xE0, 0xF0 };
    for (size_t i = n; i-- > 1; cp >>= 6) out[i] = (char)(0x80 | (cp & 0x3F));
    out[0] = (char)(LEAD[n] | cp);
    return n;
}

static bool read_escape(struct reader *r, uint32_t *cp) {
    static const char SHORT[] = "\"\"\\\\//b\bf\fn\nr\rt\t";
    uint32_t low;
    char c = ++r->at < r->n ? r->s[r->at] : 0;
    r->at++;
    for (const char *p = SHORT; c && *p; p += 2)
        if (c == *p) return *cp = (uint8_t)p[1], true;
    if (c != 'u') return bad(r, "unknown escape"), false;
    if (!read_hex4(r, cp)) return false;
    if (*cp < 0xD800 || *cp > 0xDFFF) return true;
    if (*cp > 0xDBFF || !at_char(r, '\\') || r->at + 1 >= r->n || r->s[r->at + 1] != 'u') return bad(r, "half a surrogate pair"), false;
    r->at += 2;
    if (!read_hex4(r, &low)) return false;
    if (low < 0xDC00 || low > 0xDFFF) return bad(r, "half a surrogate pair"), false;
    *cp = 0x10000 + ((*cp - 0xD800) << 10) + (low - 0xDC00);
    return true;
}

/* At the opening quote. */
static const char *read_string(struct reader *r, size_t *len) {
    size_t end = r->at + 1, n = 0;
    while (end < r->n && r->s[end] != '"') end += r->s[end] == '\\' ? 2 : 1;
    if (end >= r->n) return bad(r, "a string without end");
    char *out = build__alloc(r->b, end - r->at, 1);
    if (!out) return NULL;
    for (r->at++; r->at < end;) {
        uint32_t cp;
        if ((uint8_t)r->s[r->at] < 0x20) return bad(r, "a control character in a string");
        if (at_char(r, '\\')) {
            if (!read_escape(r, &cp)) return NULL;
        } else if (!utf8__next(r->s, r->n, &r->at, &cp)) {
            return bad(r, "not UTF-8");
        }
        n += put_utf8(out + n, cp);
    }
    r->at = end + 1;
    *len = n;
    return out;
}

static bool skip_digits(struct reader *r) {
    size_t start = r->at;
    while (r->at < r->n && r->s[r->at] >= '0' && r->s[r->at] <= '9') r->at++;
    return r->at > start;
}

static bool read_number(struct reader *r, struct json_value *v) {
    size_t start = r->at;
    if (at_char(r, '-')) r->at++;
    if (at_char(r, '0')) r->at++;
    else if (!skip_digits(r)) return bad(r, "expected a value"), false;
    if (at_char(r, '.') && (r->at++, !skip_digits(r))) return bad(r, "expected a digit"), false;
    if (at_char(r, 'e') || at_char(r, 'E')) {
        r->at++;
        if (at_char(r, '+') || at_char(r, '-')) r->at++;
        if (!skip_digits(r)) return bad(r, "expected a digit"), false;
    }
    v->type = JSON_NUMBER;
    v->s = r->s + start;
    v->n = r->at - start;
    return true;
}

static bool read_scalar(struct reader *r, struct json_value *v) {
    static const struct { const char *word; enum json_type type; } WORDS[] = { { "null", JSON_NULL }, { "true", JSON_TRUE }, { "false", JSON_FALSE } };
    if (at_char(r, '"')) {
        v->type = JSON_STRING;
        return (v->s = read_string(r, &v->n));
    }
    for (size_t i = 0; i < 3; i++) {
        size_t n = strlen(WORDS[i].word);
        if (r->n - r->at < n || memcmp(r->s + r->at, WORDS[i].word, n) != 0) continue;
        r->at += n;
        v->type = WORDS[i].type;
        return true;
    }
    return read_number(r, v);
}

/* The next value and, in an object, its key before it; hung under `parent`. */
static struct json_value *read_head(struct reader *r, struct json_value *parent, struct json_value **last) {
    struct json_value *v = build__alloc(r->b, 1, sizeof *v);
    if (!v) return NULL;
    v->parent = parent;
    if (parent) {
        v->index = parent->n_children++;
        *(*last ? &(*last)->next : &parent->child) = v;
    }
    *last = v;
    skip_space(r);
    if (parent && parent->type == JSON_OBJECT) {
        if (!at_char(r, '"')) return bad(r, "expected a key");
        if (!(v->key = read_string(r, &v->n_key))) return NULL;
        skip_space(r);
        if (!at_char(r, ':')) return bad(r, "expected :");
        r->at++;
        skip_space(r);
    }
    if (at_char(r, '{') || at_char(r, '[')) v->type = at_char(r, '{') ? JSON_OBJECT : JSON_ARRAY;
    else if (!read_scalar(r, v)) return NULL;
    return v;
}

static char closer(const struct json_value *v) {
    return v->type == JSON_OBJECT ? '}' : ']';
}

/* Iterative: `in` is the container in work. */
struct json_value *json__read(struct build *b, const char *s, size_t n) {
    struct reader r = { b, s, n, 0 };
    struct json_value *last = NULL, *root, *in = NULL, *v;
    uint32_t depth = 0;
    if (n > MAX_TEXT) return build__fail(b, ST_LIMIT, "schema: more than 4 MiB of text"), NULL;
    if (!(root = v = read_head(&r, NULL, &last))) return NULL;
    for (;;) {
        if (v->type == JSON_ARRAY || v->type == JSON_OBJECT) {
            r.at++;
            skip_space(&r);
            if (++depth > MAX_NESTING) return build__fail(b, ST_LIMIT, "schema: nested deeper than %d", MAX_NESTING), NULL;
            in = v;
            last = NULL;
            if (!at_char(&r, closer(in))) {
                if (!(v = read_head(&r, in, &last))) return NULL;
                continue;
            }
        }
        for (skip_space(&r); in && at_char(&r, closer(in)); skip_space(&r)) {
            r.at++;
            depth--;
            last = in;
            in = in->parent;
        }
        if (!in) break;
        if (!at_char(&r, ',')) return bad(&r, in->type == JSON_OBJECT ? "expected , or }" : "expected , or ]");
        r.at++;
        if (!(v = read_head(&r, in, &last))) return NULL;
    }
    return r.at == n ? root : bad(&r, "something after the value");
}

struct json_value *json__get_n(const struct json_value *object, const char *key, size_t n) {
    struct json_value *found = NULL;
    if (!object || object->type != JSON_OBJECT) return NULL;
    for (struct json_value *c = object->child; c; c = c->next)
        if (c->n_key == n && memcmp(c->key, key, n) == 0) found = c;
    return found;
}

struct json_value *json__get(const struct json_value *object, const char *key) {
    return json__get_n(object, key, strlen(key));
}

bool json__names(const struct json_value *v, const char *key) {
    return v->n_key == strlen(key) && memcmp(v->key, key, v->n_key) == 0;
}

bool json__is(const struct json_value *v, const char *text) {
    return v && v->type == JSON_STRING && v->n == strlen(text) && memcmp(v->s, text, v->n) == 0;
}

bool json__equal(const struct json_value *a, const struct json_value *b) {
    if (a->type != b->type || a->n != b->n || a->n_children != b->n_children) return false;
    if (a->n && memcmp(a->s, b->s, a->n) != 0) return false;
    const struct json_value *y = b->child;
    for (const struct json_value *x = a->child; x; x = x->next) {
        if (a->type == JSON_OBJECT) y = json__get_n(b, x->key, x->n_key);
        if (!y || !json__equal(x, y)) return false; /* MAX_NESTING deep */
        y = y->next;
    }
    return true;
}
