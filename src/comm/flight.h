/* comm/flight.h -- the flight recorder: what each rank did last, in a file that outlives it.
 *
 * A rank maps DIR/rank-R.flight and writes into it when an operation begins, when all have come,
 * and when it ends.  No system call but the clock's: what a process wrote into a shared mapping
 * stays in the file when it is killed.  The file is
 *
 *     header | groups (those that the rank was in) | entries (a ring: the last operations, notes)
 *
 * Entry number n (from 1) lies at place (n - 1) mod entry_count.  What an entry says once is
 * sealed by a hash that is written last and taken back first, so a reader tells a whole entry from
 * one that its writer did not finish.  The words that follow later (met, ended, fate) are stored
 * each in one piece.
 *
 * Nothing here knows a secret of the job: fingerprints, counts, times and texts of errors.
 *
 * Ownership: a recorder belongs to the rank (lki_self).  NULL is a rank that records nothing.
 * Threads:   those of the communicator.
 */
#ifndef LKI_COMM_FLIGHT_H
#define LKI_COMM_FLIGHT_H

#include "base/hash.h"
#include "comm/group.h"

enum {
    LKI_FLIGHT_VERSION     = 1,
    LKI_FLIGHT_ENTRIES     = 4096,
    LKI_FLIGHT_ENTRIES_MAX = 1 << 20, /* that a reader believes */
    LKI_FLIGHT_GROUPS      = 64,
    LKI_FLIGHT_GROUPS_MAX  = 4096,
};

/* "lkflight", read by a machine of the same byte order. */
#define LKI_FLIGHT_MAGIC UINT64_C(0x746867696c666b6c)

/* ---- The file ---------------------------------------------------------------------------- */

/* The last note, twice, so that one of them is whole. */
typedef struct {
    uint64_t seal; /* of the rest */
    uint64_t number;
    int64_t  at;
    uint64_t step;
    char     phase[LKI_PHASE_BYTES];
} lki_flight_place;

typedef struct {
    uint64_t seal;
    int64_t  at;
    int64_t  status;
    char     text[480];
} lki_flight_failure;

typedef struct {
    uint64_t magic;
    uint32_t version, entry_bytes, entry_count, group_count;
    uint32_t rank, world;
    int32_t  pid;
    uint32_t reserved;
    uint64_t process_started;     /* /proc/PID/stat: tells the process from a later one */
    int64_t  opened, wall_offset; /* CLOCK_MONOTONIC; CLOCK_REALTIME less that */
    char     boot[40];            /* whose CLOCK_MONOTONIC */
    char     host[64];
    uint64_t seal; /* of all above */

    int64_t            left; /* when it left in order; 0 = it has not */
    lki_flight_failure failure;
    lki_flight_place   places[2];
    unsigned char      spare[144];
} lki_flight_header;

/* A group that the rank is in. */
typedef struct {
    uint64_t seal;
    uint64_t id;    /* of the group, in entries */
    uint64_t label; /* lk_comm.group: see lki_print_text() */
    uint32_t size, rank;
    uint64_t members[LKI_RANKS_MAX / 64]; /* ranks in the job, a bit each */
} lki_flight_group;

typedef enum { LKI_FLIGHT_OPERATION = 1, LKI_FLIGHT_NOTE = 2 } lki_flight_kind;

/* Freed: its request was.  Abandoned: its communicator was. */
typedef enum {
    LKI_FATE_OPEN,
    LKI_FATE_COMPLETE,
    LKI_FATE_FREED,
    LKI_FATE_ABANDONED,
} lki_fate;

typedef struct {
    uint64_t what, count, hash; /* lki_print */
    uint64_t group, label, seq, step;
} lki_flight_operation;

typedef struct {
    uint64_t step;
    char     phase[LKI_PHASE_BYTES];
} lki_flight_note;

typedef struct {
    uint64_t seal; /* of what follows, up to `met`; 0 while that is being written */
    uint64_t number;
    uint32_t kind, rank; /* rank in the group */
    int64_t  at;
    union {
        lki_flight_operation op;
        lki_flight_note      note;
    };
    int64_t  met, ended; /* 0 = not yet */
    uint64_t fate;       /* lki_fate; written after `ended` */
} lki_flight_entry;

_Static_assert(sizeof(lki_flight_header) == 1024 && sizeof(lki_flight_group) == 160,
               "with 64 groups entries begin on a cache line");
_Static_assert(sizeof(lki_flight_entry) == 128, "entries are two cache lines");

/* Seals of things whose first word is the seal, and of the header. */
static inline uint64_t lki_flight_seal(const void *sealed, size_t bytes)
{
    return lki_xxh3((const unsigned char *)sealed + 8, bytes - 8) | 1;
}

static inline uint64_t lki_flight_entry_seal(const lki_flight_entry *entry)
{
    return lki_flight_seal(entry, offsetof(lki_flight_entry, met));
}

static inline uint64_t lki_flight_header_seal(const lki_flight_header *header)
{
    return lki_xxh3(header, offsetof(lki_flight_header, seal)) | 1;
}

static inline size_t lki_flight_bytes(uint32_t groups, uint32_t entries)
{
    return sizeof(lki_flight_header) + groups * sizeof(lki_flight_group)
           + entries * sizeof(lki_flight_entry);
}

/* ---- Writing ---------------------------------------------------------------------------- */

typedef struct lki_flight lki_flight;

/* Makes DIR if it is not there, and removes files there that ranks of this host, or ranks that
 * this job has not, have left.  Whoever starts ranks calls it, before they open theirs. */
LK_NODISCARD lk_status lki_flight_prepare(const char *directory, lki_roster roster);

LK_NODISCARD lk_status lki_flight_open(lki_flight **out, const char *directory, uint32_t rank,
                                       uint32_t world, uint32_t entries);

/* The rank has left in order. */
void lki_flight_close(lki_flight *flight);

/* An operation of comm->self->flight begins; returns the number of its entry. */
uint64_t lki_flight_begin(lk_comm *comm, lki_print print, uint64_t seq);

/* What became of it.  Nothing for a number that is 0, has an end or was written over. */
void lki_flight_met(lki_flight *flight, uint64_t number);
void lki_flight_end(lki_flight *flight, uint64_t number, lki_fate fate);

void lki_flight_write_note(lki_flight *flight, uint64_t step, const char *phase);

/* The first failure stays, until the rank goes on in a group that was made anew: then what is open
 * is abandoned. */
void lki_flight_failed(lki_flight *flight, lk_status status, const char *message);
void lki_flight_went_on(lki_flight *flight);

/* When the process was started, in the kernel's ticks, and the letter of its state; 0: no such. */
uint64_t lki_process_started(int32_t pid, char *state);

/* Names the time since the machine was started: whose CLOCK_MONOTONIC this is. */
void lki_boot_id(char out[40]);

/* Whether a file of this name is that of a rank. */
bool lki_flight_is_rank(const char *name, uint32_t *rank);

#endif
