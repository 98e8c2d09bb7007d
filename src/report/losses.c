/* losses.c -- the losses that a log has, by step and virtual worker. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "lockstep/report.h"
#include "report/run_log.h"

struct lk_log_losses {
    lki_run_log *log;
};

lk_status lk_log_losses_open(lk_log_losses **out, const char *log)
{
    lk_log_losses *losses = NULL;
    *out                  = NULL;
    LK_TRY(LKI_NEW(&losses, 1, "losses"));
    lk_status status = lki_run_log_open(&losses->log, log);
    if (status == LK_OK)
        *out = losses;
    else
        lki_free(losses);
    return status;
}

void lk_log_losses_free(lk_log_losses *losses)
{
    if (losses == NULL)
        return;
    lki_run_log_free(losses->log);
    lki_free(losses);
}

/* Returns the row of a step, or the number of rows. */
static size_t row_of(const lki_run_log *log, uint64_t step)
{
    size_t low = 0, high = log->rows;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (log->steps[middle] < step)
            low = middle + 1;
        else
            high = middle;
    }
    return low < log->rows && log->steps[low] == step ? low : log->rows;
}

static bool find_worker(const lki_run_log *log, size_t row, uint32_t worker, double *loss)
{
    char *all  = lki_run_log_losses(log, row);
    bool  good = all != NULL && worker < strlen(all) / LKI_LOSS_DIGITS;
    if (good)
        *loss = lki_loss_of_worker(all, worker);
    free(all);
    return good;
}

bool lk_log_loss(const lk_log_losses *losses, uint64_t step, uint32_t virtual_worker, double *loss)
{
    const lki_run_log *log = losses->log;
    const lki_column  *all = lki_run_log_column(log, "loss");
    const size_t       row = row_of(log, step);
    if (row == log->rows || !log->has_bits)
        return false;
    if (virtual_worker != LK_NO_WORKER)
        return find_worker(log, row, virtual_worker, loss);
    if (all == NULL || lki_is_absent(all->values[row]))
        return false;
    *loss = all->values[row];
    return true;
}
