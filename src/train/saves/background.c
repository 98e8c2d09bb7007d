/* background.c -- writes checkpoints while the run continues.
 *
 * The state is in memory shared between processes, so a fork would not preserve a snapshot of it.
 * Instead the state is copied, and a thread of rank 0 hashes and writes the copy.  The run stops
 * only for the copy.  If each host writes its own part (parts.c), each host has such a copy and
 * thread.  Between two steps all ranks learn when the last thread has finished.  A second thread of
 * rank 0 then publishes the checkpoint.
 *
 * Rules: There is one copy, so a checkpoint waits until the previous one is written.  The last
 * checkpoint of a run, and that of a request to stop, are written synchronously.  If the disk
 * fails, the run continues, since ending it would lose the unsaved steps.  The next checkpoint
 * tries again, and the last one decides whether the run fails.  A failed checkpoint is not one of
 * the best (--keep-best).
 * Memory: a second copy of parameters, optimizer state and running state on rank 0's host, or on
 * each host a copy of its part.
 * Cost: the writer uses time of a core that the steps may need.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "comm/worker.h"
#include "parallel/stored.h"
#include "tensor/exec.h"
#include "train/core/run_environment.h"
#include "train/saves/parts.h"

enum { ALIGN = 64, COPY_BYTES = 1 << 20 }; /* COPY_BYTES: bytes that one task copies */

struct lki_background {
    const lk_train_config *config;
    lki_journal           *journal;
    bool                   first; /* this is rank 0 */
    char                  *copy;
    lki_sheet             *sheet; /* the contents being copied or written; NULL: none */
    lki_writing           *writing; /* the draft if several hosts write; else NULL */
    bool                   gathered; /* all hosts have written; rank 0 publishes */
    pthread_t              thread;
    bool                   busy;
    uint64_t               step;
    double                 stall;

    /* Written by the thread until `done` is true. */
    _Atomic bool done;
    double       seconds;
    lk_error     error;
};

/* ---- Opening ----------------------------------------------------------------------------- */

static size_t bytes_of(const lk_tensor *tensor)
{
    return (size_t)lk_shape_count(tensor->shape) * lk_dtype_bytes(tensor->dtype);
}

size_t lki_background_bytes(const lk_tensor *tensors, size_t count)
{
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += lki_round_up(bytes_of(&tensors[i]), ALIGN);
    return bytes;
}

static size_t tensor_count(const lki_sheet *sheet)
{
    size_t count = 0;
    for (size_t f = 0; f < sheet->file_count; f++)
        count += sheet->files[f].tensor_count;
    return count;
}

static bool is_whole(const lki_sheet *sheet, size_t file)
{
    const lki_contents contents = lki_sheet_contents(sheet);
    return !lki_contents_has_parts(&contents, file);
}

/* Returns the bytes that this rank copies: its own parts and, on rank 0, the undivided files. */
static size_t bytes_to_copy(const lki_background *b, const lki_sheet *sheet)
{
    size_t bytes = 0;
    if (sheet->part_count == 0)
        return lki_background_bytes(sheet->tensors, tensor_count(sheet));
    for (size_t p = 0; p < sheet->part_count; p++)
        for (size_t i = 0; i < sheet->parts[p].count; i++)
            if (sheet->parts[p].stretches[i].data != NULL)
                bytes += lki_round_up(sheet->parts[p].stretches[i].count * sizeof(float), ALIGN);
    for (size_t f = 0; b->first && f < sheet->file_count; f++)
        if (is_whole(sheet, f))
            bytes += lki_background_bytes(sheet->files[f].tensors, sheet->files[f].tensor_count);
    return bytes;
}

size_t lki_snapshot_bytes(const lk_train_config *c, const lk_model *model, size_t params_part,
                          size_t states_part)
{
    const lk_optimizer kept = lki_federates(c) ? lki_outer_optimizer(c) : c->optimizer;
    uint32_t        params, states, slots = lk_optimizer_state_count(&kept);
    const uint32_t  copies = c->optimizer.ema > 0 ? 2 : 1;
    const lk_param *param  = lk_model_params(model, &params);
    const lk_state *state  = lk_model_states(model, &states);
    size_t          bytes = 0, values = 0;

    for (uint32_t p = 0; p < params; p++) {
        lk_tensor one = { NULL, LK_F32, param[p].shape, NULL };
        values += lki_background_bytes(&one, 1);
    }
    for (uint32_t i = 0; i < states; i++) {
        lk_tensor one = { NULL, LK_F32, { 1, { state[i].count } }, NULL };
        bytes += copies * lki_background_bytes(&one, 1);
    }
    bytes += slots * (states_part > 0 ? states_part : values);
    return bytes + (params_part > 0 ? params_part : values);
}

/* Returns the bytes of the largest copy of any rank; equal on all ranks of a host. */
static size_t room_for_copy(const lki_session *session)
{
    const lk_parallel *parallel = session->parallel;
    const size_t       part     = session->saves->by_owners ? lki_stored_most(parallel) : 0;
    return lki_snapshot_bytes(session->config, session->model,
                              lki_stored_in_parts(parallel, 0) ? part : 0,
                              lki_stored_in_parts(parallel, 1) ? part : 0);
}

lk_status lki_background_make_room(lki_session *session)
{
    return lki_comm_limit_one(session->comm, room_for_copy(session), lki_parts_writes(session));
}

lk_status lki_background_open(lki_background **out, lki_session *session)
{
    lki_background *b = NULL;
    lki_sheet      *s = NULL;
    *out              = NULL;
    LK_TRY(LKI_NEW(&b, 1, "a writer of checkpoints"));
    b->config        = session->config;
    b->journal       = session->journal;
    b->first         = session->rank == 0;
    lk_status status = LKI_NEW(&s, 1, "a checkpoint");
    if (status == LK_OK)
        status = lki_sheet_fill(session, s);
    if (status == LK_OK && session->saves->by_owners)
        status = lki_sheet_divide(session, s);
    if (status == LK_OK)
        status = lki_alloc((void **)&b->copy, bytes_to_copy(b, s),
                           "the copy that checkpoints are written from (`checkpoint.async`)");
    lki_sheet_free(s);
    if (status != LK_OK) {
        lki_background_close(b);
        return status;
    }
    *out = b;
    return LK_OK;
}

/* Frees the contents of the checkpoint, and its draft if that was not published. */
static void forget(lki_background *b)
{
    lki_sheet_free(b->sheet);
    if (b->writing != NULL)
        lki_writing_end(b->writing);
    lki_free(b->writing);
    b->sheet    = NULL;
    b->writing  = NULL;
    b->gathered = false;
}

void lki_background_close(lki_background *b)
{
    if (b == NULL)
        return;
    if (b->busy)
        (void)pthread_join(b->thread, NULL);
    forget(b);
    lki_free(b->copy);
    lki_free(b);
}

/* ---- Copying ----------------------------------------------------------------------------- */

typedef struct {
    char       *to;
    const char *from;
    size_t      bytes;
} stretch;

static void copy_part(void *context, size_t i)
{
    const stretch *s  = context;
    size_t         at = i * COPY_BYTES;
    memcpy(s->to + at, s->from + at, lki_min(COPY_BYTES, s->bytes - at));
}

static lk_status fetch(const lk_checkpoint_file *file, size_t tensor, char *to)
{
    size_t count = lk_shape_count(file->tensors[tensor].shape);
    size_t width = lk_dtype_bytes(file->tensors[tensor].dtype);
    for (size_t at = 0; at < count; at += LK_CHECKPOINT_PIECE)
        LK_TRY(file->fetch(file->context, tensor, at, lki_min(count - at, LK_CHECKPOINT_PIECE),
                           to + at * width));
    return LK_OK;
}

static void copy(lk_exec *exec, const void **data, size_t bytes, char **to)
{
    stretch s = { *to, *data, bytes };
    lk_parallel_for(exec, (bytes + COPY_BYTES - 1) / COPY_BYTES, copy_part, &s);
    *data = *to;
    *to += lki_round_up(bytes, ALIGN);
}

static lk_status copy_file(lk_exec *exec, lki_sheet *sheet, lk_checkpoint_file *file, char **to)
{
    lk_tensor *first = sheet->tensors + (file->tensors - sheet->tensors);
    for (size_t i = 0; i < file->tensor_count; i++) {
        const size_t bytes = bytes_of(&first[i]);
        if (first[i].data != NULL) {
            copy(exec, &first[i].data, bytes, to);
            continue;
        }
        LK_TRY(fetch(file, i, *to));
        first[i].data = *to;
        *to += lki_round_up(bytes, ALIGN);
    }
    file->fetch = NULL;
    return LK_OK;
}

lk_status lki_background_copy(lki_background *b, lk_exec *exec, lki_sheet *sheet,
                              lki_writing *writing)
{
    char *to = b->copy;
    LK_ASSERT(!b->busy);
    forget(b); /* a copy that was not written because a rank was lost */
    b->sheet   = sheet;
    b->writing = writing;
    for (size_t p = 0; p < sheet->part_count; p++)
        for (size_t i = 0; i < sheet->parts[p].count; i++) {
            lki_stretch *s = &sheet->own_parts[p].stretches[i];
            if (s->data != NULL)
                copy(exec, &s->data, s->count * sizeof(float), &to);
        }
    for (size_t f = 0; b->first && f < sheet->file_count; f++)
        if (is_whole(sheet, f))
            LK_TRY(copy_file(exec, sheet, &sheet->files[f], &to));
    return LK_OK;
}

/* ---- Writing ----------------------------------------------------------------------------- */

/* Hashes the weights, if the copy has not done so, and syncs the log. */
static lk_status hash_and_sync(lki_background *b)
{
    lki_sheet *sheet = b->sheet;
    if (sheet->weights[0] == '\0')
        lk_weights_hash(sheet->files[0].tensors, sheet->files[0].tensor_count, sheet->weights);
    return lki_journal_sync(b->journal);
}

static lk_status write_copy(lki_background *b)
{
    lki_sheet  *sheet = b->sheet;
    const char *dir   = b->config->checkpoint.folder;
    if (b->first && !b->gathered)
        LK_TRY(hash_and_sync(b));
    if (b->writing != NULL && !b->gathered)
        return lki_writing_files(b->writing, sheet, b->first);
    if (b->first && lki_sheet_is_there(sheet, dir))
        return LK_OK;
    return b->writing != NULL ? lki_writing_publish(b->writing, sheet, b->config)
                              : lki_sheet_write(sheet, b->config);
}

static void *writer(void *argument)
{
    lki_background     *b           = argument;
    double              begun       = lki_seconds();
    lki_run_environment environment = lki_run_environment_enter();
    if (write_copy(b) != LK_OK)
        b->error = *lk_error_last();
    lki_run_environment_leave(&environment);
    b->seconds += lki_seconds() - begun;
    atomic_store_explicit(&b->done, true, memory_order_release);
    return NULL;
}

/* Starts the writer thread with all signals blocked, since the main thread handles signals. */
static lk_status start(lki_background *b)
{
    sigset_t all, before;
    b->error = (lk_error){ .status = LK_OK };
    atomic_store_explicit(&b->done, false, memory_order_relaxed);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    b->busy = pthread_create(&b->thread, NULL, writer, b) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return b->busy ? LK_OK : lk_fail(LK_ENOMEM, "cannot start a thread that writes checkpoints");
}

lk_status lki_background_start(lki_background *b, uint64_t step, double stall)
{
    if (b == NULL || b->sheet == NULL)
        return LK_OK;
    b->step    = step;
    b->stall   = stall;
    b->seconds = 0;
    return start(b);
}

bool lki_background_writes(const lki_background *b)
{
    return b != NULL && b->busy && !atomic_load_explicit(&b->done, memory_order_acquire);
}

static lk_status note_failure(lki_session *session, uint64_t step)
{
    const lki_background *b = session->saves->background;
    lki_stopping_refused(&session->progress.stopping, session->config, b->step);
    session->saves->times.failed++;
    session->saves->times.stalled += b->stall;
    lki_journal_note(session->journal, "the checkpoint of step %llu failed: %s; the run continues, "
                     "and the next one tries again", (unsigned long long)b->step,
                     b->error.message);
    return lki_journal_saved(session->journal, step, b->step, b->stall, b->seconds,
                             b->error.message);
}

static void join(lki_background *b)
{
    (void)pthread_join(b->thread, NULL);
    b->busy = false;
}

/* Reports a checkpoint that was written or has failed. */
static lk_status conclude(lki_session *session, uint64_t step)
{
    lki_background *b = session->saves->background;
    forget(b);
    if (b->error.status == LK_OK)
        return lki_note_saved(session, step, b->step, b->stall, b->seconds);
    return b->error.status == LK_EIO ? note_failure(session, step) : lki_fail_again(&b->error);
}

/* Gathers the results of all hosts when they have finished.  On success rank 0 then publishes the
 * checkpoint. */
static lk_status gather(lki_session *session, uint64_t step)
{
    lki_background *b       = session->saves->background;
    lki_writing     nothing = { 0 };
    lk_error        mine    = { .status = LK_OK };

    session->saves->drafting = false;
    if (b != NULL) {
        join(b);
        mine = b->error;
    }
    lk_status status = lki_writing_gather(b != NULL ? b->writing : &nothing, session, &mine);
    if (session->rank != 0) {
        if (b != NULL)
            forget(b);
        return status == LK_EIO ? LK_OK : status; /* rank 0 logs the disk error */
    }
    LK_ASSERT(b != NULL);
    b->gathered = status == LK_OK;
    if (status == LK_OK)
        return start(b);
    b->error = *lk_error_last();
    return conclude(session, step);
}

lk_status lki_background_settle(lki_session *session, uint64_t step, bool wait)
{
    lki_background *b = session->saves->background;

    if (session->saves->drafting && !wait && !session->saves->drafted)
        return LK_OK;
    if (session->saves->drafting)
        LK_TRY(gather(session, step));
    if (b == NULL || !b->busy || (!wait && lki_background_writes(b)))
        return LK_OK;
    join(b);
    return conclude(session, step);
}
