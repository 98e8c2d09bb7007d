/* nn/statistics.h -- what blocks with statistics hand to each other across contexts. */
#ifndef LKI_NN_STATISTICS_H
#define LKI_NN_STATISTICS_H

#include "nn/model.h"

/* The totals of forward are kept for the whole step: a block that runs again uses them again. */
typedef struct {
    double *rows;   /* of the block that runs: one for each context */
    double *totals; /* of every block with statistics: forward's and backward's */
    size_t *at;     /* where those of a block begin */
} lki_statistics;

/* Bytes for so many contexts. */
size_t lki_statistics_bytes(const lk_model *model, uint32_t contexts);

/* lki_statistics_deinit() accepts a half-made one. */
LK_NODISCARD lk_status lki_statistics_init(lki_statistics *statistics, const lk_model *model,
                                           uint32_t contexts);
void                   lki_statistics_deinit(lki_statistics *statistics);

uint32_t lki_statistics_width(const lki_block_entry *entry); /* 0: it has none */

/* Of forward or of backward. */
double *lki_statistics_total(const lki_statistics *statistics, const lki_block_entry *entry,
                             bool backward);

/* Leaves in the block's total what the rows of `count` contexts make together with those that
 * `hooks` knows of. */
void lki_statistics_merge(const lki_statistics *statistics, const lki_block_entry *entry,
                          const lk_hooks *hooks, uint32_t count, bool backward);

#endif
