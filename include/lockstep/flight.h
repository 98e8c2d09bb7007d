/* lockstep/flight.h -- the last actions of every rank of a job, read from flight recorder files.
 *
 * A job started with a flight directory (lk_comm_options, lk_launch_options, --flight-recorder)
 * writes a file for every rank, DIR/rank-R.flight.  The file holds the last 4096 operations and
 * notes of the rank, with times.  The files can be read while the job runs and after the job has
 * ended, even by a crash.  lk_flight_open() combines the files.  The lk_flight lists each rank's
 * position and the ranks for which each operation waits.  It also lists the ranks that disagreed
 * about an operation and the ranks that were late.
 *
 * Times are in nanoseconds since the epoch.  Times of one host can be compared to the microsecond.
 * Times of two hosts can be compared only as precisely as the clocks of the hosts are synchronised.
 *
 * Ownership: all returned pointers belong to the lk_flight.  Texts are printable ASCII.
 */
#ifndef LK_FLIGHT_H
#define LK_FLIGHT_H

#include "lockstep/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lk_flight lk_flight;

/* Reads all files DIR/rank-R.flight.  Damaged files are reported in lk_flight_rank.problem.
 * Returns LK_EIO if DIR cannot be read, LK_EFORMAT if no file in it could be read. */
LK_API LK_NODISCARD lk_status lk_flight_open(lk_flight **out, const char *directory);
LK_API void lk_flight_free(lk_flight *flight);

/* Returns the time at which the files were read.  A rank's current wait lasts from its last entry
 * to this time. */
LK_API int64_t lk_flight_time(const lk_flight *flight);

/* ---- Ranks ------------------------------------------------------------------------------- */

typedef enum {
    LK_FLIGHT_MISSING, /* there is no readable file */
    LK_FLIGHT_RUNNING, /* the process exists */
    LK_FLIGHT_STOPPED, /* the process exists, but is stopped (SIGSTOP, a debugger) */
    LK_FLIGHT_LEFT,    /* the rank has left its group without a failure */
    LK_FLIGHT_FAILED,  /* the rank reported a failure, or received one */
    LK_FLIGHT_DEAD,    /* the process ended without reporting anything */
    LK_FLIGHT_UNKNOWN, /* unknown: on another host, or recorded before this host was rebooted */
} lk_flight_state;

/* Returns the name of a state, such as "running"; never NULL. */
LK_API const char *lk_flight_state_name(lk_flight_state state);

typedef struct {
    uint32_t        rank; /* world rank */
    lk_flight_state state;
    const char     *problem; /* problem with the rank's file; "" = none */
    const char     *host;
    int32_t         pid;
    int64_t         opened_ns, last_ns; /* times of the first and last entry */
    uint64_t        entries, lost;      /* number of entries present, and of older entries that were
                                         * overwritten */
    bool            noted;              /* lk_comm_note() was called; step and phase are valid */
    uint64_t        step;
    const char     *phase;
    int64_t         noted_ns;
    const char     *failure; /* failure that the rank received or reported; "" = none */
    int64_t         failed_ns;
    uint64_t        met, last;  /* number of operations that all ranks reached; number of these in
                                 * which this rank arrived last */
    int64_t         late_ns;    /* sum of the delays after the second-last rank, over the operations
                                 * in which this rank arrived last */
} lk_flight_rank;

/* Returns the ranks of the job in order; NULL past the last. */
LK_API const lk_flight_rank *lk_flight_rank_at(const lk_flight *flight, size_t index);

/* ---- Operations -------------------------------------------------------------------------- */

typedef enum {
    LK_FLIGHT_OPEN,
    LK_FLIGHT_COMPLETE,
    LK_FLIGHT_FREED,     /* the request was freed before the operation was complete */
    LK_FLIGHT_ABANDONED, /* the communicator was freed before the operation was complete */
} lk_flight_fate;

/* Returns the name of a fate, such as "open"; never NULL. */
LK_API const char *lk_flight_fate_name(lk_flight_fate fate);

/* One rank's part in an operation. */
typedef struct {
    uint32_t       rank;
    lk_flight_fate fate;
    int64_t        began_ns, met_ns, ended_ns; /* met: when all ranks had arrived.  0 = not (yet) */
    uint64_t       step;
    bool           differs;   /* this rank issued a different operation than most ranks */
    const char    *operation; /* if `differs`, the operation that this rank issued: "barrier #4" */
} lk_flight_visit;

typedef struct {
    const char            *operation; /* such as "all_reduce #12 (F32 sum, 100 elements)" */
    uint64_t               bytes;     /* number of bytes that each rank contributes; 0 if not
                                       * recorded */
    uint32_t               group_size;
    const lk_flight_visit *visits; /* in order of rank */
    uint32_t               visit_count;
    const uint32_t        *absent; /* ranks of the group that have not arrived, in order */
    uint32_t               absent_count;
    uint32_t               unknown_count; /* number of ranks whose files do not record whether they
                                           * arrived */
    int64_t                first_ns, last_ns; /* times of the first and last arrival */
    int64_t                ended_ns; /* time at which the last rank completed; 0 = open, or
                                      * completed by no rank */
    bool                   differs;  /* ranks disagree about the operation */
} lk_flight_operation;

/* Returns the operations in order of their first arrival; NULL past the last. */
LK_API const lk_flight_operation *lk_flight_operation_at(const lk_flight *flight, size_t index);
LK_API size_t lk_flight_operation_count(const lk_flight *flight);

/* One rank's position in a group: the last operation of the group that the rank has completed, and
 * the first that is still open; NULL = none. */
typedef struct {
    uint32_t                   rank, group_size;
    const char                *group; /* such as "all ranks" or "2 ranks with rank 4" */
    const lk_flight_operation *completed, *open;
    uint32_t                   open_count;
} lk_flight_place;

/* Returns the positions by group, then by rank; NULL past the last. */
LK_API const lk_flight_place *lk_flight_place_at(const lk_flight *flight, size_t index);

/* ---- Findings ---------------------------------------------------------------------------- */

typedef enum {
    LK_FLIGHT_DAMAGE,    /* a file cannot be read completely */
    LK_FLIGHT_DEATH,     /* a rank's process ended without reporting anything */
    LK_FLIGHT_FAILURE,   /* a failure that ranks received */
    LK_FLIGHT_MISMATCH,  /* ranks disagree about an operation */
    LK_FLIGHT_WAITING,   /* an operation is open because some ranks have not arrived */
    LK_FLIGHT_STRAGGLER, /* a rank arrives last significantly more often than by chance */
} lk_flight_finding_kind;

/* Returns the name of a kind, such as "waiting"; never NULL. */
LK_API const char *lk_flight_finding_name(lk_flight_finding_kind kind);

typedef struct {
    lk_flight_finding_kind kind;
    uint32_t               rank; /* the lowest rank concerned */
    char                   text[500];
} lk_flight_finding;

/* Returns the findings, the most severe kinds first; NULL past the last. */
LK_API const lk_flight_finding *lk_flight_finding_at(const lk_flight *flight, size_t index);

#ifdef __cplusplus
}
#endif
#endif /* LK_FLIGHT_H */
