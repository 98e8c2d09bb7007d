/* link/traffic.h -- amount and rate of the data that a rank has sent to another rank over the
 * network. */
#ifndef LKI_LINK_TRAFFIC_H
#define LKI_LINK_TRAFFIC_H

#include <stdint.h>

typedef struct {
    uint64_t bytes; /* bytes that have arrived at the peer */
    double   busy;  /* number of seconds in which data was in flight and the reader had room for it,
                     * on the stream with the most such seconds */
    double   rate;  /* latest rate of that stream, in bytes per second; measured while enough data
                     * was in flight */
} lki_traffic;

#endif
