/* comm/transport/chaos.h -- a link that stands before another one and makes its life hard.
 *
 * What it does is allowed to any link (single bytes, pauses), or is what networks do to them
 * (breaks, damage, silence, bytes that nobody has sent).  All is decided by the seed and by
 * counting, so in a simulation a run can be had again.
 */
#ifndef LKI_COMM_TRANSPORT_CHAOS_H
#define LKI_COMM_TRANSPORT_CHAOS_H

#include "comm/link.h"

/* Chances are of 256; numbers count from 1, and 0 is never. */
typedef struct {
    uint64_t seed;
    uint32_t split;       /* that a call moves one byte */
    uint32_t refuse;      /* that it moves nothing */
    uint32_t pause;       /* that its stream then rests, in both directions */
    int64_t  pause_ms;    /* for at most this long */
    uint64_t break_nth;   /* this read or write breaks its stream */
    uint64_t silence_nth; /* from this one on its stream swallows what is written, gives nothing */
    uint64_t damage_nth;  /* a bit of this byte that is read is another one */
    uint64_t insert_nth;  /* what goes on the stream of this write, before it: */
    const void *insert;
    size_t   insert_bytes; /* a link takes that many at once */
} lki_chaos;

/* Owns `inner` from here on, also when it fails. */
LK_NODISCARD lk_status lki_chaos_open(lki_link **out, lki_link *inner, const lki_chaos *chaos);

#endif
