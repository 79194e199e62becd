/* SPDX-License-Identifier: Apache-2.0
 *
 * See json_walk.h. One state per place in the grammar where the text may stop. */
#include "base/json_walk.h"

#include <string.h>

enum state { TOP, VALUE, VALUE_OR_END, KEY, KEY_OR_END, COLON, AFTER, STRING, ESCAPE, HEX, WORD, MINUS, ZERO, DIGITS, POINT, FRACTION, EXP, EXP_SIGN, EXP_DIGITS };

void json_walk_init(struct json_walk *w, uint32_t max_depth) {
    *w = (struct json_walk){.max_depth = max_depth < 64 ? max_depth : 64, .state = TOP};
}

static bool refuse(struct json_walk *w) {
    w->bad = true;
    return false;
}

static bool go(struct json_walk *w, enum state to) {
    w->state = (uint8_t)to;
    return true;
}

static bool open_one(struct json_walk *w, bool object) {
    if (w->depth == w->max_depth) return refuse(w);
    uint64_t bit = 1ull << w->depth++;
    w->objects = object ? w->objects | bit : w->objects & ~bit;
    return go(w, object ? KEY_OR_END : VALUE_OR_END);
}

static bool close_one(struct json_walk *w, char c) {
    bool object = w->objects >> (w->depth - 1) & 1;

    if (c != (object ? '}' : ']')) return refuse(w);
    w->done = --w->depth == 0;
    return go(w, AFTER);
}

static bool begin_string(struct json_walk *w, bool key) {
    w->key = key;
    return go(w, STRING);
}

static bool begin_value(struct json_walk *w, char c) {
    switch (c) {
    case '{': return open_one(w, true);
    case '[': return open_one(w, false);
    case '"': return begin_string(w, false);
    case 't': w->word = "rue"; return go(w, WORD);
    case 'f': w->word = "alse"; return go(w, WORD);
    case 'n': w->word = "ull"; return go(w, WORD);
    case '-': return go(w, MINUS);
    case '0': return go(w, ZERO);
    default: return c >= '1' && c <= '9' ? go(w, DIGITS) : refuse(w);
    }
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Behind a value. */
static bool after(struct json_walk *w, char c) {
    if (is_space(c)) return go(w, AFTER);
    if (c == ',') return go(w, w->objects >> (w->depth - 1) & 1 ? KEY : VALUE);
    return close_one(w, c);
}

static bool in_number(struct json_walk *w, char c) {
    switch (w->state) {
    case MINUS: return c == '0' ? go(w, ZERO) : is_digit(c) ? go(w, DIGITS) : refuse(w);
    case POINT: return is_digit(c) ? go(w, FRACTION) : refuse(w);
    case EXP: return c == '+' || c == '-' ? go(w, EXP_SIGN) : is_digit(c) ? go(w, EXP_DIGITS) : refuse(w);
    case EXP_SIGN: return is_digit(c) ? go(w, EXP_DIGITS) : refuse(w);
    default: break;
    }
    if (is_digit(c)) return w->state != ZERO || refuse(w);
    if (c == '.' && (w->state == ZERO || w->state == DIGITS)) return go(w, POINT);
    if ((c | 0x20) == 'e' && w->state != EXP_DIGITS) return go(w, EXP);
    return after(w, c);
}

static bool in_string(struct json_walk *w, char c) {
    switch (w->state) {
    case ESCAPE:
        w->n_left = 4;
        if (c == 'u') return go(w, HEX);
        return c && strchr("\"\\/bfnrt", c) ? go(w, STRING) : refuse(w);
    case HEX:
        if (!is_digit(c) && ((c | 0x20) < 'a' || (c | 0x20) > 'f')) return refuse(w);
        return --w->n_left > 0 || go(w, STRING);
    default:
        if (c == '"') return go(w, w->key ? COLON : AFTER);
        if (c == '\\') return go(w, ESCAPE);
        return (uint8_t)c >= 0x20 || refuse(w);
    }
}

static bool take(struct json_walk *w, char c) {
    switch (w->state) {
    case STRING: case ESCAPE: case HEX: return in_string(w, c);
    case WORD:
        if (c != *w->word) return refuse(w);
        return *++w->word || go(w, AFTER);
    case AFTER: return after(w, c);
    case MINUS: case ZERO: case DIGITS: case POINT: case FRACTION: case EXP: case EXP_SIGN: case EXP_DIGITS: return in_number(w, c);
    default: break;
    }
    if (is_space(c)) return true;
    switch (w->state) {
    case TOP: return c == '{' || c == '[' ? begin_value(w, c) : refuse(w);
    case COLON: return c == ':' ? go(w, VALUE) : refuse(w);
    case KEY: return c == '"' ? begin_string(w, true) : refuse(w);
    case KEY_OR_END: return c == '"' ? begin_string(w, true) : close_one(w, c);
    case VALUE_OR_END: return c == ']' ? close_one(w, c) : begin_value(w, c);
    default: return begin_value(w, c);
    }
}

size_t json_walk(struct json_walk *w, const char *s, size_t n) {
    size_t i = 0;

    while (i < n && !w->done && !w->bad && take(w, s[i])) i++;
    return i;
}
