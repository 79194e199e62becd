/* SPDX-License-Identifier: Apache-2.0
 *
 * The four forms of `prompt`, and of the `input` of embeddings, to token ids. A text that cannot fit the context even if every token were the longest
 * of the vocabulary is refused before it is tokenized, so the work is bounded by the context, not by the body. */
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "model/tokenizer.h"
#include "server/parse_internal.h"

static int too_long(struct parse *p, const char *param, const char *at_least, uint64_t n_ids) {
    parse__fail(p, param, "the prompt is %s%llu tokens long, but the context holds %u tokens, prompt and completion together",
                at_least, (unsigned long long)n_ids, p->env->n_ctx);
    p->e->code = "context_length_exceeded";
    return ST_INVALID;
}

/* Room for at least one new token, unless none is wanted. */
static uint32_t prompt_limit(const struct parse *p) {
    return p->out->max_tokens == 0 ? p->env->n_ctx : p->env->n_ctx - 1;
}

int parse__fits(struct parse *p, const char *param, uint64_t n_ids) {
    return n_ids > prompt_limit(p) ? too_long(p, param, "", n_ids) : 0;
}

int parse__text_fits(struct parse *p, const char *param, size_t n_bytes) {
    uint32_t longest = p->env->max_piece_bytes;

    return longest > 0 && n_bytes / longest > prompt_limit(p) ? too_long(p, param, "at least ", n_bytes / longest) : 0;
}

static int encode(struct parse *p, const char *text, size_t n, const char *param, struct gen_prompt *out) {
    const struct tokenizer *t = p->env->tokenizer;
    size_t cap = tokenizer_max_ids(t, n) + 1;
    int32_t *scratch = mem_zalloc(cap, sizeof *scratch), *ids;

    if (!scratch) return parse__no_memory(p);
    int64_t n_ids = tokenizer_encode(t, text, n, TOK_ADD_SPECIAL | TOK_PARSE_SPECIAL, scratch, cap);
    if (n_ids == 0 && tokenizer_bos(t) >= 0) {
        scratch[0] = tokenizer_bos(t);
        n_ids = 1;
    }
    int rc = 0;
    if (n_ids < 0) {
        rc = parse__no_memory(p);
    } else if (n_ids == 0) {
        rc = parse__fail(p, param, "must not be empty: this vocabulary has no token that begins a text");
    } else if (n_ids > prompt_limit(p)) {
        rc = too_long(p, param, "", (uint64_t)n_ids);
    } else if (!(ids = arena_alloc(p->arena, (size_t)n_ids * sizeof *ids))) {
        rc = parse__no_memory(p);
    } else {
        memcpy(ids, scratch, (size_t)n_ids * sizeof *ids);
        out->ids = ids;
        out->n_ids = (uint32_t)n_ids;
    }
    mem_free(scratch);
    return rc;
}

static int prompt_text(struct parse *p, const cJSON *v, const char *param, struct gen_prompt *out) {
    const char *text = v->valuestring;
    size_t n = strlen(text); /* the pre-scan refused NUL */

    int rc = parse__text_fits(p, param, n);

    if (n == 0 && p->endpoint == PARSE_EMBEDDING) return parse__fail(p, param, "a text must not be empty");
    if (rc == 0) rc = encode(p, text, n, param, out);
    if (rc || !p->echo) return rc;
    out->text = arena_strndup(p->arena, text, n);
    out->n_bytes = n;
    return out->text ? 0 : parse__no_memory(p);
}

static int prompt_ids(struct parse *p, const cJSON *list, const char *param, struct gen_prompt *out) {
    int n = cJSON_GetArraySize(list), i = 0;
    int32_t n_vocab = tokenizer_n_vocab(p->env->tokenizer);
    const cJSON *item;

    if (n == 0) return parse__fail(p, param, "must not be empty");
    if ((uint32_t)n > prompt_limit(p)) return too_long(p, param, "", (uint64_t)n);
    int32_t *ids = arena_alloc(p->arena, (size_t)n * sizeof *ids);
    if (!ids) return parse__no_memory(p);
    cJSON_ArrayForEach(item, list) {
        int64_t id;
        if (!parse__integer(item, &id)) return parse__fail(p, param, "item %d of a token list must be an integer", i);
        if (id < 0 || id >= n_vocab)
            return parse__fail(p, param, "token id %lld (item %d) is outside the vocabulary of %d tokens", (long long)id, i, n_vocab);
        ids[i++] = (int32_t)id;
    }
    out->ids = ids;
    out->n_ids = (uint32_t)n;
    return 0;
}

struct prompt_field { const char *name, *limit; uint32_t most; };

static int prompt_list(struct parse *p, const cJSON *list, uint32_t n, const struct prompt_field *f) {
    const cJSON *item;
    bool texts = cJSON_IsString(list->child);
    uint32_t i = 0;

    if (n > f->most)
        return parse__fail(p, f->name, "has %u entries, at most %u are accepted%s%s%s", n, f->most, f->limit ? " (option " : "", f->limit ? f->limit : "",
                           f->limit ? ")" : "");
    p->out->prompts = arena_zalloc(p->arena, n, sizeof *p->out->prompts);
    if (!p->out->prompts) return parse__no_memory(p);
    cJSON_ArrayForEach(item, list) {
        struct gen_prompt *out = &p->out->prompts[i++];
        int rc;
        if (texts ? !cJSON_IsString(item) : !cJSON_IsArray(item))
            return parse__fail(p, f->name, "must be a string, or a list of strings, of token ids, or of token id lists, not a mix");
        rc = texts ? prompt_text(p, item, f->name, out) : prompt_ids(p, item, f->name, out);
        if (rc) return rc;
    }
    p->out->n_prompts = n;
    return 0;
}

int parse__prompt(struct parse *p, const cJSON *v, const char *name, uint32_t most, const char *limit) {
    struct prompt_field f = {.name = name, .limit = limit, .most = most};

    if (!v) return parse__fail(p, name, "is required");
    if (cJSON_IsArray(v) && !v->child) return parse__fail(p, name, "must not be an empty list");
    if (cJSON_IsArray(v) && !cJSON_IsNumber(v->child)) return prompt_list(p, v, (uint32_t)cJSON_GetArraySize(v), &f);
    if (!cJSON_IsArray(v) && !cJSON_IsString(v)) return parse__fail(p, name, "must be a string or a list");
    p->out->prompts = arena_zalloc(p->arena, 1, sizeof *p->out->prompts);
    if (!p->out->prompts) return parse__no_memory(p);
    p->out->n_prompts = 1;
    return cJSON_IsString(v) ? prompt_text(p, v, name, p->out->prompts) : prompt_ids(p, v, name, p->out->prompts);
}
