/* nodes.c -- communication of this launcher with the launchers of the other nodes.
 *
 * The death of a worker or a launcher concerns all nodes.  A launcher reports the events of its own
 * host, and treats reports of other nodes like local events.  A verdict fails the group in its own
 * control memory, which wakes its workers with the same text.  A request to stop is forwarded to
 * the workers.  Addresses of remote workers are written into the control memory, in the records of
 * their ranks.
 */
#include "launch/job/nodes.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "launch/job/executor.h"

static const double REFUSED_SECONDS = 10; /* interval in seconds of notes about refused
                                           * connections */

enum { LAST_CALL_MS = 5000 };
enum { SILENCE_MS_MIN = 1000, SILENCE_MS_MAX = 10000, WEIGHT_FAILED = LKI_WEIGHT_LOST + 1 };

const lki_node *lki_nodes_self(const lki_job *job)
{
    return lki_rendezvous_node(job->rendezvous, lki_rendezvous_self(job->rendezvous));
}

/* Prints notes about refused connections: one about the first refusal at once, further notes at
 * intervals of REFUSED_SECONDS.  With `last`, prints a note even before the interval has passed. */
void lki_nodes_note_refused(lki_job *job, bool last)
{
    uint32_t count = lki_rendezvous_refused(job->rendezvous);
    double   now   = lki_seconds();

    if (count == job->refused
        || (!last && job->refused_at > 0 && now - job->refused_at < REFUSED_SECONDS))
        return;
    lki_job_note(job, "the rendezvous has refused %u connection%s; the last to go: %.300s", count,
                 count == 1 ? "" : "s", lki_rendezvous_last_refused(job->rendezvous));
    job->refused    = count;
    job->refused_at = now;
}

/* ---- Meeting ----------------------------------------------------------------------------- */

lk_status lki_nodes_check_workers(const lki_job *job)
{
    for (uint32_t i = 0; i < job->count; i++) {
        const lki_worker *worker = &job->workers[i];
        struct pollfd     ended  = {.fd = worker->pidfd, .events = POLLIN};
        if (worker->pidfd >= 0 && poll(&ended, 1, 0) > 0)
            return lk_fail(LK_EPEER, "rank %u (pid %d) has ended before all had met",
                           job->host->first + i, (int)worker->pid);
    }
    return LK_OK;
}

/* Sleeps until the rendezvous has an event.  Before the job has begun, a request to stop ends the
 * wait.  The end of a worker that another launcher has started also ends the wait. */
static lk_status await_news(lki_job *job)
{
    enum { SIGNALS, NEWS, ORDERS, WORKERS };
    struct pollfd *polled = job->polled;

    polled[SIGNALS] = (struct pollfd){.fd = job->signals.fd, .events = POLLIN};
    polled[NEWS]    = (struct pollfd){.fd = lki_rendezvous_fd(job->rendezvous), .events = POLLIN};
    polled[ORDERS]  = (struct pollfd){.fd = job->host->orders, .events = POLLIN};
    for (uint32_t i = 0; i < job->count; i++)
        polled[WORKERS + i] = (struct pollfd){.fd = job->workers[i].pidfd, .events = POLLIN};
    if (poll(polled, WORKERS + (nfds_t)job->count, -1) < 0 && errno != EINTR)
        return lk_fail(LK_ENOMEM, "cannot wait for the other nodes: poll: %s", strerror(errno));
    lki_job_listen(job);
    LK_TRY(lki_nodes_check_workers(job));
    if (job->stop_signal == 0)
        return LK_OK;
    return lk_fail(LK_ESTOPPED, "SIG%s came while waiting for the other nodes",
                   sigabbrev_np(job->stop_signal));
}

uint32_t lki_nodes_silence_ms(uint32_t timeout_ms)
{
    if (timeout_ms == 0)
        timeout_ms = LKI_TIMEOUT_MS;
    return (uint32_t)lki_min(lki_max(timeout_ms, SILENCE_MS_MIN), SILENCE_MS_MAX);
}

/* Returns the time for which node 0 waits for missing hosts once enough have connected.  The time
 * is 0 for emulated hosts, because late emulated hosts are started only after the job has begun. */
static uint32_t last_call_ms(const lki_job *job)
{
    uint32_t join_ms = job->options->join_ms;
    if (job->host->name != NULL)
        return 0;
    return join_ms != 0 && join_ms < LAST_CALL_MS ? join_ms : LAST_CALL_MS;
}

/* Returns the number of hosts that take part from the beginning.  The other hosts may join
 * later. */
static uint32_t count_present(const lki_job *job)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < lki_rendezvous_nodes(job->rendezvous); i++)
        count += lki_rendezvous_node(job->rendezvous, i)->host[0] != '\0';
    return count;
}

static void note_absent(const lki_job *job)
{
    uint32_t all = lki_rendezvous_nodes(job->rendezvous), here = count_present(job);
    bool     tells = job->host->name == NULL || lki_rendezvous_self(job->rendezvous) == 0;

    if (here < all && tells && lki_rendezvous_standing(job->rendezvous) == NULL)
        lki_job_note(job, "the job begins with %u of %u hosts; others may join it until it ends",
                     here, all);
}

lk_status lki_nodes_meet(lki_job *job)
{
    const lk_launch_options *o         = job->options;
    char                     host[256] = "";
    lki_event                event     = {.kind = LKI_EVENT_NONE};

    if (job->host->name != NULL)
        (void)snprintf(host, sizeof host, "%s", job->host->name);
    else if (gethostname(host, sizeof host - 1) != 0 || host[0] == '\0')
        (void)snprintf(host, sizeof host, "?");
    lki_rendezvous_options how = {
        .endpoint   = o->rendezvous,
        .listener   = job->host->listener,
        .host       = host,
        .nodes      = lki_is_foreign(job) ? 0 : o->nodes,
        .least      = o->hosts_least,
        .wait_ms    = last_call_ms(job),
        .workers    = o->workers,
        .node       = o->node,
        .world      = job->host->world,
        .first      = job->host->first,
        .join_ms    = o->join_ms,
        .silence_ms = lki_nodes_silence_ms(o->timeout_ms),
        .port       = lki_port_free(),
        .key        = o->insecure ? NULL : o->job_key,
        .goes_on    = o->on_failure == LK_ON_FAILURE_CONTINUE,
        .together   = o->leave_together,
        .returns    = o->host_returns,
        .settings   = o->settings,
    };
    LK_TRY(lki_rendezvous_open(&job->rendezvous, &how));
    while (event.kind != LKI_EVENT_MET) {
        LK_TRY(lki_rendezvous_next(job->rendezvous, &event));
        lki_nodes_note_refused(job, false);
        if (event.kind == LKI_EVENT_NONE)
            LK_TRY(await_news(job));
    }
    job->roster = lki_nodes_self(job)->roster;
    note_absent(job);
    if (job->host->met != NULL)
        job->host->met(job->host->reports);
    return LK_OK;
}

/* Writes the key for the workers into a sealed memfd, because any process of the user can read an
 * environment. */
static lk_status key_open(lki_job *job)
{
    const unsigned char *key = job->options->job_key;

    if (job->options->insecure)
        return LK_OK;
    job->key_fd = memfd_create("lockstep-key", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (job->key_fd < 0 || write(job->key_fd, key, LK_JOB_KEY_BYTES) != LK_JOB_KEY_BYTES)
        return lk_fail(LK_EIO, "cannot hand the job key on: %s", strerror(errno));
    (void)fcntl(job->key_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
    return LK_OK;
}

lk_status lki_nodes_prepare(lki_job *job)
{
    lki_job_facts facts = {.epoch = 0};

    for (uint32_t i = 0; i < lki_rendezvous_nodes(job->rendezvous); i++) {
        const lki_node *node = lki_rendezvous_node(job->rendezvous, i);
        lki_control_name_host(job->control, i, node->roster.first, node->roster.count, node->host);
        if (node->host[0] == '\0')
            lki_control_leave_out(job->control, node->roster.first, node->roster.count);
    }
    job->begun = count_present(job) == 1; /* no addresses of other hosts are needed */
    memcpy(facts.id, lki_rendezvous_job(job->rendezvous), sizeof facts.id);
    (void)snprintf(facts.listen, sizeof facts.listen, "%s",
                   lki_rendezvous_address(job->rendezvous));
    lki_control_set_job(job->control, &facts);
    return key_open(job);
}

/* Fills in the facts about the nodes.  If node 0 listens on all addresses, the master address is
 * the address by which the other nodes reach node 0. */
void lki_nodes_describe(lki_job *job, lki_worker_facts *facts)
{
    static const char *const everywhere[] = {"0.0.0.0", "::"};
    char                     port[16];

    facts->node    = lki_rendezvous_self(job->rendezvous);
    facts->port    = lki_rendezvous_port(job->rendezvous);
    facts->address = job->master;
    if (lki_address_split(job->options->rendezvous + strlen("tcp://"), job->master, port) != LK_OK)
        job->master[0] = '\0'; /* cannot happen: this address has led to node 0 */
    for (size_t i = 0; i < 2; i++)
        if (strcmp(job->master, everywhere[i]) == 0)
            (void)snprintf(job->master, sizeof job->master, "%s",
                           lki_rendezvous_address(job->rendezvous));
}

/* ---- Messages of other nodes ------------------------------------------------------------- */

static bool is_here(const lki_job *job, uint32_t rank)
{
    return rank - job->roster.first < job->roster.count;
}

/* Records the addresses of ranks on other hosts; some may arrive later. */
static void hear_introductions(lki_job *job)
{
    bool all = true;

    if (!lki_rebuild_concerns(job))
        return;
    for (uint32_t rank = 0; rank < job->roster.world; rank++) {
        const lki_introduction *who = job->executor->introduction(job, rank);
        if (!lki_control_is_member(job->control, rank))
            continue;
        if (who->address[0] == '\0')
            all = false;
        else if (!is_here(job, rank))
            lki_control_introduce(job->control, rank, who->pid, who->address);
    }
    lki_control_introduced(job->control);
    job->begun = job->begun || all;
}

/* Returns true if our own workers have already reported the same failure.  This happens if all
 * ranks agreed to end the group. */
static bool is_known(const lki_job *job, const lki_verdict *verdict)
{
    const lki_failure *ours = lki_control_failure(job->control);

    return ours != NULL
           && strncmp(ours->text, verdict->message, sizeof verdict->message - 1) == 0;
}

static void hear_ended(const lki_job *job, const lki_rank_end *end)
{
    if (is_here(job, end->rank))
        return;
    if (end->loss[0] != '\0')
        lki_control_lose(job->control, end->rank, end->loss);
    lki_control_ended_there(job->control, end->rank, end->exit_code, end->signal);
}

/* Marks all ranks of the culprit's host as lost, because that host sends no further reports. */
static void lose_host(const lki_job *job, const lki_verdict *verdict)
{
    for (uint32_t i = 0; i < lki_rendezvous_nodes(job->rendezvous); i++) {
        lki_roster ranks = lki_rendezvous_node(job->rendezvous, i)->roster;
        if (verdict->culprit - ranks.first >= ranks.count)
            continue;
        for (uint32_t rank = ranks.first; rank < ranks.first + ranks.count; rank++)
            lki_control_lose(job->control, rank, verdict->message);
    }
}

/* Handles the failure of the group.  If the job continues, the workers are not ended.  Prints a
 * note, unless the hosts are emulated: then the launcher of the lost worker prints the note. */
static void hear_verdict(lki_job *job, const lki_verdict *verdict)
{
    bool known = is_known(job, verdict);

    job->told = true;
    if (verdict->host)
        lose_host(job, verdict);
    if (verdict->status == LK_ETIMEOUT)
        lki_job_kill_stopped(job);
    if (!lki_job_survives(job) && !lki_is_complete(job))
        lki_job_fail(job);
    else if (job->host->name == NULL && !known)
        lki_job_note(job, "%s", verdict->message);
    lki_control_condemn(job->control, verdict->culprit, verdict->status, verdict->message);
}

/* Handles a late host, whose name may differ from that of the host that it replaces. */
static void hear_awaited(lki_job *job, const lki_event *event)
{
    const lki_node *node = lki_rendezvous_node(job->rendezvous, event->node);
    char            to[24] = "";

    if (event->node == lki_rendezvous_self(job->rendezvous))
        return;
    lki_control_await(job->control, event->waits);
    lki_control_name_host(job->control, event->node, node->roster.first, node->roster.count,
                          event->host);
    if (node->roster.count > 1)
        (void)snprintf(to, sizeof to, " to %u", node->roster.first + node->roster.count - 1);
    if (event->waits && (job->host->name == NULL || lki_rendezvous_self(job->rendezvous) == 0))
        lki_job_note(job, "host %s (node %u, rank%s %u%s) is ready to enter", event->host,
                     event->node, node->roster.count > 1 ? "s" : "", node->roster.first, to);
}

/* Returns true if an event of this kind must be ignored by a host that is not in the group. */
static bool is_for_insiders(const lki_job *job, lki_event_kind kind)
{
    return kind == LKI_EVENT_KNOWN || kind == LKI_EVENT_ASKED || kind == LKI_EVENT_AWAITED ||
           (kind == LKI_EVENT_VERDICT && !job->executor->lost(job));
}

static void hear(lki_job *job, const lki_event *event)
{
    if (job->outside && is_for_insiders(job, event->kind))
        return;
    switch (event->kind) {
    case LKI_EVENT_KNOWN: hear_introductions(job); return;
    case LKI_EVENT_STOP: lki_job_stop(job, event->signal, event->force, false); return;
    case LKI_EVENT_ENDED: hear_ended(job, &event->ended); return;
    case LKI_EVENT_VERDICT:
        hear_verdict(job, &event->verdict);
        return;
    case LKI_EVENT_ASKED: lki_rebuild_asked(job, event->epoch, event->timeout_ms); return;
    case LKI_EVENT_GROUP: lki_rebuild_begin(job, event->epoch, &event->members); return;
    case LKI_EVENT_AWAITED: hear_awaited(job, event); return;
    case LKI_EVENT_OVER:
        job->over    = true;
        job->outcome = event->outcome;
        return;
    case LKI_EVENT_NONE:
    case LKI_EVENT_MET: return;
    }
}

lk_status lki_nodes_serve(lki_job *job)
{
    lki_event event;

    do {
        LK_TRY(job->executor->next_event(job, &event));
        hear(job, &event);
        job->executor->event_taken(job, &event);
    } while (event.kind != LKI_EVENT_NONE && !job->over);
    return LK_OK;
}

/* ---- Messages to the others -------------------------------------------------------------- */

void lki_nodes_speak(const lki_job *job, const lki_saying *what)
{
    lki_rendezvous *r = job->rendezvous;

    switch (what->kind) {
    case LKI_SAY_INTRODUCE: lki_rendezvous_introduce(r, what->workers); return;
    case LKI_SAY_ENDED: lki_rendezvous_ended(r, &what->end); return;
    case LKI_SAY_VERDICT: lki_rendezvous_verdict(r, &what->verdict); return;
    case LKI_SAY_STOP: lki_rendezvous_stop(r, what->stop.number, what->stop.force); return;
    case LKI_SAY_ASKED: lki_rendezvous_asked(r, what->epoch, what->timeout_ms); return;
    case LKI_SAY_GO_ON:
        lki_rendezvous_go_on(r, what->epoch, &what->members,
                             what->admits ? &what->entrants : NULL);
        return;
    case LKI_SAY_KINDS: return;
    }
}

/* Sends the addresses of this host's workers to the other nodes, once every group member on this
 * host listens. */
static void introduce(lki_job *job)
{
    lki_introduction *workers = NULL;
    uint32_t          ready   = 0;
    char              address[LKI_ADDRESS_BYTES];

    while (ready < job->count
           && (!lki_control_is_member(job->control, lki_rank_of_worker(job, ready))
               || lki_control_address(job->control, lki_rank_of_worker(job, ready), address)))
        ready++;
    if (ready < job->count || LKI_NEW(&workers, job->count, "introductions") != LK_OK)
        return;
    for (uint32_t i = 0; i < job->count; i++) {
        workers[i].pid = (int32_t)job->workers[i].pid;
        if (!lki_control_address(job->control, lki_rank_of_worker(job, i), workers[i].address))
            workers[i].address[0] = '\0';
    }
    const lki_saying ours = {.kind    = LKI_SAY_INTRODUCE,
                             .epoch   = job->epoch,
                             .workers = workers};
    job->executor->say(job, &ours);
    lki_free(workers);
    job->introduced = true;
}

void lki_nodes_look(lki_job *job)
{
    lki_saying ours = {.kind = LKI_SAY_VERDICT, .epoch = job->epoch};

    if (job->outside)
        return;
    if (!job->introduced && lki_rebuild_concerns(job))
        introduce(job);
    const lki_failure *f = lki_control_failure(job->control);
    if (job->told || f == NULL)
        return;
    job->told            = true;
    ours.verdict.culprit = f->culprit;
    ours.verdict.status  = f->verdict;
    memcpy(ours.verdict.message, f->text, sizeof ours.verdict.message - 1);
    job->executor->say(job, &ours);
}

void lki_nodes_ended(lki_job *job, uint32_t i)
{
    const lki_worker *worker = &job->workers[i];
    lki_saying        ours   = {.kind  = LKI_SAY_ENDED,
                                .epoch = job->epoch,
                                .end   = {.rank      = lki_rank_of_worker(job, i),
                                          .exit_code = worker->status & 0xff,
                                          .signal    = worker->signal}};

    if (lki_left_on_request(job, worker))
        ours.end.exit_code = 0;
    lki_control_loss(job->control, ours.end.rank, ours.end.loss);
    job->executor->say(job, &ours);
}

void lki_nodes_stop(lki_job *job, int number, bool force)
{
    const lki_saying ours = {.kind  = LKI_SAY_STOP,
                             .epoch = job->epoch,
                             .stop  = {.number = number, .force = force}};
    job->executor->say(job, &ours);
}

/* ---- The end ----------------------------------------------------------------------------- */

/* Reports to the other nodes that this launcher has failed with `why`, which fails the job. */
static lki_outcome say_why_not(lki_job *job, const lk_error *why, int exit_code)
{
    lki_verdict verdict = {.culprit = job->roster.first, .status = LK_EPEER};
    lki_outcome outcome = {.weight = WEIGHT_FAILED, .failed = true, .exit_code = exit_code,
                           .rank   = job->roster.first};

    (void)snprintf(verdict.message, sizeof verdict.message, "host %s (node %u): %.300s",
                   lki_nodes_self(job)->host, lki_rendezvous_self(job->rendezvous), why->message);
    memcpy(outcome.cause, verdict.message, sizeof verdict.message);
    if (!job->told)
        lki_rendezvous_verdict(job->rendezvous, &verdict);
    job->told = true;
    return outcome;
}

static lki_outcome outcome_of(uint32_t weight, const lk_launch_result *result)
{
    lki_outcome outcome = {.weight    = weight,
                           .failed    = result->failed,
                           .exit_code = result->exit_code & 0xff,
                           .signal    = result->signal,
                           .pid       = result->pid,
                           .rank      = result->rank};
    memcpy(outcome.cause, result->cause, sizeof outcome.cause);
    return outcome;
}

/* Returns true if all workers of this host have left on request while other hosts continue. */
static bool has_left(const lki_job *job)
{
    bool left = job->leaving && job->stop_signal == 0;

    for (uint32_t i = 0; left && i < job->count; i++)
        left = lki_left_on_request(job, &job->workers[i]) || job->workers[i].signal != 0;
    return left;
}

/* Returns true if the other hosts continue without this host, which must then leave so that a late
 * host can take its place. */
static bool is_out(const lki_job *job)
{
    bool others  = !job->over && !lki_rendezvous_lost(job->rendezvous);
    bool dropped = job->dropped && job->options->host_returns
                   && lki_rendezvous_self(job->rendezvous) != 0; /* node 0 decides */
    return others && (job->outside || dropped);
}

lk_status lki_nodes_finish(lki_job *job, lk_status st, uint32_t weight, lk_launch_result *result)
{
    lk_error    why     = *lk_error_last();
    lki_outcome outcome = st == LK_OK ? outcome_of(weight, result)
                                      : say_why_not(job, &why, result->exit_code);

    lki_rendezvous_finish(job->rendezvous, &outcome);
    if (st == LK_OK && has_left(job)) {
        if (job->host->left != NULL)
            job->host->left(job->host->reports);
        return lki_watch_farewell(job);
    }
    while (!job->over && !is_out(job))
        LK_TRY(lki_watch_others(job));
    if (is_out(job)) {
        if (job->host->left != NULL)
            job->host->left(job->host->reports);
        LK_TRY(lki_watch_farewell(job));
    }
    if (st != LK_OK)
        return lki_fail_again(&why);
    if (!job->over)
        return LK_OK;
    *result = (lk_launch_result){.exit_code = job->outcome.exit_code,
                                 .failed    = job->outcome.failed,
                                 .lost      = job->outcome.failed &&
                                              lki_was_lost(job, job->outcome.weight,
                                                           job->outcome.signal),
                                 .rank      = job->outcome.rank,
                                 .pid       = job->outcome.pid,
                                 .signal    = job->outcome.signal};
    memcpy(result->cause, job->outcome.cause, sizeof result->cause);
    return LK_OK;
}

void lki_nodes_close(lki_job *job)
{
    char why[LKI_MESSAGE_BYTES];

    if (job->rendezvous != NULL)
        lki_nodes_note_refused(job, true);
    (void)snprintf(why, sizeof why, "node 0 has given up: %.400s", lk_error_last()->message);
    lki_rendezvous_close(job->rendezvous, why);
    job->rendezvous = NULL;
}
