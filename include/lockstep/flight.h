/* lockstep/flight.h -- what the ranks of a job did last: reading what flight recorders wrote.
 *
 * A job started with a flight directory (lk_comm_options, lk_launch_options, --flight) keeps a file
 * for every rank there, DIR/rank-R.flight: its last 4096 operations and notes, with times.  The
 * files can be read while the job runs and after it died, however it did.  lk_flight_open() puts
 * them together: who is where, what each operation waits for, who disagreed, who came late.
 *
 * Times are in nanoseconds since the epoch.  Within a host they can be compared to the
 * microsecond, between hosts as well as their clocks agree.
 *
 * Ownership: everything that is returned belongs to the flight.  Texts are printable ASCII.
 */
#ifndef LK_FLIGHT_H
#define LK_FLIGHT_H

#include "lockstep/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lk_flight lk_flight;

/* Reads all DIR/rank-R.flight.  What is damaged is told by the ranks that lk_flight_rank_at()
 * returns; LK_EIO if DIR cannot be read, LK_EFORMAT if no file in it could. */
LK_API LK_NODISCARD lk_status lk_flight_open(lk_flight **out, const char *directory);
LK_API void lk_flight_free(lk_flight *flight);

/* When the files were read; all that is later than a rank's last entry is waiting. */
LK_API int64_t lk_flight_time(const lk_flight *flight);

/* ---- Ranks ------------------------------------------------------------------------------- */

typedef enum {
    LK_FLIGHT_MISSING, /* there is no file, or none that can be read */
    LK_FLIGHT_RUNNING, /* its process is there */
    LK_FLIGHT_STOPPED, /* its process is there, but stopped (SIGSTOP, a debugger) */
    LK_FLIGHT_LEFT,    /* it went in order */
    LK_FLIGHT_FAILED,  /* it was told of a failure, or met one */
    LK_FLIGHT_DEAD,    /* its process is gone, without a word */
    LK_FLIGHT_UNKNOWN, /* on another host, or before this one was started again */
} lk_flight_state;

/* "running"; never NULL. */
LK_API const char *lk_flight_state_name(lk_flight_state state);

typedef struct {
    uint32_t        rank; /* in the job */
    lk_flight_state state;
    const char     *problem; /* what is wrong with its file; "" = nothing */
    const char     *host;
    int32_t         pid;
    int64_t         opened_ns, last_ns; /* its first and last sign of life */
    uint64_t        entries, lost;      /* that are there; older ones that were written over */
    bool            noted;              /* lk_comm_note() was called: step and phase hold */
    uint64_t        step;
    const char     *phase;
    int64_t         noted_ns;
    const char     *failure; /* what it was told, or said: "" = nothing */
    int64_t         failed_ns;
    uint64_t        met, last;  /* operations that all ranks met; in how many it came last */
    int64_t         late_ns;    /* in those: how much later than the one before, in all */
} lk_flight_rank;

/* All ranks of the job in order; NULL behind the last. */
LK_API const lk_flight_rank *lk_flight_rank_at(const lk_flight *flight, size_t index);

/* ---- Operations -------------------------------------------------------------------------- */

typedef enum {
    LK_FLIGHT_OPEN,
    LK_FLIGHT_COMPLETE,
    LK_FLIGHT_FREED,     /* its request was freed before it was complete */
    LK_FLIGHT_ABANDONED, /* its communicator was freed before it was complete */
} lk_flight_fate;

/* "open"; never NULL. */
LK_API const char *lk_flight_fate_name(lk_flight_fate fate);

/* A rank's part in an operation. */
typedef struct {
    uint32_t       rank;
    lk_flight_fate fate;
    int64_t        began_ns, met_ns, ended_ns; /* met: all had come.  0 = not (yet) */
    uint64_t       step;
    bool           differs;   /* from what most others mean by this operation ... */
    const char    *operation; /* ... which is this: "barrier #4" */
} lk_flight_visit;

typedef struct {
    const char            *operation; /* "all_reduce #12 (F32 sum, 100 elements)" */
    uint64_t               bytes;     /* that a rank gives; 0 where the file does not say */
    uint32_t               group_size;
    const lk_flight_visit *visits; /* in order of rank */
    uint32_t               visit_count;
    const uint32_t        *absent; /* ranks of the group that have not come, in order */
    uint32_t               absent_count;
    uint32_t               unknown_count; /* ranks that may have come: their files do not tell */
    int64_t                first_ns, last_ns; /* arrivals; the spread is what is between them */
    int64_t                ended_ns; /* when the last ended it; 0 = it is open, or ended nowhere */
    bool                   differs;  /* ranks disagree about it */
} lk_flight_operation;

/* By the time of their first arrival; NULL behind the last. */
LK_API const lk_flight_operation *lk_flight_operation_at(const lk_flight *flight, size_t index);
LK_API size_t lk_flight_operation_count(const lk_flight *flight);

/* A rank in a group: the last operation that it has completed there, and the first that is open;
 * NULL = none. */
typedef struct {
    uint32_t                   rank, group_size;
    const char                *group; /* "all ranks", "2 ranks from rank 4 on" */
    const lk_flight_operation *completed, *open;
    uint32_t                   open_count;
} lk_flight_place;

/* By group, then by rank; NULL behind the last. */
LK_API const lk_flight_place *lk_flight_place_at(const lk_flight *flight, size_t index);

/* ---- Findings ---------------------------------------------------------------------------- */

typedef enum {
    LK_FLIGHT_DAMAGE,    /* a file cannot be read, or not all of it */
    LK_FLIGHT_DEATH,     /* a rank's process ended without a word */
    LK_FLIGHT_FAILURE,   /* what ranks were told */
    LK_FLIGHT_MISMATCH,  /* ranks disagree about an operation */
    LK_FLIGHT_WAITING,   /* an operation is open because some have not come */
    LK_FLIGHT_STRAGGLER, /* a rank comes last more often than chance would have it */
} lk_flight_finding_kind;

/* "waiting"; never NULL. */
LK_API const char *lk_flight_finding_name(lk_flight_finding_kind kind);

typedef struct {
    lk_flight_finding_kind kind;
    uint32_t               rank; /* that it is about: the lowest */
    char                   text[500];
} lk_flight_finding;

/* The gravest kinds first; NULL behind the last. */
LK_API const lk_flight_finding *lk_flight_finding_at(const lk_flight *flight, size_t index);

#ifdef __cplusplus
}
#endif
#endif /* LK_FLIGHT_H */
