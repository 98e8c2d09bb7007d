/* write.c -- writes a checkpoint from one process: opens a draft, writes all files, publishes
 * it. */
#include <inttypes.h>
#include <string.h>

#include "checkpoint/draft.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"

/* ---- Arguments ----------------------------------------------------------------------------- */

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

lk_status lki_contents_check(const lki_contents *contents)
{
    LK_TRY(check_info(contents->info));
    return check_files(contents->files, contents->file_count);
}

/* ---- Writing ------------------------------------------------------------------------------- */

static lk_status write_all(lki_draft *draft, const lki_contents *contents, json_t *entries,
                           uint32_t keep)
{
    if (entries == NULL)
        return lk_fail(LK_ENOMEM, "a manifest");
    for (size_t i = 0; i < contents->file_count; i++)
        LK_TRY(lki_draft_write_file(lki_draft_path(draft), &contents->files[i], entries));
    return lki_draft_publish(draft, contents, entries, keep);
}

lk_status lk_checkpoint_write(const char *dir, const lk_checkpoint_info *info,
                              const lk_checkpoint_file *files, size_t file_count, uint32_t keep)
{
    const lki_contents contents = { .info = info, .files = files, .file_count = file_count };
    lki_draft         *draft    = NULL;

    LK_TRY(lki_check_given("lk_checkpoint_write", "dir", dir, 1));
    LK_TRY(lki_check_given("lk_checkpoint_write", "info", info, 1));
    LK_TRY(lki_check_given("lk_checkpoint_write", "files", files, file_count));
    LK_TRY(lki_contents_check(&contents));
    LK_TRY(lki_draft_open(&draft, dir, info->step));
    json_t   *entries = json_array();
    lk_status status  = write_all(draft, &contents, entries, keep);
    json_decref(entries);
    lki_draft_free(draft);
    return status;
}
