/* SPDX-License-Identifier: Apache-2.0
 *
 * One list of status codes for the whole program. Every function that can fail returns `int`:
 * 0 (ST_OK) or one of these negative codes. The server maps a code to an HTTP status in one place. */
#ifndef MOED_BASE_STATUS_H
#define MOED_BASE_STATUS_H

enum status {
    ST_OK = 0,
    ST_INVALID = -1,     /* the caller's input (request, option, file field) is wrong       */
    ST_NOMEM = -2,       /* an allocation or a planned budget does not fit                   */
    ST_IO = -3,          /* a read, write, open or socket call failed                        */
    ST_NOT_FOUND = -4,   /* a named thing (file, key, tensor, route) does not exist          */
    ST_UNSUPPORTED = -5, /* well-formed, but this build or version cannot do it              */
    ST_LIMIT = -6,       /* a configured limit was passed (size, depth, count)               */
    ST_QUEUE_FULL = -7,  /* admission queue is full: try again later                         */
    ST_KV_FULL = -8,     /* no KV page is free now: wait, evict or preempt                   */
    ST_CANCELLED = -9,   /* the client went away or asked to stop                            */
    ST_SHUTDOWN = -10,   /* the process is draining                                          */
    ST_INTERNAL = -11,   /* a broken invariant of ours                                       */
    ST_DEVICE = -12,     /* the GPU or its driver refused or failed                          */
};

const char *status_name(int status); /* "invalid", "no memory", ...; "unknown" for others; static string */
int status_http(int status);         /* 400, 404, 413, 429, 503, 500, ...; 200 for ST_OK                  */

#endif
