/* launch/keeper/keeper.h -- a job whose launcher may be killed, and training goes on.
 *
 * Where a job goes on after losses the launcher is two processes.  The one that the user started,
 * the keeper, decides nothing: it is the workers' parent, passes on their output and the signals
 * that come for the job, tells the user what he is told, and keeps descriptors.  Its child, the
 * coordinator, does all that watch.c and rebuild.c say.  When that dies, however it dies, the
 * keeper forks another, which goes on from what the dead one has written down: workers see nothing
 * of it but an answer that comes some milliseconds later.  Workers and coordinator end with the
 * keeper.
 *
 * A coordinator has a turn every now and then, also when nothing happens, and counts them.  One
 * that has none for half of the job's timeout, because it is stopped or hangs, is killed; time in
 * which the keeper did not run itself (Ctrl-Z stops both) does not count.
 *
 * The journal is shared memory of two pages.  A commit fills the older one with what the
 * coordinator knows and then makes it the newest, so there is always a whole one.  What comes from
 * outside is taken only when that is done: a packet stays in its socket, a signal too, a worker
 * that has ended stays a zombie until the keeper is told to reap it.  So the next coordinator finds
 * again whatever the last one had not finished, and all that it does for a second time is harmless:
 * answers have numbers, arenas too, notes are told once, and where the kernel has written down the
 * pid of a worker that nobody else has, it is killed before it is started again.
 *
 *      coordinator                         keeper
 *      look at / reap worker i ----------> waitid() <- how it ended
 *      keep this socket, this board -----> keeps it, and so has it whoever is forked next
 *      note -----------------------------> tells it
 *      signals <-------------------------- that came for the job
 *      say to the other hosts -----------> says it
 *      events <--------------------------- what the other hosts say (post.c)
 *
 * Over hosts there is a pair of them on each.  The keeper has the connections, and on node 0 the
 * meeting place (comm/rendezvous.h), since its end is the end of its host; of what is said there it
 * understands nothing.
 *
 * Threads: one at a time.
 */
#ifndef LKI_LAUNCH_KEEPER_H
#define LKI_LAUNCH_KEEPER_H

#include <stdatomic.h>

#include "launch/nodes.h"

typedef enum {
    LKI_KEEPER_NOTE,       /* `text` */
    LKI_KEEPER_CHAOS_NOTE, /* the same, of blows */
    LKI_KEEPER_LOOK,       /* how has `worker`, with this pid, ended?  An answer follows, */
    LKI_KEEPER_REAP,       /* here too: it is not wanted any more */
    LKI_KEEPER_SOCKET,     /* with our end of the socket to `worker` */
    LKI_KEEPER_BOARD,      /* with the control memory of the next epoch; and an answer */
    LKI_KEEPER_SAYING,     /* `saying`, to the other nodes */
} lki_keeper_kind;

enum { LKI_NOTE_BYTES = 640 };

typedef struct {
    uint32_t kind, worker;
    int32_t  pid;
    uint64_t turn; /* what was told in a turn that was not finished may come again */
    union {
        char       text[LKI_NOTE_BYTES];
        lki_saying saying;
    };
} lki_keeper_letter;

/* How a process has ended, as waitid() says. */
typedef struct {
    int32_t pid; /* 0 = it has not */
    int32_t code, status;
} lki_keeper_answer;

/* A process that was started as worker `i`. */
typedef struct {
    pid_t           pid; /* the kernel writes it */
    _Atomic int32_t reaped;
} lki_birth;

/* What keeper and coordinators share. */
typedef struct {
    _Atomic uint64_t newest; /* how many commits there have been; page newest % 2 counts */
    _Atomic uint64_t turns;
    _Atomic uint64_t posted, heard; /* events of other nodes, by the keeper and in the journal */
    atomic_bool      lost;   /* node 0 is */
    atomic_bool      done;   /* the job has ended like this: */
    uint32_t         weight;
    lk_launch_result result;
    lk_error         error;  /* LK_OK: none */
} lki_shared;

/* How long a coordinator has had no turn. */
typedef struct {
    uint64_t turns;
    double   seconds, seen; /* of them; when that was looked at */
    bool     over;          /* long enough: it is killed; ... */
    bool     stopped;       /* ... it was stopped */
} lki_silence;

struct lki_keeper {
    lki_shared    *shared;
    lki_birth     *births;  /* [workers] */
    lki_event        *events;     /* [event_places]: a ring of what other nodes have said */
    lki_introduction *known;      /* [world]: who can be reached, since the last LKI_EVENT_KNOWN */
    lki_introduction *introduced; /* [workers]: what a coordinator introduces */
    uint64_t          event_places;
    unsigned char *pages[2];
    size_t         page_bytes, bytes;
    pid_t          pid;         /* of the keeper */
    pid_t          coordinator; /* 0 = none */
    int            channel;     /* to the other of the two */
    int            signals[2];  /* they are written to the second, and wait in the first */
    int            bell;        /* an eventfd: something was posted; -1 = there is one host */
    bool           over;        /* the last event was */
    uint64_t       said[LKI_SAY_KINDS]; /* 1 + the last epoch in which it was said; 0 = never */
    int            board;       /* of the newest epoch, if the control has an older one; or -1 */
    bool           inside;      /* this is a coordinator, ... */
    bool           eager;       /* ... which has not had a look at everything yet */
    lki_silence    silence;     /* of this coordinator */
    uint32_t       crashes;     /* of coordinators in a row, by themselves */
    uint64_t       told[8];     /* hashes of the last notes ... */
    uint64_t       told_in[8];  /* ... and the turns that told them */
    uint64_t       notes;
};

static inline bool lki_is_coordinator(const lki_job *job)
{
    return job->keeper != NULL && job->keeper->inside;
}

/* ---- For launch.c ------------------------------------------------------------------------ */

/* Whether this job has a keeper. */
bool lki_keeper_wanted(const lki_job *job);

/* Instead of lki_watch() and lki_judge(), once all workers have been started. */
LK_NODISCARD lk_status lki_keep(lki_job *job, uint32_t *weight, lk_launch_result *result);
void                   lki_keeper_close(lki_job *job);

/* ---- A coordinator that does not run (silence.c) ------------------------------------------ */

/* How long a coordinator, and its keeper, sleep at most. */
double lki_turn_seconds(const lki_job *job);

/* In the keeper, when a coordinator begins, and after every sleep: kills one that has had no turn
 * for too long. */
void lki_silence_begin(const lki_job *job);
void lki_silence_look(const lki_job *job);

/* Why, for the user. */
void lki_silence_describe(const lki_job *job, char *text, size_t bytes);

/* ---- The journal (journal.c) ------------------------------------------------------------- */

LK_NODISCARD lk_status lki_keeper_open(lki_keeper **out, const lki_job *job);
void                   lki_keeper_free(lki_keeper *keeper);

/* Writes down what the coordinator knows.  No effect in a launcher without a keeper. */
void lki_commit(lki_job *job);

/* The same at the end of a turn. */
void lki_turned(lki_job *job);

/* In a new coordinator: makes *job what the newest page says. */
void lki_keeper_restore(lki_job *job);

/* In the keeper, when there are no coordinators any more: the same, save what is the keeper's. */
void lki_keeper_learn(lki_job *job);

/* The epoch of the control memory that the newest page is about. */
uint64_t lki_keeper_epoch(const lki_job *job);

/* ---- The other nodes (post.c) ------------------------------------------------------------ */

/* In the keeper: whether it may hear what they say; hears it; and says something. */
bool                   lki_post_has_room(const lki_keeper *keeper);
LK_NODISCARD lk_status lki_post_collect(lki_job *job);
void                   lki_post_pass_on(const lki_job *job, const lki_saying *what);

/* In any launcher: the next event, which comes again until it was heard; and what is readable when
 * there may be one. */
LK_NODISCARD lk_status lki_post_next(const lki_job *job, lki_event *out);
void                   lki_post_heard(lki_job *job);
int                    lki_post_fd(const lki_job *job);

/* In the coordinator: has the keeper say it. */
void lki_post_say(const lki_job *job, const lki_saying *what);

/* ---- The coordinator (coordinator.c) ----------------------------------------------------- */

_Noreturn void lki_coordinate(lki_job *job, int channel);

/* How worker i has ended; false: it has not.  And lets go of its pid.  In a launcher without a
 * keeper these do it themselves. */
bool lki_look(const lki_job *job, uint32_t i, siginfo_t *info);
void lki_reap(const lki_job *job, uint32_t i);

/* A signal to a worker is the keeper's, whoever sends it. */
void lki_signal_worker(const lki_job *job, uint32_t i, int number);

/* Where the kernel is to write the pid of the next worker i; NULL: nowhere. */
pid_t *lki_birth_of(const lki_job *job, uint32_t i);

/* Worker i has a new socket. */
void lki_keep_socket(const lki_job *job, uint32_t i);

/* Whether what the one before had not done may be waiting, though nothing happens. */
static inline bool lki_has_just_taken_over(const lki_job *job)
{
    return job->keeper != NULL && job->keeper->eager;
}

/* To the keeper. */
void lki_keeper_write(const lki_keeper *keeper, const lki_keeper_letter *letter);

/* Has the keeper tell `text`. */
void lki_keeper_tell(const lki_job *job, lki_keeper_kind kind, const char *text);

/* Takes one signal that has come for the job; it is gone when it has been handled and that is
 * written down. */
bool lki_next_signal(const lki_job *job, void *info, size_t bytes);
void lki_signal_taken(const lki_job *job);

#endif
