/* write.c -- writing a checkpoint so that a crash at any point leaves what was there.
 *
 *   DIR/.tmp-step-00000100-PID/   locked; every file written, hashed, fsynced
 *       manifest.json             last, fsynced: names all the others and their hashes
 *   fsync of that directory       its entries are durable
 *   rename to DIR/step-00000100   appears whole or not at all
 *   fsync of DIR                  from here on it survives losing power
 *   removing older steps          each is renamed away first, so no half-empty step is ever seen
 *
 * Whatever fails before the last fsync undoes all of it.  What fails while removing older steps
 * does not fail the checkpoint: the next one tries again.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/directory.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"

typedef struct {
    const char               *dir;
    const lk_checkpoint_info *info;
    const lk_checkpoint_file *files;
    size_t                    file_count;
    json_t                   *file_entries, *tensor_entries; /* of the manifest */
    int                       lock;
    char                      temporary[LKI_PATH_BYTES], final[LKI_PATH_BYTES];
    char                      scratch[LKI_PATH_BYTES];
} writer;

/* ---- What is asked ------------------------------------------------------------------------- */

static lk_status check_info(const lk_checkpoint_info *info)
{
    if (info->step > INT64_MAX)
        return lk_fail(LK_EINVAL, "step %" PRIu64 " is beyond what a checkpoint can name",
                       info->step);
    if (info->exactness_id == NULL || info->weights == NULL || info->config == NULL)
        return lk_fail(LK_EINVAL,
                       "a checkpoint needs exactness id, weights hash and configuration");
    if (!lki_is_hex(info->weights, 64))
        return lk_fail(LK_EINVAL, "a checkpoint's weights hash must have 64 hex digits");
    json_t *id     = json_string(info->exactness_id);
    json_t *config = json_loads(info->config, JSON_REJECT_DUPLICATES, NULL);
    bool    good   = id != NULL && json_is_object(config);
    json_decref(id);
    json_decref(config);
    return good ? LK_OK : lk_fail(LK_EINVAL, "a checkpoint's exactness id must be UTF-8 and its "
                                             "configuration one JSON object");
}

static lk_status check_files(const lk_checkpoint_file *files, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (files[i].name == NULL || !lki_manifest_name_ok(files[i].name))
            return lk_fail(LK_EINVAL,
                           "'%s' cannot name a file of a checkpoint: letters, digits, '.', '_', "
                           "'-', and .safetensors at the end", files[i].name ? files[i].name : "");
        for (size_t j = 0; j < i; j++)
            if (strcmp(files[i].name, files[j].name) == 0)
                return lk_fail(LK_EINVAL, "file '%s' of a checkpoint is given twice",
                               files[i].name);
        LK_TRY(lki_tensors_check(&files[i]));
    }
    return LK_OK;
}

/* ---- Files --------------------------------------------------------------------------------- */

static lk_status note_file(writer *w, const lk_checkpoint_file *file, const lki_output *output)
{
    int failed = json_array_append_new(
        w->file_entries, json_pack("{s:s, s:I, s:s, s:O}", "name", file->name, "bytes",
                                   (json_int_t)output->bytes, "sha256", output->sha256, "xxh3_128",
                                   output->blocks));
    for (size_t i = 0; i < file->tensor_count; i++) {
        const lk_tensor *tensor = &file->tensors[i];
        uint64_t         count, bytes;
        bool             fits = lki_shape_size(tensor->shape, tensor->dtype, &count, &bytes);
        LK_ASSERT(fits);
        failed |= json_array_append_new(
            w->tensor_entries,
            json_pack("{s:s, s:s, s:s, s:o, s:[{s:s, s:i, s:I}]}", "file", file->name, "name",
                      tensor->name, "dtype", lk_dtype_name(tensor->dtype), "shape",
                      lki_shape_dump(tensor->shape), "pieces", "file", file->name, "first", 0,
                      "count", (json_int_t)count));
    }
    return failed ? lk_fail(LK_ENOMEM, "the manifest's entry of '%s'", file->name) : LK_OK;
}

static lk_status write_file(writer *w, const lk_checkpoint_file *file)
{
    lki_output output;
    LK_TRY(lki_directory_join(w->scratch, w->temporary, file->name));
    lk_status status = lki_output_open(&output, w->scratch, true);
    if (status == LK_OK)
        status = lki_safetensors_put(&output, file);
    if (status == LK_OK)
        status = lki_output_finish(&output, true);
    if (status == LK_OK)
        status = note_file(w, file, &output);
    lki_output_free(&output);
    return status;
}

static lk_status write_manifest(writer *w)
{
    char      *text;
    lki_output output;
    LK_TRY(lki_directory_join(w->scratch, w->temporary, LKI_MANIFEST_NAME));
    LK_TRY(lki_manifest_dump(&text, w->info, json_incref(w->file_entries),
                             json_incref(w->tensor_entries)));
    lk_status status = lki_output_open(&output, w->scratch, true);
    if (status == LK_OK)
        status = lki_output_add(&output, text, strlen(text));
    if (status == LK_OK)
        status = lki_output_finish(&output, true);
    lki_output_free(&output);
    free(text);
    return status;
}

/* ---- The directory ------------------------------------------------------------------------- */

/* A whole step stays where it is.  A damaged one, which resuming has skipped, would be in the way
 * of the run that makes it again: it moves aside, under a name that means nothing to readers. */
static lk_status make_way(writer *w, const char *name)
{
    char           aside[LKI_STEP_NAME_BYTES + 40];
    struct stat    info;
    lk_checkpoint *there = NULL;
    if (lstat(w->final, &info) != 0)
        return LK_OK;
    lk_status status = lk_checkpoint_open(&there, w->final, NULL, 0);
    lk_checkpoint_free(there);
    if (status == LK_OK)
        return lk_fail(LK_EINVAL, "'%s' is there already and is never overwritten; resume from it "
                                  "or choose another directory", w->final);
    if (status == LK_ENOMEM)
        return status;
    (void)snprintf(aside, sizeof aside, "damaged-%s-%ld", name, (long)getpid());
    LK_TRY(lki_directory_join(w->scratch, w->dir, aside));
    if (rename(w->final, w->scratch) != 0)
        return lk_fail(LK_EIO, "'%s' is damaged and cannot be moved aside: %s", w->final,
                       strerror(errno));
    return LK_OK;
}

static lk_status prepare(writer *w)
{
    char name[LKI_STEP_NAME_BYTES], temporary[LKI_STEP_NAME_BYTES + 40];
    lki_step_name(name, w->info->step);
    (void)snprintf(temporary, sizeof temporary, LKI_TEMPORARY_PREFIX "%s-%ld", name + 5,
                   (long)getpid());
    LK_TRY(lki_directory_join(w->final, w->dir, name));
    LK_TRY(lki_directory_make(w->dir));
    LK_TRY(make_way(w, name));
    lki_directory_sweep(w->dir);

    LK_TRY(lki_directory_join(w->scratch, w->dir, temporary));
    if (mkdir(w->scratch, 0777) != 0)
        return lk_fail(LK_EIO, "cannot make the directory '%s': %s", w->scratch, strerror(errno));
    /* set: from here on there is something to remove */
    memcpy(w->temporary, w->scratch, sizeof w->temporary);
    w->lock = open(w->temporary, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (w->lock < 0)
        return lk_fail(LK_EIO, "cannot open the directory '%s': %s", w->temporary, strerror(errno));
    (void)flock(w->lock, LOCK_EX | LOCK_NB); /* where locks are missing, nobody can sweep either */
    return LK_OK;
}

static lk_status publish(writer *w)
{
    LK_TRY(lki_directory_sync(w->temporary));
    if (rename(w->temporary, w->final) != 0)
        return lk_fail(LK_EIO, "cannot rename '%s' to '%s': %s", w->temporary, w->final,
                       strerror(errno));
    lk_status status = lki_directory_sync(w->dir);
    if (status != LK_OK && rename(w->final, w->temporary) != 0)
        w->temporary[0] = '\0'; /* whole, under its final name, but perhaps not durable */
    return status;
}

static lk_status write_all(writer *w)
{
    LK_TRY(prepare(w));
    w->file_entries   = json_array();
    w->tensor_entries = json_array();
    if (w->file_entries == NULL || w->tensor_entries == NULL)
        return lk_fail(LK_ENOMEM, "a manifest");
    for (size_t i = 0; i < w->file_count; i++)
        LK_TRY(write_file(w, &w->files[i]));
    LK_TRY(write_manifest(w));
    return publish(w);
}

/* ---- Removing older steps ------------------------------------------------------------------ */

static void retire(writer *w, const char *name)
{
    char *away = w->temporary; /* free again: the new checkpoint has its final name */
    (void)snprintf(away, sizeof w->temporary, "%s/" LKI_TEMPORARY_PREFIX "%s-%ld", w->dir, name + 5,
                   (long)getpid());
    if (lki_directory_join(w->scratch, w->dir, name) == LK_OK && rename(w->scratch, away) == 0)
        lki_directory_remove(away);
}

static bool is_spared(const lk_checkpoint_info *info, uint64_t step)
{
    bool spared = step == info->step;
    for (size_t i = 0; i < info->spared_count && !spared; i++)
        spared = info->spared[i] == step;
    return spared;
}

/* Steps older than the keep-th complete one go; of a newer incomplete one nobody knows enough. */
static void prune(writer *w, uint32_t keep)
{
    uint64_t *steps;
    size_t    count, complete = 0;
    if (keep == 0 || lki_steps_list(&steps, &count, w->dir) != LK_OK)
        return;
    for (size_t i = 0; i < count; i++) {
        char name[LKI_STEP_NAME_BYTES];
        lki_step_name(name, steps[i]);
        if (complete >= keep && !is_spared(w->info, steps[i]))
            retire(w, name);
        else if (steps[i] == w->info->step ||
                 (lki_directory_join(w->scratch, w->dir, name) == LK_OK &&
                  lki_checkpoint_complete(w->scratch)))
            complete++;
    }
    lki_free(steps);
}

lk_status lk_checkpoint_write(const char *dir, const lk_checkpoint_info *info,
                              const lk_checkpoint_file *files, size_t file_count, uint32_t keep)
{
    writer *w = NULL;
    LK_TRY(check_info(info));
    LK_TRY(check_files(files, file_count));
    LK_TRY(LKI_NEW(&w, 1, "the writer of a checkpoint"));
    *w = (writer){ .dir = dir, .info = info, .files = files, .file_count = file_count, .lock = -1 };

    lk_status status = write_all(w);
    if (status == LK_OK)
        prune(w, keep);
    else if (w->temporary[0] != '\0')
        lki_directory_remove(w->temporary);
    if (w->lock >= 0)
        (void)close(w->lock);
    json_decref(w->file_entries);
    json_decref(w->tensor_entries);
    lki_free(w);
    return status;
}
