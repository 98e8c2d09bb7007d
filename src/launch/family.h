/* launch/family.h -- for emulated hosts: the parent process's record of each host's launcher
 * (hosts.c), and the handling of launchers that do not run or do not end (host_watchdog.c). */
#ifndef LKI_LAUNCH_FAMILY_H
#define LKI_LAUNCH_FAMILY_H

#include "launch/job/job.h"

/* A message from an emulated host's launcher to the parent process, sent in one write.  The
 * launcher sends one message when all hosts have connected, and one message when the launcher has
 * ended. */
typedef struct {
    bool             ended, left; /* left: the host has left the job on request */
    lk_status        status;
    lk_launch_result result;
    char             message[LKI_MESSAGE_BYTES];
} lki_report;

/* One emulated host. */
typedef struct {
    pid_t      pid;     /* 0: not running */
    int        pidfd, orders, reports; /* `orders`: this process's end of a socket; `reports`: read
                                        * end of a pipe */
    lki_stream streams[2];
    uint32_t   first, count; /* the host's ranks are `first` to `first` + `count` - 1 */
    uint32_t   times;        /* number of restarts */
    bool       late;         /* this host was started after the other hosts */
    bool       met, by_us;   /* `met`: the launcher has connected to the other hosts; `by_us`: this
                              * process killed the launcher */
    bool       stopped; /* this process killed the launcher, which did not run; no other host could
                         * detect that */
    bool       done;         /* the launcher was killed after one of its workers had seen the end of
                              * the job */
    bool       reported, left;
    lki_report said;
    int        status; /* as waitpid() returned it */
} lki_emulated;

typedef struct {
    const lk_launch_options *options;
    uint32_t                 count, running, begun; /* begun: number of hosts that were started at
                                                     * least once */
    lki_emulated            *hosts;
    lki_signals              signals;
    lki_sink                 sinks[2];
    struct pollfd           *polled;
    double                   asked_at; /* time of the request to stop in seconds; 0: none */
    double                   kill_at;  /* time in seconds of the planned kill; 0: none */
    double                   stopped_s, looked_at; /* seconds for which no launcher ran; time of the
                                                    * last check */
    const lki_emulated      *first_lost; /* first host lost while other hosts ran; NULL: none */
    lk_launch_result         how_lost; /* the launch result that reports the loss of first_lost */
    int                      listener;
    char                     endpoint[64];
    unsigned char            key[LK_JOB_KEY_BYTES];
} lki_family;

/* Kills all running launchers.  A launcher killed here does not count as lost. */
void lki_family_kill(const lki_family *f);

/* Kills all launchers that still run although the other launchers have ended.  Prints a note if the
 * job had finished. */
void lki_family_end_late(lki_family *f);

/* Kills all launchers if no launcher has run for as long as hosts wait before they treat a silent
 * host as lost.  Called every LKI_FAMILY_LOOK_S.  Time in which this process did not run does not
 * count. */
#define LKI_FAMILY_LOOK_S 0.5
void lki_family_look(lki_family *f);

/* Returns a host whose worker or report proves that the whole job is done; NULL if there is none,
 * which is always the case without options->leave_together. */
const lki_emulated *lki_family_complete(const lki_family *f);

#endif
