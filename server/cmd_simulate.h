/* SPDX-License-Identifier: Apache-2.0
 *
 * `moed simulate`: what a routing trace would cost under other budgets, policies and links. Part of the composition root. */
#ifndef MOED_SERVER_CMD_SIMULATE_H
#define MOED_SERVER_CMD_SIMULATE_H

/* argv without the program's and the sub-command's name. Prints to stdout, errors to stderr. Returns the exit code:
 * 0, 1 = something failed, 2 = bad usage. */
int cmd_simulate(int argc, char **argv);

#endif
