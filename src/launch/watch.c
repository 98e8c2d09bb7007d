/* watch.c -- the launcher's loop: deaths, signals, output, descriptors, and nothing else.
 *
 * One thread sleeps in poll() on everything at once.  What it does about
 *
 *   a worker's end     marks it in the control memory, which wakes its peers at once.  If it
 *                      failed, the job fails: workers that never joined a group cannot know and
 *                      get SIGTERM now; those that did report LK_EPEER by themselves and get
 *                      SIGTERM after half the grace; whoever is left gets SIGKILL at its end.
 *   a first SIGINT,    raises the stop flag for workers that joined, and passes the signal on to
 *   SIGTERM, SIGHUP    those that did not.  The terminal's own Ctrl-C has reached everybody
 *                      already (we are one process group) and is not passed on twice.
 *                      If no worker looks for requests within the grace, none ever will: the
 *                      job ends as after a second one.
 *   a second one       SIGTERM to all, then SIGKILL after the grace.  A lockstep worker that is
 *                      told to stop asks its launcher to (lk_join()); such a request may be the
 *                      first, never the second: `timeout` and systemd signal whole groups.
 *                      `timeout` also sends to us and then to our group, at once: what comes
 *                      within a tenth of a second of the first belongs to it.
 *   SIGUSR1, SIGUSR2   are passed on to all.
 *   output, sockets    see output.h and comm/control.h.
 *   the other nodes    see nodes.h.
 *
 * A plan of blows (blows.h) has its turn as well.
 *
 * Where a job goes on after a failure (on_failure), the first of these is for the others to see to:
 * see rebuild.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "launch/blows.h"
#include "launch/keeper/keeper.h"
#include "launch/lines.h"
#include "launch/nodes.h"

static const double LOOK_SECONDS = 0.1; /* while a group is being made anew */

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

/* A pid stays its own until we reap it, so this cannot hit a stranger. */
static void send_signal(const lki_job *job, const lki_worker *worker, int number)
{
    if (is_running(worker) && !lki_is_foreign(job))
        lki_signal_worker(job, (uint32_t)(worker - job->workers), number);
    if (is_running(worker) && lki_is_foreign(job) && job->force_signal != 0)
        (void)pidfd_send_signal(worker->pidfd, number, NULL, 0);
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
        job->kill_at = now + grace_seconds(job); /* a process inside the kernel may take its time */
        signal_everyone(job, SIGKILL);
    }
}

bool lki_job_is_stopped(const lki_job *job, uint32_t i)
{
    lki_rank_view view;

    lki_control_view(job->control, lki_rank_of_worker(job, i), &view);
    return view.state != LKI_RANK_FAILED && lki_is_stopped(job->workers[i].pid);
}

/* Somebody timed out.  A peer that does not run at all is why; only SIGKILL reaches it. */
void lki_job_kill_stopped(lki_job *job)
{
    for (uint32_t i = 0; i < job->count; i++) {
        lki_worker *worker = &job->workers[i];
        if (is_running(worker) && lki_job_is_stopped(job, i)) {
            worker->was_stopped = true;
            lki_commit(job);
            send_signal(job, worker, SIGKILL);
        }
    }
}

/* ---- What may happen --------------------------------------------------------------------- */

/* Looks how a child ended, without releasing its pid yet: what peers find under that number must
 * not change before the control memory says so. */
static bool look_how_it_ended(const lki_job *job, lki_worker *worker)
{
    siginfo_t info;

    if (lki_is_foreign(job))
        return true;
    if (!lki_look(job, (uint32_t)(worker - job->workers), &info))
        return false;
    if (info.si_code == CLD_EXITED)
        worker->status = info.si_status;
    else
        worker->signal = info.si_status;
    return true;
}

/* Tells the control memory about a worker's end, and says whether it fails the job.  Others may
 * have found it gone before we do: a verdict about itself has not told it of anything. */
static bool tell_the_others(lki_job *job, uint32_t i)
{
    lki_worker *worker = &job->workers[i];
    bool        joined = has_joined(job, i);
    lk_error    error;
    uint32_t    first, rank = lki_rank_of_worker(job, i);

    if (lki_left_on_request(job, worker)) {
        (void)lki_control_ended(job->control, rank, 0, 0);
        return false;
    }
    if (lki_is_foreign(job)) {
        bool gone      = lki_control_vanished(job->control, rank);
        worker->status = gone ? 1 : 0; /* or whatever else: nobody tells us */
        return gone;
    }
    worker->told = joined && worker->signal == 0 &&
                   lki_control_failed(job->control, &first, &error) && first != rank;
    if (!lki_control_ended(job->control, rank, worker->status, worker->signal))
        return false;
    /* One that obeyed a signal passed on to it: its like may still be saving. */
    return job->stop_signal == 0 || joined;
}

/* What it said last.  A process that it has left behind may hold the socket open. */
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

    if (job->workers[i].by_us) /* why has been said */
        return;
    lki_job_describe(job, i, line, sizeof line);
    lki_job_note_loss(job, "%s", line);
}

/* Where losses are borne, one that is killed when it has left its group is none; nor is it when all
 * was done. */
static void forgive(const lki_job *job, uint32_t i)
{
    lki_worker   *worker = &job->workers[i];
    lki_rank_view view;

    lki_control_view(job->control, lki_rank_of_worker(job, i), &view);
    bool left = job->options->on_failure == LK_ON_FAILURE_CONTINUE && view.state == LKI_RANK_LEFT;
    if (worker->signal == SIGKILL && (left || lki_is_complete(job)))
        worker->signal = 0;
}

/* Worker i has failed. */
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
    lki_commit(job);
    lki_reap(job, i);
    return LK_OK;
}

/* Whether a request from there may be one more after the first.  A worker passes on what it gets:
 * under us that is what we got as well; another launcher tells the workers alone, each of them once
 * for each request. */
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
    if (job->outside) { /* nobody needs its workers */
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

/* Node 0 cannot leave: it decides who goes on. */
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
        return; /* it has reached the launcher above as well */
    if (!first && !force)
        return;
    if (first)
        job->asked_at = lki_seconds();
    if (first && may_leave(job, number)) {
        leave(job);
        return;
    }
    if (force && job->leaving) { /* the others lose it */
        force_end(job, number);
        return;
    }
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
    lki_commit(job);
    (void)!recv(job->host->orders, &order, sizeof order, 0);
}

static void take_signals(lki_job *job)
{
    struct signalfd_siginfo info;

    while (lki_next_signal(job, &info, sizeof info)) {
        int number = (int)info.ssi_signo;
        if (number != SIGUSR1 && number != SIGUSR2)
            asked_to_stop(job, &info);
        else
            pass_on_signal(job, number);
        lki_commit(job);
        lki_signal_taken(job);
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
    bool served = lki_has_just_taken_over(job);

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

/* poll() overlooks negative descriptors, which is how what is absent or unwanted is said. */
static void prepare(lki_job *job)
{
    job->polled[LKI_AT_SIGNALS] = (struct pollfd){.fd = job->signals.fd, .events = POLLIN};
    job->polled[LKI_AT_NODES] = (struct pollfd){
        .fd     = job->rendezvous != NULL ? lki_post_fd(job) : -1,
        .events = POLLIN};
    job->polled[LKI_AT_ORDERS] = (struct pollfd){.fd = job->host->orders, .events = POLLIN};
    job->polled[LKI_AT_OTHER]  = (struct pollfd){.fd = -1};
    for (uint32_t i = 0; i < job->count; i++) {
        const lki_worker *worker   = &job->workers[i];
        *lki_place(job, i, LKI_OF_PIDFD)  = (struct pollfd){.fd = worker->pidfd, .events = POLLIN};
        *lki_place(job, i, LKI_OF_SOCKET) = (struct pollfd){.fd = worker->socket, .events = POLLIN};
    }
    lki_lines_prepare(job);
}

/* Milliseconds until something is planned, rounded up; -1 = nothing is. */
static int time_left(const lki_job *job)
{
    double at   = job->terminate_at > 0 ? job->terminate_at : job->kill_at;
    double blow = lki_blows_next(job);

    if (blow > 0 && (at <= 0 || blow < at))
        at = blow;
    if (job->heed_at > 0 && (at <= 0 || job->heed_at < at))
        at = job->heed_at;
    if (lki_rebuild_pending(job) && (at <= 0 || lki_seconds() + LOOK_SECONDS < at))
        at = lki_seconds() + LOOK_SECONDS;
    if (lki_has_just_taken_over(job))
        return 0;
    if (job->alone && (at <= 0 || lki_seconds() + LKI_ALONE_SECONDS < at))
        at = lki_seconds() + LKI_ALONE_SECONDS;
    if (lki_is_coordinator(job) && (at <= 0 || lki_seconds() + lki_turn_seconds(job) < at))
        at = lki_seconds() + lki_turn_seconds(job);
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
        (job->rendezvous != NULL && lki_has_just_taken_over(job)))
        LK_TRY(lki_nodes_serve(job));
    lki_lines_move(job);
    for (uint32_t i = 0; i < job->count; i++)
        if (job->workers[i].pidfd >= 0 && lki_place(job, i, LKI_OF_PIDFD)->revents != 0)
            LK_TRY(worker_ended(job, i));
    lki_rebuild_turn(job);
    lki_outside_turn(job);
    lki_replace_turn(job);
    lki_blows_turn(job);
    lki_alone_turn(job);
    end_by_time(job);
    lki_turned(job);
    return LK_OK;
}

lk_status lki_watch(lki_job *job)
{
    while (job->ended < job->started)
        LK_TRY(turn(job));
    lki_blows_report(job);
    lki_lines_finish(job);
    take_signals(job); /* one may have cut the output short */
    return LK_OK;
}

lk_status lki_watch_farewell(lki_job *job)
{
    while (!job->over && !lki_rendezvous_has_told(job->rendezvous))
        LK_TRY(turn(job));
    return LK_OK;
}

lk_status lki_watch_others(lki_job *job)
{
    return job->over ? LK_OK : turn(job);
}
