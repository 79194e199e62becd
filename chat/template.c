/* SPDX-License-Identifier: Apache-2.0
 *
 * The public face: compiling a template, rendering it, continuing a final message, and the prompt as token ids. */
#include "chat/template.h"

#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "base/utf8.h"
#include "chat/internal.h"

enum { COMPILE_BYTES = 256 << 20, DEFAULT_DEPTH = 4000, DEFAULT_STEPS = 50000000, DEFAULT_OUTPUT = 16 << 20, DEFAULT_MEMORY = 256 << 20 };

/* ---- compile ---- */

static int compile(struct chat_template *t, struct arena *scratch, struct chat_error *e)
{
    struct chat_compile c = {.arena = &t->arena, .scratch = scratch, .e = e, .names = chat_dict(scratch)};
    if (c.names.type == CHAT_INVALID) {
        chat__nomem(&c);
        return c.status;
    }
    chat__lex(&c, t->text, t->n_text);
    if (!c.status)
        t->main.body = chat__parse_template(&c);
    if (!c.status)
        chat__resolve(&c, &t->main);
    return c.status;
}

static int refuse(struct chat_error *e, int status, enum chat_error_kind kind, const char *text)
{
    if (e) {
        *e = (struct chat_error){.kind = kind};
        memcpy(e->text, text, strlen(text));
    }
    return status;
}

int chat_template_compile(struct chat_template **out, const char *text, size_t n, struct chat_error *e)
{
    *out = NULL;
    if (e)
        *e = (struct chat_error){0};
    if (n > CHAT_MAX_TEMPLATE)
        return refuse(e, ST_LIMIT, CHAT_ERROR_LIMIT, "the template has more than 1 MiB");
    if (!utf8_valid(text, n))
        return refuse(e, ST_INVALID, CHAT_ERROR_SYNTAX, "the template is not UTF-8");
    struct chat_template *t = mem_zalloc(1, sizeof(*t));
    if (!t)
        return refuse(e, ST_NOMEM, CHAT_ERROR_MEMORY, "out of memory while compiling the template");
    struct arena scratch;
    arena_init(&t->arena, COMPILE_BYTES);
    arena_init(&scratch, COMPILE_BYTES);
    t->text = arena_strndup(&t->arena, n ? text : "", n);
    t->n_text = n;
    int st = t->text ? compile(t, &scratch, e) : refuse(e, ST_NOMEM, CHAT_ERROR_MEMORY, "out of memory while compiling the template");
    arena_clear(&scratch);
    if (st) {
        chat_template_free(t);
        return st;
    }
    *out = t;
    return 0;
}

void chat_template_free(struct chat_template *t)
{
    if (!t)
        return;
    arena_clear(&t->arena);
    mem_free(t);
}

bool chat_template_mentions(const struct chat_template *t, const char *name)
{
    return memmem(t->text, t->n_text, name, strlen(name)) != NULL;
}

/* ---- continue_final_message ---- */

/* transformers' own mark: appended to the last message, looked for in the result. A template that trims takes its
 * trailing space along, which says that the end of the message was trimmed too. */
#define TAG "CONTINUE_FINAL_MESSAGE_TAG "
enum { TAG_LEN = sizeof(TAG) - 1 };

static struct chat_value copy_list(struct chat_run *r, struct chat_value list)
{
    return list.type == CHAT_LIST ? chat__slice(r, list, chat_none(), chat_none(), chat_none()) : list;
}

static struct chat_value copy_dict(struct chat_run *r, struct chat_value dict)
{
    struct chat_value out = chat_dict(&r->arena);
    for (uint32_t i = 0; dict.type == CHAT_DICT && out.type == CHAT_DICT && i < dict.d->n; i++)
        if (chat__dict_put(&r->arena, out.d, dict.d->entry[i].key, dict.d->entry[i].value))
            chat__out_of_memory(r);
    return out.type == CHAT_INVALID ? chat__out_of_memory(r) : out;
}

/* dict with the string under `name` replaced by itself and the tag. */
static struct chat_value tagged(struct chat_run *r, struct chat_value dict, const char *name)
{
    struct chat_value tag = chat_string(&r->arena, TAG, TAG_LEN, CHAT_TRUSTED), out = copy_dict(r, dict);
    if (r->status || tag.type == CHAT_INVALID)
        return chat__out_of_memory(r);
    struct chat_value text = chat__concat(r, chat_dict_get(dict, name), tag);
    if (chat_dict_set(&r->arena, out, name, strlen(name), CHAT_TRUSTED, text))
        chat__out_of_memory(r);
    return out;
}

/* A content list with its last text part tagged; *final is that text. */
static struct chat_value tag_parts(struct chat_run *r, struct chat_value content, struct chat_value *final)
{
    struct chat_value parts = copy_list(r, content);
    for (size_t i = chat_list_len(parts); i-- > 0 && !r->status;) {
        *final = chat_dict_get(parts.l->item[i], "text");
        if (final->type != CHAT_STRING)
            continue;
        parts.l->item[i] = tagged(r, parts.l->item[i], "text");
        return parts;
    }
    return chat__fail(r, CHAT_ERROR_CONTINUE, "continue_final_message is set but the final message has no text to continue");
}

/* Replaces r->vars by a copy whose last message carries the tag. */
static void begin_continue(struct chat_run *r, struct chat_value *final)
{
    struct chat_value vars = copy_dict(r, r->vars), messages = copy_list(r, chat_dict_get(r->vars, "messages"));
    size_t n = messages.type == CHAT_LIST ? messages.l->n : 0;
    if (r->status)
        return;
    if (n == 0) {
        chat__fail(r, CHAT_ERROR_CONTINUE, "continue_final_message is set but there is no message");
        return;
    }
    struct chat_value last = messages.l->item[n - 1], content = chat_dict_get(last, "content");
    *final = content;
    if (content.type == CHAT_STRING) {
        messages.l->item[n - 1] = tagged(r, last, "content");
    } else if (content.type == CHAT_LIST) {
        last = copy_dict(r, last);
        if (!r->status && chat_dict_set(&r->arena, last, "content", 7, CHAT_TRUSTED, tag_parts(r, content, final)))
            chat__out_of_memory(r);
        if (!r->status)
            messages.l->item[n - 1] = last;
    } else {
        chat__fail(r, CHAT_ERROR_CONTINUE, "continue_final_message is set but the final message has no \"content\" to continue");
    }
    if (!r->status && chat_dict_set(&r->arena, vars, "messages", 8, CHAT_TRUSTED, messages))
        chat__out_of_memory(r);
    r->vars = vars;
}

static void cut(struct chat_text *t, size_t len)
{
    t->len = len;
    while (t->n_ranges && t->ranges[t->n_ranges - 1].start >= len)
        t->n_ranges--;
    if (t->n_ranges && t->ranges[t->n_ranges - 1].end > len)
        t->ranges[t->n_ranges - 1].end = (uint32_t)len;
}

static void end_continue(struct chat_run *r, struct chat_text *t, struct chat_value final)
{
    struct chat_value text = chat__text_value(t);
    if (text.type == CHAT_INVALID) {
        chat__out_of_memory(r);
        return;
    }
    size_t at = t->len;
    for (const char *hit, *from = text.s->p; (hit = memmem(from, (size_t)(text.s->p + t->len - from), TAG, TAG_LEN - 1)); from = hit + 1)
        at = (size_t)(hit - text.s->p);
    final = chat__strip(r, final, chat_none(), 3);
    if (at == t->len || !chat__contains(r, final, text)) {
        chat__fail(r, CHAT_ERROR_CONTINUE, "continue_final_message is set but the template does not keep the final message as it is");
        return;
    }
    bool kept_space = t->len - at >= TAG_LEN && t->p[at + TAG_LEN - 1] == ' ';
    cut(t, at);
    if (!kept_space) {
        text = chat__strip(r, chat__str_slice(&r->arena, text, 0, at), chat_none(), 2);
        cut(t, text.s->len);
    }
}

/* ---- render ---- */

static void limits_default(struct chat_limits *l)
{
    l->max_depth = l->max_depth ? l->max_depth : DEFAULT_DEPTH;
    l->max_steps = l->max_steps ? l->max_steps : DEFAULT_STEPS;
    l->max_output = l->max_output ? l->max_output : DEFAULT_OUTPUT;
    l->max_memory = l->max_memory ? l->max_memory : DEFAULT_MEMORY;
}

static void run(struct chat_run *r, struct chat_text *out, bool continue_final)
{
    struct chat_value final = chat_none();
    if (continue_final)
        begin_continue(r, &final);
    r->out = out;
    r->frame = r->status ? NULL : chat__frame(r, &r->t->main, NULL);
    if (!r->frame)
        return;
    chat__scope_enter(r, &r->t->main.scope);
    r->main = r->frame;
    if (!r->status)
        chat__exec(r, r->t->main.body);
    if (!r->status && continue_final)
        end_continue(r, out, final);
}

static void hand_over(struct chat_run *r, const struct chat_text *t, struct chat_output *out)
{
    out->text = mem_alloc(t->len + 1);
    out->request = mem_zalloc(t->n_ranges + 1, sizeof(*out->request));
    if (!out->text || !out->request) {
        chat__fail(r, CHAT_ERROR_MEMORY, "out of memory while rendering the template");
        return;
    }
    if (t->len)
        memcpy(out->text, t->p, t->len);
    out->len = t->len;
    for (uint32_t i = 0; i < t->n_ranges; i++)
        out->request[i] = (struct tokenizer_span){t->ranges[i].start, t->ranges[i].end};
    out->n_request = t->n_ranges;
}

int chat_template_render(const struct chat_template *t, const struct chat_render *render, struct chat_output *out, struct chat_error *e)
{
    struct chat_run r = {.t = t, .limits = render->limits, .vars = render->vars, .now_s = render->now_s, .e = e};
    struct chat_text text;
    *out = (struct chat_output){0};
    if (e)
        *e = (struct chat_error){0};
    if (render->vars.type != CHAT_DICT)
        return refuse(e, ST_NOMEM, CHAT_ERROR_MEMORY, "out of memory while building the variables of the template");
    limits_default(&r.limits);
    arena_init(&r.arena, r.limits.max_memory);
    chat__text_for(&r, &text);
    run(&r, &text, render->continue_final_message);
    if (!r.status)
        hand_over(&r, &text, out);
    arena_clear(&r.arena);
    if (r.status)
        chat_output_clear(out);
    return r.status;
}

void chat_output_clear(struct chat_output *o)
{
    mem_free(o->text);
    mem_free(o->request);
    *o = (struct chat_output){0};
}

int64_t chat_output_encode(const struct chat_output *o, const struct tokenizer *t, int32_t *ids, size_t cap)
{
    return tokenizer_encode_guarded(t, o->text, o->len, TOK_PARSE_SPECIAL, o->request, o->n_request, ids, cap);
}
