/* SPDX-License-Identifier: Apache-2.0
 *
 * Renders chat templates for a test in another language. On stdin records, little-endian:
 *   'T' u32 n, n bytes       compile this template, it becomes the current one
 *   'R' u8 continue_final, i64 now_s, u32 max_steps (0: default), value     render it with these variables (a dict)
 * and after each one the answer on stdout: i32 status, i32 kind, i32 line, u32 n, n bytes of output or error text,
 * u32 spans, {u32 start, u32 end} each; with a vocabulary as argument, `chat_render FILE.gguf`, also i64 ids of the
 * output and {i32 id, i32 is it a control token} each. A value is a letter and what belongs to it: N, T, F, i i64, f f64,
 * s/S u32 n and bytes (of the request / trusted), l u32 n and values, d u32 n and (string, value) pairs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "chat/template.h"
#include "model/gguf.h"

static void get(void *p, size_t n)
{
    if (n && fread(p, 1, n, stdin) != n)
        exit(2);
}

static void put(const void *p, size_t n)
{
    if (n && fwrite(p, 1, n, stdout) != n)
        exit(2);
}

static uint32_t get_u32(void)
{
    uint32_t n;
    get(&n, sizeof(n));
    return n;
}

static char *get_bytes(uint32_t *n)
{
    *n = get_u32();
    char *p = malloc(*n + 1u);
    if (!p)
        exit(2);
    get(p, *n);
    return p;
}

static struct chat_value get_value(struct arena *a)
{
    struct chat_value v = chat_none(), item;
    char letter;
    get(&letter, 1);
    uint32_t n;
    switch (letter) {
    case 'T':
    case 'F':
        return chat_bool(letter == 'T');
    case 'i':
        get(&v.i, sizeof(v.i));
        return chat_int(v.i);
    case 'f':
        get(&v.f, sizeof(v.f));
        return chat_float(v.f);
    case 's':
    case 'S': {
        char *p = get_bytes(&n);
        v = chat_string(a, p, n, letter == 's' ? CHAT_REQUEST : CHAT_TRUSTED);
        free(p);
        return v;
    }
    case 'l':
        v = chat_list(a);
        for (n = get_u32(); n; n--) {
            item = get_value(a);
            if (chat_list_push(a, v, item))
                exit(3);
        }
        return v;
    case 'd':
        v = chat_dict(a);
        for (n = get_u32(); n; n--) {
            struct chat_value key = get_value(a);
            size_t len;
            const char *p = chat_string_bytes(key, &len);
            item = get_value(a);
            if (chat_dict_set(a, v, p, len, CHAT_REQUEST, item))
                exit(3);
        }
        return v;
    default:
        return v;
    }
}

static void answer(int status, const struct chat_error *e, const struct chat_output *o)
{
    int32_t head[3] = {status, (int32_t)e->kind, e->line};
    const char *text = status ? e->text : o->text;
    uint32_t n = (uint32_t)(status ? strlen(e->text) : o->len), n_spans = (uint32_t)o->n_request;
    put(head, sizeof(head));
    put(&n, sizeof(n));
    put(text, n);
    put(&n_spans, sizeof(n_spans));
    for (uint32_t i = 0; i < n_spans; i++) {
        uint32_t span[2] = {(uint32_t)o->request[i].start, (uint32_t)o->request[i].end};
        put(span, sizeof(span));
    }
}

static void answer_ids(const struct chat_output *o, const struct tokenizer *v)
{
    size_t cap = tokenizer_max_ids(v, o->len);
    int32_t *ids = malloc(cap * sizeof(*ids));
    int64_t n = ids ? chat_output_encode(o, v, ids, cap) : -1;
    put(&n, sizeof(n));
    for (int64_t i = 0; i < n; i++) {
        int32_t about[2] = {ids[i], tokenizer_is_control(v, ids[i])};
        put(about, sizeof(about));
    }
    free(ids);
}

int main(int argc, char **argv)
{
    struct chat_template *t = NULL;
    struct gguf *g = NULL;
    struct tokenizer *v = NULL;
    if (argc > 1 && (gguf_open(&g, argv[1], NULL) || tokenizer_open(&v, g, NULL)))
        return 5;
    for (int c; (c = getchar()) != EOF;) {
        struct chat_error e = {0};
        struct chat_output o = {0};
        int status;
        if (c == 'T') {
            uint32_t n;
            char *text = get_bytes(&n);
            chat_template_free(t);
            status = chat_template_compile(&t, text, n, &e);
            free(text);
        } else {
            struct arena a;
            struct chat_render r = {0};
            char cont;
            arena_init(&a, (size_t)1 << 30);
            get(&cont, 1);
            get(&r.now_s, sizeof(r.now_s));
            r.limits.max_steps = get_u32();
            r.continue_final_message = cont != 0;
            r.vars = get_value(&a);
            if (!t)
                return 4;
            status = chat_template_render(t, &r, &o, &e);
            arena_clear(&a);
        }
        answer(status, &e, &o);
        if (v)
            answer_ids(&o, v);
        fflush(stdout);
        chat_output_clear(&o);
    }
    chat_template_free(t);
    tokenizer_close(v);
    gguf_close(g);
    return 0;
}
