/* SPDX-License-Identifier: Apache-2.0
 *
 * HTTP front end on one event loop (thread L). For main.c only: open, run until shutdown, close. */
#ifndef MOED_SERVER_SERVER_H
#define MOED_SERVER_SERVER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "config/config.h"
#include "engine/engine.h"

struct tokenizer;
struct chat_model;
struct server; /* opaque */

enum server_phase { SERVER_READY, SERVER_RELOADING, SERVER_STOPPING };

struct server_opts {
    const struct config *config;       /* borrowed until server_close                                     */
    const struct tokenizer *tokenizer; /* borrowed until server_close                                     */
    const struct chat_model *chat;     /* borrowed until server_close; NULL = no chat endpoint            */
    const char *model_name;            /* id shown to clients                                             */
    const struct engine_ops *ops;      /* the server starts and stops the scheduler over this engine      */
    void *engine;
    void (*engine_enter)(void *ctx);   /* called once on the engine's thread, before its first step; NULL = nothing */
    void *engine_enter_ctx;
    int first_fd;                      /* of the listening sockets that a supervisor has opened ...       */
    uint32_t n_fds;                    /* ... which take the place of options host, port and unix-socket; taken over; 0 = none */
    void (*announce)(void *ctx, enum server_phase phase); /* for the supervisor: around a reload, before a drain; NULL = nobody listens */
    void *announce_ctx;
    enum engine_pooling pooling;       /* of embeddings                                                   */
    const char *arch, *file_name;      /* for model_info in /metrics                                      */
};

/* Can config.host:port and config.unix_socket be had? For asking before a model is loaded for minutes; ST_IO names address and option. */
int server_check_port(const struct config *cfg, struct err *e);
int server_check_options(const struct config *cfg, struct err *e); /* are the files of API keys, certificate and key good? */
int server_open(struct server **out, const struct server_opts *o, struct err *e); /* binds; port taken = ST_IO naming address and option */
const char *server_url(const struct server *s, uint32_t i); /* the i-th address it listens on, ports as they are ("http://127.0.0.1:8080", "unix:/run/moed"); NULL behind the last */
int server_run(struct server *s);              /* until SIGTERM/SIGINT drained or the engine failed: 0, or ST_INTERNAL when the engine failed, ST_CANCELLED when the drain was cut short */
void server_close(struct server *s);

#endif
