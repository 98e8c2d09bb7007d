/* ledger.c -- marks, stamps and the undo log; see ledger.h. */
#include "parallel/recover/ledger.h"

#include <string.h>

#include "base/memory.h"
#include "comm/control.h"
#include "parallel/strategy.h"

/* ---- Opening ----------------------------------------------------------------------------- */

/* The most ranks of a host of the job: not all of them may be here yet, or any more. */
static lk_status find_widest(lk_parallel *parallel, uint32_t world)
{
    lki_ledger *ledger = &parallel->ledger;
    lki_world   first  = { .hosts = parallel->world.hosts, .widest = parallel->world.widest };

    if (ledger->before != NULL) {
        ledger->here = ledger->before->ledger.here;
        return LK_OK;
    }
    bool      partial = ledger->goes_on || world > parallel->ranks;
    lk_status status  = partial ? lki_world_first(&first, parallel->comm) : LK_OK;
    ledger->here      = first.hosts == 1 ? ledger->seats : first.widest;
    if (partial)
        lki_world_deinit(&first);
    return status;
}

lk_status lki_ledger_describe(lk_parallel *parallel, const lk_parallel_options *options)
{
    lki_ledger *ledger = &parallel->ledger;

    ledger->kept = options->survives;
    if (!ledger->kept)
        return LK_OK;
    if (options->lock_step)
        return lk_fail(LK_EUNSUPPORTED, "virtual workers in lock step (SyncBatchNorm) cannot go on "
                                        "in the middle of a step: start again from a checkpoint");
    if (!parallel->ops->survives)
        return lk_fail(LK_EUNSUPPORTED,
                       "strategy '%s' keeps gradients that die with their rank; with ddp, zero1 "
                       "to zero3 and hybrid the others can go on in the middle of a step",
                       parallel->ops->name);
    uint32_t world  = parallel->comm == NULL ? 0 : lki_comm_world(parallel->comm);
    ledger->seats   = (uint32_t)lki_max(parallel->ranks, lki_min(world, options->virtual_workers));
    ledger->threads = options->exec != NULL ? lk_exec_threads(options->exec) : 1;
    return find_widest(parallel, world);
}

lk_status lki_ledger_arena(lk_parallel *parallel, lki_ledger_arenas which, size_t bytes,
                           lk_arena **out)
{
    static const char *const names[] = { "model", "gradients" };
    lki_ledger              *ledger  = &parallel->ledger;
    lk_arena               **kept    = &ledger->arenas[which];

    if (!ledger->goes_on)
        LK_TRY(lk_comm_arena(kept, parallel->comm, names[which], bytes));
    else if (ledger->before != NULL)
        *kept = ledger->before->ledger.arenas[which];
    else if (lki_comm_host_is_fresh(parallel->comm, parallel->world.host_of[parallel->rank]))
        LK_TRY(lki_comm_own_arena(kept, parallel->comm, names[which], bytes));
    else
        *kept = lki_comm_arena_named(parallel->comm, names[which]);
    *out = *kept;
    if (*kept != NULL && lk_arena_bytes(*kept) >= bytes)
        return LK_OK;
    return lk_fail(LK_EINVAL, "there is no arena '%s' of %zu bytes to go on with: the group has "
                   "yet to take over those of the one before, or has other options", names[which],
                   bytes);
}

lk_status lki_ledger_open(lk_parallel *parallel)
{
    lki_ledger *ledger = &parallel->ledger;
    if (!ledger->kept)
        return LK_OK;
    parallel->hashes = ledger->hashes;
    return LKI_NEW(&ledger->holds, ledger->threads, "entries of an undo log");
}

void lki_ledger_close(lk_parallel *parallel)
{
    lki_free(parallel->ledger.holds);
    lki_free(parallel->ledger.dealt.owners);
    lki_free(parallel->ledger.round_buffers);
    if (parallel->ledger.kept)
        parallel->hashes = NULL;
}

static void *carve(char *base, size_t *at, size_t count, size_t bytes)
{
    void *part = base == NULL ? NULL : base + *at;
    *at        = lki_round_up(*at + count * bytes, 64);
    return part;
}

size_t lki_ledger_lay_out(lk_parallel *parallel, char *base, size_t at)
{
    lki_ledger *l     = &parallel->ledger;
    size_t      spans = parallel->layout->span_count;

    if (!l->kept)
        return at;
    l->marks        = carve(base, &at, l->seats, sizeof *l->marks);
    l->entries      = carve(base, &at, (size_t)l->seats * l->threads, sizeof *l->entries);
    l->stamps       = carve(base, &at, spans, sizeof *l->stamps);
    l->begun        = carve(base, &at, spans, sizeof *l->begun);
    l->hashes       = carve(base, &at, spans, sizeof *l->hashes);
    l->sums         = carve(base, &at, spans, sizeof *l->sums);
    l->state_sums   = carve(base, &at, l->seats, sizeof *l->state_sums);
    l->state_stamps = carve(base, &at, l->seats, sizeof *l->state_stamps);
    l->staged       = carve(base, &at, 2 * parallel->state_width, sizeof *l->staged);
    return at;
}

/* ---- While a step is made ---------------------------------------------------------------- */

/* All that comes before it in the program is there for who finds it, all that comes after it is not
 * for who does not: see ledger.h. */
static void say(_Atomic uint64_t *word, uint64_t what)
{
    atomic_store_explicit(word, what, memory_order_release);
    atomic_signal_fence(memory_order_seq_cst);
}

static uint64_t stamp_of(const lk_parallel *parallel, lki_update_stage stage)
{
    return 2 * (parallel->step + 1) + (uint64_t)stage;
}

void lki_ledger_note_sum(lk_parallel *parallel, size_t span, const float *sum)
{
    lki_ledger *ledger = &parallel->ledger;
    if (ledger->kept)
        ledger->sums[span] = (uint64_t)(sum - ledger->gradients);
}

void lki_ledger_note_states(lk_parallel *parallel, const float *sums)
{
    lki_ledger *ledger = &parallel->ledger;
    if (!ledger->kept || parallel->state_width == 0)
        return;
    for (uint32_t o = parallel->local; o < parallel->world.widest; o += parallel->locals)
        ledger->state_sums[o] = (uint64_t)(sums - ledger->gradients);
}

void lki_ledger_mark(lk_parallel *parallel, const lki_tally *tally)
{
    lki_ledger *ledger = &parallel->ledger;
    uint64_t    steps  = parallel->step + 1;

    if (!ledger->kept)
        return;
    lki_mark *mark = &ledger->marks[parallel->rank];
    atomic_store(&mark->turns[steps & 1].steps, 0);
    mark->turns[steps & 1].tally = *tally;
    atomic_store(&mark->turns[steps & 1].steps, steps);
}

/* There are as many as threads that may change something at the same time. */
static lki_entry *free_entry(lk_parallel *parallel)
{
    lki_ledger *ledger = &parallel->ledger;
    uint32_t    i      = 0;

    while (atomic_exchange(&ledger->holds[i].held, true)) {
        i++;
        LK_ASSERT(i < ledger->threads);
    }
    return &ledger->entries[(size_t)parallel->rank * ledger->threads + i];
}

/* What a stage changes of a span; NULL where it changes nothing. */
static void parts_of(const lk_parallel *parallel, size_t index, lki_update_stage stage,
                     float *part[LKI_ENTRY_PARTS])
{
    const lki_param_span *span   = &parallel->layout->spans[index];
    const lki_ledger     *ledger = &parallel->ledger;

    for (uint32_t i = 0; i < LKI_ENTRY_PARTS; i++)
        part[i] = NULL;
    for (uint32_t i = 0; i < lk_optimizer_state_count(&parallel->optimizer); i++)
        part[i] = parallel->optimizer_state[i] + lki_kept_at(parallel, span);
    if (stage == LKI_UPDATED)
        part[LKI_ENTRY_VALUES] = lki_values_of(parallel, span);
    if (stage == LKI_DIRECTED || parallel->clip_value > 0)
        part[LKI_ENTRY_SUMS] = ledger->gradients + ledger->sums[index];
}

lki_entry *lki_ledger_keep(lk_parallel *parallel, size_t index, lki_update_stage stage)
{
    const lki_ledger *ledger = &parallel->ledger;

    if (!ledger->kept)
        return NULL;
    lki_entry *entry = free_entry(parallel);
    entry->stamp     = stamp_of(parallel, stage);
    say(&entry->progress, ledger->begun[index] << 32);
    say(&entry->span, index + 1);
    return entry;
}

bool lki_ledger_is_begun(const lk_parallel *parallel, size_t index)
{
    return parallel->ledger.kept && parallel->ledger.begun[index] > 0;
}

bool lki_ledger_next(const lk_parallel *parallel, size_t index, lki_entry *entry, lki_piece *piece)
{
    const size_t count = parallel->layout->spans[index].count;
    float       *part[LKI_ENTRY_PARTS];

    if (entry == NULL) {
        *piece = (lki_piece){ piece->count, count - piece->count };
        return piece->count > 0;
    }
    uint64_t progress = atomic_load_explicit(&entry->progress, memory_order_relaxed);
    size_t   first    = (size_t)(progress >> 32) + (uint32_t)progress;
    say(&entry->progress, first << 32);
    if (first >= count)
        return false;
    *piece = (lki_piece){ first, lki_min(count - first, LKI_PIECE) };
    parts_of(parallel, index, (lki_update_stage)(entry->stamp & 1), part);
    for (uint32_t i = 0; i < LKI_ENTRY_PARTS; i++)
        if (part[i] != NULL)
            memcpy(entry->values[i], part[i] + first, piece->count * sizeof(float));
    say(&entry->progress, first << 32 | piece->count);
    return true;
}

void lki_ledger_drop(lk_parallel *parallel, size_t index, lki_entry *entry)
{
    lki_ledger *ledger = &parallel->ledger;

    if (entry == NULL)
        return;
    say(&ledger->stamps[index], entry->stamp);
    ledger->begun[index] = 0;
    say(&entry->span, 0);
    lki_hold *mine = &ledger->holds[(size_t)(entry - ledger->entries) % ledger->threads];
    atomic_store(&mine->held, false);
}

bool lki_ledger_has(const lk_parallel *parallel, size_t index, lki_update_stage stage)
{
    const lki_ledger *ledger = &parallel->ledger;
    return ledger->kept && atomic_load(&ledger->stamps[index]) >= stamp_of(parallel, stage);
}

/* ---- After a failure --------------------------------------------------------------------- */

uint64_t lki_ledger_last(const lk_parallel *parallel, lki_tally *out)
{
    uint64_t last = 0;
    *out          = (lki_tally){ .owners = 0 };
    for (uint32_t seat = 0; seat < parallel->ledger.seats; seat++)
        for (uint32_t turn = 0; turn < 2; turn++) {
            const lki_mark *mark  = &parallel->ledger.marks[seat];
            uint64_t        steps = atomic_load(&mark->turns[turn].steps);
            if (steps <= last)
                continue;
            last = steps;
            *out = mark->turns[turn].tally;
        }
    return last;
}

void lki_ledger_fill(lk_parallel *parallel, uint64_t steps)
{
    lki_ledger *ledger = &parallel->ledger;

    for (size_t i = 0; i < parallel->layout->span_count; i++)
        atomic_store(&ledger->stamps[i], 2 * steps + LKI_UPDATED);
    for (uint32_t seat = 0; seat < ledger->seats; seat++)
        atomic_store(&ledger->state_stamps[seat], steps);
}

void lki_ledger_stage(lk_parallel *parallel)
{
    size_t bytes = parallel->state_width * sizeof(float);

    if (bytes == 0)
        return;
    memcpy(parallel->ledger.staged, parallel->running, bytes);
    if (parallel->running_mean != NULL)
        memcpy(parallel->ledger.staged + parallel->state_width, parallel->running_mean, bytes);
}

static void undo(lk_parallel *parallel, lki_entry *entry)
{
    float   *part[LKI_ENTRY_PARTS];
    uint64_t span = atomic_load(&entry->span);
    if (span == 0)
        return;
    size_t   index    = (size_t)span - 1;
    uint64_t progress = atomic_load(&entry->progress), done = progress >> 32;
    size_t   bytes    = (uint32_t)progress * sizeof(float);
    bool     complete = atomic_load(&parallel->ledger.stamps[index]) >= entry->stamp;
    parts_of(parallel, index, (lki_update_stage)(entry->stamp & 1), part);
    for (uint32_t i = 0; i < LKI_ENTRY_PARTS && !complete; i++)
        if (part[i] != NULL)
            memcpy(part[i] + done, entry->values[i], bytes);
    parallel->ledger.begun[index] = complete ? 0 : done;
    say(&entry->span, 0);
}

void lki_ledger_undo(lk_parallel *parallel)
{
    const lki_ledger *ledger = &parallel->ledger;
    for (size_t i = 0; i < (size_t)ledger->seats * ledger->threads; i++)
        undo(parallel, &ledger->entries[i]);
}
