/* SPDX-License-Identifier: Apache-2.0
 *
 * The ring's indices run freely and wrap at 2^32; cap is a power of two, so the difference is the fill. */
#include "base/spsc.h"

#include <string.h>

#include "base/alloc.h"
#include "base/status.h"

int spsc_init(struct spsc *r, uint32_t min_cap, size_t item_bytes) {
    uint32_t cap = 1;
    while (cap < min_cap && cap < (1u << 30)) cap *= 2;
    memset(r, 0, sizeof *r);
    if (min_cap > cap) return ST_LIMIT;
    r->slots = mem_zalloc(cap, item_bytes);
    r->item_bytes = item_bytes;
    r->cap = cap;
    return r->slots ? 0 : ST_NOMEM;
}

void spsc_clear(struct spsc *r) {
    mem_free(r->slots);
    r->slots = NULL;
}

bool spsc_push(struct spsc *r, const void *item) {
    uint32_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed);
    uint32_t head = atomic_load_explicit(&r->head, memory_order_acquire); /* the consumer is done with the slot */
    if (tail - head == r->cap) return false;
    memcpy(r->slots + (size_t)(tail & (r->cap - 1)) * r->item_bytes, item, r->item_bytes);
    atomic_store_explicit(&r->tail, tail + 1, memory_order_release); /* pairs with the acquire in spsc_pop */
    return true;
}

bool spsc_pop(struct spsc *r, void *item) {
    uint32_t head = atomic_load_explicit(&r->head, memory_order_relaxed);
    uint32_t tail = atomic_load_explicit(&r->tail, memory_order_acquire);
    if (tail == head) return false;
    memcpy(item, r->slots + (size_t)(head & (r->cap - 1)) * r->item_bytes, r->item_bytes);
    atomic_store_explicit(&r->head, head + 1, memory_order_release); /* pairs with the acquire in spsc_push */
    return true;
}

uint32_t spsc_used(const struct spsc *r) {
    return atomic_load_explicit(&r->tail, memory_order_acquire) - atomic_load_explicit(&r->head, memory_order_acquire);
}
