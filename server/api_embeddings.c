/* SPDX-License-Identifier: Apache-2.0
 *
 * POST /v1/embeddings: the prompts go through the layers like any others (generate.c); here is the document of what came out. */
#include <math.h>
#include <string.h>

#include "server/gen.h"

/* What makes the vector one of length 1, as OpenAI's are. A mean and a sum then are the same. */
static double scale_of(const double *v, uint32_t n) {
    double sum = 0;

    for (uint32_t i = 0; i < n; i++) sum += v[i] * v[i];
    return sum > 0 ? 1 / sqrt(sum) : 1;
}

static void put_floats(struct buf *out, const double *v, uint32_t n, double scale) {
    buf_putc(out, '[');
    for (uint32_t i = 0; i < n; i++) {
        float f = (float)(v[i] * scale);
        if (isfinite(f)) buf_printf(out, i ? ",%.9g" : "%.9g", (double)f); /* nine digits are every bit of a float */
        else buf_puts(out, i ? ",null" : "null");
    }
    buf_putc(out, ']');
}

/* Little-endian floats, three bytes at a time. */
static void put_base64(struct buf *out, const double *v, uint32_t n, double scale) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t bits = 0, n_bits = 0;

    buf_putc(out, '"');
    for (uint32_t i = 0; i < 4 * n; i++) {
        float f = (float)(v[i / 4] * scale);
        uint32_t word;
        memcpy(&word, &f, sizeof word);
        bits = (bits << 8 | (word >> i % 4 * 8 & 255)) & 0xffff;
        for (n_bits += 8; n_bits >= 6; n_bits -= 6) buf_putc(out, digits[bits >> (n_bits - 6) & 63]);
    }
    if (n_bits > 0) buf_putc(out, digits[bits << (6 - n_bits) & 63]);
    buf_puts(out, n % 3 == 0 ? "\"" : n % 3 == 1 ? "==\"" : "=\"");
}

static void put_embeddings(struct buf *out, const struct gen *g) {
    const char *model = g->server->opts->model_name;
    uint32_t n = g->server->api->env.n_embd;

    buf_puts(out, "{\"object\":\"list\",\"data\":[");
    for (uint32_t i = 0; i < g->n_choices; i++) {
        const double *v = g->choices[i].req.pooled;
        buf_printf(out, "%s{\"object\":\"embedding\",\"index\":%u,\"embedding\":", i ? "," : "", i);
        (g->params.base64 ? put_base64 : put_floats)(out, v, n, scale_of(v, n));
        buf_putc(out, '}');
    }
    buf_puts(out, "],\"model\":");
    json_put_string(out, model, strlen(model));
    buf_printf(out, ",\"usage\":{\"prompt_tokens\":%u,\"total_tokens\":%u}}", g->prompt_tokens, g->prompt_tokens);
}

void api_embeddings(struct exchange *x) {
    static const struct gen_format format = {.parse = parse_embedding, .put_embeddings = put_embeddings};

    gen_start(x, &format);
}
