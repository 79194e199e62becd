/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the chat template interpreter: the input is a template, rendered over a fixed conversation with small limits.
 * The request's strings consist of characters that templates can hardly come by otherwise (U+E000..U+E003), so each of
 * these in the output must be marked as the request's; spans must be ordered and inside. */
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "chat/template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define PRIVATE "\xee\x80"

static void set(struct arena *a, struct chat_value d, const char *key, struct chat_value v)
{
    if (chat_dict_set(a, d, key, strlen(key), CHAT_REQUEST, v))
        __builtin_trap();
}

static void push(struct arena *a, struct chat_value list, struct chat_value v)
{
    if (chat_list_push(a, list, v))
        __builtin_trap();
}

static struct chat_value text(struct arena *a, const char *z)
{
    return chat_string(a, z, strlen(z), CHAT_REQUEST);
}

static struct chat_value message(struct arena *a, const char *role, const char *content)
{
    struct chat_value m = chat_dict(a), calls = chat_list(a), call = chat_dict(a), fn = chat_dict(a), args = chat_dict(a);
    set(a, args, PRIVATE "\x80", text(a, PRIVATE "\x81" PRIVATE "\x82"));
    set(a, args, "n", chat_float(1.5));
    set(a, fn, "name", text(a, PRIVATE "\x83"));
    set(a, fn, "arguments", args);
    set(a, call, "function", fn);
    push(a, calls, call);
    set(a, m, "role", chat_string(a, role, strlen(role), CHAT_TRUSTED));
    set(a, m, "content", text(a, content));
    set(a, m, "tool_calls", calls);
    return m;
}

static struct chat_value variables(struct arena *a)
{
    struct chat_value vars = chat_dict(a), messages = chat_list(a), xs = chat_list(a);
    push(a, messages, message(a, "user", PRIVATE "\x80 " PRIVATE "\x81\n" PRIVATE "\x82, " PRIVATE "\x80"));
    push(a, messages, message(a, "assistant", ""));
    for (int64_t i = 3; i > 0; i--)
        push(a, xs, chat_int(i));
    set(a, vars, "messages", messages);
    set(a, vars, "xs", xs);
    set(a, vars, "s", text(a, " " PRIVATE "\x80" PRIVATE "\x81 " PRIVATE "\x82"));
    set(a, vars, "tools", chat_none());
    set(a, vars, "n", chat_int(7));
    set(a, vars, "f", chat_float(0.1));
    set(a, vars, "add_generation_prompt", chat_bool(true));
    return vars;
}

static bool inside(const struct chat_output *o, size_t at)
{
    for (size_t i = 0; i < o->n_request; i++)
        if (at >= o->request[i].start && at < o->request[i].end)
            return true;
    return false;
}

static void check(const struct chat_output *o, bool marked)
{
    for (size_t i = 0; i < o->n_request; i++)
        if (o->request[i].start >= o->request[i].end || o->request[i].end > o->len || (i && o->request[i].start <= o->request[i - 1].end))
            __builtin_trap();
    for (size_t i = 0; marked && i + 2 < o->len && i < 10000; i++)
        if (memcmp(o->text + i, PRIVATE, 2) == 0 && (unsigned char)o->text[i + 2] <= 0x83 && !inside(o, i))
            __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct chat_template *t = NULL;
    struct chat_error e;
    const char *source = (const char *)data;
    if (chat_template_compile(&t, source, size, &e))
        return 0;
    /* written in the template, by an escape, or as %c or {:c} of a number: five digits are needed */
    bool can_write_private = memmem(source, size, PRIVATE, 2) || memchr(source, '\\', size) || (memchr(source, 'c', size) && memchr(source, '5', size));
    struct arena a;
    arena_init(&a, 1 << 20);
    struct chat_render r = {.vars = variables(&a), .now_s = 1764547200, .continue_final_message = size & 1,
                            .limits = {.max_steps = 20000, .max_memory = 8 << 20, .max_output = 1 << 18}};
    struct chat_output o;
    if (chat_template_render(t, &r, &o, &e) == 0)
        check(&o, !can_write_private);
    chat_output_clear(&o);
    arena_clear(&a);
    chat_template_free(t);
    return 0;
}
