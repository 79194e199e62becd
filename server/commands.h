/* SPDX-License-Identifier: Apache-2.0
 *
 * Sub-commands of `moed`, called by main.c only, each with argv without the program's and the command's name.
 * Together they are the composition root: the only code that may print to stdout and that maps options to modules. */
#ifndef MOED_SERVER_COMMANDS_H
#define MOED_SERVER_COMMANDS_H

enum exit_code {
    EXIT_CODE_OK = 0,       /* done; for serve: shut down and every accepted request was finished            */
    EXIT_CODE_FAILED = 1,   /* failed at run time: model, memory, engine; or a shutdown cut requests short    */
    EXIT_CODE_USAGE = 2,    /* unknown command or missing argument                                            */
    EXIT_CODE_TEMP = 75,    /* EX_TEMPFAIL: the port is taken or cannot be bound; may work later              */
    EXIT_CODE_CONFIG = 78,  /* EX_CONFIG: an option, the environment or the config file is wrong              */
};

int cmd_serve(int argc, char **argv, char **environ_);
int cmd_pack(int argc, char **argv);
int cmd_healthcheck(int argc, char **argv, char **environ_);

#endif
