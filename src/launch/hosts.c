/* hosts.c -- emulates several hosts on this machine, with a launcher per host and one parent
 * process.
 *
 * The launchers are forks of this process.  Each has its share of the workers and cores, and does
 * everything that the launcher of a real host does.  They connect through a loopback port chosen by
 * the kernel, with a secret key, and their workers communicate by TCP.  The parent owns the
 * terminal.  It passes on signals as distinct orders, merges the launchers' output, and reports the
 * job's result once.
 *
 * A launcher that is killed is a lost host: the other launchers report the loss, and the parent
 * adds the reason.  If a launcher is killed before all have connected, the job ends, because the
 * other launchers would wait in vain.  If lost workers are replaced, the parent restarts a host
 * that is lost later, and the host enters as a late host (late_host.c).  Hosts that are not needed
 * at the beginning start in the same way once the first hosts have connected.  The parent kills a
 * launcher that does not end with the other launchers.  Running launchers detect a stopped
 * launcher; if all launchers are stopped, the parent detects that.  When the parent dies, all
 * launchers die.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/pidfd.h"
#include "launch/job/cores.h"
#include "launch/family.h"

enum { AT_SIGNALS, AT_SINKS, AT_REPORTS = 3, AT_HOSTS, PER_HOST = 3 }; /* places in `polled` */
enum { OF_PIDFD, OF_STREAMS };

static const double linger_s = 5; /* seconds for the other launchers to end after the first launcher
                                   * has ended */

static void close_if_open(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
}

/* ---- Starting the launchers -------------------------------------------------------------- */

static lk_status listen_on_loopback(lki_family *f)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t          bytes   = sizeof address;

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    f->listener             = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (f->listener < 0 || bind(f->listener, (const struct sockaddr *)&address, bytes) != 0 ||
        listen(f->listener, SOMAXCONN) != 0 ||
        getsockname(f->listener, (struct sockaddr *)&address, &bytes) != 0)
        return lk_fail(LK_EIO, "no port on the loopback interface: %s", strerror(errno));
    (void)snprintf(f->endpoint, sizeof f->endpoint, "tcp://127.0.0.1:%u", ntohs(address.sin_port));
    return LK_OK;
}

static lk_status family_open(lki_family *f, const lk_launch_options *options)
{
    *f = (lki_family){.options  = options,
                  .count    = options->hosts,
                  .listener = -1,
                  .signals  = {.fd = -1}};
    LK_TRY(LKI_NEW(&f->hosts, f->count, "the emulated hosts"));
    for (uint32_t i = 0; i < f->count; i++) {
        uint64_t all = options->workers;
        uint32_t end = (uint32_t)(all * (i + 1) / f->count);
        lki_emulated *h  = &f->hosts[i];
        h->pidfd = h->orders = h->reports = h->streams[0].from = h->streams[1].from = -1;
        h->first = (uint32_t)(all * i / f->count);
        h->count = end - h->first;
    }
    LK_TRY(LKI_NEW(&f->polled, AT_HOSTS + PER_HOST * (size_t)f->count, "the hosts' descriptors"));
    for (int s = 0; s < 2; s++)
        LK_TRY(lki_sink_init(&f->sinks[s], s == 0 ? STDOUT_FILENO : STDERR_FILENO));
    if (getrandom(f->key, sizeof f->key, 0) != (ssize_t)sizeof f->key)
        return lk_fail(LK_EIO, "no random numbers for a key: %s", strerror(errno));
    LK_TRY(listen_on_loopback(f));
    return lki_signals_open(&f->signals);
}

/* Binds this process to the host's share of the cores: the cores that the host's workers would have
 * if all workers of the job were on one host. */
static void take_cores(const lki_family *f, const lki_emulated *h)
{
    static lki_cores cores;
    cpu_set_t        mine, share;

    lki_cores_find(&cores, false);
    CPU_ZERO(&mine);
    for (uint32_t i = 0; i < h->count; i++)
        if (lki_cores_share(&share, &cores, h->first + i, f->options->workers, f->options->bind))
            CPU_OR(&mine, &mine, &share);
    if (CPU_COUNT(&mine) > 0)
        (void)sched_setaffinity(0, sizeof mine, &mine);
}

static void say_met(int reports)
{
    const lki_report said = {.ended = false};
    (void)!write(reports, &said, sizeof said);
}

static void say_left(int reports)
{
    const lki_report said = {.left = true};
    (void)!write(reports, &said, sizeof said);
}

/* Runs the launcher of host `i` in the child, after closing all descriptors of the other hosts. */
static _Noreturn void be_a_host(lki_family *f, uint32_t i, int orders, int reports,
                                const int output[2], pid_t parent)
{
    char              name[32];
    lki_host          host    = {.name     = name,
                                 .listener = i == 0 ? f->listener : -1,
                                 .orders   = orders,
                                 .met      = say_met,
                                 .left     = say_left,
                                 .reports  = reports};
    lk_launch_options options = *f->options;
    lki_report        said    = {.ended = true};

    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
        _exit(1);
    for (uint32_t k = 0; k < f->count; k++) {
        close_if_open(&f->hosts[k].orders);
        close_if_open(&f->hosts[k].reports);
        close_if_open(&f->hosts[k].pidfd);
        close_if_open(&f->hosts[k].streams[0].from);
        close_if_open(&f->hosts[k].streams[1].from);
    }
    for (int s = 0; s < 2; s++)
        if (output[s] >= 0)
            (void)dup2(output[s], 1 + s);
    lki_signals_close(&f->signals);
    take_cores(f, &f->hosts[i]);
    (void)snprintf(name, sizeof name, "host%u", i);
    options.hosts      = 0;
    options.nodes      = f->count;
    options.node       = (int32_t)i;
    options.workers    = f->hosts[i].count;
    options.rendezvous = f->endpoint;
    options.job_key    = f->key;
    options.insecure   = false;
    options.chaos.seed += f->hosts[i].times; /* a restart must not repeat the same faults */
    said.status        = lki_launch_host(&options, &host, &said.result);
    if (said.status != LK_OK)
        (void)snprintf(said.message, sizeof said.message, "%s", lk_error_last()->message);
    _exit(write(reports, &said, sizeof said) == (ssize_t)sizeof said ? 0 : 1);
}

/* Opens a socket and three pipes between this process and a host's launcher. theirs[] receives the
 * launcher's ends of the socket and of the pipes. */
static lk_status connect_host(const lki_family *f, lki_emulated *h, int theirs[4])
{
    int ends[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return lk_fail(LK_EIO, "a socket to the launcher of a host: %s", strerror(errno));
    theirs[0] = ends[0];
    h->orders = ends[1];
    LK_TRY(lki_pipe_open(ends));
    h->reports = ends[0];
    theirs[1]  = ends[1];
    (void)fcntl(theirs[0], F_SETFL, O_NONBLOCK);
    (void)fcntl(h->reports, F_SETFL, O_NONBLOCK);
    for (int s = 0; s < 2 && f->options->prefix_output; s++) {
        LK_TRY(lki_pipe_open(ends));
        theirs[2 + s] = ends[1];
        (void)fcntl(ends[0], F_SETFL, O_NONBLOCK);
        LK_TRY(lki_stream_init(&h->streams[s], ends[0], ""));
    }
    return LK_OK;
}

static lk_status start_host(lki_family *f, uint32_t i)
{
    lki_emulated *h         = &f->hosts[i];
    int       theirs[4] = {-1, -1, -1, -1};
    pid_t     parent    = getpid();
    lk_status st        = connect_host(f, h, theirs);

    if (st == LK_OK) {
        h->pid = fork();
        if (h->pid == 0)
            be_a_host(f, i, theirs[0], theirs[1], theirs + 2, parent);
        if (h->pid < 0)
            st = lk_fail(LK_ENOMEM, "cannot start the launcher of host %u: fork: %s", i,
                         strerror(errno));
    }
    for (int k = 0; k < 4; k++)
        close_if_open(&theirs[k]);
    LK_TRY(st);
    f->running++;
    h->pidfd = lki_pidfd_open(h->pid);
    return h->pidfd >= 0 ? LK_OK : lk_fail(LK_EUNSUPPORTED, "cannot watch the launcher of host %u: "
                                           "pidfd_open: %s", i, strerror(errno));
}

/* ---- Watching the launchers -------------------------------------------------------------- */

static void order(const lki_family *f, lki_order what)
{
    for (uint32_t i = 0; i < f->count; i++)
        if (f->hosts[i].pid > 0)
            (void)!write(f->hosts[i].orders, &what, sizeof what);
}

static void take_signals(lki_family *f)
{
    struct signalfd_siginfo info;

    while (read(f->signals.fd, &info, sizeof info) == (ssize_t)sizeof info) {
        bool      from_terminal = info.ssi_code == SI_KERNEL;
        lki_order what          = {.number = (int)info.ssi_signo, .deaf = from_terminal};
        if (what.number == SIGINT && from_terminal && f->signals.interrupt_ignored)
            continue;
        if (what.number != SIGUSR1 && what.number != SIGUSR2) {
            what.force = f->asked_at > 0;
            if (what.force && lki_seconds() - f->asked_at < LKI_ECHO_SECONDS)
                continue;
            f->asked_at = lki_seconds();
        }
        order(f, what);
    }
}

/* Describes a loss, e.g. "host1 (node 1, ranks 2 to 3) is lost: its launcher was killed by
 * SIGKILL". */
static void say_how_lost(const lki_family *f, const lki_emulated *h, lk_launch_result *result)
{
    uint32_t        i    = (uint32_t)(h - f->hosts);
    int             sent = WIFSIGNALED(h->status) ? WTERMSIG(h->status) : 0;
    char            to[24] = "", how[64];

    if (h->stopped)
        (void)snprintf(how, sizeof how, "did not run, and was killed");
    else if (sent != 0)
        (void)snprintf(how, sizeof how, "was killed by SIG%s", sigabbrev_np(sent));
    else
        (void)snprintf(how, sizeof how, "ended with status %d", WEXITSTATUS(h->status));
    if (h->count > 1)
        (void)snprintf(to, sizeof to, " to %u", h->first + h->count - 1);
    *result = (lk_launch_result){.exit_code = 1,
                                 .failed    = true,
                                 .lost      = f->asked_at <= 0,
                                 .rank      = h->first};
    (void)snprintf(result->cause, sizeof result->cause,
                   "host host%u (node %u, rank%s %u%s) is lost: its launcher %s%s", i, i,
                   h->count > 1 ? "s" : "", h->first, to, how,
                   h->met ? "" : " before all hosts had met");
}

static void note_lost(const lki_family *f, const lki_emulated *h)
{
    lk_launch_result result;

    say_how_lost(f, h, &result);
    if (f->options->note != NULL)
        f->options->note(f->options->note_context, result.cause);
}

static void hear_reports(lki_emulated *h)
{
    lki_report said;

    while (read(h->reports, &said, sizeof said) == (ssize_t)sizeof said) {
        h->met      = h->met || !said.ended;
        h->left     = h->left || said.left;
        h->reported = said.ended;
        h->said     = said;
    }
}

/* Returns true if a lost host is to be started again.  This excludes node 0, and any host lost
 * before all had connected. */
static bool comes_back(const lki_family *f, const lki_emulated *h)
{
    const lk_launch_options *o    = f->options;
    bool                     lost = h->left ? h->said.result.failed && h->said.result.lost
                                            : !h->reported && (h->met || h->late);
    return lost && !h->by_us && o->on_failure == LK_ON_FAILURE_CONTINUE && o->host_returns
           && h != &f->hosts[0] && f->hosts[0].pid > 0 && !f->hosts[0].reported
           && lki_family_complete(f) == NULL
           && f->asked_at <= 0 && f->kill_at <= 0 && h->times < o->replacements;
}

/* Prints a note that the other hosts refused a host that was started again, unless the job is
 * ending. */
static void note_refused(const lki_family *f, const lki_emulated *h)
{
    char text[LKI_MESSAGE_BYTES + 64];

    (void)snprintf(text, sizeof text, "host%u does not come back: %s", (uint32_t)(h - f->hosts),
                   h->said.message);
    if (f->kill_at <= 0 && h->said.status != LK_OK && f->options->note != NULL)
        f->options->note(f->options->note_context, text);
}

/* Kills late hosts that have not entered if no host is left to admit them. */
static void kill_those_on_their_way(const lki_family *f)
{
    for (uint32_t i = 1; i < f->count; i++) {
        lki_emulated *h = &f->hosts[i];
        if (h->pid > 0 && h->late && !h->met) {
            h->by_us = h->left = true;
            (void)kill(h->pid, SIGKILL);
        }
    }
}

/* Starts a late host.  If the start fails, the other hosts continue. */
static void start_late(lki_family *f, uint32_t i)
{
    char text[LKI_MESSAGE_BYTES + 64];

    f->hosts[i].late = true;
    if (start_host(f, i) == LK_OK)
        return;
    (void)snprintf(text, sizeof text, "host%u is not started: %s", i, lk_error_last()->message);
    if (f->options->note != NULL)
        f->options->note(f->options->note_context, text);
}

static void start_again(lki_family *f, lki_emulated *h)
{
    uint32_t i = (uint32_t)(h - f->hosts), times = h->times + 1;

    close_if_open(&h->orders);
    close_if_open(&h->reports);
    for (int s = 0; s < 2; s++)
        lki_stream_deinit(&h->streams[s]);
    *h = (lki_emulated){.pidfd   = -1,
                        .orders  = -1,
                        .reports = -1,
                        .streams = {{.from = -1}, {.from = -1}},
                        .first   = h->first,
                        .count   = h->count,
                        .times   = times};
    start_late(f, i);
}

/* Returns true if some hosts are to be started only after the other hosts have connected. */
static bool is_incomplete(const lki_family *f)
{
    return f->begun < f->count && f->hosts[0].pid > 0;
}

static void start_the_rest(lki_family *f)
{
    hear_reports(&f->hosts[0]);
    if (!f->hosts[0].met)
        return;
    for (; f->begun < f->count; f->begun++)
        if (f->asked_at <= 0 && f->kill_at <= 0)
            start_late(f, f->begun);
}

static void host_ended(lki_family *f, lki_emulated *h)
{
    if (waitpid(h->pid, &h->status, WNOHANG) != h->pid)
        return;
    hear_reports(h);
    h->pid = 0;
    f->running--;
    close_if_open(&h->pidfd);
    bool lost  = !h->reported && !h->by_us, again = comes_back(f, h);
    bool borne = lost && (h->met || h->late)
                 && f->options->on_failure == LK_ON_FAILURE_CONTINUE;
    if (lost && (f->first_lost == NULL || f->first_lost == h || h == &f->hosts[0])) {
        f->first_lost = h;
        say_how_lost(f, h, &f->how_lost); /* a later loss of node 0 replaces this reason */
    }
    if (h->late && !h->met && h->reported) {
        note_refused(f, h);
        h->left = true;
    }
    if (borne && !h->stopped)
        note_lost(f, h); /* the other hosts may continue */
    if (again)
        start_again(f, h);
    if (h == &f->hosts[0])
        kill_those_on_their_way(f);
    if (again || borne || h->left)
        return;
    double end = lki_seconds() + (h->met ? linger_s : 0);
    if (f->kill_at <= 0 || end < f->kill_at)
        f->kill_at = end;
}

/* ---- The loop ------------------------------------------------------------------------------ */

/* Returns the number of milliseconds until the next kill or the next check for stopped
 * launchers. */
static int time_left(const lki_family *f)
{
    double now = lki_seconds(), left = f->looked_at + LKI_FAMILY_LOOK_S - now;

    if (f->kill_at > now && f->kill_at - now < left)
        left = f->kill_at - now;
    return left > 0 ? (int)(left * 1e3) + 1 : 1;
}

static void prepare(lki_family *f)
{
    f->polled[AT_SIGNALS] = (struct pollfd){.fd = f->signals.fd, .events = POLLIN};
    f->polled[AT_REPORTS] = (struct pollfd){.fd = is_incomplete(f) ? f->hosts[0].reports : -1,
                                            .events = POLLIN};
    for (uint32_t s = 0; s < 2; s++)
        f->polled[AT_SINKS + s] = (struct pollfd){
            .fd = f->sinks[s].used > 0 ? f->sinks[s].to : -1, .events = POLLOUT};
    for (uint32_t i = 0; i < f->count; i++) {
        struct pollfd *places = &f->polled[AT_HOSTS + i * PER_HOST];
        places[OF_PIDFD]      = (struct pollfd){.fd = f->hosts[i].pidfd, .events = POLLIN};
        for (uint32_t s = 0; s < 2; s++)
            places[OF_STREAMS + s] = (struct pollfd){
                .fd     = lki_sink_has_room(&f->sinks[s]) ? f->hosts[i].streams[s].from : -1,
                .events = POLLIN};
    }
}

static void move_output(lki_family *f)
{
    for (uint32_t s = 0; s < 2; s++)
        if (f->polled[AT_SINKS + s].revents != 0)
            lki_sink_write(&f->sinks[s]);
    for (uint32_t i = 0; i < f->count; i++)
        for (uint32_t s = 0; s < 2; s++)
            if (f->polled[AT_HOSTS + i * PER_HOST + OF_STREAMS + s].revents != 0
                && lki_sink_has_room(&f->sinks[s]))
                (void)lki_stream_read(&f->hosts[i].streams[s], &f->sinks[s]);
}

/* Returns true if launchers may still run because the reader of their output is slow.  They then
 * get as much time after it has read. */
static bool awaits_reader(lki_family *f)
{
    bool waits = !lki_sink_has_room(&f->sinks[0]) || !lki_sink_has_room(&f->sinks[1]);

    if (waits)
        f->kill_at = lki_seconds() + linger_s;
    return waits;
}

static lk_status watch(lki_family *f)
{
    while (f->running > 0) {
        if (f->kill_at > 0 && lki_seconds() >= f->kill_at && !awaits_reader(f))
            lki_family_end_late(f);
        lki_family_look(f);
        prepare(f);
        if (poll(f->polled, AT_HOSTS + PER_HOST * (nfds_t)f->count, time_left(f)) < 0) {
            if (errno != EINTR)
                return lk_fail(LK_ENOMEM, "cannot watch the hosts: poll: %s", strerror(errno));
            continue;
        }
        take_signals(f);
        move_output(f);
        if (f->polled[AT_REPORTS].revents != 0)
            start_the_rest(f);
        for (uint32_t i = 0; i < f->count; i++)
            if (f->polled[AT_HOSTS + i * PER_HOST + OF_PIDFD].revents != 0)
                host_ended(f, &f->hosts[i]);
    }
    return LK_OK;
}

/* Writes the output that remains in the pipes after all launchers have ended. */
static lk_status finish_output(lki_family *f)
{
    lki_rest rest = {.signals = f->signals.fd, .asked = f->asked_at > 0, .options = f->options};

    for (uint32_t s = 0; s < 2; s++) {
        lki_sink *sink = &f->sinks[s];
        for (uint32_t i = 0; i < f->count; i++) {
            lki_stream *stream = &f->hosts[i].streams[s];
            while (lki_stream_read(stream, sink))
                lki_sink_drain(sink, false, &rest);
            lki_sink_drain(sink, false, &rest);
            lki_stream_finish(stream, sink);
        }
        lki_sink_drain(sink, true, &rest);
    }
    lki_signals_drop(&f->signals); /* they have interrupted the output */
    return lki_sinks_check(f->sinks);
}

/* ---- The end of the job ------------------------------------------------------------------ */

/* Determines the result.  All surviving launchers report the same result, except a launcher that
 * has failed itself, whose report has more detail.  If node 0 was lost, the results may differ; the
 * result of a launcher that has seen the end of the job is then used. */
static lk_status judge(const lki_family *f, lk_launch_result *result)
{
    const lki_emulated *best = NULL, *lost = f->first_lost, *seen = lki_family_complete(f);

    if (seen != NULL) {
        *result = seen->reported ? seen->said.result : (lk_launch_result){.rank = seen->first};
        return LK_OK;
    }
    for (uint32_t i = 0; i < f->count; i++) {
        const lki_emulated *h = &f->hosts[i];
        if (h->reported && !h->left
            && (best == NULL || (best->said.status == LK_OK && h->said.status != LK_OK)))
            best = h;
    }
    if (best != NULL)
        *result = best->said.result;
    if (best != NULL && best->said.status != LK_OK)
        return lk_fail(best->said.status, "%s", best->said.message);
    if (lost != NULL && (best == NULL || (result->failed && result->pid == 0)))
        *result = f->how_lost;
    result->lost = result->lost && f->asked_at <= 0;
    return LK_OK;
}

static void family_close(lki_family *f)
{
    lki_family_kill(f);
    for (uint32_t i = 0; f->hosts != NULL && i < f->count; i++) {
        lki_emulated *h = &f->hosts[i];
        while (h->pid > 0 && waitpid(h->pid, NULL, 0) < 0 && errno == EINTR)
            continue;
        close_if_open(&h->pidfd);
        close_if_open(&h->orders);
        close_if_open(&h->reports);
        for (int s = 0; s < 2; s++)
            lki_stream_deinit(&h->streams[s]);
    }
    for (int s = 0; s < 2; s++)
        lki_sink_deinit(&f->sinks[s]);
    lki_signals_close(&f->signals);
    close_if_open(&f->listener);
    explicit_bzero(f->key, sizeof f->key);
    lki_free(f->polled);
    lki_free(f->hosts);
}

lk_status lki_launch_hosts(const lk_launch_options *options, lk_launch_result *result)
{
    lki_family f;
    uint32_t   needed = options->hosts_least > 0 ? options->hosts_least : options->hosts;
    lk_status  st     = family_open(&f, options);

    for (f.begun = 0; f.begun < needed && st == LK_OK; f.begun++)
        st = start_host(&f, f.begun);
    close_if_open(&f.listener);
    if (st == LK_OK)
        st = watch(&f);
    if (st == LK_OK) {
        lk_status written = finish_output(&f);
        st                = written == LK_OK ? judge(&f, result) : written;
    }
    lk_error why = *lk_error_last();
    family_close(&f);
    return st == LK_OK ? LK_OK : lki_fail_again(&why);
}
