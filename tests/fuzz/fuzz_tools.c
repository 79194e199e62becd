/* SPDX-License-Identifier: Apache-2.0
 *
 * Replies with tool calls, of every syntax. The first byte chooses the syntax, the second the size of the pieces. What must
 * hold: the result is the same whole and in pieces; the calls as a stream shows them are the calls; every call has a name and
 * a JSON object; where there was no call, nothing is lost. */
#include "tests/fuzz/reply_text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_calls(const struct chat_reply *r) {
    static const struct json_limits limits = {64, 1 << 20};
    struct err e;

    REQUIRE(r->n_calls <= CHAT_MAX_CALLS);
    for (uint32_t i = 0; i < r->n_calls; i++) {
        const struct chat_call *c = &r->calls[i];
        const char *args = r->strings.data + c->arguments;
        REQUIRE(c->n_name > 0 && utf8_valid(r->strings.data + c->name, c->n_name) && c->id[0]);
        REQUIRE(args[0] == '{' && json_prescan(args, c->n_arguments, &limits, &e) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const struct chat_param params[] = {{"a", true}, {"b", false}};
    static const struct chat_tool tools[] = {{"f", params, 2}, {"python", params, 1}};
    struct fuzz_got whole, pieces;
    size_t n;

    if (size < 2) return 0;
    struct chat_reply_opts o = {.dialect = {.syntax = (enum chat_syntax)(data[0] % CHAT_N_SYNTAXES)}, .tools = tools, .n_tools = 2, .max_bytes = 4 * MAX_TEXT};
    char *text = fuzz_text(data + 2, size - 2, &n);
    fuzz_run(&whole, &o, text, n, 0);
    fuzz_run(&pieces, &o, text, n, 1 + data[1] % 16);
    fuzz_require_same(&whole, &pieces);
    check_calls(&whole.r);
    REQUIRE(whole.content.len <= n && (whole.content.len == 0 || utf8_valid(whole.content.data, whole.content.len)));
    bool skips = o.dialect.syntax == CHAT_SYNTAX_QWEN_XML || o.dialect.syntax == CHAT_SYNTAX_DEEPSEEK || o.dialect.syntax == CHAT_SYNTAX_KIMI || o.dialect.syntax == CHAT_SYNTAX_HARMONY;
    if (whole.r.n_calls == 0 && !skips) REQUIRE(whole.content.len == n && (n == 0 || memcmp(whole.content.data, text, n) == 0));
    fuzz_clear(&whole);
    fuzz_clear(&pieces);
    free(text);
    return 0;
}
