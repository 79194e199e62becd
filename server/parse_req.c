/* SPDX-License-Identifier: Apache-2.0
 *
 * The body of POST /v1/completions: the common fields and a prompt. See parse_req.h for the rules. */
#include "server/parse_internal.h"

static int take_completion(struct parse *p, const struct fields *f) {
    int rc = parse__common(p, f);

    if (rc) return rc;
    if ((rc = parse__constraint(p, f))) return rc;
    p->echo = p->out->echo;
    if ((rc = parse__prompt(p, f->v[F_PROMPT], "prompt", p->env->max_prompts, "max-prompts"))) return rc;
    return parse__room(p);
}

int parse_completion(const struct parse_env *env, const char *body, size_t n_bytes, struct arena *a,
                     struct gen_params *out, struct parse_error *e) {
    struct parse p = {.env = env, .arena = a, .out = out, .e = e, .endpoint = PARSE_COMPLETION};

    return parse__body(&p, body, n_bytes, take_completion);
}
