/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes as the bodies of /v1/chat/completions, /v1/messages, /v1/responses and /v1/embeddings; the first byte chooses. What must hold besides
 * "no crash": a refusal has a status and a message in UTF-8; what is accepted has prompts of tokens of the vocabulary that fit the context. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "server/parse_req.h"
#include "tests/unit/fake_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(cond)                                                                                \
    do {                                                                                             \
        if (!(cond)) __builtin_trap();                                                               \
    } while (0)

enum { N_CTX = 500, N_EMBD = 8 };
typedef int (*parse_fn)(const struct parse_env *env, const char *body, size_t n, struct arena *a, struct gen_params *out, struct parse_error *e);

static const struct tokenizer vocabulary = {.bos = true};

/* Opened once, for all inputs. */
static const struct chat_model *model(void) {
    static const char text[] = "{% for m in messages %}{{ m.role }}:{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }};{% endfor %}"
                               "{{ tools | tojson if tools }}{# <tool_call> </think> #}";
    static struct chat_model *m;
    struct err e;

    if (!m) REQUIRE(chat_model_open(&m, &(struct chat_model_opts){.tokenizer = &vocabulary, .text = text, .n_text = sizeof text - 1, .syntax = "auto"}, &e) == 0);
    return m;
}

static void check_accepted(const struct gen_params *p) {
    REQUIRE(p->n_prompts >= 1 && p->n >= 1);
    for (uint32_t i = 0; i < p->n_prompts; i++) {
        REQUIRE(p->prompts[i].n_ids >= 1 && p->prompts[i].n_ids <= N_CTX);
        for (uint32_t k = 0; k < p->prompts[i].n_ids; k++) REQUIRE(p->prompts[i].ids[k] >= 0 && p->prompts[i].ids[k] < FAKE_N_VOCAB);
    }
    for (uint32_t i = 0; i < p->chat.n_tools; i++) REQUIRE(p->chat.tools[i].name[0] && utf8_valid(p->chat.tools[i].name, strlen(p->chat.tools[i].name)));
    REQUIRE(!p->embeds || (p->max_tokens == 0 && p->n == 1));
    if (p->repeated) { /* members of an object */
        static const struct json_limits limits = {64, 1 << 20};
        size_t n = strlen(p->repeated);
        struct err e;
        char *doc = malloc(n + 2);
        REQUIRE(doc);
        doc[0] = '{';
        memcpy(doc + 1, p->repeated, n);
        doc[n + 1] = '}';
        REQUIRE(json_prescan(doc, n + 2, &limits, &e) == 0);
        free(doc);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const parse_fn parsers[] = {parse_chat, parse_messages, parse_responses, parse_embedding};
    static const int32_t eog[] = {FAKE_EOS};
    const struct parse_env env = {.tokenizer = &vocabulary, .model_name = "demo", .model_alias = "", .n_ctx = N_CTX, .n_embd = N_EMBD, .max_n = 8, .max_prompts = 16,
                                  .max_choices = 64, .max_piece_bytes = 6, .eog = eog, .n_eog = 1, .chat = model()};
    struct arena a;
    struct gen_params p;
    struct parse_error e;

    if (size < 1) return 0;
    char *body = malloc(size); /* exact size, so that a read past the end is seen */
    REQUIRE(body);
    memcpy(body, data + 1, size - 1);
    arena_init(&a, 1 << 24);
    if (parsers[data[0] % 4](&env, body, size - 1, &a, &p, &e)) {
        REQUIRE(e.status == 400 || e.status == 404 || e.status == 503);
        REQUIRE(e.message[0] && utf8_valid(e.message, strlen(e.message)));
    } else {
        check_accepted(&p);
    }
    arena_clear(&a);
    free(body);
    return 0;
}
