/* SPDX-License-Identifier: Apache-2.0
 *
 * `moed healthcheck`: asks /health of the server with the same options and environment as the server itself, for
 * HEALTHCHECK in an image without curl; over the Unix socket when there is one, with TLS when the
 * port speaks it. Exit 0: ready. 1: not ready or not reachable. */
#include <errno.h>
#include <netdb.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
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

static int try_connect(int family, const struct sockaddr *addr, socklen_t len) {
    struct timeval limit = {.tv_sec = TIMEOUT_S};
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit); /* bounds connect too */
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (connect(fd, addr, len) == 0) return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

static int dial_tcp(const char *host, uint32_t port) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *list;
    char service[16];
    snprintf(service, sizeof service, "%u", port);
    int rc = getaddrinfo(host, service, &hints, &list), fd = -1;
    if (rc != 0) {
        fprintf(stderr, "moed: healthcheck: %s: %s\n", host, gai_strerror(rc));
        return -1;
    }
    for (const struct addrinfo *a = list; a != NULL && fd < 0; a = a->ai_next) fd = try_connect(a->ai_family, a->ai_addr, a->ai_addrlen);
    if (fd < 0) fprintf(stderr, "moed: healthcheck: cannot connect to %s port %u: %s\n", host, port, strerror(errno));
    freeaddrinfo(list);
    return fd;
}

static int dial_unix(const char *path) {
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    snprintf(addr.sun_path, sizeof addr.sun_path, "%s", path); /* too long for a server too */
    int fd = try_connect(AF_UNIX, (const struct sockaddr *)&addr, sizeof addr);
    if (fd < 0) fprintf(stderr, "moed: healthcheck: cannot connect to unix:%s: %s\n", addr.sun_path, strerror(errno));
    return fd;
}

/* A connection, and TLS on it or not. */
struct link {
    int fd;
    SSL_CTX *context;
    SSL *ssl;
};

/* The certificate is not verified: it names the server as others know it, and nothing secret is said. */
static bool start_tls(struct link *l) {
    l->context = SSL_CTX_new(TLS_client_method());
    l->ssl = l->context != NULL ? SSL_new(l->context) : NULL;
    if (l->ssl != NULL && SSL_set_fd(l->ssl, l->fd) == 1 && SSL_connect(l->ssl) == 1) return true;
    fputs("moed: healthcheck: no TLS handshake\n", stderr);
    return false;
}

static void hang_up(struct link *l) {
    SSL_free(l->ssl);
    SSL_CTX_free(l->context);
    close(l->fd);
}

static ssize_t link_send(struct link *l, const char *bytes, size_t n) {
    return l->ssl != NULL ? SSL_write(l->ssl, bytes, (int)n) : send(l->fd, bytes, n, MSG_NOSIGNAL);
}

static ssize_t link_recv(struct link *l, char *bytes, size_t n) {
    return l->ssl != NULL ? SSL_read(l->ssl, bytes, (int)n) : recv(l->fd, bytes, n, 0);
}

/* The status of GET /health, 0 when there is no answer. HTTP/1.0 needs no Host, which option allowed-hosts might refuse. */
static int ask(struct link *l) {
    static const char request[] = "GET /health HTTP/1.0\r\n\r\n";
    char text[1024];
    size_t n = 0;
    int status = 0;
    ssize_t got = link_send(l, request, sizeof request - 1);
    while (got > 0 && n < sizeof text - 1) {
        got = link_recv(l, text + n, sizeof text - 1 - n);
        if (got > 0) n += (size_t)got;
    }
    text[n] = '\0';
    return sscanf(text, "HTTP/1.1 %3d", &status) == 1 ? status : 0;
}

static int check(const struct config *c) {
    bool local = c->unix_socket[0] != '\0', tls = !local && c->tls_cert[0] != '\0';
    struct link l = {.fd = local ? dial_unix(c->unix_socket) : dial_tcp(reachable(c->host), c->port)};
    int status = 0;
    if (l.fd < 0) return EXIT_CODE_FAILED;
    if (!tls || start_tls(&l)) {
        status = ask(&l);
        if (status == 0) fprintf(stderr, "moed: healthcheck: no answer within %d s\n", TIMEOUT_S);
        else if (status != 200) fprintf(stderr, "moed: healthcheck: not ready, status %d\n", status);
    }
    hang_up(&l);
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
    int code = check(&c);
    config_clear(&c);
    return code;
}
