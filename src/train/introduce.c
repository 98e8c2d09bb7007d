/* introduce.c -- what ranks tell each other and the user before the first step: that they read the
 * same data, and who computes what. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "train/session.h"

static lk_status different_data(const lki_session *s, uint32_t rank)
{
    uint32_t host = lk_comm_host(s->comm, rank);
    if (host != 0)
        return lk_fail(LK_EMISMATCH,
                       "hosts 0 and %u have different data as '%s' (ranks 0 and %u): give every "
                       "host the same files",
                       host, s->config->data, rank);
    return lk_fail(LK_EMISMATCH,
                   "ranks 0 and %u read different data from '%s': it changed while "
                   "the workers started; start again",
                   rank, s->config->data);
}

/* A file that somebody edited while the workers started would give each its own data. */
lk_status lki_verify_same_data(lki_session *s)
{
    char     mine[33] = "", *all = NULL;
    uint32_t differs = 0;
    memcpy(mine, lk_dataset_describe(s->dataset)->content_hash, sizeof mine);
    LK_TRY(LKI_NEW(&all, s->ranks * sizeof mine, "content hashes"));
    lk_status status = lk_all_gather(s->comm, mine, all, sizeof mine);
    for (uint32_t r = 1; status == LK_OK && differs == 0 && r < s->ranks; r++)
        differs = memcmp(all, all + r * sizeof mine, sizeof mine) == 0 ? 0 : r;
    lki_free(all);
    LK_TRY(status);
    return differs == 0 ? LK_OK : different_data(s, differs);
}

/* Where a rank is, if that is a question. */
static const char *host_text(const lki_session *s, uint32_t rank, char text[32])
{
    text[0] = '\0';
    if (lk_comm_hosts(s->comm) > 1)
        (void)snprintf(text, 32, " on host %u", lk_comm_host(s->comm, rank));
    return text;
}

void lki_tell_kernels(lki_session *s, bool end)
{
    const char *failure, *onednn = lk_exec_onednn(s->exec, &failure);
    if (onednn != NULL && !end)
        lki_journal_note(s->journal, "note: products are oneDNN's (%s): this run is not exact, its "
                         "bits depend on that", onednn);
    else if (failure != NULL)
        lki_journal_note(s->journal, "note: the own kernels computed what oneDNN could not: %s",
                         failure);
}

void lki_tell_bits(const lki_session *s)
{
    const char *name = lk_precision_name(s->config->comm_dtype);
    if (s->inexact)
        lki_journal_note(s->journal,
                         "note: this run is not exact: it goes on from steps that were not, and "
                         "its bits depend on theirs");
    if (s->config->backup_workers > 0)
        lki_journal_note(s->journal,
                         "note: this run is not exact: of a step the %u workers count that come "
                         "first, and what the others have is dropped (--backup-workers %u); its "
                         "bits depend on who that is", s->ranks - s->config->backup_workers,
                         s->config->backup_workers);
    if (s->config->gather_dtype == LK_I8)
        lki_journal_note(s->journal,
                         "note: this run is not exact: parameters are read as int8, in blocks of "
                         "256; the bits are the same for any workers");
    if (s->config->comm_dtype == LK_F32)
        return;
    if (s->config->comm_dtype == LK_BF16 || s->config->comm_dtype == LK_F16)
        lki_journal_note(s->journal,
                         "note: gradients and every sum of them are rounded to %s, as which they "
                         "travel: the same bits for any workers, but not those of --comm-dtype "
                         "fp32", name);
    else
        lki_journal_note(s->journal,
                         "note: this run is not exact: gradients and every sum of them are rounded "
                         "to %s in blocks of 256, as which they travel; the bits are the same for "
                         "any workers", name);
}

lk_status lki_introduce(lki_session *s)
{
    uint64_t mine[3] = { (uint64_t)getpid(), s->first, s->count }, *all = NULL;
    char     text[32], every[32], samples[40];

    (void)snprintf(every, sizeof every, ", every %u", s->stride);
    LK_TRY(LKI_NEW(&all, 3 * (size_t)s->ranks, "introductions"));
    lk_status status = lk_all_gather(s->comm, mine, all, sizeof mine);
    if (status == LK_OK) {
        lki_journal_say(s->journal,
                        "%s: %zu parameters, %s %llu steps of %u (V %u x %u x %u)",
                        s->config->model, lk_model_param_elements(s->model),
                        lki_feed_text(s, samples),
                        (unsigned long long)s->end, s->config->global_batch,
                        s->config->virtual_workers, s->micro_count, s->config->micro_batch);
        for (uint32_t r = 0; r < s->ranks; r++) {
            unsigned long long pid = all[3 * r], first = all[3 * r + 1], count = all[3 * r + 2];
            lki_journal_say(s->journal, "rank %u (pid %llu%s) runs virtual workers %llu-%llu%s",
                            lk_comm_world_rank(s->comm, r), pid, host_text(s, r, text), first,
                            first + (count - 1) * s->stride,
                            s->stride > 1 && count > 1 ? every : "");
        }
        lki_tell_kernels(s, false);
        lki_tell_bits(s);
        lki_order_tell(s);
    }
    lki_free(all);
    return status;
}
