/* launch/rendezvous/torch_store.h -- a client of torchrun's key-value store, a TCPStore.
 *
 * The agent of torchrun's first host serves a store at MASTER_ADDR:MASTER_PORT.  Workers may read
 * and write keys of their own.  Every message begins with the number of an operation, followed by
 * its arguments in host byte order.  A text is its length in eight bytes and then its bytes.  Since
 * PyTorch 2.1 a connection begins with a fixed number, and most operations have other numbers than
 * before; both forms are supported.
 *
 * Threads:  one at a time.  No function waits longer than ten seconds for the store.
 */
#ifndef LKI_LAUNCH_RENDEZVOUS_TORCH_STORE_H
#define LKI_LAUNCH_RENDEZVOUS_TORCH_STORE_H

#include "launch/rendezvous/endpoint.h"

typedef struct {
    int  fd;      /* -1 = closed */
    bool greets;  /* the store expects the fixed number */
} lki_torch_store;

/* Connects, and finds out which form the store has.  Returns LK_EPEER if there is no such store,
 * LK_EINVAL if the host has no address. */
LK_NODISCARD lk_status lki_torch_store_open(lki_torch_store *out, const lki_endpoint *endpoint);

/* Disconnects.  The store may be closed already. */
void lki_torch_store_close(lki_torch_store *store);

LK_NODISCARD lk_status lki_torch_store_set(lki_torch_store *store, const char *key,
                                           const char *value);

/* Reads the value of a key.  If the store does not have the key, *found becomes false. */
LK_NODISCARD lk_status lki_torch_store_get(bool *found, lki_torch_store *store, const char *key,
                                           char *value, size_t bytes);

/* Deletes a key, which need not exist. */
LK_NODISCARD lk_status lki_torch_store_delete(lki_torch_store *store, const char *key);

#endif
