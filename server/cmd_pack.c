/* SPDX-License-Identifier: Apache-2.0
 *
 * `moed pack`: writes a model whose experts are records (docs/PACK.md), or checks one. Part of the composition root. */
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/pool.h"
#include "model/model.h"
#include "offload/pack.h"
#include "server/cmd_common.h"
#include "server/commands.h"

enum { TELL_MS = 500 };

static const char USAGE[] =
    "usage: moed pack MODEL.gguf OUT.gguf [options]   write OUT: experts as aligned records in the kernels' layout\n"
    "       moed pack --verify FILE.gguf [options]    read a packed model and compare every checksum\n"
    "  --force        replace OUT if it exists\n"
    "  --threads N    CPU threads (default: physical cores)\n"
    "A run that was interrupted is taken up by the same command.\n";

struct pack_opts {
    const char *model, *out;
    bool verify, force;
    uint32_t threads;
};

/* The progress line. */
struct teller {
    const char *verb;
    bool terminal;
    uint64_t told_ns;
};

static bool parse_args(struct pack_opts *o, int argc, char **argv) {
    for (int i = 0; i < argc; i++) {
        if (!strcmp(argv[i], "--verify")) {
            o->verify = true;
        } else if (!strcmp(argv[i], "--force")) {
            o->force = true;
        } else if (!strcmp(argv[i], "--threads") && i + 1 < argc && cmd_parse_number(argv[i + 1], 1, 1024, &o->threads)) {
            i++;
        } else if (argv[i][0] != '-' && !o->out) {
            *(o->model ? &o->out : &o->model) = argv[i];
        } else {
            fprintf(stderr, "moed pack: bad option or value: %s\n%s", argv[i], USAGE);
            return false;
        }
    }
    const bool whole = o->verify ? o->model && !o->out && !o->force : o->out != NULL;
    if (!whole) {
        fputs(USAGE, stderr);
    }
    return whole;
}

static void tell(void *ctx, const struct offload_pack_progress *p) {
    struct teller *t = ctx;
    const uint64_t now = clock_mono_ns();
    const bool last = p->done_bytes == p->total_bytes;
    if (!last && now - t->told_ns < TELL_MS * UINT64_C(1000000)) {
        return;
    }
    const double mib = (double)(p->done_bytes - p->resumed_bytes) / 0x1p20, rate = p->seconds > 1e-3 ? mib / p->seconds : 0;
    t->told_ns = now;
    fprintf(stderr, "%s%s %.1f of %.1f MiB, %.0f MiB/s", t->terminal ? "\r" : "", t->verb, (double)p->done_bytes / 0x1p20,
            (double)p->total_bytes / 0x1p20, rate);
    if (p->resumed_bytes) {
        fprintf(stderr, ", resumed at %.1f", (double)p->resumed_bytes / 0x1p20);
    }
    fputs(t->terminal && !last ? "\033[K" : "\n", stderr);
}

static int run(const struct pack_opts *o, struct err *e) {
    struct model *m = NULL;
    struct pool *pool = NULL;
    struct teller teller = { .verb = o->verify ? "verified" : "packed", .terminal = isatty(STDERR_FILENO) };
    int st = model_open(&m, o->model, e);
    st = st ? st : pool_open(&pool, &(struct pool_opts){ .n_threads = o->threads ? (int)o->threads : pool_default_threads() }, e);
    if (!st && o->verify) {
        st = offload_pack_verify(m, pool, tell, &teller, e);
    } else if (!st) {
        const struct offload_pack_opts po = { .model = m, .out = o->out, .force = o->force, .pool = pool, .tell = tell, .tell_ctx = &teller };
        st = offload_pack(&po, e);
    }
    pool_close(pool);
    model_close(m);
    return st;
}

int cmd_pack(int argc, char **argv) {
    struct pack_opts o = { 0 };
    struct err e = { 0 };
    if (!parse_args(&o, argc, argv)) {
        return EXIT_CODE_USAGE;
    }
    signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes is then an error of the write, told as one */
    if (run(&o, &e)) {
        fprintf(stderr, "moed pack: %s\n", e.text);
        return EXIT_CODE_FAILED;
    }
    printf("%s: %s\n", o.verify ? o.model : o.out, o.verify ? "every checksum is right" : "packed");
    return EXIT_CODE_OK;
}
