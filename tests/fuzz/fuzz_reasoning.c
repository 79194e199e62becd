/* SPDX-License-Identifier: Apache-2.0
 *
 * Replies with reasoning, and a stop string in the answer. The first byte chooses the marks and whether the prompt has opened
 * the reasoning, the second the size of the pieces. What must hold: the same result whole and in pieces; no text lost but
 * marks and space; the stop string is never shown, and is looked for in the answer alone. */
#include "server/detok.h"
#include "tests/fuzz/reply_text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The answer through the stop strings, as a choice does it. */
static void check_stop(const struct fuzz_got *g) {
    struct arena a;
    struct detok d;
    struct detok_stop stop;

    arena_init(&a, 4096);
    REQUIRE(detok_stop_init(&stop, "ab", 2, &a) == 0);
    detok_init(&d, &stop, 1, 4 * MAX_TEXT);
    detok_push(&d, g->content.data, g->content.len, true, NULL);
    detok_finish(&d);
    REQUIRE(d.text.len == 0 || !memmem(d.text.data, d.text.len, "ab", 2));
    REQUIRE(d.stopped == (g->content.len > 0 && memmem(g->content.data, g->content.len, "ab", 2)));
    detok_clear(&d);
    arena_clear(&a);
}

static size_t without_space(const char *p, size_t n) {
    size_t k = 0;

    for (size_t i = 0; i < n; i++) k += !strchr(" \t\r\n", p[i]) || !p[i];
    return k;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const struct chat_think thinks[] = {{"<think>", "</think>"}, {"[THINK]", "[/THINK]"}, {"aa", "aab"}};
    struct fuzz_got whole, pieces;
    size_t n;

    if (size < 2) return 0;
    const struct chat_think *think = &thinks[data[0] % 3];
    struct chat_reply_opts o = {.dialect = {.think = think}, .in_reasoning = data[0] / 3 & 1, .max_bytes = 4 * MAX_TEXT};
    char *text = fuzz_text(data + 2, size - 2, &n);
    fuzz_run(&whole, &o, text, n, 0);
    fuzz_run(&pieces, &o, text, n, 1 + data[1] % 16);
    fuzz_require_same(&whole, &pieces);
    size_t kept = without_space(whole.reasoning.data, whole.reasoning.len) + without_space(whole.content.data, whole.content.len), all = without_space(text, n);
    REQUIRE(whole.r.n_calls == 0 && kept <= all && kept + strlen(think->open) + strlen(think->close) >= all);
    check_stop(&whole);
    fuzz_clear(&whole);
    fuzz_clear(&pieces);
    free(text);
    return 0;
}
