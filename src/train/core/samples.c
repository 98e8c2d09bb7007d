/* samples.c -- the order of samples, and notes about orders other than the default. */
#include "train/core/session.h"

static const char *const names[] = {
    [LK_ORDER_PERMUTED] = "permuted",
    [LK_ORDER_SEQUENTIAL] = "sequential",
    [LK_ORDER_TORCH_DISTRIBUTED] = "torch-distributed",
    [LK_ORDER_TORCH_UNSHUFFLED] = "torch-unshuffled",
    [LK_ORDER_WEIGHTED] = "weighted",
};

const char *lki_order_name(lk_order order)
{
    return names[order];
}

lk_status lki_order_check(lk_train_config *config)
{
    if (config->data.weights == NULL)
        return LK_OK;
    if (config->data.order != LK_ORDER_PERMUTED && config->data.order != LK_ORDER_WEIGHTED)
        return lk_fail(LK_EINVAL,
                       "`weights` draws samples in an order of its own; leave "
                       "out `order` %s",
                       lki_order_name(config->data.order));
    config->data.order = LK_ORDER_WEIGHTED;
    return LK_OK;
}

uint64_t lki_positions(const lk_train_config *config, const lk_dataset_info *data)
{
    return lk_epoch_positions(config->data.order, data->train_count, config->virtual_workers,
                              config->drop_last);
}

/* Prints effects of an order that a user may not expect. */
void lki_order_tell(const lki_session *session)
{
    const lk_train_config *c         = session->config;
    uint64_t               n         = lk_dataset_describe(session->dataset)->train_count;
    uint64_t               positions = lki_positions(c, lk_dataset_describe(session->dataset));
    if (c->data.order == LK_ORDER_WEIGHTED)
        lki_journal_note(session->journal, "note: samples are drawn with replacement: an epoch has "
                                           "some several times and others not at all");
    if (positions > n)
        lki_journal_note(session->journal,
                         "note: the order %s repeats %llu of %llu samples in every "
                         "epoch, to have as many for each virtual worker",
                         lki_order_name(c->data.order), (unsigned long long)(positions - n),
                         (unsigned long long)n);
    if (positions < n)
        lki_journal_note(session->journal,
                         "note: the order %s without the last batch leaves out %llu of "
                         "%llu samples in every epoch, and then short batches",
                         lki_order_name(c->data.order), (unsigned long long)(n - positions),
                         (unsigned long long)n);
}
