/* SPDX-License-Identifier: Apache-2.0
 *
 * What parse_chat.c (messages, template) and parse_tools.c (tools, tool_choice) share. */
#ifndef MOED_SERVER_PARSE_CHAT_H
#define MOED_SERVER_PARSE_CHAT_H

#include "base/buf.h"
#include "server/parse_internal.h"

struct chat_parse {
    struct parse *p;
    struct arena values;               /* of this parse                                  */
    struct buf scratch;                /* one unescaped string at a time                 */
    const struct chat_template *tmpl;
    struct chat_value vars, messages;
    struct chat_value tools_text;      /* for a template that shows no tools: what the system message says of them; else CHAT_NONE */
    uint32_t n_last_assistant;         /* assistant messages at the end                  */
    bool last_has_calls, continues;
    bool lost;                         /* an unescaped string did not fit into memory    */
};

/* tools, tool_choice, parallel_tool_calls: fills p->out->chat and the template's variable, chooses the template. */
int parse__tools(struct chat_parse *c, const struct fields *f);

int parse__forced_calls(struct parse *p, const struct fields *f); /* after parse__constraint: what tool_choice demands */

int parse__tools_in_system(struct chat_parse *c, struct chat_value first); /* adds tools_text to the first message, or a message before it */

const char *parse__literal(struct chat_parse *c, const char *p, size_t n, size_t *len); /* unescaped, NUL-terminated; until the next call */
int parse__set(struct chat_parse *c, struct chat_value dict, const char *key, struct chat_value v);
struct chat_value parse__string(struct chat_parse *c, const char *s); /* one of ours */

#endif
