/* SPDX-License-Identifier: Apache-2.0
 *
 * `moed bench`: prefill at several lengths, decode at several widths; medians over repeats, a table and JSON.
 * The repeats are the outer loop, so that every test sees the machine's slow and fast moments alike. Tokens are
 * random with a fixed seed, in decode too: the token that is drawn greedily is paid for and thrown away, because a
 * model's own loop makes all sequences choose the same experts, which flatters a batch. Needs no tokenizer. */
#include "server/cmd_bench.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/pool.h"
#include "base/topology.h"
#include "base/version.h"
#include "engine/engine.h"
#include "kernels/kernels.h"
#include "model/expert_bank.h"
#include "model/gguf.h"
#include "model/model.h"
#include "server/cmd_common.h"

enum { MAX_LIST = 16, MAX_REPEAT = 64, MAX_TESTS = 2 * MAX_LIST };

struct bench_list { uint32_t v[MAX_LIST]; uint32_t n; };

struct bench_opts {
    const char *model, *json, *cpu_level, *kv_type, *repack, *cpus;
    struct bench_list prompt, batch;
    uint32_t threads, gen, context, repeat, batch_tokens, spin_us;
};

struct bench_result {
    bool decode;
    uint32_t n;                  /* prompt tokens, or sequences */
    double tps[MAX_REPEAT];
    double bytes_per_step;       /* weights read                */
};

struct bench {
    struct bench_opts o;
    struct model *model;
    struct pool *pool;
    struct engine *engine;
    struct engine_info info;
    const struct kern_ops *kern;
    uint64_t rng;
    int32_t *tokens;             /* [longest prompt or largest batch] */
    struct batch_item *items;    /* [largest batch] */
    struct kern_sampled *sampled;
    uint64_t dense_bytes;        /* read by every step                        */
    double expert_bytes;         /* of one expert, mean over the routed layers */
    struct bench_result results[MAX_TESTS];
    uint32_t n_results;
};

static const char USAGE[] =
    "usage: moed bench MODEL.gguf [options]\n"
    "  --threads N         CPU threads (default: physical cores)\n"
    "  --cpus LIST         pin them, e.g. 0-3,8\n"
    "  --spin-us N         how long idle threads spin before they sleep (default 100)\n"
    "  --prompt N,N..      prefill lengths (default 512)\n"
    "  --batch N,N..       sequences decoded together (default 1,8,32)\n"
    "  --gen N             decode steps of one measurement (default 64)\n"
    "  --context N         tokens each sequence has before decode is measured (default 64)\n"
    "  --batch-tokens N    tokens of one prefill step (default 512)\n"
    "  --repeat N          measurements per test, the median counts (default 3)\n"
    "  --cpu-level L       auto, scalar, avx2, avxvnni, avx512, avx512bf16 or neon\n"
    "  --kv-type T         f16, bf16, f32 or q8\n"
    "  --repack on|off     copy weights into the kernels' layout (default on)\n"
    "  --json FILE         also write the results as JSON ('-' = stdout instead of the table)\n"
    "moed bench --offload MODEL.gguf: with a part of the experts in memory; moed bench --offload --help\n";

static bool parse_list(const char *s, uint32_t max, struct bench_list *out) {
    char *end;
    for (out->n = 0; out->n < MAX_LIST; s = end + 1) {
        if (!cmd_parse_u32(s, 1, max, &out->v[out->n++], &end)) {
            return false;
        }
        if (*end != ',') {
            return *end == '\0';
        }
    }
    return false;
}

static bool parse_option(struct bench_opts *o, const char *name, const char *value) {
    if (!strcmp(name, "--threads")) return cmd_parse_number(value, 1, 1024, &o->threads);
    if (!strcmp(name, "--prompt")) return parse_list(value, 1 << 20, &o->prompt);
    if (!strcmp(name, "--batch")) return parse_list(value, 4096, &o->batch);
    if (!strcmp(name, "--gen")) return cmd_parse_number(value, 1, 1 << 20, &o->gen);
    if (!strcmp(name, "--context")) return cmd_parse_number(value, 1, 1 << 20, &o->context);
    if (!strcmp(name, "--batch-tokens")) return cmd_parse_number(value, 1, 1 << 16, &o->batch_tokens);
    if (!strcmp(name, "--spin-us")) return cmd_parse_number(value, 0, 1000000, &o->spin_us);
    if (!strcmp(name, "--repeat")) return cmd_parse_number(value, 1, MAX_REPEAT, &o->repeat);
    const struct { const char *name; const char **to; } strings[] = {
        { "--cpu-level", &o->cpu_level }, { "--kv-type", &o->kv_type }, { "--json", &o->json },
        { "--repack", &o->repack }, { "--cpus", &o->cpus },
    };
    for (size_t i = 0; i < sizeof strings / sizeof strings[0]; i++) {
        if (!strcmp(name, strings[i].name)) {
            *strings[i].to = value;
            return true;
        }
    }
    return false;
}

/* 0, or the exit code. */
static int parse_args(struct bench_opts *o, int argc, char **argv) {
    *o = (struct bench_opts){
        .cpu_level = "auto", .kv_type = "f16", .repack = "on", .prompt = { { 512 }, 1 }, .batch = { { 1, 8, 32 }, 3 },
        .gen = 64, .context = 64, .repeat = 3, .batch_tokens = 512, .spin_us = 100, .cpus = "",
    };
    for (int i = 0; i < argc; i++) {
        if (argv[i][0] != '-' && !o->model) {
            o->model = argv[i];
        } else if (i + 1 < argc && parse_option(o, argv[i], argv[i + 1])) {
            i++;
        } else {
            fprintf(stderr, "moed bench: bad option or value: %s%s%s\n%s", argv[i], i + 1 < argc ? " " : "",
                    i + 1 < argc ? argv[i + 1] : "", USAGE);
            return 2;
        }
    }
    if (!o->model) {
        fprintf(stderr, "%s", USAGE);
        return 2;
    }
    return 0;
}

static uint32_t list_max(const struct bench_list *l) {
    uint32_t max = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        max = l->v[i] > max ? l->v[i] : max;
    }
    return max;
}

/* Bytes a step reads whatever the routing says, and those of one expert. The embedding's rows are not worth counting. */
static void count_bytes(struct bench *b) {
    const struct gguf *g = model_gguf(b->model);
    const struct model_hparams *hp = model_hparams(b->model);
    const struct tensor *embd = model_token_embd(b->model);
    uint64_t routed = 0;
    uint32_t n_routed = 0;
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct tensor *t = gguf_tensor(g, i);
        b->dense_bytes += t != embd || model_output(b->model) == embd ? t->n_bytes : 0;
    }
    for (uint32_t i = 0; i < hp->n_layers; i++) {
        const struct model_layer *l = model_layer(b->model, i);
        if (l->router) {
            routed += l->gate_exps->n_bytes + l->up_exps->n_bytes + l->down_exps->n_bytes;
            n_routed++;
        }
    }
    b->dense_bytes -= expert_bank_is_packed(b->model) ? 0 : routed; /* its records are not among the tensors */
    b->expert_bytes = n_routed ? (double)routed / n_routed / hp->n_experts : 0;
}

static double n_weights(const struct tensor *t) {
    return t ? (double)t->ne[0] * (double)tensor_n_rows(t) : 0;
}

/* Two per multiply-add with a weight, for one token through all layers; the head and attention's products with the KV are
 * not counted, so a share of the machine's peak made from it is on the low side. */
static double ops_per_token(const struct bench *b) {
    const struct model_hparams *hp = model_hparams(b->model);
    double n = 0;
    for (uint32_t i = 0; i < hp->n_layers; i++) {
        const struct model_layer *l = model_layer(b->model, i);
        n += n_weights(l->wq) + n_weights(l->wk) + n_weights(l->wv) + n_weights(l->wo);
        if (l->router) {
            double experts = n_weights(l->gate_exps) + n_weights(l->up_exps) + n_weights(l->down_exps);
            n += n_weights(l->router) + experts * hp->n_experts_used / hp->n_experts;
        } else {
            n += n_weights(l->ffn_gate) + n_weights(l->ffn_up) + n_weights(l->ffn_down);
        }
    }
    return 2 * n;
}

static uint64_t kv_bytes_per_token(const struct bench *b) {
    const struct model_hparams *hp = model_hparams(b->model);
    uint64_t values = (uint64_t)hp->n_layers * hp->n_kv_heads * (hp->head_dim_k + hp->head_dim_v);
    return values * (!strcmp(b->o.kv_type, "f32") ? 4 : 2);
}

static int open_pool(struct bench *b, struct err *e) {
    int cpus[TOPOLOGY_MAX_CPUS], n = topology_parse_list(b->o.cpus, cpus, TOPOLOGY_MAX_CPUS, e);
    if (n < 0) {
        return n;
    }
    struct pool_opts po = {
        .n_threads = b->o.threads ? (int)b->o.threads : n ? n : pool_default_threads(), .cpus = n ? cpus : NULL, .n_cpus = n,
        .spin_us = b->o.spin_us,
    };
    int st = pool_open(&b->pool, &po, e);
    return !st && pool_pin_caller(b->pool) ? err_set(e, ST_INVALID, "--cpus: the kernel refuses CPU %d", cpus[0]) : st;
}

static int open_engine(struct bench *b, struct err *e) {
    const struct bench_opts *o = &b->o;
    uint32_t n_batch = list_max(&o->batch), n_prompt = list_max(&o->prompt), n_decode = o->context + o->gen;
    uint64_t kv_tokens = (uint64_t)n_batch * ((n_decode + 31) / 32 * 32);
    kv_tokens = kv_tokens < n_prompt ? n_prompt : kv_tokens;
    if (kv_tokens > INT32_MAX / 2) {
        return err_set(e, ST_INVALID, "--batch times (--context + --gen): expected at most %d tokens", INT32_MAX / 2);
    }
    struct engine_opts eo = {
        .n_ctx = n_prompt > n_decode ? n_prompt : n_decode,
        .n_seqs = n_batch,
        .n_running = n_batch,
        .kv_tokens = (uint32_t)kv_tokens,
        .max_batch_tokens = o->batch_tokens > n_batch ? o->batch_tokens : n_batch,
    };
    if (strcmp(o->repack, "on") && strcmp(o->repack, "off")) {
        return err_set(e, ST_INVALID, "--repack: expected on or off, found %s", o->repack);
    }
    eo.repack = !strcmp(o->repack, "on");
    int st = cmd_pick_level(o->cpu_level, &b->kern, e);
    st = st ? st : cmd_pick_kv_type(o->kv_type, &eo.kv_type, e);
    st = st ? st : model_open(&b->model, o->model, e);
    st = st ? st : open_pool(b, e);
    if (st) {
        return st;
    }
    eo.model = b->model;
    eo.pool = b->pool;
    eo.kern = b->kern;
    st = engine_open(&b->engine, &eo, e);
    b->tokens = mem_zalloc(eo.n_ctx > n_batch ? eo.n_ctx : n_batch, sizeof *b->tokens);
    b->items = mem_zalloc(n_batch, sizeof *b->items);
    b->sampled = mem_zalloc(n_batch, sizeof *b->sampled);
    if (!st && (!b->tokens || !b->items || !b->sampled)) {
        st = err_set(e, ST_NOMEM, "out of memory");
    }
    return st;
}

static void bench_close(struct bench *b) {
    engine_close(b->engine);
    pool_close(b->pool);
    model_close(b->model);
    mem_free(b->tokens);
    mem_free(b->items);
    mem_free(b->sampled);
}

static int32_t random_token(struct bench *b) {
    b->rng = b->rng * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int32_t)((b->rng >> 33) % b->info.n_vocab);
}

static const struct kern_sample GREEDY = { .top_p = 1, .repetition_penalty = 1, .n_top_logprobs = -1 };

/* Feeds n random tokens to seq in chunks, the last one sampled. */
static int prefill(struct bench *b, seq_id seq, uint32_t n) {
    int st = engine_ops()->kv_reserve(b->engine, seq, n);
    for (uint32_t i = 0; i < n; i++) {
        b->tokens[i] = random_token(b);
    }
    for (uint32_t pos = 0, chunk; !st && pos < n; pos += chunk) {
        chunk = n - pos < b->info.max_batch_tokens ? n - pos : b->info.max_batch_tokens;
        struct batch_item it = {
            .seq = seq, .pos = pos, .n_tokens = chunk, .tokens = b->tokens + pos, .sample = pos + chunk == n, .params = &GREEDY, .next_token = -1,
        };
        st = engine_ops()->step(b->engine, &(struct batch){ &it, 1, chunk }, &(struct step_out){ .sampled = b->sampled });
    }
    return st;
}

static int decode_step(struct bench *b, uint32_t n_seqs, uint32_t pos) {
    for (uint32_t s = 0; s < n_seqs; s++) {
        b->tokens[s] = random_token(b);
        b->items[s] = (struct batch_item){
            .seq = s, .pos = pos, .n_tokens = 1, .tokens = &b->tokens[s], .sample = true, .params = &GREEDY, .next_token = -1,
        };
    }
    return engine_ops()->step(b->engine, &(struct batch){ b->items, n_seqs, n_seqs }, &(struct step_out){ .sampled = b->sampled });
}

static int run_prefill(struct bench *b, struct bench_result *r, uint32_t repeat) {
    uint64_t start = clock_mono_ns();
    int st = prefill(b, 0, r->n);
    r->tps[repeat] = (double)r->n * 1e9 / (double)(clock_mono_ns() - start);
    engine_ops()->kv_free(b->engine, 0);
    return st;
}

static int run_decode(struct bench *b, struct bench_result *r, uint32_t repeat) {
    struct engine_stats before, after;
    int st = 0;
    for (seq_id s = 0; !st && s < r->n; s++) {
        st = prefill(b, s, b->o.context);
        st = st ? st : engine_ops()->kv_reserve(b->engine, s, b->o.context + b->o.gen);
    }
    engine_ops()->stats(b->engine, &before);
    uint64_t start = clock_mono_ns();
    for (uint32_t i = 0; !st && i < b->o.gen; i++) {
        st = decode_step(b, r->n, b->o.context + i);
    }
    r->tps[repeat] = (double)r->n * b->o.gen * 1e9 / (double)(clock_mono_ns() - start);
    engine_ops()->stats(b->engine, &after);
    r->bytes_per_step = (double)b->dense_bytes + b->expert_bytes * (double)(after.experts_read - before.experts_read) / b->o.gen;
    for (seq_id s = 0; s < r->n; s++) {
        engine_ops()->kv_free(b->engine, s);
    }
    return st;
}

static int run_all(struct bench *b, struct err *e) {
    for (uint32_t i = 0; i < b->o.prompt.n; i++) {
        b->results[b->n_results++] = (struct bench_result){ .n = b->o.prompt.v[i] };
    }
    for (uint32_t i = 0; i < b->o.batch.n; i++) {
        b->results[b->n_results++] = (struct bench_result){ .decode = true, .n = b->o.batch.v[i] };
    }
    b->rng = 1;
    if (!strcmp(b->o.repack, "off")) {
        gguf_prefault(model_gguf(b->model)); /* else the first steps pay for page faults of experts not seen before */
    }
    int st = prefill(b, 0, list_max(&b->o.prompt)); /* warm-up */
    engine_ops()->kv_free(b->engine, 0);
    for (uint32_t repeat = 0; !st && repeat < b->o.repeat; repeat++) {
        for (uint32_t i = 0; !st && i < b->n_results; i++) {
            struct bench_result *r = &b->results[i];
            st = r->decode ? run_decode(b, r, repeat) : run_prefill(b, r, repeat);
        }
    }
    return st ? err_set(e, st, "engine: %s", status_name(st)) : ST_OK;
}

static int compare_double(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const struct bench_result *r, uint32_t n) { /* of sorted tps */
    return n % 2 ? r->tps[n / 2] : (r->tps[n / 2 - 1] + r->tps[n / 2]) / 2;
}

static uint64_t peak_rss_bytes(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (uint64_t)u.ru_maxrss * 1024;
}

static double gb_per_s(const struct bench_result *r, uint32_t n_repeat) {
    return r->bytes_per_step * median(r, n_repeat) / r->n / 1e9;
}

static void print_table(const struct bench *b) {
    printf("%s, %s, %.2f GB, %d threads, %s, KV %s\n", b->o.model, model_arch_name(b->model),
           (double)gguf_total_bytes(model_gguf(b->model)) / 1e9, pool_n_threads(b->pool), b->kern->name, b->o.kv_type);
    printf("%-22s %12s %12s %12s %10s\n", "test", "tokens/s", "min", "max", "GB/s");
    for (uint32_t i = 0; i < b->n_results; i++) {
        const struct bench_result *r = &b->results[i];
        char name[32];
        snprintf(name, sizeof name, r->decode ? "decode, %u sequence%s" : "prefill, %u token%s", r->n, r->n == 1 ? "" : "s");
        printf("%-22s %12.2f %12.2f %12.2f", name, median(r, b->o.repeat), r->tps[0], r->tps[b->o.repeat - 1]);
        printf(r->decode ? " %10.2f\n" : "\n", gb_per_s(r, b->o.repeat));
    }
    printf("peak RSS %.2f GB (the mapped model included)\n", (double)peak_rss_bytes() / 1e9);
}

static void print_json(const struct bench *b, FILE *f) {
    fprintf(f, "{\"version\": \"%s\", \"model\": ", MOED_VERSION);
    cmd_json_string(f, b->o.model);
    fprintf(f, ", \"arch\": \"%s\", \"file_bytes\": %" PRIu64 ", \"threads\": %d, \"cpu_level\": \"%s\", \"kv_type\": \"%s\",",
            model_arch_name(b->model), gguf_total_bytes(model_gguf(b->model)), pool_n_threads(b->pool), b->kern->name, b->o.kv_type);
    fprintf(f, " \"context\": %u, \"gen\": %u, \"repeat\": %u, \"peak_rss_bytes\": %" PRIu64 ",\n \"results\": [", b->o.context,
            b->o.gen, b->o.repeat, peak_rss_bytes());
    for (uint32_t i = 0; i < b->n_results; i++) {
        const struct bench_result *r = &b->results[i];
        fprintf(f, "%s\n  {\"test\": \"%s\", \"%s\": %u, \"median_tps\": %.3f, \"min_tps\": %.3f, \"max_tps\": %.3f", i ? "," : "",
                r->decode ? "decode" : "prefill", r->decode ? "sequences" : "tokens", r->n, median(r, b->o.repeat), r->tps[0],
                r->tps[b->o.repeat - 1]);
        if (r->decode) {
            fprintf(f, ", \"weight_bytes_per_step\": %.0f, \"gb_per_s\": %.3f", r->bytes_per_step, gb_per_s(r, b->o.repeat));
        }
        fprintf(f, "}");
    }
    fprintf(f, "\n ],\n \"ops_per_token\": %.0f, \"kv_bytes_per_token\": %" PRIu64 "}\n", ops_per_token(b), kv_bytes_per_token(b));
}

static int report(struct bench *b, struct err *e) {
    bool to_stdout = b->o.json && !strcmp(b->o.json, "-");
    for (uint32_t i = 0; i < b->n_results; i++) {
        qsort(b->results[i].tps, b->o.repeat, sizeof b->results[i].tps[0], compare_double);
    }
    if (!to_stdout) {
        print_table(b);
    }
    if (!b->o.json) {
        return ST_OK;
    }
    FILE *f = cmd_json_open(b->o.json, e);
    if (!f) {
        return e->code;
    }
    print_json(b, f);
    return cmd_json_close(f, b->o.json, e);
}

int cmd_bench(int argc, char **argv) {
    struct bench b = { 0 };
    struct err e = { 0 };
    for (int i = 0; i < argc; i++) {
        if (!strcmp(argv[i], "--offload")) {
            return cmd_bench_offload(argc, argv);
        }
    }
    int code = parse_args(&b.o, argc, argv);
    if (code) {
        return code;
    }
    int st = open_engine(&b, &e);
    if (!st) {
        engine_ops()->info(b.engine, &b.info);
        count_bytes(&b);
        st = run_all(&b, &e);
    }
    st = st ? st : report(&b, &e);
    if (st) {
        fprintf(stderr, "moed bench: %s\n", e.text);
    }
    bench_close(&b);
    return st ? 1 : 0;
}
