/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files that take replies apart share: reply.c (the walk), calls_json.c and calls_xml.c (what is inside a
 * call), calls_draft.c (calls while they are written), harmony.c (gpt-oss, whose whole reply is marked up), dialect.c (which is which). */
#ifndef MOED_CHAT_REPLY_INTERNAL_H
#define MOED_CHAT_REPLY_INTERNAL_H

#include "base/json.h"
#include "base/status.h"
#include "chat/reply.h"

struct text_view { const char *p; size_t n; };

/* A block that may hold calls. `parse` gets what is between the marks: 0 with the calls added; ST_LIMIT when the block
 * is a beginning of something valid (the close found lies inside a string); ST_INVALID when it is none. */
struct chat_mark {
    const char *open, *close; /* close NULL = the end of the reply */
    int (*parse)(struct chat_reply *r, const struct chat_mark *m, const char *p, size_t n);
    /* The same text as far as it is there: extends the drafts by what `parse` will make of it when all goes well. */
    void (*draft)(struct chat_reply *r, const struct chat_mark *m, const char *p, size_t n);
};

struct chat_syntax_row {
    const char *name;
    const struct chat_mark *marks; /* ends with open = NULL */
    const char *const *skip;       /* marks around the calls, which mean nothing by themselves; NULL or ends with NULL */
    const char *const *inner;      /* marks inside a call; the same */
    bool bare;                     /* a reply that begins with '{' is tried as a call: marks[0] */
    uint8_t id_chars;              /* length of generated ids after their prefix */
    const char *id_prefix;
};

extern const struct chat_syntax_row chat__syntaxes[CHAT_N_SYNTAXES];

enum reply_state { REPLY_START, REPLY_REASONING, REPLY_CONTENT, REPLY_BLOCK, REPLY_HEADER, REPLY_BODY, REPLY_CALL };

/* ---- reply.c ---- */
void chat__content(struct chat_reply *r, const char *p, size_t n);
void chat__reasoning(struct chat_reply *r, const char *p, size_t n);
void chat__drop_held(struct chat_reply *r, size_t n);
void chat__begin_block(struct chat_reply *r); /* calls may be added from here on */
bool chat__calls_room(struct chat_reply *r);  /* allocates calls and drafts when they are not there; false = no memory */
void chat__undo_calls(struct chat_reply *r, uint32_t n_calls, size_t n_strings);

/* A call with a name and a JSON object as arguments ("" = none, a string literal is looked into). id may be NULL.
 * ST_INVALID when they are not; ST_NOMEM sets failed. */
struct call_parts { const char *name, *arguments, *id; size_t n_name, n_arguments, n_id; };
int chat__add_call(struct chat_reply *r, const struct call_parts *c);
const struct chat_tool *chat__find_tool(const struct chat_reply *r, const char *name, size_t n);

/* Fills name, id and serial of a call. ST_INVALID when it can be none. */
int chat__head_call(struct chat_reply *r, const struct call_parts *c, struct buf *strings, uint32_t nth, struct chat_call *out);

/* The first of the marks, or the place from which one may begin when more text comes. */
struct mark_hit { size_t at; int index; }; /* at = n: nothing; index -1: only a beginning */
struct mark_hit chat__find_mark(const char *p, size_t n, const char *const *marks, int n_marks, bool final);

/* ---- harmony.c: true when it moved ---- */
bool chat__harmony_step(struct chat_reply *r);
bool chat__harmony_wants(const char *piece, size_t n);

/* ---- calls_json.c, calls_xml.c ---- */
int chat__json_call(struct chat_reply *r, const char *p, size_t n); /* one scanned object, or an array of them */
int chat__parse_tool_call(struct chat_reply *r, const struct chat_mark *m, const char *p, size_t n);
int chat__parse_mistral(struct chat_reply *r, const struct chat_mark *m, const char *p, size_t n);
int chat__parse_llama(struct chat_reply *r, const struct chat_mark *m, const char *p, size_t n);
int chat__parse_python_tag(struct chat_reply *r, const struct chat_mark *m, const char *p, size_t n);
int chat__parse_deepseek(struct chat_reply *r, const struct chat_mark *m, const char *p, size_t n);
int chat__parse_kimi(struct chat_reply *r, const struct chat_mark *m, const char *p, size_t n);
int chat__parse_function_tag(struct chat_reply *r, const struct chat_mark *m, const char *p, size_t n); /* behind "<function=" */
int chat__parse_arg_pairs(struct chat_reply *r, const char *p, size_t n);
int chat__parse_invoke(struct chat_reply *r, const struct chat_mark *m, const char *p, size_t n);

/* The beginning of {"name": "f", "arguments": {, also with an "id" or a "type" before: 0 with the parts (arguments: from the brace
 * to the end of the text), ST_LIMIT when it may become one, else ST_INVALID. */
int chat__json_head(const char *p, size_t n, struct buf *name, struct call_parts *out);
/* NAME[CALL_ID]ID[ARGS] */
void chat__mistral_head(const char *p, size_t n, struct call_parts *out);
/* What stands before the arguments; `arguments` is the text behind it. ST_LIMIT, ST_INVALID as above. */
int chat__deepseek_head(const char *p, size_t n, struct call_parts *out);
int chat__kimi_head(const char *p, size_t n, struct call_parts *out);
/* One parameter of each syntax: 0 with the pair put to args and *rest behind it; else *rest is as it was. */
int chat__take_parameter(const struct chat_tool *tool, struct text_view *rest, struct buf *args);
int chat__take_arg_pair(const struct chat_tool *tool, struct text_view *rest, struct buf *args);
const char *chat__invoke_prefix(const struct chat_mark *m);
int chat__take_invoke(struct text_view *rest, const char *prefix, struct text_view *name);
int chat__take_invoke_parameter(const struct chat_tool *tool, struct text_view *rest, const char *prefix, struct buf *args);
int chat__take_invoke_end(struct text_view *rest, const char *prefix);

/* ---- calls_draft.c ---- */
void chat__draft_tool_call(struct chat_reply *r, const struct chat_mark *m, const char *p, size_t n);
void chat__draft_function_tag(struct chat_reply *r, const struct chat_mark *m, const char *p, size_t n);
void chat__draft_mistral(struct chat_reply *r, const struct chat_mark *m, const char *p, size_t n);
void chat__draft_llama(struct chat_reply *r, const struct chat_mark *m, const char *p, size_t n);
void chat__draft_deepseek(struct chat_reply *r, const struct chat_mark *m, const char *p, size_t n);
void chat__draft_kimi(struct chat_reply *r, const struct chat_mark *m, const char *p, size_t n);
void chat__draft_invoke(struct chat_reply *r, const struct chat_mark *m, const char *p, size_t n);
void chat__draft_harmony(struct chat_reply *r);
void chat__drop_drafts(struct chat_reply *r);

/* ---- text ---- */
static const struct json_limits chat__json_limits = {48, 256 * 1024};

bool chat__space(char c);
struct text_view chat__trim(const char *p, size_t n);
bool chat__starts(const char *p, size_t n, const char *prefix);
const char *chat__find(const char *p, size_t n, const char *what); /* NULL = not there */

#endif
