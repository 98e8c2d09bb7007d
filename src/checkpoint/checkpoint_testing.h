/* checkpoint/checkpoint_testing.h -- for tests: a small checkpoint, and its folder. */
#ifndef LKI_CHECKPOINT_CHECKPOINT_TESTING_H
#define LKI_CHECKPOINT_CHECKPOINT_TESTING_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/draft.h"
#include "lockstep/checkpoint.h"

#define ZEROS_16 "0000000000000000"
#define WEIGHTS ZEROS_16 ZEROS_16 ZEROS_16 "00000000000000ff"

typedef struct {
    float              weight[6], bias[3], momentum[6];
    uint64_t           counter;
    lk_tensor          model[2], optimizer[1], state[1];
    lk_checkpoint_file files[3];
    lk_checkpoint_info info;
} small;

/* Sets the tensors to values that depend on the step, so that checkpoints of different steps
 * differ. */
static inline void small_init(small *s, uint64_t step)
{
    for (size_t i = 0; i < 6; i++) {
        s->weight[i]   = (float)(100 * step + i);
        s->momentum[i] = -(float)(100 * step + i);
        s->bias[i / 2] = (float)step;
    }
    s->counter      = step;
    s->model[0]     = (lk_tensor){ "wte.weight", LK_F32, { 2, { 2, 3 } }, s->weight };
    s->model[1]     = (lk_tensor){ "ln.bias", LK_F32, { 1, { 3 } }, s->bias };
    s->optimizer[0] = (lk_tensor){ "wte.weight", LK_F32, { 2, { 2, 3 } }, s->momentum };
    s->state[0]     = (lk_tensor){ "counter", LK_U64, { 0, { 0 } }, &s->counter };
    s->files[0]     = (lk_checkpoint_file){ .name = "model.safetensors",
                                          .tensors = s->model, .tensor_count = 2 };
    s->files[1]     = (lk_checkpoint_file){ .name = "optimizer.safetensors",
                                          .tensors = s->optimizer, .tensor_count = 1 };
    s->files[2]     = (lk_checkpoint_file){ .name = "state.safetensors",
                                          .tensors = s->state, .tensor_count = 1 };
    s->info         = (lk_checkpoint_info){ .step         = step,
                                            .seed         = UINT64_MAX,
                                            .exactness_id = "v8-b4",
                                            .weights      = WEIGHTS,
                                            .config       = "{\"lr\": 0.001, \"layers\": 2}" };
}

static inline lk_status small_write(const char *dir, uint64_t step, uint32_t keep)
{
    small s;
    small_init(&s, step);
    return lk_checkpoint_write(dir, &s.info, s.files, 3, keep);
}

/* Writes the small checkpoint in two parts of the model: elements 0 to 3 of wte.weight, and the
 * rest. */
static inline lk_status small_write_parts(const char *dir, uint64_t step, uint32_t keep)
{
    char       path[256];
    small      s;
    json_t    *entries = json_array();
    lki_draft *draft   = NULL;
    small_init(&s, step);
    const lki_stretch  left[]   = { { 0, 0, 4, s.weight }, { 1, 0, 3, s.bias } };
    const lki_stretch  right[]  = { { 0, 4, 2, s.weight + 4 } };
    const lki_part     parts[]  = { { "model-host1.safetensors", 0, right, 1 },
                                    { "model-host0.safetensors", 0, left, 2 } };
    const lki_contents contents = { &s.info, s.files, 3, parts, 2 };

    lk_status status = lki_draft_open(&draft, dir, step);
    if (status == LK_OK)
        (void)snprintf(path, sizeof path, "%.200s/%.50s", dir, lki_draft_name(draft));
    for (size_t i = 0; status == LK_OK && i < 2; i++)
        status = lki_draft_write_part(path, &contents, &parts[i], entries);
    for (size_t i = 1; status == LK_OK && i < 3; i++)
        status = lki_draft_write_file(path, &s.files[i], entries);
    if (status == LK_OK)
        status = lki_draft_publish(draft, &contents, entries, keep);
    lki_draft_free(draft);
    json_decref(entries);
    return status;
}

/* Removes a folder and its contents. */
static inline void remove_all(const char *path)
{
    DIR           *directory = opendir(path);
    struct dirent *found;
    char           inner[1024];
    while (directory != NULL && (found = readdir(directory)) != NULL)
        if (strcmp(found->d_name, ".") != 0 && strcmp(found->d_name, "..") != 0) {
            (void)snprintf(inner, sizeof inner, "%.500s/%s", path, found->d_name);
            if (unlink(inner) != 0)
                remove_all(inner);
        }
    if (directory != NULL)
        (void)closedir(directory);
    (void)rmdir(path);
}

/* Counts the entries of `path` that begin with `prefix`. */
static inline size_t entries(const char *path, const char *prefix)
{
    DIR           *directory = opendir(path);
    struct dirent *found;
    size_t         count = 0;
    while (directory != NULL && (found = readdir(directory)) != NULL)
        count += strncmp(found->d_name, prefix, strlen(prefix)) == 0;
    if (directory != NULL)
        (void)closedir(directory);
    return count;
}

/* ---- A new folder for each case ------------------------------------------------------------ */

static char folder[64];

static inline int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/lockstep-checkpoint-XXXXXX");
    return mkdtemp(folder) == NULL ? -1 : 0;
}

static inline int remove_folder(void **state)
{
    (void)state;
    remove_all(folder);
    return 0;
}

static inline const char *path_of(const char *name)
{
    static char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

#endif
