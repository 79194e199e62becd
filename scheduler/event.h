/* SPDX-License-Identifier: Apache-2.0
 *
 * What E tells L about a request: 32-byte values in an SPSC ring. */
#ifndef MOED_SCHEDULER_EVENT_H
#define MOED_SCHEDULER_EVENT_H

#include <stdint.h>

struct request;

enum event_type {
    EVENT_STARTED, /* prompt is in KV; `cached` prompt tokens came from prefix reuse. Before the first token.     */
    EVENT_TOKEN,   /* `token` is output number `index`; its logprobs, when asked for, are in request->logprobs[index] */
    EVENT_DONE,    /* terminal, exactly one per submitted request; E never touches the request again               */
};

enum finish_reason {
    FINISH_NONE,
    FINISH_STOP,     /* end-of-generation token                                  */
    FINISH_LENGTH,
    FINISH_CANCELLED,
    FINISH_ERROR,
    FINISH_DEADLINE, /* its time was over, while it ran or before that           */
};

struct event {
    struct request *request;
    int32_t token;
    uint32_t index;
    uint32_t cached;
    uint8_t type;    /* enum event_type    */
    uint8_t finish;  /* enum finish_reason */
    int16_t status;  /* enum status when finish is FINISH_ERROR */
    uint32_t layer, expert; /* status ST_IO: what cannot be read */
};

_Static_assert(sizeof(struct event) == 32, "events are 32-byte values");

#endif
