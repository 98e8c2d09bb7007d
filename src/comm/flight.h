/* comm/flight.h -- the flight recorder: the last operations of each rank, in a file that outlives
 * the rank.
 *
 * A rank maps DIR/rank-R.flight and writes to this file when an operation begins, when all ranks
 * have arrived at the operation, and when it ends.  The only system call reads the clock: data
 * written to a shared mapping stays in the file when the process is killed.  The layout of the file
 * is
 *
 *     header | groups (of the rank) | entries (a ring of the last operations and notes)
 *
 * Entry number n (from 1) is at index (n - 1) mod entry_count.  The part of an entry that is
 * written once is sealed by a hash.  The hash is cleared first and written last, so a reader can
 * detect an unfinished entry.  The fields that are set later (met, ended, fate) are each stored
 * atomically.
 *
 * The file contains no secret of the job, only fingerprints, counts, times and error texts.
 *
 * Ownership: a recorder belongs to the rank (lki_self).  It is NULL if the rank records nothing.
 * Threads:   the rules are those of the rank's communicators.
 */
#ifndef LKI_COMM_FLIGHT_H
#define LKI_COMM_FLIGHT_H

#include "base/hash.h"
#include "comm/roster.h"
#include "lockstep/comm.h"

enum {
    LKI_FLIGHT_VERSION     = 1,
    LKI_FLIGHT_ENTRIES     = 4096,
    LKI_FLIGHT_ENTRIES_MAX = 1 << 20, /* largest entry_count that a reader accepts */
    LKI_FLIGHT_GROUPS      = 64,
    LKI_FLIGHT_GROUPS_MAX  = 4096,
};

/* The bytes "lkflight" as an integer in this machine's byte order. */
#define LKI_FLIGHT_MAGIC UINT64_C(0x746867696c666b6c)

/* ---- The file ---------------------------------------------------------------------------- */

/* The last note of the rank.  A file has two copies, which are written alternately, so that one
 * copy is always complete. */
typedef struct {
    uint64_t seal; /* hash of the other fields */
    uint64_t number;
    int64_t  at;
    uint64_t step;
    char     phase[LKI_PHASE_BYTES];
} lki_flight_place;

typedef struct {
    uint64_t seal;
    int64_t  at;
    int64_t  status;
    char     text[LKI_MESSAGE_BYTES];
} lki_flight_failure;

typedef struct {
    uint64_t magic;
    uint32_t version, entry_bytes, entry_count, group_count;
    uint32_t rank, world;
    int32_t  pid;
    uint32_t reserved;
    uint64_t process_started;     /* from /proc/PID/stat; distinguishes a later process with the
                                   * same pid */
    int64_t  opened, wall_offset; /* CLOCK_MONOTONIC; CLOCK_REALTIME minus CLOCK_MONOTONIC */
    char     boot[40];            /* boot id for which CLOCK_MONOTONIC is valid */
    char     host[64];
    uint64_t seal; /* hash of all fields above */

    int64_t            left; /* time at which the rank left in order; 0 = the rank has not left */
    lki_flight_failure failure;
    lki_flight_place   places[2];
    unsigned char      spare[144];
} lki_flight_header;

/* A communicator of the rank. */
typedef struct {
    uint64_t seal;
    uint64_t id;    /* the number by which entries refer to the communicator */
    uint64_t label; /* lk_comm.group: see lki_print_text() */
    uint32_t size, rank;
    uint64_t members[LKI_RANKS_MAX / 64]; /* bit set of world ranks */
} lki_flight_group;

typedef enum { LKI_FLIGHT_OPERATION = 1, LKI_FLIGHT_NOTE = 2 } lki_flight_kind;

/* The end of an operation.  Freed: its request was freed.  Abandoned: its communicator was
 * freed. */
typedef enum {
    LKI_FATE_OPEN,
    LKI_FATE_COMPLETE,
    LKI_FATE_FREED,
    LKI_FATE_ABANDONED,
} lki_fate;

typedef struct {
    uint64_t what, count, hash; /* fields of lki_print */
    uint64_t group, label, seq, step;
} lki_flight_operation;

typedef struct {
    uint64_t step;
    char     phase[LKI_PHASE_BYTES];
} lki_flight_note;

typedef struct {
    uint64_t seal; /* hash of the fields before `met`; 0 while these fields are being written */
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

/* Returns the hash of a struct without its first field, which holds the hash. */
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

/* Creates DIR if needed, and removes old flight files: those of this host's ranks, and those of
 * ranks that do not exist in this job.  Removes nothing and fails with LK_EIO if one of them is no
 * flight record, or another process is writing it.  Must be called before the ranks open their
 * files. */
LK_NODISCARD lk_status lki_flight_prepare(const char *directory, lki_roster roster);

LK_NODISCARD lk_status lki_flight_open(lki_flight **out, const char *directory, uint32_t rank,
                                       uint32_t world, uint32_t entries);

/* Records that the rank has left in order. */
void lki_flight_close(lki_flight *flight);

/* Records the start of an operation in comm->self->flight.  Returns the entry's number. */
uint64_t lki_flight_begin(lk_comm *comm, lki_print print, uint64_t seq);

/* Records that all ranks have arrived at operation `number`.  Does nothing if `number` is 0, or if
 * the entry has ended or was overwritten. */
void lki_flight_met(lki_flight *flight, uint64_t number);

/* Records how operation `number` ended.  Does nothing if `number` is 0, or if the entry has ended
 * or was overwritten. */
void lki_flight_end(lki_flight *flight, uint64_t number, lki_fate fate);

void lki_flight_write_note(lki_flight *flight, uint64_t step, const char *phase);

/* Records a failure.  The first failure is kept until the rank continues in a rebuilt group. */
void lki_flight_failed(lki_flight *flight, lk_status status, const char *message);

/* Records that the rank continues in a rebuilt group.  Clears the recorded failure, and marks open
 * operations as abandoned. */
void lki_flight_went_on(lki_flight *flight);

/* Returns the start time of a process in clock ticks, and its state letter in *state.  Returns 0 if
 * the process does not exist. */
uint64_t lki_process_started(int32_t pid, char *state);

/* Writes the boot id of this machine.  CLOCK_MONOTONIC times of two processes can be compared only
 * if their boot ids are equal. */
void lki_boot_id(char out[40]);

/* Returns true if `name` is the name of a rank's flight file; *rank becomes that rank. */
bool lki_flight_is_rank(const char *name, uint32_t *rank);

#endif
