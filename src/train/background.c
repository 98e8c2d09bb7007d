/* background.c -- checkpoints that are written while the run goes on.
 *
 * The state lies in memory that ranks share, where a fork would not keep it as it is: so it is
 * copied, and a thread of rank 0's writes the copy, hashes and all.  The run stands still for the
 * copy alone.
 *
 * Rules:  There is one copy: a checkpoint waits until the one before it is written.  The last one
 *         of a run, and that of a request to stop, are written before anything else happens.  If
 *         the disk refuses one the run goes on, as it would lose what the checkpoint did not keep;
 *         the next one tries again, and the last one decides how the run ends.  Refused, it is
 *         none of the best (--keep-best).
 * Memory: parameters, the optimizer's state and running state once more, on rank 0's host.
 * Cost:   the writer takes time of a core that rank 0's host may need for the steps.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "tensor/exec.h"
#include "train/save.h"
#include "train/surroundings.h"

enum { ALIGN = 64, COPY_BYTES = 1 << 20 }; /* COPY_BYTES: what a task copies */

struct lki_background {
    const lk_train_config *config;
    lki_journal           *journal;
    char                  *copy;
    lki_sheet             *sheet; /* what is copied, or being written; or NULL */
    pthread_t              thread;
    bool                   busy;
    uint64_t               step;
    double                 stall;

    /* The writer's, until it is done. */
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

lk_status lki_background_open(lki_background **out, lki_session *session)
{
    lki_background *b = NULL;
    lki_sheet      *s = NULL;
    *out              = NULL;
    LK_TRY(LKI_NEW(&b, 1, "a writer of checkpoints"));
    b->config        = session->config;
    b->journal       = session->journal;
    lk_status status = LKI_NEW(&s, 1, "a checkpoint");
    if (status == LK_OK)
        status = lki_sheet_fill(session, s);
    if (status == LK_OK)
        status = lki_alloc((void **)&b->copy, lki_background_bytes(s->tensors, tensor_count(s)),
                           "the copy that checkpoints are written from (--checkpoint-async)");
    lki_sheet_free(s);
    if (status != LK_OK) {
        lki_background_close(b);
        return status;
    }
    *out = b;
    return LK_OK;
}

void lki_background_close(lki_background *b)
{
    if (b == NULL)
        return;
    if (b->busy)
        (void)pthread_join(b->thread, NULL);
    lki_sheet_free(b->sheet);
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

lk_status lki_background_copy(lki_background *b, lk_exec *exec, lki_sheet *sheet)
{
    char *to = b->copy;
    LK_ASSERT(!b->busy);
    lki_sheet_free(b->sheet); /* one that was never begun, as a rank was lost meanwhile */
    b->sheet = sheet;
    for (size_t f = 0; f < sheet->file_count; f++) {
        lk_checkpoint_file *file  = &sheet->files[f];
        lk_tensor          *first = sheet->tensors + (file->tensors - sheet->tensors);
        for (size_t i = 0; i < file->tensor_count; i++) {
            stretch s = { to, first[i].data, bytes_of(&first[i]) };
            if (s.from == NULL)
                LK_TRY(fetch(file, i, to));
            else
                lk_parallel_for(exec, (s.bytes + COPY_BYTES - 1) / COPY_BYTES, copy_part, &s);
            first[i].data = to;
            to += lki_round_up(s.bytes, ALIGN);
        }
        file->fetch = NULL;
    }
    return LK_OK;
}

/* ---- Writing ----------------------------------------------------------------------------- */

static lk_status write_copy(lki_background *b)
{
    lki_sheet *sheet = b->sheet;
    lk_weights_hash(sheet->files[0].tensors, sheet->files[0].tensor_count, sheet->weights);
    LK_TRY(lki_journal_sync(b->journal));
    return lki_sheet_is_there(sheet, b->config->checkpoint) ? LK_OK
                                                            : lki_sheet_write(sheet, b->config);
}

static void *writer(void *argument)
{
    lki_background  *b      = argument;
    double           begun  = lki_seconds();
    lki_surroundings around = lki_surroundings_enter();
    if (write_copy(b) != LK_OK)
        b->error = *lk_error_last();
    lki_surroundings_leave(&around);
    b->seconds = lki_seconds() - begun;
    atomic_store_explicit(&b->done, true, memory_order_release);
    return NULL;
}

/* The thread takes no signals: those are for the run. */
lk_status lki_background_start(lki_background *b, uint64_t step, double stall)
{
    sigset_t all, before;
    b->step  = step;
    b->stall = stall;
    b->error = (lk_error){ .status = LK_OK };
    atomic_store_explicit(&b->done, false, memory_order_relaxed);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    b->busy = pthread_create(&b->thread, NULL, writer, b) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return b->busy ? LK_OK : lk_fail(LK_ENOMEM, "cannot start a thread that writes checkpoints");
}

static lk_status note_failure(lki_session *session, uint64_t step)
{
    const lki_background *b = session->background;
    lki_watch_refused(&session->watch, session->config, b->step);
    session->checkpoints.failed++;
    session->checkpoints.stalled += b->stall;
    lki_journal_note(session->journal, "the checkpoint of step %llu failed: %s; the run goes on, "
                     "and the next one tries again", (unsigned long long)b->step,
                     b->error.message);
    return lki_journal_saved(session->journal, step, b->step, b->stall, b->seconds,
                             b->error.message);
}

lk_status lki_background_settle(lki_session *session, uint64_t step, bool wait)
{
    lki_background *b = session->background;
    if (b == NULL || !b->busy ||
        (!wait && !atomic_load_explicit(&b->done, memory_order_acquire)))
        return LK_OK;
    (void)pthread_join(b->thread, NULL);
    b->busy = false;
    lki_sheet_free(b->sheet);
    b->sheet = NULL;
    if (b->error.status == LK_OK)
        return lki_note_saved(session, step, b->step, b->stall, b->seconds);
    return b->error.status == LK_EIO ? note_failure(session, step) : lki_fail_again(&b->error);
}
