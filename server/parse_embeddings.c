/* SPDX-License-Identifier: Apache-2.0
 *
 * The body of POST /v1/embeddings. See parse_req.h for the rules. */
#include <string.h>

#include "base/status.h"
#include "server/limits.h"
#include "server/parse_internal.h"

/* Bytes one number takes in a response, at most: base64 of a float; a minus, nine digits, point, exponent, comma. */
enum { BASE64_BYTES = 6, TEXT_BYTES = 16 };

static int take_format(struct parse *p, const struct fields *f) {
    const cJSON *v = f->v[F_ENCODING_FORMAT];

    if (!v) return 0;
    p->out->base64 = cJSON_IsString(v) && strcmp(v->valuestring, "base64") == 0;
    if (p->out->base64 || (cJSON_IsString(v) && strcmp(v->valuestring, "float") == 0)) return 0;
    return parse__fail(p, "encoding_format", "must be \"float\" or \"base64\"");
}

static int take_embedding(struct parse *p, const struct fields *f) {
    uint32_t n_dims = p->env->n_embd;
    int rc;

    if ((rc = parse__model(p, f))) return rc;
    if ((rc = take_format(p, f))) return rc;
    if ((rc = parse__terms(p, f))) return rc;
    if ((rc = parse__u32(p, f, F_DIMENSIONS, 1, INT32_MAX, &n_dims))) return rc;
    if (n_dims != p->env->n_embd)
        return parse__fail(p, "dimensions", "this model's embeddings have %u dimensions and are not cut; found %u", p->env->n_embd, n_dims);
    p->out->embeds = true;
    p->out->n = 1; /* max_tokens is 0: a prompt may fill the context */
    if ((rc = parse__prompt(p, f->v[F_INPUT], "input", PARSE_MAX_INPUTS, NULL))) return rc;
    uint64_t bytes = (uint64_t)p->out->n_prompts * n_dims * (p->out->base64 ? BASE64_BYTES : TEXT_BYTES);
    if (bytes > LIMIT_RESPONSE_BYTES / 8 * 7)
        return parse__fail(p, "input", "%u embeddings of %u dimensions are too much for one response; give fewer%s", p->out->n_prompts, n_dims,
                           p->out->base64 ? "" : ", or ask for base64");
    return 0;
}

int parse_embedding(const struct parse_env *env, const char *body, size_t n_bytes, struct arena *a, struct gen_params *out, struct parse_error *e) {
    struct parse p = {.env = env, .arena = a, .out = out, .e = e, .endpoint = PARSE_EMBEDDING};

    return parse__body(&p, body, n_bytes, take_embedding);
}
