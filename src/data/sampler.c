/* sampler.c -- orders: map a step and a batch slot to a sample.
 *
 * An order has two parts: the sample at each position of an epoch, and the positions of each batch
 * slot.  Lockstep's own orders assign positions to slots consecutively, so virtual worker v has
 * consecutive positions.  PyTorch's DistributedSampler assigns positions to its replicas in turn,
 * and DataLoader cuts each replica's positions into batches.  With one replica per virtual worker,
 * slot (v, k) of a step that begins at position `first` has position first + k V + v.  So rank r in
 * PyTorch and virtual worker r here see the same samples in the same batches.  This includes a
 * short last batch, in which all virtual workers have equally many samples.
 *
 * If samples are documents, Lockstep's own orders distribute the positions of a step by length: see
 * balance.c.
 */
#include "data/sampler.h"

#include <string.h>

#include "base/memory.h"
#include "data/source.h"

static bool is_torch(lk_order order)
{
    return order == LK_ORDER_TORCH_DISTRIBUTED || order == LK_ORDER_TORCH_UNSHUFFLED;
}

uint64_t lk_epoch_positions(lk_order order, uint64_t n, uint32_t virtual_workers, bool drop_last)
{
    if (!is_torch(order) || n == 0)
        return n;
    LK_ASSERT(virtual_workers > 0);
    uint64_t rounds = n / virtual_workers;
    if (!drop_last && n % virtual_workers != 0)
        rounds++;
    return rounds * virtual_workers;
}

static bool is_balanced(const lki_sampler *s)
{
    return s->dataset->info.documents && !is_torch(s->options.order);
}

static lk_status open_balance(lki_sampler *s)
{
    s->dealt_epoch = UINT64_MAX;
    LK_TRY(LKI_NEW(&s->dealt, s->options.global_batch, "samples to be dealt"));
    LK_TRY(LKI_NEW(&s->slots, s->options.global_batch, "samples to be dealt"));
    return LKI_NEW(&s->hands, s->options.virtual_workers, "samples to be dealt");
}

lk_status lki_sampler_open(lki_sampler *out, const lk_dataset *dataset,
                           const lk_loader_options *options)
{
    uint64_t n = dataset->info.train_count;
    *out = (lki_sampler){ .dataset     = dataset,
                          .options     = *options,
                          .table_epoch = UINT64_MAX };
    if ((uint32_t)options->order > LK_ORDER_WEIGHTED)
        return lk_fail(LK_EINVAL, "loader: %d is no order", (int)options->order);
    out->micro_count = options->global_batch / options->virtual_workers / options->micro_batch;
    out->positions   = lk_epoch_positions(options->order, n, options->virtual_workers,
                                          options->drop_last);
    if ((options->order == LK_ORDER_WEIGHTED) != (dataset->cumulative != NULL))
        return lk_fail(LK_EINVAL, "loader: samples are drawn by weights where the data set was "
                                  "opened with weights, and only there");
    if (is_balanced(out))
        LK_TRY(open_balance(out));
    if (options->order != LK_ORDER_TORCH_DISTRIBUTED)
        return LK_OK;
    if (n >= LKI_TORCH_RANDPERM_END)
        return lk_fail(LK_EUNSUPPORTED, "PyTorch's order is known up to %llu samples; these data "
                                        "have %llu",
                       (unsigned long long)LKI_TORCH_RANDPERM_END - 1, (unsigned long long)n);
    return LKI_NEW(&out->table, n, "an epoch's order");
}

void lki_sampler_close(lki_sampler *sampler)
{
    lki_free(sampler->table);
    lki_free(sampler->dealt);
    lki_free(sampler->slots);
    lki_free(sampler->hands);
    *sampler = (lki_sampler){ .dataset = NULL };
}

lk_step_span lki_sampler_step(const lki_sampler *sampler, uint64_t step)
{
    return lk_step_at(sampler->positions, sampler->options.global_batch,
                      sampler->options.drop_last, step);
}

/* Returns the sample at a position.  PyTorch's orders pad by repeating the beginning of the
 * epoch. */
static uint64_t sample_at(lki_sampler *s, uint64_t epoch, uint64_t position)
{
    uint64_t n = s->dataset->info.train_count;
    switch (s->options.order) {
    case LK_ORDER_PERMUTED: return lk_sample_at(s->options.seed, epoch, n, position);
    case LK_ORDER_SEQUENTIAL: return position;
    case LK_ORDER_TORCH_UNSHUFFLED: return position % n;
    case LK_ORDER_WEIGHTED: return lki_weighted_at(s->dataset, s->options.seed, epoch, position);
    case LK_ORDER_TORCH_DISTRIBUTED: break;
    }
    if (s->table_epoch != epoch)
        lki_torch_randperm(s->options.seed + epoch, s->table, n);
    s->table_epoch = epoch;
    return s->table[position % n];
}

/* Distributes the documents of a step over virtual workers.  Does nothing if the previous call
 * distributed the same step. */
static void deal(lki_sampler *s, const lk_step_span *span)
{
    const lk_loader_options *o = &s->options;
    if (s->dealt_epoch == span->epoch && s->dealt_first == span->first)
        return;
    for (uint32_t i = 0; i < span->samples; i++) {
        uint64_t index = sample_at(s, span->epoch, span->first + i);
        s->dealt[i] = (lki_dealt){ index, i, lk_dataset_length(s->dataset, false, index) };
    }
    lki_deal(s->dealt, span->samples, o->virtual_workers, s->micro_count * o->micro_batch,
             s->slots, s->hands);
    s->dealt_epoch = span->epoch;
    s->dealt_first = span->first;
}

static uint32_t take_dealt(lki_sampler *s, const lk_step_span *span, uint32_t v, uint32_t micro,
                           uint64_t *indices)
{
    uint32_t b = s->options.micro_batch, first = micro * b;
    deal(s, span);
    uint32_t mine = lk_micro_samples(s->hands[v].samples, b, s->micro_count, 0, micro);
    memcpy(indices, s->slots + (size_t)v * s->micro_count * b + first, mine * sizeof *indices);
    return mine;
}

uint32_t lki_sampler_take(lki_sampler *sampler, const lk_step_span *span, uint32_t v,
                          uint32_t micro, uint64_t *indices)
{
    const lk_loader_options *o       = &sampler->options;
    bool                     dealt   = is_torch(o->order);
    uint32_t                 workers = o->virtual_workers;
    if (is_balanced(sampler))
        return take_dealt(sampler, span, v, micro, indices);
    uint32_t mine  = dealt ? lk_micro_samples(span->samples / workers, o->micro_batch,
                                              sampler->micro_count, 0, micro)
                           : lk_micro_samples(span->samples, o->micro_batch, sampler->micro_count,
                                              v, micro);
    uint64_t first = (uint64_t)micro * o->micro_batch;
    if (o->order == LK_ORDER_PERMUTED) {
        first += span->first + (uint64_t)v * sampler->micro_count * o->micro_batch;
        lki_permute_run(o->seed, LKI_RNG_ORDER, span->epoch, sampler->dataset->info.train_count,
                        first, mine, indices);
        return mine;
    }
    for (uint64_t i = 0; i < mine; i++) {
        uint64_t slot = dealt ? (first + i) * workers + v
                              : (uint64_t)v * sampler->micro_count * o->micro_batch + first + i;
        indices[i] = sample_at(sampler, span->epoch, span->first + slot);
    }
    return mine;
}
