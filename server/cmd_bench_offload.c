/* SPDX-License-Identifier: Apache-2.0
 *
 * `moed bench --offload`: a model whose experts do not all fit, measured against what limits it. In one run: the disk
 * (direct reads of experts' spans at the store's queue depth), the engine with every expert resident, and the engine
 * with a part of them. A decode step or a prefill cannot take less than the larger of the bytes it read over the disk's
 * speed and the resident time; the ratio to that is the result. Tokens are random with a fixed seed, the same in both engines,
 * so both choose the same experts. The disk is probed before and after: on shared machines its speed moves. */
#include "server/cmd_bench.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/pool.h"
#include "base/version.h"
#include "config/config.h"
#include "kernels/kernels.h"
#include "model/expert_bank.h"
#include "model/gguf.h"
#include "model/model.h"
#include "offload/disk.h"
#include "offload/offload.h"
#include "server/cmd_common.h"
#include "server/sysinfo.h"

enum { MAX_REPEAT = 16, PROBE_MS = 1500, MAX_SPAN = 64 << 20 };

struct opts {
    const char *model, *json, *cpu_level, *policy, *prefetch, *io, *resident;
    uint64_t ram_bytes;
    uint32_t percent, threads, prompt, gen, context, repeat, batch_tokens;
};

/* One engine on one kind of work: medians over repeats. */
struct sample { double s, read_bytes, stall_s, hits, misses; };
struct work { struct sample all[MAX_REPEAT]; };

struct bench {
    struct opts o;
    struct model *model;
    struct pool *pool;
    const struct kern_ops *kern;
    struct engine *engine;
    struct engine_memory memory;  /* of the streamed engine */
    int32_t *tokens;              /* [longest of prompt and context] */
    struct kern_sampled *sampled;
    uint64_t rng;
    bool has_resident;
    struct work resident_prefill, resident_decode, prefill, decode;
    struct offload_stats store;   /* at the end */
    struct engine_stats engine_stats;
    double probe[2];              /* bytes/s, before and after */
    uint64_t record_bytes;        /* of all experts, as the file has them */
};

static const char USAGE[] =
    "usage: moed bench --offload MODEL.gguf [options]\n"
    "  --expert-budget N%   share of the experts that stay in memory (default 30%)\n"
    "  --ram N              or a ceiling for everything, as the option of serve (units k m g)\n"
    "  --prompt N           prefill length (default 512)\n"
    "  --context N          tokens before decode is measured (default 64)\n"
    "  --gen N              decode steps of one measurement (default 32)\n"
    "  --repeat N           measurements of each, the median counts (default 3)\n"
    "  --batch-tokens N     tokens of one prefill step (default 512)\n"
    "  --policy P           auto, lru, lfu or lfru\n"
    "  --prefetch on|off    read ahead of the layers (default on)\n"
    "  --io I               auto, uring or threads\n"
    "  --resident on|off    measure the resident engine too (default: where it fits)\n"
    "  --threads N          CPU threads (default: physical cores)\n"
    "  --cpu-level L        auto, scalar, avx2, avxvnni, avx512, avx512bf16 or neon\n"
    "  --json FILE          also write the results as JSON ('-' = stdout instead of the table)\n";

static bool parse_percent(const char *s, uint32_t *out) {
    char *end;
    return cmd_parse_u32(s, 1, 100, out, &end) && (*end == '\0' || !strcmp(end, "%"));
}

static bool parse_option(struct opts *o, const char *name, const char *value) {
    if (!strcmp(name, "--expert-budget")) return parse_percent(value, &o->percent);
    if (!strcmp(name, "--ram")) return config_parse_bytes(value, &o->ram_bytes) && o->ram_bytes > 0;
    const struct { const char *name; uint32_t max, *to; } numbers[] = {
        { "--prompt", 1 << 16, &o->prompt }, { "--context", 1 << 16, &o->context }, { "--gen", 1 << 16, &o->gen },
        { "--repeat", MAX_REPEAT, &o->repeat }, { "--batch-tokens", 1 << 16, &o->batch_tokens }, { "--threads", 1024, &o->threads },
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (!strcmp(name, numbers[i].name)) return cmd_parse_number(value, 1, numbers[i].max, numbers[i].to);
    }
    const struct { const char *name, *choices; const char **to; } strings[] = {
        { "--policy", "|auto|lru|lfu|lfru|", &o->policy }, { "--prefetch", "|on|off|", &o->prefetch }, { "--io", "|auto|uring|threads|", &o->io },
        { "--resident", "|on|off|", &o->resident }, { "--json", NULL, &o->json }, { "--cpu-level", NULL, &o->cpu_level },
    };
    for (size_t i = 0; i < sizeof strings / sizeof strings[0]; i++) {
        if (strcmp(name, strings[i].name)) continue;
        char word[32];
        snprintf(word, sizeof word, "|%.20s|", value);
        *strings[i].to = value;
        return !strings[i].choices || strstr(strings[i].choices, word);
    }
    return false;
}

/* 0, or the exit code. */
static int parse_args(struct opts *o, int argc, char **argv) {
    *o = (struct opts){ .cpu_level = "auto", .policy = "auto", .prefetch = "on", .io = "auto", .resident = "auto", .prompt = 512,
                        .context = 64, .gen = 32, .repeat = 3, .batch_tokens = 512 };
    for (int i = 0; i < argc; i++) {
        if (!strcmp(argv[i], "--offload")) continue;
        if (argv[i][0] != '-' && !o->model) {
            o->model = argv[i];
        } else if (i + 1 < argc && parse_option(o, argv[i], argv[i + 1])) {
            i++;
        } else {
            fprintf(stderr, "moed bench: bad option or value: %s%s%s\n%s", argv[i], i + 1 < argc ? " " : "", i + 1 < argc ? argv[i + 1] : "", USAGE);
            return 2;
        }
    }
    if (!o->model || (o->ram_bytes && o->percent)) {
        fprintf(stderr, "%s", !o->model ? USAGE : "moed bench: --ram and --expert-budget exclude each other\n");
        return 2;
    }
    o->percent = o->percent || o->ram_bytes ? o->percent : 30;
    return 0;
}

/* ---- the disk ---- */

struct probe { struct offload_disk disk; unsigned char *memory; size_t slot; uint32_t depth; bool uring; };

/* The runs of the file that the store reads for one expert: a record, or three matrices, with the pages around them. */
static uint32_t spans_of(const struct model *m, uint32_t layer, uint32_t expert, struct disk_read *out) {
    struct expert x;
    expert_bank_get(m, layer, expert, &x);
    if (expert_bank_is_packed(m)) {
        struct expert_record r;
        expert_bank_record(m, layer, expert, &r);
        out[0] = (struct disk_read){ .file = r.file, .offset = r.file_offset, .need = r.n_bytes };
        return 1;
    }
    const struct expert_matrix *all[3] = { &x.gate, &x.up, &x.down };
    for (int i = 0; i < 3; i++) {
        out[i] = (struct disk_read){ .file = all[i]->file, .offset = all[i]->file_offset, .need = all[i]->n_bytes };
    }
    return 3;
}

static void align_span(struct disk_read *r) {
    const uint64_t start = r->offset & ~UINT64_C(4095), end = (r->offset + r->need + 4095) & ~UINT64_C(4095);
    r->need += r->offset - start;
    r->offset = start;
    r->n_bytes = end - start;
}

static int probe_open(struct probe *p, const struct bench *b, struct err *e) {
    const struct gguf *g = model_gguf(b->model);
    const uint32_t n_files = gguf_n_files(g);
    const char **paths = mem_zalloc(n_files, sizeof *paths);
    p->depth = b->store.queue_depth ? b->store.queue_depth : 8;
    p->uring = b->store.uring;
    p->slot = MAX_SPAN;
    struct disk_read r[3];
    for (uint32_t i = 0, l = 0; l < model_hparams(b->model)->n_layers; l++) {
        if (!model_layer(b->model, l)->router) continue;
        for (i = spans_of(b->model, l, 0, r); i-- > 0;) {
            p->slot = r[i].need + 8192 > p->slot || p->slot == MAX_SPAN ? (r[i].need + 8192 + 4095) & ~(size_t)4095 : p->slot;
        }
    }
    p->memory = mem_map(p->slot * p->depth);
    if (!paths || !p->memory) {
        mem_free(paths);
        return err_set(e, ST_NOMEM, "out of memory for the probe of the disk");
    }
    for (uint32_t i = 0; i < n_files; i++) paths[i] = gguf_file_path(g, i);
    const struct disk_opts o = { .paths = paths, .n_files = n_files, .depth = p->depth };
    int st = p->uring ? disk_uring_open(&p->disk, &o, e) : disk_threads_open(&p->disk, &o, e);
    mem_free(paths);
    return st;
}

/* Reads experts in the order of the file, wrapping around, `depth` spans in flight, for PROBE_MS. Returns bytes/s. */
static double probe_run(struct probe *p, const struct bench *b) {
    const struct model_hparams *hp = model_hparams(b->model);
    const uint64_t start = clock_mono_ns(), end = start + PROBE_MS * UINT64_C(1000000);
    struct disk_read spans[3];
    struct disk_done done[DISK_MAX_DEPTH];
    uint32_t free_tags[DISK_MAX_DEPTH], n_free = p->depth, n_spans = 0, layer = 0, expert = 0;
    uint64_t bytes = 0, finish = start;
    for (uint32_t i = 0; i < p->depth; i++) free_tags[i] = i;
    for (bool open = true; open || n_free < p->depth; open = open && clock_mono_ns() < end) {
        while (open && n_free > 0) {
            while (n_spans == 0) {
                if (model_layer(b->model, layer)->router) n_spans = spans_of(b->model, layer, expert, spans);
                expert = (expert + 1) % hp->n_experts;
                layer = expert ? layer : (layer + 1) % hp->n_layers;
            }
            struct disk_read r = spans[--n_spans];
            align_span(&r);
            r.tag = free_tags[--n_free];
            r.to = p->memory + r.tag * p->slot;
            r.demand = true;
            if (p->disk.submit(p->disk.self, &r)) return 0;
            bytes += r.n_bytes;
        }
        uint32_t n = p->disk.complete(p->disk.self, done, DISK_MAX_DEPTH, UINT64_C(1000000000));
        for (uint32_t i = 0; i < n; i++) free_tags[n_free++] = done[i].tag;
        finish = clock_mono_ns();
    }
    return (double)bytes * 1e9 / (double)(finish - start);
}

static int probe_disk(struct bench *b, double *out, struct err *e) {
    struct probe p = { 0 };
    int st = probe_open(&p, b, e);
    if (!st) {
        *out = probe_run(&p, b);
        p.uring ? disk_uring_close(&p.disk) : disk_threads_close(&p.disk);
    }
    mem_unmap(p.memory, p.slot * p.depth);
    return st;
}

/* ---- engines ---- */

static struct engine_opts engine_options(const struct bench *b, bool stream) {
    const struct opts *o = &b->o;
    const uint32_t n_ctx = o->prompt > o->context + o->gen ? o->prompt : o->context + o->gen;
    struct engine_opts eo = {
        .model = b->model, .pool = b->pool, .kern = b->kern, .n_ctx = n_ctx, .n_seqs = 1, .n_running = 1, .kv_tokens = n_ctx,
        .max_batch_tokens = o->batch_tokens, .repack = true,
    };
    if (!stream) return eo;
    eo.experts = ENGINE_EXPERTS_STREAM;
    eo.ram_bytes = o->ram_bytes;
    eo.expert_bytes = o->percent ? offload_all_bytes(b->model, true) / 100 * o->percent : 0;
    eo.prefetch = !strcmp(o->prefetch, "on");
    eo.io = !strcmp(o->io, "uring") ? OFFLOAD_IO_URING : !strcmp(o->io, "threads") ? OFFLOAD_IO_THREADS : OFFLOAD_IO_AUTO;
    policy_from_name(o->policy, &eo.policy);
    return eo;
}

static int32_t random_token(struct bench *b) {
    b->rng = b->rng * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int32_t)((b->rng >> 33) % model_hparams(b->model)->n_vocab);
}

/* n random tokens at pos, in steps of at most batch_tokens. */
static int feed(struct bench *b, uint32_t pos, uint32_t n, struct sample *into) {
    static const struct kern_sample greedy = { .top_p = 1, .repetition_penalty = 1, .n_top_logprobs = -1 };
    const uint64_t start = clock_mono_ns();
    int st = engine_ops()->kv_reserve(b->engine, 0, pos + n);
    for (uint32_t at = 0, chunk; !st && at < n; at += chunk) {
        chunk = n - at < b->o.batch_tokens ? n - at : b->o.batch_tokens;
        for (uint32_t i = 0; i < chunk; i++) b->tokens[i] = random_token(b);
        struct batch_item it = { .pos = pos + at, .n_tokens = chunk, .tokens = b->tokens, .sample = at + chunk == n, .params = &greedy, .next_token = -1 };
        struct step_out out = { .sampled = b->sampled };
        st = engine_ops()->step(b->engine, &(struct batch){ &it, 1, chunk }, &out);
        into->hits += (double)out.experts.hits;
        into->misses += (double)out.experts.misses;
        into->stall_s += (double)out.experts.stall_ns * 1e-9;
    }
    into->s += (double)(clock_mono_ns() - start) * 1e-9;
    return st;
}

static double bytes_read(const struct bench *b) {
    struct offload_stats st = { 0 };
    engine_ops()->experts(b->engine, &st);
    return (double)(st.load_bytes + st.prefetch_useful_bytes + st.prefetch_wasted_bytes);
}

static int measure_prefill(struct bench *b, struct sample *s) {
    const double before = bytes_read(b);
    int st = feed(b, 0, b->o.prompt, s);
    s->read_bytes = bytes_read(b) - before;
    engine_ops()->kv_free(b->engine, 0);
    return st;
}

/* Of one token. */
static int measure_decode(struct bench *b, struct sample *s) {
    struct sample context = { 0 };
    int st = feed(b, 0, b->o.context, &context);
    const double before = bytes_read(b), n = b->o.gen;
    for (uint32_t i = 0; !st && i < b->o.gen; i++) st = feed(b, b->o.context + i, 1, s);
    *s = (struct sample){ .s = s->s / n, .read_bytes = (bytes_read(b) - before) / n, .stall_s = s->stall_s / n, .hits = s->hits / n, .misses = s->misses / n };
    engine_ops()->kv_free(b->engine, 0);
    return st;
}

static int measure(struct bench *b, bool stream, struct work *prefill, struct work *decode, struct err *e) {
    const struct engine_opts eo = engine_options(b, stream);
    struct sample warm = { 0 };
    int st = engine_open(&b->engine, &eo, e);
    if (st) return st;
    b->rng = 1;
    st = measure_decode(b, &warm); /* warm-up */
    for (uint32_t i = 0; !st && i < b->o.repeat; i++) {
        st = measure_prefill(b, &prefill->all[i]);
        st = st ? st : measure_decode(b, &decode->all[i]);
    }
    if (stream) {
        engine_ops()->experts(b->engine, &b->store);
        engine_ops()->stats(b->engine, &b->engine_stats);
    }
    engine_close(b->engine);
    b->engine = NULL;
    return st ? err_set(e, st, "engine: %s", status_name(st)) : ST_OK;
}

/* What the store settled on: its queue depth and way of reading, for the probe. */
static int ask_store(struct bench *b, struct err *e) {
    const struct engine_opts eo = engine_options(b, true);
    int st = engine_plan_memory(&eo, &b->memory, e);
    st = st ? st : engine_open(&b->engine, &eo, e);
    if (st) return st;
    engine_ops()->experts(b->engine, &b->store);
    engine_close(b->engine);
    b->engine = NULL;
    return ST_OK;
}

static bool resident_fits(const struct bench *b) {
    const struct engine_opts eo = engine_options(b, false);
    struct engine_memory m;
    if (strcmp(b->o.resident, "auto")) return !strcmp(b->o.resident, "on");
    return engine_plan_memory(&eo, &m, NULL) == ST_OK && m.total + m.total / 8 < sys_ram_available();
}

static int run_all(struct bench *b, struct err *e) {
    int st = ask_store(b, e);
    b->has_resident = resident_fits(b);
    st = st || !b->has_resident ? st : measure(b, false, &b->resident_prefill, &b->resident_decode, e);
    st = st ? st : probe_disk(b, &b->probe[0], e);
    st = st ? st : measure(b, true, &b->prefill, &b->decode, e);
    return st ? st : probe_disk(b, &b->probe[1], e);
}

/* ---- report ---- */

static int by_time(const void *a, const void *b) {
    const struct sample *x = a, *y = b;
    return (x->s > y->s) - (x->s < y->s);
}

static struct sample median(struct work *w, uint32_t n) {
    qsort(w->all, n, sizeof w->all[0], by_time);
    return w->all[n / 2];
}

/* A row of the result. Without a resident run the compute time is what was not waited for. */
struct row { const char *name; struct sample s; double compute_s, disk_s, limit_s; };

static struct row make_row(const struct bench *b, const char *name, struct work *w, struct work *resident) {
    struct row r = { .name = name, .s = median(w, b->o.repeat) };
    r.compute_s = b->has_resident ? median(resident, b->o.repeat).s : r.s.s - r.s.stall_s;
    r.disk_s = r.s.read_bytes / ((b->probe[0] + b->probe[1]) / 2);
    r.limit_s = r.disk_s > r.compute_s ? r.disk_s : r.compute_s;
    return r;
}

static void print_table(const struct bench *b, const struct row *rows) {
    printf("%s, %.2f GB, experts %.2f GB of which %.2f stay (%.0f %%), %d threads, %s\n", b->o.model,
           (double)gguf_total_bytes(model_gguf(b->model)) / 1e9, (double)b->memory.experts_all / 1e9, (double)b->memory.experts / 1e9,
           100.0 * (double)b->memory.experts / (double)b->memory.experts_all, pool_n_threads(b->pool), b->kern->name);
    printf("disk %.2f GB/s before, %.2f after (%u reads in flight, %s); policy %s, prefetch %s\n", b->probe[0] / 1e9, b->probe[1] / 1e9,
           b->store.queue_depth, b->store.uring ? "io_uring" : "threads", b->o.policy, b->o.prefetch);
    printf("%-14s %10s %10s %10s %10s %10s %8s %8s\n", "test", "ms", "tokens/s", "read MB", "disk ms", b->has_resident ? "compute ms" : "no wait ms", "hits", "x limit");
    for (int i = 0; i < 2; i++) {
        const struct row *r = &rows[i];
        const double n = i ? 1 : b->o.prompt;
        printf("%-14s %10.1f %10.2f %10.1f %10.1f %10.1f %7.1f%% %8.3f\n", r->name, r->s.s * 1e3, n / r->s.s, r->s.read_bytes / 1e6,
               r->disk_s * 1e3, r->compute_s * 1e3, 100 * r->s.hits / (r->s.hits + r->s.misses), r->s.s / r->limit_s);
    }
    if (b->engine_stats.guesses) {
        printf("next layer foretold: %.1f %% of the guesses right; read ahead %.2f GB useful, %.2f GB wasted\n",
               100.0 * (double)b->engine_stats.guesses_right / (double)b->engine_stats.guesses, (double)b->store.prefetch_useful_bytes / 1e9,
               (double)b->store.prefetch_wasted_bytes / 1e9);
    }
}

static void print_json(const struct bench *b, const struct row *rows, FILE *f) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    fprintf(f, "{\"version\": \"%s\", \"model\": ", MOED_VERSION);
    cmd_json_string(f, b->o.model);
    fprintf(f, ", \"file_bytes\": %" PRIu64 ", \"expert_bytes\": %" PRIu64 ", \"budget_bytes\": %" PRIu64 ", \"dense_bytes\": %" PRIu64
            ", \"threads\": %d, \"policy\": \"%s\", \"prefetch\": \"%s\", \"queue_depth\": %u, \"uring\": %s, \"disk_bytes_per_s\": [%.0f, %.0f], \"resident\": %s, "
            "\"guesses\": %" PRIu64 ", \"guesses_right\": %" PRIu64 ", \"prefetch_useful_bytes\": %" PRIu64 ", \"prefetch_wasted_bytes\": %" PRIu64
            ", \"peak_rss_bytes\": %" PRIu64 ",\n \"results\": [",
            gguf_total_bytes(model_gguf(b->model)), b->memory.experts_all, b->memory.experts, b->memory.weights, pool_n_threads(b->pool), b->o.policy,
            b->o.prefetch, b->store.queue_depth, b->store.uring ? "true" : "false", b->probe[0], b->probe[1], b->has_resident ? "true" : "false",
            b->engine_stats.guesses, b->engine_stats.guesses_right, b->store.prefetch_useful_bytes, b->store.prefetch_wasted_bytes,
            (uint64_t)u.ru_maxrss * 1024);
    for (int i = 0; i < 2; i++) {
        const struct row *r = &rows[i];
        fprintf(f, "%s\n  {\"test\": \"%s\", \"tokens\": %u, \"ms\": %.3f, \"read_bytes\": %.0f, \"disk_ms\": %.3f, \"compute_ms\": %.3f, \"stall_ms\": %.3f, "
                "\"hits\": %.1f, \"misses\": %.1f, \"times_limit\": %.4f}", i ? "," : "", i ? "decode" : "prefill", i ? 1 : b->o.prompt, r->s.s * 1e3,
                r->s.read_bytes, r->disk_s * 1e3, r->compute_s * 1e3, r->s.stall_s * 1e3, r->s.hits, r->s.misses, r->s.s / r->limit_s);
    }
    fprintf(f, "\n ]}\n");
}

static int report(struct bench *b, struct err *e) {
    char prefill[32];
    snprintf(prefill, sizeof prefill, "prefill %u", b->o.prompt);
    const struct row rows[2] = { make_row(b, prefill, &b->prefill, &b->resident_prefill), make_row(b, "decode", &b->decode, &b->resident_decode) };
    const bool to_stdout = b->o.json && !strcmp(b->o.json, "-");
    if (!to_stdout) print_table(b, rows);
    if (!b->o.json) return ST_OK;
    FILE *f = cmd_json_open(b->o.json, e);
    if (!f) return e->code;
    print_json(b, rows, f);
    return cmd_json_close(f, b->o.json, e);
}

static int open_all(struct bench *b, struct err *e) {
    const uint32_t n = b->o.batch_tokens;
    struct pool_opts po = { .n_threads = b->o.threads ? (int)b->o.threads : pool_default_threads(), .spin_us = 100 };
    int st = cmd_pick_level(b->o.cpu_level, &b->kern, e);
    st = st ? st : model_open(&b->model, b->o.model, e);
    if (!st && !model_hparams(b->model)->n_experts) st = err_set(e, ST_INVALID, "%s: a dense model has no experts to stream", b->o.model);
    st = st ? st : pool_open(&b->pool, &po, e);
    b->tokens = mem_zalloc(n, sizeof *b->tokens);
    b->sampled = mem_zalloc(1, sizeof *b->sampled);
    return st || (b->tokens && b->sampled) ? st : err_set(e, ST_NOMEM, "out of memory");
}

int cmd_bench_offload(int argc, char **argv) {
    struct bench b = { 0 };
    struct err e = { 0 };
    int code = parse_args(&b.o, argc, argv);
    if (code) return code;
    int st = open_all(&b, &e);
    st = st ? st : run_all(&b, &e);
    st = st ? st : report(&b, &e);
    if (st) fprintf(stderr, "moed bench: %s\n", e.text);
    engine_close(b.engine);
    pool_close(b.pool);
    model_close(b.model);
    mem_free(b.tokens);
    mem_free(b.sampled);
    return st ? 1 : 0;
}
