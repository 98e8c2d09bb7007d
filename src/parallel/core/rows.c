/* rows.c -- merges rows of numbers over all virtual workers, during a turn or between steps.
 *
 * A rank's virtual workers form a few maximal subtrees of the canonical tree (virtual.h).  Each
 * rank merges its own rows, sends one row per subtree to all ranks, and merges the rows that it
 * receives.
 *
 * Order:  the canonical tree, even if its parts are assigned to other ranks.
 * Cost:   one all-gather of as many rows as there are subtrees.
 */
#include <string.h>

#include "base/memory.h"
#include "device/reduce.h"
#include "parallel/state.h"
#include "tensor/ops.h"

typedef struct {
    uint32_t first, count;
} subtree;

struct lki_row_merger {
    subtree  *subtrees; /* subtrees of all ranks, in order of virtual worker */
    size_t   *bytes;    /* [ranks]: bytes of the rows that each rank sends */
    uint32_t *counts;   /* [ranks]: subtrees of each rank */
    /* number of subtrees of all ranks; number of subtrees of the ranks before this one */
    uint32_t  subtree_count, before;
    double   *sheet;
    size_t    sheet_room; /* allocated values */
};

/* Lists the maximal subtrees of the range of `rank`.  If virtual workers are assigned in rounds,
 * the range is a single virtual worker. */
static lk_status list_subtrees(lk_parallel *parallel, lki_row_merger *rows, uint32_t rank,
                               size_t *room)
{
    lki_virtual_plan plan;
    lki_virtual_plan_make(&plan, parallel->leaves, parallel->ranks, rank);
    if (rank == parallel->rank)
        rows->before = rows->subtree_count;
    for (uint32_t i = 0; i < plan.node_count; i++) {
        LK_TRY(lki_reserve((void **)&rows->subtrees, room, rows->subtree_count,
                           sizeof *rows->subtrees, "subtrees of ranks"));
        rows->subtrees[rows->subtree_count++] =
            (subtree){ plan.nodes[i].first, plan.nodes[i].count };
    }
    rows->counts[rank] = plan.node_count;
    return LK_OK;
}

lk_status lki_rows_open(lk_parallel *parallel)
{
    lki_row_merger *rows = NULL;
    size_t          room = 0;

    LK_TRY(LKI_NEW(&rows, 1, "rows"));
    parallel->rows = rows;
    LK_TRY(LKI_NEW(&rows->counts, parallel->ranks, "rows"));
    LK_TRY(LKI_NEW(&rows->bytes, parallel->ranks, "rows"));
    for (uint32_t r = 0; r < parallel->ranks; r++)
        LK_TRY(list_subtrees(parallel, rows, r, &room));
    return LK_OK;
}

void lki_rows_close(lk_parallel *parallel)
{
    lki_row_merger *rows = parallel->rows;
    if (rows == NULL)
        return;
    lki_free(rows->subtrees);
    lki_free(rows->counts);
    lki_free(rows->bytes);
    lki_free(rows->sheet);
    lki_free(rows);
    parallel->rows = NULL;
}

/* Allocates memory for the widest rows.  Only the first step allocates. */
static lk_status reserve_sheet(lki_row_merger *rows, size_t values)
{
    if (values <= rows->sheet_room)
        return LK_OK;
    lki_free(rows->sheet);
    rows->sheet_room = 0;
    LK_TRY(LKI_NEW(&rows->sheet, values, "rows"));
    rows->sheet_room = values;
    return LK_OK;
}

typedef struct {
    const subtree *next; /* the next subtree to merge */
    double        *row;
    lki_row_merge  merge;
    uint32_t       width;
} folding;

/* Returns the row of [first, first + count), merged from the consecutive rows of its subtrees. */
static double *fold(folding *f, uint32_t first, uint32_t count)
{
    if (f->next->first == first && f->next->count == count) {
        double *row = f->row;
        f->next++;
        f->row += f->width;
        return row;
    }
    uint32_t left_count = lki_tree_left(count);
    double  *left       = fold(f, first, left_count);
    double  *right      = fold(f, first + left_count, count - left_count);
    f->merge(f->width, left, right);
    return left;
}

lk_status lki_rows_merge(lk_parallel *parallel, uint32_t width, lki_row_merge merge, double *mine,
                         double *total)
{
    lki_row_merger *rows = parallel->rows;

    LK_TRY(reserve_sheet(rows, (size_t)rows->subtree_count * width));
    double *to = rows->sheet + (size_t)rows->before * width, *send = to;
    for (uint32_t i = 0; i < rows->counts[parallel->rank]; i++, to += width) {
        subtree s = rows->subtrees[rows->before + i];
        lki_tree_merge_rows(merge, width, mine, s.count);
        memcpy(to, mine, width * sizeof *to);
        mine += (size_t)s.count * width;
    }
    for (uint32_t r = 0; r < parallel->ranks; r++)
        rows->bytes[r] = (size_t)rows->counts[r] * width * sizeof *mine;
    LK_TRY(lk_all_gather_v(parallel->comm, send, rows->sheet, rows->bytes));

    folding f = { .next = rows->subtrees, .row = rows->sheet, .merge = merge, .width = width };
    memcpy(total, fold(&f, 0, parallel->leaves), width * sizeof *total);
    return LK_OK;
}

/* ---- Sums -------------------------------------------------------------------------------- */

lk_status lk_parallel_sum(lk_parallel *parallel, const double *mine, uint32_t width, double *out)
{
    uint32_t leaves = parallel->leaves, widest = 0;
    double  *sheet = NULL, *column = NULL, *send = NULL;

    if (parallel->now.failure.status != LK_OK)
        return lki_fail_again(&parallel->now.failure);
    LK_TRY(lki_check_idle(parallel, "lk_parallel_sum"));
    LK_TRY(lki_check_given("lk_parallel_sum", "mine", mine, (size_t)parallel->share.count * width));
    LK_TRY(lki_check_given("lk_parallel_sum", "out", out, width));
    for (uint32_t r = 0; r < parallel->ranks; r++)
        widest = (uint32_t)lki_max(widest, lki_share_of(&parallel->dealing, r).count);
    size_t row = (size_t)widest * width;
    lk_status status = LKI_NEW(&sheet, row * (parallel->ranks + 1), "sums");
    if (status == LK_OK)
        status = LKI_NEW(&column, leaves, "sums");
    if (status == LK_OK) {
        send = sheet + row * parallel->ranks;
        memcpy(send, mine, (size_t)parallel->share.count * width * sizeof *mine);
        status = lk_all_gather(parallel->comm, send, sheet, row * sizeof *send);
    }
    for (uint32_t w = 0; status == LK_OK && w < width; w++) {
        for (uint32_t r = 0; r < parallel->ranks; r++) {
            lki_share share = lki_share_of(&parallel->dealing, r);
            for (uint32_t i = 0; i < share.count; i++)
                column[share.first + i * share.stride] = sheet[r * row + (size_t)i * width + w];
        }
        out[w] = lki_tree_sum_f64(column, leaves);
    }
    lki_free(sheet);
    lki_free(column);
    return status;
}
