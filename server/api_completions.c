/* SPDX-License-Identifier: Apache-2.0
 *
 * POST /v1/completions. */
#include "server/gen.h"

void api_completions(struct exchange *x) {
    static const struct gen_format format = {.object = "text_completion", .chunk_object = "text_completion", .id_prefix = "cmpl-",
                                             .parse = parse_completion, .put_choice = completion__put_choice, .put_usage = completion__put_usage};

    gen_start(x, &format);
}
