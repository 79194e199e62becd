/* SPDX-License-Identifier: Apache-2.0
 *
 * Both protocols of systemd are stable and small: a datagram of "NAME=value" lines to $NOTIFY_SOCKET, and listening
 * sockets from descriptor 3 on when $LISTEN_PID is this process. Being told nothing is the normal case; a supervisor that
 * cannot be reached changes nothing. */
#include "server/cmd_supervisor.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "server/cmd_common.h"

static const char *value_of(char **environ_, const char *name) {
    size_t n = strlen(name);
    for (char **v = environ_; v != NULL && *v != NULL; v++)
        if (strncmp(*v, name, n) == 0 && (*v)[n] == '=') return *v + n + 1;
    return "";
}

/* A path, or '@' and a name that is in no file system. */
static void read_notify(struct supervisor *s, const char *where) {
    size_t n = strlen(where);
    if ((where[0] != '/' && where[0] != '@') || n >= sizeof s->notify.sun_path) return;
    s->notify.sun_family = AF_UNIX;
    memcpy(s->notify.sun_path, where, n);
    if (where[0] == '@') s->notify.sun_path[0] = '\0';
    s->notify_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + (where[0] == '/'));
}

void supervisor_read(struct supervisor *s, char **environ_) {
    uint32_t pid, n;
    *s = (struct supervisor){.n_sockets = 0};
    read_notify(s, value_of(environ_, "NOTIFY_SOCKET"));
    if (!cmd_parse_number(value_of(environ_, "LISTEN_PID"), 1, INT32_MAX, &pid) || pid != (uint32_t)getpid()) return;
    if (!cmd_parse_number(value_of(environ_, "LISTEN_FDS"), 0, 1024, &n)) return;
    s->n_sockets = n;
    for (uint32_t i = 0; i < n; i++) fcntl(SUPERVISOR_FIRST_FD + (int)i, F_SETFD, FD_CLOEXEC);
}

void supervisor_tell(void *supervisor, enum server_phase phase) {
    const struct supervisor *s = supervisor;
    char text[64] = "READY=1";
    if (s->notify_len == 0) return;
    if (phase == SERVER_STOPPING) snprintf(text, sizeof text, "STOPPING=1");
    if (phase == SERVER_RELOADING) /* systemd orders messages by this time */
        snprintf(text, sizeof text, "RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)(clock_mono_ns() / 1000));
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return;
    sendto(fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT, (const struct sockaddr *)&s->notify, s->notify_len);
    close(fd);
}
