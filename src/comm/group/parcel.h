/* comm/group/parcel.h -- parcels: the bytes that one rank sends to another rank in a collective. */
#ifndef LKI_COMM_GROUP_PARCEL_H
#define LKI_COMM_GROUP_PARCEL_H

#include "lockstep/comm.h"

/* A parcel of `bytes` bytes.  It is copied from offset `from_at` of the sender's buffer to offset
 * `to_at` of the receiver's buffer. */
typedef struct {
    size_t from_at, to_at, bytes;
} lki_parcel;

/* The parcels of an operation.  A rank calls these functions only for parcels that it sends or
 * receives. */
typedef struct {
    lki_parcel (*parcel)(const lk_request *request, uint32_t from, uint32_t to);
    bool personal; /* each receiver gets different bytes; if false, all receivers get the same
                    * bytes */
    bool header;   /* ranks know only their own sizes, and exchange all sizes first */
} lki_route;

#endif
