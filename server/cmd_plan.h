/* SPDX-License-Identifier: Apache-2.0
 *
 * `moed plan`: what a model takes and how fast it can be, before it is loaded. Part of the composition root. */
#ifndef MOED_SERVER_CMD_PLAN_H
#define MOED_SERVER_CMD_PLAN_H

/* argv without the program's and the sub-command's name. Prints to stdout, errors to stderr. Returns the exit code:
 * 0, 1 = something failed or the budget is impossible, 2 = bad usage. */
int cmd_plan(int argc, char **argv);

#endif
