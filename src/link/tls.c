/* tls.c -- TLS 1.3 sessions with an external key, over non-blocking sockets.
 *
 * OpenSSL writes encrypted bytes to a ring in memory (one half of a BIO pair), and is called only
 * when the ring has room for a whole record.  A write is therefore accepted or not accepted as a
 * whole, and never has to be repeated with the same bytes.  One send() sends several records.
 * Small parts are gathered into one record; large parts are encrypted in place.
 *
 * OpenSSL reads from the socket itself, ahead and in large pieces, so records may remain in memory
 * after a read.  The socket does not report these records.  `more` is therefore true until a read
 * finds nothing.
 *
 * Both sides check that the handshake used the key.  A certificate cannot replace the key, because
 * a server has no certificate and a client would trust none.  This file also rejects a handshake
 * without the key, independent of OpenSSL.
 */
#include "link/tls.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/memory.h"
#include "link/openssl.h"

enum {
    RECORD_BYTES = 16384,               /* payload of the largest TLS record */
    RECORD_ROOM  = RECORD_BYTES + 1024, /* room for an encrypted record and a key update before
                                         * it */
    RING_BYTES   = 5 * RECORD_ROOM,     /* size of the ring of encrypted bytes that are not sent
                                         * yet */
    AHEAD_BYTES  = 6 * (RECORD_BYTES + 22) + 64, /* bytes read from the socket at once: a whole
                                                  * number of records */
};

static const uint64_t      RENEW_BYTES   = UINT64_C(64) << 30; /* the limit of AES-GCM is 2^24.5
                                                                * records */
static const char          SUITE[]       = "TLS_AES_128_GCM_SHA256";
static const unsigned char SUITE_CODE[2] = { 0x13, 0x01 };

struct lki_tls_library {
    lki_openssl openssl;
    SSL_CTX    *context;
    uint64_t    renew_bytes;
};

struct lki_tls {
    lki_tls_library   *library;
    const lki_openssl *openssl;
    SSL               *ssl;
    BIO               *socket; /* OpenSSL reads from it; owned by the session */
    BIO               *ring;   /* this side's end of the pair to which OpenSSL writes */
    BIO               *inner;  /* OpenSSL's end; owned by the session */
    int                fd;
    bool               server, established, more, finished, cut;
    int                unsendable; /* the errno with which sending failed; 0 = none */
    char               peer[LKI_TLS_PEER_BYTES];
    char               identity[LKI_TLS_IDENTITY_BYTES];
    unsigned char      key[LKI_KEY_BYTES]; /* the job's key; zeroed after the handshake */
    lki_tls_welcome   *welcome;
    void              *context;
    uint64_t           since_renewal, renewals;
    char               why[200]; /* reason why the session ended; "" while it is usable */
    unsigned char      gathered[RECORD_BYTES];
};

/* ---- Failing ----------------------------------------------------------------------------- */

static lk_status again(const lki_tls *tls)
{
    return lk_fail(LK_EPEER, "%s: %s", tls->peer, tls->why);
}

/* Ends the session with a message, as printf() formats it.  The first message is kept. */
__attribute__((format(printf, 2, 3))) static lk_status broken(lki_tls *tls, const char *format, ...)
{
    va_list args;
    if (tls->why[0] == '\0') {
        va_start(args, format);
        (void)vsnprintf(tls->why, sizeof tls->why, format, args);
        va_end(args);
    }
    return again(tls);
}

/* Ends the session after a failed OpenSSL call.  `code` is the result of SSL_get_error(), `error`
 * the errno. */
static lk_status broken_in(lki_tls *tls, const char *doing, int code, int error)
{
    const lki_openssl *openssl = tls->openssl;
    unsigned long      number  = openssl->ERR_peek_error();
    const char        *reason  = number ? openssl->ERR_reason_error_string(number) : NULL;

    tls->cut = code == SSL_ERROR_SYSCALL ||
               ERR_GET_REASON(number) == SSL_R_UNEXPECTED_EOF_WHILE_READING;
    if (code == SSL_ERROR_SYSCALL && error != 0)
        return broken(tls, "%s: %s", doing, strerror(error));
    if (tls->cut)
        return broken(tls, "%s: the connection ended without a farewell", doing);
    return broken(tls, "%s: %s", doing, reason ? reason : "unknown failure");
}

/* Sends as much of the ring as the socket accepts.  Returns 0 or an errno. */
static int push(lki_tls *tls)
{
    const lki_openssl *openssl = tls->openssl;
    for (;;) {
        char *data  = NULL;
        int   bytes = openssl->BIO_nread0(tls->ring, &data);
        if (bytes <= 0)
            return 0;
        ssize_t sent = send(tls->fd, data, (size_t)bytes, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            return errno == EAGAIN ? 0 : errno;
        (void)openssl->BIO_nread(tls->ring, &data, (int)sent);
    }
}

/* Sends the ring.  A failure to send does not end the session, because the peer may have sent data
 * before it closed the connection. */
lk_status lki_tls_flush(lki_tls *tls)
{
    if (tls->unsendable == 0)
        tls->unsendable = push(tls);
    if (tls->unsendable == 0)
        return LK_OK;
    tls->cut = true;
    return lk_fail(LK_EPEER, "%s: sending: %s", tls->peer, strerror(tls->unsendable));
}

/* ---- The key ----------------------------------------------------------------------------- */

/* Creates an SSL_SESSION that contains the external key.  Returns NULL on failure. */
static SSL_SESSION *session_of(lki_tls *tls)
{
    const lki_openssl *openssl = tls->openssl;
    const SSL_CIPHER  *suite   = openssl->SSL_CIPHER_find(tls->ssl, SUITE_CODE);
    SSL_SESSION       *session = openssl->SSL_SESSION_new();
    unsigned char      key[LKI_KEY_BYTES];
    if (session == NULL)
        return NULL;

    lki_key_derive(key, tls->key, tls->identity);
    int good = suite != NULL && openssl->SSL_SESSION_set1_master_key(session, key, sizeof key) &&
               openssl->SSL_SESSION_set_cipher(session, suite) &&
               openssl->SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION);
    explicit_bzero(key, sizeof key);
    if (!good) {
        openssl->SSL_SESSION_free(session);
        return NULL;
    }
    return session;
}

/* Passes the client's identity and key to OpenSSL.  `digest` is SHA-256 or NULL. */
static int offer(SSL *ssl, const EVP_MD *digest, const unsigned char **identity, size_t *bytes,
                 SSL_SESSION **session)
{
    lki_tls *tls = lki_openssl_data_of(ssl);
    (void)digest; /* unused: the only allowed cipher suite has one digest */
    *session  = session_of(tls);
    *identity = (const unsigned char *)tls->identity;
    *bytes    = strlen(tls->identity);
    return *session != NULL;
}

/* Passes the key of a client's identity to OpenSSL.  Returns 0 to end the handshake. */
static int find(SSL *ssl, const unsigned char *identity, size_t bytes, SSL_SESSION **session)
{
    lki_tls *tls = lki_openssl_data_of(ssl);
    *session     = NULL;
    if (bytes == 0 || bytes >= sizeof tls->identity || memchr(identity, '\0', bytes) != NULL) {
        (void)broken(tls, "handshake: an identity of %zu bytes is none of ours", bytes);
        return 0;
    }
    memcpy(tls->identity, identity, bytes);
    tls->identity[bytes] = '\0';
    if (!tls->welcome(tls->context, tls->identity)) {
        (void)broken(tls, "handshake: refused");
        return 0;
    }
    *session = session_of(tls);
    return *session != NULL;
}

/* ---- OpenSSL ----------------------------------------------------------------------------- */

static lk_status configure(lki_tls_library *self)
{
    const lki_openssl *openssl = &self->openssl;
    self->context              = openssl->SSL_CTX_new(openssl->TLS_method());
    if (self->context == NULL)
        return lk_fail(LK_EUNSUPPORTED, "OpenSSL refuses to start; is its configuration sound?");

    SSL_CTX *context = self->context;
    (void)openssl->SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
    (void)openssl->SSL_CTX_ctrl(context, SSL_CTRL_MODE, SSL_MODE_RELEASE_BUFFERS, NULL);
    (void)openssl->SSL_CTX_ctrl(context, SSL_CTRL_SET_SESS_CACHE_MODE, SSL_SESS_CACHE_OFF, NULL);
    (void)openssl->SSL_CTX_ctrl(context, SSL_CTRL_SET_READ_AHEAD, 1, NULL);
    openssl->SSL_CTX_set_default_read_buffer_len(context, AHEAD_BYTES);
    openssl->SSL_CTX_set_psk_use_session_callback(context, offer);
    openssl->SSL_CTX_set_psk_find_session_callback(context, find);
    if (!openssl->SSL_CTX_ctrl(context, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_3_VERSION, NULL) ||
        !openssl->SSL_CTX_ctrl(context, SSL_CTRL_SET_MAX_PROTO_VERSION, TLS1_3_VERSION, NULL) ||
        !openssl->SSL_CTX_set_ciphersuites(context, SUITE) ||
        !openssl->SSL_CTX_set_num_tickets(context, 0))
        return lk_fail(LK_EUNSUPPORTED,
                       "this OpenSSL does not let us use TLS 1.3 with %s; run with "
                       "`insecure` on a network that you trust",
                       SUITE);
    return LK_OK;
}

lk_status lki_tls_library_open(lki_tls_library **out)
{
    lki_tls_library *self = NULL;
    *out                  = NULL;
    LK_TRY(LKI_NEW(&self, 1, "TLS library"));
    self->renew_bytes = RENEW_BYTES;

    lk_status status = lki_openssl_load(&self->openssl);
    if (status == LK_OK)
        status = configure(self);
    if (status != LK_OK) {
        lki_tls_library_free(self);
        return status;
    }
    *out = self;
    return LK_OK;
}

void lki_tls_library_free(lki_tls_library *library)
{
    if (library == NULL)
        return;
    if (library->context != NULL)
        library->openssl.SSL_CTX_free(library->context);
    lki_openssl_unload(&library->openssl);
    lki_free(library);
}

void lki_tls_library_renew_after(lki_tls_library *library, uint64_t bytes)
{
    library->renew_bytes = bytes;
}

/* ---- Sessions ---------------------------------------------------------------------------- */

/* Connects the session to its socket and ring.  SSL_free() then also frees `socket` and `inner`. */
static bool attach(lki_tls *tls)
{
    const lki_openssl *openssl = tls->openssl;
    tls->ssl                   = openssl->SSL_new(tls->library->context);
    tls->socket                = openssl->BIO_new_socket(tls->fd, BIO_NOCLOSE);
    if (tls->ssl == NULL || tls->socket == NULL ||
        !openssl->BIO_new_bio_pair(&tls->inner, RING_BYTES, &tls->ring, 1) ||
        !openssl->SSL_set_ex_data(tls->ssl, 0, tls)) {
        (void)openssl->BIO_free(tls->socket);
        (void)openssl->BIO_free(tls->inner);
        return false;
    }
    openssl->SSL_set_bio(tls->ssl, tls->socket, tls->inner);
    if (tls->server)
        openssl->SSL_set_accept_state(tls->ssl);
    else
        openssl->SSL_set_connect_state(tls->ssl);
    if (!tls->server) /* there are no trusted issuers, so no certificate is valid */
        openssl->SSL_set_verify(tls->ssl, SSL_VERIFY_PEER, NULL);
    return true;
}

static lk_status open_session(lki_tls **out, lki_tls_library *library, int fd, const char *peer,
                              const unsigned char key[LKI_KEY_BYTES], bool server)
{
    lki_tls *self = NULL;
    *out          = NULL;
    LK_TRY(LKI_NEW(&self, 1, "TLS session"));
    self->library = library;
    self->openssl = &library->openssl;
    self->fd      = fd;
    self->server  = server;
    memcpy(self->key, key, sizeof self->key);
    snprintf(self->peer, sizeof self->peer, "%s", peer);
    self->openssl->ERR_clear_error();
    if (!attach(self)) {
        lki_tls_free(self);
        return lk_fail(LK_ENOMEM, "%s: no memory for a TLS session", peer);
    }
    *out = self;
    return LK_OK;
}

lk_status lki_tls_client(lki_tls **out, lki_tls_library *library, int fd, const char *peer,
                         const char *identity, const unsigned char key[LKI_KEY_BYTES])
{
    LK_ASSERT(identity[0] != '\0' && strlen(identity) < LKI_TLS_IDENTITY_BYTES);
    LK_TRY(open_session(out, library, fd, peer, key, false));
    snprintf((*out)->identity, sizeof(*out)->identity, "%s", identity);
    return LK_OK;
}

lk_status lki_tls_server(lki_tls **out, lki_tls_library *library, int fd, const char *peer,
                         const unsigned char key[LKI_KEY_BYTES], lki_tls_welcome *welcome,
                         void *context)
{
    LK_TRY(open_session(out, library, fd, peer, key, true));
    (*out)->welcome = welcome;
    (*out)->context = context;
    return LK_OK;
}

void lki_tls_free(lki_tls *tls)
{
    if (tls == NULL)
        return;
    tls->openssl->SSL_free(tls->ssl);
    (void)tls->openssl->BIO_free(tls->ring);
    explicit_bzero(tls->key, sizeof tls->key);
    lki_free(tls);
}

const char *lki_tls_identity(const lki_tls *tls)
{
    return tls->identity;
}

/* ---- Handshake --------------------------------------------------------------------------- */

lk_status lki_tls_handshake(lki_tls *tls, bool *done)
{
    const lki_openssl *openssl = tls->openssl;
    *done                      = tls->established;
    if (tls->why[0] != '\0')
        return again(tls);
    if (tls->established)
        return LK_OK;

    openssl->ERR_clear_error();
    errno      = 0;
    int result = openssl->SSL_do_handshake(tls->ssl);
    int error = errno, code = openssl->SSL_get_error(tls->ssl, result);
    if (result == 1 && !openssl->SSL_session_reused(tls->ssl))
        return broken(tls, "handshake: the peer has no key of this job");
    if (result != 1 && code != SSL_ERROR_WANT_READ) {
        (void)broken_in(tls, "handshake", code, error);
        (void)push(tls); /* sends the alert that informs the peer */
        return again(tls);
    }
    if (result != 1 && openssl->BIO_number_read(tls->socket) > LKI_TLS_HANDSHAKE_BYTES)
        return broken(tls, "handshake: over %d bytes", LKI_TLS_HANDSHAKE_BYTES);
    if (result == 1) {
        explicit_bzero(tls->key, sizeof tls->key);
        tls->established = tls->more = *done = true;
    }
    return lki_tls_flush(tls);
}

/* ---- Writing ----------------------------------------------------------------------------- */

size_t lki_tls_unsent(const lki_tls *tls)
{
    return tls->openssl->BIO_ctrl_pending(tls->ring);
}

/* The position of the next byte to write in the caller's iovec parts. */
typedef struct {
    const struct iovec *part;
    int                 count; /* number of parts from `part` on */
    size_t              offset;
} cursor;

static void skip_empty(cursor *at)
{
    while (at->count > 0 && at->offset == at->part->iov_len) {
        at->part++;
        at->count--;
        at->offset = 0;
    }
}

/* Returns the payload size of the next record; *data becomes its bytes.  If the current part has a
 * whole record, *data points into that part.  Otherwise bytes of several parts are copied to
 * `gathered`. */
static size_t next_record(cursor *at, unsigned char *gathered, const void **data)
{
    const unsigned char *here = (const unsigned char *)at->part->iov_base + at->offset;
    if (at->part->iov_len - at->offset >= RECORD_BYTES) {
        *data = here;
        at->offset += RECORD_BYTES;
        return RECORD_BYTES;
    }
    size_t bytes = 0;
    *data        = gathered;
    while (bytes < RECORD_BYTES && at->count > 0) {
        size_t more = lki_min(at->part->iov_len - at->offset, RECORD_BYTES - bytes);
        here        = (const unsigned char *)at->part->iov_base + at->offset;
        if (more > 0)
            memcpy(gathered + bytes, here, more);
        bytes += more;
        at->offset += more;
        skip_empty(at);
    }
    return bytes;
}

/* Encrypts a record into the ring, which must have room for it. */
static lk_status encrypt(lki_tls *tls, const void *data, size_t bytes)
{
    const lki_openssl *openssl = tls->openssl;
    size_t             written = 0;

    openssl->ERR_clear_error();
    if (tls->since_renewal >= tls->library->renew_bytes) {
        if (!openssl->SSL_key_update(tls->ssl, SSL_KEY_UPDATE_NOT_REQUESTED))
            return broken_in(tls, "renewing keys", SSL_ERROR_SSL, 0);
        tls->since_renewal = 0;
        tls->renewals++;
    }
    if (openssl->SSL_write_ex(tls->ssl, data, bytes, &written) != 1)
        return broken_in(tls, "writing", SSL_ERROR_SSL, 0);
    LK_ASSERT(written == bytes);
    tls->since_renewal += bytes;
    return LK_OK;
}

lk_status lki_tls_write(lki_tls *tls, const struct iovec *parts, int count, size_t *moved)
{
    cursor at = { parts, count, 0 };
    LK_ASSERT(tls->established && !tls->finished);
    *moved = 0;
    if (tls->why[0] != '\0')
        return again(tls);

    skip_empty(&at);
    while (at.count > 0) {
        if (tls->openssl->BIO_ctrl_get_write_guarantee(tls->inner) < RECORD_ROOM)
            LK_TRY(lki_tls_flush(tls));
        if (tls->openssl->BIO_ctrl_get_write_guarantee(tls->inner) < RECORD_ROOM)
            return LK_OK;
        const void *data  = NULL;
        size_t      bytes = next_record(&at, tls->gathered, &data);
        LK_TRY(encrypt(tls, data, bytes));
        *moved += bytes;
        skip_empty(&at);
    }
    return lki_tls_flush(tls);
}

lk_status lki_tls_finish(lki_tls *tls)
{
    LK_ASSERT(tls->established);
    if (tls->why[0] != '\0')
        return again(tls);
    if (!tls->finished) {
        tls->finished = true;
        tls->openssl->ERR_clear_error();
        (void)tls->openssl->SSL_shutdown(tls->ssl); /* writes to the ring, in which records always
                                                     * leave enough room */
    }
    return lki_tls_flush(tls);
}

bool lki_tls_cut(const lki_tls *tls)
{
    return tls->cut;
}

uint64_t lki_tls_renewals(const lki_tls *tls)
{
    return tls->renewals;
}

/* ---- Reading ----------------------------------------------------------------------------- */

bool lki_tls_buffered(const lki_tls *tls)
{
    return tls->more;
}

lk_status lki_tls_read(lki_tls *tls, void *data, size_t bytes, size_t *moved)
{
    const lki_openssl *openssl = tls->openssl;
    LK_ASSERT(tls->established);
    *moved = 0;
    if (tls->why[0] != '\0')
        return again(tls);

    while (*moved < bytes) {
        size_t got = 0;
        openssl->ERR_clear_error();
        errno      = 0;
        int result = openssl->SSL_read_ex(tls->ssl, (char *)data + *moved, bytes - *moved, &got);
        int error = errno, code = openssl->SSL_get_error(tls->ssl, result);
        if (result == 1) {
            *moved += got;
            tls->more = true;
            continue;
        }
        tls->more = code != SSL_ERROR_WANT_READ; /* true if the read failed, so that the next read
                                                  * reports the end again */
        if (!tls->more || *moved > 0)
            return LK_OK;
        if (code == SSL_ERROR_ZERO_RETURN)
            return broken(tls, "the peer has closed the connection");
        return broken_in(tls, "reading", code, error);
    }
    return LK_OK;
}
