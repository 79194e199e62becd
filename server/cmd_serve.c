/* SPDX-License-Identifier: Apache-2.0
 *
 * `moed serve`: puts the modules together, runs the server, takes everything down in reverse order. Every error is one
 * line on stderr and an exit code. The port is tried before the model is loaded, because loading takes
 * minutes and a taken port should not. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/pool.h"
#include "base/topology.h"
#include "base/version.h"
#include "config/config.h"
#include "engine/engine.h"
#include "kernels/kernels.h"
#include "model/gguf.h"
#include "model/model.h"
#include "model/tokenizer.h"
#include "offload/trace.h"
#include "server/cmd_common.h"
#include "server/cmd_supervisor.h"
#include "server/cmd_template.h"
#include "server/commands.h"
#include "server/server.h"

enum { POOL_SPIN_US = 100 };

#define MIB (1024.0 * 1024.0)

struct app {
    struct config config;
    struct model *model;
    struct tokenizer *tokenizer;
    struct chat_model *chat;
    struct pool *pool;
    struct engine *engine;
    struct trace_writer *trace; /* NULL without option trace */
    struct server *server;
    struct supervisor supervisor;
    char name[128];        /* model id shown to clients */
    const char *file_name; /* base name of config.model */
    uint64_t ram_bytes;    /* the ceiling in force */
    struct engine_memory memory;
};

/* ---- options -> module options ---- */

static int open_pool(struct app *a, struct err *e) {
    int cpus[TOPOLOGY_MAX_CPUS];
    struct topology t;
    int n = topology_parse_list(a->config.cpus, cpus, TOPOLOGY_MAX_CPUS, e);
    if (n < 0) return n;
    struct pool_opts o = {.n_threads = (int)a->config.threads, .cpus = n > 0 ? cpus : NULL, .n_cpus = n, .spin_us = POOL_SPIN_US};
    if (o.n_threads == 0) o.n_threads = n > 0 ? n : pool_default_threads();
    topology_read(&t, TOPOLOGY_ROOT, NULL);
    log_info("cpu", "%d threads%s; %d CPUs on %d cores allowed", o.n_threads, n > 0 ? ", pinned" : "", t.n_allowed, t.n_cores);
    if (t.n_nodes > 1)
        log_warn("cpu", "%d NUMA nodes: spread the model over them (numactl --interleave=all moed ...) or stay on one (option cpus "
                 "and numactl --membind); else one node's memory bounds the speed", t.n_nodes);
    return pool_open(&a->pool, &o, e);
}

/* On the engine's thread: it computes too, as worker 0 of the pool. */
static void enter_engine(void *ctx) {
    struct app *a = ctx;
    if (pool_pin_caller(a->pool) != ST_OK) log_warn("cpu", "the kernel refused to pin the engine's thread to the first of cpus %s", a->config.cpus);
}

static const struct kern_ops *pick_kernels(const struct config *c, struct err *e) {
    enum kern_level level = kern_cpu_best();
    kern_level_find(c->cpu_level, &level); /* not for auto; the config has refused everything else */
    const struct kern_ops *ops = kern_cpu_ops(level);
    if (ops == NULL)
        err_set(e, ST_UNSUPPORTED, "cpu-level: this CPU cannot run %s; auto would take %s", c->cpu_level,
                kern_cpu_ops(kern_cpu_best())->name);
    return ops;
}

/* The id shown to clients: the alias, or the file name without ".gguf"; printable ASCII without quotes, so that it is safe
 * in JSON, headers, logs and labels. */
static void name_model(struct app *a) {
    const char *slash = strrchr(a->config.model, '/');
    a->file_name = slash != NULL ? slash + 1 : a->config.model;
    const char *from = a->config.model_alias[0] != '\0' ? a->config.model_alias : a->file_name;
    size_t n = strlen(from);
    if (from == a->file_name && n > 5 && strcmp(from + n - 5, ".gguf") == 0) n -= 5;
    if (n >= sizeof a->name) n = sizeof a->name - 1;
    for (size_t i = 0; i < n; i++) a->name[i] = from[i] > ' ' && from[i] < 127 && strchr("\"\\<>", from[i]) == NULL ? from[i] : '_';
    a->name[n] = '\0';
}

/* ---- memory ---- */

/* Why experts are where they are. */
static void log_experts(const struct app *a, const struct engine_memory *m) {
    const struct config *c = &a->config;
    const char *why = strcmp(c->experts, "stream") == 0 ? "option experts" : c->expert_bytes != 0 ? "option expert-ram" :
                      "all of them do not fit beside the rest";
    if (m->experts == 0) {
        log_info("experts", "resident (%s)", strcmp(c->experts, "resident") == 0 ? "option experts" : "they fit");
        return;
    }
    log_info("experts", "streamed from the file (%s): %.1f of %.1f MiB stay in memory (%.0f %%; %s), policy %s, prefetch %s", why,
             (double)m->experts / MIB, (double)m->experts_all / MIB, 100.0 * (double)m->experts / (double)m->experts_all,
             c->expert_bytes != 0 ? "option expert-ram" : "what ram leaves; options ram and expert-ram set it", c->expert_policy,
             c->expert_prefetch ? "on" : "off");
}

static int plan_memory(struct app *a, const struct engine_opts *o, struct err *e) {
    struct engine_memory m;
    int rc = engine_plan_memory(o, &m, e);
    if (rc != ST_OK) return rc;
    a->memory = m;
    char streamed[96] = "";
    if (m.experts != 0)
        snprintf(streamed, sizeof streamed, " + streamed experts %.1f + program %.1f", (double)m.experts / MIB, (double)m.slack / MIB);
    log_info("memory", "weights %.1f + KV %.1f + scratch %.1f%s = %.1f MiB, ceiling %.1f MiB (%s); KV for %u tokens in %s, context %u (%s)",
             (double)m.weights / MIB, (double)m.kv / MIB, (double)m.scratch / MIB, streamed, (double)m.total / MIB, (double)o->ram_bytes / MIB,
             a->config.ram_bytes != 0 ? "option ram" : "free now less a margin; option ram sets it", m.kv_tokens, a->config.kv_type,
             m.n_ctx, a->config.context != 0 ? "option context" : "the model's, or what fits");
    log_experts(a, &m);
    return ST_OK;
}

/* Weights into memory, then one token through every layer and the head: a broken model fails here, not at a client. */
static int warm_up(struct app *a, struct err *e) {
    const struct engine_ops *ops = engine_ops();
    const struct kern_sample greedy = {.top_p = 1, .repetition_penalty = 1, .n_top_logprobs = -1};
    int32_t token = tokenizer_bos(a->tokenizer) >= 0 ? tokenizer_bos(a->tokenizer) : 0;
    struct batch_item item = {.n_tokens = 1, .tokens = &token, .sample = true, .params = &greedy, .history = &token,
                              .n_history = 1, .n_prompt = 1, .next_token = -1};
    struct kern_sampled *drawn = mem_zalloc(1, sizeof *drawn);
    struct step_out out = {.sampled = drawn};
    uint64_t t0 = clock_mono_ns();
    int rc = drawn == NULL ? ST_NOMEM : ops->kv_reserve(a->engine, 0, 1);
    if (rc == ST_OK && !a->config.repack && a->memory.experts == 0) gguf_prefault(model_gguf(a->model)); /* repacking has read the file already, a store does so itself */
    if (rc == ST_OK) rc = ops->step(a->engine, &(struct batch){.items = &item, .n_items = 1, .n_tokens = 1}, &out);
    ops->kv_free(a->engine, 0);
    mem_free(drawn);
    if (rc != ST_OK) return err_set(e, rc, "the first engine step failed: %s", status_name(rc));
    log_info("engine", "warm after %.0f ms", (double)(clock_mono_ns() - t0) * 1e-6);
    return ST_OK;
}

/* The option table lets nothing else through. */
static enum engine_kv_type kv_type(const char *name) {
    return strcmp(name, "f32") == 0 ? ENGINE_KV_F32 : strcmp(name, "bf16") == 0 ? ENGINE_KV_BF16 :
           strcmp(name, "q8") == 0 ? ENGINE_KV_Q8 : ENGINE_KV_F16;
}

static enum engine_experts expert_mode(const char *name) {
    return strcmp(name, "resident") == 0 ? ENGINE_EXPERTS_RESIDENT : strcmp(name, "stream") == 0 ? ENGINE_EXPERTS_STREAM : ENGINE_EXPERTS_AUTO;
}

static enum offload_io expert_io(const char *name) {
    return strcmp(name, "uring") == 0 ? OFFLOAD_IO_URING : strcmp(name, "threads") == 0 ? OFFLOAD_IO_THREADS : OFFLOAD_IO_AUTO;
}

static int open_trace(struct app *a, struct err *e) {
    struct trace_info info;
    if (a->config.trace[0] == '\0') return ST_OK;
    trace_info_of(a->model, &info);
    if (info.expert_bytes == 0) return err_set(e, ST_INVALID, "trace: a dense model has no routing to record");
    return trace_writer_open(&a->trace, a->config.trace, &info, e);
}

static void close_trace(struct app *a) {
    struct err e = {0};
    uint64_t n_dropped = 0;
    if (trace_writer_close(a->trace, &n_dropped, &e) != ST_OK) log_error("trace", "%s", e.text);
    else if (n_dropped > 0) log_warn("trace", "%llu steps are missing: the disk could not keep up", (unsigned long long)n_dropped);
}

static int open_engine(struct app *a, struct err *e) {
    const struct config *c = &a->config;
    const struct kern_ops *kern = pick_kernels(c, e);
    if (kern == NULL) return ST_UNSUPPORTED;
    struct engine_opts o = {
        .model = a->model, .pool = a->pool, .kern = kern, .n_ctx = c->context, .n_running = c->max_running,
        .n_seqs = c->prefix_cache ? 2 * c->max_running : c->max_running, .kv_tokens = c->kv_tokens,
        .max_batch_tokens = c->batch_tokens > c->max_running ? c->batch_tokens : c->max_running, .ram_bytes = a->ram_bytes,
        .exact = strcmp(c->activations, "f32") == 0,
        .repack = c->repack,
        .kv_type = kv_type(c->kv_type),
        .experts = expert_mode(c->experts), .expert_bytes = c->expert_bytes, .io = expert_io(c->expert_io),
        .lossy_share = (float)c->lossy_share / 100, .lossy_margin = (float)c->lossy_margin / 100,
        .prefetch = c->expert_prefetch, .heat_path = c->expert_heat[0] != '\0' ? c->expert_heat : NULL,
        .heat_every_ms = c->expert_heat_every * 1000,
    };
    policy_from_name(c->expert_policy, &o.policy); /* the option table lets nothing else through */
    int rc = plan_memory(a, &o, e);
    if (rc == ST_OK) rc = open_trace(a, e);
    o.trace = a->trace;
    if (rc == ST_OK) rc = engine_open(&a->engine, &o, e);
    if (rc != ST_OK) return rc;
    log_info("engine", "%d threads, %s kernels", pool_n_threads(a->pool), kern->name);
    return c->warmup ? warm_up(a, e) : ST_OK;
}

/* What embeddings are made of. */
static int pick_pooling(const struct app *a, enum engine_pooling *out, struct err *e) {
    const char *name = a->config.embedding_pooling;
    enum model_pooling own = model_hparams(a->model)->pooling;
    *out = strcmp(name, "last") == 0 ? ENGINE_POOLING_LAST : ENGINE_POOLING_MEAN;
    if (strcmp(name, "auto") != 0) return ST_OK;
    if (own == MODEL_POOLING_CLS || own == MODEL_POOLING_RANK)
        return err_set(e, ST_UNSUPPORTED, "embedding-pooling: the model file asks for pooling type %d (%s), expected none, mean or last; set the option to mean or last",
                       (int)own, own == MODEL_POOLING_CLS ? "first token" : "ranking");
    if (own == MODEL_POOLING_LAST) *out = ENGINE_POOLING_LAST;
    return ST_OK;
}

/* ---- run ---- */

static int open_all(struct app *a, struct err *e) {
    uint64_t t0 = clock_mono_ns();
    a->ram_bytes = cmd_ram_ceiling(a->config.ram_bytes); /* before anything is loaded */
    enum engine_pooling pooling = ENGINE_POOLING_MEAN;
    int rc = model_open(&a->model, a->config.model, e);
    if (rc == ST_OK) rc = pick_pooling(a, &pooling, e);
    if (rc == ST_OK) rc = tokenizer_open(&a->tokenizer, model_gguf(a->model), e);
    if (rc == ST_OK) rc = cmd_open_chat(&a->chat, &a->config, model_gguf(a->model), a->tokenizer, e);
    if (rc == ST_OK) rc = open_pool(a, e);
    if (rc == ST_OK) rc = open_engine(a, e);
    if (rc != ST_OK) return rc;
    name_model(a);
    log_info("model", "%s: %s, loaded in %.1f s", a->name, model_arch_name(a->model), (double)(clock_mono_ns() - t0) * 1e-9);
    struct server_opts o = {.config = &a->config, .tokenizer = a->tokenizer, .chat = a->chat, .model_name = a->name, .ops = engine_ops(),
                            .engine = a->engine, .engine_enter = enter_engine, .engine_enter_ctx = a, .pooling = pooling, .arch = model_arch_name(a->model), .file_name = a->file_name,
                            .first_fd = SUPERVISOR_FIRST_FD, .n_fds = a->supervisor.n_sockets, .announce = supervisor_tell, .announce_ctx = &a->supervisor};
    return server_open(&a->server, &o, e);
}

static void close_all(struct app *a) {
    server_close(a->server);
    engine_close(a->engine);
    close_trace(a);
    pool_close(a->pool);
    chat_model_close(a->chat);
    tokenizer_close(a->tokenizer);
    model_close(a->model);
    config_clear(&a->config);
}

static int fail(const struct err *e, int exit_code) {
    fprintf(stderr, "moed: %s\n", e->text);
    return exit_code;
}

static int exit_code_of(int status) {
    switch (status) {
    case ST_OK: return EXIT_CODE_OK;
    case ST_CANCELLED: log_warn("server", "stopped before every request was finished"); return EXIT_CODE_FAILED;
    default: log_error("server", "stopped: the engine failed"); return EXIT_CODE_FAILED;
    }
}

/* Until the event loop runs: nobody has been promised anything yet. Needed as process 1 of a container, where the
 * kernel ignores signals without a handler. */
static void on_early_signal(int signum) {
    (void)signum;
    _exit(EXIT_CODE_OK);
}

/* What can be wrong with the options beyond their syntax; asked before anything takes time. */
static int check_options(const struct config *c, struct err *e) {
    int cpus[TOPOLOGY_MAX_CPUS];
    int rc = topology_parse_list(c->cpus, cpus, TOPOLOGY_MAX_CPUS, e);
    if (rc < 0) return rc;
    return pick_kernels(c, e) != NULL ? ST_OK : ST_UNSUPPORTED;
}

static int serve(struct app *a) {
    struct err e = {0};
    int rc = check_options(&a->config, &e);
    if (rc != ST_OK) return fail(&e, EXIT_CODE_CONFIG);
    if ((rc = server_check_options(&a->config, &e)) != ST_OK) return fail(&e, EXIT_CODE_CONFIG);
    if (a->supervisor.n_sockets == 0) rc = server_check_port(&a->config, &e);
    if (rc != ST_OK) return fail(&e, rc == ST_INVALID ? EXIT_CODE_CONFIG : EXIT_CODE_TEMP);
    signal(SIGTERM, on_early_signal);
    signal(SIGINT, on_early_signal);
    signal(SIGHUP, SIG_IGN); /* nothing has been read that could be read again */
    rc = open_all(a, &e);
    if (rc != ST_OK) return fail(&e, a->engine != NULL && rc == ST_IO ? EXIT_CODE_TEMP : EXIT_CODE_FAILED); /* TEMP: the port went meanwhile */
    const char *url;
    for (uint32_t i = 0; (url = server_url(a->server, i)) != NULL; i++) printf("listening on %s\n", url);
    fflush(stdout);
    supervisor_tell(&a->supervisor, SERVER_READY);
    return exit_code_of(server_run(a->server));
}

static void setup_log(const struct config *c) {
    static const char *const levels[] = {"error", "warn", "info", "debug"};
    enum log_level level = LOG_INFO;
    for (int i = 0; i < 4; i++)
        if (strcmp(c->log_level, levels[i]) == 0) level = (enum log_level)i;
    log_setup(level, strcmp(c->log_format, "json") == 0 ? LOG_JSON : LOG_TEXT);
}

int cmd_serve(int argc, char **argv, char **environ_) {
    struct app a = {0};
    struct err e = {0};
    enum config_action action;
    int code = EXIT_CODE_OK;
    supervisor_read(&a.supervisor, environ_);
    if (config_load(&a.config, argc, argv, environ_, &action, &e) != ST_OK) return fail(&e, EXIT_CODE_CONFIG);
    switch (action) {
    case CONFIG_RUN:
        setup_log(&a.config);
        code = serve(&a);
        break;
    case CONFIG_CHECK: puts("configuration is valid"); break;
    case CONFIG_DUMP: config_dump(&a.config, stdout); break;
    case CONFIG_REFERENCE: config_reference(stdout); break;
    case CONFIG_HELP: config_help(stdout); break;
    case CONFIG_VERSION: puts("moed " MOED_VERSION); break;
    }
    close_all(&a);
    return code;
}
