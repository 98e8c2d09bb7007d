/* finish.c -- the end of a run: checks of the result, its hashes, and the summary. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/float.h"
#include "base/memory.h"
#include "tensor/exec.h"
#include "train/core/identity.h"
#include "train/loop/loop.h"
#include "train/observe/observe.h"
#include "train/observe/pace.h"
#include "train/recover/survive.h"
#include "train/saves/save.h"

/* A scan of a tensor's values, up to the first value that is not finite. */
typedef struct {
    size_t count;
    bool   ended;
    float  next;
} finite_part;

static void look_at_piece(void *context, const float *values, size_t count)
{
    finite_part *part = context;
    if (part->ended)
        return;
    size_t finite = lki_finite_count(values, count);
    part->count += finite;
    part->ended = finite < count;
    part->next  = part->ended ? values[finite] : 0;
}

const char *lki_target_advice(const lki_session *s)
{
    const lk_loss loss = lk_loss_of(s->config->model_options.loss,
                                    lk_dataset_describe(s->dataset)->numbers);
    return loss == LK_LOSS_MSE ? "; targets are not standardised, and large ones, such as prices, "
                                 "need adamw with `schedule.lr` 0.01, or `clip_norm` 1 with "
                                 "`schedule.lr` 1"
                               : "";
}

lk_status lki_check_end(const lki_session *s, uint64_t done, const lk_train_result *result)
{
    static const char  advice[]  = "lower the learning rate or clip the gradient";
    unsigned long long steps     = done;
    bool               evaluated = lk_dataset_describe(s->dataset)->validation_count > 0;

    for (uint32_t p = 0; p < s->param_count; p++) {
        finite_part part = { 0 };
        LK_TRY(lki_visit_value(s, p, 0, look_at_piece, &part));
        if (part.ended)
            return lk_fail(LK_ENONFINITE, "step %llu: element %zu of '%s' is %g; %s%s", steps,
                           part.count, s->params[p].name, (double)part.next, advice,
                           lki_target_advice(s));
    }
    if (evaluated && s->progress.start < done && !isfinite(result->validation_loss))
        return lk_fail(LK_ENONFINITE, "step %llu: the validation loss is not finite; %s%s", steps,
                       advice, lki_target_advice(s));
    return LK_OK;
}

/* Checks that all hosts have the same result.  Every host computes the result from its own copy. */
static lk_status verify_same_end(const lki_session *s, const lk_train_result *result)
{
    const size_t bytes   = sizeof result->run;
    uint32_t     differs = 0;
    char        *all     = NULL;
    LK_TRY(LKI_NEW(&all, s->ranks * bytes, "hashes of the run"));
    lk_status status = lk_all_gather(s->comm, result->run, all, bytes);
    for (uint32_t r = 1; status == LK_OK && differs == 0 && r < s->ranks; r++)
        differs = memcmp(all, all + r * bytes, bytes) == 0 ? 0 : r;
    if (differs != 0)
        status = lk_fail(LK_ECORRUPT,
                         "ranks 0 and %u end with different models (run %.64s and %.64s): the "
                         "memory or a processor of host 0 or host %u is faulty",
                         differs, all, all + differs * bytes, lk_comm_host(s->comm, differs));
    lki_free(all);
    return status;
}

/* Prints how long the run waited for its checkpoints. */
static void tell_checkpoints(lki_session *s)
{
    const lk_checkpoint_times *t = &s->saves->times;
    char                       failed[48] = "";
    if (t->written + t->failed == 0)
        return;
    if (t->failed > 0)
        (void)snprintf(failed, sizeof failed, ", %llu failed", (unsigned long long)t->failed);
    lki_journal_say(s->journal, "checkpoints: %llu written%s; stalled %.1f ms in all, at most %.1f "
                    "ms; written in at most %.1f ms", (unsigned long long)t->written, failed,
                    1e3 * t->stalled, 1e3 * t->longest_stall, 1e3 * t->longest_write);
}

static void tell_offload(lki_session *s, uint64_t done)
{
    static const char *const kinds[] = { "optimizer state", "parameters", "activations" };
    char                     what[64] = "";
    const char              *how      = lk_parallel_offload_how(s->parallel);
    if (s->config->offload == NULL || done <= s->progress.start)
        return;
    for (unsigned i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (lki_in_files(s->config, (lk_offloaded)(1u << i)))
            (void)snprintf(what + strlen(what), sizeof what - strlen(what), "%s%s",
                           what[0] != '\0' ? ", " : "", kinds[i]);
    lki_journal_say(s->journal, "offload: %s in '%s' by %s; rank 0 stalled %.1f ms in all, %.2f ms "
                    "a step", what, s->config->offload,
                    how[0] != '\0' ? how : lk_engine_offload_how(s->engine), 1e3 * s->stalled,
                    1e3 * s->stalled / (double)(done - s->progress.start));
}

/* Prints a note if the weights do not have what the last steps have learned. */
static void tell_round(lki_session *s, uint64_t done)
{
    const lk_train_local *l         = &s->config->exchange.local;
    const uint64_t        fragments = l->fragments > 0 ? l->fragments : 1;
    const uint64_t        each      = l->steps / fragments; /* steps between outer steps */
    if (l->steps == 0 || done <= l->start)
        return;
    const unsigned long long own   = done - l->start;
    const unsigned long long first = l->start + l->steps; /* the first round is complete */
    if (l->topology != LK_TOPOLOGY_ALL) {
        if (own < l->steps)
            lki_journal_note(s->journal,
                             "note: replicas were not averaged with others: that begins after step "
                             "%llu", first);
        return;
    }
    const unsigned long long last = own > l->delay ? (own - l->delay) / each * each : 0;
    if (last < l->steps)
        lki_journal_note(s->journal,
                         "note: %s as they were before there were replicas: the first outer step%s "
                         "comes after step %llu",
                         last == 0 ? "the weights are" : "some fragments are",
                         fragments > 1 ? " of the last fragment" : "", first + l->delay);
    else if (fragments > 1 || last < own)
        lki_journal_note(s->journal,
                         "note: the weights are those of outer steps with the gradients after step "
                         "%llu%s; what came after is in the replicas only", l->start + last,
                         fragments > 1 ? ", and of other fragments before" : "");
}

/* Prints a note if the second moment was to be frozen, and the run ends before. */
static void tell_freeze(lki_session *s, uint64_t done)
{
    const bool test = lki_freezes_by_test(s->config);
    if (lki_sends_momenta(s->config) &&
        (test ? !s->progress.freeze_said : done <= s->config->exchange.freeze_step))
        lki_journal_note(s->journal, "note: the second moment was never frozen, so no step sent "
                                     "momenta in one bit%s",
                         test ? ": its test did not pass" : "");
}

/* Prints a note if gradients were to be compressed, and the run ends before. */
static void tell_compression(lki_session *s, uint64_t done)
{
    const lk_train_exchange *x = &s->config->exchange;
    if (x->compressor != NULL && done < x->start)
        lki_journal_note(s->journal, "note: no step was compressed, because the first was to be "
                                     "step %llu", (unsigned long long)x->start);
}

/* Prints the limit that ended the run, and the best checkpoints. */
static void tell_end(lki_session *s, uint64_t done)
{
    const lki_stopping *stopping = &s->progress.stopping;
    tell_checkpoints(s);
    lki_pace_summary(s);
    tell_offload(s, done);
    tell_round(s, done);
    tell_freeze(s, done);
    tell_compression(s, done);
    if (s->config->audit > 0)
        lki_journal_say(s->journal, "audits: %llu virtual workers were made again, and came out "
                        "alike", (unsigned long long)s->progress.audited);
    if (s->progress.ended != NULL && strcmp(s->progress.ended, "patience") == 0)
        lki_journal_note(s->journal,
                         "a patience of %u ended the run after step %llu: the loss has "
                         "not fallen below %.4f of step %llu in %llu evaluations",
                         s->config->limits.patience, (unsigned long long)done, stopping->lowest,
                         (unsigned long long)stopping->lowest_step,
                         (unsigned long long)stopping->stale);
    else if (s->progress.ended != NULL)
        lki_journal_note(s->journal, "--%s ended the run after step %llu of %llu",
                         s->progress.ended, (unsigned long long)done,
                         (unsigned long long)s->config->steps);
    for (uint32_t i = 0; i < stopping->best_count && s->config->checkpoint.keep_best > 0; i++)
        lki_journal_say(s->journal, "best checkpoint %u: step %llu, validation %s %.4f", i + 1,
                        (unsigned long long)stopping->best[i].step,
                        s->config->checkpoint.best_by == LK_BEST_BY_ACCURACY ? "accuracy" : "loss",
                        stopping->best[i].value);
}

lk_status lki_finish(lki_session *s, uint64_t done, lk_train_result *result)
{
    result->steps = done;
    result->ended = s->progress.ended;
    result->checkpoints = s->saves->times;
    result->audited = s->progress.audited;
    lk_comm_note(s->comm, done, "reporting the result");
    uint64_t begun = lki_trace_begin(lki_exec_track(s->exec));
    LK_TRY(lki_weights_hash(s, result->weights));
    LK_TRY(lki_run_hash(s, result->weights, result->run));
    lki_trace_end(lki_exec_track(s->exec), LKI_SPAN_HASH, 0, begun);
    lki_observe_drain(s);
    LK_TRY(verify_same_end(s, result));
    lki_tell_kernels(s, true);
    if (lki_run_label(s) != LK_LABEL_EXACT) /* repeated at the end */
        lki_tell_bits(s);
    LK_TRY(lki_say_end(s, result));
    lki_journal_say(s->journal, "run %s", result->run);
    tell_end(s, done);
    return lki_say_done(s, done >= s->progress.end || s->progress.ended != NULL ? result : NULL);
}

/* ---- Early ends ---------------------------------------------------------------------------- */

lk_status lki_leave(const lki_session *s, uint64_t done, lk_train_result *result)
{
    result->left   = true;
    result->speaks = false;
    result->steps  = done;
    return lk_fail(LK_ESTOPPED, "rank %u left on request after step %llu, and the others continue",
                   lk_comm_world_rank(s->comm, s->rank), (unsigned long long)done);
}

lk_status lki_incomplete(const lki_session *s, uint64_t done)
{
    const char *folder = s->config->checkpoint.folder;
    const char *kept   = folder != NULL
                             ? "the state is saved; continue by `checkpoint.resume` "
                             : "nothing was saved: there is no `checkpoint.folder` directory";
    folder             = folder != NULL ? folder : "";
    lk_comm_note(s->comm, done, "ending the run");
    if (s->depleted)
        return lk_fail(LK_EPEER, "%u of at least %u workers are left after step %llu; %s%s",
                       s->ranks, s->config->elastic.workers_least, (unsigned long long)done, kept,
                       folder);
    return lk_fail(LK_ESTOPPED, "stopped on request after step %llu; %s%s",
                   (unsigned long long)done, kept, folder);
}
