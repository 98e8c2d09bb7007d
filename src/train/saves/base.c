/* base.c -- the frozen parameters of a model with adapters; see base.h. */
#include "train/saves/base.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "checkpoint/folder.h"
#include "comm/worker.h"

#define BASE_KEY "base"
#define ARENA "frozen"

/* ---- Reading ------------------------------------------------------------------------------- */

static size_t bytes_of(const lk_param *param)
{
    return lki_round_up(lk_shape_count(param->shape) * sizeof(float), LKI_LINE);
}

size_t lki_base_bytes(const lk_model *model)
{
    uint32_t        count;
    const lk_param *params = lk_model_frozen(model, &count);
    size_t          bytes  = 0;
    for (uint32_t i = 0; i < count; i++)
        bytes += bytes_of(&params[i]);
    return bytes;
}

/* Sets the address of each value. */
static void place(const lk_model *model, const void *memory, const float **values)
{
    uint32_t             count;
    const lk_param      *params = lk_model_frozen(model, &count);
    const unsigned char *at     = memory;
    for (uint32_t i = 0; i < count; at += bytes_of(&params[i++]))
        values[i] = (const float *)(const void *)at;
}

lk_status lki_base_read(const char *folder, lk_exec *exec, const lk_model *model, void *memory,
                        const float **values, char hash[65])
{
    uint32_t        count;
    const lk_param *params = lk_model_frozen(model, &count);
    lki_folder     *file   = NULL;
    if (access(folder, F_OK) != 0)
        return lk_fail(LK_EIO, "cannot open '%s', the model that the adapters were trained with: "
                               "%s; put a symbolic link there, or give its new path as `init` to "
                               "lockstep resume or verify",
                       folder, strerror(errno));
    lk_status status = lki_folder_open(&file, folder);
    place(model, memory, values);
    for (uint32_t i = 0; status == LK_OK && i < count; i++)
        status = lki_init_read(exec, file, folder, &params[i], (float *)(uintptr_t)values[i]);
    if (status == LK_OK && hash != NULL)
        status = lki_folder_hash(file, hash);
    lki_folder_free(file);
    return status;
}

/* ---- In checkpoints ------------------------------------------------------------------------ */

const char *lki_base_recorded(const json_t *config)
{
    return json_string_value(json_object_get(json_object_get(config, BASE_KEY), "path"));
}

lk_status lki_base_compare(const json_t *config, const char *folder, const char *hash)
{
    const json_t *base = json_object_get(config, BASE_KEY);
    const char   *want = json_string_value(json_object_get(base, "hash"));
    if (want == NULL || strcmp(want, hash) == 0)
        return LK_OK;
    return lk_fail(LK_EMISMATCH, "'%s' has other weights (%.16s...) than the model that the "
                                 "adapters were trained with (%.16s...); give that one as `init`",
                   folder, hash, want);
}

void lki_base_write(json_t *config, const lki_session *session)
{
    const lki_base *base = session->base;
    if (base != NULL)
        (void)json_object_set_new(config, BASE_KEY, json_pack("{s:s, s:s}", "path",
                                                              base->origin->folder, "hash",
                                                              base->origin->hash));
}

/* Reads the configuration of the checkpoint to continue from; NULL if there is none. */
static lk_status read_recorded(const lk_train_config *config, json_t **out)
{
    const lk_train_checkpoint *c = &config->checkpoint;
    char                       path[LKI_PATH_BYTES];
    lk_checkpoint             *checkpoint = NULL;
    bool                       exists     = false;
    *out = NULL;
    if (c->resume)
        LK_TRY(lk_checkpoint_exists(c->folder, &exists));
    if (!exists)
        return LK_OK;
    (void)snprintf(path, sizeof path, "%s", c->folder);
    if (c->resume_step >= 0)
        (void)snprintf(path, sizeof path, "%s/step-%08lld", c->folder, (long long)c->resume_step);
    LK_TRY(lk_checkpoint_open_manifest(&checkpoint, path, NULL, 0));
    *out = json_loads(lk_checkpoint_describe(checkpoint)->config, 0, NULL);
    lk_checkpoint_free(checkpoint);
    return LK_OK;
}

/* ---- Opening ------------------------------------------------------------------------------- */

/* Sets the absolute path of the base: that of `init` or, if the run continues and `init` is not
 * there, the recorded one. */
static lk_status find_folder(lki_base_origin *base, const char *init, const json_t *stored)
{
    const char *recorded = lki_base_recorded(stored);
    const bool  there    = init != NULL && (recorded == NULL || access(init, F_OK) == 0);
    const char *path     = there ? init : recorded;
    if (path == NULL)
        return lk_fail(LK_EINVAL, "`lora_rank` needs `init`, the model that the adapters adapt");
    char *whole = realpath(path, NULL);
    int   wrote = snprintf(base->folder, sizeof base->folder, "%s", whole != NULL ? whole : path);
    free(whole);
    return wrote < (int)sizeof base->folder
               ? LK_OK
               : lk_fail(LK_EINVAL, "`init`: a path of %d bytes is too long", wrote);
}

/* Compares the hash of a base with that of the checkpoint to continue from. */
static lk_status compare_folder(const json_t *stored, const char *path)
{
    lki_folder *folder = NULL;
    char        hash[65];
    LK_TRY(lki_folder_open(&folder, path));
    lk_status status = lki_folder_hash(folder, hash);
    lki_folder_free(folder);
    return status != LK_OK ? status : lki_base_compare(stored, path, hash);
}

lk_status lki_base_check(const lk_train_config *config)
{
    json_t *stored = NULL;
    char   *whole  = config->init != NULL ? realpath(config->init, NULL) : NULL;
    if (whole == NULL)
        return LK_OK; /* the recorded one is read */
    lk_status   status   = read_recorded(config, &stored);
    const char *recorded = lki_base_recorded(stored);
    if (status == LK_OK && recorded != NULL && strcmp(recorded, whole) != 0)
        status = compare_folder(stored, whole);
    json_decref(stored);
    free(whole);
    return status;
}

/* Returns the bytes before the values in their memory. */
static size_t origin_bytes(void)
{
    return lki_round_up(sizeof(lki_base_origin), LKI_LINE);
}

static unsigned char *values_in(lk_arena *arena)
{
    return (unsigned char *)lk_arena_data(arena) + origin_bytes();
}

/* Reads the base on rank 0.  It must be that of the checkpoint to continue from. */
static lk_status read_first(lki_session *s, void *memory)
{
    lki_base_origin *origin = s->base->origin;
    json_t          *stored = NULL;
    LK_TRY(read_recorded(s->config, &stored));
    lk_status status = find_folder(origin, s->config->init, stored);
    if (status == LK_OK)
        status = lki_base_read(origin->folder, s->exec, s->model, memory, s->base->values,
                               origin->hash);
    if (status == LK_OK)
        status = lki_base_compare(stored, origin->folder, origin->hash);
    json_decref(stored);
    return status;
}

/* Copies what the host of rank `from` has to the other hosts; on one host, waits until the values
 * are complete. */
static lk_status share(lk_comm *comm, lk_arena *arena, uint32_t from, size_t bytes)
{
    size_t *parts = NULL;
    LK_TRY(LKI_NEW(&parts, lk_comm_size(comm), "parts of an arena"));
    parts[from]      = bytes;
    lk_status status = lk_arena_mirror(comm, arena, 0, parts);
    lki_free(parts);
    return status;
}

/* Gives the engine the addresses in an arena. */
static lk_status use(lki_session *s, lk_arena *arena, uint32_t count)
{
    LK_TRY(LKI_NEW(&s->base, 1, "frozen parameters"));
    LK_TRY(LKI_NEW(&s->base->values, count, "frozen parameters"));
    s->base->origin = lk_arena_data(arena);
    place(s->model, values_in(arena), s->base->values);
    lk_engine_set_frozen(s->engine, s->base->values);
    return LK_OK;
}

lk_status lki_base_open(lki_session *s)
{
    const size_t bytes = origin_bytes() + lki_base_bytes(s->model);
    uint32_t     count;
    lk_arena    *arena = NULL;

    (void)lk_model_frozen(s->model, &count);
    if (count == 0)
        return LK_OK;
    LK_TRY(lk_comm_arena(&arena, s->comm, ARENA, bytes));
    LK_TRY(use(s, arena, count));
    lki_let_rank_0_work(s, true);
    lk_status status = s->rank == 0 ? read_first(s, values_in(arena)) : LK_OK;
    if (status == LK_OK)
        status = share(s->comm, arena, 0, bytes);
    lki_let_rank_0_work(s, false);
    return status;
}

/* Returns the lowest rank whose host has the base, or one that lacks it if not `has`; the number of
 * ranks if there is none. */
static uint32_t find_host(const lk_comm *comm, bool has)
{
    uint32_t r = 0;
    while (r < lk_comm_size(comm) && lki_comm_host_is_fresh(comm, lk_comm_host(comm, r)) == has)
        r++;
    return r;
}

lk_status lki_base_hand_over(const lki_session *s, lk_comm *comm)
{
    const size_t bytes = origin_bytes() + lki_base_bytes(s->model);
    uint32_t     count;
    (void)lk_model_frozen(s->model, &count);
    if (count == 0 || find_host(comm, false) == lk_comm_size(comm))
        return LK_OK;
    lk_arena *arena = lki_comm_arena_named(comm, ARENA);
    if (lki_comm_host_is_fresh(comm, lk_comm_host(comm, lk_comm_rank(comm))))
        LK_TRY(lki_comm_own_arena(&arena, comm, ARENA, bytes));
    return share(comm, arena, find_host(comm, true), bytes);
}

lk_status lki_base_enter(lki_session *s)
{
    uint32_t  count;
    lk_arena *arena = lki_comm_arena_named(s->comm, ARENA);

    (void)lk_model_frozen(s->model, &count);
    if (count == 0)
        return LK_OK;
    if (arena == NULL)
        return lk_fail(LK_EINVAL, "the others have no frozen parameters: they cannot be entered");
    return use(s, arena, count);
}

void lki_base_close(lki_session *s)
{
    if (s->base != NULL)
        lki_free(s->base->values);
    lki_free(s->base);
    s->base = NULL;
}
