/* apply.c -- applies gradients in the order of the schedule, one rank at a time.
 *
 * A rank that has stored a gradient, or finds that the next one is there, tries to become the
 * applier.  It copies the current version and states, updates the copies by the step of ddp, and
 * publishes them.  So each version is made from the one before it, whoever makes it.
 *
 * No gradient is overlooked: a rank stores its gradient and then reads who applies, and the applier
 * gives up its place and then looks for the next gradient once more.  These four operations are
 * sequentially consistent, so at least one of the two ranks sees what the other has written.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"
#include "comm/worker.h"
#include "device/reduce.h"
#include "parallel/strategies/shards.h"
#include "parallel/versions/internal.h"

void lki_versions_changed(const lki_versions *v)
{
    lki_comm_wake_word(&v->common->changes);
}

/* ---- The place of the applier ------------------------------------------------------------ */

bool lki_become_applier(const lk_parallel *parallel)
{
    uint32_t none = 0;
    return atomic_compare_exchange_strong(&parallel->versions->common->applier, &none,
                                          parallel->rank + 1);
}

static void step_down(const lki_versions *v)
{
    atomic_store(&v->common->applier, 0);
    lki_versions_changed(v);
}

void lki_fail_all(const lk_parallel *parallel, uint64_t task)
{
    const lki_versions *v = parallel->versions;
    const lk_error why    = *lk_error_last();
    const uint32_t first  = (uint32_t)(task % v->options.groups) * v->width;
    char           to[40] = "";
    uint32_t       none   = LKI_FAILURE_NONE;
    if (lki_comm_has_failed(parallel->comm))
        return;
    if (v->width > 1)
        (void)snprintf(to, sizeof to, "s %u to %u", first, first + v->width - 1);
    else
        (void)snprintf(to, sizeof to, " %u", first);
    (void)lk_fail(why.status, "virtual worker%s: %s", to, why.message);
    if (!atomic_compare_exchange_strong(&v->common->failed, &none, LKI_FAILURE_BEGUN))
        return; /* ranks that update shards can fail at the same time: the first one counts */
    v->common->failure       = *lk_error_last();
    v->common->failure.where = NULL; /* other processes cannot read it */
    atomic_store(&v->common->failed, LKI_FAILURE_KNOWN);
}

/* ---- The gradients of a version ---------------------------------------------------------- */

static bool all_done(const lki_versions *v, uint64_t at)
{
    for (uint32_t i = 0; i < v->options.aggregate; i++)
        if (!lki_claim_is(v, at + i, LKI_CLAIM_DONE))
            return false;
    return true;
}

/* Fills v->sorted with the `count` gradients from number `at` on, by the numbers of their tasks. */
static void sort_by_task(const lki_versions *v, uint64_t at, uint32_t count)
{
    uint64_t *sorted = v->sorted;
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t task  = lki_task_at(v, at + i)->task;
        uint32_t       place = i;
        while (place > 0 && lki_task_at(v, sorted[place - 1])->task > task) {
            sorted[place] = sorted[place - 1];
            place--;
        }
        sorted[place] = at + i;
    }
}

/* Returns the memory for the sum of a version's messages, which the update changes: that of the
 * first message, unless messages may be on their way to other hosts. */
static float *sum_of(const lki_versions *v, uint64_t at)
{
    const uint32_t first = v->place_of[at % v->window];
    const bool     sent  = lki_has_hosts(v) &&
                      (v->options.aggregate > 1 || atomic_load(&v->taken[first]) > 1);
    return lki_versions_message(v, sent ? v->message_count : first);
}

/* Adds the messages of a version, in the order of their tasks, by the canonical tree. */
static lki_gradients add_messages(const lki_versions *v, uint64_t at)
{
    const uint32_t     count = v->options.aggregate;
    const lk_parallel *model = v->model;
    const float       *first = lki_versions_message(v, v->place_of[at % v->window]);
    float             *sum   = sum_of(v, at);
    atomic_store(&v->common->spent, at + 1);
    atomic_signal_fence(memory_order_seq_cst); /* before any message changes: see survive.c */
    sort_by_task(v, at, count);
    for (uint32_t i = 0; i < count; i++)
        v->inputs[i] = (lki_tree_input){
            i, 1, lki_versions_message(v, v->place_of[v->sorted[i] % v->window])
        };
    if (count > 1)
        lki_tree_sum_f32(LK_F32, count, v->inputs, count, model->width, sum);
    else if (sum != first)
        memcpy(sum, first, model->width * sizeof *sum);
    return (lki_gradients){ .gradients = sum, .states = sum + model->layout->grad_elements };
}

/* Writes the sums of the reports of a version's gradients to the model's reports. */
static void add_reports(lki_versions *v, uint64_t at)
{
    lk_parallel *model = v->model;
    memset(model->reports, 0, model->leaves * model->report_bytes);
    for (uint32_t leaf = 0; leaf < v->width; leaf++) {
        lki_report *sum = lki_report_of(model, leaf);
        sum->micros     = model->micro_count;
        for (uint32_t i = 0; i < v->options.aggregate; i++) {
            const lki_report *one = lki_versions_report(v, at + i, leaf);
            sum->loss += one->loss;
            sum->count += one->count;
            for (uint32_t k = 0; k < model->micro_count; k++)
                sum->samples[k] += one->samples[k];
        }
    }
}

/* Prepares the model for the update that makes a version of the gradients from number `at` on. */
static void begin_update(lki_versions *v, uint64_t at)
{
    lk_parallel            *model = v->model;
    const lki_group_task   *task  = lki_task_at(v, at);
    add_reports(v, at);
    model->step          = at / v->options.aggregate;
    model->now.named     = task->task / v->options.groups + 1;
    model->now.micros    = model->micro_count;
    model->now.seed      = 1;
    model->effects.first = (uint32_t)(task->task % v->options.groups) * v->width;
    model->clip.compensation = v->options.compensation;
    if (v->options.compensation > 0)
        model->clip.read = lki_versions_params(v, lki_versions_find(v, task->reads));
}

static uint64_t staleness_of(const lki_versions *v, uint64_t at)
{
    return at / v->options.aggregate - lki_task_at(v, at)->reads;
}

/* Returns the factor of the learning rate of a version. */
static double rate_factor(const lki_versions *v, uint64_t at)
{
    double sum = 0;
    for (uint32_t i = 0; i < v->options.aggregate; i++) {
        const uint64_t staleness = staleness_of(v, at + i);
        sum += 1.0 / (double)(staleness > 1 ? staleness : 1);
    }
    return v->options.rate_by_staleness ? sum / v->options.aggregate : 1;
}

/* ---- A version --------------------------------------------------------------------------- */

/* The first update begins the means otherwise, but a version without samples has none. */
void lki_begin_means(lk_parallel *model, size_t first, size_t end, bool running)
{
    const lki_layout *layout = model->layout;
    if (model->optimizer.ema <= 0)
        return;
    float *means = model->optimizer_state[lk_optimizer_state_count(&model->optimizer) - 1];
    for (size_t i = first; i < end; i++) {
        const lki_param_span *span = &layout->spans[i];
        memcpy(means + span->shard_at, model->params + span->at, span->count * sizeof *means);
    }
    if (running)
        memcpy(model->running.mean, model->running.values, model->state_width * sizeof *means);
}

static lk_status update(lk_parallel *parallel, uint64_t at, const lki_gradients *sums,
                        lk_step_result *result)
{
    lki_versions  *v       = parallel->versions;
    const uint64_t version = at / v->options.aggregate;
    const uint32_t from    = lki_versions_find(v, version);
    const uint32_t to      = lki_versions_free_buffer(v);

    lki_versions_copy(v, from, version, to);
    lki_versions_show(v, to, version + 1);
    begin_update(v, at);
    LK_TRY(lki_step_apply(v->model, sums, v->lr * rate_factor(v, at), result));
    if (result->skipped && version == 0)
        lki_begin_means(v->model, 0, v->model->layout->span_count, true);
    atomic_store(&v->live[to].tag, version + 2);
    return LK_OK;
}

uint32_t lki_staleness_bin(uint64_t staleness)
{
    uint32_t bin = 0;
    for (; staleness > 0 && bin + 1 < LK_STALENESS_BINS; staleness /= 2)
        bin++;
    return bin;
}

/* Sums up the versions of the step that ends before gradient number `end`. */
static lki_step_sums sum_up(const lki_versions *v, uint64_t end)
{
    const uint32_t count = v->options.aggregate;
    lki_step_sums  sums  = { .squares = 0 };
    for (uint64_t at = end - v->options.groups; at < end; at++) {
        const uint64_t staleness = staleness_of(v, at);
        const double   norm      = at % count == 0 ? v->norms[at / count % v->window] : 0;
        sums.squares += norm * norm;
        sums.staleness += staleness;
        sums.staleness_max = (uint32_t)lki_max(sums.staleness_max, staleness);
        sums.staleness_bins[lki_staleness_bin(staleness)]++;
        sums.dropped += lki_task_at(v, at)->dropped;
    }
    return sums;
}

/* Notes that a step ends now, and returns the mean time of the last ones. */
static double pace_of(lki_common *common, uint64_t step)
{
    const uint64_t count = lki_min(LKI_PACED, step - common->first);
    double        *ended = &common->ended[step % (LKI_PACED + 1)];
    *ended               = lki_seconds();
    return count == 0 ? 0
                      : (*ended - common->ended[(step - count) % (LKI_PACED + 1)]) / (double)count;
}

void lki_end_step(const lk_parallel *parallel, uint64_t end, const lki_step_sums *sums)
{
    const lki_versions *v        = parallel->versions;
    const uint32_t      groups   = v->options.groups;
    const uint32_t      versions = groups / v->options.aggregate; /* of the step */
    lki_common         *common   = v->common;
    const uint32_t      each     = v->sharded.count > 0 ? v->sharded.count : 1;
    lki_outcome        *out      = &v->outcomes[(end / groups - 1) % LKI_OUTCOMES];

    *out = (lki_outcome){ .async = { .version        = end / v->options.aggregate,
                                     .schedule_hash  = lki_schedule_hash(v, end),
                                     .staleness_mean = (double)sums->staleness / groups / each,
                                     .staleness_max  = sums->staleness_max,
                                     .dropped        = sums->dropped,
                                     .waited = 1e-6 * (double)atomic_exchange(&common->waited, 0),
                                     .seconds = pace_of(common, end / groups - 1) } };
    memcpy(out->async.staleness_bins, sums->staleness_bins, sizeof sums->staleness_bins);
    sort_by_task(v, end - groups, groups);
    for (uint32_t leaf = 0; leaf < parallel->leaves; leaf++) {
        const lki_report *one =
            lki_versions_report(v, v->sorted[leaf / v->width], leaf % v->width);
        v->losses[leaf] = one->loss;
        out->result.count += one->count;
        out->result.hits += one->hits;
    }
    if (out->result.count > 0)
        out->result.loss = lki_tree_sum_f64(v->losses, parallel->leaves) /
                           (double)out->result.count;
    out->result.grad_norm  = sqrt(sums->squares / versions);
    out->result.duplicated = atomic_exchange(&common->copied, 0) * v->width;
    for (uint32_t r = 0; r < parallel->ranks && !lki_has_hosts(v); r++)
        out->heard = (uint32_t)lki_max(out->heard, atomic_load(&v->said[r]));
    if (lki_has_hosts(v))
        out->heard = lki_hosts_heard(v, end);
}

/* Returns true if a task in flight or to come needs a version when `end` gradients are applied. */
static bool is_needed(const lk_parallel *parallel, uint64_t version, uint64_t end)
{
    const lki_versions *v = parallel->versions;
    if (version == end / v->options.aggregate || lki_late_needs(v, parallel->ranks, version))
        return true;
    for (uint32_t g = 0; v->arrivals != NULL && !lki_has_hosts(v) && g < v->options.groups; g++)
        if (v->doing[g].state != LKI_GROUP_FREE && v->doing[g].reads == version)
            return true;
    return v->now.applied == end && lki_task_schedule_needs(&v->now, version);
}

void lki_free_versions(const lk_parallel *parallel, uint64_t end)
{
    lki_versions *v = parallel->versions;
    if (lki_has_hosts(v))
        lki_hosts_advance(v, &v->now, end);
    else if (v->arrivals == NULL || end <= v->arrivals->replayed)
        lki_task_schedule_advance(&v->now, end);
    for (uint32_t i = 0; i < v->live_count; i++) {
        const uint64_t tag = atomic_load(&v->live[i].tag);
        if (tag > 0 && !is_needed(parallel, tag - 1, end))
            atomic_store(&v->live[i].tag, 0);
    }
}

/* Frees the messages of a version. */
static void free_messages(lki_versions *v, uint64_t at)
{
    for (uint32_t i = 0; i < v->options.aggregate; i++) {
        const uint32_t place = v->place_of[(at + i) % v->window];
        if (place != LKI_NO_BUFFER)
            (void)atomic_fetch_sub(&v->taken[place], 1);
    }
}

/* Makes the next version, of the gradients from number `at` on.  Called by the applier only.  What
 * is needed to make it again is freed after it is published. */
static lk_status make_version(lk_parallel *parallel, uint64_t at, const lki_gradients *sums)
{
    lki_versions  *v   = parallel->versions;
    const uint64_t end = at + v->options.aggregate;
    lk_step_result result;

    LK_TRY(update(parallel, at, sums, &result));
    v->norms[at / v->options.aggregate % v->window] = result.grad_norm;
    if (end % v->options.groups == 0) {
        const lki_step_sums of_step = sum_up(v, end);
        lki_end_step(parallel, end, &of_step);
    }
    if (v->arrivals != NULL && !lki_has_hosts(v)) {
        LK_TRY(lki_arrivals_publish(parallel, end));
    } else {
        atomic_store(&v->common->applied, end);
        lki_free_versions(parallel, end);
    }
    free_messages(v, at);
    return LK_OK;
}

lk_status lki_fail_gradient(const lki_versions *v, uint64_t at)
{
    return lk_fail(LK_EMISMATCH, "the gradient of task %llu is not the one that %.500s has in line "
                                 "%llu: the schedule was changed, or options, data or program are "
                                 "not those of the live run; give those, or another schedule",
                   (unsigned long long)v->recorded.tasks[at].task, v->recorded.path,
                   (unsigned long long)at + 3);
}

/* Returns the first gradient of the version from number `at` on that is not the recorded one; its
 * end if there is none.  Gradients are compared when they are applied, and so in the order of their
 * lines: the hash of a line depends on the line before, so a changed line makes the next one
 * differ, too, and another rank may have that one first. */
static uint64_t find_different(const lki_versions *v, uint64_t at)
{
    const uint64_t end   = at + v->options.aggregate;
    const uint64_t known = lki_is_live(&v->options) ? lki_min(end, v->recorded.count) : 0;
    while (at < known && v->order[at % v->window].hash == v->recorded.tasks[at].hash)
        at++;
    return at < known ? at : end;
}

lk_status lki_apply_one(lk_parallel *parallel, uint64_t at, const lki_gradients *sums)
{
    const lki_versions *v         = parallel->versions;
    const uint64_t      different = find_different(v, at);
    const bool          same      = different == at + v->options.aggregate;
    const lk_status     status    = same ? make_version(parallel, at, sums)
                                         : lki_fail_gradient(v, different);
    if (status != LK_OK)
        lki_fail_all(parallel, lki_task_at(v, same ? at : different)->task);
    step_down(v);
    return status;
}

/* Returns true if a rank is so many steps behind that its result would be overwritten, or that of
 * its last step, which a run that has lost ranks needs again. */
static bool is_waited_for(const lk_parallel *parallel)
{
    const lki_versions *v = parallel->versions;
    for (uint32_t r = 0; r < parallel->ranks; r++)
        if (atomic_load(&v->passed[r]) + LKI_OUTCOMES <= parallel->step + 1)
            return true;
    return false;
}

bool lki_may_apply(const lk_parallel *parallel, uint64_t at)
{
    return at < (parallel->step + 1) * parallel->versions->options.groups &&
           !is_waited_for(parallel);
}

/* Returns true if the gradients of the next version belong to the current step and are there. */
static bool is_due(const lk_parallel *parallel, uint64_t at)
{
    return lki_may_apply(parallel, at) && all_done(parallel->versions, at);
}

lk_status lki_versions_apply(lk_parallel *parallel)
{
    lki_versions *v      = parallel->versions;
    lk_status     status = LK_OK;
    while (status == LK_OK && is_due(parallel, lki_applied(v)) && lki_become_applier(parallel)) {
        const uint64_t at = lki_applied(v);
        (void)lki_look_ahead(v, at);
        if (is_due(parallel, at)) { /* another rank may have been faster */
            const lki_gradients sums = add_messages(v, at);
            status                   = lki_apply_one(parallel, at, &sums);
        } else {
            step_down(v);
        }
    }
    return status;
}

/* ---- New gradients ----------------------------------------------------------------------- */

uint32_t lki_versions_store(lki_versions *v, const lki_gradients *sums)
{
    const lk_parallel *model = v->model;
    const size_t       n     = model->layout->grad_elements;
    uint32_t           place = 0, none = 0;
    /* A place is free, but a rank may see it taken: another one takes it just before, and frees one
     * that was passed already.  So the search goes round. */
    while (!atomic_compare_exchange_strong(&v->taken[place], &none, 1)) {
        none  = 0;
        place = (place + 1) % v->message_count;
    }
    float *message = lki_versions_message(v, place);
    memcpy(message, sums->gradients, n * sizeof(float));
    memcpy(message + n, sums->states, (model->width - n) * sizeof(float));
    return place;
}

uint64_t lki_hash_before(const lki_versions *v, uint64_t at)
{
    return at == 0                   ? 0
           : at <= v->recorded.count ? v->recorded.tasks[at - 1].hash
                                     : v->order[(at - 1) % v->window].hash;
}

uint64_t lki_schedule_hash(const lki_versions *v, uint64_t end)
{
    return v->sharded.count > 0       ? lki_sharded_hash(v, end)
           : lki_is_live(&v->options) ? lki_hash_before(v, end)
                                      : 0;
}

/* Returns the XXH3 hash of the hashes of pieces of 1 KiB.  Four parts are read in turn: gradients
 * are not in the cache any more, and one part alone waits longer for the memory. */
static uint64_t hash_of(const float *values, size_t count)
{
    enum { PARTS = 4, PIECE = 256, MOST = 64 * PARTS };
    const size_t part = count / (PARTS * PIECE) * PIECE;
    const size_t rest = count - PARTS * part;
    uint64_t     words[1 + MOST];
    size_t       used = 1;
    words[0]          = lki_xxh3(values + PARTS * part, rest * sizeof *values);
    for (size_t i = 0; i < part; i += PIECE) {
        for (size_t p = 0; p < PARTS; p++)
            words[used++] = lki_xxh3(values + p * part + i, PIECE * sizeof *values);
        if (used > MOST || i + PIECE == part) {
            words[0] = lki_xxh3(words, used * sizeof *words);
            used     = 1;
        }
    }
    return words[0];
}

uint64_t lki_gradient_hash(const lki_versions *v, const lki_gradients *sums)
{
    const size_t   n        = v->model->layout->grad_elements;
    const uint64_t parts[2] = {
        hash_of(sums->gradients, n),
        lki_xxh3(sums->states, (v->model->width - n) * sizeof(float))
    };
    return lki_xxh3(parts, sizeof parts);
}

uint64_t lki_line_hash(const lki_versions *v, uint64_t at, uint64_t gradient)
{
    return lki_recorded_hash(lki_hash_before(v, at), v->task.task, v->task.reads, v->task.group,
                             gradient);
}

lk_status lki_versions_push(lk_parallel *parallel, const lki_gradients *sums)
{
    lki_versions  *v    = parallel->versions;
    const uint64_t at   = v->at;
    const bool     next = v->options.aggregate == 1 && lki_applied(v) == at &&
                      lki_may_apply(parallel, at);
    if (!lki_late_hands_over(v))
        return LK_OK;
    if (lki_is_live(&v->options))
        v->order[at % v->window].hash = lki_line_hash(v, at, lki_gradient_hash(v, sums));
    if (!lki_claim_is(v, at, LKI_CLAIMED + parallel->rank))
        (void)atomic_fetch_add(&v->common->copied, 1);
    memcpy(lki_versions_report(v, at, 0), v->model->reports, v->width * v->model->report_bytes);
    if (next && lki_become_applier(parallel)) { /* only this rank can apply it now */
        v->place_of[at % v->window] = LKI_NO_BUFFER;
        return lki_apply_one(parallel, at, sums);
    }
    v->place_of[at % v->window] = lki_versions_store(v, sums);
    atomic_store(&v->claims[at % v->window], at << LKI_CLAIM_BITS | LKI_CLAIM_DONE);
    lki_versions_changed(v);
    return LK_OK;
}
