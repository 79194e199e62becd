/* SPDX-License-Identifier: Apache-2.0
 *
 * The chat template in force: the file of option chat-template, or what the model file holds. */
#ifndef MOED_SERVER_CMD_TEMPLATE_H
#define MOED_SERVER_CMD_TEMPLATE_H

#include "config/config.h"
#include "model/gguf.h"
#include "model/tokenizer.h"
#include "server/chat_model.h"

int cmd_open_chat(struct chat_model **out, const struct config *c, const struct gguf *g, const struct tokenizer *t, struct err *e);

#endif
