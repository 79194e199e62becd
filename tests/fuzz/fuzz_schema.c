/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON schemas, or any text in their place. What must hold besides "no crash" is in mask_walk.h. */
#include <stdint.h>

#include "tests/fuzz/mask_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1 || size > 4096) return 0;
    struct grammar_part part = {.kind = GRAMMAR_SCHEMA, .closed = size % 2, .text = (const char *)data, .n_bytes = size};
    struct grammar_spec spec = {.parts = &part, .n_parts = 1};
    compile_and_walk(&spec, (uint32_t)size);
    return 0;
}
