/* statistics.c -- stores and merges rows of statistics; see statistics.h.
 *
 * Memory: one row of the widest block for each context, and two rows for each block.
 */
#include "nn/statistics.h"

#include <string.h>

#include "base/memory.h"
#include "device/reduce.h"

uint32_t lki_statistics_width(const lki_block_entry *entry)
{
    const lk_block_statistics *of = entry->type->statistics;
    return of == NULL ? 0 : of->width(&entry->block);
}

/* Counts the numbers in the rows of all contexts, and in all totals. */
static void count_values(const lk_model *model, uint32_t contexts, size_t *rows, size_t *totals)
{
    size_t widest = 0;
    *totals       = 0;
    for (size_t b = 0; b < model->block_count; b++) {
        size_t width = lki_statistics_width(&model->blocks[b]);
        widest       = lki_max(widest, width);
        *totals += 2 * width;
    }
    *rows = widest * contexts;
}

size_t lki_statistics_bytes(const lk_model *model, uint32_t contexts)
{
    size_t rows, totals;
    count_values(model, contexts, &rows, &totals);
    return (rows + totals) * sizeof(double);
}

lk_status lki_statistics_init(lki_statistics *statistics, const lk_model *model, uint32_t contexts)
{
    size_t rows, totals, at = 0;

    *statistics = (lki_statistics){ 0 };
    count_values(model, contexts, &rows, &totals);
    LK_TRY(LKI_NEW(&statistics->rows, rows, "statistics"));
    LK_TRY(LKI_NEW(&statistics->totals, totals, "statistics"));
    LK_TRY(LKI_NEW(&statistics->at, model->block_count, "statistics"));
    for (size_t b = 0; b < model->block_count; b++) {
        statistics->at[b] = at;
        at += 2 * lki_statistics_width(&model->blocks[b]);
    }
    return LK_OK;
}

void lki_statistics_deinit(lki_statistics *statistics)
{
    lki_free(statistics->rows);
    lki_free(statistics->totals);
    lki_free(statistics->at);
    *statistics = (lki_statistics){ 0 };
}

double *lki_statistics_total(const lki_statistics *statistics, const lki_block_entry *entry,
                             bool backward)
{
    return statistics->totals + statistics->at[entry->block.layer] +
           (backward ? lki_statistics_width(entry) : 0);
}

static void add_rows(uint32_t width, double *left, const double *right)
{
    for (uint32_t i = 0; i < width; i++)
        left[i] = left[i] + right[i];
}

void lki_statistics_merge(const lki_statistics *statistics, const lki_block_entry *entry,
                          const lk_hooks *hooks, uint32_t count, bool backward)
{
    uint32_t     width = lki_statistics_width(entry);
    double      *total = lki_statistics_total(statistics, entry, backward);
    lk_row_merge merge = backward ? add_rows : entry->type->statistics->merge;

    if (hooks->statistics != NULL) {
        hooks->statistics(hooks->user, width, merge, statistics->rows, total);
        return;
    }
    lki_tree_merge_rows(merge, width, statistics->rows, count);
    memcpy(total, statistics->rows, width * sizeof *total);
}
