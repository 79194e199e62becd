/* SPDX-License-Identifier: Apache-2.0
 *
 * What a supervisor such as systemd says in the environment, and what it is told: sd_notify and socket activation, without
 * libsystemd. For main only. */
#ifndef MOED_SERVER_CMD_SUPERVISOR_H
#define MOED_SERVER_CMD_SUPERVISOR_H

#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "server/server.h"

struct supervisor {
    struct sockaddr_un notify; /* NOTIFY_SOCKET              */
    socklen_t notify_len;      /* 0 = nobody wants to know   */
    uint32_t n_sockets;        /* LISTEN_FDS, from SUPERVISOR_FIRST_FD on */
};

enum { SUPERVISOR_FIRST_FD = 3 };

void supervisor_read(struct supervisor *s, char **environ_);
void supervisor_tell(void *supervisor, enum server_phase phase); /* server_opts.announce */

#endif
