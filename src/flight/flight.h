/* flight/flight.h -- parsed flight recorder files (comm/flight.h), and lk_flight, which combines
 * them. */
#ifndef LKI_FLIGHT_FLIGHT_H
#define LKI_FLIGHT_FLIGHT_H

#include "comm/flight.h"
#include "lockstep/flight.h"

/* ---- Reading one file (file.c) ---------------------------------------------------- */

typedef struct {
    char                   name[32];      /* "rank-3.flight" */
    char                   problem[200];  /* "" if the file is intact */
    bool                   readable;      /* the header is valid; the fields below are set only
                                           * then */
    lki_flight_header      header;        /* all its texts are terminated and printable */
    lki_flight_place       place;         /* the last note; if number is 0, there is none */
    lki_flight_group      *groups;
    uint32_t               group_count;
    lki_flight_entry      *entries;       /* in order of their numbers */
    uint32_t               entry_count;
    uint64_t               lost;          /* number of older entries that were overwritten */
    bool                   here;    /* the file was written on this machine after its last boot */
    char                   process; /* if `here`: state letter of the rank's process, as in /proc; 0
                                     * = the process has ended */
} lki_flight_file;

/* Parses as many of the `bytes` bytes at `data` as are valid.  Returns LK_ENOMEM or LK_OK. */
LK_NODISCARD lk_status lki_flight_parse(lki_flight_file *out, const char *name, const void *data,
                                        size_t bytes);
void lki_flight_file_deinit(lki_flight_file *file);

/* ---- Combining them ---------------------------------------------------------------------- */

/* Creates a flight from files that were read at `now` (ns since the epoch).  Takes ownership of the
 * array and its contents, also on failure. */
LK_NODISCARD lk_status lki_flight_merge(lk_flight **out, lki_flight_file *files, size_t count,
                                        int64_t now);

/* A group, with the world ranks of its members as far as they are known. */
typedef struct {
    uint64_t id, label;
    uint32_t size, member_count;
    size_t   first_place; /* index in lk_flight.places; one place per member */
    char     text[64];
    uint64_t members[LKI_RANKS_MAX / 64];
    uint16_t world[LKI_RANKS_MAX]; /* [rank in the group]: 1 + world rank; 0 = unknown */
} lki_flight_circle;

typedef struct {
    lk_flight_operation super;
    uint32_t            circle; /* index of its group */
    uint32_t            from, to; /* sender and receiver of a message, as ranks in the group; else
                                   * UINT32_MAX */
    uint64_t            seq;
    lki_print           print; /* the most common fingerprint */
    size_t              first_absent;
    char                text[LKI_OPERATION_BYTES + 32];
} lki_flight_event;

struct lk_flight {
    int64_t             now;
    lki_flight_file    *files;
    size_t              file_count;
    uint32_t            world;
    lki_flight_file   **of_rank; /* NULL: no usable file */
    lk_flight_rank     *ranks;
    lki_flight_circle  *circles;
    size_t              circle_count, circle_capacity;
    lki_flight_event   *events;
    size_t              event_count;
    lk_flight_visit    *visits;
    uint32_t           *absent;
    size_t              absent_count, absent_capacity;
    char              (*texts)[LKI_OPERATION_BYTES]; /* texts of the visits that differ */
    size_t              text_count, text_capacity;
    lk_flight_place    *places;
    size_t              place_count;
    double             *chance; /* per rank: expected number of operations in which the rank is last
                                 * by chance */
    lk_flight_finding  *findings;
    size_t              finding_count, finding_capacity;
};

/* Fills in operations, visits and places (events.c). */
LK_NODISCARD lk_status lki_flight_collect_events(lk_flight *flight);
/* Fills in the findings (find.c). */
LK_NODISCARD lk_status lki_flight_find(lk_flight *flight);

lki_flight_circle *lki_flight_circle_of(const lk_flight *flight, uint64_t id);

static inline int64_t lki_flight_wall(const lki_flight_file *file, int64_t time)
{
    return time == 0 ? 0 : time + file->header.wall_offset;
}

static inline int64_t lki_flight_later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline bool lki_flight_is_member(const lki_flight_circle *circle, uint32_t rank)
{
    return (circle->members[rank / 64] >> rank % 64 & 1) != 0;
}

#endif
