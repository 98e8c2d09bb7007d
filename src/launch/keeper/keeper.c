/* keeper.c -- the keeper, which holds descriptors and obeys the coordinator.  See keeper.h. */
#include "launch/keeper/keeper.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/pidfd.h"
#include "launch/job/forward.h"

/* Indices in the keeper's job->polled: the socket with the coordinator's letters, and the
 * coordinator's pidfd. */
enum { AT_CHANNEL = LKI_AT_ORDERS, AT_PIDFD = LKI_AT_OTHER };
enum { CRASHES_MAX = 5, TOLD = sizeof((lki_keeper *)0)->told / sizeof(uint64_t) };

bool lki_keeper_wanted(const lki_job *job)
{
    return job->options->on_failure == LK_ON_FAILURE_CONTINUE;
}

static void close_if_open(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
}

/* ---- Obeying the coordinator ------------------------------------------------------------- */

/* Prints a note.  Does not print a note that a wake-up repeats because an earlier coordinator died
 * in the middle of that wake-up. */
static void tell_once(const lki_job *job, const lki_keeper_letter *letter)
{
    lki_keeper *keeper = lki_keeper_of(job);
    uint64_t    hash   = lki_xxh3(letter->text, strlen(letter->text));

    for (size_t i = 0; i < TOLD; i++)
        if (keeper->told[i] == hash && keeper->told_in[i] >= letter->turn)
            return;
    size_t at           = keeper->notes++ % TOLD;
    keeper->told[at]    = hash;
    keeper->told_in[at] = letter->turn;
    job->executor->note(job, letter->kind == LKI_KEEPER_CHAOS_NOTE, letter->text);
}

static void answer(const lki_keeper *keeper, const lki_keeper_answer *words)
{
    (void)!send(keeper->channel, words, sizeof *words, MSG_NOSIGNAL);
}

/* Determines how process `pid` has ended.  Other code of this process may have reaped `pid` by
 * waiting for any child.  The status is then unknown and counts as a failure. */
static lki_keeper_answer look(int32_t pid, int how)
{
    siginfo_t info = {0};

    if (waitid(P_PID, (id_t)pid, &info, WEXITED | how) != 0)
        return (lki_keeper_answer){.pid = pid, .code = CLD_EXITED, .status = 1};
    return (lki_keeper_answer){info.si_pid, info.si_code, info.si_status};
}

static void reap(const lki_job *job, const lki_keeper_letter *letter)
{
    lki_birth        *birth = &lki_keeper_of(job)->births[letter->worker];
    lki_keeper_answer words = {.pid = letter->pid};

    if (atomic_load(&birth->reaped) != letter->pid)
        words = look(letter->pid, 0);
    atomic_store(&birth->reaped, letter->pid);
    answer(lki_keeper_of(job), &words);
}

/* Switches to the control memory whose descriptor was received last. */
static lk_status move(lki_job *job)
{
    int fd = lki_keeper_of(job)->board;

    lki_keeper_of(job)->board = -1;
    return lki_control_move(job->control, fd);
}

static lk_status obey(lki_job *job, const lki_keeper_letter *letter, int fd)
{
    const lki_keeper_answer done = {.pid = letter->pid};
    lki_keeper_answer       words;

    switch ((lki_keeper_kind)letter->kind) {
    case LKI_KEEPER_NOTE:
    case LKI_KEEPER_CHAOS_NOTE: tell_once(job, letter); return LK_OK;
    case LKI_KEEPER_LOOK:
        words = look(letter->pid, WNOHANG | WNOWAIT);
        answer(lki_keeper_of(job), &words);
        return LK_OK;
    case LKI_KEEPER_REAP: reap(job, letter); return LK_OK;
    case LKI_KEEPER_SOCKET:
        job->workers[letter->worker].socket = fd;
        lki_control_adopt(job->control, lki_rank_of_worker(job, letter->worker), fd);
        return LK_OK;
    case LKI_KEEPER_BOARD:
        if (lki_keeper_of(job)->board >= 0)
            LK_TRY(move(job));
        lki_keeper_of(job)->board = fd;
        answer(lki_keeper_of(job), &done);
        return LK_OK;
    case LKI_KEEPER_SAYING: lki_mailbox_pass_on(job, &letter->saying); return LK_OK;
    }
    return LK_OK;
}

/* Receives one letter; returns false if there is none. */
static bool receive(const lki_keeper *keeper, lki_keeper_letter *letter, int *fd)
{
    struct iovec bytes = {.iov_base = letter, .iov_len = sizeof *letter};
    union {
        char           space[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } rider;
    struct msghdr header = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = rider.space,
                            .msg_controllen = sizeof rider.space};
    ssize_t got;

    *fd = -1;
    do
        got = recvmsg(keeper->channel, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    struct cmsghdr *rights = got > 0 ? CMSG_FIRSTHDR(&header) : NULL;
    if (rights != NULL && rights->cmsg_type == SCM_RIGHTS)
        memcpy(fd, CMSG_DATA(rights), sizeof *fd);
    return got == (ssize_t)sizeof *letter;
}

static lk_status obey_all(lki_job *job)
{
    lki_keeper_letter letter;
    int               fd;

    while (receive(lki_keeper_of(job), &letter, &fd))
        LK_TRY(obey(job, &letter, fd));
    return LK_OK;
}

/* Forwards signals without waiting for the coordinator.  Signals that do not fit are dropped, as
 * the kernel drops signals that are already pending. */
static void pass_signals(const lki_job *job)
{
    int                     to = lki_keeper_of(job)->signals[1];
    struct signalfd_siginfo info;

    while (read(job->signals.fd, &info, sizeof info) == (ssize_t)sizeof info)
        (void)!send(to, &info, sizeof info, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* ---- Coordinators ------------------------------------------------------------------------ */

static void prepare(const lki_job *job, int pidfd)
{
    for (size_t i = 0; i < LKI_POLLED(job->count); i++)
        job->polled[i] = (struct pollfd){.fd = -1};
    job->polled[LKI_AT_SIGNALS] = (struct pollfd){.fd = job->signals.fd, .events = POLLIN};
    if (job->rendezvous != NULL && lki_mailbox_has_room(lki_keeper_of(job)))
        job->polled[LKI_AT_NODES] = (struct pollfd){.fd = lki_rendezvous_fd(job->rendezvous),
                                                    .events = POLLIN};
    job->polled[AT_CHANNEL] = (struct pollfd){.fd = lki_keeper_of(job)->channel, .events = POLLIN};
    job->polled[AT_PIDFD]   = (struct pollfd){.fd = pidfd, .events = POLLIN};
}

/* Serves the coordinator until it ends. */
static lk_status serve(lki_job *job, int pidfd)
{
    bool ended = false;

    lki_silence_begin(job);
    while (!ended) {
        prepare(job, pidfd);
        lki_forward_prepare(job);
        int wait_ms = (int)(lki_turn_seconds(job) * 1e3) + 1;
        if (poll(job->polled, LKI_POLLED(job->count), wait_ms) < 0) {
            if (errno == EINTR)
                continue;
            return lk_fail(LK_ENOMEM, "cannot watch the coordinator: poll: %s", strerror(errno));
        }
        ended = job->polled[AT_PIDFD].revents != 0;
        pass_signals(job);
        lki_forward_move(job);
        LK_TRY(obey_all(job));
        if (job->rendezvous != NULL)
            LK_TRY(lki_mailbox_collect(job));
        if (!ended)
            lki_silence_look(job);
    }
    return LK_OK;
}

/* Prepares the fork of a coordinator, which inherits the workers' sockets and the control memory
 * that the journal refers to. */
static lk_status prepare_takeover(lki_job *job)
{
    if (lki_keeper_epoch(job) != lki_control_epoch(job->control))
        LK_TRY(move(job));
    close_if_open(&lki_keeper_of(job)->board);
    return LK_OK;
}

static lk_status start(lki_job *job)
{
    lki_keeper *keeper = lki_keeper_of(job);
    int         ends[2];

    LK_TRY(prepare_takeover(job));
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return lk_fail(LK_EIO, "a socket to the coordinator: %s", strerror(errno));
    keeper->coordinator = fork();
    if (keeper->coordinator == 0) {
        (void)close(ends[0]);
        lki_coordinate(job, ends[1]);
    }
    (void)close(ends[1]);
    keeper->channel = ends[0];
    if (keeper->coordinator > 0)
        return LK_OK;
    keeper->coordinator = 0;
    return lk_fail(LK_ENOMEM, "cannot start a coordinator: fork: %s", strerror(errno));
}

/* Prints a note about the end of a coordinator.  Fails after several crashes in a row.  A kill by
 * another process is not a crash. */
static lk_status mourn(lki_job *job, int32_t pid, const siginfo_t *info, uint64_t turns)
{
    static const int crashes[] = {SIGSEGV, SIGABRT, SIGBUS, SIGILL, SIGFPE};
    lki_keeper      *keeper    = lki_keeper_of(job);
    bool             crashed   = info->si_code == CLD_EXITED;
    char             how[96], of[LKI_HOST_BYTES + 40] = "(", text[LKI_NOTE_BYTES];

    for (size_t i = 0; i < sizeof crashes / sizeof crashes[0]; i++)
        crashed = crashed || info->si_status == crashes[i];
    if (keeper->silence.over)
        lki_silence_describe(job, how, sizeof how);
    else if (info->si_code == CLD_EXITED)
        (void)snprintf(how, sizeof how, "ended with status %d", info->si_status);
    else
        (void)snprintf(how, sizeof how, "was killed by SIG%s", sigabbrev_np(info->si_status));
    keeper->crashes = !crashed ? 0 : turns > 0 ? 1 : keeper->crashes + 1;
    if (keeper->crashes > CRASHES_MAX)
        return lk_fail(LK_EPEER, "the coordinator %s, as the %d before it did", how, CRASHES_MAX);
    if (job->rendezvous != NULL)
        (void)snprintf(of, sizeof of, "of host %s (node %u, ", lki_nodes_self(job)->host,
                       lki_rendezvous_self(job->rendezvous));
    (void)snprintf(text, sizeof text, "the coordinator %spid %d) %s; another takes over, and the "
                   "workers continue", of, pid, how);
    job->executor->note(job, false, text);
    return LK_OK;
}

/* Runs one coordinator from its fork to its end. */
static lk_status coordinate(lki_job *job)
{
    lki_keeper *keeper = lki_keeper_of(job);
    uint64_t    before = atomic_load(&keeper->shared->turns);
    siginfo_t   info   = {0};

    LK_TRY(start(job));
    int       pidfd = lki_pidfd_open(keeper->coordinator);
    int32_t   pid   = (int32_t)keeper->coordinator;
    lk_status st    = pidfd >= 0 ? serve(job, pidfd)
                                 : lk_fail(LK_EUNSUPPORTED, "pidfd_open: %s", strerror(errno));
    close_if_open(&pidfd);
    if (st != LK_OK)
        return st;
    while (waitid(P_PID, (id_t)keeper->coordinator, &info, WEXITED) != 0 && errno == EINTR)
        continue;
    keeper->coordinator = 0;
    close_if_open(&keeper->channel);
    return atomic_load(&keeper->shared->done)
               ? LK_OK
               : mourn(job, pid, &info, atomic_load(&keeper->shared->turns) - before);
}

/* ---- The job ----------------------------------------------------------------------------- */

/* Opens the keeper.  Coordinators open their own pidfds; the keeper forwards the workers'
 * output. */
static lk_status open_keeper(lki_job *job)
{
    lki_keeper *keeper;

    LK_TRY(lki_keeper_open(&keeper, job));
    keeper->itself             = lki_direct_executor;
    keeper->itself.next_event  = lki_mailbox_next;
    keeper->itself.event_taken = lki_mailbox_heard;
    job->executor_state        = keeper;
    job->executor              = &keeper->itself;
    for (uint32_t i = 0; i < job->count; i++) {
        keeper->births[i].pid = job->workers[i].pid;
        close_if_open(&job->workers[i].pidfd);
    }
    if (job->rendezvous != NULL)
        keeper->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if ((job->rendezvous == NULL || keeper->bell >= 0) &&
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, keeper->signals) == 0)
        return LK_OK;
    return lk_fail(LK_EIO, "descriptors for the coordinator: %s", strerror(errno));
}

/* Handles, in the keeper, the other nodes' events that no coordinator has handled. */
static lk_status speak_for_itself(lki_job *job)
{
    LK_TRY(prepare_takeover(job));
    lki_keeper_learn(job);
    return lki_nodes_serve(job);
}

lk_status lki_keep(lki_job *job, uint32_t *weight, lk_launch_result *result)
{
    lk_status st = open_keeper(job);

    while (st == LK_OK && !atomic_load(&lki_keeper_of(job)->shared->done))
        st = coordinate(job);
    lk_error why = *lk_error_last();
    if (lki_keeper_of(job) != NULL && job->rendezvous != NULL && speak_for_itself(job) != LK_OK
        && st == LK_OK)
        return lki_fail_again(lk_error_last());
    if (st != LK_OK)
        return lki_fail_again(&why);
    const lki_shared *shared = lki_keeper_of(job)->shared;
    if (shared->error.status != LK_OK)
        return lki_fail_again(&shared->error);
    *weight          = shared->weight;
    *result          = shared->result;
    job->stop_signal = shared->stop_signal;
    return LK_OK;
}

/* Copies the pids of workers that may still run to job->workers, so that the launcher kills these
 * workers. */
static void take_back_workers(const lki_job *job)
{
    for (uint32_t i = 0; i < job->count; i++) {
        const lki_birth *birth  = &lki_keeper_of(job)->births[i];
        job->workers[i].pid     = birth->pid;
        job->workers[i].order   = atomic_load(&birth->reaped) == birth->pid ? 1 : 0;
    }
}

void lki_keeper_close(lki_job *job)
{
    lki_keeper *keeper = lki_keeper_of(job);

    if (keeper == NULL)
        return;
    if (keeper->coordinator > 0) {
        (void)kill(keeper->coordinator, SIGKILL);
        while (waitpid(keeper->coordinator, NULL, 0) < 0 && errno == EINTR)
            continue;
    }
    take_back_workers(job);
    close_if_open(&keeper->channel);
    close_if_open(&keeper->board);
    close_if_open(&keeper->signals[0]);
    close_if_open(&keeper->signals[1]);
    close_if_open(&keeper->bell);
    lki_keeper_free(keeper);
    job->executor       = &lki_direct_executor;
    job->executor_state = NULL;
}
