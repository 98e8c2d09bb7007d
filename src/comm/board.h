/* comm/board.h -- the control memory that the ranks of a host and their launcher share.
 *
 * Every collective takes the next sequence number and publishes an operation slot.  A slot has the
 * fingerprint of the operation and a few words of data, which are a small payload or the address of
 * a large one.  The slot's sequence word is also its flag, so flag and words are in one cache line.
 * Payloads of up to LKI_PAYLOAD_BYTES continue in cells.  A cell is a cache line with its own flag,
 * so a reader can fetch several cells at once.  Data that is needed later is in a body of up to
 * LKI_BODY_BYTES.  Most operations wait only until all ranks have published.  Operations that also
 * access other ranks' memory continue in rounds.  The count of rounds is next to the operation's
 * slot, so open operations do not disturb each other.
 *
 * A rank has one record for all its communicators (its position, its first error, its bell).  In
 * each communicator it has a seat with everything that operations need.  The seats of the first
 * communicator follow the records; the seats of a later communicator are in an arena.  In a job on
 * several hosts, each host has its own control memory (board), with records of all ranks and seats
 * of its own ranks.
 *
 * Every word that a rank waits for is an ascending 64-bit counter in a seat.
 *
 * A slot is reused LKI_IN_FLIGHT operations later, when all ranks have retired the old operation.
 * A rank retires an operation when it will no longer read the data of the operation.  Requests
 * complete in any order; `retired` is the number of the first operation that is not complete.
 */
#ifndef LKI_COMM_BOARD_H
#define LKI_COMM_BOARD_H

#include <errno.h>
#include <stdalign.h>
#include <stdatomic.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/roster.h"

enum {
    LKI_IN_FLIGHT   = 64,    /* maximum number of open operations */
    LKI_WORD_BYTES  = 32,    /* bytes of payload in the cache line of the slot's flag */
    LKI_BODY_BYTES  = 1080,  /* largest body of an operation: LK_TREE_NODES_MAX nodes */
    LKI_CELL_BYTES  = 56,    /* bytes of payload in a cell, which also has a flag */
    LKI_CELLS       = 36,
    LKI_PAYLOAD_BYTES = 2048, /* largest payload in the slot and cells of an operation */
    LKI_STAGES      = 3,     /* staging buffers per rank: see coll/all_reduce.c */
    LKI_STAGE_BYTES = 65536, /* three buffers of each of two ranks fit in a 1 MiB cache */
};

/* ---- The layout -------------------------------------------------------------------------- */

typedef struct {
    alignas(LKI_LINE) _Atomic uint64_t seq; /* 1 + sequence number of the slot's operation */
    _Atomic uint64_t what, count, hash;
    unsigned char    word[LKI_WORD_BYTES];
} lki_slot;

typedef struct {
    alignas(LKI_LINE) unsigned char bytes[LKI_CELL_BYTES];
    _Atomic uint64_t seq; /* 1 + sequence number of the operation to which `bytes` belongs */
} lki_cell;

_Static_assert(LKI_WORD_BYTES + LKI_CELLS * LKI_CELL_BYTES >= LKI_PAYLOAD_BYTES, "cells hold it");

typedef struct {
    alignas(LKI_LINE) unsigned char bytes[LKI_BODY_BYTES];
    _Atomic uint64_t rounds; /* number of rounds finished, over all operations that have used this
                              * slot */
} lki_body;

/* The address of shared data, as (arena, offset), which every rank can resolve. */
typedef struct {
    uint32_t arena; /* 1 + index of the arena; 0 = not in an arena */
    uint32_t level; /* level of the arena's communicator; 0 = the first */
    uint64_t offset;
} lki_place;

/* A rank's messages to and from one peer: the message that the rank sends, and the number of pieces
 * that it has received.  Buffers for two pieces follow (coll/send_recv.c). */
typedef struct {
    alignas(LKI_LINE) _Atomic uint64_t sent, taken; /* counted in pieces, over all messages */
    _Atomic uint64_t what, count;
    lki_place        place;
} lki_mail;

/* A rank's part of one communicator.  One lki_mail for each rank of the communicator follows in
 * memory. */
typedef struct {
    alignas(LKI_LINE) _Atomic uint64_t joined;
    _Atomic uint32_t left;

    alignas(LKI_LINE) _Atomic uint64_t retired;

    /* [staging buffer]: 1 + number of the chunk in the buffer; 0 = none yet. */
    alignas(LKI_LINE) _Atomic uint64_t staged[LKI_STAGES];

    lki_slot slots[LKI_IN_FLIGHT];
    lki_body bodies[LKI_IN_FLIGHT];
    lki_cell cells[LKI_IN_FLIGHT][LKI_CELLS];

    alignas(4096) unsigned char stages[LKI_STAGES][LKI_STAGE_BYTES];
} lki_seat;

/* A rank's record.  Only one rank writes to each cache line, except to the line of `bell`. */
typedef struct {
    alignas(LKI_LINE) _Atomic uint32_t bell; /* futex word on which the rank sleeps */
    _Atomic uint32_t sleeping;

    alignas(LKI_LINE) _Atomic uint64_t started; /* 1 + number of the last operation started */
    _Atomic uint64_t what, count, group;        /* fingerprint of that operation:
                                                 * lki_print_text() */
    _Atomic uint64_t step;
    _Atomic uint32_t noted;

    alignas(LKI_LINE) _Atomic uint64_t phase[LKI_PHASE_BYTES / 8];

    alignas(LKI_LINE) _Atomic uint32_t state;
    _Atomic int32_t  pid, exit_code, signal;
    _Atomic uint32_t erred; /* 0, then 1 forever: the rank has failed, and `failure` is final */
    lki_failure      failure;

    /* Fields for jobs on several hosts.  The launcher sets `host` before any worker starts.  The
     * rank sets `address`, or the launcher if the rank is on another host. */
    alignas(LKI_LINE) _Atomic uint32_t reachable; /* 0, then 1 forever: `address` is set */
    char             address[LKI_ADDRESS_BYTES];
    char             host[LKI_HOST_BYTES];
    uint32_t         node; /* number of the rank's host */
    uint32_t         seat; /* 1 + index among the members of the group on this host; 0 = none */
    uint32_t         member; /* 1 = in the group, on this host or another; see
                              * comm/join/rebuild.c */
    uint32_t         fresh;  /* 1 = entered the group in this group epoch */
    uint64_t         since;  /* group epoch in which the rank entered; 0 = at the start */
    _Atomic uint32_t home; /* 1 + NUMA node; 0 = unknown, or the host has only one */
    _Atomic uint64_t lost; /* 1 + last group epoch in which the rank was lost; 0 = never.  `loss`
                            * describes how */
    char             loss[LKI_LOSS_BYTES];
} lki_rank;

typedef struct {
    uint64_t magic, bytes;
    uint32_t size, rank_bytes; /* number of ranks of the job; bytes of a record plus a seat */
    uint32_t first, seated;    /* first rank of this host, and number of ranks of this host */
    uint32_t members;          /* number of this host's ranks that have seats: see
                                * comm/join/rebuild.c */

    lki_job_facts job; /* for a job on several hosts; set before any worker starts */

    alignas(LKI_LINE) _Atomic uint32_t failed; /* 0, or 1 + index of the record with the group's
                                                * failure */
    _Atomic uint32_t stop;   /* all ranks are asked to save and leave */
    _Atomic uint32_t heeded; /* a rank has read `stop`, so all ranks will obey it */
    _Atomic uint32_t awaited; /* a rank waits to enter the group */
    _Atomic uint32_t leaving; /* this host's ranks are asked to leave the group */

    alignas(LKI_LINE) _Atomic uint32_t sleepers; /* number of ranks that may be asleep */

    alignas(LKI_LINE) lki_rank ranks[]; /* records of `size` ranks, then one of the launcher */
} lki_board;

/* Returns the size of the largest vector for which every rank reads the whole vectors of all other
 * ranks.  For larger vectors a second synchronisation is cheaper. */
static inline size_t lki_payload_most(uint32_t size)
{
    return size <= 2 ? LKI_PAYLOAD_BYTES : LKI_PAYLOAD_BYTES / 2;
}

/* Returns the bytes of a seat with its mail in a communicator of `size` ranks. */
size_t lki_seat_bytes(uint32_t size);

/* Returns the bytes of one piece of a message in a communicator of `size` ranks. */
size_t lki_piece_bytes(uint32_t size);

/* Returns the size of the control memory with seats for `members` ranks of this host, in bytes. */
size_t lki_board_bytes(lki_roster roster, uint32_t members);

/* Initialises a board in zeroed memory.  If `out` is not NULL, out[rank] excludes ranks. */
void   lki_board_init(lki_board *board, lki_roster roster, const bool *out);

/* Returns true if `bytes` bytes of memory hold a consistent board of this build of the library. */
bool   lki_board_valid(const lki_board *board, size_t bytes);

/* Copies the step and phase of a rank from its record in one group epoch to its record in the next
 * one. */
void lki_board_carry_place(lki_rank *to, const lki_rank *from);

/* Returns the number of ranks in the group, on all hosts. */
uint32_t lki_board_group_size(const lki_board *board);
void  *lki_board_seats(lki_board *board);

/* Returns the seat of a rank, which must be a rank of this host with a seat. */
lki_seat *lki_board_seat(lki_board *board, uint32_t rank);

/* Creates a file with a board of `members` seats, seals its size and maps it.  The caller unmaps
 * the board and closes the file. */
LK_NODISCARD lk_status lki_board_create(lki_board **out, int *fd, lki_roster roster,
                                        const bool *absent, uint32_t members);

/* Returns advice for the user on a failed allocation of shared memory.  Returns "" if the text of
 * the error is enough. */
static inline const char *lki_memory_hint(int error)
{
    return error == EFBIG ? "; ulimit -f limits shared memory too: raise it" : "";
}

/* Wakes all ranks of this host. */
void lki_wake_all(lki_board *board);

/* ---- Records ----------------------------------------------------------------------------- */

/* Takes a snapshot of a rank's record.  The text of its error stays in the record. */
void lki_board_view(const lki_board *board, uint32_t rank, lki_rank_view *out);

/* Writes "rank 5 (pid 4711)", or "rank 5 (host b, pid 4711)" in a job on several hosts.  The text
 * `more`, such as ", stopped", is appended inside the parentheses. */
void lki_board_who(char out[LKI_WHO_BYTES], const lki_board *board, uint32_t rank,
                   const char *more);

/* Adds host names to a message.  "rank 5 ", at the start of the message or after a semicolon,
 * becomes "rank 5 (host b) " if the host has a name and the text fits. */
void lki_board_name_hosts(char message[LKI_MESSAGE_BYTES], const lki_board *board);

/* Records that the process of a rank has ended.  If the process did not end in order and the rank
 * has a seat, fails the group and returns true.  Otherwise returns false. */
bool lki_board_ended(lki_board *board, uint32_t rank, int exit_code, int signal);

/* ---- Failures ---------------------------------------------------------------------------- */

/* Returns the failure of the group, or NULL. */
const lki_failure *lki_board_failure(const lki_board *board);

/* Makes `record` the group's failure if there is none yet.  `culprit` is the rank to blame.
 * `status` is the error of the record's own rank, `verdict` the error that the other ranks return.
 * If the two differ, the other ranks also report which rank gave up, and where.  Adds host names as
 * lki_board_name_hosts() does. */
void lki_board_condemn(lki_board *board, uint32_t record, uint32_t culprit, lk_status status,
                       lk_status verdict, const char *message);

#endif
