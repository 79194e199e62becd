/* SPDX-License-Identifier: Apache-2.0
 *
 * Who may ask for what: API keys with limits of their own, the names under which the server may be addressed (a page
 * that rebinds its DNS name to this machine sends a foreign Host), and the sites whose scripts may call it (Origin). No
 * sockets and no libuv: tests call it directly. Thread: L. */
#ifndef MOED_SERVER_ACCESS_H
#define MOED_SERVER_ACCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "config/config.h"

struct access;

enum { ACCESS_MAX_KEYS = 4096 };

struct access_text { const char *s; size_t n; }; /* view; s NULL = the header is absent */

/* Over what a request came: from anywhere; from this machine only, where its browsers can be lured too; or from this machine
 * and no browser. */
enum access_from { ACCESS_NETWORK, ACCESS_LOOPBACK, ACCESS_UNIX };

struct access_request {
    struct access_text host, origin;
    struct access_text authorization;   /* "Bearer KEY"                                         */
    struct access_text api_key;         /* x-api-key, as Anthropic's clients send it            */
    bool open;                          /* a route that needs no key: /health, /, preflights    */
    bool work;                          /* counts against the limits of its key                 */
    enum access_from from;
    uint64_t now_ms;
};

struct access_verdict {
    int status;                         /* 0, or the HTTP status of the refusal: 401, 403, 429  */
    const char *code, *message;         /* of the refusal; static                               */
    uint32_t retry_after_s;
    int key;                            /* for access_done when >= 0                            */
    uint32_t tenant, weight;            /* on whose account work runs, below ACCESS_MAX_KEYS: the key's; 0 without keys */
    int8_t best_priority;               /* the lowest its requests may ask for; 0 without keys          */
    bool cross_origin;                  /* allowed, and from another site: the answer must say so */
};

/* Reads option api-key-file: a line per key, "KEY [name=TEXT] [concurrent=N] [per-minute=N] [weight=N]
 * [priority=N]", '#' starts a comment. Errors name file and line, never the key. *out is owned, free with access_close. */
int access_open(struct access **out, const struct config *cfg, struct err *e);
int access_reload(struct access *a, struct err *e); /* the file anew; an error changes nothing. A key that is gone lets nobody in; its requests go on */
void access_close(struct access *a);
uint32_t access_n_keys(const struct access *a);

void access_check(struct access *a, const struct access_request *r, struct access_verdict *v);
void access_done(struct access *a, int key, uint64_t took_ms); /* a request that was let in with this key has its answer */

bool access_is_loopback(const char *host);   /* an address only this machine can reach */

#endif
