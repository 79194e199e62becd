/* SPDX-License-Identifier: Apache-2.0
 *
 * Names and HTTP meanings of the status codes. */
#include "base/status.h"

const char *status_name(int status) {
    switch (status) {
    case ST_OK: return "ok";
    case ST_INVALID: return "invalid";
    case ST_NOMEM: return "no memory";
    case ST_IO: return "input/output error";
    case ST_NOT_FOUND: return "not found";
    case ST_UNSUPPORTED: return "unsupported";
    case ST_LIMIT: return "limit reached";
    case ST_QUEUE_FULL: return "queue full";
    case ST_KV_FULL: return "KV cache full";
    case ST_CANCELLED: return "cancelled";
    case ST_SHUTDOWN: return "shutting down";
    case ST_INTERNAL: return "internal error";
    case ST_DEVICE: return "device error";
    default: return "unknown";
    }
}

int status_http(int status) {
    switch (status) {
    case ST_OK: return 200;
    case ST_INVALID: return 400;
    case ST_NOT_FOUND: return 404;
    case ST_UNSUPPORTED: return 501;
    case ST_LIMIT: return 413;
    case ST_QUEUE_FULL: return 429;
    case ST_KV_FULL:
    case ST_NOMEM:
    case ST_SHUTDOWN: return 503;
    case ST_CANCELLED: return 499;
    default: return 500;
    }
}
