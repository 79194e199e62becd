/* SPDX-License-Identifier: Apache-2.0
 *
 * `moed bench`: speed and memory of the engine on one model, without a server. Part of the composition root. */
#ifndef MOED_SERVER_CMD_BENCH_H
#define MOED_SERVER_CMD_BENCH_H

/* argv without the program's and the sub-command's name. Prints to stdout, errors to stderr. Returns the exit code:
 * 0, 1 = something failed, 2 = bad usage. */
int cmd_bench(int argc, char **argv);
/* The same for `moed bench --offload`: a model larger than the memory its experts get. */
int cmd_bench_offload(int argc, char **argv);

#endif
