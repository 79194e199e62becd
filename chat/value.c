/* SPDX-License-Identifier: Apache-2.0
 *
 * Values and containers in an arena: builders, dictionaries in insertion order with a hash once they are big, equality
 * as Python has it (1 == 1.0 == True, lists never equal tuples). Nothing here knows of a running template. */
#include "chat/value.h"

#include <math.h>
#include <string.h>

#include "base/status.h"
#include "base/utf8.h"
#include "chat/internal.h"

enum { DICT_HASH_FROM = 9 };

struct chat_value chat_none(void)
{
    return (struct chat_value){.type = CHAT_NONE};
}

struct chat_value chat_bool(bool b)
{
    return (struct chat_value){.type = CHAT_BOOL, .b = b};
}

struct chat_value chat_int(int64_t i)
{
    return (struct chat_value){.type = CHAT_INT, .i = i};
}

struct chat_value chat_float(double f)
{
    return (struct chat_value){.type = CHAT_FLOAT, .f = f};
}

static struct chat_value repaired(struct arena *a, const char *p, size_t n, enum chat_origin origin)
{
    struct chat_text t;
    chat__text_init(&t, a, n * 3);
    for (size_t i = 0; i < n;) {
        unsigned bad, len = utf8_next((const uint8_t *)p + i, n - i, &bad);
        if (len)
            chat__text_put(&t, p + i, len, origin == CHAT_REQUEST);
        else
            chat__text_char(&t, 0xfffd, origin == CHAT_REQUEST);
        i += len ? len : bad;
    }
    return chat__text_value(&t);
}

struct chat_value chat_string(struct arena *a, const char *p, size_t n, enum chat_origin origin)
{
    if (!utf8_valid(p, n))
        return repaired(a, p, n, origin);
    const char *copy = arena_strndup(a, n ? p : "", n);
    return copy ? chat__str_n(a, copy, n, origin) : (struct chat_value){0};
}

static struct chat_value new_list(struct arena *a, enum chat_type type)
{
    struct chat_list *l = arena_zalloc(a, 1, sizeof(*l));
    return (struct chat_value){.type = l ? type : CHAT_INVALID, .l = l};
}

struct chat_value chat_list(struct arena *a)
{
    return new_list(a, CHAT_LIST);
}

struct chat_value chat__tuple(struct arena *a)
{
    return new_list(a, (enum chat_type)CHAT_TUPLE);
}

struct chat_value chat_dict(struct arena *a)
{
    struct chat_dict *d = arena_zalloc(a, 1, sizeof(*d));
    return (struct chat_value){.type = d ? CHAT_DICT : CHAT_INVALID, .d = d};
}

/* Room for one more of `size` bytes in an arena array. */
static void *grow(struct arena *a, void *p, uint32_t n, uint32_t *cap, size_t size)
{
    if (n < *cap)
        return p;
    uint32_t bigger = *cap ? *cap * 2 : 4;
    void *q = n < UINT32_MAX / 4 ? arena_alloc(a, bigger * size) : NULL;
    if (!q)
        return NULL;
    if (n)
        memcpy(q, p, n * size);
    *cap = bigger;
    return q;
}

int chat_list_push(struct arena *a, struct chat_value list, struct chat_value item)
{
    if (!chat__is_seq(list) || item.type == CHAT_INVALID)
        return ST_NOMEM;
    struct chat_value *items = grow(a, list.l->item, list.l->n, &list.l->cap, sizeof(*items));
    if (!items)
        return ST_NOMEM;
    list.l->item = items;
    items[list.l->n++] = item;
    return 0;
}

int chat_dict_set(struct arena *a, struct chat_value dict, const char *key, size_t n_key, enum chat_origin origin, struct chat_value item)
{
    if (dict.type != CHAT_DICT || item.type == CHAT_INVALID)
        return ST_NOMEM;
    struct chat_value k = chat_string(a, key, n_key, origin);
    return k.type == CHAT_INVALID ? ST_NOMEM : chat__dict_put(a, dict.d, k, item);
}

size_t chat_list_len(struct chat_value list)
{
    return chat__is_seq(list) ? list.l->n : 0;
}

struct chat_value chat_list_at(struct chat_value list, size_t i)
{
    return i < chat_list_len(list) ? list.l->item[i] : (struct chat_value){0};
}

struct chat_value chat_dict_get(struct chat_value dict, const char *key)
{
    struct chat_str s = {.p = key, .len = (uint32_t)strlen(key)};
    return dict.type == CHAT_DICT ? chat__dict_find(dict.d, (struct chat_value){.type = CHAT_STRING, .s = &s}) : (struct chat_value){0};
}

const char *chat_string_bytes(struct chat_value s, size_t *n)
{
    *n = s.type == CHAT_STRING ? s.s->len : 0;
    return s.type == CHAT_STRING ? s.s->p : "";
}

/* ---- equality and hashing ---- */

/* Keys are hashable, and what is hashable is small: no budget is needed to compare them. */
static uint64_t hash_bytes(uint64_t h, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)p[i]) * 0x100000001b3u;
    return h ^ h >> 29;
}

/* Of a tuple only the first few items count: one can be built that has 2^60 of them inside. */
static uint64_t hash(uint64_t h, struct chat_value v, unsigned depth)
{
    switch (v.type) {
    case CHAT_STRING:
        return hash_bytes(h, v.s->p, v.s->len);
    case CHAT_BOOL:
    case CHAT_INT:
    case CHAT_FLOAT: {
        double f = v.type == CHAT_FLOAT ? v.f : v.type == CHAT_BOOL ? (double)v.b : (double)v.i;
        f += 0.0; /* -0.0 equals 0.0 */
        return hash_bytes(h, (const char *)&f, sizeof(f));
    }
    case CHAT_TUPLE:
        for (uint32_t i = 0; i < v.l->n && i < 8 && depth < 4; i++)
            h = hash(h, v.l->item[i], depth + 1) * 31;
        return h;
    case CHAT_NONE:
    case CHAT_UNDEFINED:
        return h + v.type;
    default:
        return hash_bytes(h, (const char *)&v.p, sizeof(v.p));
    }
}

static bool hashable(struct chat_value v, struct chat_budget *b)
{
    if (v.type == CHAT_LIST || v.type == CHAT_DICT || v.type == CHAT_VIEW || b->left == 0 || b->depth == CHAT_MAX_DATA_DEPTH)
        return false;
    b->left--;
    b->depth++;
    for (uint32_t i = 0; v.type == CHAT_TUPLE && i < v.l->n; i++)
        if (!hashable(v.l->item[i], b))
            return false;
    b->depth--;
    return true;
}

bool chat__hashable(struct chat_value v)
{
    return hashable(v, &(struct chat_budget){.left = 10000});
}

static bool is_number(struct chat_value v)
{
    return v.type == CHAT_INT || v.type == CHAT_FLOAT || v.type == CHAT_BOOL;
}

static bool numbers_equal(struct chat_value a, struct chat_value b)
{
    if (a.type == CHAT_FLOAT || b.type == CHAT_FLOAT) {
        double x = a.type == CHAT_FLOAT ? a.f : a.type == CHAT_BOOL ? (double)a.b : (double)a.i;
        double y = b.type == CHAT_FLOAT ? b.f : b.type == CHAT_BOOL ? (double)b.b : (double)b.i;
        return x == y;
    }
    return (a.type == CHAT_BOOL ? a.b : a.i) == (b.type == CHAT_BOOL ? b.b : b.i);
}

static bool dicts_equal(const struct chat_dict *a, const struct chat_dict *b, struct chat_budget *budget)
{
    if (a->n != b->n)
        return false;
    for (uint32_t i = 0; i < a->n; i++) {
        struct chat_value other = chat__dict_find(b, a->entry[i].key);
        if (other.type == CHAT_INVALID || !chat__equal(a->entry[i].value, other, budget))
            return false;
    }
    return true;
}

static bool ranges_equal(const struct chat_range_obj *a, const struct chat_range_obj *b)
{
    return a->len == b->len && (a->len == 0 || (a->start == b->start && (a->len == 1 || a->step == b->step)));
}

static bool lists_equal(const struct chat_list *a, const struct chat_list *b, struct chat_budget *budget)
{
    if (a->n != b->n)
        return false;
    for (uint32_t i = 0; i < a->n; i++)
        if (!chat__equal(a->item[i], b->item[i], budget))
            return false;
    return true;
}

static bool containers_equal(struct chat_value a, struct chat_value b, struct chat_budget *budget)
{
    if (a.p == b.p && a.type != CHAT_VIEW)
        return true;
    if (budget->left == 0 || budget->depth == CHAT_MAX_DATA_DEPTH)
        return !(budget->over = true);
    budget->left--;
    budget->depth++;
    bool same = chat__is_seq(a) ? lists_equal(a.l, b.l, budget) : dicts_equal(a.d, b.d, budget);
    budget->depth--;
    return same;
}

bool chat__equal(struct chat_value a, struct chat_value b, struct chat_budget *budget)
{
    if (is_number(a) && is_number(b))
        return numbers_equal(a, b);
    if (a.type != b.type)
        return false;
    switch (a.type) {
    case CHAT_NONE:
    case CHAT_UNDEFINED:
    case CHAT_MISSING:
        return true;
    case CHAT_STRING:
        return a.s->len == b.s->len && memcmp(a.s->p, b.s->p, a.s->len) == 0;
    case CHAT_LIST:
    case CHAT_TUPLE:
    case CHAT_DICT:
        return containers_equal(a, b, budget);
    case CHAT_VIEW:
        return a.flags == b.flags && a.flags != VIEW_VALUES && containers_equal(a, b, budget);
    case CHAT_RANGE:
        return ranges_equal(a.p, b.p);
    default:
        return a.p == b.p;
    }
}

/* ---- dictionaries ---- */

/* The slot of the key, or the empty one where it would go. */
static uint32_t *slot_of(const struct chat_dict *d, struct chat_value key)
{
    struct chat_budget budget = {.left = UINT32_MAX};
    uint64_t seed = 0xcbf29ce484222325u ^ (uintptr_t)d; /* so that a client cannot choose colliding keys */
    for (uint64_t h = hash(seed, key, 0);; h++) {
        uint32_t *slot = &d->slot[h & d->mask];
        if (*slot == 0 || chat__equal(d->entry[*slot - 1].key, key, &budget))
            return slot;
    }
}

static struct chat_entry *entry_of(const struct chat_dict *d, struct chat_value key)
{
    if (d->slot) {
        uint32_t i = *slot_of(d, key);
        return i ? &d->entry[i - 1] : NULL;
    }
    struct chat_budget budget = {.left = UINT32_MAX};
    for (uint32_t i = 0; i < d->n; i++)
        if (chat__equal(d->entry[i].key, key, &budget))
            return &d->entry[i];
    return NULL;
}

struct chat_value chat__dict_find(const struct chat_dict *d, struct chat_value key)
{
    const struct chat_entry *e = entry_of(d, key);
    return e ? e->value : (struct chat_value){0};
}

/* A table at most half full, once there are enough entries. */
static bool rehash(struct arena *a, struct chat_dict *d)
{
    if (d->n + 1 < DICT_HASH_FROM || (d->slot && (d->n + 1) * 2 <= d->mask))
        return true;
    uint32_t size = d->slot ? (d->mask + 1) * 2 : 32;
    uint32_t *slot = arena_zalloc(a, size, sizeof(*slot));
    if (!slot)
        return false;
    d->slot = slot;
    d->mask = size - 1;
    for (uint32_t i = 0; i < d->n; i++)
        *slot_of(d, d->entry[i].key) = i + 1;
    return true;
}

int chat__dict_put(struct arena *a, struct chat_dict *d, struct chat_value key, struct chat_value value)
{
    struct chat_entry *e = entry_of(d, key);
    if (e) {
        e->value = value;
        return 0;
    }
    struct chat_entry *entries = grow(a, d->entry, d->n, &d->cap, sizeof(*entries));
    if (!entries)
        return ST_NOMEM;
    d->entry = entries;
    if (!rehash(a, d))
        return ST_NOMEM;
    entries[d->n] = (struct chat_entry){key, value};
    d->n++;
    if (d->slot)
        *slot_of(d, key) = d->n;
    return 0;
}
