/* SPDX-License-Identifier: Apache-2.0
 *
 * The two ends of JSON that cJSON is not trusted with. json_prescan decides, before any allocation, whether a body
 * is RFC 8259 JSON that cJSON reads the way every other parser does: cJSON alone takes trailing garbage, raw
 * control bytes, invalid UTF-8, "01", and cuts strings at NUL. The writer exists because cJSON prints 2^53 + 1
 * with 15 digits and needs a tree. Pure, any thread, no recursion: depth is a 64-bit stack of container kinds. */
#include "base/json.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

/* cJSON copies a number to a 64-byte buffer and fails on longer ones; refuse them with a reason instead. */
enum { JSON_MAX_NUMBER_BYTES = 63, JSON_DEPTH_BITS = 64 };

struct scan {
    const uint8_t *start, *p, *end;
    struct err *e;
    bool cut; /* what failed could go on behind the end of the text */
};

static int scan_fail(struct scan *s, const char *what) {
    s->cut = s->p == s->end;
    return err_set(s->e, ST_INVALID, "%s at byte %zu", what, (size_t)(s->p - s->start));
}

static void scan_space(struct scan *s) {
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\t' || *s->p == '\n' || *s->p == '\r')) s->p++;
}

/* Four hex digits at s->p. */
static int scan_hex4(struct scan *s, unsigned *out) {
    unsigned v = 0;

    for (int i = 0; i < 4; i++, s->p++) {
        if (s->p == s->end) return scan_fail(s, "the text ends inside a \\u escape");
        uint8_t c = *s->p;
        unsigned digit;
        if (c >= '0' && c <= '9') digit = c - '0';
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') digit = (c | 0x20) - 'a' + 10u;
        else return scan_fail(s, "a \\u escape needs four hex digits");
        v = v << 4 | digit;
    }
    *out = v;
    return 0;
}

/* After "\u". A high surrogate must be followed by its low half: a lone one has no UTF-8. */
static int scan_unicode_escape(struct scan *s) {
    unsigned hi, lo;
    int rc = scan_hex4(s, &hi);

    if (rc) return rc;
    if (hi == 0) return scan_fail(s, "\\u0000 is not accepted");
    if (hi >= 0xDC00 && hi <= 0xDFFF) return scan_fail(s, "a low surrogate without its high half");
    if (hi < 0xD800 || hi > 0xDBFF) return 0;
    if (s->end - s->p < 2 || s->p[0] != '\\' || s->p[1] != 'u') return scan_fail(s, "a high surrogate without its low half");
    s->p += 2;
    rc = scan_hex4(s, &lo);
    if (rc) return rc;
    if (lo < 0xDC00 || lo > 0xDFFF) return scan_fail(s, "a high surrogate without its low half");
    return 0;
}

/* At the opening quote. */
static int scan_string(struct scan *s) {
    s->p++;
    while (s->p < s->end) {
        uint8_t c = *s->p;
        if (c == '"') {
            s->p++;
            return 0;
        }
        if (c < 0x20) return scan_fail(s, c ? "a raw control character in a string" : "a NUL byte in a string");
        if (c == '\\') {
            if (++s->p == s->end) break;
            c = *s->p++;
            if (c == 'u') {
                int rc = scan_unicode_escape(s);
                if (rc) return rc;
            } else if (c == 0 || !strchr("\"\\/bfnrt", c)) {
                s->p--;
                return scan_fail(s, "an unknown escape in a string");
            }
            continue;
        }
        unsigned bad, len = utf8_next(s->p, (size_t)(s->end - s->p), &bad);
        if (len == 0) return scan_fail(s, "invalid UTF-8 in a string");
        s->p += len;
    }
    return scan_fail(s, "the text ends inside a string");
}

static bool scan_digits(struct scan *s) {
    const uint8_t *from = s->p;

    while (s->p < s->end && *s->p >= '0' && *s->p <= '9') s->p++;
    return s->p > from;
}

static int scan_number(struct scan *s) {
    const uint8_t *from = s->p;

    if (*s->p == '-') s->p++;
    if (s->p < s->end && *s->p == '0') s->p++;
    else if (!scan_digits(s)) return scan_fail(s, "a number needs digits");
    if (s->p < s->end && *s->p >= '0' && *s->p <= '9') return scan_fail(s, "a number with a leading zero");
    if (s->p < s->end && *s->p == '.') {
        s->p++;
        if (!scan_digits(s)) return scan_fail(s, "a number needs digits after its point");
    }
    if (s->p < s->end && (*s->p | 0x20) == 'e') {
        s->p++;
        if (s->p < s->end && (*s->p == '+' || *s->p == '-')) s->p++;
        if (!scan_digits(s)) return scan_fail(s, "a number needs digits in its exponent");
    }
    if (s->p - from > JSON_MAX_NUMBER_BYTES) return scan_fail(s, "a number longer than 63 characters");
    return 0;
}

static int scan_literal(struct scan *s, const char *word) {
    size_t n = strlen(word);

    size_t have = (size_t)(s->end - s->p);
    if (memcmp(s->p, word, have < n ? have : n) != 0) return scan_fail(s, "an unknown word");
    if (have < n) s->p = s->end;
    if (have < n) return scan_fail(s, "an unknown word");
    s->p += n;
    return 0;
}

/* A string, number or word; s->p < s->end. */
static int scan_scalar(struct scan *s) {
    switch (*s->p) {
    case '"': return scan_string(s);
    case 't': return scan_literal(s, "true");
    case 'f': return scan_literal(s, "false");
    case 'n': return scan_literal(s, "null");
    case '-': case '0': case '1': case '2': case '3': case '4':
    case '5': case '6': case '7': case '8': case '9': return scan_number(s);
    case 0: return scan_fail(s, "a NUL byte");
    default: return scan_fail(s, "expected a value");
    }
}

/* "key" : */
static int scan_key(struct scan *s) {
    scan_space(s);
    if (s->p == s->end) return scan_fail(s, "the text ends inside an object");
    if (*s->p != '"') return scan_fail(s, "expected a quoted key");
    int rc = scan_string(s);
    if (rc) return rc;
    scan_space(s);
    if (s->p == s->end || *s->p != ':') return scan_fail(s, "expected ':' after a key");
    s->p++;
    return 0;
}

/* Which containers are open: bit d of `objects` says what level d is. */
struct nest { uint64_t objects; uint32_t depth, max_depth; };

/* At '{' or '['. *empty: it closed at once. Leaves an object before the value of its first key. */
static int scan_open(struct scan *s, struct nest *nest, bool *empty) {
    bool object = *s->p == '{';

    if (nest->depth == nest->max_depth) return scan_fail(s, "nested too deeply");
    s->p++;
    scan_space(s);
    *empty = s->p < s->end && *s->p == (object ? '}' : ']');
    if (*empty) {
        s->p++;
        return 0;
    }
    uint64_t bit = 1ull << nest->depth++;
    nest->objects = object ? nest->objects | bit : nest->objects & ~bit;
    return object ? scan_key(s) : 0;
}

/* After a value: closes what ends here, then *more says whether another value follows. */
static int scan_after_value(struct scan *s, struct nest *nest, bool *more) {
    while (nest->depth > 0) {
        bool object = nest->objects >> (nest->depth - 1) & 1;
        scan_space(s);
        if (s->p == s->end) return scan_fail(s, object ? "the text ends inside an object" : "the text ends inside an array");
        if (*s->p == ',') {
            s->p++;
            *more = true;
            return object ? scan_key(s) : 0;
        }
        if (*s->p != (object ? '}' : ']')) return scan_fail(s, object ? "expected ',' or '}'" : "expected ',' or ']'");
        s->p++;
        nest->depth--;
    }
    *more = false;
    return 0;
}

/* One value with the space around it. */
static int scan_value(struct scan *s, const struct json_limits *lim) {
    struct nest nest = {.max_depth = lim->max_depth < JSON_DEPTH_BITS ? lim->max_depth : JSON_DEPTH_BITS};
    bool more = true;

    for (uint32_t nodes = 0; more;) {
        bool empty = true;
        int rc;
        scan_space(s);
        if (s->p == s->end) return scan_fail(s, nodes ? "the text ends where a value is due" : "the text is empty");
        if (++nodes > lim->max_nodes) return scan_fail(s, "too many values");
        if (*s->p == '{' || *s->p == '[') rc = scan_open(s, &nest, &empty);
        else rc = scan_scalar(s);
        if (rc == 0 && empty) rc = scan_after_value(s, &nest, &more);
        if (rc) return rc;
    }
    return 0;
}

int json_prescan(const char *text, size_t n, const struct json_limits *lim, struct err *e) {
    struct scan s = {.start = (const uint8_t *)text, .p = (const uint8_t *)text, .end = (const uint8_t *)text + n, .e = e};

    if (n >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) return scan_fail(&s, "a byte order mark is not accepted");
    int rc = scan_value(&s, lim);
    if (rc) return rc;
    scan_space(&s);
    if (s.p != s.end) return scan_fail(&s, "text after the end of the value");
    return 0;
}

int json_scan_value(const char *text, size_t n, const struct json_limits *lim, size_t *used) {
    struct scan s = {.start = (const uint8_t *)text, .p = (const uint8_t *)text, .end = (const uint8_t *)text + n};
    int rc = scan_value(&s, lim);

    *used = (size_t)(s.p - s.start);
    return rc && s.cut ? ST_LIMIT : rc;
}

/* ---- walking scanned text ---- */

static size_t skip_space(const char *s, size_t n, size_t i) {
    while (i < n && (s[i] == ' ' || s[i] == '\t' || s[i] == '\n' || s[i] == '\r')) i++;
    return i;
}

static size_t string_end(const char *s, size_t n, size_t i) {
    for (i++; i < n && s[i] != '"'; i++) i += s[i] == '\\';
    return i < n ? i + 1 : n;
}

static size_t value_end(const char *s, size_t n, size_t i) {
    uint32_t depth = 0;

    while (i < n) {
        char c = s[i];
        if (c == '"') {
            i = string_end(s, n, i);
        } else if (c == '{' || c == '[') {
            depth++, i++;
        } else if (depth > 0) {
            depth -= c == '}' || c == ']';
            i++;
        } else {
            while (i < n && !strchr(",]} \t\r\n", s[i])) i++;
            return i;
        }
        if (depth == 0 && c != '{' && c != '[') return i;
    }
    return n;
}

bool json_next(const char *s, size_t n, size_t *at, struct json_member *out) {
    size_t i = *at;

    *out = (struct json_member){0};
    if (i == 0) i = skip_space(s, n, 0);
    i = skip_space(s, n, i + 1); /* past the bracket or the comma */
    if (i >= n || s[i] == '}' || s[i] == ']') return false;
    if (s[skip_space(s, n, 0)] == '{') {
        size_t end = string_end(s, n, i);
        out->key = s + i;
        out->n_key = end - i;
        i = skip_space(s, n, skip_space(s, n, end) + 1);
    }
    size_t end = value_end(s, n, i);
    out->value = s + i;
    out->n_value = end - i;
    end = skip_space(s, n, end);
    *at = end < n && s[end] == ',' ? end : n;
    return true;
}

static unsigned hex4(const char *s) {
    unsigned v = 0;

    for (int i = 0; i < 4; i++) v = v << 4 | (s[i] <= '9' ? (unsigned)(s[i] - '0') : (unsigned)((s[i] | 0x20) - 'a' + 10));
    return v;
}

static void put_utf8(struct buf *out, unsigned c) {
    char b[4];
    unsigned n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;

    if (n == 1) b[0] = (char)c;
    for (unsigned i = n; n > 1 && i-- > 1; c >>= 6) b[i] = (char)(0x80 | (c & 0x3F));
    if (n > 1) b[0] = (char)((0xF00u >> n & 0xF0) | c);
    buf_append(out, b, n);
}

void json_put_unescaped(struct buf *out, const char *s, size_t n) {
    static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";

    for (size_t i = 1; i + 1 < n;) {
        size_t run = i;
        while (i + 1 < n && s[i] != '\\') i++;
        buf_append(out, s + run, i - run);
        if (i + 1 >= n) break;
        char c = s[i + 1];
        i += 2;
        if (c != 'u') {
            const char *k = strchr(from, c);
            buf_putc(out, k ? to[k - from] : c);
            continue;
        }
        unsigned u = hex4(s + i);
        i += 4;
        if (u >= 0xD800 && u <= 0xDBFF) {
            u = 0x10000 + ((u - 0xD800) << 10) + (hex4(s + i + 2) - 0xDC00);
            i += 6;
        }
        put_utf8(out, u);
    }
}

/* ---- writer ---- */

/* Writes the escape of one valid character when it needs one. Besides what RFC 8259 requires: U+0085, U+2028 and U+2029, at which
 * some event-stream clients split lines although only CR and LF end one. */
static bool put_escape(struct buf *out, const uint8_t *c, unsigned len) {
    static const char short_form[0x20] = {['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f', ['\r'] = 'r'};

    if (len == 1 && (*c == '"' || *c == '\\')) {
        buf_putc(out, '\\');
        buf_putc(out, (char)*c);
    } else if (len == 1 && *c < 0x20 && short_form[*c]) {
        buf_putc(out, '\\');
        buf_putc(out, short_form[*c]);
    } else if (len == 1 && *c < 0x20) {
        buf_printf(out, "\\u%04x", *c);
    } else if (len == 2 && c[0] == 0xC2 && c[1] == 0x85) {
        buf_puts(out, "\\u0085");
    } else if (len == 3 && c[0] == 0xE2 && c[1] == 0x80 && (c[2] == 0xA8 || c[2] == 0xA9)) {
        buf_puts(out, c[2] == 0xA8 ? "\\u2028" : "\\u2029");
    } else {
        return false;
    }
    return true;
}

void json_put_string(struct buf *out, const char *s, size_t n) {
    const uint8_t *p = (const uint8_t *)s;
    size_t run = 0, i = 0; /* [run, i) goes out as it is */

    if (n == 0) {
        buf_puts(out, "\"\""); /* s may be NULL */
        return;
    }
    buf_putc(out, '"');
    while (i < n) {
        unsigned bad, len = utf8_next(p + i, n - i, &bad);
        bool plain = len > 0 && p[i] >= 0x20 && p[i] != '"' && p[i] != '\\' && p[i] != 0xC2 && p[i] != 0xE2;
        if (plain) {
            i += len;
            continue;
        }
        buf_append(out, s + run, i - run);
        if (len == 0) { /* a caller's mistake must not become a document no client can read */
            buf_puts(out, "\xEF\xBF\xBD");
            len = bad;
        } else if (!put_escape(out, p + i, len)) {
            buf_append(out, s + i, len);
        }
        i += len;
        run = i;
    }
    buf_append(out, s + run, n - run);
    buf_putc(out, '"');
}

void json_put_number(struct buf *out, double v) {
    char text[40];

    if (!isfinite(v)) {
        buf_puts(out, "null");
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v) break;
    }
    buf_puts(out, text);
}

void json_put_float(struct buf *out, float v) {
    char text[40];

    if (!isfinite(v)) {
        buf_puts(out, "null");
        return;
    }
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)v);
        if (strtof(text, NULL) == v) break;
    }
    buf_puts(out, text);
}
