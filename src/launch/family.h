/* launch/family.h -- emulated hosts: their launchers, as the one above sees them (hosts.c), and
 * what it does about those that do not run, or do not end (late.c).
 */
#ifndef LKI_LAUNCH_FAMILY_H
#define LKI_LAUNCH_FAMILY_H

#include "launch/job.h"

/* What a launcher says when all have met, and when it has ended; each in one write. */
typedef struct {
    bool             ended, left; /* or: it has left the others, on request */
    lk_status        status;
    lk_launch_result result;
    char             message[LKI_MESSAGE_BYTES];
} lki_report;

typedef struct {
    pid_t      pid;     /* 0 = not running */
    int        pidfd, orders, reports; /* orders: where to write them; reports: where to read */
    lki_stream streams[2];
    uint32_t   first, count; /* its ranks */
    uint32_t   times;        /* it was started again */
    bool       late;         /* it comes when the others have begun */
    bool       met, by_us;   /* it has met the others; it was killed from here, ... */
    bool       stopped;      /* ... since it did not run, and nobody else could miss it */
    bool       done;         /* ... but a worker of it had seen the end */
    bool       reported, left;
    lki_report said;
    int        status; /* of waitpid() */
} lki_emulated;

typedef struct {
    const lk_launch_options *options;
    uint32_t                 count, running, begun; /* begun: so many have been started at all */
    lki_emulated            *hosts;
    lki_signals              signals;
    lki_sink                 sinks[2];
    struct pollfd           *polled;
    double                   asked_at; /* seconds; when the job was asked to stop, or 0 */
    double                   kill_at;  /* the same; 0 = not planned */
    double                   stopped_s, looked_at; /* how long nobody has run; and until when */
    const lki_emulated      *first_lost; /* of those that did not report, and were not killed since
                                          * the others had ended; NULL = none */
    lk_launch_result         how_lost; /* it was */
    int                      listener;
    char                     endpoint[64];
    unsigned char            key[LK_JOB_KEY_BYTES];
} lki_family;

/* Kills all that run; none of them counts as lost. */
void lki_family_kill(const lki_family *f);

/* The same for those that have not ended with the others, which is noted if all is done. */
void lki_family_end_late(lki_family *f);

/* Now and then: where no launcher runs since all are stopped, they are lost after as long as they
 * would miss each other.  Time in which this process did not run does not count. */
#define LKI_FAMILY_LOOK_S 0.5
void lki_family_look(lki_family *f);

/* Where all leave together: a host of which somebody has seen that all is done; NULL = none. */
const lki_emulated *lki_family_complete(const lki_family *f);

#endif
