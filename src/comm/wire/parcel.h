/* wire/parcel.h -- who gives which bytes to whom. */
#ifndef LKI_COMM_PARCEL_H
#define LKI_COMM_PARCEL_H

#include "lockstep/comm.h"

/* `bytes` bytes at `from_at` of the sender's buffer go to `to_at` of the receiver's. */
typedef struct {
    size_t from_at, to_at, bytes;
} lki_parcel;

/* What `from` gives to `to` in this operation.  A rank asks for parcels from and to itself. */
typedef struct {
    lki_parcel (*parcel)(const lk_request *request, uint32_t from, uint32_t to);
    bool personal; /* each receiver gets bytes of its own; else all that get any get the same */
    bool header;   /* ranks know the sizes of what they send and get only: they tell each other */
} lki_route;

#endif
