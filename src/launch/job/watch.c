/* watch.c -- the launcher's loop, which reacts to deaths, signals, output and messages.
 *
 * One thread sleeps in poll() until one of these events occurs:
 *
 *   a worker's end     The end is marked in the control memory, which wakes the worker's peers at
 *                      once.  If the worker failed, the job fails.  Workers that never joined a
 *                      group cannot detect the failure, and get SIGTERM now.  Workers in a group
 *                      report LK_EPEER by themselves, and get SIGTERM after half the grace period.
 *                      At the end of the grace period all remaining workers get SIGKILL.
 *   a first SIGINT,    The launcher raises the stop flag for workers that have joined, and sends
 *   SIGTERM, SIGHUP    the signal to workers that have not.  The terminal's own Ctrl-C has reached
 *                      all workers already (one process group) and is not sent twice.  If no
 *                      worker checks for requests within the grace period, the job ends as after a
 *                      second request.
 *   a second one       All workers get SIGTERM, then SIGKILL after the grace period.  A lockstep
 *                      worker forwards a signal to its launcher (lk_join()).  There it may count as
 *                      the first request, never as the second, because timeout(1) and systemd
 *                      signal whole groups.  timeout(1) also signals the launcher and then its
 *                      group: a signal within a tenth of a second of the first is ignored.
 *   SIGUSR1, SIGUSR2   They are sent to all workers.
 *   output, sockets    See output.h and launch/control/control.h.
 *   the other nodes    See nodes.h.
 *
 * Fault injection (faults.h) also runs here.  With --on-failure continue a worker's failure is
 * handled by rebuild.c instead.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/file.h"
#include "base/pidfd.h"
#include "launch/job/executor.h"
#include "launch/job/faults.h"
#include "launch/job/forward.h"
#include "launch/job/nodes.h"

static const double LOOK_SECONDS = 0.1; /* seconds between wake-ups during a rebuild */

static bool is_running(const lki_worker *worker)
{
    return worker->pid > 0 && worker->order == 0;
}

static bool has_joined(const lki_job *job, uint32_t i)
{
    lki_rank_view view;

    lki_control_view(job->control, lki_rank_of_worker(job, i), &view);
    return view.state != LKI_RANK_ABSENT;
}

static bool any_joined(const lki_job *job)
{
    uint32_t i = 0;

    while (i < job->count && !(is_running(&job->workers[i]) && has_joined(job, i)))
        i++;
    return i < job->count;
}

/* Sends a signal to a running worker.  The worker's pid cannot be reused before this process reaps
 * the worker. */
static void send_signal(const lki_job *job, const lki_worker *worker, int number)
{
    if (is_running(worker) && !lki_is_foreign(job))
        job->executor->signal(job, (uint32_t)(worker - job->workers), number);
    if (is_running(worker) && lki_is_foreign(job) && job->force_signal != 0)
        (void)lki_pidfd_send(worker->pidfd, number, NULL);
}

static double grace_seconds(const lki_job *job)
{
    return (job->options->grace_ms != 0 ? job->options->grace_ms : 1000) * 1e-3;
}

/* ---- Ending the job ---------------------------------------------------------------------- */

static void signal_everyone(lki_job *job, int number)
{
    for (uint32_t i = 0; i < job->count; i++) {
        job->workers[i].by_us = job->workers[i].by_us || is_running(&job->workers[i]);
        send_signal(job, &job->workers[i], number);
    }
}

void lki_job_fail(lki_job *job)
{
    if (job->kill_at > 0)
        return;
    double now        = lki_seconds();
    job->terminate_at = now + grace_seconds(job) / 2;
    job->kill_at      = now + grace_seconds(job);
    for (uint32_t i = 0; i < job->count; i++)
        if (is_running(&job->workers[i]) && !has_joined(job, i)) {
            job->workers[i].by_us = true;
            send_signal(job, &job->workers[i], SIGTERM);
        }
}

static void force_end(lki_job *job, int number)
{
    if (job->force_signal != 0)
        return;
    job->force_signal = number;
    job->terminate_at = lki_seconds();
    job->kill_at      = job->terminate_at + grace_seconds(job);
}

static void end_by_time(lki_job *job)
{
    double now = lki_seconds();

    if (job->heed_at > 0 && now >= job->heed_at) {
        job->heed_at  = 0;
        job->unheeded = any_joined(job) && !lki_control_stop_heeded(job->control);
        if (job->unheeded)
            force_end(job, job->stop_signal);
    }
    if (job->terminate_at > 0 && now >= job->terminate_at) {
        job->terminate_at = 0;
        signal_everyone(job, SIGTERM);
    }
    if (job->kill_at > 0 && now >= job->kill_at) {
        job->kill_at = now + grace_seconds(job); /* a process inside the kernel takes some time to
                                                  * end */
        signal_everyone(job, SIGKILL);
    }
}

bool lki_job_is_stopped(const lki_job *job, uint32_t i)
{
    lki_rank_view view;

    lki_control_view(job->control, lki_rank_of_worker(job, i), &view);
    return view.state != LKI_RANK_FAILED && lki_is_stopped(job->workers[i].pid);
}

/* Kills stopped workers after their peers have timed out.  The stopped workers have caused the
 * timeout, and only SIGKILL ends a stopped process. */
void lki_job_kill_stopped(lki_job *job)
{
    for (uint32_t i = 0; i < job->count; i++) {
        lki_worker *worker = &job->workers[i];
        if (is_running(worker) && lki_job_is_stopped(job, i)) {
            worker->was_stopped = true;
            job->executor->commit(job);
            send_signal(job, worker, SIGKILL);
        }
    }
}

/* ---- Events ------------------------------------------------------------------------------ */

/* Determines how a child ended, without releasing its pid.  Peers may examine that pid until the
 * control memory says that the worker has ended. */
static bool look_how_it_ended(const lki_job *job, lki_worker *worker)
{
    siginfo_t info;

    if (lki_is_foreign(job))
        return true;
    if (!job->executor->look(job, (uint32_t)(worker - job->workers), &info))
        return false;
    if (info.si_code == CLD_EXITED)
        worker->status = info.si_status;
    else
        worker->signal = info.si_status;
    return true;
}

/* Records a worker's end in the control memory, and returns true if that end fails the job.  If the
 * peers have found the worker dead before the launcher did, the group has already failed.  In this
 * case the worker's own death is the cause, so worker->told remains false. */
static bool tell_the_others(lki_job *job, uint32_t i)
{
    lki_worker *worker = &job->workers[i];
    bool        joined = has_joined(job, i);
    uint32_t    rank   = lki_rank_of_worker(job, i);

    if (lki_left_on_request(job, worker)) {
        (void)lki_control_ended(job->control, rank, 0, 0);
        return false;
    }
    if (lki_is_foreign(job)) {
        bool gone      = lki_control_vanished(job->control, rank);
        worker->status = gone ? 1 : 0; /* the actual status is unknown */
        return gone;
    }
    const lki_failure *f = lki_control_failure(job->control);
    worker->told = joined && worker->signal == 0 && f != NULL && f->culprit != rank;
    if (!lki_control_ended(job->control, rank, worker->status, worker->signal))
        return false;
    /* after a request to stop, the end of a worker that had not joined is no failure: the signal
     * ended it; a worker that had joined may have been saving */
    return job->stop_signal == 0 || joined;
}

/* Handles a worker's last messages.  Does not wait until the socket is closed, because a process
 * that the worker has started may still have the socket open. */
static lk_status hear_last_words(lki_job *job, uint32_t i)
{
    struct pollfd ready = {.fd = job->workers[i].socket, .events = POLLIN};
    bool          open  = ready.fd >= 0;

    while (open && poll(&ready, 1, 0) > 0)
        LK_TRY(lki_control_serve(job->control, lki_rank_of_worker(job, i), &open));
    if (!open)
        job->workers[i].socket = -1;
    return LK_OK;
}

static void note_loss(const lki_job *job, uint32_t i)
{
    char line[sizeof ((lk_launch_result *)NULL)->cause];

    if (job->workers[i].by_us) /* the reason was noted before */
        return;
    lki_job_describe(job, i, line, sizeof line);
    lki_job_note_loss(job, "%s", line);
}

/* Ignores a kill that did no harm.  With --on-failure continue, a kill does no harm after the
 * worker has left its group.  With leave_together, a kill does no harm after the end of the job. */
static void forgive(const lki_job *job, uint32_t i)
{
    lki_worker   *worker = &job->workers[i];
    lki_rank_view view;

    lki_control_view(job->control, lki_rank_of_worker(job, i), &view);
    bool left = job->options->on_failure == LK_ON_FAILURE_CONTINUE && view.state == LKI_RANK_LEFT;
    if (worker->signal == SIGKILL && (left || lki_is_complete(job)))
        worker->signal = 0;
}

/* Handles the failure of worker i. */
static void bear(lki_job *job, uint32_t i)
{
    lki_rank_view view;

    lki_control_view(job->control, lki_rank_of_worker(job, i), &view);
    if (view.status == LK_ETIMEOUT)
        lki_job_kill_stopped(job);
    if (lki_job_survives(job))
        note_loss(job, i);
    else
        lki_job_fail(job);
    if (job->rendezvous != NULL)
        lki_nodes_look(job);
}

static lk_status worker_ended(lki_job *job, uint32_t i)
{
    lki_worker *worker = &job->workers[i];

    if (!look_how_it_ended(job, worker))
        return LK_OK;
    forgive(job, i);
    LK_TRY(hear_last_words(job, i));
    lki_job_lose(job, i);
    bool failed   = tell_the_others(job, i);
    worker->order = ++job->ended;
    (void)close(worker->pidfd);
    worker->pidfd = -1;
    if (job->rendezvous != NULL)
        lki_nodes_ended(job, i);
    if (failed)
        bear(job, i);
    if (job->outside)
        lki_job_fail(job);
    job->executor->commit(job);
    job->executor->reap(job, i);
    return LK_OK;
}

/* Returns true if a signal from process `from` may be a second request to stop.  A worker forwards
 * the signals that it receives.  If Lockstep's launcher has started the workers, the launcher has
 * received the same signal itself.  Under another launcher only workers receive signals, so a
 * second signal from the same worker is a new request. */
static bool may_be_second(lki_job *job, pid_t from)
{
    for (uint32_t i = 0; i < job->count; i++)
        if (job->workers[i].pid == from) {
            bool again             = job->workers[i].asked;
            job->workers[i].asked = true;
            return again && lki_is_foreign(job);
        }
    return true;
}

void lki_job_stop(lki_job *job, int number, bool force, bool deaf)
{
    if (job->outside) { /* no other host needs this host's workers */
        job->stop_signal = number;
        force_end(job, number);
        return;
    }
    if (job->stop_signal == 0) {
        job->stop_signal = number;
        if (job->control == NULL)
            return;
        lki_control_request_stop(job->control);
        job->heed_at = lki_seconds() + grace_seconds(job);
        for (uint32_t i = 0; i < job->count; i++)
            if (!deaf && !has_joined(job, i))
                send_signal(job, &job->workers[i], number);
    }
    if (force)
        force_end(job, number);
}

/* Returns true if this host may leave by itself.  Node 0 may not leave, because it decides which
 * ranks continue. */
static bool may_leave(const lki_job *job, int number)
{
    return number == SIGTERM && job->options->host_leaves && job->stop_signal == 0
           && job->rendezvous != NULL && lki_rendezvous_self(job->rendezvous) != 0
           && lki_job_survives(job);
}

static void leave(lki_job *job)
{
    const lki_node *here = lki_rendezvous_node(job->rendezvous,
                                               lki_rendezvous_self(job->rendezvous));

    job->leaving = true;
    lki_control_request_leave(job->control);
    lki_job_note(job, "host %s (node %u) is asked to leave when the step is over", here->host,
                 lki_rendezvous_self(job->rendezvous));
}

static void asked_to_stop(lki_job *job, const struct signalfd_siginfo *info)
{
    bool from_terminal = info->ssi_code == SI_KERNEL;
    int  number        = (int)info->ssi_signo;
    bool led           = job->host->orders >= 0;
    bool first         = job->asked_at <= 0;
    bool echo          = lki_seconds() - job->asked_at < LKI_ECHO_SECONDS;
    bool second        = may_be_second(job, (pid_t)info->ssi_pid);
    bool force         = !first && !echo && !led && second;

    if (from_terminal && (led || (number == SIGINT && job->signals.interrupt_ignored)))
        return; /* the parent of the emulated hosts has received the signal, too */
    if (!first && !force)
        return;
    if (first)
        job->asked_at = lki_seconds();
    if (first && may_leave(job, number)) {
        leave(job);
        return;
    }
    if (force && job->leaving) { /* the other hosts treat this host as lost */
        force_end(job, number);
        return;
    }
    if (first && from_terminal)
        lki_job_note(job, "the workers are asked to save and end; Ctrl-C again ends them at once");
    lki_job_stop(job, number, force, from_terminal);
    if (job->rendezvous != NULL && !job->outside)
        lki_nodes_stop(job, number, force);
}

static void pass_on_signal(lki_job *job, int number)
{
    for (uint32_t i = 0; i < job->count; i++)
        send_signal(job, &job->workers[i], number);
}

static void obey(lki_job *job)
{
    lki_order order;

    if (recv(job->host->orders, &order, sizeof order, MSG_PEEK) != (ssize_t)sizeof order)
        return;
    if (order.number == SIGUSR1 || order.number == SIGUSR2)
        pass_on_signal(job, order.number);
    else
        lki_job_stop(job, order.number, order.force, order.deaf);
    job->executor->commit(job);
    (void)!recv(job->host->orders, &order, sizeof order, 0);
}

static void take_signals(lki_job *job)
{
    struct signalfd_siginfo info;

    while (job->executor->next_signal(job, &info, sizeof info)) {
        int number = (int)info.ssi_signo;
        if (number != SIGUSR1 && number != SIGUSR2)
            asked_to_stop(job, &info);
        else
            pass_on_signal(job, number);
        job->executor->commit(job);
        job->executor->signal_taken(job);
    }
}

void lki_job_listen(lki_job *job)
{
    struct pollfd orders = {.fd = job->host->orders, .events = POLLIN};

    take_signals(job);
    if (poll(&orders, 1, 0) == 1 && orders.revents != 0)
        obey(job);
}

static lk_status serve_sockets(lki_job *job)
{
    bool served = job->executor->resumes(job);

    for (uint32_t i = 0; i < job->count; i++) {
        bool open = true;
        if (job->workers[i].socket < 0 || lki_place(job, i, LKI_OF_SOCKET)->revents == 0)
            continue;
        LK_TRY(lki_control_serve(job->control, lki_rank_of_worker(job, i), &open));
        if (!open)
            job->workers[i].socket = -1;
        served = true;
    }
    if (served && job->rendezvous != NULL)
        lki_nodes_look(job);
    return LK_OK;
}

/* ---- The loop ---------------------------------------------------------------------------- */

/* Fills in job->polled. poll() ignores the negative descriptors of absent sources. */
static void prepare(lki_job *job)
{
    job->polled[LKI_AT_SIGNALS] = (struct pollfd){.fd = job->signals.fd, .events = POLLIN};
    job->polled[LKI_AT_NODES] = (struct pollfd){
        .fd     = job->rendezvous != NULL ? job->executor->events_fd(job) : -1,
        .events = POLLIN};
    job->polled[LKI_AT_ORDERS] = (struct pollfd){.fd = job->host->orders, .events = POLLIN};
    job->polled[LKI_AT_OTHER]  = (struct pollfd){.fd = -1};
    for (uint32_t i = 0; i < job->count; i++) {
        const lki_worker *worker   = &job->workers[i];
        *lki_place(job, i, LKI_OF_PIDFD)  = (struct pollfd){.fd = worker->pidfd, .events = POLLIN};
        *lki_place(job, i, LKI_OF_SOCKET) = (struct pollfd){.fd = worker->socket, .events = POLLIN};
    }
    lki_forward_prepare(job);
}

/* Returns the number of milliseconds until the next planned action, rounded up; -1 if there is
 * none. */
static int time_left(const lki_job *job)
{
    double at   = job->terminate_at > 0 ? job->terminate_at : job->kill_at;
    double fault = lki_faults_next(job), longest = job->executor->turn_seconds(job);

    if (fault > 0 && (at <= 0 || fault < at))
        at = fault;
    if (job->heed_at > 0 && (at <= 0 || job->heed_at < at))
        at = job->heed_at;
    if (lki_rebuild_pending(job) && (at <= 0 || lki_seconds() + LOOK_SECONDS < at))
        at = lki_seconds() + LOOK_SECONDS;
    if (job->executor->resumes(job))
        return 0;
    if (job->alone && (at <= 0 || lki_seconds() + LKI_ALONE_SECONDS < at))
        at = lki_seconds() + LKI_ALONE_SECONDS;
    if (longest > 0 && (at <= 0 || lki_seconds() + longest < at))
        at = lki_seconds() + longest;
    if (at <= 0)
        return -1;
    double left = (at - lki_seconds()) * 1e3;
    return left > 0 ? (int)left + 1 : 0;
}

static lk_status poll_once(lki_job *job, int timeout_ms)
{
    nfds_t places = LKI_AT_WORKERS + (nfds_t)job->count * LKI_PER_WORKER;

    prepare(job);
    if (poll(job->polled, places, timeout_ms) >= 0)
        return LK_OK;
    for (nfds_t i = 0; i < places; i++)
        job->polled[i].revents = 0;
    if (errno == EINTR)
        return LK_OK;
    return lk_fail(LK_ENOMEM, "cannot watch the workers: poll: %s", strerror(errno));
}

static lk_status turn(lki_job *job)
{
    LK_TRY(poll_once(job, time_left(job)));
    take_signals(job);
    if (job->polled[LKI_AT_ORDERS].revents != 0)
        obey(job);
    LK_TRY(serve_sockets(job));
    if (job->polled[LKI_AT_NODES].revents != 0 ||
        (job->rendezvous != NULL && job->executor->resumes(job)))
        LK_TRY(lki_nodes_serve(job));
    lki_forward_move(job);
    for (uint32_t i = 0; i < job->count; i++)
        if (job->workers[i].pidfd >= 0 && lki_place(job, i, LKI_OF_PIDFD)->revents != 0)
            LK_TRY(worker_ended(job, i));
    lki_rebuild_turn(job);
    lki_late_host_turn(job);
    lki_replace_turn(job);
    lki_faults_turn(job);
    lki_stopped_turn(job);
    end_by_time(job);
    job->executor->turned(job);
    return LK_OK;
}

lk_status lki_watch(lki_job *job)
{
    while (job->ended < job->started)
        LK_TRY(turn(job));
    lki_faults_report(job);
    return LK_OK;
}

lk_status lki_watch_farewell(lki_job *job)
{
    lki_rendezvous_leave(job->rendezvous);
    while (!job->over && !lki_rendezvous_has_left(job->rendezvous))
        LK_TRY(turn(job));
    return LK_OK;
}

lk_status lki_watch_others(lki_job *job)
{
    return job->over ? LK_OK : turn(job);
}
