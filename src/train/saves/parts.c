/* parts.c -- a checkpoint to which each host writes the part that it stores.
 *
 * This is used if hosts store parts of the optimizer state or of the parameters and all of them see
 * the directory.  The first worker of each host writes that host's part into separate files, so the
 * part is not sent over the network.  Rank 0 writes the data that every host has and, at the end,
 * the manifest.
 *
 *   1. Rank 0 opens the draft and broadcasts its path.
 *   2. Writers write their files and report the results.
 *   3. Rank 0 gathers the hashes and publishes the checkpoint.
 *
 * Parts are not written for offloaded state (--offload), nor in runs that continue after losing one
 * of the writers.  Then rank 0 fetches everything.
 *
 * A file stores at most one stretch of a tensor.  If a host's part of a large tensor lies in
 * several buckets, it needs further files: optimizer-host1.safetensors,
 * optimizer-host1-2.safetensors.
 *
 * Cost: writing each host's part, and sending a few bytes per MiB of it.
 */
#include "parallel/replicas.h"
#include "train/saves/parts.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "parallel/stored.h"
#include "train/saves/lock.h"

/* ---- Choosing ---------------------------------------------------------------------------- */

enum { MARK_BYTES = 256 };

/* Reads the directory's lock file, as this host sees it. */
static void read_mark(const char *dir, char mark[MARK_BYTES])
{
    char path[LKI_PATH_BYTES];
    memset(mark, 0, MARK_BYTES);
    if (lki_directory_join(path, dir, LKI_LOCK_NAME) != LK_OK)
        return;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (read(fd, mark, MARK_BYTES - 1) < 0)
        mark[0] = '\0';
    (void)close(fd);
}

lk_status lki_parts_agree(lki_session *session)
{
    const lk_train_config *config = session->config;
    char                   mark[MARK_BYTES], first[MARK_BYTES];
    uint32_t               sees, all = 0;

    session->saves->by_owners = false;
    /* with groups all ranks take part in fetching values, so rank 0 writes them */
    if (config->checkpoint.folder == NULL || config->elastic.survives || lki_exchanges(config) ||
        lki_in_files(config, LK_OFFLOADED_STATES | LK_OFFLOADED_PARAMETERS) ||
        lki_stored_shards(session->parallel) == 1)
        return LK_OK;
    read_mark(config->checkpoint.folder, mark);
    memcpy(first, mark, sizeof first);
    LK_TRY(lk_broadcast(session->comm, first, sizeof first, 0));
    sees = first[0] != '\0' && memcmp(first, mark, sizeof mark) == 0;
    LK_TRY(lk_all_reduce(session->comm, &sees, &all, 1, LK_U32, LK_MIN));
    session->saves->by_owners = all == 1;
    return LK_OK;
}

bool lki_parts_writes(const lki_session *session)
{
    uint32_t shard;
    return session->rank == 0 ||
           (session->saves->by_owners && lki_stored_writer(session->parallel, &shard));
}

/* ---- Dividing the files ------------------------------------------------------------------ */

/* Returns which value of a parameter the tensor stores: 0 is the weights, 1 and up are optimizer
 * states.  *param becomes the parameter's index.  See lki_sheet_fill(). */
static uint32_t value_of(const lki_session *session, size_t file, size_t tensor, uint32_t *param)
{
    uint32_t slots = lk_optimizer_state_count(lki_optimizer_of(session->parallel));
    *param         = (uint32_t)(file == 0 ? tensor : tensor / slots);
    return file == 0 ? 0 : 1 + (uint32_t)tensor % slots;
}

static bool is_in_parts(const lki_session *session, const lki_sheet *sheet, size_t file)
{
    return strcmp(sheet->files[file].name, LKI_STATE_FILE) != 0 &&
           lki_stored_in_parts(session->parallel, file == 0 ? 0 : 1);
}

/* Lists stretch number `layer` (from 0) of every tensor in the shard, and returns how many there
 * are.  Writes them to `to` unless it is NULL.  *layers becomes the largest number of stretches of
 * any tensor. */
static size_t list_stretches(const lki_session *session, const lki_sheet *sheet, size_t file,
                             uint32_t shard, size_t layer, lki_stretch *to, size_t *layers)
{
    size_t count = 0;
    *layers      = 0;
    for (size_t t = 0; t < sheet->files[file].tensor_count; t++) {
        uint32_t   param, which = value_of(session, file, t, &param);
        lki_stored kept;
        size_t     at = 0, n = 0;
        for (; lki_stored_next(session->parallel, param, which, shard, &at, &kept); n++) {
            if (n != layer)
                continue;
            if (to != NULL)
                to[count] = (lki_stretch){ t, kept.first, kept.count, kept.data };
            count++;
        }
        *layers = lki_max(*layers, n);
    }
    return count;
}

static lk_status add_part(const lki_session *session, lki_sheet *sheet, size_t file, uint32_t shard,
                          size_t layer)
{
    size_t             layers, count;
    lki_sheet_part    *own  = &sheet->own_parts[sheet->part_count];
    const char        *name = sheet->files[file].name;
    const int          stem = (int)(strchr(name, '.') - name);
    lki_part          *part = &sheet->parts[sheet->part_count++];

    count = list_stretches(session, sheet, file, shard, layer, NULL, &layers);
    LK_TRY(LKI_NEW(&own->stretches, count + 1, "stretches of a part"));
    (void)list_stretches(session, sheet, file, shard, layer, own->stretches, &layers);
    if (layer == 0)
        (void)snprintf(own->name, sizeof own->name, "%.*s-host%" PRIu32 ".safetensors", stem, name,
                       shard);
    else
        (void)snprintf(own->name, sizeof own->name, "%.*s-host%" PRIu32 "-%zu.safetensors", stem,
                       name, shard, layer + 1);
    *part = (lki_part){ own->name, file, own->stretches, count };
    return LK_OK;
}

static size_t count_layers(const lki_session *session, const lki_sheet *sheet, size_t file,
                           uint32_t shard)
{
    size_t layers;
    (void)list_stretches(session, sheet, file, shard, 0, NULL, &layers);
    return layers;
}

/* Lists all shards on rank 0, which writes the manifest.  Other ranks list only their own. */
lk_status lki_sheet_divide(const lki_session *session, lki_sheet *sheet)
{
    uint32_t first, end;
    size_t   count = 0;

    (void)lki_stored_writer(session->parallel, &first);
    end = first + 1;
    if (session->rank == 0) {
        first = 0;
        end   = lki_stored_shards(session->parallel);
    }
    for (size_t f = 0; f < sheet->file_count; f++)
        for (uint32_t s = first; is_in_parts(session, sheet, f) && s < end; s++)
            count += count_layers(session, sheet, f, s);
    LK_TRY(LKI_NEW(&sheet->parts, count + 1, "parts of a checkpoint"));
    LK_TRY(LKI_NEW(&sheet->own_parts, count + 1, "parts of a checkpoint"));
    for (size_t f = 0; f < sheet->file_count; f++)
        for (uint32_t s = first; is_in_parts(session, sheet, f) && s < end; s++)
            for (size_t k = 0, layers = count_layers(session, sheet, f, s); k < layers; k++)
                LK_TRY(add_part(session, sheet, f, s, k));
    return LK_OK;
}

lki_contents lki_sheet_contents(const lki_sheet *sheet)
{
    return (lki_contents){ &sheet->info, sheet->files, sheet->file_count, sheet->parts,
                           sheet->part_count };
}

/* ---- Writing ----------------------------------------------------------------------------- */

lk_status lki_writing_begin(lki_writing *out, const lki_session *session, uint64_t step,
                            bool wanted, bool *begun)
{
    const char *dir = session->config->checkpoint.folder;
    struct {
        uint32_t begun;
        char     name[64];
    } said = { 0 };

    *out = (lki_writing){ .entries = json_array() };
    if (out->entries == NULL)
        return lk_fail(LK_ENOMEM, "a manifest");
    if (session->rank == 0 && wanted) {
        LK_TRY(lki_draft_open(&out->draft, dir, step));
        (void)snprintf(said.name, sizeof said.name, "%s", lki_draft_name(out->draft));
        said.begun = 1;
    }
    LK_TRY(lk_broadcast(session->comm, &said, sizeof said, 0));
    *begun = said.begun != 0;
    return *begun ? lki_directory_join(out->path, dir, said.name) : LK_OK;
}

void lki_writing_end(lki_writing *writing)
{
    lki_draft_free(writing->draft);
    json_decref(writing->entries);
    *writing = (lki_writing){ 0 };
}

lk_status lki_writing_files(lki_writing *writing, const lki_sheet *sheet, bool first)
{
    const lki_contents contents = lki_sheet_contents(sheet);

    for (size_t p = 0; p < sheet->part_count; p++)
        if (sheet->parts[p].stretches[0].data != NULL)
            LK_TRY(lki_draft_write_part(writing->path, &contents, &sheet->parts[p],
                                        writing->entries));
    for (size_t f = 0; first && f < sheet->file_count; f++)
        if (!lki_contents_has_parts(&contents, f))
            LK_TRY(lki_draft_write_file(writing->path, &sheet->files[f], writing->entries));
    return first ? LK_OK : lki_directory_sync(writing->path);
}

typedef struct {
    lk_status status;
    char      message[sizeof ((lk_error *)NULL)->message];
    uint64_t  bytes; /* bytes of the manifest entries as text */
} outcome;

/* Sends the manifest entries of all writers to rank 0. */
static lk_status gather_entries(lki_writing *writing, const lki_session *session,
                                const outcome *all, char *text)
{
    if (session->rank != 0)
        return text == NULL ? LK_OK
                            : lk_send(session->comm, text, (size_t)all[session->rank].bytes, 0);
    lk_status status = LK_OK;
    for (uint32_t r = 1; status == LK_OK && r < session->ranks; r++) {
        if (all[r].bytes == 0)
            continue;
        char *theirs = NULL;
        LK_TRY(LKI_NEW(&theirs, (size_t)all[r].bytes + 1, "the manifest's entries of a part"));
        status          = lk_recv(session->comm, theirs, (size_t)all[r].bytes, r);
        json_t *entries = status == LK_OK ? json_loads(theirs, JSON_REJECT_DUPLICATES, NULL) : NULL;
        if (status == LK_OK && json_array_extend(writing->entries, entries) != 0)
            status = lk_fail(LK_ENOMEM, "the manifest's entries of a part");
        json_decref(entries);
        lki_free(theirs);
    }
    return status;
}

static lk_status tell_outcomes(lki_writing *writing, const lki_session *session,
                               const lk_error *mine, char *text, outcome *all)
{
    outcome *own = &all[session->rank];

    own->status = mine->status;
    own->bytes  = text != NULL ? strlen(text) : 0;
    (void)snprintf(own->message, sizeof own->message, "%s",
                   mine->status == LK_OK ? "" : mine->message);
    LK_TRY(lk_all_gather(session->comm, own, all, sizeof *own));
    for (uint32_t r = 0; r < session->ranks; r++)
        if (all[r].status != LK_OK)
            return lk_fail(all[r].status,
                           "rank %" PRIu32 " on host %" PRIu32 " has not written its part of the "
                           "checkpoint: %.360s",
                           r, lk_comm_host(session->comm, r), all[r].message);
    return gather_entries(writing, session, all, text);
}

lk_status lki_writing_gather(lki_writing *writing, const lki_session *session,
                             const lk_error *mine)
{
    outcome  *all  = NULL;
    char     *text = session->rank != 0 && json_array_size(writing->entries) > 0
                         ? json_dumps(writing->entries, JSON_COMPACT)
                         : NULL;
    lk_status status = LKI_NEW(&all, session->ranks, "what becomes of a checkpoint");
    if (status == LK_OK)
        status = tell_outcomes(writing, session, mine, text, all);
    lki_free(all);
    free(text);
    return status;
}

lk_status lki_writing_publish(lki_writing *writing, const lki_sheet *sheet,
                              const lk_train_config *config)
{
    const lki_contents contents = lki_sheet_contents(sheet);
    LK_TRY(lki_contents_check(&contents));
    return lki_draft_publish(writing->draft, &contents, writing->entries,
                             config->checkpoint.keep ? config->checkpoint.keep : 3);
}
