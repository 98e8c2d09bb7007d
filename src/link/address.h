/* link/address.h -- addresses of listening sockets, and their text form: "10.0.0.1:4711",
 * "[::1]:4711", "node7:4711". */
#ifndef LKI_LINK_ADDRESS_H
#define LKI_LINK_ADDRESS_H

#include <sys/socket.h>

#include "lockstep/base.h"

enum { LKI_ADDRESS_BYTES = 64 }; /* size of the text of a numeric address */

typedef struct {
    struct sockaddr_storage storage;
    socklen_t               bytes;
} lki_address;

/* Parses a numeric address, without a name server. */
LK_NODISCARD lk_status lki_address_parse(lki_address *out, const char *text);

/* Splits "HOST:PORT" into `host` and `port`.  Checks neither part. */
LK_NODISCARD lk_status lki_address_split(const char *text, char host[256], char port[16]);

/* Writes "10.0.0.1:4711" or "[::1]:4711". */
void lki_address_text(char out[LKI_ADDRESS_BYTES], const lki_address *address);

bool lki_address_is_loopback(const lki_address *address);

/* Opens a listening socket on the address `host`.  The kernel chooses the port. */
LK_NODISCARD lk_status lki_address_listen(int *fd, lki_address *out, const char *host);

#endif
