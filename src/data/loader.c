/* loader.c -- threads that prepare micro-batches ahead of their use.
 *
 * The ring has ahead + 1 micro-batches.  The consumer borrows one micro-batch, and the threads fill
 * the others.  In lock step the consumer borrows one micro-batch per virtual worker at a time, so
 * the ring has `ahead` micro-batches and one per virtual worker.  A consumer may also ask for the
 * last few micro-batches to stay borrowed. `claimed` counts the batches that
 * threads have begun, `freed` the batches that the consumer has returned.  Both counters only grow,
 * and batch k is in slot k mod slots.  No batch is begun while claimed - freed = slots.  A thread
 * that waits for room is woken when half of the slots are free, because a wake-up costs as much as
 * a small micro-batch.
 *
 *      freed        taken                     claimed
 *        |  borrowed  |  ready, or being filled  |  free  |
 *
 * Batches are begun in order.  The thread that holds `turn` begins one, and asks the sampler for
 * its contents.  Batches are filled concurrently, and are passed to the consumer in order.  Their
 * contents depend only on the step (order.c), so the threads' timing and number can delay the
 * consumer but never change its data.  All memory is allocated when the loader is opened.  The
 * threads block all signals, so that only the program's own threads receive them.
 */
#include "data/source.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>

#include "base/memory.h"
#include "base/options.h"
#include "data/batch.h"
#include "data/loader.h"
#include "data/sampler.h"

enum { AHEAD_MAX = 4096, THREADS_MAX = 256 };

/* Defaults for `ahead`: micro-batches per thread or, if they are small, as many as fit in
 * AHEAD_BYTES, so that one wake-up serves several micro-batches. */
enum { AHEAD_LEAST = 4, AHEAD_MOST = 32, AHEAD_BYTES = 2 << 20 };

/* A slot of the ring: a micro-batch being filled or ready, or a failure. */
typedef struct {
    uint64_t  number, epoch;
    uint64_t *indices; /* indices of the samples */
    bool      ready;
    lk_error  error; /* .status is LK_OK if no failure has occurred */
    lk_batch  batch;
} place;

struct lk_loader {
    const lk_dataset *dataset;
    lk_loader_options options;
    uint32_t          micro_count;
    size_t            x_bytes, y_count; /* bytes of x and number of targets per sample */
    uint64_t          slots;
    uint32_t          borrows; /* micro-batches borrowed at a time */
    place            *ring;
    uint64_t         *indices;
    uint8_t          *x;
    int32_t          *y;
    uint32_t         *weights; /* weights of the samples, or NULL */
    uint32_t         *list;    /* list of virtual workers, or NULL */

    pthread_t *threads;
    uint32_t   running; /* number of threads; above 0 the locks and condition variables exist */

    pthread_mutex_t turn; /* guards the fields below; may be held when `lock` is acquired */
    lki_sampler     sampler;
    uint64_t        step; /* step of the next micro-batch to begin */
    uint32_t        worker, micro;

    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t  more, room;
    uint64_t        claimed, freed, taken;
    bool            finished, stop;
    uint32_t        begun; /* number of threads that have been started */
    lki_trace      *trace; /* trace of the threads' work; NULL: none */
    uint32_t        first_track;
};

/* ---- The threads --------------------------------------------------------------------------- */

/* Waits for a free slot and claims the slot.  Returns NULL when the loader is being freed. */
static place *wait_for_room(lk_loader *loader)
{
    place *claimed = NULL;
    pthread_mutex_lock(&loader->lock);
    while (!loader->stop && loader->claimed - loader->freed == loader->slots)
        pthread_cond_wait(&loader->room, &loader->lock);
    if (!loader->stop) {
        claimed         = &loader->ring[loader->claimed % loader->slots];
        claimed->number = loader->claimed++;
        claimed->ready  = false;
    }
    pthread_mutex_unlock(&loader->lock);
    return claimed;
}

static void say_finished(lk_loader *loader)
{
    pthread_mutex_lock(&loader->lock);
    loader->finished = true;
    pthread_cond_signal(&loader->more);
    pthread_mutex_unlock(&loader->lock);
}

/* Computes the contents of the next micro-batch. */
static void describe(lk_loader *loader, place *p)
{
    const lk_loader_options *o    = &loader->options;
    lk_step_span             span = lki_sampler_step(&loader->sampler, loader->step);
    uint32_t                 v    = loader->list != NULL ? loader->list[loader->worker]
                                                         : o->first + loader->worker * o->stride;
    p->epoch = span.epoch;
    p->batch = (lk_batch){ .step = loader->step, .epoch = span.epoch, .virtual_worker = v,
                           .micro_index = loader->micro };
    p->batch.samples    = lki_sampler_take(&loader->sampler, &span, v, loader->micro, p->indices);
    p->batch.first_slot = (v * loader->micro_count + loader->micro) * o->micro_batch;
}

/* Advances to the next micro-batch.  In lock step the virtual worker varies fastest, otherwise
 * the micro-batch. */
static void advance(lk_loader *loader)
{
    bool      lock_step = loader->options.lock_step;
    uint32_t *inner = lock_step ? &loader->worker : &loader->micro;
    uint32_t *outer = lock_step ? &loader->micro : &loader->worker;
    if (++*inner < (lock_step ? loader->options.count : loader->micro_count))
        return;
    *inner = 0;
    if (++*outer < (lock_step ? loader->micro_count : loader->options.count))
        return;
    *outer = 0;
    loader->step++;
}

/* Begins the next micro-batch.  Returns NULL at the end, or when the loader is being freed. */
static place *begin(lk_loader *loader)
{
    place *p = NULL;
    pthread_mutex_lock(&loader->turn);
    if (loader->step == loader->options.end_step)
        say_finished(loader);
    else
        p = wait_for_room(loader);
    if (p != NULL) {
        describe(loader, p);
        advance(loader);
    }
    pthread_mutex_unlock(&loader->turn);
    return p;
}

static void weigh(const lk_loader *loader, place *p, uint32_t *weights)
{
    const lk_dataset *set = loader->dataset;
    for (uint32_t i = 0; i < p->batch.samples; i++)
        weights[i] = set->loss_weights[lki_sample_place(set, false, p->indices[i])];
    p->batch.weights = weights;
}

static lk_status fill(lk_loader *loader, place *p)
{
    size_t   b = loader->options.micro_batch, at = (size_t)(p - loader->ring) * b;
    uint8_t *x = loader->x + at * loader->x_bytes;
    int32_t *y = loader->y + at * loader->y_count;
    LK_TRY(lki_batch_read(loader->dataset, false, p->epoch, p->indices, p->batch.samples, x, y,
                          &p->batch.length));
    size_t each = p->batch.length > 0 ? p->batch.length : loader->y_count;
    size_t used = p->batch.samples * each;
    memset(y + used, 0, (b * loader->y_count - used) * sizeof *y);
    used = p->batch.length > 0 ? used * sizeof(int32_t) : p->batch.samples * loader->x_bytes;
    memset(x + used, 0, b * loader->x_bytes - used);
    p->batch.x = x;
    p->batch.y = y;
    if (loader->weights != NULL)
        weigh(loader, p, loader->weights + at);
    return LK_OK;
}

static void hand_over(lk_loader *loader, place *p)
{
    pthread_mutex_lock(&loader->lock);
    p->ready = true;
    if (p->number == loader->taken)
        pthread_cond_signal(&loader->more);
    pthread_mutex_unlock(&loader->lock);
}

/* Returns the track of thread `number` of the loader. */
static lki_track *track_of(lk_loader *loader, uint32_t number)
{
    pthread_mutex_lock(&loader->lock);
    lki_track *track = lki_trace_track(loader->trace, loader->first_track + number);
    pthread_mutex_unlock(&loader->lock);
    return track;
}

static uint32_t number_of_thread(lk_loader *loader)
{
    pthread_mutex_lock(&loader->lock);
    uint32_t number = loader->begun++;
    pthread_mutex_unlock(&loader->lock);
    return number;
}

static void *run(void *context)
{
    lk_loader *loader = context;
    uint32_t   number = number_of_thread(loader);
    for (place *p = begin(loader); p != NULL; p = begin(loader)) {
        lki_track *track = track_of(loader, number);
        uint64_t   begun = lki_trace_begin(track);
        p->error.status  = LK_OK;
        if (fill(loader, p) != LK_OK)
            p->error = *lk_error_last();
        lki_trace_end(track, LKI_SPAN_LOAD, 0, begun);
        hand_over(loader, p);
    }
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
        return lk_fail(LK_EINVAL, "loader: `global_batch` %u is no multiple of %u virtual workers "
                                  "times `micro_batch` %u (%llu)", o->global_batch,
                       o->virtual_workers, o->micro_batch, (unsigned long long)unit);
    if (o->count == 0 || o->first >= o->virtual_workers ||
        o->count - 1 > (o->virtual_workers - 1 - o->first) / (o->stride ? o->stride : 1))
        return lk_fail(LK_EINVAL, "loader: %u virtual workers from %u, every %u, are not among %u",
                       o->count, o->first, o->stride ? o->stride : 1, o->virtual_workers);
    for (uint32_t i = 0; o->list != NULL && i < o->count; i++)
        if (o->list[i] >= o->virtual_workers)
            return lk_fail(LK_EINVAL, "loader: virtual worker %u is not among %u", o->list[i],
                           o->virtual_workers);
    if (o->start_step > o->end_step)
        return lk_fail(LK_EINVAL, "loader: starts at step %llu, after its end %llu",
                       (unsigned long long)o->start_step, (unsigned long long)o->end_step);
    if (o->ahead > AHEAD_MAX)
        return lk_fail(LK_EINVAL, "loader: %u micro-batches ahead; at most %d", o->ahead,
                       AHEAD_MAX);
    if (o->borrowed > AHEAD_MAX || (o->borrowed > 1 && o->lock_step))
        return lk_fail(LK_EINVAL, "loader: %u micro-batches borrowed at a time; at most %d, or 1 "
                                  "in lock step", o->borrowed, AHEAD_MAX);
    if (o->threads > THREADS_MAX)
        return lk_fail(LK_EINVAL, "loader: %u threads; at most %d", o->threads, THREADS_MAX);
    uint64_t positions = lk_epoch_positions(o->order, dataset->info.train_count,
                                            o->virtual_workers, o->drop_last);
    if (lk_steps_per_epoch(positions, o->global_batch, o->drop_last) == 0)
        return lk_fail(LK_EINVAL, "loader: %llu samples do not fill one global batch of %u; lower "
                                  "`global_batch` or leave out `drop_last`",
                       (unsigned long long)dataset->info.train_count, o->global_batch);
    return LK_OK;
}

static uint32_t choose_ahead(const lk_loader_options *o, size_t sample)
{
    size_t fit = AHEAD_BYTES / sample / o->micro_batch;
    if (o->ahead > 0)
        return o->ahead;
    return (o->threads > 0 ? o->threads : 1) *
           (uint32_t)lki_max(AHEAD_LEAST, lki_min(fit, AHEAD_MOST * lki_max(1, o->borrowed)));
}

static uint32_t borrows(const lk_loader_options *o)
{
    return o->lock_step ? o->count : o->borrowed > 0 ? o->borrowed : 1;
}

/* Returns the number of slots, a multiple of `borrowed`, so that the ring does not separate
 * micro-batches that are used together. */
static size_t count_slots(const lk_loader_options *o, size_t sample)
{
    size_t slots = (size_t)borrows(o) + choose_ahead(o, sample);
    return o->borrowed > 1 ? lki_round_up(slots, o->borrowed) : slots;
}

size_t lki_loader_bytes(const lk_loader_options *o, size_t sample)
{
    return count_slots(o, sample) * o->micro_batch * sample;
}

static lk_status allocate(lk_loader *loader)
{
    size_t b      = loader->options.micro_batch;
    size_t places = (size_t)loader->slots * b; /* < 2^20 * 2^32 */
    LK_TRY(lki_sampler_open(&loader->sampler, loader->dataset, &loader->options));
    LK_TRY(LKI_NEW(&loader->threads, loader->options.threads, "loader's threads"));
    LK_TRY(LKI_NEW(&loader->ring, loader->slots, "loader's ring"));
    LK_TRY(LKI_NEW(&loader->indices, places, "loader's samples"));
    LK_TRY(lki_alloc_array((void **)&loader->x, places, loader->x_bytes, "loader's samples"));
    LK_TRY(lki_alloc_array((void **)&loader->y, places, loader->y_count * sizeof(int32_t),
                           "loader's targets"));
    if (loader->dataset->loss_weights != NULL)
        LK_TRY(LKI_NEW(&loader->weights, places, "loader's weights"));
    if (loader->options.list != NULL) {
        LK_TRY(LKI_NEW(&loader->list, loader->options.count, "loader's virtual workers"));
        memcpy(loader->list, loader->options.list, loader->options.count * sizeof *loader->list);
    }
    for (size_t i = 0; i < loader->slots; i++)
        loader->ring[i].indices = loader->indices + i * b;
    return LK_OK;
}

static lk_status start(lk_loader *loader)
{
    sigset_t all, before;
    int      error = 0;
    pthread_mutex_init(&loader->turn, NULL); /* cannot fail on Linux with NULL attributes */
    pthread_mutex_init(&loader->lock, NULL);
    pthread_cond_init(&loader->more, NULL);
    pthread_cond_init(&loader->room, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    for (uint32_t i = 0; i < loader->options.threads && error == 0; i++) {
        error = pthread_create(&loader->threads[i], NULL, run, loader);
        loader->running += error == 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        return lk_fail(LK_ENOMEM, "loader: cannot start its threads: %s", strerror(error));
    return LK_OK;
}

lk_status lk_loader_open(lk_loader **out, const lk_dataset *dataset,
                         const lk_loader_options *options)
{
    LK_ASSERT(out != NULL && dataset != NULL);
    *out = NULL;
    lk_loader_options mine;
    LK_TRY(lki_options_copy(&mine, sizeof mine, options, "lk_loader_options"));
    options = &mine;
    LK_TRY(check_options(dataset, options));
    lk_loader *loader = NULL;
    LK_TRY(LKI_NEW(&loader, 1, "loader"));
    loader->dataset = dataset;
    loader->options = *options;
    loader->step    = options->start_step;
    if (options->stride == 0)
        loader->options.stride = 1;
    if (options->threads == 0)
        loader->options.threads = 1;
    bool tokens     = dataset->info.tokens;
    loader->x_bytes = dataset->elements * (tokens ? sizeof(int32_t) : sizeof(float));
    loader->y_count = dataset->info.targets;
    loader->borrows = borrows(options);
    loader->slots   = count_slots(options, loader->x_bytes + loader->y_count * sizeof(int32_t));
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
    if (loader->running > 0) {
        pthread_mutex_lock(&loader->lock);
        loader->stop = true;
        pthread_cond_signal(&loader->room);
        pthread_mutex_unlock(&loader->lock);
        for (uint32_t i = 0; i < loader->running; i++)
            pthread_join(loader->threads[i], NULL);
        pthread_cond_destroy(&loader->room);
        pthread_cond_destroy(&loader->more);
        pthread_mutex_destroy(&loader->lock);
        pthread_mutex_destroy(&loader->turn);
    }
    lki_free(loader->threads);
    lki_sampler_close(&loader->sampler);
    lki_free(loader->indices);
    lki_free(loader->list);
    lki_free(loader->y);
    lki_free(loader->weights);
    lki_free(loader->x);
    lki_free(loader->ring);
    lki_free(loader);
}

void lki_loader_trace(lk_loader *loader, lki_trace *trace, uint32_t first)
{
    pthread_mutex_lock(&loader->lock);
    loader->trace       = trace;
    loader->first_track = first;
    pthread_mutex_unlock(&loader->lock);
}

/* Waits until the next slot is ready, and returns the slot; NULL past the end. */
static place *take(lk_loader *loader)
{
    place *next = &loader->ring[loader->taken % loader->slots];
    uint64_t kept = loader->options.lock_step ? loader->taken % loader->borrows
                                              : loader->borrows - 1;
    if (loader->freed + kept < loader->taken) {
        loader->freed = loader->taken - kept;
        if (loader->claimed - loader->freed <= loader->slots / 2)
            pthread_cond_signal(&loader->room);
    }
    for (;;) {
        bool begun = loader->taken < loader->claimed;
        if (begun && next->ready)
            break;
        if (!begun && loader->finished)
            return NULL;
        pthread_cond_wait(&loader->more, &loader->lock);
    }
    if (next->error.status == LK_OK)
        loader->taken++;
    return next;
}

lk_status lk_loader_next(lk_loader *loader, lk_batch *out)
{
    pthread_mutex_lock(&loader->lock);
    const place *next = take(loader);
    pthread_mutex_unlock(&loader->lock);
    *out = (lk_batch){ 0 };
    if (next == NULL)
        return lk_fail(LK_EINVAL, "loader: asked for a micro-batch past its last step, %llu",
                       (unsigned long long)loader->options.end_step);
    if (next->error.status != LK_OK)
        return lki_fail_again(&next->error);
    *out = next->batch;
    return LK_OK;
}
