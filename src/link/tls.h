/* link/tls.h -- TLS 1.3 over a connected socket, between two sides that have the job's key.
 *
 * There are no certificates.  A session has an identity, a line of text that names the job, the
 * client and the server.  The session's key is derived from the job's key and the identity.  Both
 * sides thus prove that they have the job's key, and a session key is valid for one identity only.
 * A recorded handshake cannot be replayed, because Diffie-Hellman shares are new in every session
 * and there are neither tickets nor early data.  An identity must name its direction: the side that
 * connects is always the client.
 *
 * OpenSSL 3 implements the protocol.  It is loaded on first use; nothing links it.
 *
 * The socket must be non-blocking and belongs to the caller.  No call waits.  The caller watches
 * the socket with poll() or epoll, and must also check two functions.  If lki_tls_buffered() is
 * true, a read may return data without waiting for the socket.  If lki_tls_unsent() is not 0, the
 * caller must also wait for the socket to be writable.
 *
 * Threads: only one thread at a time may use a library and its sessions.
 * Errors:  LK_EPEER means that the session has ended.  Every later call then fails, too, with one
 *          exception: after a failure to send, data that the peer sent before can still be read.
 *          The error names the peer.
 */
#ifndef LKI_LINK_TLS_H
#define LKI_LINK_TLS_H

#include <sys/uio.h>

#include "lockstep/base.h"

enum {
    LKI_KEY_BYTES           = 32,
    LKI_TLS_IDENTITY_BYTES  = 128,   /* size of an identity, with the terminating zero */
    LKI_TLS_HANDSHAKE_BYTES = 16384, /* limit of the data received before the peer is authenticated;
                                      * a session that exceeds it ends */
    LKI_TLS_PEER_BYTES      = 64,
};

/* ---- OpenSSL ----------------------------------------------------------------------------- */

typedef struct lki_tls_library lki_tls_library;

/* Loads OpenSSL.  Returns LK_EUNSUPPORTED if OpenSSL 3 is missing; the error names the package to
 * install. */
LK_NODISCARD lk_status lki_tls_library_open(lki_tls_library **out);

/* Unloads OpenSSL, after all sessions have been freed. */
void lki_tls_library_free(lki_tls_library *library);

/* Sets the number of bytes after which the key of one direction is renewed; for tests.  The limit
 * of AES-GCM is six times the default. */
void lki_tls_library_renew_after(lki_tls_library *library, uint64_t bytes);

/* ---- Sessions ---------------------------------------------------------------------------- */

typedef struct lki_tls lki_tls;

/* Returns true if a client with this identity may connect.  Called by lki_tls_handshake(). */
typedef bool lki_tls_welcome(void *context, const char *identity);

/* Starts a session as client.  Error messages print `peer`, such as "10.0.0.2:4711".  The key is
 * copied, and the copy is zeroed after the handshake. */
LK_NODISCARD lk_status lki_tls_client(lki_tls **out, lki_tls_library *library, int fd,
                                      const char *peer, const char *identity,
                                      const unsigned char key[LKI_KEY_BYTES]);

/* Starts a session as server.  The callback `welcome` accepts or refuses the client's identity. */
LK_NODISCARD lk_status lki_tls_server(lki_tls **out, lki_tls_library *library, int fd,
                                      const char *peer, const unsigned char key[LKI_KEY_BYTES],
                                      lki_tls_welcome *welcome, void *context);

/* Returns the client's identity.  On a server the text is "" until the identity is known. */
const char *lki_tls_identity(const lki_tls *tls);

/* Continues the handshake.  *done becomes true when it is complete; only then can data be read or
 * written.  The caller must limit the time that the handshake takes. */
LK_NODISCARD lk_status lki_tls_handshake(lki_tls *tls, bool *done);

/* Accepts as many bytes as fit, and sends as many as possible.  Accepted bytes are copied and
 * encrypted before the call returns.  *moved becomes the number of accepted bytes, which is 0 if
 * the peer reads too slowly. */
LK_NODISCARD lk_status lki_tls_write(lki_tls *tls, const struct iovec *parts, int count,
                                     size_t *moved);

/* Sends data that has been accepted but not sent. */
LK_NODISCARD lk_status lki_tls_flush(lki_tls *tls);

/* Returns the number of bytes accepted but not yet sent. */
size_t                 lki_tls_unsent(const lki_tls *tls);

/* Reads the bytes that have arrived.  *moved becomes their number, which may be 0.  Returns
 * LK_EPEER at the end of the stream; the error says whether the peer announced the end. */
LK_NODISCARD lk_status lki_tls_read(lki_tls *tls, void *data, size_t bytes, size_t *moved);

/* Returns true if a read may return data although nothing new arrives on the socket. */
bool                   lki_tls_buffered(const lki_tls *tls);

/* Announces that this side writes no more; call lki_tls_flush() afterwards. */
LK_NODISCARD lk_status lki_tls_finish(lki_tls *tls);

/* Returns true if the session ended because the connection was cut; false if one side refused the
 * handshake. */
bool lki_tls_cut(const lki_tls *tls);

/* Returns the number of times this side has renewed its key. */
uint64_t lki_tls_renewals(const lki_tls *tls);

/* Frees the session and wipes its keys; sends nothing. */
void lki_tls_free(lki_tls *tls);

/* ---- Keys -------------------------------------------------------------------------------- */

/* Derives an independent key for each purpose from the job's key (HKDF-SHA256). */
void lki_key_derive(unsigned char out[LKI_KEY_BYTES], const unsigned char key[LKI_KEY_BYTES],
                    const char *purpose);

#endif
