/* SPDX-License-Identifier: Apache-2.0
 *
 * Grammars from text: the first byte picks GBNF or a regular expression, with or without a trigger; the rest is the text. What
 * must hold besides "no crash" is in mask_walk.h. */
#include <stdint.h>

#include "tests/fuzz/mask_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1 || size > 4096) return 0;
    struct grammar_part part = {.kind = data[0] % 2 ? GRAMMAR_GBNF : GRAMMAR_REGEX, .text = (const char *)data + 1, .n_bytes = size - 1};
    const char *trigger = "<t";
    struct grammar_spec spec = {.parts = &part, .n_parts = 1, .triggers = &trigger, .n_triggers = data[0] >> 7, .again = data[0] >> 6 & 1};
    compile_and_walk(&spec, (uint32_t)size);
    return 0;
}
