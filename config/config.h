/* SPDX-License-Identifier: Apache-2.0
 *
 * Options of the daemon: one table row each (options.c), read from built-in defaults, then the file, then
 * MOED_* environment, then flags; later wins. The only code that reads the environment. Plain data afterwards:
 * written before threads start, read-only from then on. */
#ifndef MOED_CONFIG_CONFIG_H
#define MOED_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

struct config {
    /* model */
    char *model;                  /* path of the (first) GGUF file                                     */
    char *model_alias;            /* name shown to clients; "" = from the file                         */
    char *chat_template;          /* path of a template; "" = the model's own                          */
    char *tool_syntax;            /* auto, or a name of chat/reply.h                                   */
    char *embedding_pooling;      /* auto | mean | last                                                */
    /* network */
    char *host;
    uint32_t port;                /* 0 = any free port, printed at start                               */
    char *unix_socket;            /* path; "" = none                                                   */
    char *unix_mode;              /* octal permissions of it                                           */
    char *unix_owner;             /* USER, USER:GROUP or :GROUP; "" = the process's                    */
    char *tls_cert, *tls_key;     /* PEM files; "" = no TLS, and: in tls_cert                          */
    uint32_t max_connections;
    uint64_t max_body_bytes;
    uint32_t max_header_bytes;
    uint32_t header_timeout_ms, body_timeout_ms, keepalive_timeout_ms, write_timeout_ms;
    uint64_t max_output_bytes;    /* unsent bytes of one connection before its request is cancelled    */
    char *api_key_file;           /* "" = no key is needed                                             */
    char *allowed_hosts;          /* names in Host, by comma; "" = of this machine when bound to loopback, else any */
    char *allowed_origins;        /* other sites whose scripts may call, by comma; "" = none, "*" = any */
    uint32_t sse_ping_ms;         /* SSE comment when a stream is silent this long; 0 = never          */
    /* scheduling */
    uint32_t max_running;         /* sequences in one batch                                            */
    uint32_t max_queued;          /* requests waiting before 429                                       */
    uint32_t max_wait_ms;         /* expected wait before 429                                          */
    uint32_t request_timeout_ms;  /* default and most of `timeout`; 0 = no bound                       */
    uint32_t batch_tokens;        /* tokens of one step (prefill chunk bound)                          */
    uint32_t max_n;               /* choices of one request                                            */
    uint32_t max_prompts;         /* prompts of one request                                            */
    bool prefix_cache;
    /* memory */
    uint32_t context;             /* tokens of one sequence; 0 = from the model, at most what fits     */
    uint32_t kv_tokens;           /* tokens in the whole KV cache; 0 = max_running * context, at most what fits */
    char *kv_type;                /* f16 | bf16 | f32 | q8                                             */
    uint64_t ram_bytes;           /* ceiling for everything; 0 = what is free now minus a margin       */
    char *experts;                /* auto | resident | stream                                          */
    uint64_t expert_bytes;        /* memory for streamed experts; 0 = what ram leaves                  */
    char *expert_policy;          /* auto | lru | lfu | lfru                                           */
    bool expert_prefetch;
    char *expert_io;              /* auto | uring | threads                                            */
    char *lossy_experts;          /* off | fewer | cached | both: what requests may ask for             */
    uint32_t lossy_share;         /* percent, of fewer                                                 */
    uint32_t lossy_margin;        /* percent, of cached                                                */
    char *trace;                  /* file the routing is recorded in; "" = none                        */
    char *expert_heat;            /* file of learned heat; "" = none                                   */
    uint32_t expert_heat_every;   /* seconds between saves of it; 0 = at the end only                  */
    bool repack;                  /* weights in the kernels' layout in memory of their own, not in the mapped file */
    /* cpu */
    uint32_t threads;             /* 0 = physical cores this process may use                           */
    char *cpus;                   /* "0-3,8" pins workers; "" = no pinning                             */
    char *cpu_level;              /* auto | scalar | avx2 | avxvnni | avx512 | avx512bf16 | neon       */
    char *activations;            /* q8 | f32: inputs of quantised weights                             */
    /* process */
    uint32_t drain_timeout_ms;    /* SIGTERM: running requests get this long                           */
    char *log_level;              /* error | warn | info | debug                                       */
    char *log_format;             /* text | json                                                       */
    char *admin;                  /* auto | on | off: routes that change the running server            */
    bool warmup;

    uint8_t origin[64];           /* config's own: who set option i last, for config_dump              */
};

/* What main must do after parsing. */
enum config_action { CONFIG_RUN, CONFIG_CHECK, CONFIG_DUMP, CONFIG_REFERENCE, CONFIG_HELP, CONFIG_VERSION };

/* argv without the program and sub-command names. "-c FILE" / "--config FILE" chooses the file (default: none).
 * environ is borrowed. Errors name file:line, variable or flag, the value, and what was expected. */
int config_load(struct config *c, int argc, char **argv, char **environ_, enum config_action *action, struct err *e);
void config_clear(struct config *c);
bool config_parse_bytes(const char *s, uint64_t *out); /* "12g", as options of bytes are written */

void config_dump(const struct config *c, FILE *out);  /* every option with its value and where it came from, in file syntax */
void config_reference(FILE *out);                     /* the text of moed.conf: every option, documented, default commented out */
void config_help(FILE *out);                          /* flags with one-line docs and defaults */

#endif
