/* coordinator.c -- the coordinator: takeover, and requests to the keeper. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/memory.h"
#include "launch/keeper.h"

/* ---- Asking the keeper ------------------------------------------------------------------- */

/* Sends a letter, with a descriptor unless `fd` is -1.  Exits if the keeper is gone. */
static void write_letter(const lki_keeper *keeper, const lki_keeper_letter *letter, int fd)
{
    struct iovec bytes = {.iov_base = (void *)(uintptr_t)letter, .iov_len = sizeof *letter};
    union {
        char           space[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } rider;
    struct msghdr header = {.msg_iov = &bytes, .msg_iovlen = 1};

    if (fd >= 0) {
        memset(&rider, 0, sizeof rider);
        header.msg_control     = rider.space;
        header.msg_controllen  = sizeof rider.space;
        struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
        rights->cmsg_level     = SOL_SOCKET;
        rights->cmsg_type      = SCM_RIGHTS;
        rights->cmsg_len       = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(rights), &fd, sizeof fd);
    }
    ssize_t sent;
    do
        sent = sendmsg(keeper->channel, &header, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent != (ssize_t)sizeof *letter)
        _exit(1);
}

void lki_keeper_write(const lki_keeper *keeper, const lki_keeper_letter *letter)
{
    write_letter(keeper, letter, -1);
}

static lki_keeper_answer ask(const lki_keeper *keeper, const lki_keeper_letter *letter, int fd)
{
    lki_keeper_answer words;
    ssize_t           got;

    write_letter(keeper, letter, fd);
    do
        got = recv(keeper->channel, &words, sizeof words, 0);
    while (got < 0 && errno == EINTR);
    if (got != (ssize_t)sizeof words)
        _exit(1);
    return words;
}

static lki_keeper_answer ask_about(const lki_job *job, lki_keeper_kind kind, uint32_t i, pid_t pid)
{
    const lki_keeper_letter letter = {.kind = kind, .worker = i, .pid = (int32_t)pid};
    return ask(job->keeper, &letter, -1);
}

bool lki_look(const lki_job *job, uint32_t i, siginfo_t *info)
{
    pid_t pid = job->workers[i].pid;

    *info = (siginfo_t){0};
    if (!lki_is_coordinator(job)) {
        if (waitid(P_PID, (id_t)pid, info, WEXITED | WNOHANG | WNOWAIT) == 0)
            return info->si_pid != 0;
        info->si_code   = CLD_EXITED; /* other code of this process has reaped the worker, so its
                                       * status is unknown and counts as a failure */
        info->si_status = 1;
        return true;
    }
    lki_keeper_answer words = ask_about(job, LKI_KEEPER_LOOK, i, pid);
    info->si_code           = words.code;
    info->si_status         = words.status;
    return words.pid != 0;
}

void lki_reap(const lki_job *job, uint32_t i)
{
    pid_t pid = job->workers[i].pid;

    if (lki_is_coordinator(job))
        (void)ask_about(job, LKI_KEEPER_REAP, i, pid);
    else
        (void)waitid(P_PID, (id_t)pid, NULL, WEXITED | WNOHANG);
}

/* Sends a signal.  The signal must appear to come from the keeper, because a worker always obeys
 * signals of its parent. */
void lki_signal_worker(const lki_job *job, uint32_t i, int number)
{
    const lki_worker *worker = &job->workers[i];

    if (!lki_is_coordinator(job)) {
        (void)kill(worker->pid, number);
        return;
    }
    siginfo_t info = {.si_signo = number, .si_code = SI_QUEUE};
    info.si_pid    = job->keeper->pid;
    info.si_uid    = getuid();
    (void)pidfd_send_signal(worker->pidfd, number, &info, 0);
}

pid_t *lki_birth_of(const lki_job *job, uint32_t i)
{
    if (!lki_is_coordinator(job))
        return NULL;
    atomic_store(&job->keeper->births[i].reaped, 0);
    return &job->keeper->births[i].pid;
}

void lki_keep_socket(const lki_job *job, uint32_t i)
{
    const lki_keeper_letter letter = {.kind = LKI_KEEPER_SOCKET, .worker = i};

    if (lki_is_coordinator(job))
        write_letter(job->keeper, &letter, job->workers[i].socket);
}

void lki_keeper_tell(const lki_job *job, lki_keeper_kind kind, const char *text)
{
    lki_keeper_letter letter = {.kind = kind, .turn = atomic_load(&job->keeper->shared->turns)};

    (void)snprintf(letter.text, sizeof letter.text, "%s", text);
    write_letter(job->keeper, &letter, -1);
}

bool lki_next_signal(const lki_job *job, void *info, size_t bytes)
{
    ssize_t got = lki_is_coordinator(job)
                      ? recv(job->signals.fd, info, bytes, MSG_PEEK | MSG_DONTWAIT)
                      : read(job->signals.fd, info, bytes);
    return got == (ssize_t)bytes;
}

void lki_signal_taken(const lki_job *job)
{
    char nothing;

    if (lki_is_coordinator(job))
        (void)!recv(job->signals.fd, &nothing, sizeof nothing, MSG_DONTWAIT);
}

/* ---- Taking over ------------------------------------------------------------------------- */

static void keep_board(void *context, int fd)
{
    const lki_job          *job    = context;
    const lki_keeper_letter letter = {.kind = LKI_KEEPER_BOARD};
    (void)ask(job->keeper, &letter, fd);
}

static void commit(void *context)
{
    lki_commit(context);
}

/* Closes or replaces the inherited descriptors that only the keeper uses. */
static void leave_the_keeper(lki_job *job, int channel)
{
    (void)close(job->signals.fd);
    if (job->keeper->channel >= 0)
        (void)close(job->keeper->channel);
    if (job->rendezvous != NULL)
        lki_rendezvous_forget(job->rendezvous);
    job->signals.fd      = job->keeper->signals[0];
    job->keeper->channel = channel;
    job->keeper->inside  = true;
    for (int s = 0; s < 2; s++)
        job->sinks[s] = (lki_sink){.to = -1};
    for (uint32_t i = 0; i < job->count; i++)
        for (int s = 0; s < 2; s++) { /* closes the inherited read ends, so that workers get an
                                       * error when no reader is left */
            if (job->workers[i].streams[s].from >= 0)
                (void)close(job->workers[i].streams[s].from);
            job->workers[i].streams[s] = (lki_stream){.from = -1};
        }
}

/* Kills a worker that the previous coordinator has started but not recorded, because the worker may
 * not have received all descriptors. */
static void bury_unknown(const lki_job *job, uint32_t i)
{
    pid_t born = job->keeper->births[i].pid;

    if (born == job->workers[i].pid)
        return;
    (void)kill(born, SIGKILL);
    (void)ask_about(job, LKI_KEEPER_REAP, i, born);
    job->keeper->births[i].pid = job->workers[i].pid;
    atomic_store(&job->keeper->births[i].reaped, (int32_t)job->workers[i].pid);
}

static lk_status take_over(lki_job *job)
{
    const lki_control_journal journal = {.board = keep_board, .commit = commit, .context = job};

    lki_control_journal_to(job->control, &journal);
    if (atomic_load(&job->keeper->shared->newest) > 0)
        lki_keeper_restore(job);
    for (uint32_t i = 0; i < job->count; i++) {
        lki_worker *worker = &job->workers[i];
        bury_unknown(job, i);
        if (worker->order != 0) {
            lki_reap(job, i); /* may be done already */
            continue;
        }
        worker->pidfd = pidfd_open(worker->pid, 0);
        if (worker->pidfd < 0)
            return lk_fail(LK_EUNSUPPORTED, "cannot watch worker %u: pidfd_open: %s",
                           lki_rank_of_worker(job, i), strerror(errno));
    }
    lki_rebuild_resume(job);
    job->keeper->eager = true;
    lki_commit(job);
    return LK_OK;
}

_Noreturn void lki_coordinate(lki_job *job, int channel)
{
    lki_shared *shared = job->keeper->shared;

    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != job->keeper->pid)
        _exit(1);
    (void)prctl(PR_SET_NAME, "lockstep-coord");
    leave_the_keeper(job, channel);
    lk_status st = take_over(job);
    if (st == LK_OK)
        st = lki_watch(job);
    if (st == LK_OK)
        shared->weight = lki_judge(job, &shared->result);
    shared->error = st == LK_OK ? (lk_error){.status = LK_OK} : *lk_error_last();
    atomic_store(&shared->done, true);
    _exit(st == LK_OK ? shared->result.exit_code : 1); /* like a worker's status; see late.c */
}
