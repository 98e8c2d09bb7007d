/* groups_stages.c -- the warm-up of the ratio of compressors that select elements.
 *
 * DGC sends more elements in the first epochs (Lin et al., Deep Gradient Compression, 2018, 3.3).
 * Each ratio has a number of steps, a *stage*.  The stage is a function of the step alone, so runs
 * may be resumed by any ranks.
 *
 * Messages have other sizes in each stage.  The memory is that of the largest.
 */
#include "base/hash.h"
#include "parallel/features/groups.h"
#include "parallel/state.h"

lk_status lki_groups_read_stages(lki_groups *self, const lk_exchange *exchange)
{
    if (exchange->warmup_count > LK_WARMUP_RATIOS_MAX)
        return lk_fail(LK_EINVAL, "the exchange's `warmup` has %u ratios; give at most %d",
                       exchange->warmup_count, LK_WARMUP_RATIOS_MAX);
    if (exchange->warmup_count > 0 && (self->by == NULL || !self->by->selects))
        return lk_fail(LK_EINVAL, "the exchange's `warmup` goes with compressors that select "
                                  "elements, such as topk and randomk");
    if (exchange->warmup_count > 0 && exchange->warmup_span == 0)
        return lk_fail(LK_EINVAL, "the exchange's `warmup_span` is 0; give the steps of a ratio");
    for (uint32_t i = 0; i < exchange->warmup_count; i++) {
        self->ratios[i] = exchange->warmup[i];
        if (!(self->ratios[i] > 0 && self->ratios[i] <= 1))
            return lk_fail(LK_EINVAL,
                           "ratio %u of the exchange's `warmup` is %g; give a fraction of "
                           "elements, above 0 and up to 1",
                           i, self->ratios[i]);
    }
    self->warmups               = exchange->warmup_count;
    self->span                  = exchange->warmup_span;
    self->ratios[self->warmups] = exchange->compression.ratio;
    return LK_OK;
}

void lki_groups_set_stage(const lk_parallel *parallel, lki_groups *self, uint32_t stage)
{
    const uint32_t params = parallel->layout->param_count;
    self->stage           = stage;
    self->options.ratio   = self->ratios[stage];
    for (uint32_t r = 0; r < self->rounds; r++) {
        size_t at = 0;
        LK_ASSERT(self->at[r] != NULL);
        for (uint32_t p = 0; p < params; p++) {
            self->at[r][p] = at;
            at += lki_groups_message_bytes(self, parallel->layout, p, r);
        }
        self->at[r][params] = at;
        at += r == 0 ? parallel->micro_count * parallel->state_width * sizeof(float) : 0;
        self->bytes[r] = at;
    }
}

void lki_groups_find_stage(const lk_parallel *parallel, lki_groups *self)
{
    const uint64_t spans = self->warmups == 0 ? 0 : (parallel->step - self->start) / self->span;
    const uint32_t stage = spans < self->warmups ? (uint32_t)spans : self->warmups;
    if (stage != self->stage)
        lki_groups_set_stage(parallel, self, stage);
}

uint64_t lki_groups_hash_stages(const lk_exchange *exchange)
{
    if (exchange->warmup_count == 0 || exchange->warmup_count > LK_WARMUP_RATIOS_MAX)
        return 0;
    return lki_xxh3(exchange->warmup, exchange->warmup_count * sizeof *exchange->warmup) +
           exchange->warmup_span;
}
