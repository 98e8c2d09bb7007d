/* link/openssl.h -- the functions of OpenSSL 3 that tls.c calls, loaded at run time.
 *
 * The build needs the headers.  The library (libssl.so.3, which loads libcrypto) is needed only to
 * run with TLS.  The table has one row per function, with the types declared by OpenSSL's headers.
 */
#ifndef LKI_LINK_OPENSSL_H
#define LKI_LINK_OPENSSL_H

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "base/status.h"

#define LKI_OPENSSL_TABLE(X)                                                                       \
    X(BIO_ctrl_get_write_guarantee)                                                                \
    X(BIO_ctrl_pending)                                                                            \
    X(BIO_free)                                                                                    \
    X(BIO_new_bio_pair)                                                                            \
    X(BIO_new_socket)                                                                              \
    X(BIO_nread)                                                                                   \
    X(BIO_nread0)                                                                                  \
    X(BIO_number_read)                                                                             \
    X(ERR_clear_error)                                                                             \
    X(ERR_peek_error)                                                                              \
    X(ERR_reason_error_string)                                                                     \
    X(SSL_CIPHER_find)                                                                             \
    X(SSL_CTX_ctrl)                                                                                \
    X(SSL_CTX_free)                                                                                \
    X(SSL_CTX_new)                                                                                 \
    X(SSL_CTX_set_ciphersuites)                                                                    \
    X(SSL_CTX_set_default_read_buffer_len)                                                         \
    X(SSL_CTX_set_num_tickets)                                                                     \
    X(SSL_CTX_set_options)                                                                         \
    X(SSL_CTX_set_psk_find_session_callback)                                                       \
    X(SSL_CTX_set_psk_use_session_callback)                                                        \
    X(SSL_SESSION_free)                                                                            \
    X(SSL_SESSION_new)                                                                             \
    X(SSL_SESSION_set1_master_key)                                                                 \
    X(SSL_SESSION_set_cipher)                                                                      \
    X(SSL_SESSION_set_protocol_version)                                                            \
    X(SSL_do_handshake)                                                                            \
    X(SSL_free)                                                                                    \
    X(SSL_get_error)                                                                               \
    X(SSL_get_ex_data)                                                                             \
    X(SSL_key_update)                                                                              \
    X(SSL_new)                                                                                     \
    X(SSL_read_ex)                                                                                 \
    X(SSL_session_reused)                                                                          \
    X(SSL_set_accept_state)                                                                        \
    X(SSL_set_bio)                                                                                 \
    X(SSL_set_connect_state)                                                                       \
    X(SSL_set_ex_data)                                                                             \
    X(SSL_set_verify)                                                                              \
    X(SSL_shutdown)                                                                                \
    X(SSL_write_ex)                                                                                \
    X(TLS_method)

typedef struct {
    void *handle;
#define LKI_OPENSSL_MEMBER(name) __typeof__(&name) name;
    LKI_OPENSSL_TABLE(LKI_OPENSSL_MEMBER)
#undef LKI_OPENSSL_MEMBER
} lki_openssl;

/* Loads OpenSSL and looks up its functions.  Returns LK_EUNSUPPORTED if the library or a function
 * is missing; nothing is then loaded. */
LK_NODISCARD lk_status lki_openssl_load(lki_openssl *out);
void                   lki_openssl_unload(lki_openssl *openssl);

/* Returns the value that SSL_set_ex_data() stored at index 0.  OpenSSL's callbacks use it, because
 * they receive only the SSL and not the table.  Looks up the function on each call. */
void *lki_openssl_data_of(const SSL *ssl);

#endif
