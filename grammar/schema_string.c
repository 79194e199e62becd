/* SPDX-License-Identifier: Apache-2.0
 *
 * Strings of a schema: each of pattern, format, minLength and maxLength is an automaton over code points, a set of
 * schemas is their intersection, and the result is written as the inside of a JSON string with every escape allowed. */
#include <string.h>

#include "grammar/schema.h"

/* RFC 3339 without leap seconds, RFC 4122, RFC 2673, RFC 4291, RFC 5321 without quoted local parts, RFC 1123, RFC 3986. */
#define LEAP_YEAR "(?:[1-9]\\d(?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)"
#define DATE "(?:[1-9]\\d{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8]))|" \
             LEAP_YEAR "-02-29)"
#define TIME "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define BYTE "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define IPV4 BYTE "(?:\\." BYTE "){3}"
#define H16 "[0-9a-fA-F]{1,4}"
#define LS32 "(?:" H16 ":" H16 "|" IPV4 ")"
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define HOST LABEL "(?:\\." LABEL ")*"
#define ATOM "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
#define PCHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
#define DURATION_TIME "T(?:\\d{1,9}H(?:\\d{1,9}M(?:\\d{1,9}S)?)?|\\d{1,9}M(?:\\d{1,9}S)?|\\d{1,9}S)"
#define DURATION_DATE "(?:\\d{1,9}Y(?:\\d{1,9}M(?:\\d{1,9}D)?)?|\\d{1,9}M(?:\\d{1,9}D)?|\\d{1,9}D)"

static const struct { const char *name, *expression; } FORMATS[] = {
    { "date", DATE },
    { "time", TIME },
    { "date-time", DATE "T" TIME },
    { "duration", "P(?:\\d{1,9}W|" DURATION_DATE "(?:" DURATION_TIME ")?|" DURATION_TIME ")" },
    { "uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}" },
    { "ipv4", IPV4 },
    { "ipv6", "(?:(?:" H16 ":){6}" LS32 "|::(?:" H16 ":){5}" LS32 "|(?:" H16 ")?::(?:" H16 ":){4}" LS32
              "|(?:(?:" H16 ":){0,1}" H16 ")?::(?:" H16 ":){3}" LS32 "|(?:(?:" H16 ":){0,2}" H16 ")?::(?:" H16 ":){2}" LS32
              "|(?:(?:" H16 ":){0,3}" H16 ")?::" H16 ":" LS32 "|(?:(?:" H16 ":){0,4}" H16 ")?::" LS32
              "|(?:(?:" H16 ":){0,5}" H16 ")?::" H16 "|(?:(?:" H16 ":){0,6}" H16 ")?::)" },
    { "hostname", HOST },
    { "email", ATOM "(?:\\." ATOM ")*@" HOST },
    { "uri", "[A-Za-z][A-Za-z0-9+.-]*:(?://(?:" PCHAR "+@)?" HOST "(?::\\d{1,5})?(?:/" PCHAR "*)*|/?" PCHAR "+(?:/" PCHAR "*)*)"
             "(?:\\?(?:" PCHAR "|[/?])*)?(?:#(?:" PCHAR "|[/?])*)?" },
    { "json-pointer", "(?:/(?:[^~/]|~[01])*)*" },
};

static struct dfa *format_dfa(struct schema *x, const struct json_value *format) {
    for (size_t i = 0; i < sizeof FORMATS / sizeof *FORMATS; i++)
        if (json__is(format, FORMATS[i].name))
            return regex__dfa(schema__build(x), FORMATS[i].expression, strlen(FORMATS[i].expression), REGEX_WHOLE, "format");
    schema__bad(x, ST_UNSUPPORTED, format, NULL,
                "known formats: date, time, date-time, duration, uuid, ipv4, ipv6, hostname, email, uri, json-pointer");
    return NULL;
}

static struct dfa *length_dfa(struct schema *x, uint32_t min, uint32_t max) {
    struct build *b = schema__build(x);
    struct nfa n = { 0 };
    struct frag f = nfa__frag(b, &n);
    uint32_t at = f.from, last = max == UINT32_MAX ? min : max;
    for (uint32_t i = 0; i <= last && !b->status; i++) {
        uint32_t next = i == last ? at : nfa__node(b, &n);
        if (i >= min) nfa__eps(b, &n, at, f.to);
        if (i == last && max != UINT32_MAX) break;
        nfa__edge(b, &n, at, next, 0, 0xD7FF);
        nfa__edge(b, &n, at, next, 0xE000, MAX_CODE_POINT);
        at = next;
        if (n.n_nodes > MAX_STATES) build__fail(b, ST_LIMIT, "schema: minLength or maxLength is too large");
    }
    return dfa__of(b, &n, f);
}

static struct dfa *both(struct build *b, struct dfa *x, struct dfa *y) {
    return !x ? y : !y || b->status ? NULL : dfa__and(b, x, y);
}

static struct dfa *of_schema(struct schema *x, const struct json_value *v, struct dfa *d) {
    struct build *b = schema__build(x);
    const struct json_value *pattern = json__get(v, "pattern"), *format = json__get(v, "format");
    uint32_t min = schema__count(x, v, "minLength", 0), max = schema__count(x, v, "maxLength", UINT32_MAX);
    if (pattern && pattern->type != JSON_STRING) schema__bad(x, ST_INVALID, pattern, NULL, "expected a string");
    else if (pattern) d = both(b, d, regex__dfa(b, pattern->s, pattern->n, REGEX_SEARCH, "schema: pattern"));
    if (format && !b->status) d = both(b, d, format_dfa(x, format));
    if ((min > 0 || max != UINT32_MAX) && !b->status) d = both(b, d, min > max ? length_dfa(x, 1, 0) : length_dfa(x, min, max));
    return d;
}

void schema__string(struct schema *x, const struct items *l, uint32_t rule, uint32_t from, uint32_t to) {
    struct build *b = schema__build(x);
    struct dfa *d = NULL;
    for (uint32_t i = 0; i < l->n && !b->status; i++) d = of_schema(x, l->at[i].v, d);
    if (d) json__string_of(b, rule, from, to, d);
    else json__call(b, rule, from, to, JSON_RULE_STRING);
}
