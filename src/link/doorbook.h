/* link/doorbook.h -- a rate-limited log of refused connections.
 *
 * The first refusal for a reason and host is reported at once.  Later refusals are counted.  Their
 * counts are reported at most every ten seconds and at the end.  A port scan or a flood thus cannot
 * fill a log, but every refusal is counted.
 */
#ifndef LKI_LINK_DOORBOOK_H
#define LKI_LINK_DOORBOOK_H

#include "link/tcp.h"

enum { LKI_DOORBOOK_PLACES = 24, LKI_DOORBOOK_REPEAT_MS = 10000, LKI_DOORBOOK_TEXT_BYTES = 400 };

typedef struct {
    lki_refusal why;
    char        host[LKI_ADDRESS_BYTES]; /* host of the refused connection, without its port */
    char        more[200];               /* details of the last refusal */
    uint64_t    untold;
    int64_t     told_ms;
} lki_doorbook_entry;

/* Must be zeroed before its first use. */
typedef struct {
    lki_doorbook_entry entries[LKI_DOORBOOK_PLACES]; /* the last entry counts the refusals of all
                                                      * hosts and reasons that have no entry of
                                                      * their own */
    uint32_t           count;
} lki_doorbook;

/* Counts a refusal of a connection from `address` ("HOST:PORT").  Returns true if the caller should
 * report this refusal at once. */
bool lki_doorbook_enter(lki_doorbook *book, lki_refusal why, const char *address, const char *more,
                        int64_t now_ms, char text[LKI_DOORBOOK_TEXT_BYTES]);

/* Returns true if a report of counted refusals is due.  The out parameters then describe refusals
 * for one reason from one host.  Call the function again until it returns false.  INT64_MAX as
 * `now_ms` makes all reports due. */
bool lki_doorbook_next(lki_doorbook *book, int64_t now_ms, lki_refusal *why,
                       char text[LKI_DOORBOOK_TEXT_BYTES]);

#endif
