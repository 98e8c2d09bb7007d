/* comm/transport/doorbook.h -- who was turned away at a rank's door, and when to say so.
 *
 * The first of a reason and a host is told at once; what follows of the same is counted and told
 * together, at most every ten seconds, and at the end.  So neither a scanner nor a flood can fill a
 * log, and nothing is passed over.
 */
#ifndef LKI_TRANSPORT_DOORBOOK_H
#define LKI_TRANSPORT_DOORBOOK_H

#include "comm/tcp.h"

enum { LKI_DOORBOOK_PLACES = 24, LKI_DOORBOOK_REPEAT_MS = 10000, LKI_DOORBOOK_TEXT_BYTES = 400 };

typedef struct {
    lki_refusal why;
    char        host[LKI_ADDRESS_BYTES]; /* without its port */
    char        more[200];               /* of the last: what exactly was wrong */
    uint64_t    untold;
    int64_t     told_ms;
} lki_doorbook_entry;

/* Zeroed before its first use. */
typedef struct {
    lki_doorbook_entry entries[LKI_DOORBOOK_PLACES]; /* the last: whoever finds no other */
    uint32_t           count;
} lki_doorbook;

/* One more, from "HOST:PORT".  Whether `text` says what is to be told now. */
bool lki_doorbook_enter(lki_doorbook *book, lki_refusal why, const char *address, const char *more,
                        int64_t now_ms, char text[LKI_DOORBOOK_TEXT_BYTES]);

/* What has been counted and not told, one text for each reason and host; false: nothing more.  The
 * end of a book is also its time to speak, so `now_ms` may be INT64_MAX. */
bool lki_doorbook_next(lki_doorbook *book, int64_t now_ms, lki_refusal *why,
                       char text[LKI_DOORBOOK_TEXT_BYTES]);

#endif
