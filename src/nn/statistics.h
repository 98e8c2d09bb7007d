/* nn/statistics.h -- the statistics that blocks exchange across contexts. */
#ifndef LKI_NN_STATISTICS_H
#define LKI_NN_STATISTICS_H

#include "nn/model.h"

/* Rows and totals.  The totals of forward are stored for the whole step; a recomputed block uses
 * them again. */
typedef struct {
    double *rows;   /* rows of the current block, one for each context */
    double *totals; /* totals of every block with statistics, of forward and of backward */
    size_t *at;     /* [block_count]: offset of each block's totals */
} lki_statistics;

/* Returns the bytes for `contexts` contexts. */
size_t lki_statistics_bytes(const lk_model *model, uint32_t contexts);

/* Allocates the memory.  On failure call lki_statistics_deinit() as well. */
LK_NODISCARD lk_status lki_statistics_init(lki_statistics *statistics, const lk_model *model,
                                           uint32_t contexts);
void                   lki_statistics_deinit(lki_statistics *statistics);

uint32_t lki_statistics_width(const lki_block_entry *entry); /* 0: the block has none */

/* Returns the block's total of forward or of backward. */
double *lki_statistics_total(const lki_statistics *statistics, const lki_block_entry *entry,
                             bool backward);

/* Merges the rows of `count` contexts, and those of other ranks through `hooks`, into the block's
 * total. */
void lki_statistics_merge(const lki_statistics *statistics, const lki_block_entry *entry,
                          const lk_hooks *hooks, uint32_t count, bool backward);

#endif
