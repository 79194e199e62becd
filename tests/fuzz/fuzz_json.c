/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes as the body of /v1/completions. What must hold besides "no crash": what the pre-scan passes cJSON reads to its
 * end; a refusal has a status and a message that is UTF-8; what is accepted keeps its bounds; and generated text does
 * not depend on how its bytes are cut. The input itself serves as that text, with the request's own stop strings. */
#include <cjson/cJSON.h>
#include <stdlib.h>

#include "server/internal.h"
#include "server/parse_req.h"
#include "base/utf8.h"
#include "tests/unit/fake_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(cond)                                                                                \
    do {                                                                                             \
        if (!(cond)) __builtin_trap();                                                               \
    } while (0)

enum { N_CTX = 200 };

static void check_scan(const char *s, size_t n) {
    struct json_limits limits = {PARSE_MAX_DEPTH, PARSE_MAX_NODES};
    struct err e;
    const char *end = NULL;

    if (json_prescan(s, n, &limits, &e) != 0) return;
    cJSON *root = cJSON_ParseWithLengthOpts(s, n, &end, false);
    REQUIRE(root);
    while (end < s + n && strchr(" \t\r\n", *end)) end++;
    REQUIRE(end == s + n);
    cJSON_Delete(root);
}

static void check_params(const struct parse_env *env, const struct gen_params *p) {
    REQUIRE(p->n >= 1 && p->n <= env->max_n && p->n_prompts >= 1 && p->n_prompts <= env->max_prompts);
    REQUIRE(p->n * p->n_prompts <= env->max_choices && p->n_stops <= DETOK_MAX_STOPS && p->min_tokens <= p->max_tokens);
    for (uint32_t i = 0; i < p->n_prompts; i++) {
        const struct gen_prompt *q = &p->prompts[i];
        uint32_t room = parse_room(env, p, q);
        REQUIRE(q->n_ids >= 1 && q->n_ids + room <= env->n_ctx && (room > 0 || p->max_tokens == 0));
        for (uint32_t k = 0; k < q->n_ids; k++) REQUIRE(q->ids[k] >= 0 && q->ids[k] < FAKE_N_VOCAB);
    }
    for (uint32_t i = 0; i < p->sample.n_bias; i++) REQUIRE(p->sample.bias[i].id >= 0 && p->sample.bias[i].id < FAKE_N_VOCAB);
    REQUIRE(p->sample.temperature >= 0 && p->sample.temperature <= 2 && p->sample.top_p > 0 && p->sample.top_p <= 1);
}

static void check_text(const struct gen_params *p, const char *s, size_t n) {
    struct detok whole, bytes;
    struct buf shown;

    detok_init(&whole, p->stops, p->n_stops, 4 * n + 4);
    detok_init(&bytes, p->stops, p->n_stops, 4 * n + 4);
    buf_init(&shown, 4 * n + 4);
    detok_push(&whole, s, n, true, NULL);
    detok_finish(&whole);
    for (size_t i = 0; i <= n; i++) {
        if (i < n) detok_push(&bytes, s + i, 1, true, NULL);
        else detok_finish(&bytes);
        size_t ready = detok_ready(&bytes);
        buf_append(&shown, bytes.text.data, ready);
        detok_take(&bytes, ready);
    }
    REQUIRE(whole.stopped == bytes.stopped && whole.text.len == shown.len);
    REQUIRE(shown.len == 0 || memcmp(whole.text.data, shown.data, shown.len) == 0);
    REQUIRE(shown.len == 0 || utf8_valid(shown.data, shown.len));
    detok_clear(&whole);
    detok_clear(&bytes);
    buf_clear(&shown);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const struct tokenizer t = {.bos = true};
    static const int32_t eog[] = {FAKE_EOS};
    const struct parse_env env = {.tokenizer = &t, .model_name = "demo", .model_alias = "", .n_ctx = N_CTX, .max_n = 8, .max_prompts = 16, .max_choices = 64,
                                  .max_piece_bytes = 6, .eog = eog, .n_eog = 1};
    struct arena a;
    struct gen_params p;
    struct parse_error e;
    char *body = malloc(size ? size : 1); /* exact size, so that a read past the end is seen */

    REQUIRE(body);
    memcpy(body, data, size);
    arena_init(&a, 1 << 24);
    check_scan(body, size);
    int rc = parse_completion(&env, body, size, &a, &p, &e);
    if (rc) {
        REQUIRE(e.status == 400 || e.status == 404 || e.status == 503);
        REQUIRE(e.message[0] && utf8_valid(e.message, strlen(e.message)));
    } else {
        check_params(&env, &p);
        check_text(&p, body, size);
    }
    arena_clear(&a);
    free(body);
    return 0;
}
