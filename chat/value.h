/* SPDX-License-Identifier: Apache-2.0
 *
 * Values a chat template works with, and how a caller builds them: Python's None, bool, int, float, str, list and
 * dict (insertion order, string keys here). A value is 16 bytes, passed by copy; what it points at lives in the arena
 * it was built in until arena_clear. Building is single-threaded per arena; built values may be read by many threads.
 *
 * A string knows which of its bytes a client wrote (CHAT_REQUEST). The mark survives slicing, trimming, replacing,
 * joining and the rest, so that the rendered prompt can say of every byte whose it is (chat/template.h).
 *
 * No builder needs its result checked: when memory or the arena's cap is exhausted it gives a CHAT_INVALID value, and
 * putting one into a container returns ST_NOMEM, as does every later step on an invalid container. Check the last. */
#ifndef MOED_CHAT_VALUE_H
#define MOED_CHAT_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arena;

enum chat_type {
    CHAT_INVALID, /* an allocation failed */
    CHAT_NONE,
    CHAT_BOOL,
    CHAT_INT,
    CHAT_FLOAT,
    CHAT_STRING,
    CHAT_LIST,
    CHAT_DICT,
    CHAT_N_PUBLIC, /* above: kinds that exist only while a template runs */
};

enum chat_origin {
    CHAT_TRUSTED, /* ours, the model's, the operator's: may contain control tokens   */
    CHAT_REQUEST, /* a client wrote it: must never become a control token            */
};

struct chat_value {
    uint8_t type;  /* enum chat_type     */
    uint8_t flags; /* private            */
    union {
        bool b;
        int64_t i;
        double f;
        const struct chat_str *s;
        struct chat_list *l;
        struct chat_dict *d;
        void *p; /* private kinds */
    };
};

struct chat_value chat_none(void);
struct chat_value chat_bool(bool b);
struct chat_value chat_int(int64_t i);
struct chat_value chat_float(double f);
/* Copies the bytes; what is not UTF-8 becomes U+FFFD. Mark as trusted what the server has checked against a fixed list,
 * such as a role: templates build "<|user|>" from it. */
struct chat_value chat_string(struct arena *a, const char *p, size_t n, enum chat_origin origin);
struct chat_value chat_list(struct arena *a);
struct chat_value chat_dict(struct arena *a);

/* 0 or ST_NOMEM. The container must not be shared with a running render. */
int chat_list_push(struct arena *a, struct chat_value list, struct chat_value item);
/* Copies the key; a key that is there keeps its place and gets the new value, as in Python. */
int chat_dict_set(struct arena *a, struct chat_value dict, const char *key, size_t n_key, enum chat_origin origin, struct chat_value item);

/* Reading back; views. chat_dict_get gives CHAT_INVALID for an absent key, a string's bytes are not NUL-terminated. */
size_t chat_list_len(struct chat_value list);
struct chat_value chat_list_at(struct chat_value list, size_t i);
struct chat_value chat_dict_get(struct chat_value dict, const char *key);
const char *chat_string_bytes(struct chat_value s, size_t *n);

#endif
