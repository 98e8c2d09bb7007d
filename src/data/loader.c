/* loader.c -- a thread that prepares micro-batches ahead of their use.
 *
 * A ring of ahead + 1 micro-batches: the consumer borrows one (in lock step one of each virtual
 * worker, and the ring is so much larger), the thread fills the others.
 * `filled` counts the batches prepared so far, `freed` those handed back; both only grow, batch
 * number k lives in place k mod slots, and the thread waits while filled - freed = slots.  It is
 * woken when half of the places are free: a wake-up costs as much as a small micro-batch.
 *
 *      freed        taken         filled
 *        |  borrowed  |  prepared   |  being written or free  |
 *
 * Which batch is which is arithmetic on the step alone (order.c), so the thread's timing can
 * delay the consumer but never change what it gets.  All memory is allocated when the loader is
 * opened.  Signals are blocked in the thread: they belong to the program's own threads.
 */
#include "data/source.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>

#include "base/memory.h"
#include "data/loader.h"
#include "data/sampler.h"

enum { AHEAD_DEFAULT = 4, AHEAD_MAX = 4096 };

struct lk_loader {
    const lk_dataset *dataset;
    lk_loader_options options;
    lki_sampler       sampler;
    uint64_t         *indices; /* of a micro-batch */
    uint32_t          micro_count;
    size_t            x_bytes, y_count; /* of one sample */
    uint64_t          slots;
    uint32_t          borrows;          /* micro-batches that the consumer has at a time */
    lk_batch         *ring;
    uint8_t          *x;
    int32_t          *y;

    bool            started; /* the thread, the lock and the signals exist */
    pthread_t       thread;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t  more, room;
    uint64_t        filled, freed, taken;
    bool            finished, stop;
    lki_track       *track; /* of the thread's work, or NULL */
};

/* ---- The thread ---------------------------------------------------------------------------- */

/* Waits for a free place.  False when the loader is being freed. */
static bool wait_for_room(lk_loader *loader, uint64_t *place, lki_track **track)
{
    pthread_mutex_lock(&loader->lock);
    while (!loader->stop && loader->filled - loader->freed == loader->slots)
        pthread_cond_wait(&loader->room, &loader->lock);
    bool go = !loader->stop;
    *place  = loader->filled % loader->slots;
    *track   = loader->track;
    pthread_mutex_unlock(&loader->lock);
    return go;
}

static void hand_over(lk_loader *loader)
{
    pthread_mutex_lock(&loader->lock);
    loader->filled++;
    pthread_cond_signal(&loader->more);
    pthread_mutex_unlock(&loader->lock);
}

static void fill(lk_loader *loader, uint64_t place, uint64_t step, uint32_t v, uint32_t micro)
{
    const lk_loader_options *o = &loader->options;
    lk_step_span span = lki_sampler_step(&loader->sampler, step);
    uint8_t     *x    = loader->x + place * o->micro_batch * loader->x_bytes;
    int32_t     *y    = loader->y + place * o->micro_batch * loader->y_count;
    lk_batch     out  = { .step = step, .epoch = span.epoch, .virtual_worker = v,
                          .micro_index = micro, .x = x, .y = y };

    out.samples    = lki_sampler_take(&loader->sampler, &span, v, micro, loader->indices);
    out.first_slot = (v * loader->micro_count + micro) * o->micro_batch;
    for (uint32_t i = 0; i < out.samples; i++)
        lk_dataset_read(loader->dataset, false, span.epoch, loader->indices[i],
                        x + i * loader->x_bytes, y + i * loader->y_count);
    size_t rest = o->micro_batch - out.samples;
    memset(x + out.samples * loader->x_bytes, 0, rest * loader->x_bytes);
    memset(y + out.samples * loader->y_count, 0, rest * loader->y_count * sizeof *y);
    loader->ring[place] = out;
}

static bool fill_step(lk_loader *loader, uint64_t step)
{
    const lk_loader_options *o = &loader->options;
    uint64_t                 n = (uint64_t)o->count * loader->micro_count;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t   inner = o->lock_step ? o->count : loader->micro_count;
        uint32_t   major = (uint32_t)(i / inner), minor = (uint32_t)(i % inner);
        uint32_t   v = o->lock_step ? minor : major, micro = o->lock_step ? major : minor;
        uint64_t   place;
        lki_track *track;
        if (!wait_for_room(loader, &place, &track))
            return false;
        uint64_t begun = lki_trace_begin(track);
        fill(loader, place, step, o->first + v * o->stride, micro);
        lki_trace_end(track, LKI_SPAN_LOAD, 0, begun);
        hand_over(loader);
    }
    return true;
}

static void *run(void *context)
{
    lk_loader *loader = context;
    uint64_t   step   = loader->options.start_step;
    while (step < loader->options.end_step && fill_step(loader, step))
        step++;
    pthread_mutex_lock(&loader->lock);
    loader->finished = true;
    pthread_cond_signal(&loader->more);
    pthread_mutex_unlock(&loader->lock);
    return NULL;
}

/* ---- Life cycle ---------------------------------------------------------------------------- */

static lk_status check_options(const lk_dataset *dataset, const lk_loader_options *o)
{
    if (o->global_batch == 0 || o->micro_batch == 0 || o->virtual_workers == 0)
        return lk_fail(LK_EINVAL, "loader: global batch %u, micro-batch %u and %u virtual workers "
                                  "must all be at least 1", o->global_batch, o->micro_batch,
                       o->virtual_workers);
    uint64_t unit = (uint64_t)o->virtual_workers * o->micro_batch;
    if (o->global_batch % unit != 0)
        return lk_fail(LK_EINVAL, "loader: --global-batch %u is no multiple of %u virtual workers "
                                  "times --micro-batch %u (%llu)", o->global_batch,
                       o->virtual_workers, o->micro_batch, (unsigned long long)unit);
    if (o->count == 0 || o->first >= o->virtual_workers ||
        o->count - 1 > (o->virtual_workers - 1 - o->first) / (o->stride ? o->stride : 1))
        return lk_fail(LK_EINVAL, "loader: %u virtual workers from %u, every %u, are not among %u",
                       o->count, o->first, o->stride ? o->stride : 1, o->virtual_workers);
    if (o->start_step > o->end_step)
        return lk_fail(LK_EINVAL, "loader: starts at step %llu, after its end %llu",
                       (unsigned long long)o->start_step, (unsigned long long)o->end_step);
    if (o->ahead > AHEAD_MAX)
        return lk_fail(LK_EINVAL, "loader: %u micro-batches ahead; at most %d", o->ahead,
                       AHEAD_MAX);
    uint64_t positions = lk_epoch_positions(o->order, dataset->info.train_count,
                                            o->virtual_workers, o->drop_last);
    if (lk_steps_per_epoch(positions, o->global_batch, o->drop_last) == 0)
        return lk_fail(LK_EINVAL, "loader: %llu samples do not fill one global batch of %u; lower "
                                  "--global-batch or leave out --drop-last",
                       (unsigned long long)dataset->info.train_count, o->global_batch);
    return LK_OK;
}

static lk_status allocate(lk_loader *loader)
{
    bool   tokens = loader->dataset->info.tokens;
    size_t places = (size_t)loader->slots * loader->options.micro_batch; /* < 2^13 * 2^32 */
    loader->x_bytes = loader->dataset->elements * (tokens ? sizeof(int32_t) : sizeof(float));
    loader->y_count = tokens ? loader->dataset->elements : 1;
    LK_TRY(lki_sampler_open(&loader->sampler, loader->dataset, &loader->options));
    LK_TRY(LKI_NEW(&loader->indices, loader->options.micro_batch, "loader's samples"));
    LK_TRY(LKI_NEW(&loader->ring, loader->slots, "loader's ring"));
    LK_TRY(lki_alloc_array((void **)&loader->x, places, loader->x_bytes, "loader's samples"));
    return lki_alloc_array((void **)&loader->y, places, loader->y_count * sizeof(int32_t),
                           "loader's targets");
}

static lk_status start(lk_loader *loader)
{
    sigset_t all, before;
    pthread_mutex_init(&loader->lock, NULL); /* with NULL attributes these cannot fail on Linux */
    pthread_cond_init(&loader->more, NULL);
    pthread_cond_init(&loader->room, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int error = pthread_create(&loader->thread, NULL, run, loader);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        return lk_fail(LK_ENOMEM, "loader: cannot start its thread: %s", strerror(error));
    loader->started = true;
    return LK_OK;
}

lk_status lk_loader_open(lk_loader **out, const lk_dataset *dataset,
                         const lk_loader_options *options)
{
    LK_ASSERT(out != NULL && dataset != NULL && options != NULL);
    *out = NULL;
    LK_TRY(check_options(dataset, options));
    lk_loader *loader = NULL;
    LK_TRY(LKI_NEW(&loader, 1, "loader"));
    loader->dataset = dataset;
    loader->options = *options;
    if (options->stride == 0)
        loader->options.stride = 1;
    loader->borrows = options->lock_step ? options->count : 1;
    loader->slots   = (options->ahead == 0 ? AHEAD_DEFAULT : options->ahead) + loader->borrows;
    loader->micro_count =
        options->global_batch / (options->virtual_workers * options->micro_batch);
    lk_status status = allocate(loader);
    if (status == LK_OK)
        status = start(loader);
    if (status != LK_OK) {
        lk_loader_free(loader);
        return status;
    }
    *out = loader;
    return LK_OK;
}

void lk_loader_free(lk_loader *loader)
{
    if (loader == NULL)
        return;
    if (loader->started) {
        pthread_mutex_lock(&loader->lock);
        loader->stop = true;
        pthread_cond_signal(&loader->room);
        pthread_mutex_unlock(&loader->lock);
        pthread_join(loader->thread, NULL);
        pthread_cond_destroy(&loader->room);
        pthread_cond_destroy(&loader->more);
        pthread_mutex_destroy(&loader->lock);
    }
    lki_sampler_close(&loader->sampler);
    lki_free(loader->indices);
    lki_free(loader->y);
    lki_free(loader->x);
    lki_free(loader->ring);
    lki_free(loader);
}

void lki_loader_trace(lk_loader *loader, lki_track *track)
{
    pthread_mutex_lock(&loader->lock);
    loader->track = track;
    pthread_mutex_unlock(&loader->lock);
}

lk_status lk_loader_next(lk_loader *loader, lk_batch *out)
{
    pthread_mutex_lock(&loader->lock);
    if (loader->freed < loader->taken && loader->taken % loader->borrows == 0) {
        loader->freed = loader->taken;
        if (loader->filled - loader->freed <= loader->slots / 2)
            pthread_cond_signal(&loader->room);
    }
    while (loader->taken == loader->filled && !loader->finished)
        pthread_cond_wait(&loader->more, &loader->lock);
    bool     have  = loader->taken < loader->filled;
    uint64_t place = loader->taken % loader->slots;
    if (have)
        loader->taken++;
    pthread_mutex_unlock(&loader->lock);
    if (!have) {
        *out = (lk_batch){ 0 };
        return lk_fail(LK_EINVAL, "loader: asked for a micro-batch past its last step, %llu",
                       (unsigned long long)loader->options.end_step);
    }
    *out = loader->ring[place];
    return LK_OK;
}
