/* introduce.c -- exchanges between ranks before the first step.  They check that all ranks read the
 * same data, and rank 0 prints the virtual workers of each rank. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "train/core/feed.h"
#include "train/core/identity.h"
#include "train/options.h"

enum { BUCKET_BYTES = 25 << 20 }; /* lk_train_config.bucket_bytes by default */

/* Names the files besides the data that decide the samples, if there are any. */
static const char *other_files(const lki_session *s)
{
    const lk_train_config *c = s->config;
    return c->data.tokenizer != NULL || c->data.weights != NULL || c->data.loss_weights != NULL
               ? ", or another tokenizer or other weights of samples" : "";
}

static lk_status different_data(const lki_session *s, uint32_t rank)
{
    const char *files = other_files(s);
    uint32_t    host  = lk_comm_host(s->comm, rank);
    if (host != 0)
        return lk_fail(LK_EMISMATCH,
                       "hosts 0 and %u have different data as '%s'%s (ranks 0 and %u): give every "
                       "host the same files",
                       host, s->config->data.source, files, rank);
    return lk_fail(LK_EMISMATCH,
                   "ranks 0 and %u read different data from '%s'%s: give all ranks the same files, "
                   "and start again if one changed while the workers started",
                   rank, s->config->data.source, files);
}

/* An introduction of a rank. */
typedef struct {
    uint64_t pid, first, count; /* of virtual workers */
    char     host[64];
} introduction;

/* Returns " on host 3", or "" if there is only one host. */
static const char *host_text(const lki_session *s, uint32_t rank, char text[32])
{
    text[0] = '\0';
    if (lk_comm_hosts(s->comm) > 1)
        (void)snprintf(text, 32, " on host %u", lk_comm_host(s->comm, rank));
    return text;
}

void lki_common_of(lki_common *out, const lki_session *s)
{
    memset(out, 0, sizeof *out);
    (void)snprintf(out->data, sizeof out->data, "%s",
                   lk_dataset_describe(s->dataset)->content_hash);
    lki_fields_hash(s->config, out->fields);
}

const lki_field *lki_common_field(const lki_common *one, const lki_common *other)
{
    for (const lki_field *f = lki_fields; f->name != NULL; f++)
        if (one->fields[f - lki_fields] != other->fields[f - lki_fields])
            return f;
    return NULL;
}

/* Fails if a rank's options differ from the options of rank 0.  The message names the first
 * differing option. */
static lk_status compare_fields(const lki_session *s, const lki_common *first,
                                const lki_common *other, uint32_t rank)
{
    char             host[32] = "";
    const lki_field *field    = lki_common_field(first, other);
    if (field == NULL)
        return LK_OK;
    /* the whole name of this field is that of `lockstep resume` in messages */
    const char *name = strcmp(field->path, "checkpoint.resume") == 0 ? "resume" : field->path;
    if (lk_comm_hosts(s->comm) > 1)
        (void)snprintf(host, sizeof host, " (host %u)", lk_comm_host(s->comm, rank));
    return field->all_ranks
               ? lk_fail(LK_EMISMATCH, "of rank 0 and rank %u%s only one has `%s`: give it on all "
                         "ranks or on none", rank, host, name)
               : lk_fail(LK_EMISMATCH, "rank 0 and rank %u%s have different values of `%s`: all "
                         "need the same options", rank, host, name);
}

/* Compares every rank's data and options with those of rank 0.  The data can differ if a file was
 * edited while workers started. */
lk_status lki_verify_same_start(lki_session *s)
{
    lki_common mine, *all = NULL;
    lk_status  status;
    lki_common_of(&mine, s);
    LK_TRY(LKI_NEW(&all, s->ranks, "values to compare"));
    status = lk_all_gather(s->comm, &mine, all, sizeof mine);
    for (uint32_t r = 1; status == LK_OK && r < s->ranks; r++) {
        status = compare_fields(s, &all[0], &all[r], r);
        if (status == LK_OK && memcmp(all[0].data, all[r].data, sizeof all->data) != 0)
            status = different_data(s, r);
    }
    lki_free(all);
    return status;
}

void lki_tell_kernels(lki_session *s, bool end)
{
    const char *failure, *onednn = lk_exec_onednn(s->exec, &failure);
    if (onednn != NULL && !end)
        lki_journal_note(s->journal, "note: products are oneDNN's (%s); bits depend on its version "
                         "and threads, and on the processor", onednn);
    else if (failure != NULL)
        lki_journal_note(s->journal, "note: the own kernels computed what oneDNN could not: %s",
                         failure);
}

/* Prints the label of the run with its reason, unless the run is exact. */
static void tell_label(const lki_session *s)
{
    char     text[128];
    lk_label label = lk_train_label(s->config, text, sizeof text);
    if (s->inherited > label)
        lki_journal_note(s->journal,
                         "note: this run is %s: it continues from steps that are %s, and its bits "
                         "depend on theirs",
                         lk_label_name(s->inherited), lk_label_name(s->inherited));
    else if (label == LK_LABEL_INVARIANT)
        lki_journal_note(s->journal,
                         "note: this run is %s: its bits are the same for any workers and hosts, "
                         "but not those of an exact run", text);
    else if (label == LK_LABEL_RECORDED)
        lki_journal_note(s->journal,
                         "note: this run is %s: its bits depend on the order in which gradients "
                         "arrive, and a replay of its schedule repeats them",
                         text);
    else if (label == LK_LABEL_TIMED)
        lki_journal_note(s->journal,
                         "note: this run is %s: its bits may differ from those of the next run",
                         text);
}

void lki_tell_bits(const lki_session *s)
{
    char text[256];
    tell_label(s);
    if (s->config->elastic.backup_workers > 0)
        lki_journal_note(s->journal,
                         "note: each step uses the first %u workers that finish and drops the "
                         "others (backup workers: %u); bits depend on which workers are first",
                         s->ranks - s->config->elastic.backup_workers,
                         s->config->elastic.backup_workers);
    for (const lki_field *f = lki_fields; f->name != NULL; f++)
        if (lki_field_note(f, s->config, text, sizeof text))
            lki_journal_note(s->journal, "note: %s", text);
}

/* Says how hosts sum gradients.  With auto on two hosts, finds the largest vector, up to a bucket,
 * that is summed by linear if each host has one subtree. */
static void tell_algorithm(const lki_session *s)
{
    static const char *const names[] = { "auto", "direct", "linear" };
    const lk_train_config   *c       = s->config;
    size_t       most  = c->bucket_bytes > 0 ? c->bucket_bytes : BUCKET_BYTES;
    lk_algorithm list[2];
    uint32_t     count = 0;

    if (lk_comm_hosts(s->comm) < 2)
        return;
    if (c->grad_algorithm != LK_TREE_AUTO) {
        lki_journal_say(s->journal, "gradients between hosts: %s", names[c->grad_algorithm]);
        return;
    }
    for (; most >= 1024; most /= 2)
        if (lk_comm_explain(s->comm, "tree_reduce", most, list, 2, &count) == LK_OK && count == 2 &&
            list[1].chosen)
            break;
    if (most < 1024)
        lki_journal_say(s->journal, "gradients between hosts: direct (constants: %s)",
                        lk_comm_tuning(s->comm));
    else
        lki_journal_say(s->journal,
                        "gradients between hosts: linear up to %zu KiB if each host has one "
                        "subtree, else direct (constants: %s)", most >> 10,
                        lk_comm_tuning(s->comm));
}

static void describe_steps(const lki_session *s, char *text, size_t bytes)
{
    const lk_train_config *c = s->config;
    if (lki_federates(c))
        (void)snprintf(text, bytes, "rounds of %u clients", c->virtual_workers);
    else
        (void)snprintf(text, bytes, "steps of %u (V %u x %u x %u)", c->global_batch,
                       c->virtual_workers, s->micro_count, c->micro_batch);
}

static void tell_left_out(const lki_session *s)
{
    unsigned long long bytes = lk_dataset_describe(s->dataset)->left_out;
    if (bytes > 0)
        lki_journal_note(s->journal, "note: bytes without a token are left out of the text, as "
                         "Hugging Face's tokenizers do: %llu in all", bytes);
}

/* Lists the ranks for the first line of the log: place, process and virtual workers. */
static json_t *ranks_json(const lki_session *s, const introduction *all)
{
    json_t *list = json_array();
    for (uint32_t r = 0; r < s->ranks; r++) {
        json_t *one = json_pack("{s:I, s:I, s:s, s:I}", "rank",
                                (json_int_t)lk_comm_world_rank(s->comm, r), "host",
                                (json_int_t)lk_comm_host(s->comm, r), "hostname", all[r].host,
                                "pid", (json_int_t)all[r].pid);
        if (!lki_is_async(s->config)) {
            (void)json_object_set_new(one, "first", json_integer((json_int_t)all[r].first));
            (void)json_object_set_new(one, "virtual_workers",
                                      json_integer((json_int_t)all[r].count));
        }
        (void)json_array_append_new(list, one);
    }
    return list;
}

/* Returns the weights that evaluations use, for the log; NULL if there is only one kind. */
static const char *evaluated_weights(const lk_train_config *c)
{
    if (c->optimizer.ema <= 0)
        return NULL;
    return c->eval_weights == LK_WEIGHTS_MODEL ? "model" : "ema";
}

/* Logs the configuration, versions, hosts and exactness id: the first line of a run, and of each
 * continuation. */
static lk_status log_header(lki_session *s, const introduction *all)
{
    const lk_train_config *c = s->config;
    if (s->journal == NULL)
        return LK_OK;
    json_t *line = json_pack(
        "{s:I, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:s*, s:o*, s:o, s:o}", "step",
        (json_int_t)s->progress.start, "lockstep", LK_VERSION, "exactness_id", s->exactness_id,
        "data", lk_dataset_describe(s->dataset)->content_hash, "parameters",
        (json_int_t)lk_model_param_elements(s->model), "steps", (json_int_t)s->progress.end,
        "hosts", (json_int_t)lk_comm_hosts(s->comm), "threads",
        (json_int_t)(c->threads > 0 ? c->threads : 1), "eval_weights", evaluated_weights(c),
        "noise_scale", c->noise_decay > 0 ? json_real(c->noise_decay) : NULL, "ranks",
        ranks_json(s, all), "config", lki_config_json(c, lk_dataset_describe(s->dataset)));
    if (line == NULL)
        return lk_fail(LK_ENOMEM, "the first line of the log");
    return lki_journal_header(s->journal, line, s->exactness_id);
}

/* Returns " and N frozen ones", or "" if no parameters are frozen. */
static const char *frozen_text(const lki_session *s, char text[40])
{
    uint32_t        count;
    size_t          elements = 0;
    const lk_param *params   = lk_model_frozen(s->model, &count);
    for (uint32_t i = 0; i < count; i++)
        elements += lk_shape_count(params[i].shape);
    text[0] = '\0';
    if (count > 0)
        (void)snprintf(text, 40, " and %zu frozen ones", elements);
    return text;
}

lk_status lki_introduce(lki_session *s)
{
    introduction mine = { (uint64_t)getpid(), s->first, s->count, "" }, *all = NULL;
    char         text[80], every[32], samples[40], frozen[40];

    (void)gethostname(mine.host, sizeof mine.host - 1);
    (void)snprintf(every, sizeof every, ", every %u", s->stride);
    LK_TRY(LKI_NEW(&all, s->ranks, "introductions"));
    lk_status status = lk_all_gather(s->comm, &mine, all, sizeof mine);
    if (status == LK_OK)
        status = log_header(s, all);
    if (status == LK_OK) {
        if (lk_comm_hosts(s->comm) > 1)
            lki_journal_say(s->journal, "between hosts: %s", lk_comm_carrier(s->comm));
        describe_steps(s, text, sizeof text);
        lki_journal_say(s->journal, "%s: %zu parameters%s, %s %llu %s", s->config->model,
                        lk_model_param_elements(s->model), frozen_text(s, frozen),
                        lki_feed_text(s, samples), (unsigned long long)s->progress.end, text);
        for (uint32_t r = 0; r < s->ranks; r++) {
            unsigned long long pid = all[r].pid, first = all[r].first, count = all[r].count;
            if (lki_is_async(s->config)) {
                lki_journal_say(s->journal, "rank %u (pid %llu%s) computes tasks of any group",
                                lk_comm_world_rank(s->comm, r), pid, host_text(s, r, text));
                continue;
            }
            lki_journal_say(s->journal, "rank %u (pid %llu%s) runs virtual workers %llu-%llu%s",
                            lk_comm_world_rank(s->comm, r), pid, host_text(s, r, text), first,
                            first + (count - 1) * s->stride,
                            s->stride > 1 && count > 1 ? every : "");
        }
        tell_algorithm(s);
        lki_tell_kernels(s, false);
        lki_tell_bits(s);
        tell_left_out(s);
        lki_order_tell(s);
    }
    lki_free(all);
    return status;
}
