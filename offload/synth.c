/* SPDX-License-Identifier: Apache-2.0
 *
 * Ornstein-Uhlenbeck processes in steps of a token: x' = r x + sqrt(1 - r^2) g keeps unit variance and forgets with the
 * time constant -1 / ln r. */
#include "offload/synth.h"

#include <math.h>
#include <stdbool.h>

#include "base/alloc.h"
#include "base/status.h"

/* Fitted by random search to the figures in docs/NUMBERS.md. They do not pin down how much is popularity: other sets fit as
 * well, and policies are compared over several. */
const struct synth_params SYNTH_QWEN3 = {
    .popularity = 0.5f, .topic = 1.64f, .topic_tokens = 55, .context = 0.9f, .context_tokens = 3.2f, .noise = 1, .text_tokens = 500,
};
const struct synth_params SYNTH_POPULAR = {
    .popularity = 1.5f, .topic = 0.43f, .topic_tokens = 700, .context = 1.36f, .context_tokens = 5.4f, .noise = 1, .text_tokens = 500,
};

const struct synth_params SYNTH_UNIFORM = { .topic_tokens = 1, .context_tokens = 1, .noise = 1, .text_tokens = 1e9f };

struct synth_expert { float popularity, topic, context; };

struct synth {
    struct synth_shape shape;
    struct synth_params p;
    uint64_t rng;
    struct synth_expert *experts; /* [n_layers, n_experts] */
    float *best;                  /* [k] logits of the ids chosen so far, falling */
};

static uint64_t next_random(struct synth *s) { /* splitmix64 (Steele, Lea, Flood 2014) */
    uint64_t z = s->rng += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* Four uniforms added up, scaled to unit variance: normal enough, and three times faster than exact. */
static float gauss(struct synth *s) {
    uint64_t r = next_random(s);
    uint32_t sum = (uint32_t)(r & 0xffff) + (uint32_t)(r >> 16 & 0xffff) + (uint32_t)(r >> 32 & 0xffff) + (uint32_t)(r >> 48);
    return ((float)sum - 131070.0f) * (1.0f / 37837.0f);
}

static void new_text(struct synth *s) {
    uint64_t n = (uint64_t)s->shape.n_layers * s->shape.n_experts;
    for (uint64_t i = 0; i < n; i++) {
        s->experts[i].topic = gauss(s);
        s->experts[i].context = gauss(s);
    }
}

int synth_open(struct synth **out, const struct synth_shape *shape, const struct synth_params *p, uint64_t seed, struct err *e) {
    *out = NULL;
    if (shape->k < 1 || shape->k > shape->n_experts || shape->n_layers < 1) {
        return err_set(e, ST_INVALID, "routing of %u of %u experts in %u layers is not possible", shape->k, shape->n_experts, shape->n_layers);
    }
    struct synth *s = mem_zalloc(1, sizeof *s);
    if (s) {
        *s = (struct synth){ .shape = *shape, .p = *p, .rng = seed };
        s->experts = mem_zalloc((size_t)shape->n_layers * shape->n_experts, sizeof *s->experts);
        s->best = mem_zalloc(shape->k, sizeof *s->best);
    }
    if (!s || !s->experts || !s->best) {
        synth_close(s);
        return err_set(e, ST_NOMEM, "out of memory");
    }
    for (uint64_t i = 0; i < (uint64_t)shape->n_layers * shape->n_experts; i++) {
        s->experts[i].popularity = gauss(s) * p->popularity;
    }
    new_text(s);
    *out = s;
    return ST_OK;
}

void synth_close(struct synth *s) {
    if (s) {
        mem_free(s->experts);
        mem_free(s->best);
        mem_free(s);
    }
}

static void choose(struct synth *s, float logit, int32_t id, uint32_t *n, int32_t *ids) {
    uint32_t at = *n;
    if (*n == s->shape.k && logit <= s->best[*n - 1]) {
        return;
    }
    *n += *n < s->shape.k;
    at = *n - 1;
    for (; at > 0 && s->best[at - 1] < logit; at--) {
        s->best[at] = s->best[at - 1];
        ids[at] = ids[at - 1];
    }
    s->best[at] = logit;
    ids[at] = id;
}

void synth_token(struct synth *s, int32_t *ids) {
    const float slow = expf(-1 / s->p.topic_tokens), slow_g = sqrtf(1 - slow * slow);
    const float fast = expf(-1 / s->p.context_tokens), fast_g = sqrtf(1 - fast * fast);
    if ((float)(next_random(s) >> 40) * (1.0f / 16777216.0f) * s->p.text_tokens < 1) {
        new_text(s);
    }
    for (uint32_t l = 0; l < s->shape.n_layers; l++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < s->shape.n_experts; i++) {
            struct synth_expert *x = &s->experts[(size_t)l * s->shape.n_experts + i];
            x->topic = slow * x->topic + slow_g * gauss(s);
            x->context = fast * x->context + fast_g * gauss(s);
            choose(s, x->popularity + s->p.topic * x->topic + s->p.context * x->context + s->p.noise * gauss(s), (int32_t)i, &n, ids);
        }
        ids += s->shape.k;
    }
}
