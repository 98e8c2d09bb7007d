/* comm/roster.h -- the ranks of a job, as used by workers and launchers. */
#ifndef LKI_COMM_ROSTER_H
#define LKI_COMM_ROSTER_H

#include "base/status.h"
#include "link/address.h"
#include "link/operation.h"
#include "link/tcp.h"

enum {
    LKI_RANKS_MAX     = 1024,
    LKI_PHASE_BYTES   = 64,
    LKI_PLACE_BYTES   = 112,
    LKI_HOST_BYTES    = 64,
    LKI_WHO_BYTES     = 280, /* size of a text of lki_board_who() */
    LKI_LEAD_BYTES    = LKI_WHO_BYTES + LKI_PLACE_BYTES + 16, /* "rank 5 (...) gave up at ...: " */
    LKI_LOSS_BYTES    = 400, /* size of a text of lki_comm_loss() */
};

typedef enum {
    LKI_RANK_ABSENT,  /* has not joined yet */
    LKI_RANK_RUNNING,
    LKI_RANK_LEFT,    /* the rank left in order: it freed its communicator, or exited with 0 */
    LKI_RANK_FAILED,  /* gave up and reported why */
    LKI_RANK_DEAD,    /* the process of the rank ended with a signal or a status other than 0 */
} lki_rank_state;

/* The first error of a rank.  It is final once it is published, so readers use it in place. */
typedef struct {
    uint32_t  culprit; /* the rank to blame */
    lk_status status;  /* error of the rank itself */
    lk_status verdict; /* error that the other ranks return */
    uint32_t  own;     /* start of the rank's own text in `text`; other ranks report all of it, as
                        * far as LKI_MESSAGE_BYTES allow */
    char      text[LKI_LEAD_BYTES + LKI_MESSAGE_BYTES];
} lki_failure;

/* A snapshot of a rank's record, taken without stopping the rank. */
typedef struct {
    lki_rank_state state;
    int32_t        pid;         /* 0 = not known yet */
    int            exit_code;   /* exit status of the process, valid if dead */
    int            signal;      /* signal that ended the process, or 0 */
    bool           noted;       /* step and phase have been set */
    uint64_t       step;
    char           phase[LKI_PHASE_BYTES];
    char           operation[LKI_OPERATION_BYTES]; /* "all_reduce #12 (F32, 100 elements)" */
    char           place[LKI_PLACE_BYTES];         /* "at step 12 in backward" */
    lk_status      status;      /* first error of the rank; LK_OK if none */
    const char    *message;     /* text of this error, in the record; "" if none */
} lki_rank_view;

/* ---- Sets of ranks ----------------------------------------------------------------------- */

/* The ranks of one host: `count` ranks from rank `first` on, in a job of `world` ranks. */
typedef struct {
    uint32_t world, first, count;
} lki_roster;

static inline lki_roster lki_roster_alone(uint32_t ranks) /* returns the roster of a job on one
                                                           * host */
{
    return (lki_roster){ .world = ranks, .first = 0, .count = ranks };
}

static inline bool lki_roster_valid(lki_roster r)
{
    return r.world >= 1 && r.world <= LKI_RANKS_MAX && r.count >= 1 && r.count <= r.world
           && r.first <= r.world - r.count;
}

/* A set of ranks of the job, with one bit per rank. */
typedef struct {
    uint64_t words[LKI_RANKS_MAX / 64];
} lki_members;

static inline bool lki_members_have(const lki_members *members, uint32_t rank)
{
    return (members->words[rank / 64] >> rank % 64 & 1) != 0;
}

/* Returns true if the set contains at least one of `ranks`. */
static inline bool lki_members_any(const lki_members *members, lki_roster ranks)
{
    uint32_t i = 0;

    while (i < ranks.count && !lki_members_have(members, ranks.first + i))
        i++;
    return i < ranks.count;
}

static inline void lki_members_add(lki_members *members, uint32_t rank)
{
    members->words[rank / 64] |= UINT64_C(1) << rank % 64;
}

/* The data that workers need to reach ranks on other hosts. */
typedef struct {
    unsigned char id[LKI_JOB_BYTES];
    uint64_t      epoch;
    char          listen[LKI_ADDRESS_BYTES]; /* an address of this host that other hosts can
                                              * reach */
} lki_job_facts;

#endif
