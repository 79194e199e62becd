/* SPDX-License-Identifier: Apache-2.0
 *
 * TLS through OpenSSL, over a BIO of our own: it reads from the bytes that were just received, where they lie, and
 * writes a finished record straight to the connection, which copies only what the socket does not take. So the one copy
 * that TLS adds is the encryption itself, plus gathering the parts of a small write into one record.
 *
 * Output that no response asked for (handshake, alerts, answers to key updates) is bounded over the life of a
 * connection: else a client could make the server queue it without end by asking and not reading. */
#include "server/tls.h"

#include <errno.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "server/limits.h"

enum { RECORD_BYTES = LIMIT_TLS_RECORD_BYTES };
_Static_assert((int)RECORD_BYTES == SSL3_RT_MAX_PLAIN_LENGTH, "the largest record");

struct tls_context {
    SSL_CTX *ssl;                  /* of the files as last read; connections hold their own reference */
    BIO_METHOD *bio;
    char *cert, *key;
    char plain[RECORD_BYTES];      /* what tls_read gives out                                         */
    char gather[RECORD_BYTES];     /* the parts of a write                                            */
};

struct tls {
    SSL *ssl;
    struct tls_context *context;
    tls_send_fn send;
    void *send_ctx;
    const char *in;                /* not yet read                                                    */
    size_t n_in;
    size_t n_control;              /* bytes sent that belong to no response                           */
    bool started, writing, failed;
    const char *error;
};

/* ---- the BIO ---- */

static int bio_read(BIO *bio, char *out, int n) {
    struct tls *t = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (t->n_in == 0) {
        BIO_set_retry_read(bio);
        return -1;
    }
    size_t take = (size_t)n < t->n_in ? (size_t)n : t->n_in;
    memcpy(out, t->in, take);
    t->in += take;
    t->n_in -= take;
    return (int)take;
}

static int bio_write(BIO *bio, const char *bytes, int n) {
    struct tls *t = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (!t->writing) t->n_control += (size_t)n;
    if (t->n_control > LIMIT_TLS_CONTROL_BYTES || t->send(t->send_ctx, bytes, (size_t)n) != ST_OK) return -1;
    return n;
}

static long bio_ctrl(BIO *bio, int cmd, long number, void *pointer) {
    (void)bio, (void)number, (void)pointer;
    return cmd == BIO_CTRL_FLUSH; /* nothing is held back here */
}

/* ---- context ---- */

/* The reason OpenSSL gives for its last error. */
static const char *reason(void) {
    unsigned long code = ERR_peek_last_error();
    const char *text = ERR_SYSTEM_ERROR(code) ? strerror(ERR_GET_REASON(code)) : ERR_reason_error_string(code);
    return text != NULL ? text : "unknown reason";
}

/* Asked when a key is encrypted: nobody is there to type. */
static int no_passphrase(char *out, int cap, int writing, void *asked) {
    (void)out, (void)cap, (void)writing;
    *(bool *)asked = true;
    return -1;
}

static int choose_alpn(SSL *ssl, const unsigned char **out, unsigned char *n_out, const unsigned char *in, unsigned n_in, void *ctx) {
    static const unsigned char ours[] = "\x08http/1.1";
    (void)ssl, (void)ctx;
    unsigned char *found;
    if (SSL_select_next_proto(&found, n_out, ours, sizeof ours - 1, in, n_in) != OPENSSL_NPN_NEGOTIATED) return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = found;
    return SSL_TLSEXT_ERR_OK;
}

static void set_rules(SSL_CTX *ssl) {
    SSL_CTX_set_min_proto_version(ssl, TLS1_2_VERSION);
    SSL_CTX_set_cipher_list(ssl, "ECDHE+AESGCM:ECDHE+CHACHA20"); /* of TLS 1.2; all of 1.3's are like that */
    SSL_CTX_set_options(ssl, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_mode(ssl, SSL_MODE_RELEASE_BUFFERS); /* an idle connection holds no record buffers: 34 KiB less */
    SSL_CTX_set_session_cache_mode(ssl, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_alpn_select_cb(ssl, choose_alpn, NULL);
}

void tls_context_log(const struct tls_context *t) {
    const X509 *x = SSL_CTX_get0_certificate(t->ssl);
    char subject[256] = "";
    struct tm until = {0};
    struct stat st;
    X509_NAME_oneline(X509_get_subject_name(x), subject, sizeof subject);
    ASN1_TIME_to_tm(X509_get0_notAfter(x), &until);
    log_info("tls", "%s: %s, valid until %04d-%02d-%02d", t->cert, subject, until.tm_year + 1900, until.tm_mon + 1, until.tm_mday);
    if (X509_cmp_current_time(X509_get0_notAfter(x)) < 0) log_warn("tls", "tls-cert: the certificate in %s has expired", t->cert);
    if (X509_cmp_current_time(X509_get0_notBefore(x)) > 0) log_warn("tls", "tls-cert: the certificate in %s is not valid yet", t->cert);
    if (stat(t->key, &st) == 0 && (st.st_mode & (S_IRWXO | S_IWGRP)) != 0)
        log_warn("tls", "tls-key: others may read or change %s (mode %03o): chmod 640 or stricter", t->key, (unsigned)st.st_mode & 0777);
}

static int load_files(SSL_CTX *ssl, const char *cert, const char *key, struct err *e) {
    bool asked = false;
    SSL_CTX_set_default_passwd_cb(ssl, no_passphrase);
    SSL_CTX_set_default_passwd_cb_userdata(ssl, &asked);
    if (access(cert, R_OK) != 0) return err_set(e, ST_INVALID, "tls-cert: cannot read %s: %s", cert, strerror(errno));
    if (access(key, R_OK) != 0) return err_set(e, ST_INVALID, "tls-key: cannot read %s: %s", key, strerror(errno));
    if (SSL_CTX_use_certificate_chain_file(ssl, cert) != 1)
        return err_set(e, ST_INVALID, "tls-cert: %s: expected a PEM certificate and its chain: %s", cert, reason());
    int rc = SSL_CTX_use_PrivateKey_file(ssl, key, SSL_FILETYPE_PEM);
    SSL_CTX_set_default_passwd_cb_userdata(ssl, NULL);
    if (asked)
        return err_set(e, ST_INVALID, "tls-key: %s is encrypted and nobody is there to type the passphrase: openssl pkey -in FILE -out NEW writes it without", key);
    if (rc != 1 && ERR_GET_REASON(ERR_peek_last_error()) != X509_R_KEY_VALUES_MISMATCH)
        return err_set(e, ST_INVALID, "tls-key: %s: expected a PEM private key: %s", key, reason());
    if (rc != 1 || SSL_CTX_check_private_key(ssl) != 1)
        return err_set(e, ST_INVALID, "tls-key: the key in %s does not belong to the certificate in %s", key, cert);
    return ST_OK;
}

/* A context of OpenSSL over the files as they are. */
static int load(SSL_CTX **out, const char *cert, const char *key, struct err *e) {
    ERR_clear_error();
    SSL_CTX *ssl = SSL_CTX_new(TLS_server_method());
    if (ssl == NULL) return err_set(e, ST_NOMEM, "OpenSSL: %s", reason());
    set_rules(ssl);
    int rc = load_files(ssl, cert, key, e);
    ERR_clear_error();
    if (rc != ST_OK) {
        SSL_CTX_free(ssl);
        return rc;
    }
    *out = ssl;
    return ST_OK;
}

int tls_context_open(struct tls_context **out, const char *cert, const char *key, struct err *e) {
    struct tls_context *t = mem_zalloc(1, sizeof *t);
    if (t == NULL) return err_set(e, ST_NOMEM, "out of memory for TLS");
    if (*key == '\0') key = cert;
    t->cert = mem_strndup(cert, strlen(cert));
    t->key = mem_strndup(key, strlen(key));
    t->bio = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "moed");
    int rc = ST_OK;
    if (t->cert == NULL || t->key == NULL || t->bio == NULL || BIO_meth_set_read(t->bio, bio_read) != 1 ||
        BIO_meth_set_write(t->bio, bio_write) != 1 || BIO_meth_set_ctrl(t->bio, bio_ctrl) != 1)
        rc = err_set(e, ST_NOMEM, "out of memory for TLS");
    if (rc == ST_OK) rc = load(&t->ssl, cert, key, e);
    if (rc != ST_OK) {
        tls_context_close(t);
        return rc;
    }
    *out = t;
    return ST_OK;
}

int tls_context_reload(struct tls_context *t, struct err *e) {
    SSL_CTX *fresh;
    int rc = load(&fresh, t->cert, t->key, e);
    if (rc != ST_OK) return rc;
    SSL_CTX_free(t->ssl);
    t->ssl = fresh;
    return ST_OK;
}

void tls_context_close(struct tls_context *t) {
    if (t == NULL) return;
    SSL_CTX_free(t->ssl);
    BIO_meth_free(t->bio);
    mem_free(t->cert);
    mem_free(t->key);
    explicit_bzero(t->plain, sizeof t->plain);
    explicit_bzero(t->gather, sizeof t->gather);
    mem_free(t);
}

/* ---- one connection ---- */

int tls_open(struct tls **out, struct tls_context *context, tls_send_fn send, void *send_ctx) {
    struct tls *t = mem_zalloc(1, sizeof *t);
    if (t == NULL) return ST_NOMEM;
    BIO *bio = BIO_new(context->bio);
    t->ssl = SSL_new(context->ssl);
    if (bio == NULL || t->ssl == NULL) {
        BIO_free(bio);
        tls_close(t);
        return ST_NOMEM;
    }
    t->context = context;
    t->send = send;
    t->send_ctx = send_ctx;
    BIO_set_data(bio, t);
    BIO_set_init(bio, 1);
    SSL_set_bio(t->ssl, bio, bio); /* takes it */
    SSL_set_accept_state(t->ssl);
    *out = t;
    return ST_OK;
}

void tls_close(struct tls *t) {
    if (t == NULL) return;
    SSL_free(t->ssl);
    mem_free(t);
}

bool tls_started(const struct tls *t) {
    return t->started;
}

bool tls_established(const struct tls *t) {
    return SSL_is_init_finished(t->ssl);
}

const char *tls_error(const struct tls *t) {
    return t->error != NULL ? t->error : "none";
}

void tls_input(struct tls *t, const char *bytes, size_t n) {
    t->in = bytes;
    t->n_in = n;
    t->started = t->started || n > 0;
}

enum tls_event tls_read(struct tls *t, const char **bytes, size_t *n) {
    if (t->failed) return TLS_FAILED;
    ERR_clear_error();
    int got = SSL_read(t->ssl, t->context->plain, sizeof t->context->plain);
    if (got > 0) {
        *bytes = t->context->plain;
        *n = (size_t)got;
        return TLS_DATA;
    }
    int why = SSL_get_error(t->ssl, got);
    if (why == SSL_ERROR_WANT_READ) return TLS_MORE;
    if (why == SSL_ERROR_ZERO_RETURN) return TLS_CLOSED;
    t->error = reason();
    t->failed = true;
    ERR_clear_error();
    return TLS_FAILED;
}

static int write_record(struct tls *t, const char *bytes, size_t n) {
    if (t->failed) return ST_IO;
    ERR_clear_error();
    t->writing = true;
    int sent = SSL_write(t->ssl, bytes, (int)n); /* all of it: the BIO never says "later" */
    t->writing = false;
    t->failed = sent != (int)n;
    ERR_clear_error();
    return t->failed ? ST_IO : ST_OK;
}

int tls_write(struct tls *t, const uv_buf_t *bufs, unsigned n_bufs) {
    char *gather = t->context->gather;
    size_t n = 0;
    int rc = ST_OK;
    for (unsigned i = 0; i < n_bufs; i++) {
        const char *from = bufs[i].base;
        for (size_t left = bufs[i].len, part; left > 0 && rc == ST_OK; from += part, left -= part) {
            part = left < RECORD_BYTES - n ? left : RECORD_BYTES - n;
            if (part == RECORD_BYTES) { /* a whole record: from where it lies */
                rc = write_record(t, from, part);
                continue;
            }
            memcpy(gather + n, from, part);
            n += part;
            if (n < RECORD_BYTES) continue;
            rc = write_record(t, gather, n);
            n = 0;
        }
    }
    return rc == ST_OK && n > 0 ? write_record(t, gather, n) : rc;
}

void tls_shutdown(struct tls *t) {
    if (t->failed || !tls_established(t)) return;
    ERR_clear_error();
    SSL_shutdown(t->ssl);
    ERR_clear_error();
}
