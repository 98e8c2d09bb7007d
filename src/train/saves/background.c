/* background.c -- checkpoints that are written while the run goes on.
 *
 * The state lies in memory that ranks share, where a fork would not keep it as it is: so it is
 * copied, and a thread of rank 0's writes the copy, hashes and all.  The run stands still for the
 * copy alone.  Where hosts write what they keep (parts.c) each has such a copy and such a thread;
 * between two steps all learn when the last one is done, and a second thread of rank 0's publishes
 * what has been written.
 *
 * Rules:  There is one copy: a checkpoint waits until the one before it is written.  The last one
 *         of a run, and that of a request to stop, are written before anything else happens.  If
 *         the disk refuses one the run goes on, as it would lose what the checkpoint did not keep;
 *         the next one tries again, and the last one decides how the run ends.  Refused, it is
 *         none of the best (--keep-best).
 * Memory: parameters, the optimizer's state and running state once more, on rank 0's host; or on
 *         each host what it writes.
 * Cost:   the writer takes time of a core that its host may need for the steps.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "comm/group.h"
#include "parallel/kept.h"
#include "tensor/exec.h"
#include "train/saves/parts.h"
#include "train/surroundings.h"

enum { ALIGN = 64, COPY_BYTES = 1 << 20 }; /* COPY_BYTES: what a task copies */

struct lki_background {
    const lk_train_config *config;
    lki_journal           *journal;
    bool                   first; /* rank 0's */
    char                  *copy;
    lki_sheet             *sheet; /* what is copied, or being written; or NULL */
    lki_writing           *writing; /* where, if others write, too; else NULL */
    bool                   gathered; /* all have written: it is being published */
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

static bool is_whole(const lki_sheet *sheet, size_t file)
{
    const lki_contents contents = lki_sheet_contents(sheet);
    return !lki_contents_has_parts(&contents, file);
}

/* Of what this rank writes: what is its own of the parts, and rank 0's files that are whole. */
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

/* All ranks of a host say the same, whoever of them writes. */
static size_t room_for_copy(const lki_session *session)
{
    const lk_parallel *parallel = session->parallel;
    const size_t       part     = session->by_owners ? lki_kept_most(parallel) : 0;
    return lki_snapshot_bytes(session->config, session->model,
                              lki_kept_in_parts(parallel, 0) ? part : 0,
                              lki_kept_in_parts(parallel, 1) ? part : 0);
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
    if (status == LK_OK && session->by_owners)
        status = lki_sheet_divide(session, s);
    if (status == LK_OK)
        status = lki_alloc((void **)&b->copy, bytes_to_copy(b, s),
                           "the copy that checkpoints are written from (--checkpoint-async)");
    lki_sheet_free(s);
    if (status != LK_OK) {
        lki_background_close(b);
        return status;
    }
    *out = b;
    return LK_OK;
}

/* The sheet that was copied, and a draft that was not published. */
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
    forget(b); /* one that was never begun, as a rank was lost meanwhile */
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

/* Where hosts keep parts of parameters, the hash was made with them. */
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
    const char *dir   = b->config->checkpoint;
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
    lki_background  *b      = argument;
    double           begun  = lki_seconds();
    lki_surroundings around = lki_surroundings_enter();
    if (write_copy(b) != LK_OK)
        b->error = *lk_error_last();
    lki_surroundings_leave(&around);
    b->seconds += lki_seconds() - begun;
    atomic_store_explicit(&b->done, true, memory_order_release);
    return NULL;
}

/* The thread takes no signals: those are for the run. */
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

static void join(lki_background *b)
{
    (void)pthread_join(b->thread, NULL);
    b->busy = false;
}

/* What has been written is over, well or not. */
static lk_status conclude(lki_session *session, uint64_t step)
{
    lki_background *b = session->background;
    forget(b);
    if (b->error.status == LK_OK)
        return lki_note_saved(session, step, b->step, b->stall, b->seconds);
    return b->error.status == LK_EIO ? note_failure(session, step) : lki_fail_again(&b->error);
}

/* All hosts have written, or will have: what that has come to.  Rank 0 goes on alone. */
static lk_status gather(lki_session *session, uint64_t step)
{
    lki_background *b       = session->background;
    lki_writing     nothing = { 0 };
    lk_error        mine    = { .status = LK_OK };

    session->drafting = false;
    if (b != NULL) {
        join(b);
        mine = b->error;
    }
    lk_status status = lki_writing_gather(b != NULL ? b->writing : &nothing, session, &mine);
    if (session->rank != 0) {
        if (b != NULL)
            forget(b);
        return status == LK_EIO ? LK_OK : status; /* rank 0 says so */
    }
    b->gathered = status == LK_OK;
    if (status == LK_OK)
        return start(b);
    b->error = *lk_error_last();
    return conclude(session, step);
}

lk_status lki_background_settle(lki_session *session, uint64_t step, bool wait)
{
    lki_background *b = session->background;

    if (session->drafting && !wait && !session->drafted)
        return LK_OK;
    if (session->drafting)
        LK_TRY(gather(session, step));
    if (b == NULL || !b->busy || (!wait && lki_background_writes(b)))
        return LK_OK;
    join(b);
    return conclude(session, step);
}
