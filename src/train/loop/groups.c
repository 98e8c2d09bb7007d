/* groups.c -- what a run says of its groups: their messages at the start, and later what they
 * keep. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "parallel/versions.h"
#include "train/config.h"
#include "train/core/client_rounds.h"
#include "train/core/delays.h"
#include "train/loop/loop.h"
#include "train/recover/survive.h"

static const char *const outer_names[] = { "their mean", "sgd",     "nesterov",
                                           "adam",       "adagrad", "yogi" };

/* Prints the replicas, and with which others each is averaged. */
static void tell_topology(const lki_session *s, const char *from)
{
    static const char *const others[] = { "all others", "those before and behind it",
                                          "one at a distance of 1, 2, 4 ... in turn",
                                          "one drawn at random" };
    const lk_train_local    *l        = &s->config->exchange.local;
    const uint32_t           count    = s->config->exchange.groups;
    char                     when[48] = "after every step";
    if (l->steps > 1)
        (void)snprintf(when, sizeof when, "every %llu steps", (unsigned long long)l->steps);
    lki_journal_say(s->journal,
                    "%u replica%s%s, virtual workers of each: %u; %s each becomes the mean of "
                    "itself and %s", count, count == 1 ? "" : "s", from,
                    s->config->virtual_workers / count, when, others[l->topology]);
}

/* Writes the rate of the outer optimizer and, if it has one, its momentum; nothing for the mean. */
static void write_rates(char *out, size_t bytes, const lk_train_local *l)
{
    out[0] = '\0';
    if (l->momentum > 0)
        (void)snprintf(out, bytes, " with rate %g and momentum %g", l->lr, l->momentum);
    else if (l->optimizer != LK_OUTER_MEAN)
        (void)snprintf(out, bytes, " with rate %g", l->lr);
}

/* Prints the replicas and the rule of outer steps. */
static void tell_replicas(const lki_session *s)
{
    const lk_train_local    *l       = &s->config->exchange.local;
    const uint32_t           count   = s->config->exchange.groups;
    char                     rule[96], from[48] = "", parts[128] = "";
    write_rates(rule, sizeof rule, l);
    if (l->start > 0)
        (void)snprintf(from, sizeof from, " from step %llu on", (unsigned long long)l->start + 1);
    if (l->fragments > 1)
        (void)snprintf(parts, sizeof parts, ", in %u fragments", l->fragments);
    if (l->delay > 0)
        (void)snprintf(parts + strlen(parts), sizeof parts - strlen(parts), ", %u step%s late",
                       l->delay, l->delay == 1 ? "" : "s");
    if (l->alpha > 0)
        (void)snprintf(parts + strlen(parts), sizeof parts - strlen(parts),
                       ", and a replica keeps %g of its weights", l->alpha);
    if (l->topology != LK_TOPOLOGY_ALL)
        tell_topology(s, from);
    else
        lki_journal_say(s->journal,
                        "%u replica%s%s, virtual workers of each: %u; every %llu step%s the outer "
                        "weights become %s%s%s%s",
                        count, count == 1 ? "" : "s", from, s->config->virtual_workers / count,
                        (unsigned long long)l->steps, l->steps == 1 ? "" : "s",
                        l->optimizer == LK_OUTER_MEAN ? "" : "those of a step of ",
                        outer_names[l->optimizer], rule, parts);
    if (l->start >= s->config->steps)
        lki_journal_note(s->journal,
                         "note: there are no replicas until step %llu, and the run ends after "
                         "step %llu",
                         (unsigned long long)l->start, (unsigned long long)s->config->steps);
}

/* Prints what --delays tokens comes to if samples are equally long. */
static void tell_tokens(const lki_session *s)
{
    const lk_train_async *a = &s->config->exchange.async;
    bool                  last;
    if (a->delays != LK_DELAYS_GIVEN || a->trace != NULL ||
        !lki_tokens_are_equal(s->config, lk_dataset_describe(s->dataset), &last))
        return;
    lki_journal_note(s->journal, "note: all samples of these data are equally long, and so are all "
                                 "tasks%s", last ? " but those of the last batch of an epoch" : "");
}

/* Writes the bound of the staleness. */
static void bound_text(const lk_train_async *a, char *text, size_t bytes)
{
    const uint32_t most = a->staleness - 1;
    text[0] = '\0';
    if (a->staleness > 0)
        (void)snprintf(text, bytes,
                       a->drops_late    ? "; those staler than %u version%s are dropped"
                       : a->in_versions ? "; the staleness is at most %u version%s"
                                        : "; none is more than %u task%s ahead of the slowest",
                       most, most == 1 ? "" : "s");
}

/* Prints that a file to record has all gradients of the run, if that is so. */
static void tell_complete(const lki_session *s)
{
    const lk_train_config *c     = s->config;
    const uint64_t         known = lki_versions_recorded(s->parallel);
    if (c->exchange.async.record != NULL && known > 0 &&
        known >= s->progress.end * c->exchange.groups)
        lki_journal_note(s->journal, "note: %.900s has all gradients of this run already, so the "
                                     "run repeats them; give another file to record a new order",
                         c->exchange.async.record);
}

/* Prints the schedule of asynchronous training. */
static void tell_async(const lki_session *s)
{
    static const char *const kinds[]  = { "equally long tasks", "lognormally distributed tasks",
                                          "exponentially distributed tasks" };
    const lk_train_async    *a        = &s->config->exchange.async;
    const uint32_t           groups   = s->config->exchange.groups;
    const char              *kind     = a->delays < LK_DELAYS_GIVEN ? kinds[a->delays]
                                        : a->trace != NULL          ? "tasks of measured times"
                                                                    : "tasks as long as their data";
    char bound[80], slow[48] = "", every[48] = "each gradient makes", order[1024];
    char part[40] = "";
    bound_text(a, bound, sizeof bound);
    if (a->slow_count > 0)
        (void)snprintf(slow, sizeof slow, ", %u slow", a->slow_count);
    if (a->aggregate > 1)
        (void)snprintf(every, sizeof every, "%u gradients make", a->aggregate);
    if (a->consistency == LK_CONSISTENCY_SPAN)
        (void)snprintf(part, sizeof part, "each span of ");
    else if (a->consistency == LK_CONSISTENCY_SHARD)
        (void)snprintf(part, sizeof part, "each of %u shards of ", a->shards);
    const uint64_t known = lki_versions_recorded(s->parallel);
    if (a->record != NULL && known > 0)
        (void)snprintf(order, sizeof order, "of the first %llu in %.900s, and then in that in "
                                            "which they arrive, recorded there",
                       (unsigned long long)known, a->record);
    else if (a->record != NULL)
        (void)snprintf(order, sizeof order, "in which they arrive, recorded in %.900s", a->record);
    else if (a->replay != NULL)
        (void)snprintf(order, sizeof order, "of %.900s", a->replay);
    else
        (void)snprintf(order, sizeof order, "of a simulation with %s%s", kind,
                       slow);
    lki_journal_say(s->journal,
                    "asynchronous: %u groups of %u virtual worker%s push gradients in the order "
                    "%s%s; %s a version of %sthe parameters",
                    groups, s->config->virtual_workers / groups,
                    s->config->virtual_workers == groups ? "" : "s", order, bound, every,
                    part);
    tell_complete(s);
    tell_tokens(s);
    if (lki_async_adds_momentum(s->config))
        lki_journal_note(s->journal, "note: asynchrony of %u groups acts like momentum, and adds "
                         "to the optimizer's of %g: lower one of them, or use "
                         "staleness-lr or delay-compensation",
                         groups, s->config->optimizer.momentum);
}

/* Logs the versions that a step of asynchronous training has made. */
static lk_status log_async(lki_session *s, uint64_t done)
{
    const lk_async_step step = lk_parallel_async_step(s->parallel);
    json_t             *bins = json_array();
    for (int i = 0; i < LK_STALENESS_BINS; i++)
        (void)json_array_append_new(bins, json_integer(step.staleness_bins[i]));
    json_t *line = json_pack("{s:I, s:I, s:f, s:i, s:o, s:f}", "step", (json_int_t)done, "version",
                             (json_int_t)step.version, "staleness_mean", step.staleness_mean,
                             "staleness_max", (int)step.staleness_max, "staleness_bins", bins,
                             "waited_ms", 1e3 * step.waited);
    if (s->config->exchange.async.drops_late)
        (void)json_object_set_new(line, "late", json_integer((json_int_t)step.dropped));
    return lki_say_versions(s, done, line);
}

/* Logs the round that ended.  If no client counts, says so. */
static lk_status log_round(lki_session *s, uint64_t done)
{
    const lki_round round = lki_round_of(s, done - 1);
    if (s->clients->counted == 0)
        lki_journal_say(s->journal, "round %llu: none of %u clients counts; the weights stay as "
                        "they were", (unsigned long long)done, round.chosen);
    json_t *drift = s->clients->counted > 0 ? json_real(s->clients->drift) : json_null();
    return lki_journal_event(s->journal,
                             json_pack("{s:I, s:i, s:i, s:I, s:o}", "step", (json_int_t)done,
                                       "chosen", (int)round.chosen, "stopped", (int)round.stopped,
                                       "samples", (json_int_t)s->clients->counted, "drift",
                                       drift));
}

lk_status lki_log_outer_step(lki_session *s, uint64_t done)
{
    if (s->clients != NULL)
        return log_round(s, done);
    if (lki_is_async(s->config))
        return log_async(s, done);
    const lk_outer_step outer = lk_parallel_outer_step(s->parallel);
    if (outer.number == 0)
        return LK_OK;
    json_t *line = json_pack("{s:I, s:I, s:i, s:f, s:f, s:I}", "step", (json_int_t)done,
                             "outer_step", (json_int_t)outer.number, "replicas",
                             (int)lk_parallel_groups(s->parallel), "outer_grad_norm",
                             outer.grad_norm, "drift", outer.drift, "message_bytes",
                             (json_int_t)outer.message_bytes);
    if (s->config->exchange.local.fragments > 1)
        (void)json_object_set_new(line, "fragment", json_integer(outer.fragment));
    return lki_journal_event(s->journal, line);
}

lk_status lki_average_replicas(lki_session *s, uint64_t done)
{
    if (s->config->exchange.local.topology == LK_TOPOLOGY_ALL)
        return LK_OK;
    LK_TRY(lk_parallel_average(s->parallel));
    const lk_outer_step mean = lk_parallel_outer_step(s->parallel);
    if (mean.number == 0 || s->progress.averages_said == done)
        return LK_OK;
    s->progress.averages_said = done;
    return lki_journal_event(s->journal,
                             json_pack("{s:I, s:I, s:i, s:f}", "step", (json_int_t)done, "mixings",
                                       (json_int_t)mean.number, "replicas",
                                       (int)lk_parallel_groups(s->parallel), "drift", mean.drift));
}

lk_status lki_log_freeze(lki_session *s, uint64_t done)
{
    if (!lki_freezes_by_test(s->config) || s->progress.freeze_said)
        return LK_OK;
    const uint64_t start = lk_parallel_exchange_size(s->parallel).start;
    if (start == 0)
        return LK_OK;
    s->progress.freeze_said = true;
    lki_journal_say(s->journal, "%s: the second moment is frozen after step %llu",
                    lk_optimizer_name(s->config->optimizer.kind), (unsigned long long)start - 1);
    return lki_journal_event(s->journal, json_pack("{s:I, s:I}", "step", (json_int_t)done,
                                                   "freeze_step", (json_int_t)start - 1));
}

/* Describes the steps in which a run compresses otherwise than at its end. */
static void describe_stages(const lk_train_config *c, uint64_t start, char *text, size_t bytes)
{
    const lk_train_exchange *x    = &c->exchange;
    size_t                   used = 0;
    if (start > 1)
        used = (size_t)snprintf(text, bytes, "; from step %llu on", (unsigned long long)start);
    else if (lki_freezes_by_test(c))
        used = (size_t)snprintf(text, bytes, "; from the step on in which a test freezes the "
                                             "second moment");
    for (uint32_t i = 0; i < x->warmup_count; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%.4g", i == 0 ? "; warm-up " : ",",
                                 x->warmup[i]);
    if (x->warmup_count > 0)
        (void)snprintf(text + used, bytes - used, ", %llu steps each",
                       (unsigned long long)x->warmup_span);
}

/* Prints how clients train, and how the server uses it. */
static void tell_clients(const lki_session *s)
{
    const lk_train_clients  *k       = &s->config->exchange.clients;
    const lk_train_local    *l       = &s->config->exchange.local;
    char                     batch[32] = "of all samples", rates[64], rule[96] = "";
    write_rates(rates, sizeof rates, l);
    if (k->batch > 0)
        (void)snprintf(batch, sizeof batch, "of %u", k->batch);
    if (l->optimizer != LK_OUTER_MEAN)
        (void)snprintf(rule, sizeof rule, ", by a step of %s%s", outer_names[l->optimizer], rates);
    lki_journal_say(s->journal,
                    "%u client%s with %llu to %llu samples; in a round %u train%s %u epoch%s in "
                    "batches %s%s",
                    k->count, k->count == 1 ? "" : "s",
                    (unsigned long long)lk_clients_least(s->clients->of),
                    (unsigned long long)k->most, s->config->virtual_workers,
                    s->config->virtual_workers == 1 ? "s" : "", k->epochs,
                    k->epochs == 1 ? "" : "s", batch, rule);
}

void lki_tell_groups(lki_session *s)
{
    if (s->clients != NULL)
        tell_clients(s);
    if (lki_replicates(s->config))
        tell_replicas(s);
    if (lki_is_async(s->config))
        tell_async(s);
    const lk_exchange_size size = lk_parallel_exchange_size(s->parallel);
    const char            *name = s->config->exchange.compressor;
    const uint32_t width = size.groups > 0 ? s->config->virtual_workers / size.groups : 0;
    const char    *feedback = lk_feedback_name(s->config->exchange.feedback);
    char           more[200] = "";
    if (lki_sends_momenta(s->config)) {
        name     = lk_optimizer_name(s->config->optimizer.kind);
        feedback = "of groups and servers";
    }
    s->progress.freeze_said = size.start > 0; /* of a checkpoint */
    describe_stages(s->config, size.start, more, sizeof more);
    if (size.groups > 0 && name == NULL && !lki_replicates(s->config))
        lki_journal_say(s->journal, "%u groups of %u virtual workers exchange whole gradients",
                        size.groups, width);
    else if (size.groups > 0)
        lki_journal_say(s->journal,
                        "%u groups of %u virtual workers: each sends %.4g of %.4g MiB in a step "
                        "(1 / %.1f); %u of %u tensors are compressed by %s, feedback %s%s",
                        size.groups, width, (double)size.sent_bytes / 0x1p20,
                        (double)size.whole_bytes / 0x1p20,
                        (double)size.whole_bytes / (double)size.sent_bytes, size.compressed,
                        s->param_count, name, feedback, more);
}

/* Returns the name of vector `which` of the parameters that are compressed; NULL if there is
 * none. */
static const char *kept_name(const lki_session *s, uint32_t which)
{
    const char *name = NULL;
    for (uint32_t p = 0; name == NULL && p < s->param_count; p++)
        name = lk_parallel_kept_name(s->parallel, p, which);
    return name;
}

/* Returns the norms of a kind of vector as a list by group. */
static json_t *norms_json(const double *norms, uint32_t groups)
{
    json_t *list = json_array();
    for (uint32_t g = 0; g < groups; g++)
        (void)json_array_append_new(list, isfinite(norms[g]) ? json_real(norms[g]) : json_null());
    return list;
}

lk_status lki_log_groups(lki_session *s, uint64_t done)
{
    const lk_exchange_size size  = lk_parallel_exchange_size(s->parallel);
    double                *norms = NULL;
    if (size.groups == 0)
        return LK_OK;
    json_t *line = json_pack("{s:I, s:i, s:I, s:I}", "step", (json_int_t)done, "groups",
                             (int)size.groups, "message_bytes", (json_int_t)size.sent_bytes,
                             "gradient_bytes", (json_int_t)size.whole_bytes);
    if (size.start > 1)
        (void)json_object_set_new(line, "compress_start", json_integer((json_int_t)size.start));
    lk_status status = LKI_NEW(&norms, size.groups, "norms of groups");
    for (uint32_t w = 0; status == LK_OK && kept_name(s, w) != NULL; w++) {
        char key[64];
        (void)snprintf(key, sizeof key, "%s_norms", kept_name(s, w));
        status = lk_parallel_kept_norms(s->parallel, w, norms);
        (void)json_object_set_new(line, key, norms_json(norms,
                                             lk_parallel_kept_groups(s->parallel, w)));
    }
    lki_free(norms);
    if (status == LK_OK && s->progress.groups_said != done) {
        s->progress.groups_said = done;
        return lki_journal_event(s->journal, line);
    }
    json_decref(line);
    return status;
}
