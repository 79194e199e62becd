/* SPDX-License-Identifier: Apache-2.0
 *
 * The bodies of /tokenize and /detokenize. They generate nothing, so the context does not bound them; the body does. */
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "model/tokenizer.h"
#include "server/parse_internal.h"

int parse__encode(struct parse *p, const char *text, size_t n, unsigned flags, const int32_t **ids, size_t *n_ids) {
    const struct tokenizer *t = p->env->tokenizer;
    size_t cap = tokenizer_max_ids(t, n) + 1;
    int32_t *scratch = mem_zalloc(cap, sizeof *scratch), *out = NULL;
    int64_t got = scratch ? tokenizer_encode(t, text, n, flags, scratch, cap) : ST_NOMEM;

    if (got >= 0) out = arena_alloc(p->arena, ((size_t)got + 1) * sizeof *out);
    if (out) memcpy(out, scratch, (size_t)got * sizeof *out);
    mem_free(scratch);
    if (!out) return parse__no_memory(p);
    *ids = out;
    *n_ids = (size_t)got;
    return 0;
}

struct text_parse { struct parse p; struct text_params *out; bool back; };

/* llama-server says content, add_special; vLLM says prompt, add_special_tokens, with other defaults. */
static int take_text(struct parse *p, const struct fields *f, struct text_params *out) {
    const cJSON *text = f->v[F_CONTENT] ? f->v[F_CONTENT] : f->v[F_PROMPT];
    bool special = !f->v[F_CONTENT], parse_special = true;
    int rc;

    if (f->v[F_CONTENT] && !cJSON_IsString(f->v[F_CONTENT])) return parse__fail(p, "content", "must be a string");
    if (f->v[F_PROMPT] && !cJSON_IsString(f->v[F_PROMPT])) return parse__fail(p, "prompt", "must be a string");
    if ((rc = parse__bool_field(p, f, F_ADD_SPECIAL, &special))) return rc;
    if ((rc = parse__bool_field(p, f, F_ADD_SPECIAL_TOKENS, &special))) return rc;
    if ((rc = parse__bool_field(p, f, F_PARSE_SPECIAL, &parse_special))) return rc;
    if ((rc = parse__bool_field(p, f, F_WITH_PIECES, &out->with_pieces))) return rc;
    if (f->v[F_MESSAGES]) { /* a chat request, parsed as one; its fields say what is added */
        out->is_messages = true;
        return 0;
    }
    if (!text) return parse__fail(p, "content", "is required, or prompt, or messages");
    unsigned flags = (special ? TOK_ADD_SPECIAL : 0) | (parse_special ? TOK_PARSE_SPECIAL : 0);
    return parse__encode(p, text->valuestring, strlen(text->valuestring), flags, &out->ids, &out->n_ids);
}

static int take_ids(struct parse *p, const struct fields *f, struct text_params *out) {
    const cJSON *list = f->v[F_TOKENS], *item;
    int32_t n_vocab = tokenizer_n_vocab(p->env->tokenizer);
    size_t n = 0;

    if (!list) return parse__fail(p, "tokens", "is required");
    if (!cJSON_IsArray(list)) return parse__fail(p, "tokens", "must be a list of token ids");
    int32_t *ids = arena_alloc(p->arena, ((size_t)cJSON_GetArraySize(list) + 1) * sizeof *ids);
    if (!ids) return parse__no_memory(p);
    cJSON_ArrayForEach(item, list) {
        int64_t id;
        if (!parse__integer(item, &id) || id < 0 || id >= n_vocab) return parse__fail(p, "tokens", "must be token ids from 0 to %d", n_vocab - 1);
        ids[n++] = (int32_t)id;
    }
    out->ids = ids;
    out->n_ids = n;
    return 0;
}

static int take_body(struct parse *p, const struct fields *f) {
    struct text_parse *t = (struct text_parse *)p;

    return t->back ? take_ids(p, f, t->out) : take_text(p, f, t->out);
}

static int parse_text(bool back, const struct parse_env *env, const char *body, size_t n, struct arena *a, struct text_params *out, struct parse_error *e) {
    struct gen_params unused;
    struct text_parse t = {.p = {.env = env, .arena = a, .out = &unused, .e = e, .endpoint = PARSE_TEXT}, .out = out, .back = back};

    *out = (struct text_params){0};
    return parse__body(&t.p, body, n, take_body);
}

int parse_tokenize(const struct parse_env *env, const char *body, size_t n_bytes, struct arena *a, struct text_params *out, struct parse_error *e) {
    struct gen_params chat;
    int rc = parse_text(false, env, body, n_bytes, a, out, e);

    if (rc || !out->is_messages) return rc;
    rc = parse_chat_tokens(env, body, n_bytes, a, &chat, e);
    if (rc) return rc;
    out->ids = chat.prompts[0].ids;
    out->n_ids = chat.prompts[0].n_ids;
    return 0;
}

int parse_detokenize(const struct parse_env *env, const char *body, size_t n_bytes, struct arena *a, struct text_params *out, struct parse_error *e) {
    return parse_text(true, env, body, n_bytes, a, out, e);
}
