/* SPDX-License-Identifier: Apache-2.0
 *
 * Bounded single-producer single-consumer ring of fixed-size values. One thread pushes, one thread pops.
 * tail: written by the producer (release), read by the consumer (acquire); head the other way round. */
#ifndef MOED_BASE_SPSC_H
#define MOED_BASE_SPSC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct spsc {
    unsigned char *slots;              /* [cap][item_bytes], owned */
    size_t item_bytes;
    uint32_t cap;                      /* power of two */
    _Alignas(64) _Atomic uint32_t tail; /* producer */
    _Alignas(64) _Atomic uint32_t head; /* consumer */
};

int spsc_init(struct spsc *r, uint32_t min_cap, size_t item_bytes); /* rounds cap up to a power of two; 0 or ST_NOMEM */
void spsc_clear(struct spsc *r);
bool spsc_push(struct spsc *r, const void *item);  /* producer; false when full  */
bool spsc_pop(struct spsc *r, void *item);         /* consumer; false when empty */
uint32_t spsc_used(const struct spsc *r);          /* either side; a snapshot    */

#endif
