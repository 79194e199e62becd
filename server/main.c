/* SPDX-License-Identifier: Apache-2.0
 *
 * The `moed` program: finds the sub-command and runs it. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/version.h"
#include "config/config.h"
#include "model/model.h"
#include "server/cmd_bench.h"
#include "server/cmd_perplexity.h"
#include "server/cmd_plan.h"
#include "server/cmd_simulate.h"
#include "server/cmd_trace.h"
#include "server/commands.h"

static int help(FILE *out) {
    fputs("moed " MOED_VERSION ": serves Mixture-of-Experts language models over HTTP\n\n"
          "usage: moed [serve] --model FILE.gguf [option...]   serve (the default command)\n"
          "       moed inspect FILE.gguf                       print what is in a model file\n"
          "       moed pack FILE.gguf OUT.gguf                 write experts as records; moed pack --verify OUT.gguf\n"
          "       moed bench [option...]                       measure the engine; moed bench --help\n"
          "       moed perplexity FILE.gguf TEXT [option...]   how well the engine predicts a text\n"
          "       moed plan FILE.gguf [--ram 24g] [option...]  what fits where, and how fast that can be; moed plan --help\n"
          "       moed trace record|show|make ...              which experts a run chooses; moed trace --help\n"
          "       moed simulate TRACE [option...]              hit rates and tokens/s of other budgets; moed simulate --help\n"
          "       moed healthcheck [--host H] [--port P]       exit 0 when the server answers ready, else 1\n"
          "       moed version | help\n\n"
          "Options of serve, also as MOED_NAME in the environment or in a file given with --config:\n", out);
    config_help(out);
    fputs("\nExit codes: 0 done (serve: shut down with every accepted request finished), 1 failed at run time or requests were\n"
          "cut short, 2 wrong usage, 75 the port cannot be had now, 78 an option, the environment or the config file is wrong.\n"
          "SIGTERM or SIGINT lets running requests finish (drain-timeout); a second one stops at once. SIGHUP reads certificate and API keys\n"
          "again. Under systemd NOTIFY_SOCKET and LISTEN_FDS are heeded.\n", out);
    return EXIT_CODE_OK;
}

static int inspect(int argc, char **argv) {
    struct err e = {0};
    if (argc != 1 || argv[0][0] == '-') {
        fputs("moed: usage: moed inspect FILE.gguf\n", stderr);
        return EXIT_CODE_USAGE;
    }
    if (model_inspect(argv[0], stdout, &e) == ST_OK) return EXIT_CODE_OK;
    fprintf(stderr, "moed: %s\n", e.text);
    return EXIT_CODE_FAILED;
}

int main(int argc, char **argv) {
    const char *command = argc > 1 ? argv[1] : "serve";
    if (argc < 2 || argv[1][0] == '-') return cmd_serve(argc - 1, argv + 1, environ);
    argc -= 2;
    argv += 2;
    if (strcmp(command, "serve") == 0) return cmd_serve(argc, argv, environ);
    if (strcmp(command, "inspect") == 0) return inspect(argc, argv);
    if (strcmp(command, "pack") == 0) return cmd_pack(argc, argv);
    if (strcmp(command, "bench") == 0) return cmd_bench(argc, argv);
    if (strcmp(command, "perplexity") == 0) return cmd_perplexity(argc, argv);
    if (strcmp(command, "plan") == 0) return cmd_plan(argc, argv);
    if (strcmp(command, "simulate") == 0) return cmd_simulate(argc, argv);
    if (strcmp(command, "trace") == 0) return cmd_trace(argc, argv);
    if (strcmp(command, "healthcheck") == 0) return cmd_healthcheck(argc, argv, environ);
    if (strcmp(command, "help") == 0) return help(stdout);
    if (strcmp(command, "version") == 0) return puts("moed " MOED_VERSION) < 0;
    fprintf(stderr, "moed: unknown command \"%.60s\"; moed help lists them\n", command);
    return EXIT_CODE_USAGE;
}
