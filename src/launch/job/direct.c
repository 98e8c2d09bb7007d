/* direct.c -- the executor of a launcher that is one process.  See executor.h. */
#include <sys/wait.h>
#include <unistd.h>

#include "launch/job/executor.h"

/* Other code of this process may have reaped the worker by waiting for any child.  The worker's
 * status is then unknown and counts as a failure. */
static bool look(const lki_job *job, uint32_t i, siginfo_t *info)
{
    *info = (siginfo_t){0};
    if (waitid(P_PID, (id_t)job->workers[i].pid, info, WEXITED | WNOHANG | WNOWAIT) == 0)
        return info->si_pid != 0;
    info->si_code   = CLD_EXITED;
    info->si_status = 1;
    return true;
}

static void reap(const lki_job *job, uint32_t i)
{
    (void)waitid(P_PID, (id_t)job->workers[i].pid, NULL, WEXITED | WNOHANG);
}

static void send_signal(const lki_job *job, uint32_t i, int number)
{
    (void)kill(job->workers[i].pid, number);
}

static pid_t *birth(const lki_job *job, uint32_t i)
{
    (void)job;
    (void)i;
    return NULL;
}

static void keep_socket(const lki_job *job, uint32_t i)
{
    (void)job;
    (void)i;
}

static bool next_signal(const lki_job *job, void *info, size_t bytes)
{
    return read(job->signals.fd, info, bytes) == (ssize_t)bytes;
}

static void signal_taken(const lki_job *job)
{
    (void)job;
}

static lk_status next_event(lki_job *job, lki_event *out)
{
    LK_TRY(lki_rendezvous_next(job->rendezvous, out));
    lki_nodes_note_refused(job, false);
    return LK_OK;
}

static void event_taken(lki_job *job, const lki_event *event)
{
    (void)job;
    (void)event;
}

static int events_fd(const lki_job *job)
{
    return lki_rendezvous_fd(job->rendezvous);
}

static bool lost(const lki_job *job)
{
    return lki_rendezvous_lost(job->rendezvous);
}

static const lki_introduction *introduction(const lki_job *job, uint32_t rank)
{
    return lki_rendezvous_introduction(job->rendezvous, rank);
}

static void note(const lki_job *job, bool chaos, const char *text)
{
    const lk_launch_options *options = job->options;

    if (chaos && options->chaos.note != NULL)
        options->chaos.note(options->chaos.note_context, text);
    if (!chaos && options->note != NULL)
        options->note(options->note_context, text);
}

static void commit(lki_job *job)
{
    (void)job;
}

static bool resumes(const lki_job *job)
{
    (void)job;
    return false;
}

static double turn_seconds(const lki_job *job)
{
    (void)job;
    return 0;
}

const lki_executor lki_direct_executor = {
    .look         = look,
    .reap         = reap,
    .signal       = send_signal,
    .birth        = birth,
    .keep_socket  = keep_socket,
    .next_signal  = next_signal,
    .signal_taken = signal_taken,
    .next_event   = next_event,
    .event_taken  = event_taken,
    .events_fd    = events_fd,
    .say          = lki_nodes_speak,
    .lost         = lost,
    .introduction = introduction,
    .note         = note,
    .commit       = commit,
    .turned       = commit,
    .resumes      = resumes,
    .turn_seconds = turn_seconds,
};
