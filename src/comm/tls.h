/* comm/tls.h -- TLS 1.3 over a connected socket, between two sides that have the job's key.
 *
 * There are no certificates: a session has an identity, a line of text that says which job it
 * belongs to and who talks to whom, and its key is derived from the job's key and that identity.
 * So both sides prove that they have the job's key, a key is good for one identity only, and a
 * recorded handshake is worth nothing (fresh Diffie-Hellman shares, no tickets, no early data).
 * An identity must name its direction: who connects is the client, and never the server of it.
 *
 * OpenSSL 3 does the work.  It is loaded when first asked for; nothing links it.
 *
 * The socket must be non-blocking and stays the caller's; no call waits.  What arrives is watched
 * for by the caller's poll() or epoll, with two additions: lki_tls_buffered() (do not wait for the
 * socket, a read may yield something) and lki_tls_unsent() (also wait for room to send).
 *
 * Threads:  one at a time for a session and for a library with all of its sessions.
 * Errors:   LK_EPEER: the session is over, and says so from then on; the text names the peer.
 */
#ifndef LKI_COMM_TLS_H
#define LKI_COMM_TLS_H

#include <sys/uio.h>

#include "lockstep/base.h"

enum {
    LKI_KEY_BYTES           = 32,
    LKI_TLS_IDENTITY_BYTES  = 128,   /* with the terminating zero */
    LKI_TLS_HANDSHAKE_BYTES = 16384, /* a peer that sends more before it has proved itself is cut */
    LKI_TLS_PEER_BYTES      = 64,
};

/* ---- OpenSSL ----------------------------------------------------------------------------- */

typedef struct lki_tls_library lki_tls_library;

/* LK_EUNSUPPORTED, naming the package, where OpenSSL 3 is missing. */
LK_NODISCARD lk_status lki_tls_library_open(lki_tls_library **out);

/* After all of its sessions. */
void lki_tls_library_free(lki_tls_library *library);

/* Keys are renewed after this many bytes in one direction; what AES-GCM is good for is six times
 * as much.  For tests: a smaller number. */
void lki_tls_library_renew_after(lki_tls_library *library, uint64_t bytes);

/* ---- Sessions ---------------------------------------------------------------------------- */

typedef struct lki_tls lki_tls;

/* Whether a client with this identity is welcome.  Called within lki_tls_handshake(). */
typedef bool lki_tls_welcome(void *context, const char *identity);

/* `peer` is for messages ("10.0.0.2:4711").  Keys are copied, and wiped after the handshake. */
LK_NODISCARD lk_status lki_tls_client(lki_tls **out, lki_tls_library *library, int fd,
                                      const char *peer, const char *identity,
                                      const unsigned char key[LKI_KEY_BYTES]);
LK_NODISCARD lk_status lki_tls_server(lki_tls **out, lki_tls_library *library, int fd,
                                      const char *peer, const unsigned char key[LKI_KEY_BYTES],
                                      lki_tls_welcome *welcome, void *context);

/* Who the client says it is; "" as long as a server does not know. */
const char *lki_tls_identity(const lki_tls *tls);

/* Goes on with the handshake; nothing can be read or written before *done.  Its time limit is the
 * caller's affair. */
LK_NODISCARD lk_status lki_tls_handshake(lki_tls *tls, bool *done);

/* Takes what there is room for (a copy, encrypted before the call returns), and sends what it can
 * of it.  *moved is 0 where the peer is behind. */
LK_NODISCARD lk_status lki_tls_write(lki_tls *tls, const struct iovec *parts, int count,
                                     size_t *moved);

/* Sends what has been taken and is not sent; what is left then: lki_tls_unsent(). */
LK_NODISCARD lk_status lki_tls_flush(lki_tls *tls);
size_t                 lki_tls_unsent(const lki_tls *tls);

/* *moved is 0 where nothing has arrived.  The end that the peer has announced, and one that it has
 * not, are LK_EPEER with different texts. */
LK_NODISCARD lk_status lki_tls_read(lki_tls *tls, void *data, size_t bytes, size_t *moved);
bool                   lki_tls_buffered(const lki_tls *tls);

/* Announces the end of what this side writes; flush it. */
LK_NODISCARD lk_status lki_tls_finish(lki_tls *tls);

/* Whether it was the connection that ended, and not the handshake that one side refused. */
bool lki_tls_cut(const lki_tls *tls);

/* How often this side has renewed its key. */
uint64_t lki_tls_renewals(const lki_tls *tls);

/* Frees the session and wipes its keys; sends nothing. */
void lki_tls_free(lki_tls *tls);

/* ---- Keys -------------------------------------------------------------------------------- */

/* HKDF-SHA256: an independent key for every purpose, from the job's. */
void lki_key_derive(unsigned char out[LKI_KEY_BYTES], const unsigned char key[LKI_KEY_BYTES],
                    const char *purpose);

#endif
