/* SPDX-License-Identifier: Apache-2.0
 *
 * `moed perplexity`: how well the engine predicts a text. Part of the composition root. */
#ifndef MOED_SERVER_CMD_PERPLEXITY_H
#define MOED_SERVER_CMD_PERPLEXITY_H

/* argv without the program's and the sub-command's name. Prints to stdout, errors to stderr. Returns the exit code:
 * 0, 1 = something failed, 2 = bad usage. */
int cmd_perplexity(int argc, char **argv);

#endif
