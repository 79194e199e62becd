/* SPDX-License-Identifier: Apache-2.0
 *
 * The real server over an engine without a model (tests/unit/fake_engine.h) and a readable vocabulary
 * (tests/unit/fake_tokenizer.h): for tests that need exact timing, a failing engine, or more clients than a model on a
 * test machine can feed. Tokens are drawn from the whole vocabulary, so texts are full of cut UTF-8 and control tokens;
 * but a prompt that holds «TEXT» is answered with TEXT, a byte per token, and the end token.
 *
 * Usage: server_fake [step-us=N] [token-us=N] [fail-at=N] [eos-every=N] [ctx=N] [pages=N] [unreadable-at=N] -- FLAGS OF moed serve
 * unreadable-at: prompts of 64 tokens and more fail at output token N, as if an expert could not be read.
 * Prints "listening on URL", and at the end what is left: "at the end: P pages in use, B blocks live".
 * Exit status 0 after a drain, 1 when cut short or the engine failed, 3 when the engine contract was broken. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "config/config.h"
#include "server/chat_model.h"
#include "server/cmd_supervisor.h"
#include "server/server.h"
#include "tests/unit/fake_engine.h"
#include "tests/unit/fake_tokenizer.h"

extern char **environ;

enum { PAGE_TOKENS = 16, MAX_PROMPT = 1 << 16, FAKE_N_EMBD = 20 };

/* Written like ChatML, with the one mark the vocabulary has; thinking, tools and calls show so that tests can see them. */
static const char chat_template[] =
    "{%- if tools %}<|im|>tools\n{{ tools | tojson }}\n{% endif %}"
    "{%- for m in messages %}<|im|>{{ m.role }}\n{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content or '' }}"
    "{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}{{ '\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}<|im|>assistant\n{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
    "{%- if fail_with %}{{ raise_exception(fail_with) }}{% endif %}";

/* The text between « and » in the prompt, byte `counter` of it. */
static int32_t script(const int32_t *tokens, uint32_t n, uint64_t counter) {
    static _Thread_local char text[MAX_PROMPT + 8];
    size_t len = 0, k;

    for (uint32_t i = 0; i < n - (uint32_t)counter && len < MAX_PROMPT; i++, len += k) {
        const char *piece = tokenizer_piece(NULL, tokens[i], &k);
        memcpy(text + len, piece, k);
    }
    const char *from = memmem(text, len, "\xC2\xAB", 2), *to = from ? memmem(from, len - (size_t)(from - text), "\xC2\xBB", 2) : NULL;
    if (!to) return -1;
    from += 2;
    return counter < (uint64_t)(to - from) ? (uint8_t)from[counter] : FAKE_EOS;
}

static bool fails(void *ctx, const struct batch_item *it) {
    return it->n_prompt >= 64 && it->sample && it->counter == (uintptr_t)ctx;
}

/* name=value before "--"; returns the index of the first flag of moed. */
static int own_options(int argc, char **argv, struct fake_opts *o) {
    int i = 1;
    for (; i < argc && strcmp(argv[i], "--") != 0; i++) {
        char *eq = strchr(argv[i], '=');
        unsigned long v = eq ? strtoul(eq + 1, NULL, 10) : 0;
        size_t n = eq ? (size_t)(eq - argv[i]) : 0;
        if (n == 7 && memcmp(argv[i], "step-us", n) == 0) o->step_us = (uint32_t)v;
        else if (n == 8 && memcmp(argv[i], "token-us", n) == 0) o->token_us = (uint32_t)v;
        else if (n == 7 && memcmp(argv[i], "fail-at", n) == 0) o->fail_at_step = v;
        else if (n == 9 && memcmp(argv[i], "eos-every", n) == 0) o->eos_every = (uint32_t)v;
        else if (n == 3 && memcmp(argv[i], "ctx", n) == 0) o->info.n_ctx = (uint32_t)v;
        else if (n == 5 && memcmp(argv[i], "pages", n) == 0) o->info.n_pages = (uint32_t)v;
        else if (n == 13 && memcmp(argv[i], "unreadable-at", n) == 0) o->fails = fails, o->fails_ctx = (void *)(uintptr_t)v;
        else return -1;
    }
    return i;
}

int main(int argc, char **argv) {
    static const struct tokenizer tokenizer = {.bos = true};
    struct fake_opts fo = {.info = {.n_ctx = 1024, .n_pages = 4096, .page_tokens = PAGE_TOKENS, .n_vocab = FAKE_N_VOCAB, .n_embd = FAKE_N_EMBD}, .eos = FAKE_EOS, .eos_every = 64, .script = script};
    struct chat_model *chat = NULL;
    struct fake_engine engine;
    struct server *server = NULL;
    struct supervisor supervisor;
    struct config cfg;
    enum config_action action;
    struct err e;
    int first = own_options(argc, argv, &fo);

    if (first < 0 || config_load(&cfg, argc - first - 1, argv + first + 1, environ, &action, &e) != 0) {
        fprintf(stderr, "server_fake: %s\n", first < 0 ? "unknown option" : e.text);
        return 2;
    }
    struct chat_model_opts co = {.tokenizer = &tokenizer, .text = chat_template, .n_text = sizeof chat_template - 1, .syntax = cfg.tool_syntax};
    if (chat_model_open(&chat, &co, &e) != 0) {
        fprintf(stderr, "server_fake: %s\n", e.text);
        return 2;
    }
    fo.info.n_seqs = cfg.prefix_cache ? 2 * cfg.max_running : cfg.max_running;
    fo.info.max_batch_tokens = cfg.batch_tokens > cfg.max_running ? cfg.batch_tokens : cfg.max_running;
    fake_open(&engine, &fo);
    supervisor_read(&supervisor, environ);
    struct server_opts o = {.config = &cfg, .tokenizer = &tokenizer, .chat = chat, .model_name = "fake", .ops = &fake_ops, .engine = &engine, .pooling = strcmp(cfg.embedding_pooling, "last") == 0 ? ENGINE_POOLING_LAST : ENGINE_POOLING_MEAN, .arch = "fake", .file_name = "none",
                            .first_fd = SUPERVISOR_FIRST_FD, .n_fds = supervisor.n_sockets, .announce = supervisor_tell, .announce_ctx = &supervisor};
    if (server_open(&server, &o, &e) != 0) {
        fprintf(stderr, "server_fake: %s\n", e.text);
        config_clear(&cfg);
        chat_model_close(chat);
        fake_close(&engine);
        return 2;
    }
    const char *url;
    for (uint32_t i = 0; (url = server_url(server, i)) != NULL; i++) printf("listening on %s\n", url);
    fflush(stdout);
    supervisor_tell(&supervisor, SERVER_READY);
    int rc = server_run(server);
    server_close(server);
    if (engine.violations > 0) fprintf(stderr, "server_fake: %u violations of the engine contract, first: %s\n", engine.violations, engine.what);
    rc = engine.violations > 0 ? 3 : rc != 0;
    config_clear(&cfg);
    chat_model_close(chat);
    struct mem_stats mem;
    mem_stats(&mem);
    printf("at the end: %u pages in use, %llu blocks live\n", fo.info.n_pages - atomic_load(&engine.n_free), (unsigned long long)mem.n_live);
    fake_close(&engine);
    return rc;
}
