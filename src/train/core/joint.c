/* joint.c -- joint turns: several virtual workers whose samples are computed at once.
 *
 * Forward, and the gradients of activations, have no sum over samples.  So a rank computes the
 * samples of a whole subtree of virtual workers in one pass, with the same bits.  The gradients of
 * parameters are computed for each virtual worker and merged by the tree in registers or in cache
 * (gemm_parts.c, conv_weights.c and conv_bf16.c of tensor/ops).  Only the sum of the subtree is
 * written to memory.  Blocks whose results depend on the other samples, such as BatchNorm, run once
 * for each virtual worker (nn/parts.c).
 *
 * The loader lends the micro-batches of a turn together.  They are copied only if their samples are
 * not contiguous in its memory.
 */
#include "train/core/joint.h"

#include <string.h>

#include "base/memory.h"
#include "train/config.h"

enum {
    SAMPLES_MOST = 512, /* maximum number of samples of a turn */
    PASSES       = 3,   /* passes over gradients that a virtual worker of a joint turn saves */
};

/* The maximum bytes of the activations of a turn with several virtual workers. */
#define ACTIVATIONS_MOST ((size_t)512 << 20)

/* Returns the bytes of an engine for turns of `count` micro-batches; SIZE_MAX if they are too
 * many. */
static size_t bytes_of(const lk_train_config *c, const lk_model *model, const lk_exec *exec,
                       uint32_t count)
{
    size_t    bytes;
    lk_status status = lki_engine_parts_bytes(&bytes, model, exec, c->precision, c->micro_batch,
                                              count);
    return status == LK_OK ? bytes : SIZE_MAX;
}

/* Returns true if turns of two micro-batches are expected to save time.  They save passes over
 * gradients in memory, but the activations of more samples leave the caches. */
static bool saves_time(const lk_train_config *c, const lk_model *model, const lk_exec *exec)
{
    size_t one = bytes_of(c, model, exec, 1), two = bytes_of(c, model, exec, 2);
    return two != SIZE_MAX &&
           two - one <= PASSES * sizeof(float) * lk_model_param_elements(model);
}

/* Returns true if gradients of single virtual workers are needed, with activation checkpointing, or
 * if the model was never faster with joint turns. */
static bool excludes(const lk_train_config *c, const lk_model *model)
{
    const char *name   = lk_strategy_name(c->strategy);
    bool        ranges = name == NULL || strcmp(name, "ddp") == 0 || strcmp(name, "zero1") == 0;
    bool        single = lki_duplicates(c) || c->elastic.backup_workers > 0 || c->audit > 0 ||
                  c->noise_decay > 0 || c->calls.hook != NULL || c->elastic.survives;
    bool        rounds = c->comm_dtype != 0 && c->comm_dtype != LK_F32;
    bool        tried  = strcmp(c->model, "mlp") == 0 || strcmp(c->model, "resnet") == 0;
    return !ranges || single || rounds || !tried || c->onednn != NULL ||
           lki_federates(c) || lki_is_async(c) || c->model_options.activation_checkpointing ||
           lk_model_lock_step(model) ||
           c->global_batch != c->virtual_workers * c->micro_batch;
}

uint32_t lki_joint_most(const lk_train_config *c, const lk_model *model, const lk_exec *exec)
{
    uint32_t share = (c->virtual_workers + c->workers - 1) / c->workers, most = 1;
    if (excludes(c, model) || !saves_time(c, model, exec))
        return 1;
    while (2 * most <= LKI_PARTS_MAX && 2 * most <= share &&
           2 * most * c->micro_batch <= SAMPLES_MOST &&
           bytes_of(c, model, exec, 2 * most) <= ACTIVATIONS_MOST)
        most *= 2;
    return most;
}

lk_status lki_joint_init(lki_joint *joint, const lk_dataset_info *data, uint32_t most,
                         uint32_t micro_batch)
{
    size_t samples = (size_t)most * micro_batch;

    joint->most    = most;
    joint->count   = 1;
    joint->x_bytes = lk_shape_count(data->x) * (data->tokens ? sizeof(int32_t) : sizeof(float));
    joint->y_count = data->targets;
    if (most == 1)
        return LK_OK;
    LK_TRY(lki_alloc_array((void **)&joint->x, samples, joint->x_bytes, "samples of a turn"));
    LK_TRY(LKI_NEW(&joint->y, samples * joint->y_count, "targets of a turn"));
    return LKI_NEW(&joint->weights, samples * joint->y_count, "weights of a turn");
}

void lki_joint_deinit(lki_joint *joint)
{
    lki_free(joint->x);
    lki_free(joint->y);
    lki_free(joint->weights);
}

void lki_joint_begin(lki_joint *joint, uint32_t count)
{
    LK_ASSERT(count <= joint->most);
    joint->count = count;
    memset(joint->parts, 0, sizeof joint->parts);
}

/* Returns true if the samples of `batch` follow those of `all` in memory. */
static bool follows(const lki_joint *joint, const lk_batch *all, const lk_batch *batch)
{
    size_t rows = all->samples * joint->y_count;
    return batch->x == (const char *)all->x + all->samples * joint->x_bytes &&
           batch->y == all->y + rows &&
           (batch->weights == NULL || batch->weights == all->weights + rows);
}

/* Copies the samples of `batch` behind the first `samples` ones of the turn. */
static void copy(lki_joint *joint, const lk_batch *batch, size_t samples)
{
    size_t from = samples * joint->y_count, rows = batch->samples * joint->y_count;
    memcpy(joint->x + samples * joint->x_bytes, batch->x, batch->samples * joint->x_bytes);
    memcpy(joint->y + from, batch->y, rows * sizeof *joint->y);
    if (batch->weights != NULL)
        memcpy(joint->weights + from, batch->weights, rows * sizeof *joint->weights);
}

void lki_joint_add(lki_joint *joint, const lk_batch *batch, uint32_t index, lk_batch *all)
{
    joint->parts[index].samples    = batch->samples;
    joint->parts[index].first_slot = batch->first_slot;
    if (index == 0)
        *all = *batch;
    if (index == 0 || batch->samples == 0)
        return;
    if (!follows(joint, all, batch)) {
        if (all->x != joint->x)
            copy(joint, all, 0);
        copy(joint, batch, all->samples);
        all->x       = joint->x;
        all->y       = joint->y;
        all->weights = batch->weights != NULL ? joint->weights : NULL;
    }
    all->samples += batch->samples;
}
