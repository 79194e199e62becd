/* SPDX-License-Identifier: Apache-2.0
 *
 * `moed healthcheck`: asks /health of the server with the same options and environment as the server itself, for
 * HEALTHCHECK in an image without curl. Exit 0: ready. 1: not ready or not reachable. */
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "config/config.h"
#include "server/commands.h"

enum { TIMEOUT_S = 3 };

/* A server bound to every address is asked on the loopback one. */
static const char *reachable(const char *host) {
    if (strcmp(host, "0.0.0.0") == 0 || host[0] == '\0') return "127.0.0.1";
    return strcmp(host, "::") == 0 ? "::1" : host;
}

static int dial(const char *host, uint32_t port) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *list;
    struct timeval limit = {.tv_sec = TIMEOUT_S};
    char service[16];
    snprintf(service, sizeof service, "%u", port);
    int rc = getaddrinfo(host, service, &hints, &list), fd = -1;
    if (rc != 0) {
        fprintf(stderr, "moed: healthcheck: %s: %s\n", host, gai_strerror(rc));
        return -1;
    }
    for (const struct addrinfo *a = list; a != NULL && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0) continue;
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit); /* bounds connect too */
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        if (connect(fd, a->ai_addr, a->ai_addrlen) == 0) continue;
        rc = errno;
        close(fd);
        fd = -1;
    }
    freeaddrinfo(list);
    if (fd < 0) fprintf(stderr, "moed: healthcheck: cannot connect to %s port %u: %s\n", host, port, strerror(rc));
    return fd;
}

static int ask(const char *host, uint32_t port) {
    char text[1024];
    size_t n = 0;
    int fd = dial(host, port), status = 0;
    if (fd < 0) return EXIT_CODE_FAILED;
    bool v6 = strchr(host, ':') != NULL;
    int len = snprintf(text, sizeof text, "GET /health HTTP/1.1\r\nHost: %s%.200s%s:%u\r\nConnection: close\r\n\r\n", v6 ? "[" : "", host,
                       v6 ? "]" : "", port);
    ssize_t got = send(fd, text, (size_t)len, MSG_NOSIGNAL);
    while (got > 0 && n < sizeof text - 1) {
        got = recv(fd, text + n, sizeof text - 1 - n, 0);
        if (got > 0) n += (size_t)got;
    }
    close(fd);
    text[n] = '\0';
    if (sscanf(text, "HTTP/1.1 %3d", &status) != 1) fprintf(stderr, "moed: healthcheck: no answer within %d s\n", TIMEOUT_S);
    else if (status != 200) fprintf(stderr, "moed: healthcheck: not ready, status %d\n", status);
    return status == 200 ? EXIT_CODE_OK : EXIT_CODE_FAILED;
}

int cmd_healthcheck(int argc, char **argv, char **environ_) {
    struct config c;
    struct err e = {0};
    enum config_action action;
    /* The server's own options and environment apply, but no model is needed: asked for as a check. */
    char **args = mem_zalloc((size_t)argc + 2, sizeof *args);
    if (args == NULL) return EXIT_CODE_FAILED;
    for (int i = 0; i < argc; i++) args[i] = argv[i];
    args[argc] = (char *)"--check-config";
    int rc = config_load(&c, argc + 1, args, environ_, &action, &e);
    mem_free(args);
    if (rc != ST_OK) {
        fprintf(stderr, "moed: %s\n", e.text);
        return EXIT_CODE_CONFIG;
    }
    int code = ask(reachable(c.host), c.port);
    config_clear(&c);
    return code;
}
