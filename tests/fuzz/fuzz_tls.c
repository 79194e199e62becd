/* SPDX-License-Identifier: Apache-2.0
 *
 * TLS from the client's side. The first byte chooses what the rest is: bytes instead of a handshake, bytes after one, or
 * what a well-behaved client says, its records cut anywhere. What must hold besides "no crash": garbage is never taken for data, an
 * error stays one, what comes out is what the client said, and the answer arrives. */
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "server/tls.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(cond)                    \
    do {                                 \
        if (!(cond)) __builtin_trap();   \
    } while (0)

enum { MAX_BYTES = 1 << 20 };

/* A certificate and its key in one file, made once. */
static struct tls_context *make_context(void) {
    char path[] = "/tmp/moed-fuzz-tls-XXXXXX";
    struct tls_context *context = NULL;
    struct err e;
    int fd = mkstemp(path);
    FILE *f = fdopen(fd, "w");
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *x = X509_new();
    REQUIRE(f != NULL && key != NULL && x != NULL);
    X509_gmtime_adj(X509_getm_notBefore(x), 0);
    X509_gmtime_adj(X509_getm_notAfter(x), 86400);
    X509_set_pubkey(x, key);
    X509_sign(x, key, EVP_sha256());
    REQUIRE(PEM_write_X509(f, x) && PEM_write_PrivateKey(f, key, NULL, NULL, 0, NULL, NULL) && fclose(f) == 0);
    REQUIRE(tls_context_open(&context, path, "", &e) == 0);
    unlink(path);
    EVP_PKEY_free(key);
    X509_free(x);
    return context;
}

/* What the server sends: into the client's input. */
static int to_client(void *client, const char *bytes, size_t n) {
    return BIO_write(SSL_get_rbio(client), bytes, (int)n) == (int)n ? ST_OK : ST_IO;
}

/* Gives the server bytes in pieces of `step` (0 = all) and appends what it reads to *got. */
static enum tls_event feed(struct tls *t, const char *bytes, size_t n, size_t step, struct buf *got) {
    enum tls_event ev = TLS_MORE;
    for (size_t off = 0, part; off < n && ev == TLS_MORE; off += part) {
        const char *plain;
        size_t len;
        part = step == 0 || step > n - off ? n - off : step;
        tls_input(t, bytes + off, part);
        while ((ev = tls_read(t, &plain, &len)) == TLS_DATA) buf_append(got, plain, len);
    }
    return ev;
}

/* What the client has written goes to the server. */
static enum tls_event pump(SSL *client, struct tls *t, size_t step, struct buf *got) {
    char *bytes;
    long n = BIO_get_mem_data(SSL_get_wbio(client), &bytes);
    enum tls_event ev = feed(t, bytes, (size_t)n, step, got);
    (void)BIO_reset(SSL_get_wbio(client));
    return ev;
}

static void handshake(SSL *client, struct tls *t, size_t step) {
    struct buf none;
    buf_init(&none, 1);
    for (int round = 0; !SSL_is_init_finished(client) || !tls_established(t); round++) {
        REQUIRE(round < 8);
        SSL_do_handshake(client);
        REQUIRE(pump(client, t, step, &none) == TLS_MORE);
    }
    REQUIRE(none.len == 0);
}

/* Said in pieces, in records cut anywhere: arrives whole; and so does the answer, written in three parts. */
static void converse(SSL *client, struct tls *t, const char *s, size_t n, size_t step) {
    struct buf got;
    char answer[4096];
    size_t heard = 0;
    buf_init(&got, MAX_BYTES);
    for (size_t off = 0, part; off < n; off += part) {
        part = 1 + (uint8_t)s[off] * 8u < n - off ? 1 + (uint8_t)s[off] * 8u : n - off;
        REQUIRE(SSL_write(client, s + off, (int)part) == (int)part);
    }
    REQUIRE(n == 0 || pump(client, t, step, &got) == TLS_MORE);
    REQUIRE(got.len == n && (n == 0 || memcmp(got.data, s, n) == 0));
    uv_buf_t parts[3] = {uv_buf_init((char *)s, (unsigned)(n / 3)), uv_buf_init((char *)s + n / 3, (unsigned)(n - n / 3)), uv_buf_init((char *)s, 0)};
    REQUIRE(tls_write(t, parts, 3) == ST_OK);
    for (int k; (k = SSL_read(client, answer, sizeof answer)) > 0; heard += (size_t)k) REQUIRE(memcmp(answer, s + heard, (size_t)k) == 0);
    REQUIRE(heard == n);
    SSL_shutdown(client);
    REQUIRE(pump(client, t, step, &got) == TLS_CLOSED && got.len == n);
    tls_shutdown(t);
    REQUIRE(SSL_read(client, answer, sizeof answer) <= 0 && SSL_get_shutdown(client) == (SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN));
    buf_clear(&got);
}

static void run(struct tls_context *context, SSL_CTX *clients, const char *s, size_t n, int mode, size_t step) {
    struct tls *t;
    struct buf got;
    SSL *client = SSL_new(clients);
    buf_init(&got, MAX_BYTES);
    SSL_set_bio(client, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    BIO_set_mem_eof_return(SSL_get_rbio(client), -1);
    SSL_set_connect_state(client);
    REQUIRE(tls_open(&t, context, to_client, client) == ST_OK);
    if (mode != 0) handshake(client, t, step);
    if (mode == 2) {
        converse(client, t, s, n, step);
    } else {
        enum tls_event ev = feed(t, s, n, step, &got);
        REQUIRE(got.len == 0 && ev != TLS_DATA && (ev != TLS_CLOSED || mode == 0));
        if (ev == TLS_FAILED) REQUIRE(feed(t, s, n, step, &got) == TLS_FAILED && tls_write(t, &(uv_buf_t){.base = (char *)s, .len = n}, 1) == (n > 0 ? ST_IO : ST_OK));
        tls_shutdown(t);
    }
    buf_clear(&got);
    tls_close(t);
    SSL_free(client);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct tls_context *context;
    static SSL_CTX *clients;
    if (context == NULL) {
        context = make_context();
        clients = SSL_CTX_new(TLS_client_method());
    }
    if (size < 2 || size > 1 << 16) return 0;
    SSL_CTX_set_max_proto_version(clients, data[0] & 4 ? TLS1_2_VERSION : TLS1_3_VERSION);
    run(context, clients, (const char *)data + 2, size - 2, data[0] % 3, data[1]);
    return 0;
}
