/* SPDX-License-Identifier: Apache-2.0
 *
 * The tojson filter: json.dumps as `transformers` calls it, without HTML escaping and with its options. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "chat/internal.h"

struct writer {
    struct chat_run *r;
    struct chat_text *t;
    bool ensure_ascii, sort_keys, pretty;
    struct chat_value indent; /* string; of one level */
    struct chat_value item_sep, key_sep;
};

static void put_value(struct writer *w, struct chat_value v, unsigned depth);

static void put_escape(struct writer *w, uint32_t c, bool request)
{
    static const char plain[] = "\"\\\n\r\t\f\b", letters[] = "\"\\nrtfb";
    char out[16];
    const char *p = c && c < 128 ? strchr(plain, (int)c) : NULL;
    if (p)
        snprintf(out, sizeof(out), "\\%c", letters[p - plain]);
    else if (c < 0x10000)
        snprintf(out, sizeof(out), "\\u%04x", c);
    else
        snprintf(out, sizeof(out), "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10), 0xdc00 + (c & 0x3ff));
    chat__text_put(w->t, out, strlen(out), request);
}

static void put_string(struct writer *w, const struct chat_str *s)
{
    size_t done = 0, len;
    chat__text_puts(w->t, "\"");
    for (size_t i = 0; i < s->len; i += len) {
        uint32_t c = chat__char_at(s->p + i, s->len - i, &len);
        if (c >= 0x20 && c != '"' && c != '\\' && (c < 0x7f || !w->ensure_ascii))
            continue;
        chat__text_part(w->t, s, done, i);
        put_escape(w, c, chat__is_request(s, i));
        done = i + len;
    }
    chat__text_part(w->t, s, done, s->len);
    chat__text_puts(w->t, "\"");
    chat__step(w->r, s->len);
}

static void put_float(struct writer *w, double f)
{
    char out[32];
    size_t n = chat__float_repr(f, out);
    if (!isfinite(f))
        chat__text_puts(w->t, isnan(f) ? "NaN" : f < 0 ? "-Infinity" : "Infinity");
    else
        chat__text_put(w->t, out, n, false);
}

static void new_line(struct writer *w, unsigned depth)
{
    if (!w->pretty)
        return;
    chat__text_puts(w->t, "\n");
    for (unsigned i = 0; i < depth; i++)
        chat__text_str(w->t, w->indent);
}

static void put_list(struct writer *w, const struct chat_list *l, unsigned depth)
{
    if (l->n == 0) {
        chat__text_puts(w->t, "[]");
        return;
    }
    chat__text_puts(w->t, "[");
    for (uint32_t i = 0; i < l->n && !w->r->status && !w->t->failed; i++) {
        if (i)
            chat__text_str(w->t, w->item_sep);
        new_line(w, depth + 1);
        put_value(w, l->item[i], depth + 1);
    }
    new_line(w, depth);
    chat__text_puts(w->t, "]");
}

static void put_key(struct writer *w, struct chat_value key)
{
    char out[32] = "null";
    switch (key.type) {
    case CHAT_STRING:
        put_string(w, key.s);
        return;
    case CHAT_NONE:
        break;
    case CHAT_BOOL:
        snprintf(out, sizeof(out), "%s", key.b ? "true" : "false");
        break;
    case CHAT_INT:
        snprintf(out, sizeof(out), "%" PRId64, key.i);
        break;
    case CHAT_FLOAT:
        chat__text_puts(w->t, "\"");
        put_float(w, key.f);
        chat__text_puts(w->t, "\"");
        return;
    default:
        chat__fail(w->r, CHAT_ERROR_RUNTIME, "keys must be str, int, float, bool or None, not %s", chat__type_name(key));
    }
    chat__text_puts(w->t, "\"");
    chat__text_puts(w->t, out);
    chat__text_puts(w->t, "\"");
}

/* The order of the keys for sort_keys: a stable merge sort. */
static bool sort_entries(struct chat_run *r, const struct chat_dict *d, uint32_t *order)
{
    uint32_t *tmp = chat__alloc(r, (d->n + 1) * sizeof(*tmp));
    for (uint32_t i = 0; i < d->n; i++)
        order[i] = i;
    for (uint32_t width = 1; tmp && width < d->n; width *= 2) {
        for (uint32_t lo = 0; lo < d->n && !r->status; lo += 2 * width) {
            uint32_t mid = lo + width < d->n ? lo + width : d->n, hi = lo + 2 * width < d->n ? lo + 2 * width : d->n;
            for (uint32_t i = lo, j = mid, k = lo; k < hi; k++) {
                bool left = j >= hi || (i < mid && chat__order(r, d->entry[order[j]].key, d->entry[order[i]].key, "<") >= 0);
                tmp[k] = left ? order[i++] : order[j++];
            }
        }
        memcpy(order, tmp, d->n * sizeof(*order));
    }
    return !r->status;
}

static void put_dict(struct writer *w, const struct chat_dict *d, unsigned depth)
{
    uint32_t *order = w->sort_keys ? chat__alloc(w->r, (d->n + 1) * sizeof(*order)) : NULL;
    if (d->n == 0) {
        chat__text_puts(w->t, "{}");
        return;
    }
    if (w->sort_keys && (!order || !sort_entries(w->r, d, order)))
        return;
    chat__text_puts(w->t, "{");
    for (uint32_t i = 0; i < d->n && !w->r->status && !w->t->failed; i++) {
        const struct chat_entry *e = &d->entry[order ? order[i] : i];
        if (i)
            chat__text_str(w->t, w->item_sep);
        new_line(w, depth + 1);
        put_key(w, e->key);
        chat__text_str(w->t, w->key_sep);
        put_value(w, e->value, depth + 1);
    }
    new_line(w, depth);
    chat__text_puts(w->t, "}");
}

static void put_value(struct writer *w, struct chat_value v, unsigned depth)
{
    char out[32];
    if (depth > CHAT_MAX_DATA_DEPTH) {
        chat__fail(w->r, CHAT_ERROR_LIMIT, "a value nested deeper than %d", CHAT_MAX_DATA_DEPTH);
        return;
    }
    if (!chat__step(w->r, 0))
        return;
    switch (v.type) {
    case CHAT_NONE:
        chat__text_puts(w->t, "null");
        break;
    case CHAT_BOOL:
        chat__text_puts(w->t, v.b ? "true" : "false");
        break;
    case CHAT_INT:
        snprintf(out, sizeof(out), "%" PRId64, v.i);
        chat__text_puts(w->t, out);
        break;
    case CHAT_FLOAT:
        put_float(w, v.f);
        break;
    case CHAT_STRING:
        put_string(w, v.s);
        break;
    case CHAT_LIST:
    case CHAT_TUPLE:
        put_list(w, v.l, depth);
        break;
    case CHAT_DICT:
        put_dict(w, v.d, depth);
        break;
    default:
        chat__fail(w->r, CHAT_ERROR_RUNTIME, "Object of type %s is not JSON serializable", chat__type_name(v));
    }
}

/* indent: None, a number of spaces, or a string. separators: a pair. */
static bool read_layout(struct writer *w, struct chat_value indent, struct chat_value separators)
{
    struct chat_run *r = w->r;
    w->pretty = indent.type != CHAT_INVALID && indent.type != CHAT_NONE;
    w->item_sep = chat_string(&r->arena, ", ", w->pretty ? 1 : 2, CHAT_TRUSTED);
    w->key_sep = chat_string(&r->arena, ": ", 2, CHAT_TRUSTED);
    w->indent = indent;
    if (w->pretty && indent.type != CHAT_STRING) {
        int64_t n = 0;
        if (!chat__to_int(r, indent, &n) || w->key_sep.type == CHAT_INVALID)
            return false;
        w->indent = chat__pad(r, chat_string(&r->arena, "", 0, CHAT_TRUSTED), n, chat_none(), '<');
    }
    if (chat__is_seq(separators) && separators.l->n == 2) {
        w->item_sep = separators.l->item[0];
        w->key_sep = separators.l->item[1];
    } else if (separators.type != CHAT_INVALID && separators.type != CHAT_NONE) {
        chat__fail(r, CHAT_ERROR_RUNTIME, "separators must be a pair");
    }
    if (w->item_sep.type != CHAT_STRING || w->key_sep.type != CHAT_STRING)
        chat__fail(r, CHAT_ERROR_RUNTIME, "separators must be strings");
    return !r->status;
}

struct chat_value chat__to_json(struct chat_run *r, struct chat_value v, const struct chat_value *a)
{
    struct chat_text t;
    chat__text_for(r, &t);
    struct writer w = {.r = r, .t = &t, .ensure_ascii = a[0].type != CHAT_INVALID && chat__truth(r, a[0]),
                       .sort_keys = a[3].type != CHAT_INVALID && chat__truth(r, a[3])};
    if (!read_layout(&w, a[1], a[2]))
        return chat_none();
    put_value(&w, v, 0);
    return r->status ? chat_none() : chat__text_done(r, &t);
}
