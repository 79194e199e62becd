/* SPDX-License-Identifier: Apache-2.0
 *
 * Numbers between bounds, exactly, by their digits. A bound is a decimal with a sign, digits before and after the point;
 * "at least" and "at most" a magnitude are regular expressions over digits; an interval is their intersection.
 *
 * Between bounds a number is written without exponent, and with 15 significant digits at most where it has a fraction, so
 * that no reader that makes it a double sees it on the other side of a bound. */
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "grammar/schema.h"

enum { MAX_DIGITS = 40, SIGNIFICANT = 15, INT_DIGITS = 18 };

/* whole [n_whole] without leading zeros (none for 0), then fraction without trailing zeros. */
struct decimal { bool negative; char whole[MAX_DIGITS + 1], fraction[MAX_DIGITS + 1]; uint32_t n_whole, n_fraction; };

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* As JSON writes it; false when it has too many digits. */
static bool read_decimal(const struct json_value *v, struct decimal *d) {
    char digits[2 * MAX_DIGITS + 2];
    int32_t n = 0, point = -1, exponent = 0;
    size_t i = v->n && v->s[0] == '-';
    *d = (struct decimal){ .negative = i == 1 };
    for (; i < v->n && (is_digit(v->s[i]) || v->s[i] == '.'); i++) {
        if (v->s[i] == '.') point = n;
        else if (n == 2 * MAX_DIGITS) return false;
        else digits[n++] = v->s[i];
    }
    if (point < 0) point = n;
    if (i < v->n) {
        bool minus = v->s[++i] == '-';
        if (!is_digit(v->s[i])) i++;
        for (; i < v->n; i++)
            if (exponent < 10000) exponent = exponent * 10 + (v->s[i] - '0');
        point += minus ? -exponent : exponent;
    }
    int32_t first = 0, last = n;
    while (first < last && digits[first] == '0') first++;
    while (last > first && digits[last - 1] == '0') last--;
    if (first == last) return *d = (struct decimal){ 0 }, true;
    if (point - first > MAX_DIGITS || last - point > MAX_DIGITS) return false;
    for (int32_t k = first; k < point; k++) d->whole[d->n_whole++] = k < last ? digits[k] : '0';
    for (int32_t k = point; k < last; k++) d->fraction[d->n_fraction++] = k >= first ? digits[k] : '0';
    return true;
}

/* ---- expressions ---- */

/* Of digits: those of d before i, then one above (or below) d's, then what may follow. Alternatives after the first get a |. */
static void differ_at(struct buf *out, const char *d, uint32_t i, bool above, const char *then) {
    char lo = above ? (char)(d[i] + 1) : '0', hi = above ? '9' : (char)(d[i] - 1);
    if (lo > hi) return;
    buf_printf(out, "|%.*s[%c-%c]%s", (int)i, d, lo, hi, then);
}

/* Same length as d, no leading zero, above or below. */
static void whole_differs(struct buf *out, const struct decimal *d, bool above, const char *fraction) {
    for (uint32_t i = 0; i < d->n_whole; i++) {
        char then[64];
        snprintf(then, sizeof then, "\\d{%u}%s", d->n_whole - i - 1, fraction);
        if (above || i > 0) differ_at(out, d->whole, i, above, then);
        else if (d->whole[0] > '1') buf_printf(out, "|[1-%c]%s", d->whole[0] - 1, then);
    }
}

/* Behind a whole part that equals d's: fractions above or below. */
static void fraction_differs(struct buf *out, const struct decimal *d, bool above) {
    for (uint32_t i = 0; i < d->n_fraction; i++) {
        char lo = above ? (char)(d->fraction[i] + 1) : '0', hi = above ? '9' : (char)(d->fraction[i] - 1);
        if (lo <= hi) buf_printf(out, "|\\.%.*s[%c-%c]\\d*", (int)i, d->fraction, lo, hi);
    }
    if (above) buf_printf(out, d->n_fraction ? "|\\.%s0*[1-9]\\d*" : "|\\.%s\\d*[1-9]\\d*", d->fraction);
    if (above || d->n_fraction == 0) return;
    buf_puts(out, "|"); /* cut short is below, down to nothing */
    for (uint32_t i = 1; i < d->n_fraction; i++) buf_printf(out, "|\\.%.*s", (int)i, d->fraction);
}

/* Magnitudes on one side of d, d itself with `equal`. `fraction`: what a free fraction is, "" for integers. */
static void magnitude(struct buf *out, const struct decimal *d, bool above, bool equal, bool integer) {
    const char *fraction = integer ? "" : "(?:\\.\\d{1,18})?";
    const char *whole = d->n_whole ? d->whole : "0";
    uint32_t longest = d->n_whole > INT_DIGITS ? d->n_whole : INT_DIGITS;
    buf_puts(out, "(?:[^\\d\\D]"); /* nothing, so that every alternative begins with | */
    if (above && d->n_whole < longest) /* more digits; 0 has none of its own */
        buf_printf(out, "|[1-9]\\d{%u,%u}%s", d->n_whole, longest - 1, fraction);
    if (!above && d->n_whole > 0) buf_printf(out, "|0%s", fraction);
    if (!above && d->n_whole > 1) buf_printf(out, "|[1-9]\\d{0,%u}%s", d->n_whole - 2, fraction);
    whole_differs(out, d, above, fraction);
    if (integer) {
        /* the same whole part: d has a fraction or not */
        if (d->n_fraction ? !above : equal) buf_printf(out, "|%s", whole);
    } else {
        buf_printf(out, "|%s(?:[^\\d\\D]", whole);
        fraction_differs(out, d, above);
        if (equal && d->n_fraction) buf_printf(out, "|\\.%s0*", d->fraction);
        if (equal && !d->n_fraction) buf_puts(out, "|\\.0+|");
        buf_puts(out, ")");
    }
    buf_puts(out, ")");
}

/* Numbers on one side of d. */
static void side(struct buf *out, const struct decimal *d, bool at_least, bool equal, bool integer) {
    static const struct decimal ZERO = { 0 };
    buf_puts(out, "(?:[^\\d\\D]");
    if (at_least == d->negative) { /* all of the other sign; minus zero is not a number below 0 */
        buf_puts(out, at_least ? "|" : "|-");
        magnitude(out, &ZERO, true, at_least, integer);
    }
    buf_puts(out, d->negative ? "|-" : "|");
    magnitude(out, d, at_least != d->negative, equal, integer);
    buf_puts(out, ")");
}

static struct dfa *regex_of(struct schema *x, struct buf *text) {
    struct build *b = schema__build(x);
    if (text->failed) build__fail(b, ST_NOMEM, "schema: out of memory");
    struct dfa *d = b->status ? NULL : regex__dfa(b, text->data, text->len, REGEX_WHOLE, "schema: bounds");
    buf_clear(text);
    return d;
}

static struct dfa *literal_dfa(struct schema *x, const char *expression) {
    return regex__dfa(schema__build(x), expression, strlen(expression), REGEX_WHOLE, "schema: bounds");
}

static struct dfa *bound_dfa(struct schema *x, const struct json_value *v, bool at_least, bool equal, bool integer) {
    struct decimal d;
    struct buf text;
    if (v->type != JSON_NUMBER) return schema__bad(x, ST_INVALID, v, NULL, "expected a number"), NULL;
    if (!read_decimal(v, &d)) return schema__bad(x, ST_UNSUPPORTED, v, NULL, "more than 40 digits"), NULL;
    buf_init(&text, 1 << 20);
    side(&text, &d, at_least, equal, integer);
    return regex_of(x, &text);
}

static bool is_bool(const struct json_value *v) {
    return v && (v->type == JSON_TRUE || v->type == JSON_FALSE);
}

/* Draft 4 has exclusive* as a switch of the bound beside it. */
static struct dfa *add_bounds(struct schema *x, const struct json_value *v, bool at_least, bool integer, struct dfa *d) {
    struct build *b = schema__build(x);
    const struct json_value *bound = json__get(v, at_least ? "minimum" : "maximum");
    const struct json_value *open = json__get(v, at_least ? "exclusiveMinimum" : "exclusiveMaximum");
    bool equal = !(is_bool(open) && open->type == JSON_TRUE);
    const struct json_value *both[2] = { bound, is_bool(open) ? NULL : open };
    for (uint32_t i = 0; i < 2; i++) {
        if (!both[i] || b->status) continue;
        struct dfa *y = bound_dfa(x, both[i], at_least, i == 0 && equal, integer);
        d = d && y ? dfa__and(b, d, y) : y;
    }
    return d;
}

void schema__number(struct schema *x, const struct items *l, bool integer, uint32_t rule, uint32_t from, uint32_t to) {
    struct build *b = schema__build(x);
    struct dfa *d = NULL;
    for (uint32_t i = 0; i < l->n && !b->status; i++)
        for (int at_least = 0; at_least < 2; at_least++) d = add_bounds(x, l->at[i].v, at_least, integer, d);
    if (b->status) return;
    if (!d) {
        json__call(b, rule, from, to, integer ? JSON_RULE_INTEGER : JSON_RULE_NUMBER);
        return;
    }
    if (!integer) { /* the sign and a point beside the digits; leading zeros of a fraction count, too */
        char few[64];
        snprintf(few, sizeof few, "-?\\d+|-?(?:\\d\\.?){1,%d}", SIGNIFICANT);
        struct dfa *y = literal_dfa(x, few);
        d = y ? dfa__and(b, d, y) : NULL;
    }
    if (d) json__plain_of(b, rule, from, to, d);
}
