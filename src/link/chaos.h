/* link/chaos.h -- fault injection: a link that disturbs the traffic of an inner link.
 *
 * The faults are those of any link (single bytes, pauses) or those of real networks (breaks,
 * damage, silence, forged bytes).  The seed, the number of calls and the number of bytes determine
 * all faults.  A run in a simulation can therefore be repeated.
 */
#ifndef LKI_LINK_CHAOS_H
#define LKI_LINK_CHAOS_H

#include "link/link.h"

/* The fields `split`, `refuse` and `pause` are probabilities in units of 1/256.  The fields ..._nth
 * count calls or bytes from 1; 0 = never. */
typedef struct {
    uint64_t seed;
    uint32_t split;       /* probability that a call moves only one byte, in 1/256 */
    uint32_t refuse;      /* probability that a call moves nothing, in 1/256 */
    uint32_t pause;       /* probability that the stream of a call pauses after the call, in both
                           * directions */
    int64_t  pause_ms;    /* longest pause */
    uint64_t break_nth;   /* number of the read or write that breaks its stream */
    uint64_t silence_nth; /* number of the call after which a stream discards all writes and
                           * delivers nothing */
    uint64_t damage_nth;  /* number of the received byte in which a bit is flipped */
    uint64_t insert_nth;  /* number of the write before which the bytes of `insert` are sent on the
                           * stream of the write */
    const void *insert;
    size_t   insert_bytes; /* at most the number of bytes that the inner link accepts at once */
} lki_chaos;

/* Opens a link that passes all calls to `inner` and injects faults.  Takes over `inner`, even on
 * failure. */
LK_NODISCARD lk_status lki_chaos_open(lki_link **out, lki_link *inner, const lki_chaos *chaos);

#endif
