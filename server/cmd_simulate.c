/* SPDX-License-Identifier: Apache-2.0
 *
 * `moed simulate`: replays a trace for every budget, link and policy asked for. See offload/simulate.h for what is counted
 * and how time is modelled. */
#include "server/cmd_simulate.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "offload/simulate.h"
#include "offload/trace.h"
#include "server/cmd_common.h"

enum { MAX_LIST = 16, DEFAULT_WARM = UINT32_MAX };

struct simulate_opts {
    const char *trace, *json;
    double percent[MAX_LIST], link[MAX_LIST], dram;
    uint64_t ram[MAX_LIST];
    int policies[MAX_LIST];
    uint32_t n_percent, n_link, n_ram, n_policies, warm;
};

static const char USAGE[] =
    "usage: moed simulate TRACE [options]\n"
    "  --budget P,P..      memory for experts, in percent of all of them (default 10,25,50)\n"
    "  --ram SIZE,..       the same in bytes, e.g. 8g,16g, instead of --budget\n"
    "  --policy NAME,..    lru, lfu, lfru, auto or belady, which knows the future (default lru,auto,belady)\n"
    "  --link GB/s,..      what a missing expert arrives with, e.g. of the disk (default 3.5)\n"
    "  --dram GB/s         what weights in memory are read with (default 20)\n"
    "  --warm N            decode steps that fill the memory first and do not count (default: a quarter)\n"
    "  --json FILE         also write the results as JSON ('-' = stdout instead of the table)\n";

static bool parse_percent(void *ctx, uint32_t i, const char *s) {
    return cmd_parse_double(s, 1e-3, 100, &((struct simulate_opts *)ctx)->percent[i]);
}
static bool parse_link(void *ctx, uint32_t i, const char *s) {
    return cmd_parse_double(s, 1e-3, 1e6, &((struct simulate_opts *)ctx)->link[i]);
}
static bool parse_ram(void *ctx, uint32_t i, const char *s) {
    return cmd_parse_bytes(s, &((struct simulate_opts *)ctx)->ram[i]);
}
static bool parse_policy(void *ctx, uint32_t i, const char *s) {
    return sim_policy_from_name(s, &((struct simulate_opts *)ctx)->policies[i]);
}

static bool parse_option(struct simulate_opts *o, const char *name, const char *value) {
    if (!strcmp(name, "--budget")) return cmd_parse_list(value, MAX_LIST, &o->n_percent, parse_percent, o);
    if (!strcmp(name, "--ram")) return cmd_parse_list(value, MAX_LIST, &o->n_ram, parse_ram, o);
    if (!strcmp(name, "--policy")) return cmd_parse_list(value, MAX_LIST, &o->n_policies, parse_policy, o);
    if (!strcmp(name, "--link")) return cmd_parse_list(value, MAX_LIST, &o->n_link, parse_link, o);
    if (!strcmp(name, "--dram")) return cmd_parse_double(value, 1e-3, 1e6, &o->dram);
    if (!strcmp(name, "--warm")) return cmd_parse_number(value, 0, UINT32_MAX - 1, &o->warm);
    if (!strcmp(name, "--json")) return (o->json = value) != NULL;
    return false;
}

/* 0, or the exit code. */
static int parse_args(struct simulate_opts *o, int argc, char **argv) {
    *o = (struct simulate_opts){
        .percent = { 10, 25, 50 }, .n_percent = 3, .link = { 3.5 }, .n_link = 1, .dram = 20, .warm = DEFAULT_WARM,
        .policies = { OFFLOAD_LRU, OFFLOAD_AUTO, SIM_BELADY }, .n_policies = 3,
    };
    for (int i = 0; i < argc; i++) {
        if (argv[i][0] != '-' && !o->trace) {
            o->trace = argv[i];
        } else if (i + 1 < argc && parse_option(o, argv[i], argv[i + 1])) {
            i++;
        } else {
            fprintf(stderr, "moed simulate: bad option or value: %s%s%s\n%s", argv[i], i + 1 < argc ? " " : "",
                    i + 1 < argc ? argv[i + 1] : "", USAGE);
            return 2;
        }
    }
    if (!o->trace) {
        fprintf(stderr, "%s", USAGE);
        return 2;
    }
    return 0;
}

/* One row of the table; numbers are per decode token. */
struct row { uint32_t slots; double share, link; int policy; struct sim_result r; };

static double per_token(const struct row *w, double x) { return w->r.tokens ? x / (double)w->r.tokens : 0; }
static double hit_rate(const struct row *w) { return w->r.wanted ? (double)w->r.hits / (double)w->r.wanted : 0; }
static double tokens_per_s(const struct row *w) { return w->r.seconds > 0 ? (double)w->r.tokens / w->r.seconds : 0; }

static void print_row(const struct sim *s, const struct row *w) {
    printf("%5.1f %% %7.2f GB %6u %8.2f %-8s %6.1f %% %9.2f %9.2f %9.2f %9.2f\n", 100 * w->share,
           (double)w->slots * (double)sim_info(s)->expert_bytes / 1e9, w->slots, w->link, sim_policy_name(w->policy), 100 * hit_rate(w),
           per_token(w, (double)w->r.misses), per_token(w, w->r.bytes) / 1e6, 1e3 * per_token(w, w->r.stall_s), tokens_per_s(w));
}

static void json_row(FILE *f, const struct row *w, bool first) {
    fprintf(f, "%s\n  {\"budget\": %.6f, \"slots\": %u, \"link_gb_per_s\": %.6g, \"policy\": \"%s\", \"hit_rate\": %.6f, \"wanted\": %" PRIu64
            ", \"misses\": %" PRIu64 ", \"prefill_misses\": %" PRIu64 ", \"misses_per_token\": %.6f, \"bytes_per_token\": %.1f, "
            "\"stall_ms_per_token\": %.6f, \"tokens_per_s\": %.4f}",
            first ? "" : ",", w->share, w->slots, w->link, sim_policy_name(w->policy), hit_rate(w), w->r.wanted, w->r.misses, w->r.prefill_misses,
            per_token(w, (double)w->r.misses), per_token(w, w->r.bytes), 1e3 * per_token(w, w->r.stall_s), tokens_per_s(w));
}

static int run_row(const struct simulate_opts *o, const struct sim *s, uint32_t warm, struct row *w, struct err *e) {
    struct sim_opts so = { .policy = w->policy, .slots = w->slots, .link = w->link * 1e9, .dram = o->dram * 1e9, .warm_steps = warm };
    int st = sim_run(s, &so, &w->r);
    return st ? err_set(e, st, "replay with %u slots: %s", w->slots, status_name(st)) : ST_OK;
}

static uint32_t slots_of(const struct simulate_opts *o, const struct sim *s, uint32_t i) {
    const double n = sim_n_keys(s), bytes = (double)sim_info(s)->expert_bytes;
    double slots = o->n_ram ? (double)o->ram[i] / (bytes > 0 ? bytes : 1) : o->percent[i] * n / 100 + 1e-6;
    return slots >= n ? (uint32_t)n : slots < 1 ? 1 : (uint32_t)slots;
}

static int run_all(const struct simulate_opts *o, const struct sim *s, uint32_t warm, FILE *json, struct err *e) {
    const uint32_t n_budgets = o->n_ram ? o->n_ram : o->n_percent;
    bool first = true;
    for (uint32_t b = 0; b < n_budgets; b++) {
        for (uint32_t l = 0; l < o->n_link; l++) {
            for (uint32_t p = 0; p < o->n_policies; p++) {
                struct row w = { .slots = slots_of(o, s, b), .link = o->link[l], .policy = o->policies[p] };
                w.share = (double)w.slots / sim_n_keys(s);
                int st = run_row(o, s, warm, &w, e);
                if (st) {
                    return st;
                }
                if (json != stdout) {
                    print_row(s, &w);
                }
                if (json) {
                    json_row(json, &w, first);
                }
                first = false;
            }
        }
    }
    return ST_OK;
}

static void print_head(const struct simulate_opts *o, const struct sim *s, const struct sim_summary *u, uint32_t warm) {
    const struct trace_info *t = sim_info(s);
    printf("%s: %u of %u experts of %.2f MB; %" PRIu64 " decode steps, the first %u not counted; memory %.1f GB/s\n", t->model, t->k, t->n_experts,
           (double)t->expert_bytes / 1e6, u->steps, warm, o->dram);
    printf("%7s %10s %6s %8s %-8s %8s %9s %9s %9s %9s\n", "budget", "", "slots", "link", "policy", "hits", "misses", "MB", "stall", "tokens/s");
    printf("%7s %10s %6s %8s %-8s %8s %9s %9s %9s %9s\n", "", "", "", "GB/s", "", "", "/token", "/token", "ms/token", "");
}

static int simulate(const struct simulate_opts *o, const struct sim *s, struct err *e) {
    struct sim_summary u;
    int st = sim_summarize(s, &u);
    if (st) {
        return err_set(e, st, "out of memory");
    }
    const bool to_stdout = o->json && !strcmp(o->json, "-");
    const uint32_t warm = o->warm == DEFAULT_WARM ? (uint32_t)(u.steps / 4) : o->warm;
    if (warm >= u.steps) {
        return err_set(e, ST_INVALID, "%s: %" PRIu64 " decode steps, none is left after %u that do not count", o->trace, u.steps, warm);
    }
    FILE *json = o->json ? cmd_json_open(o->json, e) : NULL;
    if (o->json && !json) {
        return e->code;
    }
    if (!to_stdout) {
        print_head(o, s, &u, warm);
    }
    if (json) {
        fprintf(json, "{\"trace\": ");
        cmd_json_string(json, o->trace);
        fprintf(json, ", \"decode_steps\": %" PRIu64 ", \"warm_steps\": %u, \"reuse_next\": %.6f, \"reuse_8\": %.6f, \"dram_gb_per_s\": %.6g, "
                "\"experts\": %u, \"expert_bytes\": %" PRIu64 ", \"dense_bytes\": %" PRIu64 ",\n \"results\": [", u.steps, warm, u.reuse_next,
                u.reuse_8, o->dram, sim_n_keys(s), sim_info(s)->expert_bytes, sim_info(s)->dense_bytes);
    }
    st = run_all(o, s, warm, json, e);
    if (!json) {
        return st;
    }
    fprintf(json, "\n ]}\n");
    const int closed = cmd_json_close(json, o->json, st ? NULL : e);
    return st ? st : closed;
}

int cmd_simulate(int argc, char **argv) {
    struct simulate_opts o;
    struct trace *t = NULL;
    struct sim *s = NULL;
    struct err e = { 0 };
    int code = parse_args(&o, argc, argv);
    if (code) {
        return code;
    }
    int st = trace_open(&t, o.trace, &e);
    st = st ? st : sim_open(&s, t, &e);
    st = st ? st : simulate(&o, s, &e);
    if (st) {
        fprintf(stderr, "moed simulate: %s\n", e.text);
    }
    sim_close(s);
    trace_close(t);
    return st ? 1 : 0;
}
