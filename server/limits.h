/* SPDX-License-Identifier: Apache-2.0
 *
 * Every fixed bound of the HTTP front end in one place. What an operator may want to change is an option of
 * config/ instead (body and header size, connections, timeouts). Hostile input meets these numbers, so each
 * says what a larger value would cost. */
#ifndef MOED_SERVER_LIMITS_H
#define MOED_SERVER_LIMITS_H

enum {
    /* request head */
    LIMIT_METHOD_BYTES = 32,          /* longest registered method is 17                                       */
    LIMIT_URI_BYTES = 8 * 1024,       /* 414 above                                                             */
    LIMIT_HEADERS = 100,              /* 431 above; trailers count too. 16 bytes each in every connection      */
    LIMIT_LEADING_CRLF = 2,           /* empty lines some old clients send after a POST body                   */
    LIMIT_REQUEST_ID_BYTES = 128,

    /* chunked bodies */
    LIMIT_CHUNK_DIGITS = 16,          /* hex digits of a chunk size, leading zeros included                    */
    LIMIT_CHUNK_EXT_BYTES = 4 * 1024, /* all extensions of one body                                            */
    LIMIT_CHUNK_SLACK = 1024,         /* chunks a body may have beyond one per 16 bytes: a flood of one-byte
                                         chunks costs a parser round per byte                                  */

    /* bodies in time */
    LIMIT_BODY_TOTAL_MS = 300 * 1000, /* the whole body                                                        */
    LIMIT_BODY_MIN_RATE = 1024,       /* bytes per second on average, after body_timeout_ms of grace           */

    /* connection */
    LIMIT_READ_BYTES = 64 * 1024,     /* one read; the buffer is shared by all connections                     */
    LIMIT_AHEAD_BYTES = 64 * 1024,    /* pipelined bytes kept while a response is in flight, then reading stops */
    LIMIT_OUT_SYNC_BYTES = 256 * 1024,/* unsent bytes at which the next pipelined request has to wait          */
    LIMIT_LINGER_MS = 2000,           /* how long a refused client may go on sending ...                       */
    LIMIT_LINGER_BYTES = 64 * 1024,   /* ... and how much, before the socket is closed under it                */
    LIMIT_TLS_HANDSHAKE_MS = 10 * 1000,  /* or option header-timeout, if that is shorter                       */
    LIMIT_TLS_RECORD_BYTES = 16 * 1024,   /* plain bytes of one record, by the standard                        */
    LIMIT_TLS_CONTROL_BYTES = 256 * 1024, /* handshake, tickets and key updates a connection may cause         */
    LIMIT_FD_RESERVE = 16,            /* descriptors kept free for logs, /proc and libraries                   */
    LIMIT_BACKLOG = 511,

    /* process */
    LIMIT_BODY_SHARE = 16,            /* all bodies being read together: this many times max_body_bytes        */
    LIMIT_TICK_MS = 100,              /* resolution of every timeout                                           */
    LIMIT_TICK_SLICE = 64,            /* connections looked at before sockets are again: each may cost a write */
    LIMIT_CUT_MS = 2000,              /* after a cut drain, cancelled requests get this long to say so         */
    LIMIT_RESPONSE_BYTES = 64 * 1024 * 1024, /* a response built in memory                                     */
    LIMIT_METRICS_BYTES = 1024 * 1024,
    LIMIT_ARENA_BASE_BYTES = 64 * 1024 * 1024, /* per request, plus ...                                        */
    LIMIT_ARENA_PER_BODY = 8,         /* ... this many times max_body_bytes: ids are 4 bytes per input byte    */
};

#endif
