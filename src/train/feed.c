/* feed.c -- where a step's micro-batches come from: each rank's loader, or one stream for all.
 *
 * A stream has one reader, rank 0.  At the beginning of a step it takes the next samples of the
 * global batch, and all ranks get them, with whether any follow: slots are filled in order, as a
 * short batch is, and the run ends after the step behind which there is nothing.  So whoever runs
 * which virtual workers, and on which host, a position of the stream is the same sample, and a last
 * batch that does not reach the later workers finds them with nothing to add and nothing to wait
 * for.  A thread of rank 0 reads one batch ahead.  What this costs is a broadcast of the batch a
 * step.
 */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "data/stream.h"
#include "parallel/virtual.h"
#include "tensor/exec.h"
#include "train/session.h"

enum { SLICE_MS = 50, WAIT_MS = 30000 }; /* the second: of every wait, where nothing is said */

struct lki_feed {
    lki_ahead *stream; /* rank 0's */
    uint8_t   *x;      /* of the global batch */
    int32_t   *y;
    size_t     x_bytes, y_count; /* of one sample */
    uint64_t   step, samples;    /* of the step under way */
};

static lk_status open_loader(const lki_session *s, lk_loader **out, lki_share share,
                             const uint32_t *list, uint64_t start, uint64_t end)
{
    const lk_train_config *c       = s->config;
    lk_loader_options      options = { .seed            = c->seed,
                                       .global_batch    = c->global_batch,
                                       .micro_batch     = c->micro_batch,
                                       .virtual_workers = c->virtual_workers,
                                       .first           = share.first,
                                       .count           = share.count,
                                       .stride          = share.stride,
                                       .list            = list,
                                       .lock_step       = lk_model_lock_step(s->model),
                                       .drop_last       = c->drop_last,
                                       .order           = c->order,
                                       .threads         = c->loader_threads,
                                       .start_step      = start,
                                       .end_step        = lki_max(start, end) };
    lki_exec_pin_caller(s->exec, false); /* its threads run where there is room */
    lk_status status = lk_loader_open(out, s->dataset, &options);
    lki_exec_pin_caller(s->exec, true);
    return status;
}

lk_status lki_feed_check(const lk_train_config *c, const lk_dataset *dataset)
{
    if (!lki_dataset_is_stream(dataset))
        return LK_OK;
    if (c->epochs != 0 || c->max_epochs != 0 || c->warmup_epochs != 0)
        return lk_fail(LK_EINVAL, "a stream has no epochs: count in --steps; it may end earlier");
    if (c->steps == 0)
        return lk_fail(LK_EINVAL, "how long to train is missing: give --steps, the most that the "
                                  "stream can have");
    if (c->order != LK_ORDER_PERMUTED || c->drop_last)
        return lk_fail(LK_EINVAL, "samples of a stream come as they come, and all count; leave out "
                                  "--order and --drop-last");
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

static lk_status open_share(lki_session *s, uint64_t start)
{
    return open_loader(s, &s->loader, (lki_share){ s->first, s->count, s->stride },
                       lk_parallel_queue(s->parallel), start, s->end);
}

/* Of a stream everybody has all. */
lk_status lki_feed_deal(lki_session *s, uint64_t start)
{
    if (s->feed != NULL)
        return LK_OK;
    lki_feed_close(s);
    return open_share(s, start);
}

lk_status lki_feed_open(lki_session *s, uint64_t start)
{
    const lk_dataset_info *data  = lk_dataset_describe(s->dataset);
    uint64_t               batch = s->config->global_batch;
    if (!lki_dataset_is_stream(s->dataset))
        return open_share(s, start);
    lki_feed *feed = NULL;
    LK_TRY(LKI_NEW(&feed, 1, "a feed"));
    s->feed       = feed;
    feed->x_bytes = lk_shape_count(data->x) * (data->tokens ? sizeof(int32_t) : sizeof(float));
    feed->y_count = data->tokens ? lk_shape_count(data->x) : 1;
    LK_TRY(lki_alloc_array((void **)&feed->x, batch, feed->x_bytes, "a batch of a stream"));
    LK_TRY(LKI_NEW(&feed->y, batch * feed->y_count, "a batch of a stream"));
    if (s->rank != 0 || start >= s->end)
        return LK_OK;
    lki_exec_pin_caller(s->exec, false); /* its thread runs where there is room */
    lk_status status = lki_ahead_open(&feed->stream, s->dataset, start * batch, batch);
    lki_exec_pin_caller(s->exec, true);
    return status;
}

lk_status lki_feed_open_some(lki_session *s, uint64_t step, uint32_t first, uint32_t last)
{
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

/* What rank 0 tells the others. */
typedef struct {
    uint64_t samples;
    bool     last, stopped; /* stopped: no batch was waited for any longer */
} batch_head;

/* Rank 0's.  A pipe may pause for longer than anybody who asks the run to stop would wait. */
static lk_status take_batch(const lki_session *s, batch_head *head)
{
    const lk_train_config *c    = s->config;
    uint32_t               most = c->timeout_ms > 0 ? c->timeout_ms : WAIT_MS;
    double                 end  = lki_seconds() + most / 1e3;
    while (!lki_ahead_ready(s->feed->stream, SLICE_MS)) {
        head->stopped = c->stop != NULL && c->stop(c->stop_context);
        if (head->stopped)
            return LK_OK;
        if (lki_seconds() > end)
            return lk_fail(LK_ETIMEOUT, "'%s' has not given a batch of %u samples in %u ms "
                                        "(--timeout)", c->data, c->global_batch, most);
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
    lki_let_rank_0_work(s, true); /* it has a deadline for the stream, and says so */
    if (s->rank == 0)
        LK_TRY(take_batch(s, &head));
    LK_TRY(lk_broadcast(s->comm, &head, sizeof head, 0));
    lki_let_rank_0_work(s, false);
    s->stopped = head.stopped;
    *there     = head.samples > 0;
    if (!*there && !head.stopped && step == 0)
        return lk_fail(LK_EFORMAT, "'%s' has no sample to train on", s->config->data);
    if (!head.stopped && head.last)
        s->ended = "data";
    return *there ? share_batch(s, step, head.samples) : LK_OK;
}

lk_status lki_feed_next(lki_session *s, uint64_t step, uint32_t v, uint32_t micro, lk_batch *out)
{
    const lki_feed *feed = s->feed;
    uint32_t        b    = s->config->micro_batch;
    if (feed == NULL) { /* those come, too, that are not wanted, or that another rank has made */
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
    if (s->feed != NULL)
        return (lk_step_span){ .first   = step * c->global_batch,
                               .samples = step == s->feed->step ? s->feed->samples : 0 };
    return lk_step_at(lki_positions(c, lk_dataset_describe(s->dataset)), c->global_batch,
                      c->drop_last, step);
}
