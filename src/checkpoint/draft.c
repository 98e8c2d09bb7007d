/* draft.c -- writes a checkpoint so that a crash at any point leaves the previous state.
 *
 *  DIR/.tmp-step-00000100-PID/   locked; every file written, hashed and fsynced by its owner
 *      manifest.json             last, fsynced: lists all other files and their hashes
 *  fsync of that directory       its entries are durable
 *  rename to DIR/step-00000100   appears complete or not at all
 *  fsync of DIR                  from here on it survives a power failure
 *  removing older steps          each is renamed first, so no half-empty step is ever visible
 *
 * A failure before the last fsync undoes everything.  A failure while removing older steps does not
 * fail the checkpoint; the next checkpoint tries again.
 */
#include "checkpoint/draft.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/directory.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"

struct lki_draft {
    const char *dir; /* borrowed */
    int         lock;
    char        temporary[LKI_PATH_BYTES], final[LKI_PATH_BYTES];
    char        scratch[LKI_PATH_BYTES];
};

/* ---- Files --------------------------------------------------------------------------------- */

static lk_status note_file(json_t *entries, const char *name, const lki_output *output)
{
    json_t *entry = json_pack("{s:s, s:I, s:s, s:O}", "name", name, "bytes",
                              (json_int_t)output->bytes, "sha256", output->sha256, "xxh3_128",
                              output->blocks);
    return json_array_append_new(entries, entry) == 0
               ? LK_OK
               : lk_fail(LK_ENOMEM, "the manifest's entry of '%s'", name);
}

lk_status lki_draft_write_file(const char *path, const lk_checkpoint_file *file, json_t *entries)
{
    char       name[LKI_PATH_BYTES];
    lki_output output;
    LK_TRY(lki_directory_join(name, path, file->name));
    lk_status status = lki_output_open(&output, name, true);
    if (status == LK_OK)
        status = lki_safetensors_put(&output, file);
    if (status == LK_OK)
        status = lki_output_finish(&output, true);
    if (status == LK_OK)
        status = note_file(entries, file->name, &output);
    lki_output_free(&output);
    return status;
}

/* Writes a file of stretches.  A stretch that is not a whole tensor is stored as one row. */
lk_status lki_draft_write_part(const char *path, const lki_contents *contents, const lki_part *part,
                               json_t *entries)
{
    lk_tensor *stored = NULL;
    LK_TRY(LKI_NEW(&stored, part->count + 1, "tensors of a part"));
    for (size_t i = 0; i < part->count; i++) {
        const lki_stretch *stretch = &part->stretches[i];
        stored[i]                  = contents->files[part->of].tensors[stretch->tensor];
        stored[i].data             = stretch->data;
        if (stretch->count != lk_shape_count(stored[i].shape))
            stored[i].shape = (lk_shape){ 1, { stretch->count } };
    }
    lk_checkpoint_file file   = { .name         = part->name,
                                  .tensors      = stored,
                                  .tensor_count = part->count };
    lk_status          status = lki_draft_write_file(path, &file, entries);
    lki_free(stored);
    return status;
}

/* ---- Tensors in the manifest --------------------------------------------------------------- */

bool lki_contents_has_parts(const lki_contents *contents, size_t file)
{
    for (size_t i = 0; i < contents->part_count; i++)
        if (contents->parts[i].of == file)
            return true;
    return false;
}

static int add_piece(json_t *pieces, const char *file, size_t first, size_t count)
{
    return json_array_append_new(pieces, json_pack("{s:s, s:I, s:I}", "file", file, "first",
                                                   (json_int_t)first, "count", (json_int_t)count));
}

/* Returns the stretch of a tensor that begins at element `first`, and sets *part to its part.
 * next[p] is the number of stretches of part p that belong to earlier tensors. */
static const lki_stretch *find_stretch(const lki_contents *contents, const size_t *next,
                                       size_t file, size_t tensor, size_t first, size_t *part)
{
    for (size_t p = 0; p < contents->part_count; p++) {
        const lki_part *had = &contents->parts[p];
        if (had->of != file || next[p] >= had->count)
            continue;
        const lki_stretch *s = &had->stretches[next[p]];
        *part                = p;
        if (s->tensor == tensor && s->first == first)
            return s;
    }
    return NULL;
}

static int add_pieces(json_t *pieces, const lki_contents *contents, size_t *next, size_t file,
                      size_t tensor, size_t count)
{
    int failed = 0;
    for (size_t at = 0, part; failed == 0 && at < count;) {
        const lki_stretch *s = find_stretch(contents, next, file, tensor, at, &part);
        LK_ASSERT(s != NULL && s->count > 0);
        failed = add_piece(pieces, contents->parts[part].name, at, s->count);
        at += s->count;
        next[part]++;
    }
    return failed;
}

static json_t *pieces_of(const lki_contents *contents, size_t *next, size_t file, size_t tensor,
                         size_t count)
{
    json_t *pieces = json_array();
    int     failed = lki_contents_has_parts(contents, file)
                         ? add_pieces(pieces, contents, next, file, tensor, count)
                         : add_piece(pieces, contents->files[file].name, 0, count);
    if (failed == 0)
        return pieces;
    json_decref(pieces);
    return NULL;
}

static int add_tensor(json_t *entries, const lki_contents *contents, size_t *next, size_t file,
                      size_t index)
{
    const lk_tensor *tensor = &contents->files[file].tensors[index];
    size_t           count  = lk_shape_count(tensor->shape);
    return json_array_append_new(
        entries, json_pack("{s:s, s:s, s:s, s:o, s:o}", "file", contents->files[file].name, "name",
                           tensor->name, "dtype", lk_dtype_name(tensor->dtype), "shape",
                           lki_shape_dump(tensor->shape), "pieces",
                           pieces_of(contents, next, file, index, count)));
}

static lk_status list_tensors(json_t *entries, const lki_contents *contents)
{
    size_t *next   = NULL;
    int     failed = 0;

    LK_TRY(LKI_NEW(&next, contents->part_count + 1, "stretches of parts"));
    for (size_t f = 0; f < contents->file_count; f++)
        for (size_t i = 0; failed == 0 && i < contents->files[f].tensor_count; i++)
            failed = add_tensor(entries, contents, next, f, i);
    lki_free(next);
    return failed == 0 ? LK_OK : lk_fail(LK_ENOMEM, "a manifest");
}

/* ---- The manifest -------------------------------------------------------------------------- */

static lk_status put_manifest(lki_draft *d, const char *text)
{
    lki_output output;
    LK_TRY(lki_directory_join(d->scratch, d->temporary, LKI_MANIFEST_NAME));
    lk_status status = lki_output_open(&output, d->scratch, true);
    if (status == LK_OK)
        status = lki_output_add(&output, text, strlen(text));
    if (status == LK_OK)
        status = lki_output_finish(&output, true);
    lki_output_free(&output);
    return status;
}

static lk_status write_manifest(lki_draft *d, const lki_contents *contents, const json_t *entries)
{
    char     *text   = NULL;
    json_t   *files  = json_deep_copy(entries), *tensors = json_array();
    lk_status status = files == NULL || tensors == NULL ? lk_fail(LK_ENOMEM, "a manifest")
                                                        : list_tensors(tensors, contents);
    if (status == LK_OK) {
        status = lki_manifest_dump(&text, contents->info, files, tensors);
    } else {
        json_decref(files);
        json_decref(tensors);
    }
    if (status == LK_OK)
        status = put_manifest(d, text);
    free(text);
    return status;
}

/* Checks that all files exist in the draft. */
static lk_status check_there(lki_draft *d, const json_t *entries)
{
    for (size_t i = 0; i < json_array_size(entries); i++) {
        const json_t *entry = json_array_get(entries, i);
        const char   *name  = json_string_value(json_object_get(entry, "name"));
        struct stat   info;
        LK_TRY(lki_directory_join(d->scratch, d->temporary, name));
        if (stat(d->scratch, &info) != 0 ||
            info.st_size != json_integer_value(json_object_get(entry, "bytes")))
            return lk_fail(LK_EIO, "'%s' is not here as its writer has written it: all hosts must "
                                   "see one directory", d->scratch);
    }
    return LK_OK;
}

/* ---- The directory ------------------------------------------------------------------------- */

/* Makes the final name available for the draft.  Fails if a complete step has that name.  A damaged
 * step of that name is renamed to a name that readers ignore. */
static lk_status make_way(lki_draft *d, const char *name)
{
    char           aside[LKI_STEP_NAME_BYTES + 40];
    struct stat    info;
    lk_checkpoint *there = NULL;
    if (lstat(d->final, &info) != 0)
        return LK_OK;
    lk_status status = lk_checkpoint_open(&there, d->final, NULL, 0);
    lk_checkpoint_free(there);
    if (status == LK_OK)
        return lk_fail(LK_EINVAL, "'%s' is there already and is never overwritten; resume from it "
                                  "or choose another directory", d->final);
    if (status == LK_ENOMEM)
        return status;
    (void)snprintf(aside, sizeof aside, "damaged-%s-%ld", name, (long)getpid());
    LK_TRY(lki_directory_join(d->scratch, d->dir, aside));
    if (rename(d->final, d->scratch) != 0)
        return lk_fail(LK_EIO, "'%s' is damaged and cannot be moved aside: %s", d->final,
                       strerror(errno));
    return LK_OK;
}

/* Opens and locks the new directory d->scratch.  Leaves d->lock negative if another writer, which
 * took the directory for one that a killed process has left, removes it. */
static lk_status hold(lki_draft *d)
{
    struct stat held, named;
    d->lock = open(d->scratch, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (d->lock < 0)
        return errno == ENOENT ? LK_OK
                               : lk_fail(LK_EIO, "cannot open the directory '%s': %s", d->scratch,
                                         strerror(errno));
    /* if the file system has no locks, no process removes temporary directories */
    const bool locked = flock(d->lock, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
    if (locked && fstat(d->lock, &held) == 0 && stat(d->scratch, &named) == 0 &&
        held.st_ino == named.st_ino && held.st_dev == named.st_dev)
        return LK_OK;
    (void)close(d->lock);
    d->lock = -1;
    return LK_OK;
}

/* Makes the directory d->scratch, and holds it.  Other writers sweep the directory above it. */
static lk_status make_held(lki_draft *d)
{
    enum { TRIES = 200 };
    static const struct timespec nap = { .tv_nsec = 1000000 };
    for (int i = 0; d->lock < 0; i++) {
        if (i > 0)
            (void)nanosleep(&nap, NULL);
        if (mkdir(d->scratch, 0777) != 0) {
            if (errno == EEXIST && i < TRIES)
                continue;
            return lk_fail(LK_EIO, "cannot make the directory '%s': %s", d->scratch,
                           strerror(errno));
        }
        /* from here on a failure must remove the directory */
        memcpy(d->temporary, d->scratch, sizeof d->temporary);
        LK_TRY(hold(d));
        if (d->lock < 0)
            d->temporary[0] = '\0';
    }
    return LK_OK;
}

static lk_status prepare(lki_draft *d, uint64_t step)
{
    char name[LKI_STEP_NAME_BYTES], temporary[LKI_STEP_NAME_BYTES + 40];
    lki_step_name(name, step);
    (void)snprintf(temporary, sizeof temporary, LKI_TEMPORARY_PREFIX "%s-%ld", name + 5,
                   (long)getpid());
    LK_TRY(lki_directory_join(d->final, d->dir, name));
    LK_TRY(lki_directory_make(d->dir));
    LK_TRY(make_way(d, name));
    lki_directory_sweep(d->dir);

    LK_TRY(lki_directory_join(d->scratch, d->dir, temporary));
    return make_held(d);
}

static lk_status publish(lki_draft *d)
{
    LK_TRY(lki_directory_sync(d->temporary));
    if (rename(d->temporary, d->final) != 0)
        return errno == ENOTEMPTY || errno == EEXIST
                   ? lk_fail(LK_EINVAL, "another process has written '%s' meanwhile, which is "
                                        "never overwritten", d->final)
                   : lk_fail(LK_EIO, "cannot rename '%s' to '%s': %s", d->temporary, d->final,
                             strerror(errno));
    lk_status status = lki_directory_sync(d->dir);
    if (status != LK_OK && rename(d->final, d->temporary) != 0)
        d->temporary[0] = '\0'; /* complete under its final name, but perhaps not durable yet */
    return status;
}

/* ---- Removing older steps ------------------------------------------------------------------ */

static void retire(lki_draft *d, const char *name)
{
    char *away = d->temporary; /* this buffer is free, because the new checkpoint has its final
                                * name */
    (void)snprintf(away, sizeof d->temporary, "%s/" LKI_TEMPORARY_PREFIX "%s-%ld", d->dir, name + 5,
                   (long)getpid());
    if (lki_directory_join(d->scratch, d->dir, name) == LK_OK && rename(d->scratch, away) == 0)
        lki_directory_remove(away);
}

static bool is_spared(const lk_checkpoint_info *info, uint64_t step)
{
    bool spared = step == info->step;
    for (size_t i = 0; i < info->spared_count && !spared; i++)
        spared = info->spared[i] == step;
    return spared;
}

/* Removes the steps that are older than the `keep` newest complete steps.  Newer steps are kept,
 * even if incomplete. */
static void prune(lki_draft *d, const lk_checkpoint_info *info, uint32_t keep)
{
    uint64_t *steps;
    size_t    count, complete = 0;
    if (keep == 0 || lki_steps_list(&steps, &count, d->dir) != LK_OK)
        return;
    for (size_t i = 0; i < count; i++) {
        char name[LKI_STEP_NAME_BYTES];
        lki_step_name(name, steps[i]);
        if (complete >= keep && !is_spared(info, steps[i]))
            retire(d, name);
        else if (steps[i] == info->step ||
                 (lki_directory_join(d->scratch, d->dir, name) == LK_OK &&
                  lki_checkpoint_complete(d->scratch)))
            complete++;
    }
    lki_free(steps);
}

/* ---- The draft ----------------------------------------------------------------------------- */

lk_status lki_draft_open(lki_draft **out, const char *dir, uint64_t step)
{
    lki_draft *d = NULL;
    *out         = NULL;
    LK_TRY(LKI_NEW(&d, 1, "the writer of a checkpoint"));
    *d               = (lki_draft){ .dir = dir, .lock = -1 };
    lk_status status = prepare(d, step);
    if (status != LK_OK)
        lki_draft_free(d);
    else
        *out = d;
    return status;
}

const char *lki_draft_name(const lki_draft *draft)
{
    return strrchr(draft->temporary, '/') + 1;
}

const char *lki_draft_path(const lki_draft *draft)
{
    return draft->temporary;
}

lk_status lki_draft_publish(lki_draft *draft, const lki_contents *contents, const json_t *entries,
                            uint32_t keep)
{
    LK_TRY(check_there(draft, entries));
    LK_TRY(write_manifest(draft, contents, entries));
    LK_TRY(publish(draft));
    prune(draft, contents->info, keep);
    draft->temporary[0] = '\0';
    return LK_OK;
}

void lki_draft_free(lki_draft *draft)
{
    if (draft == NULL)
        return;
    if (draft->temporary[0] != '\0')
        lki_directory_remove(draft->temporary);
    if (draft->lock >= 0)
        (void)close(draft->lock);
    lki_free(draft);
}
