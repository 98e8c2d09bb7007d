/* comm/address.h -- where something listens, as people and records write it: "10.0.0.1:4711",
 * "[::1]:4711", "node7:4711".
 */
#ifndef LKI_COMM_ADDRESS_H
#define LKI_COMM_ADDRESS_H

#include <sys/socket.h>

#include "lockstep/base.h"

enum { LKI_ADDRESS_BYTES = 64 }; /* of a numeric one */

typedef struct {
    struct sockaddr_storage storage;
    socklen_t               bytes;
} lki_address;

/* Of numbers only: asks no name server. */
LK_NODISCARD lk_status lki_address_parse(lki_address *out, const char *text);

/* Takes host and port apart, without a look at what they are. */
LK_NODISCARD lk_status lki_address_split(const char *text, char host[256], char port[16]);

/* "10.0.0.1:4711" or "[::1]:4711". */
void lki_address_text(char out[LKI_ADDRESS_BYTES], const lki_address *address);

bool lki_address_is_loopback(const lki_address *address);

/* The address of this host that the route to `towards` (a name will do) begins with, without a
 * port: what to listen on so that those reach it who reach `towards`.  With `remote`, a loopback
 * address, which other hosts cannot reach, is LK_EINVAL, and so is a link-local one. */
LK_NODISCARD lk_status lki_address_interface(char out[LKI_ADDRESS_BYTES], const char *towards,
                                             bool remote);

/* A listening socket on such an address; the port is the kernel's choice. */
LK_NODISCARD lk_status lki_address_listen(int *fd, lki_address *out, const char *host);

#endif
