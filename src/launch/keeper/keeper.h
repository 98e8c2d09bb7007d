/* launch/keeper/keeper.h -- training that survives the death of its launcher.
 *
 * If a job continues after losses, its launcher consists of two processes.  The user starts the
 * keeper, which decides nothing.  The keeper is the parent of the workers, forwards their output
 * and the job's signals, prints notes, and holds descriptors.  Its child, the coordinator, runs the
 * loop (job/watch.c) with an executor that asks the keeper (coordinator.c).  When the coordinator
 * dies, for whatever reason, the keeper forks a new coordinator, which continues from the journal
 * of the dead one.  Workers notice only that an answer arrives some milliseconds later than usual.
 * If the keeper dies, the workers and the coordinator are killed.
 *
 * A coordinator wakes up at regular intervals, even without an event, and counts its wake-ups (the
 * turns of its loop).  If the coordinator completes no wake-up for half of the job's timeout,
 * because it is stopped or hangs, the keeper kills the coordinator.  Time in which the keeper
 * itself did not run (Ctrl-Z stops both) does not count.
 *
 * The journal consists of two pages of shared memory.  A commit writes the coordinator's state into
 * the older page and then marks that page as the newest, so one page is always complete.  Input is
 * consumed only after the commit: a packet stays in its socket, a signal stays pending, and an
 * ended worker stays a zombie until the coordinator asks the keeper to reap it.  So the next
 * coordinator finds all input that its predecessor had not finished.  Repeating an action is
 * harmless: answers and arenas have numbers, notes are printed once, and a worker whose pid only
 * the kernel has recorded is killed before it is started again.
 *
 *       coordinator                              keeper
 *       look at / reap worker i      ----------> waitid()   <- how it ended
 *       keep this socket, this board ----------> keeps both for the next coordinator
 *       note                         ----------> prints it
 *       signals                      <---------- signals sent to the job
 *       message to the other hosts   ----------> sends it
 *       events                       <---------- messages of the other hosts (mailbox.c)
 *
 * Each of several hosts has such a pair.  The keeper owns the connections, and on node 0 the
 * rendezvous (launch/rendezvous/rendezvous.h), because the end of the keeper is the end of its
 * host.  The keeper does not interpret the messages.
 *
 * Threads: one at a time.
 */
#ifndef LKI_LAUNCH_KEEPER_KEEPER_H
#define LKI_LAUNCH_KEEPER_KEEPER_H

#include <stdatomic.h>

#include "launch/job/executor.h"

typedef enum {
    LKI_KEEPER_NOTE,       /* print `text` */
    LKI_KEEPER_CHAOS_NOTE, /* report `text`, a note about fault injection */
    LKI_KEEPER_LOOK,       /* has `worker`, with this pid, ended? */
    LKI_KEEPER_REAP,       /* reap `worker`, whose end is recorded; the keeper answers */
    LKI_KEEPER_SOCKET,     /* carries the launcher's end of the socket to `worker` */
    LKI_KEEPER_BOARD,      /* carries the next epoch's control memory; the keeper answers */
    LKI_KEEPER_SAYING,     /* send `saying` to the other nodes */
} lki_keeper_kind;

enum { LKI_NOTE_BYTES = 640 };

typedef struct {
    uint32_t kind, worker;
    int32_t  pid;
    uint64_t turn; /* number of the coordinator's wake-up; the next coordinator may send a letter
                    * of an incomplete wake-up again */
    union {
        char       text[LKI_NOTE_BYTES];
        lki_saying saying;
    };
} lki_keeper_letter;

/* The end of a process, as returned by waitid(). */
typedef struct {
    int32_t pid; /* 0: the process has not ended */
    int32_t code, status;
} lki_keeper_answer;

/* A process that was started as a worker; entry i belongs to worker i. */
typedef struct {
    pid_t           pid; /* written by the kernel */
    _Atomic int32_t reaped;
} lki_birth;

/* The memory shared by keeper and coordinators. */
typedef struct {
    _Atomic uint64_t newest; /* number of commits; the newest page is page `newest` % 2 */
    _Atomic uint64_t turns;
    _Atomic uint64_t posted, heard; /* events received by the keeper, and events handled */
    atomic_bool      lost;   /* node 0 is lost */
    atomic_bool      done;   /* the job has ended, with the result below */
    uint32_t         weight;
    int              stop_signal; /* as in lki_job */
    lk_launch_result result;
    lk_error         error;  /* LK_OK: none */
} lki_shared;

/* Measures the time for which the coordinator has completed no wake-up. */
typedef struct {
    uint64_t turns;
    double   seconds, seen; /* seconds without a wake-up, measured at time `seen` */
    bool     over;          /* the coordinator was killed because of its silence */
    bool     stopped;       /* the coordinator was stopped (SIGSTOP) when it was killed */
} lki_silence;

typedef struct {
    lki_executor   itself;  /* the executor of the keeper process */
    lki_shared    *shared;
    lki_birth     *births;  /* one entry per worker */
    lki_event        *events;     /* [event_places]: a ring of messages from other nodes */
    lki_introduction *known;      /* [world]: addresses as of the last LKI_EVENT_KNOWN */
    lki_introduction *introduced; /* [workers]: the argument of LKI_SAY_INTRODUCE */
    uint64_t          event_places;
    unsigned char *pages[2];
    size_t         page_bytes, bytes;
    pid_t          pid;         /* pid of the keeper */
    pid_t          coordinator; /* 0: none */
    int            channel;     /* socket between keeper and coordinator: this process's end */
    int            signals[2];  /* a pipe with pending signals: read end, write end */
    int            bell;        /* eventfd, readable if an event was posted; -1: the job has one
                                 * host */
    bool           over;        /* the last event received ended the job */
    uint64_t       said[LKI_SAY_KINDS]; /* per kind of message: 1 + the last epoch in which one was
                                         * sent; 0: never */
    int            board;       /* control memory of an epoch newer than that of job->control; -1:
                                 * none */
    bool           inside;      /* this process is a coordinator */
    bool           eager;       /* this coordinator has just taken over, and may have pending
                                 * work */
    lki_silence    silence;     /* silence of the current coordinator */
    uint32_t       crashes;     /* crashes of coordinators in a row */
    uint64_t       told[8];     /* hashes of the last notes */
    uint64_t       told_in[8];  /* the wake-ups to which these notes belong */
    uint64_t       notes;
} lki_keeper;

/* Returns NULL if the job has no keeper. */
static inline lki_keeper *lki_keeper_of(const lki_job *job)
{
    return job->executor_state;
}

/* ---- For launch.c ------------------------------------------------------------------------ */

/* Returns true if this job needs a keeper. */
bool lki_keeper_wanted(const lki_job *job);

/* Runs the job as the keeper, once all workers have been started.  Replaces lki_watch() and
 * lki_judge(). */
LK_NODISCARD lk_status lki_keep(lki_job *job, uint32_t *weight, lk_launch_result *result);
void                   lki_keeper_close(lki_job *job);

/* ---- Coordinators that hang (silence.c) --------------------------------------------------- */

/* Returns the longest sleep of a coordinator or a keeper, in seconds. */
double lki_turn_seconds(const lki_job *job);

/* Starts the timeout of a new coordinator.  Called in the keeper. */
void lki_silence_begin(const lki_job *job);

/* Kills a coordinator that has completed no wake-up for too long.  Called in the keeper after every
 * sleep. */
void lki_silence_look(const lki_job *job);

/* Describes the silence for the user. */
void lki_silence_describe(const lki_job *job, char *text, size_t bytes);

/* ---- The journal (journal.c) ------------------------------------------------------------- */

LK_NODISCARD lk_status lki_keeper_open(lki_keeper **out, const lki_job *job);
void                   lki_keeper_free(lki_keeper *self);

/* Saves the coordinator's state. */
void lki_commit(lki_job *job);

/* Saves the state at the end of a wake-up, and counts the wake-up. */
void lki_turned(lki_job *job);

/* Restores *job from the newest page.  Called in a new coordinator. */
void lki_keeper_restore(lki_job *job);

/* Restores *job from the newest page, except the keeper's own fields.  Called in the keeper when
 * the last coordinator has ended. */
void lki_keeper_learn(lki_job *job);

/* Returns the epoch of the control memory that the newest page refers to. */
uint64_t lki_keeper_epoch(const lki_job *job);

/* ---- The other nodes (mailbox.c) ------------------------------------------------------------ */

/* Returns true if the ring of events has room for one more event.  Called in the keeper. */
bool                   lki_mailbox_has_room(const lki_keeper *keeper);

/* Receives events from the other nodes.  Called in the keeper. */
LK_NODISCARD lk_status lki_mailbox_collect(lki_job *job);

/* Sends a coordinator's message to the other nodes, unless the keeper has already sent that
 * message.  Called in the keeper. */
void                   lki_mailbox_pass_on(const lki_job *job, const lki_saying *what);

/* The parts of an executor that concern the other nodes; see launch/job/executor.h.  The first two
 * are called in the keeper, too, when the last coordinator has ended. */
LK_NODISCARD lk_status lki_mailbox_next(lki_job *job, lki_event *out);
void                   lki_mailbox_heard(lki_job *job, const lki_event *event);
int                    lki_mailbox_fd(const lki_job *job);
void                   lki_mailbox_say(const lki_job *job, const lki_saying *what);
bool                   lki_mailbox_lost(const lki_job *job);
const lki_introduction *lki_mailbox_introduction(const lki_job *job, uint32_t rank);

/* ---- The coordinator (coordinator.c) ----------------------------------------------------- */

_Noreturn void lki_coordinate(lki_job *job, int channel);

/* The executor of a coordinator, which asks the keeper to act. */
extern const lki_executor lki_coordinator_executor;

/* Sends a letter to the keeper. */
void lki_keeper_write(const lki_keeper *keeper, const lki_keeper_letter *letter);

#endif
