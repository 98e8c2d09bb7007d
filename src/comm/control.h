/* comm/control.h -- the launcher's side of a group, and how a worker joins it.
 *
 * One memfd, the control memory, holds a record for each rank: where it is, what it waits for,
 * its first error, the word that it sleeps on.  The launcher creates it and hands it to the
 * workers by descriptor, with one end of a Unix socket each.  Through that socket rank 0 sends
 * the descriptor of every arena it creates; the launcher keeps it and passes it on to the other
 * ranks.  So a worker's memory outlives the worker, and nothing has a name in a file system.
 *
 * Ownership: a control owns its descriptors, its ends of the sockets and the arenas it was sent.
 * Threads:   one at a time.  Nothing here blocks.
 */
#ifndef LKI_COMM_CONTROL_H
#define LKI_COMM_CONTROL_H

#include "comm/tcp.h"
#include "lockstep/comm.h"

typedef struct lki_control lki_control;

typedef enum {
    LKI_RANK_ABSENT,  /* has not joined yet */
    LKI_RANK_RUNNING,
    LKI_RANK_LEFT,    /* went in order: freed its communicator, or exited with 0 */
    LKI_RANK_FAILED,  /* gave up and told the others */
    LKI_RANK_DEAD,    /* its process ended with a signal or a status other than 0 */
} lki_rank_state;

enum {
    LKI_RANKS_MAX       = 1024,
    LKI_PHASE_BYTES     = 64,
    LKI_OPERATION_BYTES = 160,
    LKI_PLACE_BYTES     = 112,
    LKI_MESSAGE_BYTES   = 480,
    LKI_HOST_BYTES      = 64,
    LKI_WHO_BYTES       = 280, /* lki_control_who() */
    LKI_LOSS_BYTES      = 400, /* lki_control_lose() */
};

/* What is known of a rank: a copy, taken without stopping it. */
typedef struct {
    lki_rank_state state;
    int32_t        pid;         /* 0 = not known yet */
    int            exit_code;   /* of its process, once it is dead */
    int            signal;      /* that ended it, or 0 */
    bool           noted;       /* whether step and phase were ever set */
    uint64_t       step;
    char           phase[LKI_PHASE_BYTES];
    char           operation[LKI_OPERATION_BYTES]; /* "all_reduce #12 (F32, 100 elements)" */
    char           place[LKI_PLACE_BYTES];         /* "at step 12 in backward" */
    lk_status      status;      /* its first error; LK_OK if it had none */
    char           message[LKI_MESSAGE_BYTES];
} lki_rank_view;

/* ---- For the launcher -------------------------------------------------------------------- */

/* Which ranks of a job are on this host: `count` of them from `first` on, of `world` in all. */
typedef struct {
    uint32_t world, first, count;
} lki_roster;

static inline lki_roster lki_roster_alone(uint32_t ranks) /* this host has them all */
{
    return (lki_roster){ .world = ranks, .first = 0, .count = ranks };
}

static inline bool lki_roster_valid(lki_roster r)
{
    return r.world >= 1 && r.world <= LKI_RANKS_MAX && r.count >= 1 && r.count <= r.world
           && r.first <= r.world - r.count;
}

/* LK_EINVAL for a roster that cannot be.  Everywhere below `rank` is that in the job. */
LK_NODISCARD lk_status lki_control_create(lki_control **out, lki_roster roster);
void lki_control_free(lki_control *control);

/* The descriptor for the workers.  Close-on-exec: the launcher clears that in the child. */
int lki_control_fd(const lki_control *control);

/* A new socket for this rank.  *worker_end goes to the child (close-on-exec as well) and is the
 * caller's to close; the other end stays here, for poll() and lki_control_serve(). */
LK_NODISCARD lk_status lki_control_socket(lki_control *control, uint32_t rank, int *worker_end,
                                          int *launcher_end);

/* The same for a worker that has connected by itself, or that another process has started:
 * `launcher_end` is owned from now on, and one that was there before is closed. */
void lki_control_adopt(lki_control *control, uint32_t rank, int launcher_end);

/* Says which process is this rank, before it can say so itself. */
void lki_control_started(lki_control *control, uint32_t rank, int32_t pid);

/* Who is told what a rank says to those who watch the job: "rank 5 (pid 4711) refused ...". */
void lki_control_notes_to(lki_control *control, void (*tell)(void *context, const char *text),
                          void *context);

/* Handles what has arrived on this rank's socket.  *open tells whether more can come; once it
 * is false the socket is closed and must not be polled any more. */
LK_NODISCARD lk_status lki_control_serve(lki_control *control, uint32_t rank, bool *open);

/* The process of this rank has ended.  Unless it left with status 0, every rank's wait ends with
 * LK_EPEER and a text that says how this one died and where it was.  Returns whether this was a
 * failure: not where the rank has no seat any more. */
bool lki_control_ended(lki_control *control, uint32_t rank, int exit_code, int signal);

/* The same where nobody can say how it ended: the process is gone. */
bool lki_control_vanished(lki_control *control, uint32_t rank);

/* What those who go on tell of a rank of the group that is lost, in the words of the launcher that
 * knows best; of several in an epoch the first: "rank 5 (pid 4711) was killed by SIGKILL at step 12
 * in backward".  And what was said in this epoch; "" = nothing. */
void lki_control_lose(lki_control *control, uint32_t rank, const char *how);
void lki_control_loss(const lki_control *control, uint32_t rank, char out[LKI_LOSS_BYTES]);

/* Asks every rank to save and leave at the next good moment. */
void lki_control_request_stop(lki_control *control);

/* The ranks of this host shall leave the others, when it suits them. */
void lki_control_request_leave(lki_control *control);

/* Whether any rank has ever looked for such a request. */
bool lki_control_stop_heeded(const lki_control *control);

/* "rank 5 (pid 4711)", or "rank 5 (host b, pid 4711)" where hosts have names. */
void lki_control_who(const lki_control *control, uint32_t rank, char out[LKI_WHO_BYTES]);

/* ---- A group that goes on without those it has lost (comm/rebuild.c) ---------------------- */

/* How many ranks ask for the group to be made anew, and the least time that one of them has. */
uint32_t lki_control_asked(const lki_control *control, uint32_t *timeout_ms);

/* Whether they wait for this rank: it has a seat, and has neither asked, nor left, nor ended. */
bool lki_control_is_missing(const lki_control *control, uint32_t rank);

/* Whether this rank is in the group as it is now, on whatever host. */
bool lki_control_is_member(const lki_control *control, uint32_t rank);

/* Whether all ranks of this host have joined the first group. */
bool lki_control_all_joined(const lki_control *control);

/* Ranks of the job, a bit for each. */
typedef struct {
    uint64_t words[LKI_RANKS_MAX / 64];
} lki_members;

static inline bool lki_members_have(const lki_members *members, uint32_t rank)
{
    return (members->words[rank / 64] >> rank % 64 & 1) != 0;
}

/* Whether any of `ranks` is one of them. */
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

/* Those of this host who ask, and live. */
lki_members lki_control_askers(const lki_control *control);

uint64_t lki_control_epoch(const lki_control *control);

/* Makes the control memory of the next epoch, for the group of `members` (at least one of them
 * here), with seats for those of this host, and gives it to those who have asked.  For everybody
 * else the group is over.  Who has died since he asked fails the new one.  They are told why if it
 * fails. */
LK_NODISCARD lk_status lki_control_rebuild(lki_control *control, const lki_members *members);

/* For a host that is in no group yet: that of `epoch`, with none of its ranks, is the one before
 * the next.  since[rank]: 0 for who is not in it, else 1 + the epoch in which the rank entered. */
void lki_control_follow(lki_control *control, uint64_t epoch, const uint64_t *since);

/* The ranks of another host wait to enter, or do not any more. */
void lki_control_await(lki_control *control, bool waits);

/* The rank's process has ended, and it is not in the group: another one may become it. */
void lki_control_revive(lki_control *control, uint32_t rank);

/* Whether all who ask for the group would have others enter.  And who waits to, if that is so:
 * members of the next one, of which they are the last of their host. */
bool        lki_control_admits(const lki_control *control);
lki_members lki_control_entrants(const lki_control *control);

/* ---- A launcher that another takes over from (launch/keeper.h) ---------------------------- */

/* What is written down of a control, and when.  What has been done since the last commit is done
 * again by whoever takes over, and harmless then. */
typedef struct {
    void (*board)(void *context, int fd); /* the control memory of the next epoch, which is kept */
    void (*commit)(void *context);
    void *context;
} lki_control_journal;

void lki_control_journal_to(lki_control *control, const lki_control_journal *journal);

/* What a commit has to save: so many bytes. */
size_t lki_control_saved_bytes(const lki_control *control);
void   lki_control_save(const lki_control *control, void *to);

/* In a copy of the process that made the control, which has moved to the control memory of the
 * saved epoch, and adopted the sockets that have been made since: goes on from what was saved, and
 * answers who has not been answered, as far as one can know. */
void lki_control_restore(lki_control *control, const void *saved);

/* The epoch that was saved. */
uint64_t lki_control_saved_epoch(const void *saved);

/* Goes over to the control memory of another epoch, which is owned from now on also if that
 * fails. */
LK_NODISCARD lk_status lki_control_move(lki_control *control, int fd);

/* Says no to all who have asked. */
void lki_control_refuse(lki_control *control, lk_status status, const char *why);

/* ---- For the launcher of one host of several --------------------------------------------- */

/* What workers must know to reach those on other hosts. */
typedef struct {
    unsigned char id[LKI_JOB_BYTES];
    uint64_t      epoch;
    char          listen[LKI_ADDRESS_BYTES]; /* an address of this host that the others reach */
} lki_job_facts;

/* Both before any worker starts. */
void lki_control_set_job(lki_control *control, const lki_job_facts *facts);
void lki_control_name_host(lki_control *control, uint32_t node, uint32_t first, uint32_t count,
                           const char *host);

/* The same where nobody is there yet: they are not in the first group. */
void lki_control_leave_out(lki_control *control, uint32_t first, uint32_t count);

/* Where a worker of this host listens; false as long as it has not said so. */
bool lki_control_address(const lki_control *control, uint32_t rank, char out[LKI_ADDRESS_BYTES]);

/* Where a worker of another host listens, and its process there. */
void lki_control_introduce(lki_control *control, uint32_t rank, int32_t pid, const char *address);

/* Everybody has been introduced: wakes those who wait for that. */
void lki_control_introduced(lki_control *control);

/* The process of a rank on another host has ended.  If that is a failure, a verdict says so. */
void lki_control_ended_there(lki_control *control, uint32_t rank, int exit_code, int signal);

/* The job has failed on another host, and all ranks here fail for the same reason. */
void lki_control_condemn(lki_control *control, uint32_t culprit, lk_status status,
                         const char *message);

void lki_control_view(const lki_control *control, uint32_t rank, lki_rank_view *out);

/* Whether the group has failed; then which rank failed first and what the others were told. */
bool lki_control_failed(const lki_control *control, uint32_t *rank, lk_error *error);

/* ---- For the worker ---------------------------------------------------------------------- */

/* Joins the group in `control_fd` (borrowed; may be closed afterwards) as `rank`, and waits for
 * the others.  `launcher_socket` is owned by the communicator from here on if all went well. */
LK_NODISCARD lk_status lki_comm_open_shm(lk_comm **out, int control_fd, uint32_t rank,
                                         int launcher_socket, const lk_comm_options *options);

/* The same for one that enters a group which has been there before, when the others let it in;
 * on several hosts too, then with the job's key, unless that is NULL. */
LK_NODISCARD lk_status lki_comm_enter(lk_comm **out, uint32_t rank, int launcher_socket,
                                      const unsigned char *key, const lk_comm_options *options);

/* Whether somebody waits for this group to let him in; lk_comm_rebuild() that does so, and says
 * what became of the group that he was to be in, where another followed it (`missed`; else its
 * status is LK_OK); how many have entered with the group that came of it, and whether a rank of it
 * has. */
bool                   lki_comm_is_awaited(const lk_comm *comm);
LK_NODISCARD lk_status lki_comm_admit(lk_comm **out, lk_comm *failed,
                                      const lk_comm_options *options, lk_error *missed);
uint32_t               lki_comm_entered(const lk_comm *comm);
bool                   lki_comm_is_fresh(const lk_comm *comm, uint32_t rank);

/* Whether all ranks of a host have: it has come late, and has no arenas yet. */
bool lki_comm_host_is_fresh(const lk_comm *comm, uint32_t host);

/* Of the ranks of this host alone, as lk_comm_arena(): what the other hosts have already. */
LK_NODISCARD lk_status lki_comm_own_arena(lk_arena **out, lk_comm *comm, const char *name,
                                          size_t bytes);

/* "rank 5 (host b, pid 4711)", by its number in the group; and one line from this rank for those
 * who watch the job. */
void lki_comm_who(const lk_comm *comm, uint32_t rank, char out[LKI_WHO_BYTES]);
void lki_comm_tell(const lk_comm *comm, const char *text);

/* Why rank `rank` of `before`, whose group failed, is not in `now`, which followed it, perhaps not
 * at once: lki_control_lose().  False where nobody has said. */
bool lki_comm_loss(const lk_comm *now, const lk_comm *before, uint32_t rank,
                   char out[LKI_LOSS_BYTES]);

/* Its part of lk_comm_take_arenas(), where others take over arenas that this rank never had. */
LK_NODISCARD lk_status lki_comm_receive_arenas(lk_comm *comm);

/* By its name, the first 51 bytes of it; NULL where there is none. */
lk_arena *lki_comm_arena_named(const lk_comm *comm, const char *name);

bool lki_comm_stop_requested(const lk_comm *comm);

/* Whether the ranks of this host are asked to leave the others. */
bool lki_comm_leave_requested(const lk_comm *comm);

/* This rank has done its part, and only frees what it has: no more operations. */
void lki_comm_leave(lk_comm *first);

/* The same where others go on: it tells the launcher, which they ask for a group without it. */
void lki_comm_depart(lk_comm *first);

/* Ends a group on purpose, for a reason that all who say so have agreed about: from here on it has
 * failed with LK_EPEER. */
lk_status lki_comm_dissolve(lk_comm *first, uint32_t culprit, const char *why);

/* ---- For the worker of a job on several hosts (span/introduce.c) --------------------------- */

/* How many ranks the job has, on all hosts. */
uint32_t lki_comm_world(const lk_comm *comm);

/* The number of the host that a rank of the job is on, in the group or not. */
uint32_t lki_comm_node(const lk_comm *comm, uint32_t rank);

/* From the ranks of this host to those of all: listens, learns where the others do, and opens the
 * communicator over hosts.  `key` is the job's (LKI_KEY_BYTES) or NULL.  `local` is taken over,
 * also when it fails; but then its socket is the caller's again.  Where others have yet to come it
 * is *out. */
LK_NODISCARD lk_status lki_comm_join_hosts(lk_comm **out, lk_comm *local,
                                           const unsigned char *key);

/* Says where this rank listens, and waits until it is known of all. */
LK_NODISCARD lk_status lki_comm_introduce(lk_comm *comm, const char *address);

/* Where a rank of the job listens, once all have been introduced. */
const char *lki_comm_address(const lk_comm *comm, uint32_t rank);

#endif
