/* SPDX-License-Identifier: Apache-2.0
 *
 * Scanned JSON text as a value for a chat template. Integers stay integers and 1.0 stays a float, as in Python's json. */
#ifndef MOED_SERVER_JSON_VALUE_H
#define MOED_SERVER_JSON_VALUE_H

#include "base/arena.h"
#include "chat/value.h"

/* p[0..n) is one value that passed a json scan (so its depth is bounded). CHAT_INVALID when memory ran out. */
struct chat_value json_value(struct arena *a, const char *p, size_t n, enum chat_origin origin);

#endif
