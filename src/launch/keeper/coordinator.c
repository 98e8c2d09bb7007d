/* coordinator.c -- the coordinator: takeover, and the executor that asks the keeper. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/pidfd.h"
#include "launch/keeper/keeper.h"

/* ---- Asking the keeper ------------------------------------------------------------------- */

/* Sends a letter, with a descriptor unless `fd` is -1.  Exits if the keeper has ended. */
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
    return ask(lki_keeper_of(job), &letter, -1);
}

/* ---- The executor ------------------------------------------------------------------------ */

static bool look(const lki_job *job, uint32_t i, siginfo_t *info)
{
    lki_keeper_answer words = ask_about(job, LKI_KEEPER_LOOK, i, job->workers[i].pid);

    *info           = (siginfo_t){0};
    info->si_code   = words.code;
    info->si_status = words.status;
    return words.pid != 0;
}

static void reap(const lki_job *job, uint32_t i)
{
    (void)ask_about(job, LKI_KEEPER_REAP, i, job->workers[i].pid);
}

/* Sends a signal.  The signal must appear to come from the keeper, because a worker always obeys
 * signals of its parent. */
static void send_signal(const lki_job *job, uint32_t i, int number)
{
    siginfo_t info = {.si_signo = number, .si_code = SI_QUEUE};

    info.si_pid = lki_keeper_of(job)->pid;
    info.si_uid = getuid();
    (void)lki_pidfd_send(job->workers[i].pidfd, number, &info);
}

static pid_t *birth(const lki_job *job, uint32_t i)
{
    lki_birth *birth = &lki_keeper_of(job)->births[i];

    atomic_store(&birth->reaped, 0);
    return &birth->pid;
}

static void keep_socket(const lki_job *job, uint32_t i)
{
    const lki_keeper_letter letter = {.kind = LKI_KEEPER_SOCKET, .worker = i};
    write_letter(lki_keeper_of(job), &letter, job->workers[i].socket);
}

static void note(const lki_job *job, bool chaos, const char *text)
{
    const lki_keeper *keeper = lki_keeper_of(job);
    lki_keeper_letter letter = {.kind = chaos ? LKI_KEEPER_CHAOS_NOTE : LKI_KEEPER_NOTE,
                                .turn = atomic_load(&keeper->shared->turns)};

    (void)snprintf(letter.text, sizeof letter.text, "%s", text);
    write_letter(keeper, &letter, -1);
}

static bool next_signal(const lki_job *job, void *info, size_t bytes)
{
    return recv(job->signals.fd, info, bytes, MSG_PEEK | MSG_DONTWAIT) == (ssize_t)bytes;
}

static void signal_taken(const lki_job *job)
{
    char nothing;
    (void)!recv(job->signals.fd, &nothing, sizeof nothing, MSG_DONTWAIT);
}

static bool resumes(const lki_job *job)
{
    return lki_keeper_of(job)->eager;
}

const lki_executor lki_coordinator_executor = {
    .look         = look,
    .reap         = reap,
    .signal       = send_signal,
    .birth        = birth,
    .keep_socket  = keep_socket,
    .next_signal  = next_signal,
    .signal_taken = signal_taken,
    .next_event   = lki_mailbox_next,
    .event_taken  = lki_mailbox_heard,
    .events_fd    = lki_mailbox_fd,
    .say          = lki_mailbox_say,
    .lost         = lki_mailbox_lost,
    .introduction = lki_mailbox_introduction,
    .note         = note,
    .commit       = lki_commit,
    .turned       = lki_turned,
    .resumes      = resumes,
    .turn_seconds = lki_turn_seconds,
};

/* ---- Taking over ------------------------------------------------------------------------- */

static void keep_board(void *context, int fd)
{
    const lki_job          *job    = context;
    const lki_keeper_letter letter = {.kind = LKI_KEEPER_BOARD};
    (void)ask(lki_keeper_of(job), &letter, fd);
}

static void commit(void *context)
{
    lki_commit(context);
}

/* Closes or replaces the inherited descriptors that only the keeper uses. */
static void leave_the_keeper(lki_job *job, int channel)
{
    (void)close(job->signals.fd);
    if (lki_keeper_of(job)->channel >= 0)
        (void)close(lki_keeper_of(job)->channel);
    if (job->rendezvous != NULL)
        lki_rendezvous_forget(job->rendezvous);
    job->signals.fd      = lki_keeper_of(job)->signals[0];
    lki_keeper_of(job)->channel = channel;
    lki_keeper_of(job)->inside  = true;
    job->executor               = &lki_coordinator_executor;
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
    pid_t born = lki_keeper_of(job)->births[i].pid;

    if (born == job->workers[i].pid)
        return;
    (void)kill(born, SIGKILL);
    (void)ask_about(job, LKI_KEEPER_REAP, i, born);
    lki_keeper_of(job)->births[i].pid = job->workers[i].pid;
    atomic_store(&lki_keeper_of(job)->births[i].reaped, (int32_t)job->workers[i].pid);
}

static lk_status take_over(lki_job *job)
{
    const lki_control_journal journal = {.board = keep_board, .commit = commit, .context = job};

    lki_control_journal_to(job->control, &journal);
    if (atomic_load(&lki_keeper_of(job)->shared->newest) > 0)
        lki_keeper_restore(job);
    for (uint32_t i = 0; i < job->count; i++) {
        lki_worker *worker = &job->workers[i];
        bury_unknown(job, i);
        if (worker->order != 0) {
            reap(job, i); /* an earlier coordinator may already have reaped the worker */
            continue;
        }
        worker->pidfd = lki_pidfd_open(worker->pid);
        if (worker->pidfd < 0)
            return lk_fail(LK_EUNSUPPORTED, "cannot watch worker %u: pidfd_open: %s",
                           lki_rank_of_worker(job, i), strerror(errno));
    }
    lki_rebuild_resume(job);
    lki_keeper_of(job)->eager = true;
    lki_commit(job);
    return LK_OK;
}

_Noreturn void lki_coordinate(lki_job *job, int channel)
{
    lki_shared *shared = lki_keeper_of(job)->shared;

    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != lki_keeper_of(job)->pid)
        _exit(1);
    (void)prctl(PR_SET_NAME, "lockstep-coord");
    leave_the_keeper(job, channel);
    lk_status st = take_over(job);
    if (st == LK_OK)
        st = lki_watch(job);
    if (st == LK_OK)
        shared->weight = lki_judge(job, &shared->result);
    shared->stop_signal = job->stop_signal;
    shared->error = st == LK_OK ? (lk_error){.status = LK_OK} : *lk_error_last();
    atomic_store(&shared->done, true);
    /* host_watchdog.c reads this status like a worker's. */
    _exit(st == LK_OK ? shared->result.exit_code : 1);
}
