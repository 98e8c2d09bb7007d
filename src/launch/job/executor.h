/* launch/job/executor.h -- how the launcher's decisions are carried out.
 *
 * The loop (watch.c) decides; an executor waits for processes, sends signals and talks to the other
 * nodes.  The direct executor does this work in the launcher's own process.  An executor of another
 * folder may pass the calls to a process that outlives the loop.  Such an executor commits the
 * loop's state, so that another loop can continue from that state.
 */
#ifndef LKI_LAUNCH_JOB_EXECUTOR_H
#define LKI_LAUNCH_JOB_EXECUTOR_H

#include <signal.h>

#include "launch/job/nodes.h"

typedef struct lki_executor {
    /* Returns true if worker i has ended; `info` then describes its end. */
    bool (*look)(const lki_job *job, uint32_t i, siginfo_t *info);

    /* Reaps worker i, which has ended, and so releases its pid. */
    void (*reap)(const lki_job *job, uint32_t i);

    /* Sends a signal to worker i.  The signal comes from the worker's parent. */
    void (*signal)(const lki_job *job, uint32_t i, int number);

    /* Returns the address where the kernel stores the pid of the next process started as worker i.
     * NULL: the kernel does not store the pid. */
    pid_t *(*birth)(const lki_job *job, uint32_t i);

    /* Keeps the launcher's end of the new socket to worker i. */
    void (*keep_socket)(const lki_job *job, uint32_t i);

    /* Copies the job's next pending signal to `info`; returns false if there is none.  The signal
     * may remain pending until signal_taken(), which is called once the signal is handled and
     * saved. */
    bool (*next_signal)(const lki_job *job, void *info, size_t bytes);
    void (*signal_taken)(const lki_job *job);

    /* Stores the next event of the other nodes in *out.  May store the same event again until
     * event_taken() is called with that event. */
    lk_status (*next_event)(lki_job *job, lki_event *out);
    void (*event_taken)(lki_job *job, const lki_event *event);

    /* Returns a descriptor that is readable if there may be an event. */
    int (*events_fd)(const lki_job *job);

    /* Sends a message to the other nodes. */
    void (*say)(const lki_job *job, const lki_saying *what);

    /* Returns true if node 0 is lost. */
    bool (*lost)(const lki_job *job);

    /* Returns the pid and address that `rank` of another node has introduced itself with. */
    const lki_introduction *(*introduction)(const lki_job *job, uint32_t rank);

    /* Passes a note to the user. `chaos` is true if the note is about fault injection. */
    void (*note)(const lki_job *job, bool chaos, const char *text);

    /* Saves the loop's state: commit() at any time, turned() at the end of a wake-up. */
    void (*commit)(lki_job *job);
    void (*turned)(lki_job *job);

    /* Returns true if work of an earlier loop may be pending without a new event. */
    bool (*resumes)(const lki_job *job);

    /* Returns the longest sleep of the loop in seconds; 0: no limit. */
    double (*turn_seconds)(const lki_job *job);
} lki_executor;

extern const lki_executor lki_direct_executor;

#endif
