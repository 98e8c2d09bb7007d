/* feed.c -- the source of a step's micro-batches: a loader per rank, or one stream for all ranks.
 *
 * Rank 0 reads a stream.  At the beginning of a step it reads the samples of the next global batch
 * and broadcasts them, with a flag that says whether more samples follow.  Batch slots are filled
 * in order, and the run ends with the last sample of the stream.  So the sample at a position of
 * the stream does not depend on the rank or host that computes its virtual worker.  In a short last
 * batch the later virtual workers have no samples, and their ranks do not wait.  A thread of rank 0
 * reads one batch ahead.  The cost is one broadcast of the batch per step.
 */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "data/stream.h"
#include "parallel/virtual.h"
#include "tensor/exec.h"
#include "train/core/client_rounds.h"
#include "train/core/feed.h"

enum { SLICE_MS = 50, WAIT_MS = 30000 }; /* WAIT_MS: longest wait for a batch without --timeout */

struct lki_feed {
    lki_ahead *stream; /* opened on rank 0 only */
    uint8_t   *x;      /* of the global batch */
    int32_t   *y;
    size_t     x_bytes, y_count; /* of one sample */
    uint64_t   step, samples;    /* of the current step */
};

static lk_status open_loader(const lki_session *s, lk_loader **out, lki_share share,
                             const uint32_t *list, uint64_t start, uint64_t end)
{
    const lk_train_config *c       = s->config;
    lk_loader_options      options = { .struct_size     = sizeof options,
                                       .seed            = c->seed,
                                       .global_batch    = c->global_batch,
                                       .micro_batch     = c->micro_batch,
                                       .virtual_workers = c->virtual_workers,
                                       .first           = share.first,
                                       .count           = share.count,
                                       .stride          = share.stride,
                                       .list            = list,
                                       .lock_step       = lk_model_lock_step(s->model),
                                       .borrowed        = s->turn.joint.most,
                                       .drop_last       = c->drop_last,
                                       .order           = c->data.order,
                                       .threads         = c->data.loader_threads,
                                       .start_step      = start,
                                       .end_step        = lki_max(start, end) };
    lki_exec_pin_caller(s->exec, false); /* the loader's threads inherit the unpinned affinity */
    lk_status status = lk_loader_open(out, s->dataset, &options);
    lki_exec_pin_caller(s->exec, true);
    return status;
}

lk_status lki_feed_check(const lk_train_config *c, const lk_dataset *dataset)
{
    if (!lki_dataset_is_stream(dataset))
        return LK_OK;
    if (lki_is_async(c))
        return lk_fail(LK_EINVAL, "samples of a stream come in the order of steps, and tasks of "
                                  "asynchronous training belong to several: leave out "
                                  "`exchange.async.mode`");
    if (c->epochs != 0 || c->limits.epochs != 0 || c->warmup_epochs != 0)
        return lk_fail(LK_EINVAL, "a stream has no epochs: count in `steps`; it may end earlier");
    if (c->steps == 0)
        return lk_fail(LK_EINVAL, "how long to train is missing: give `steps`, the most that the "
                                  "stream can have");
    if (c->data.order != LK_ORDER_PERMUTED || c->drop_last)
        return lk_fail(LK_EINVAL, "samples of a stream come as they come, and all count; leave out "
                                  "`order` and `drop_last`");
    return LK_OK;
}

const char *lki_feed_text(const lki_session *s, char text[40])
{
    if (lki_dataset_is_stream(s->dataset))
        return "a stream, at most";
    (void)snprintf(text, 40, "%llu samples,",
                   (unsigned long long)lk_dataset_describe(s->dataset)->train_count);
    return text;
}

/* Returns true if samples are read in the turns that need them: by clients, and by ranks that do
 * not know their tasks in advance. */
static bool reads_in_turns(const lki_session *s)
{
    return s->clients != NULL || lki_is_async(s->config);
}

static lk_status open_share(lki_session *s, uint64_t start)
{
    return open_loader(s, &s->loader, (lki_share){ s->first, s->count, s->stride },
                       lk_parallel_queue(s->parallel), start, s->progress.end);
}

/* Does nothing for a stream, since every rank has the whole batch. */
lk_status lki_feed_deal(lki_session *s, uint64_t start)
{
    if (s->feed != NULL || reads_in_turns(s))
        return LK_OK;
    lki_feed_close(s);
    return open_share(s, start);
}

lk_status lki_feed_open(lki_session *s, uint64_t start)
{
    const lk_dataset_info *data  = lk_dataset_describe(s->dataset);
    uint64_t               batch = s->config->global_batch;
    if (reads_in_turns(s))
        return LK_OK;
    if (!lki_dataset_is_stream(s->dataset))
        return open_share(s, start);
    lki_feed *feed = NULL;
    LK_TRY(LKI_NEW(&feed, 1, "a feed"));
    s->feed       = feed;
    feed->x_bytes = lk_shape_count(data->x) * (data->tokens ? sizeof(int32_t) : sizeof(float));
    feed->y_count = data->targets;
    LK_TRY(lki_alloc_array((void **)&feed->x, batch, feed->x_bytes, "a batch of a stream"));
    LK_TRY(LKI_NEW(&feed->y, batch * feed->y_count, "a batch of a stream"));
    if (s->rank != 0 || start >= s->progress.end)
        return LK_OK;
    lki_exec_pin_caller(s->exec, false); /* the reader's thread inherits the unpinned affinity */
    lk_status status = lki_ahead_open(&feed->stream, s->dataset, start * batch, batch);
    lki_exec_pin_caller(s->exec, true);
    return status;
}

lk_status lki_feed_open_some(lki_session *s, uint64_t step, uint32_t first, uint32_t last)
{
    if (reads_in_turns(s))
        return LK_OK;
    return open_loader(s, &s->loader, (lki_share){ first, last + 1 - first, 1 }, NULL, step,
                       step + 1);
}

void lki_feed_close(lki_session *s)
{
    lk_loader_free(s->loader);
    lk_loader_free(s->again);
    s->loader = s->again = NULL;
    if (s->feed == NULL)
        return;
    lki_ahead_close(s->feed->stream);
    lki_free(s->feed->x);
    lki_free(s->feed->y);
    lki_free(s->feed);
    s->feed = NULL;
}

/* A message about a batch, from rank 0 to all other ranks. */
typedef struct {
    uint64_t samples;
    bool     last, stopped; /* stopped: a request to stop came during the wait for the batch */
} batch_head;

/* Reads the next batch on rank 0.  Polls for requests to stop, since a pipe may pause for a long
 * time. */
static lk_status take_batch(const lki_session *s, batch_head *head)
{
    const lk_train_config *c    = s->config;
    uint32_t               most = c->timeout_ms > 0 ? c->timeout_ms : WAIT_MS;
    double                 end  = lki_seconds() + most / 1e3;
    while (!lki_ahead_ready(s->feed->stream, SLICE_MS)) {
        head->stopped = c->calls.stop != NULL && c->calls.stop(c->calls.stop_context);
        if (head->stopped)
            return LK_OK;
        if (lki_seconds() > end)
            return lk_fail(LK_ETIMEOUT,
                           "'%s' has not given a batch of %u samples in %u ms "
                           "(`timeout_ms`)",
                           c->data.source, c->global_batch, most);
    }
    return lki_ahead_take(s->feed->stream, s->feed->x, s->feed->y, &head->samples, &head->last);
}

static lk_status share_batch(lki_session *s, uint64_t step, uint64_t samples)
{
    lki_feed *feed  = s->feed;
    size_t    batch = s->config->global_batch;
    LK_TRY(lk_broadcast(s->comm, feed->x, samples * feed->x_bytes, 0));
    LK_TRY(lk_broadcast(s->comm, feed->y, samples * feed->y_count * sizeof *feed->y, 0));
    memset(feed->x + samples * feed->x_bytes, 0, (batch - samples) * feed->x_bytes);
    memset(feed->y + samples * feed->y_count, 0,
           (batch - samples) * feed->y_count * sizeof *feed->y);
    feed->step    = step;
    feed->samples = samples;
    return LK_OK;
}

lk_status lki_feed_step(lki_session *s, uint64_t step, bool *there)
{
    batch_head head = { .samples = 0 };
    *there          = true;
    if (s->feed == NULL)
        return LK_OK;
    lk_comm_note(s->comm, step + 1, "waiting for the stream");
    lki_let_rank_0_work(s, true); /* the stream has a timeout of its own */
    if (s->rank == 0)
        LK_TRY(take_batch(s, &head));
    LK_TRY(lk_broadcast(s->comm, &head, sizeof head, 0));
    lki_let_rank_0_work(s, false);
    s->stopped = head.stopped;
    *there     = head.samples > 0;
    if (!*there && !head.stopped && step == 0)
        return lk_fail(LK_EFORMAT, "'%s' has no sample to train on", s->config->data.source);
    if (!head.stopped && head.last)
        s->progress.ended = "data";
    return *there ? share_batch(s, step, head.samples) : LK_OK;
}

lk_status lki_feed_next(lki_session *s, uint64_t step, uint32_t v, uint32_t micro, lk_batch *out)
{
    const lki_feed *feed = s->feed;
    uint32_t        b    = s->config->micro_batch;
    if (feed == NULL) { /* skips turns that are not needed or that another rank has computed */
        do
            LK_TRY(lk_loader_next(s->loader, out));
        while (out->step != step || out->virtual_worker != v || out->micro_index != micro);
        return LK_OK;
    }
    uint32_t first = (v * s->micro_count + micro) * b;
    *out = (lk_batch){ .step = step, .virtual_worker = v, .micro_index = micro,
                       .first_slot = first, .x = feed->x + first * feed->x_bytes,
                       .y = feed->y + first * feed->y_count };
    out->samples = lk_micro_samples(feed->samples, b, s->micro_count, v, micro);
    return LK_OK;
}

lk_status lki_feed_again(lki_session *s, uint64_t step, uint32_t v, uint32_t micro, lk_batch *out)
{
    if (s->feed != NULL)
        return lki_feed_next(s, step, v, micro, out);
    if (micro == 0) {
        lk_loader_free(s->again);
        s->again = NULL;
        LK_TRY(open_loader(s, &s->again, (lki_share){ v, 1, 1 }, NULL, step, step + 1));
    }
    return lk_loader_next(s->again, out);
}

lk_step_span lki_step_span(const lki_session *s, uint64_t step)
{
    const lk_train_config *c = s->config;
    if (s->clients != NULL)
        return (lk_step_span){ .first = step, .samples = lki_round_of(s, step).samples };
    if (s->feed != NULL)
        return (lk_step_span){ .first   = step * c->global_batch,
                               .samples = step == s->feed->step ? s->feed->samples : 0 };
    return lk_step_at(lki_positions(c, lk_dataset_describe(s->dataset)), c->global_batch,
                      c->drop_last, step);
}
