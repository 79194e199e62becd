/* SPDX-License-Identifier: Apache-2.0
 *
 * TLS between bytes and bytes: what came from the socket goes in, what the client wrote comes out, and the other way
 * round. No sockets and no libuv: the connection hands over a function that sends, tests and the fuzzer call it directly.
 *
 * TLS 1.2 and 1.3, AEAD ciphers with forward secrecy, ALPN http/1.1, session tickets (so that no session is kept here), no
 * renegotiation, no compression, no early data. Thread: L; a context's buffers are shared by its connections. */
#ifndef MOED_SERVER_TLS_H
#define MOED_SERVER_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

#include "base/err.h"

struct tls_context; /* certificate, key, buffers */
struct tls;         /* one connection            */

enum tls_event {
    TLS_DATA,   /* bytes for the application                                                    */
    TLS_MORE,   /* needs more from the socket                                                   */
    TLS_CLOSED, /* the client said close_notify: nothing more comes                             */
    TLS_FAILED, /* no TLS, or broken; an alert that says so was sent. Nothing works from here on */
};

/* Sends bytes or keeps a copy to send them later; 0, or a status when the connection is lost. */
typedef int (*tls_send_fn)(void *ctx, const char *bytes, size_t n);

/* cert: PEM, the server's certificate and then its chain. key: PEM, without a passphrase; "" = in the same file. Errors
 * name option, file and remedy. *out is owned, free with tls_context_close. */
int tls_context_open(struct tls_context **out, const char *cert, const char *key, struct err *e);
int tls_context_reload(struct tls_context *t, struct err *e); /* both files anew, for later connections; an error changes nothing */
void tls_context_log(const struct tls_context *t);            /* whom the certificate names, until when, and what is odd about the files */
void tls_context_close(struct tls_context *t);                /* after the last tls_close */

int tls_open(struct tls **out, struct tls_context *t, tls_send_fn send, void *send_ctx); /* awaits a handshake */
void tls_close(struct tls *t);                                                           /* NULL is fine       */
bool tls_started(const struct tls *t);     /* a byte has come in       */
bool tls_established(const struct tls *t); /* the handshake is over    */

/* Bytes of the socket; borrows them until tls_read has answered other than TLS_DATA, or the next tls_input. */
void tls_input(struct tls *t, const char *bytes, size_t n);
enum tls_event tls_read(struct tls *t, const char **bytes, size_t *n); /* views into the context, until the next call for any connection */
const char *tls_error(const struct tls *t);                            /* after TLS_FAILED; static text */

int tls_write(struct tls *t, const uv_buf_t *bufs, unsigned n_bufs); /* as few records as possible */
void tls_shutdown(struct tls *t);                                    /* says close_notify, if there is anybody to say it to */

#endif
