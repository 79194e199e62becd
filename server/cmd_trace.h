/* SPDX-License-Identifier: Apache-2.0
 *
 * `moed trace`: records which experts a run chooses, and shows what is in such a file. Part of the composition root. */
#ifndef MOED_SERVER_CMD_TRACE_H
#define MOED_SERVER_CMD_TRACE_H

/* argv without the program's and the sub-command's name. Prints to stdout, errors to stderr. Returns the exit code:
 * 0, 1 = something failed, 2 = bad usage. */
int cmd_trace(int argc, char **argv);

/* cmd_trace_record.c: `moed trace record`, the same with one more name taken away. */
int cmd_trace_record(int argc, char **argv);

#endif
