/* agent.c -- the agent of a host whose workers were started by another launcher.
 *
 * A worker sends the agent a `claim`, which identifies the worker.  The agent answers with a
 * `gift`, which carries the descriptors of the control memory and of the key, or the reason for a
 * refusal.  Afterwards the connection serves as the worker's socket to its launcher.
 *
 * The agent is a fork of a fork, so a program that waits for any child does not see it.  It runs in
 * a session of its own, so signals to the workers' process group do not reach it.  It closes all of
 * the worker's files.  The agent watches the workers as a launcher does (watch.c), but ends them
 * only after a request to stop.
 */
#include "launch/agent.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/pidfd.h"
#include "launch/job/executor.h"
#include "launch/shared_port.h"

enum { TIMEOUT_MS = 30000, JOIN_MS = 300000, RETRY_MS = 20, ANSWER_FDS = 2 };

/* The agent's fixed descriptors: the listening socket, and a pidfd of the worker that started the
 * agent. */
enum { AT_LISTENER = 3, AT_STARTER, AT_END };

static const uint64_t claim_magic = UINT64_C(0x6d69616c632d6b6c); /* "lk-claim" */

typedef struct {
    uint64_t magic;
    uint32_t rank, size, local_rank, local_size;
} claim;

typedef struct {
    uint64_t  magic;
    lk_status status;
    bool      secure;
    int32_t   pid; /* pid of the agent */
    char      message[LKI_MESSAGE_BYTES];
} gift;

/* ---- The meeting point ------------------------------------------------------------------- */

/* Builds the name of an abstract socket, which is in no file system and vanishes with its owner. */
static socklen_t name_of(struct sockaddr_un *out, const lki_foreign *job)
{
    *out     = (struct sockaddr_un){.sun_family = AF_UNIX};
    int used = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "lockstep-%016llx",
                        (unsigned long long)job->job);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)used);
}

/* Returns the pid of the peer process, or 0 if that process belongs to another user. */
static pid_t own_peer(int fd)
{
    struct ucred peer  = {.pid = 0};
    socklen_t    bytes = sizeof peer;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0 || peer.uid != getuid())
        return 0;
    return peer.pid;
}

static int new_socket(void)
{
    return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
}

static lk_status listen_for_workers(int *out, const lki_foreign *job)
{
    struct sockaddr_un name;
    socklen_t          bytes = name_of(&name, job);

    *out = new_socket();
    if (*out >= 0 && bind(*out, (const struct sockaddr *)&name, bytes) == 0 &&
        listen(*out, LKI_RANKS_MAX) == 0)
        return LK_OK;
    int error = errno;
    if (*out >= 0)
        (void)close(*out);
    *out = -1;
    return lk_fail(LK_EIO, "cannot listen for the workers of this host: %s%s", strerror(error),
                   error == EADDRINUSE ? "; are there two jobs with the same names, or two workers "
                                         "with local rank 0?" : "");
}

/* ---- The agent: collecting its workers --------------------------------------------------- */

static void answer(int fd, const gift *words, const int *fds)
{
    struct iovec part = {.iov_base = (gift *)(uintptr_t)words, .iov_len = sizeof *words};
    union {
        char           space[CMSG_SPACE(ANSWER_FDS * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};

    if (fds != NULL) {
        size_t count = words->secure ? ANSWER_FDS : 1;
        memset(&control, 0, sizeof control);
        header.msg_control     = control.space;
        header.msg_controllen  = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
        rights->cmsg_level     = SOL_SOCKET;
        rights->cmsg_type      = SCM_RIGHTS;
        rights->cmsg_len       = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(rights), fds, count * sizeof(int));
    }
    (void)!sendmsg(fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT); /* an error is detected later */
}

static void refuse(int fd, lk_status status, const char *why)
{
    gift words = {.magic = claim_magic, .status = status};
    (void)snprintf(words.message, sizeof words.message, "%s", why);
    answer(fd, &words, NULL);
    (void)close(fd);
}

static bool is_claim(const claim *c, const lki_foreign *job)
{
    return c->magic == claim_magic && c->size == job->size && c->local_size == job->local_size
           && c->local_rank < job->local_size;
}

/* Accepts the worker at the other end of `fd`, or sends the worker a refusal.  The memory layout
 * requires that the ranks of a host are consecutive. */
static void seat(lki_job *job, const lki_foreign *host, int fd)
{
    claim   c   = {.magic = 0};
    pid_t   pid = own_peer(fd);
    char    why[200];
    ssize_t got = recv(fd, &c, sizeof c, 0);

    if (pid == 0 || got != (ssize_t)sizeof c || !is_claim(&c, host)) {
        refuse(fd, LK_EINVAL, "the agent of this host belongs to another job");
        return;
    }
    lki_worker *worker = &job->workers[c.local_rank];
    if (c.rank - c.local_rank != host->rank || worker->pid != 0) {
        (void)snprintf(why, sizeof why, "rank %u has local rank %u, and the host's first rank is "
                       "%u%s: the ranks of a host must be consecutive (mpirun --map-by slot, srun "
                       "--distribution=block)", c.rank, c.local_rank, host->rank,
                       worker->pid != 0 ? ", and another has that local rank" : "");
        refuse(fd, LK_EINVAL, why);
        return;
    }
    worker->pidfd = lki_pidfd_open(pid);
    if (worker->pidfd < 0) { /* the worker has ended, or cannot be watched */
        (void)close(fd);
        return;
    }
    worker->pid    = pid;
    worker->socket = fd;
    job->started++;
}

/* Sleeps until a worker connects or ends, or a signal arrives.  Returns true if a worker
 * connects. */
static bool await_worker(lki_job *job, int left_ms)
{
    struct pollfd *polled = job->polled;
    enum { NEWS = 3 };

    polled[0] = (struct pollfd){.fd = AT_LISTENER, .events = POLLIN};
    polled[1] = (struct pollfd){.fd = job->signals.fd, .events = POLLIN};
    polled[2] = (struct pollfd){.fd = job->workers[0].pid == 0 ? AT_STARTER : -1,
                                .events = POLLIN};
    for (uint32_t i = 0; i < job->count; i++)
        polled[NEWS + i] = (struct pollfd){.fd = job->workers[i].pidfd, .events = POLLIN};
    return poll(polled, NEWS + (nfds_t)job->count, left_ms) > 0 && polled[0].revents != 0;
}

/* Fails if a stop was requested, or a worker that has joined has ended. */
static lk_status check_joined(void *context)
{
    lki_job *job = context;

    lki_job_listen(job);
    if (job->stop_signal != 0)
        return lk_fail(LK_ESTOPPED, "SIG%s came while the workers of this host were joining",
                       sigabbrev_np(job->stop_signal));
    return lki_nodes_check_workers(job);
}

/* Fails if a worker of this host has ended, because the host will never be complete. */
static lk_status check_workers(lki_job *job, const lki_foreign *host)
{
    struct pollfd starter = {.fd = AT_STARTER, .events = POLLIN};

    LK_TRY(check_joined(job));
    if (job->workers[0].pid != 0 || poll(&starter, 1, 0) == 0)
        return LK_OK;
    return lk_fail(LK_EPEER, "rank %u has ended before it had joined", host->rank);
}

static lk_status collect(lki_job *job, const lki_foreign *host)
{
    uint32_t limit_ms = job->options->timeout_ms;
    double   end      = lki_seconds() + limit_ms * 1e-3;

    while (job->started < job->count) {
        double left = (end - lki_seconds()) * 1e3;
        if (left <= 0)
            break;
        if (await_worker(job, (int)left + 1)) {
            int fd = accept4(AT_LISTENER, NULL, NULL, SOCK_CLOEXEC);
            if (fd >= 0)
                seat(job, host, fd);
        }
        LK_TRY(check_workers(job, host));
    }
    for (uint32_t i = 0; i < job->count; i++)
        if (job->workers[i].pid == 0)
            return lk_fail(LK_ETIMEOUT, "rank %u, with local rank %u, has not joined within %.3g s",
                           host->rank + i, i, limit_ms * 1e-3);
    return LK_OK;
}

/* ---- The agent: lifetime ----------------------------------------------------------------- */

/* The options of a job whose agents have agreed on the port of the rendezvous. */
typedef struct {
    lki_shared_port   port;
    lk_launch_options options;
    lki_host          host;
} agreement;

/* Connects to the job's other hosts.  If the other launcher's store listens at the rendezvous,
 * first agrees on another port.  `agreed` must live as long as the job. */
static lk_status meet(lki_job *job, const lki_foreign *f, agreement *agreed)
{
    uint32_t limit_ms = job->options->join_ms != 0 ? job->options->join_ms : JOIN_MS;

    if (f->store == NULL)
        return lki_nodes_meet(job);
    lk_status st = lki_shared_port_open(&agreed->port, f, limit_ms, check_joined, job);
    agreed->options            = *job->options;
    agreed->options.rendezvous = agreed->port.endpoint;
    agreed->host               = *job->host;
    agreed->host.listener      = agreed->port.listener;
    job->options               = &agreed->options;
    job->host                  = &agreed->host;
    if (st == LK_OK)
        st = lki_nodes_meet(job);
    lk_error why = *lk_error_last();
    lki_shared_port_withdraw(&agreed->port);
    return st == LK_OK ? LK_OK : lki_fail_again(&why);
}

static lk_status prepare(lki_job *job, const lki_foreign *host, agreement *agreed)
{
    if (job->options->rendezvous != NULL)
        LK_TRY(meet(job, host, agreed));
    LK_TRY(lki_control_create(&job->control, job->roster));
    if (job->rendezvous != NULL)
        LK_TRY(lki_nodes_prepare(job));
    for (uint32_t i = 0; i < job->count; i++) {
        uint32_t rank = lki_rank_of_worker(job, i);
        lki_control_adopt(job->control, rank, job->workers[i].socket);
        lki_control_started(job->control, rank, (int32_t)job->workers[i].pid);
    }
    return LK_OK;
}

static void answer_all(const lki_job *job, lk_status st)
{
    gift words = {.magic = claim_magic, .status = st, .secure = job->key_fd >= 0,
                  .pid   = (int32_t)getpid()};
    int  fds[] = {st == LK_OK ? lki_control_fd(job->control) : -1, job->key_fd};

    if (st != LK_OK)
        (void)snprintf(words.message, sizeof words.message, "%s", lk_error_last()->message);
    for (uint32_t i = 0; i < job->count; i++)
        if (job->workers[i].pid != 0)
            answer(job->workers[i].socket, &words, st == LK_OK ? fds : NULL);
}

/* Serves the host's workers.  Returns true if a job was formed and all its workers on this host
 * have ended. */
static bool serve(lki_job *job, const lki_foreign *host)
{
    lk_launch_result result = {.exit_code = 1};
    agreement        agreed;
    lk_status        st     = collect(job, host);

    (void)close(AT_LISTENER);
    (void)close(AT_STARTER);
    if (st == LK_OK)
        st = prepare(job, host, &agreed);
    answer_all(job, st);
    if (st != LK_OK) {
        lki_nodes_close(job);
        return false;
    }
    st              = lki_watch(job);
    uint32_t weight = st == LK_OK ? lki_judge(job, &result) : 0;
    if (job->rendezvous != NULL)
        (void)(lki_nodes_finish(job, st, weight, &result) == LK_OK);
    lki_nodes_close(job);
    return st == LK_OK;
}

static lk_status job_open(lki_job *job, const lk_launch_options *options, const lki_host *host)
{
    *job = (lki_job){.options  = options,
                     .host     = host,
                     .count    = options->workers,
                     .roster   = lki_roster_alone(options->workers),
                     .executor = &lki_direct_executor,
                     .key_fd   = -1,
                     .signals  = {.fd = -1},
                     .sinks    = {{.to = -1}, {.to = -1}}};
    LK_TRY(lki_signals_open(&job->signals));
    LK_TRY(LKI_NEW(&job->workers, job->count, "the workers' records"));
    for (uint32_t i = 0; i < job->count; i++) {
        lki_worker *worker = &job->workers[i];
        worker->pidfd = worker->socket = -1;
        worker->streams[0].from = worker->streams[1].from = -1;
    }
    return LKI_NEW(&job->polled, LKI_POLLED(job->count), "the agent's descriptors");
}

/* Closes all of the worker's descriptors except two, and resets its signal handling. */
static void leave_the_worker(int listener, int starter)
{
    static const int of_a_launcher[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
    const int        kept[2] = {fcntl(listener, F_DUPFD, AT_END), fcntl(starter, F_DUPFD, AT_END)};
    int              nothing = open("/dev/null", O_RDWR);

    for (size_t i = 0; i < sizeof of_a_launcher / sizeof of_a_launcher[0]; i++)
        (void)signal(of_a_launcher[i], SIG_DFL);
    for (int fd = 0; fd < 3; fd++)
        (void)dup2(nothing, fd);
    for (int i = 0; i < 2; i++)
        (void)dup3(kept[i], AT_LISTENER + i, O_CLOEXEC);
    (void)close_range(AT_END, ~0U, 0);
    (void)setsid();
    (void)prctl(PR_SET_NAME, "lockstep-agent");
}

static _Noreturn void be_the_agent(const lki_foreign *f, const lk_launch_options *options,
                                   const lk_join_options *join, int listener, int starter)
{
    lki_host host = {.listener = -1, .orders = -1, .world = f->size, .first = f->rank};
    lki_job  job;

    leave_the_worker(listener, starter);
    if (job_open(&job, options, &host) == LK_OK && serve(&job, f) && join->ended != NULL)
        join->ended(join->ended_context, f->rank, f->local_size);
    _exit(0);
}

/* ---- The worker: starting and asking the agent ------------------------------------------- */

/* Fills in the options with which the agent connects to the job's other hosts, if any. */
static lk_status plan(lk_launch_options *out, unsigned char key[LK_JOB_KEY_BYTES],
                      const lki_foreign *f, const lk_join_options *join)
{
    *out = (lk_launch_options){.struct_size = sizeof *out, .workers = f->local_size,
                               .node = f->rank == 0 ? 0 : -1,
                               .join_ms = join->timeout_ms,
                               .timeout_ms = join->timeout_ms != 0 ? join->timeout_ms
                                                                   : TIMEOUT_MS};
    if (f->local_size == f->size)
        return LK_OK;
    out->rendezvous = f->rendezvous;
    out->insecure   = f->insecure;
    if (out->insecure)
        return LK_OK;
    out->job_key = key;
    return lk_job_key_read(key, f->key_file);
}

static lk_status start(const lki_foreign *f, const lk_launch_options *options,
                       const lk_join_options *join)
{
    int listener, self = lki_pidfd_open(getpid());

    if (self < 0)
        return lk_fail(LK_EUNSUPPORTED, "pidfd_open: %s", strerror(errno));
    lk_status st = listen_for_workers(&listener, f);
    pid_t child  = st == LK_OK ? fork() : -1;
    if (child == 0) {
        pid_t agent = fork();
        if (agent == 0)
            be_the_agent(f, options, join, listener, self);
        _exit(agent < 0 ? errno : 0);
    }
    int status = 0, error = child < 0 ? errno : 0;
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        continue;
    (void)close(self);
    LK_TRY(st);
    (void)close(listener);
    if (child > 0 && WIFEXITED(status))
        error = WEXITSTATUS(status);
    return error == 0 ? LK_OK : lk_fail(LK_ENOMEM, "cannot start the agent of this host: fork: %s",
                                        strerror(error));
}

/* Connects to the agent.  Retries, because the worker with local rank 0 may not have started the
 * agent yet. */
static lk_status find_agent(int *out, const lki_foreign *f, uint32_t timeout_ms)
{
    const struct timespec moment = {.tv_nsec = RETRY_MS * 1000000L};
    struct sockaddr_un    name;
    socklen_t             bytes = name_of(&name, f);
    double                end   = lki_seconds() + timeout_ms * 1e-3;

    for (;;) {
        *out = new_socket();
        if (*out >= 0 && connect(*out, (const struct sockaddr *)&name, bytes) == 0)
            break;
        int error = errno;
        if (*out >= 0)
            (void)close(*out);
        *out = -1;
        if (lki_seconds() >= end)
            return lk_fail(LK_ETIMEOUT, "rank %u, with local rank 0, has not joined within %.3g s "
                           "(%s)", f->rank - f->local_rank, timeout_ms * 1e-3, strerror(error));
        (void)nanosleep(&moment, NULL);
    }
    if (own_peer(*out) != 0)
        return LK_OK;
    (void)close(*out);
    *out = -1;
    return lk_fail(LK_EINVAL, "another user listens where the agent of this host should");
}

/* Receives the agent's answer and its descriptors. */
static lk_status receive(int fd, gift *words, int fds[ANSWER_FDS])
{
    struct iovec part = {.iov_base = words, .iov_len = sizeof *words};
    union {
        char           space[CMSG_SPACE(ANSWER_FDS * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space,
                            .msg_controllen = sizeof control.space};
    ssize_t got;

    do
        got = recvmsg(fd, &header, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    if (got != (ssize_t)sizeof *words || words->magic != claim_magic)
        return lk_fail(LK_EPEER, "the agent of this host has ended before the job began");
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&header); c != NULL; c = CMSG_NXTHDR(&header, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
            memcpy(fds, CMSG_DATA(c), lki_min(c->cmsg_len - CMSG_LEN(0), ANSWER_FDS * sizeof(int)));
    if (words->status != LK_OK) {
        words->message[sizeof words->message - 1] = '\0';
        return lk_fail(words->status, "%s", words->message);
    }
    return LK_OK;
}

static lk_status ask(lki_agent_gift *out, const lki_foreign *f)
{
    const claim mine  = {.magic = claim_magic, .rank = f->rank, .size = f->size,
                         .local_rank = f->local_rank, .local_size = f->local_size};
    gift        words = {.magic = 0};
    int         fds[ANSWER_FDS] = {-1, -1};

    if (send(out->socket, &mine, sizeof mine, MSG_NOSIGNAL) != (ssize_t)sizeof mine)
        return lk_fail(LK_EPEER, "the agent of this host has ended: %s", strerror(errno));
    lk_status st = receive(out->socket, &words, fds);
    out->control = fds[0];
    out->secure  = words.secure;
    out->pid     = words.pid;
    if (st == LK_OK)
        out->process = lki_pidfd_open(words.pid);
    if (st == LK_OK && out->secure && pread(fds[1], out->key, sizeof out->key, 0)
                                          != (ssize_t)sizeof out->key)
        st = lk_fail(LK_EFORMAT, "the agent of this host has given no key");
    if (fds[1] >= 0)
        (void)close(fds[1]);
    return st;
}

lk_status lki_agent_join(lki_agent_gift *out, const lki_foreign *f, const lk_join_options *join)
{
    lk_launch_options options;
    unsigned char     key[LK_JOB_KEY_BYTES];

    *out = (lki_agent_gift){.control = -1, .socket = -1, .process = -1};
    LK_TRY(plan(&options, key, f, join));
    lk_status st = f->local_rank == 0 ? start(f, &options, join) : LK_OK;
    explicit_bzero(key, sizeof key);
    if (st == LK_OK)
        st = find_agent(&out->socket, f, options.timeout_ms);
    if (st == LK_OK)
        st = ask(out, f);
    if (st == LK_OK)
        return LK_OK;
    if (out->socket >= 0)
        (void)close(out->socket);
    if (out->control >= 0)
        (void)close(out->control);
    if (out->process >= 0)
        (void)close(out->process);
    return st;
}
