/* SPDX-License-Identifier: Apache-2.0
 *
 * `moed trace`: what a routing trace holds. Recording is in cmd_trace_record.c. */
#include "server/cmd_trace.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "offload/trace.h"

static const char USAGE[] =
    "usage: moed trace record MODEL.gguf -o FILE [options]   run the model, record which experts it chooses\n"
    "       moed trace show FILE                             summary of a recorded trace\n";

static void show_head(const struct trace_info *t) {
    uint32_t n_routed = 0;
    for (uint32_t i = 0; i < t->n_layers; i++) {
        n_routed += trace_is_routed(t, i);
    }
    printf("%s: %u of %u experts in %u of %u layers; %.2f MB an expert, %.2f GB of experts, %.2f GB dense\n", t->model, t->k, t->n_experts,
           n_routed, t->n_layers, (double)t->expert_bytes / 1e6, (double)t->expert_bytes * t->n_experts * n_routed / 1e9,
           (double)t->dense_bytes / 1e9);
}

struct counts { uint64_t steps, decode_steps, decode_tokens, prefill_tokens; };

static int count(struct trace *t, struct counts *c, struct err *e) {
    struct trace_layer l;
    int rc;
    while ((rc = trace_next(t, &l, e)) == 1) {
        if (l.first) {
            c->steps++;
            c->decode_steps += !l.prefill;
            *(l.prefill ? &c->prefill_tokens : &c->decode_tokens) += l.n_tokens;
        }
    }
    return rc;
}

static int show(const char *path) {
    struct err e = { 0 };
    struct trace *t = NULL;
    struct counts c = { 0 };
    int st = trace_open(&t, path, &e);
    st = st ? st : count(t, &c, &e);
    if (st) {
        fprintf(stderr, "moed trace show: %s\n", e.text);
    } else {
        show_head(trace_info(t));
        printf("%llu steps: %llu decode (%llu tokens), %llu prefill (%llu tokens)", (unsigned long long)c.steps,
               (unsigned long long)c.decode_steps, (unsigned long long)c.decode_tokens,
               (unsigned long long)(c.steps - c.decode_steps), (unsigned long long)c.prefill_tokens);
        printf(trace_end(t)->present ? "; %u dropped\n" : "; the recording was cut\n", trace_end(t)->n_dropped);
    }
    trace_close(t);
    return st ? 1 : 0;
}

int cmd_trace(int argc, char **argv) {
    if (argc >= 1 && !strcmp(argv[0], "record")) {
        return cmd_trace_record(argc - 1, argv + 1);
    }
    if (argc == 2 && !strcmp(argv[0], "show") && argv[1][0] != '-') {
        return show(argv[1]);
    }
    fputs(USAGE, stderr);
    return 2;
}
