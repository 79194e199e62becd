/* SPDX-License-Identifier: Apache-2.0
 *
 * The sockets the server listens on: TCP (host and port) and a Unix socket (unix-socket), or those that a supervisor
 * has opened already. What they accept is listener.c's business.
 *
 * A Unix socket gets its mode and owner between bind and listen: nobody can connect before. A socket file that nobody
 * answers on is what a killed server left behind and is replaced; anything else at the path is left alone. At the end the
 * path is removed if it is still the file that was made here. */
#include <errno.h>
#include <grp.h>
#include <netdb.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"
#include "server/transport.h"

/* ---- TCP ---- */

static int resolve(const struct config *cfg, struct sockaddr_storage *out, struct err *e) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *list;
    char port[16];
    snprintf(port, sizeof port, "%u", cfg->port);
    int rc = getaddrinfo(cfg->host, port, &hints, &list);
    if (rc != 0) return err_set(e, ST_INVALID, "host: \"%.200s\" is not an address this machine knows: %s", cfg->host, gai_strerror(rc));
    memcpy(out, list->ai_addr, list->ai_addrlen < sizeof *out ? list->ai_addrlen : sizeof *out);
    freeaddrinfo(list);
    return ST_OK;
}

static int bind_error(const struct config *cfg, int rc, struct err *e) {
    const char *hint = rc == UV_EADDRINUSE ? "; another program has it: stop that one or choose another with --port"
                     : rc == UV_EACCES     ? "; ports below 1024 need privileges: choose another with --port"
                     : rc == UV_EADDRNOTAVAIL ? "; this machine does not have that address: see --host"
                                              : "";
    return err_set(e, ST_IO, "cannot listen on %.200s port %u: %s%s", cfg->host, cfg->port, uv_strerror(rc), hint);
}

static int check_tcp(const struct config *cfg, struct err *e) {
    struct sockaddr_storage addr;
    int rc = resolve(cfg, &addr, e);
    if (rc != ST_OK || cfg->port == 0) return rc;
    int on = 1, fd = socket(addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return bind_error(cfg, -errno, e);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on); /* as libuv does, so TIME_WAIT does not count */
    socklen_t len = addr.ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    if (bind(fd, (struct sockaddr *)&addr, len) != 0) rc = bind_error(cfg, -errno, e);
    close(fd);
    return rc;
}

static unsigned port_of(const struct sockaddr_storage *addr) {
    return ntohs(addr->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)addr)->sin6_port : ((const struct sockaddr_in *)addr)->sin_port);
}

static void describe_tcp(struct listen_socket *k, const char *host, const struct sockaddr_storage *addr) {
    bool v6 = strchr(host, ':') != NULL;
    snprintf(k->url, sizeof k->url, "http%s://%s%.200s%s:%u", k->tls ? "s" : "", v6 ? "[" : "", host, v6 ? "]" : "", port_of(addr));
    k->from = access_is_loopback(host) ? ACCESS_LOOPBACK : ACCESS_NETWORK;
}

static int open_tcp(struct server *s, uv_connection_cb on_connection, struct err *e) {
    struct listen_socket *k = sockets__add(s->listener);
    const struct config *cfg = s->opts->config;
    struct sockaddr_storage addr;
    int len = sizeof addr, rc = resolve(cfg, &addr, e);
    if (rc != ST_OK) return rc;
    uv_tcp_init(&s->loop, &k->h.tcp);
    k->h.stream.data = k;
    k->open = true;
    rc = uv_tcp_bind(&k->h.tcp, (struct sockaddr *)&addr, 0);
    if (rc == 0) rc = uv_listen(&k->h.stream, LIMIT_BACKLOG, on_connection);
    if (rc == 0) rc = uv_tcp_getsockname(&k->h.tcp, (struct sockaddr *)&addr, &len);
    if (rc != 0) return bind_error(cfg, rc, e);
    k->tls = s->listener->tls != NULL;
    describe_tcp(k, cfg->host, &addr);
    return ST_OK;
}

/* ---- Unix socket ---- */

static int unix_address(const struct config *cfg, struct sockaddr_un *out, struct err *e) {
    size_t n = strlen(cfg->unix_socket);
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (n >= sizeof out->sun_path)
        return err_set(e, ST_INVALID, "unix-socket: the path has %zu bytes, the system takes %zu: choose a shorter one", n, sizeof out->sun_path - 1);
    memcpy(out->sun_path, cfg->unix_socket, n);
    return ST_OK;
}

/* "USER", "USER:GROUP" or ":GROUP"; -1 = as it is. */
static int parse_owner(const char *owner, uid_t *uid, gid_t *gid, struct err *e) {
    const char *colon = strchr(owner, ':');
    char user[64];
    size_t n = colon != NULL ? (size_t)(colon - owner) : strlen(owner);
    *uid = (uid_t)-1;
    *gid = (gid_t)-1;
    snprintf(user, sizeof user, "%.*s", (int)(n < sizeof user ? n : sizeof user - 1), owner);
    const struct passwd *pw = n > 0 ? getpwnam(user) : NULL;
    if (n > 0 && pw == NULL) return err_set(e, ST_INVALID, "unix-owner: there is no user \"%.60s\"; write USER, USER:GROUP or :GROUP", user);
    if (pw != NULL) *uid = pw->pw_uid;
    if (colon == NULL) return ST_OK;
    const struct group *gr = getgrnam(colon + 1);
    if (gr == NULL) return err_set(e, ST_INVALID, "unix-owner: there is no group \"%.60s\"", colon + 1);
    *gid = gr->gr_gid;
    return ST_OK;
}

/* What is at the path: nothing, a socket nobody answers on (*stale), or something to leave alone, which is an error. */
static int check_path(const struct sockaddr_un *addr, bool *stale, struct err *e) {
    const char *path = addr->sun_path;
    struct stat st;
    *stale = false;
    if (lstat(path, &st) != 0) return errno == ENOENT ? ST_OK : err_set(e, ST_IO, "unix-socket: %s: %s", path, strerror(errno));
    if (!S_ISSOCK(st.st_mode)) return err_set(e, ST_INVALID, "unix-socket: %s exists and is no socket; remove it or choose another path", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return err_set(e, ST_IO, "unix-socket: %s", strerror(errno));
    int rc = connect(fd, (const struct sockaddr *)addr, sizeof *addr) == 0 ? 0 : errno;
    close(fd);
    if (rc == ECONNREFUSED) {
        *stale = true;
        return ST_OK;
    }
    if (rc == 0 || rc == EAGAIN) /* EAGAIN: a server with a full queue */
        return err_set(e, ST_IO, "cannot listen on unix:%s: another program answers there: stop that one or choose another path", path);
    return err_set(e, ST_IO, "unix-socket: %s is in the way and cannot be tried: %s", path, strerror(rc));
}

/* Where the options put the socket, whose it becomes, and whether a dead one lies there. */
struct unix_place {
    struct sockaddr_un addr;
    uid_t uid;
    gid_t gid;
    bool stale;
};

static int look_unix(const struct config *cfg, struct unix_place *at, struct err *e) {
    int rc = unix_address(cfg, &at->addr, e);
    if (rc == ST_OK) rc = parse_owner(cfg->unix_owner, &at->uid, &at->gid, e);
    return rc == ST_OK ? check_path(&at->addr, &at->stale, e) : rc;
}

/* A bound socket with the mode and owner asked for. *made: the path is ours. */
static int bind_unix(int fd, const struct config *cfg, bool *made, struct err *e) {
    struct unix_place at;
    int rc = look_unix(cfg, &at, e);
    if (rc != ST_OK) return rc;
    if (at.stale) {
        log_info("http", "%s: nobody answers there: replaced", at.addr.sun_path);
        unlink(at.addr.sun_path);
    }
    if (bind(fd, (struct sockaddr *)&at.addr, sizeof at.addr) != 0)
        return err_set(e, ST_IO, "cannot listen on unix:%s: %s%s", at.addr.sun_path, strerror(errno),
                       errno == ENOENT ? "; its directory does not exist" : "");
    *made = true;
    mode_t mode = (mode_t)strtoul(cfg->unix_mode, NULL, 8); /* the option table lets only octal numbers through */
    if (chmod(at.addr.sun_path, mode) != 0 || lchown(at.addr.sun_path, at.uid, at.gid) != 0)
        return err_set(e, ST_IO, "unix-mode, unix-owner: %s: %s", at.addr.sun_path, strerror(errno));
    return ST_OK;
}

static int open_unix(struct server *s, uv_connection_cb on_connection, struct err *e) {
    struct listen_socket *k = sockets__add(s->listener);
    const struct config *cfg = s->opts->config;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return err_set(e, ST_IO, "unix-socket: %s", strerror(errno));
    int rc = bind_unix(fd, cfg, &k->made, e);
    struct stat st;
    if (k->made && lstat(cfg->unix_socket, &st) == 0) {
        k->dev = st.st_dev;
        k->ino = st.st_ino;
    }
    if (rc != ST_OK) {
        close(fd);
        return rc;
    }
    uv_pipe_init(&s->loop, &k->h.pipe, 0);
    k->h.stream.data = k;
    k->open = true;
    rc = uv_pipe_open(&k->h.pipe, fd);
    if (rc != 0) close(fd);
    else rc = uv_listen(&k->h.stream, LIMIT_BACKLOG, on_connection);
    if (rc != 0) return err_set(e, ST_IO, "cannot listen on unix:%s: %s", cfg->unix_socket, uv_strerror(rc));
    snprintf(k->url, sizeof k->url, "unix:%s", cfg->unix_socket);
    k->from = ACCESS_UNIX;
    return ST_OK;
}

/* Removes the file at the path if it is the one made here: somebody may have replaced it. */
static void remove_path(const struct listen_socket *k, const char *path) {
    struct stat st;
    if (k->made && lstat(path, &st) == 0 && st.st_dev == k->dev && st.st_ino == k->ino) unlink(path);
}

/* ---- sockets of a supervisor ---- */

static int init_inherited(struct server *s, struct listen_socket *k, int fd, const struct sockaddr_storage *addr) {
    char host[64] = "";
    if (addr->ss_family == AF_UNIX) {
        k->from = ACCESS_UNIX;
        snprintf(k->url, sizeof k->url, "unix:%.107s", ((const struct sockaddr_un *)addr)->sun_path);
        uv_pipe_init(&s->loop, &k->h.pipe, 0);
        return uv_pipe_open(&k->h.pipe, fd);
    }
    socklen_t len = addr->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    getnameinfo((const struct sockaddr *)addr, len, host, sizeof host, NULL, 0, NI_NUMERICHOST);
    k->tls = s->listener->tls != NULL;
    describe_tcp(k, host, addr);
    uv_tcp_init(&s->loop, &k->h.tcp);
    return uv_tcp_open(&k->h.tcp, fd);
}

static int open_inherited(struct server *s, int fd, uv_connection_cb on_connection, struct err *e) {
    struct listen_socket *k = sockets__add(s->listener);
    struct sockaddr_storage addr = {.ss_family = AF_UNSPEC};
    int type = 0;
    socklen_t n = sizeof type, len = sizeof addr;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n) != 0 || getsockname(fd, (struct sockaddr *)&addr, &len) != 0 || type != SOCK_STREAM ||
        (addr.ss_family != AF_UNIX && addr.ss_family != AF_INET && addr.ss_family != AF_INET6))
        return err_set(e, ST_INVALID, "LISTEN_FDS: descriptor %d is no stream socket of TCP or Unix: use ListenStream= with Accept=no", fd);
    int rc = init_inherited(s, k, fd, &addr);
    k->h.stream.data = k;
    k->open = true;
    if (rc == 0) rc = uv_listen(&k->h.stream, LIMIT_BACKLOG, on_connection);
    return rc == 0 ? ST_OK : err_set(e, ST_IO, "cannot listen on %s, descriptor %d: %s", k->url, fd, uv_strerror(rc));
}

/* ---- all of them ---- */

struct listen_socket *sockets__add(struct listener *l) {
    return &l->sockets[l->n_sockets++]; /* zeroed with the listener */
}

static int check_options(const struct config *cfg, struct err *e) {
    if (cfg->host[0] == '\0' && cfg->unix_socket[0] == '\0')
        return err_set(e, ST_INVALID, "host is empty and there is no unix-socket: nobody could connect");
    if (cfg->tls_key[0] != '\0' && cfg->tls_cert[0] == '\0')
        return err_set(e, ST_INVALID, "tls-key without tls-cert: TLS takes both (tls-key may be left out when one file has them)");
    return ST_OK;
}

int server_check_port(const struct config *cfg, struct err *e) {
    struct unix_place at;
    int rc = check_options(cfg, e);
    if (rc == ST_OK && cfg->host[0] != '\0') rc = check_tcp(cfg, e);
    if (rc == ST_OK && cfg->unix_socket[0] != '\0') rc = look_unix(cfg, &at, e);
    return rc;
}

int sockets__open(struct server *s, uv_connection_cb on_connection, struct err *e) {
    const struct config *cfg = s->opts->config;
    uint32_t n_fds = s->opts->n_fds;
    int rc = n_fds > 0 ? ST_OK : check_options(cfg, e);
    if (n_fds > MAX_SOCKETS) return err_set(e, ST_LIMIT, "LISTEN_FDS: %u sockets, at most %d", n_fds, MAX_SOCKETS);
    if (n_fds > 0) log_info("http", "the supervisor has opened %u sockets: host, port and unix-socket do not count", n_fds);
    for (uint32_t i = 0; i < n_fds && rc == ST_OK; i++) rc = open_inherited(s, s->opts->first_fd + (int)i, on_connection, e);
    if (rc == ST_OK && n_fds == 0 && cfg->host[0] != '\0') rc = open_tcp(s, on_connection, e);
    if (rc == ST_OK && n_fds == 0 && cfg->unix_socket[0] != '\0') rc = open_unix(s, on_connection, e);
    for (uint32_t i = 0; i < s->listener->n_sockets; i++) s->listener->sockets[i].server = s;
    return rc;
}

void sockets__close(struct server *s) {
    for (uint32_t i = 0; i < s->listener->n_sockets; i++) {
        struct listen_socket *k = &s->listener->sockets[i];
        remove_path(k, s->opts->config->unix_socket); /* before the socket closes: afterwards the path may be another server's */
        if (k->open && !uv_is_closing((uv_handle_t *)&k->h)) uv_close((uv_handle_t *)&k->h, NULL);
        k->made = false;
    }
}

const char *server_url(const struct server *s, uint32_t i) {
    return i < s->listener->n_sockets ? s->listener->sockets[i].url : NULL;
}
