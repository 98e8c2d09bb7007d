/* silence.c -- detects coordinators that hang or are stopped.
 *
 * Workers that wait for the coordinator, for example during a rebuild, give up after the job's
 * timeout.  The keeper waits for half of that time, which leaves the other half to the next
 * coordinator.
 */
#include <signal.h>
#include <stdio.h>

#include "base/file.h"
#include "launch/keeper/keeper.h"

static const double TURN_SECONDS = 0.5, TURNS = 4; /* longest sleep in seconds; number of sleeps
                                                    * without a wake-up until the kill */
static const double LATE_SECONDS = 0.5; /* seconds; a longer delay between checks means that the
                                         * keeper did not run */

static double patience(const lki_job *job)
{
    return lki_timeout_seconds(job) / 2;
}

double lki_turn_seconds(const lki_job *job)
{
    double part = patience(job) / TURNS;
    return part < TURN_SECONDS ? part : TURN_SECONDS;
}

void lki_silence_begin(const lki_job *job)
{
    lki_keeper *keeper = lki_keeper_of(job);

    keeper->silence = (lki_silence){ .turns = atomic_load(&keeper->shared->turns),
                                     .seen  = lki_seconds() };
}

void lki_silence_look(const lki_job *job)
{
    lki_keeper  *keeper = lki_keeper_of(job);
    lki_silence *its    = &keeper->silence;
    uint64_t     turns  = atomic_load(&keeper->shared->turns);
    double       now = lki_seconds(), passed = now - its->seen;

    its->seen = now;
    if (its->over)
        return;
    if (turns != its->turns)
        its->seconds = 0;
    else if (passed < lki_turn_seconds(job) + LATE_SECONDS)
        its->seconds += passed;
    its->turns = turns;
    if (its->seconds < patience(job))
        return;
    its->over    = true;
    its->stopped = lki_is_stopped(keeper->coordinator);
    (void)kill(keeper->coordinator, SIGKILL);
}

void lki_silence_describe(const lki_job *job, char *text, size_t bytes)
{
    (void)snprintf(text, bytes, "has %s for %g s, and is killed",
                   lki_keeper_of(job)->silence.stopped ? "been stopped (by SIGSTOP or a debugger)"
                                                : "done nothing", patience(job));
}
