/* fit.c -- checks that a run fits into the memory of a host, and suggests other options if not. */
#include <stdio.h>

#include "base/options.h"
#include "base/status.h"
#include "lockstep/plan.h"
#include "train/config.h"

/* The strategies, ordered from the simplest to the one that needs the least memory. */
static const char *const strategies[] = { "ddp", "zero1", "zero2", "zero3" };

enum { STRATEGIES = sizeof strategies / sizeof strategies[0] };

static double mebibytes(size_t bytes)
{
    return (double)bytes / 0x1p20;
}

static double whole(const lk_train_cost *cost)
{
    return (double)lk_train_cost_bytes(cost);
}

/* Returns text that suggests further data to offload. */
static const char *advise_files(const lk_train_config *config)
{
    const bool filed  = lki_in_files(config, LK_OFFLOADED_STATES);
    const bool states = !filed && lk_optimizer_state_count(&config->optimizer) > 0;
    const bool params = !lki_in_files(config, LK_OFFLOADED_PARAMETERS) && config->audit == 0 &&
                        config->gather_dtype == LK_F32;
    if (config->elastic.survives || (!states && !params))
        return "";
    return !params  ? "`offload` for the optimizer's state, "
           : filed  ? "`offload` for zero3's parameters, too, "
           : states ? "`offload` for the optimizer's state and zero3's parameters, "
                    : "`offload` for zero3's parameters, ";
}

/* Writes text that suggests a strategy that would fit. */
static void advise(const lk_train_config *config, uint32_t hosts, char *out, size_t bytes)
{
    const double limit = (double)config->host_memory;
    double       least = 0;
    const char  *name  = NULL;
    for (size_t i = 0; i < STRATEGIES && (name == NULL || least > limit); i++) {
        lk_train_config other = *config;
        lk_train_cost   cost;
        other.strategy = strategies[i];
        if (lk_train_check_hosts(&other, hosts) != LK_OK ||
            lk_train_estimate(&other, hosts, &cost) != LK_OK ||
            (name != NULL && whole(&cost) >= least))
            continue;
        least = whole(&cost);
        name  = strategies[i];
    }
    if (name == NULL)
        (void)snprintf(out, bytes, "make the model smaller");
    else if (least <= limit)
        (void)snprintf(out, bytes, "choose `strategy` %s, which takes %.1f MiB", name,
                       least / 0x1p20);
    else
        (void)snprintf(out, bytes, "no strategy fits: %s takes the least, %.1f MiB; take more "
                       "hosts, fewer workers on each, %sor a smaller model", name, least / 0x1p20,
                       advise_files(config));
}

lk_status lk_train_fits(const lk_train_config *config, uint32_t hosts)
{
    lk_train_config mine;
    lk_train_cost   cost;
    char            advice[256], where[40] = "the host";

    LK_TRY(lki_options_copy(&mine, sizeof mine, config, "lk_train_config"));
    if (mine.host_memory == 0)
        return LK_OK;
    LK_TRY(lk_train_estimate(&mine, hosts, &cost));
    if (whole(&cost) <= (double)mine.host_memory)
        return LK_OK;
    advise(&mine, hosts, advice, sizeof advice);
    if (hosts > 1)
        (void)snprintf(where, sizeof where, "each of %u hosts", hosts);
    return lk_fail(LK_EINVAL,
                   "%s takes %.1f MiB of %s (parameters %.1f, optimizer %.1f, "
                   "gradients %.1f, activations %.1f, buffers %.1f), but `host_memory` leaves "
                   "%.1f; %s",
                   mine.strategy == NULL ? strategies[0] : mine.strategy, whole(&cost) / 0x1p20,
                   where, mebibytes(cost.shared.params), mebibytes(cost.shared.optimizer),
                   mebibytes(cost.shared.gradients),
                   (double)cost.workers * mebibytes(cost.activations),
                   mebibytes(cost.shared.tables + cost.shared.messages +
                             cost.workers * cost.program),
                   mebibytes(mine.host_memory), advice);
}
