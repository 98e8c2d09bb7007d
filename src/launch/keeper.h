/* launch/keeper.h -- training that survives the death of its launcher.
 *
 * If a job continues after losses, its launcher consists of two processes.  The user starts the
 * keeper, which decides nothing.  The keeper is the parent of the workers, forwards their output
 * and the job's signals, prints notes, and holds descriptors.  Its child, the coordinator, executes
 * watch.c and rebuild.c.  When the coordinator dies, for whatever reason, the keeper forks a new
 * coordinator, which continues from the journal of the dead one.  Workers notice only that an
 * answer arrives some milliseconds later than usual.  If the keeper dies, the workers and the
 * coordinator are killed.
 *
 * A coordinator runs a turn of its loop at regular intervals, even without an event, and counts its
 * turns.  If the coordinator finishes no turn for half of the job's timeout, because it is stopped
 * or hangs, the keeper kills the coordinator.  Time in which the keeper itself did not run (Ctrl-Z
 * stops both) does not count.
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
 *       keep this socket, this board ----------> keeps it for the next coordinator
 *       note                         ----------> prints it
 *       signals                      <---------- those that came for the job
 *       message to the other hosts   ----------> sends it
 *       events                       <---------- messages of the other hosts (post.c)
 *
 * Each of several hosts has such a pair.  The keeper owns the connections, and on node 0 the
 * rendezvous (launch/rendezvous/rendezvous.h), because the end of the keeper is the end of its
 * host.  It does not interpret the messages.
 *
 * Threads: one at a time.
 */
#ifndef LKI_LAUNCH_KEEPER_H
#define LKI_LAUNCH_KEEPER_H

#include <stdatomic.h>

#include "launch/nodes.h"

typedef enum {
    LKI_KEEPER_NOTE,       /* print `text` */
    LKI_KEEPER_CHAOS_NOTE, /* report `text`, a note about fault injection */
    LKI_KEEPER_LOOK,       /* has `worker`, with this pid, ended? */
    LKI_KEEPER_REAP,       /* reap `worker`, whose end is recorded; answered */
    LKI_KEEPER_SOCKET,     /* carries the launcher's end of the socket to `worker` */
    LKI_KEEPER_BOARD,      /* carries the control memory of the next epoch; answered */
    LKI_KEEPER_SAYING,     /* send `saying` to the other nodes */
} lki_keeper_kind;

enum { LKI_NOTE_BYTES = 640 };

typedef struct {
    uint32_t kind, worker;
    int32_t  pid;
    uint64_t turn; /* the coordinator's turn; the next coordinator may send a letter of an
                    * unfinished turn again */
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
    lk_launch_result result;
    lk_error         error;  /* LK_OK: none */
} lki_shared;

/* Measures the time for which the coordinator has finished no turn. */
typedef struct {
    uint64_t turns;
    double   seconds, seen; /* seconds without a turn, measured at time `seen` */
    bool     over;          /* the coordinator was killed because of its silence */
    bool     stopped;       /* the coordinator was stopped (SIGSTOP) when it was killed */
} lki_silence;

struct lki_keeper {
    lki_shared    *shared;
    lki_birth     *births;  /* [workers] */
    lki_event        *events;     /* [event_places]: a ring of messages from other nodes */
    lki_introduction *known;      /* [world]: addresses as of the last LKI_EVENT_KNOWN */
    lki_introduction *introduced; /* [workers]: the argument of LKI_SAY_INTRODUCE */
    uint64_t          event_places;
    unsigned char *pages[2];
    size_t         page_bytes, bytes;
    pid_t          pid;         /* of the keeper */
    pid_t          coordinator; /* 0: none */
    int            channel;     /* socket between keeper and coordinator: this process's end */
    int            signals[2];  /* a pipe with pending signals: read end, write end */
    int            bell;        /* eventfd: an event was posted; -1: one host only */
    bool           over;        /* the last event received ended the job */
    uint64_t       said[LKI_SAY_KINDS]; /* per kind of message: 1 + the last epoch in which one was
                                         * sent; 0: never */
    int            board;       /* control memory of an epoch newer than that of job->control; -1:
                                 * none */
    bool           inside;      /* this process is a coordinator */
    bool           eager;       /* this coordinator has just taken over, and may have pending
                                 * work */
    lki_silence    silence;     /* of the current coordinator */
    uint32_t       crashes;     /* crashes of coordinators in a row */
    uint64_t       told[8];     /* hashes of the last notes */
    uint64_t       told_in[8];  /* the turns of these notes */
    uint64_t       notes;
};

static inline bool lki_is_coordinator(const lki_job *job)
{
    return job->keeper != NULL && job->keeper->inside;
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

/* Kills a coordinator that has taken no turn for too long.  Called in the keeper after every
 * sleep. */
void lki_silence_look(const lki_job *job);

/* Describes the silence for the user. */
void lki_silence_describe(const lki_job *job, char *text, size_t bytes);

/* ---- The journal (journal.c) ------------------------------------------------------------- */

LK_NODISCARD lk_status lki_keeper_open(lki_keeper **out, const lki_job *job);
void                   lki_keeper_free(lki_keeper *self);

/* Saves the coordinator's state.  Does nothing in a launcher without a keeper. */
void lki_commit(lki_job *job);

/* Saves the state at the end of a turn, and counts the turn. */
void lki_turned(lki_job *job);

/* Restores *job from the newest page.  Called in a new coordinator. */
void lki_keeper_restore(lki_job *job);

/* Restores *job from the newest page, except the keeper's own fields.  Called in the keeper when
 * the last coordinator has ended. */
void lki_keeper_learn(lki_job *job);

/* Returns the epoch of the control memory that the newest page refers to. */
uint64_t lki_keeper_epoch(const lki_job *job);

/* ---- The other nodes (post.c) ------------------------------------------------------------ */

/* Returns true if the ring of events has room for one more event.  Called in the keeper. */
bool                   lki_post_has_room(const lki_keeper *keeper);

/* Receives events from the other nodes.  Called in the keeper. */
LK_NODISCARD lk_status lki_post_collect(lki_job *job);

/* Sends a coordinator's message to the other nodes, unless the keeper has already sent that
 * message.  Called in the keeper. */
void                   lki_post_pass_on(const lki_job *job, const lki_saying *what);

/* Stores the next event of the other nodes in *out.  Stores the same event again until
 * lki_post_heard() is called with that event.  Called in any launcher. */
LK_NODISCARD lk_status lki_post_next(const lki_job *job, lki_event *out);
void                   lki_post_heard(lki_job *job, const lki_event *event);

/* Returns a descriptor that is readable if there may be an event. */
int                    lki_post_fd(const lki_job *job);

/* Asks the keeper to send a message to the other nodes.  Called in the coordinator. */
void lki_post_say(const lki_job *job, const lki_saying *what);

/* ---- The coordinator (coordinator.c) ----------------------------------------------------- */

_Noreturn void lki_coordinate(lki_job *job, int channel);

/* Returns true if worker i has ended; `info` then describes its end. */
bool lki_look(const lki_job *job, uint32_t i, siginfo_t *info);

/* Reaps worker i, which has ended, and so releases its pid.  Without a keeper, lki_look() and
 * lki_reap() call waitid() in this process. */
void lki_reap(const lki_job *job, uint32_t i);

/* Sends a signal to a worker so that the keeper appears as its sender. */
void lki_signal_worker(const lki_job *job, uint32_t i, int number);

/* Returns the address where the kernel stores the pid of the next process started as worker i.
 * NULL: the kernel does not store the pid. */
pid_t *lki_birth_of(const lki_job *job, uint32_t i);

/* Passes the new socket of worker i to the keeper. */
void lki_keep_socket(const lki_job *job, uint32_t i);

/* Returns true if work of the previous coordinator may be pending without a new event. */
static inline bool lki_has_just_taken_over(const lki_job *job)
{
    return job->keeper != NULL && job->keeper->eager;
}

/* Sends a letter to the keeper. */
void lki_keeper_write(const lki_keeper *keeper, const lki_keeper_letter *letter);

/* Asks the keeper to print `text`. */
void lki_keeper_tell(const lki_job *job, lki_keeper_kind kind, const char *text);

/* Copies the job's next pending signal to `info`; returns false if there is none.  The signal
 * remains pending until lki_signal_taken(). */
bool lki_next_signal(const lki_job *job, void *info, size_t bytes);

/* Removes the signal that lki_next_signal() returned, once the launcher has handled and saved
 * it. */
void lki_signal_taken(const lki_job *job);

#endif
