/* ledger.c -- marks, stamps and the undo log; see ledger.h. */
#include "parallel/ledger.h"

#include <string.h>

#include "base/hint.h"
#include "base/memory.h"
#include "comm/worker.h"
#include "parallel/durable.h"
#include "parallel/state.h"

/* ---- Opening ----------------------------------------------------------------------------- */

/* Finds the maximum number of ranks that a host of the job may have.  This includes ranks that have
 * not joined yet or are lost. */
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

    ledger->kept      = options->survives;
    parallel->durable = ledger->kept ? &lki_durable_ledger : &lki_durable_none;
    if (!ledger->kept)
        return LK_OK;
    if (options->lock_step)
        return lk_fail(LK_EUNSUPPORTED, "virtual workers in lock step (SyncBatchNorm) cannot "
                                        "continue in the middle of a step: start again from a "
                                        "checkpoint");
    if (!parallel->ops->survives)
        return lk_fail(LK_EUNSUPPORTED,
                       "strategy '%s' keeps gradients that die with their rank; with ddp, zero1 "
                       "to zero3 and hybrid the others can continue in the middle of a step",
                       parallel->ops->name);
    uint32_t world  = parallel->comm == NULL ? 0 : lki_comm_world(parallel->comm);
    ledger->seats   = (uint32_t)lki_max(parallel->ranks, lki_min(world, options->virtual_workers));
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
    return lk_fail(LK_EINVAL,
                   "there is no arena '%s' of %zu bytes to continue with: the group has "
                   "yet to take over those of the one before, or has other options",
                   names[which], bytes);
}

static lk_status ledger_open(lk_parallel *parallel)
{
    parallel->owned.hashes = parallel->ledger.hashes;
    return LK_OK;
}

static void ledger_close(lk_parallel *parallel)
{
    lki_free(parallel->ledger.dealt.owners);
    lki_free(parallel->ledger.round_buffers);
    parallel->owned.hashes = NULL;
}

static void *carve(char *base, size_t *at, size_t count, size_t bytes)
{
    void *part = base == NULL ? NULL : base + *at;
    *at        = lki_round_up(*at + count * bytes, 64);
    return part;
}

static size_t ledger_lay_out(lk_parallel *parallel, char *base, size_t at)
{
    lki_ledger *l     = &parallel->ledger;
    size_t      spans = parallel->layout->span_count;

    l->marks        = carve(base, &at, l->seats, sizeof *l->marks);
    l->entries      = carve(base, &at, (size_t)l->seats * LKI_ENTRIES, sizeof *l->entries);
    l->stamps       = carve(base, &at, spans, sizeof *l->stamps);
    l->begun        = carve(base, &at, spans, sizeof *l->begun);
    l->hashes       = carve(base, &at, spans, sizeof *l->hashes);
    l->sums         = carve(base, &at, spans, sizeof *l->sums);
    l->state_sums   = carve(base, &at, l->seats, sizeof *l->state_sums);
    l->state_stamps = carve(base, &at, l->seats, sizeof *l->state_stamps);
    l->staged       = carve(base, &at, 2 * parallel->state_width, sizeof *l->staged);
    return at;
}

/* ---- During a step ----------------------------------------------------------------------- */

/* Stores a word in program order.  A reader that finds the word also finds all earlier stores.  A
 * reader that does not find the word finds no later store.  See ledger.h. */
static void say(_Atomic uint64_t *word, uint64_t what)
{
    atomic_store_explicit(word, what, memory_order_release);
    atomic_signal_fence(memory_order_seq_cst);
}

static uint64_t stamp_of(const lk_parallel *parallel, lki_update_stage stage)
{
    return 2 * (parallel->step + 1) + (uint64_t)stage;
}

static void note_sum(lk_parallel *parallel, size_t span, const float *sum)
{
    lki_ledger *ledger = &parallel->ledger;
    ledger->sums[span] = (uint64_t)(sum - ledger->gradients);
}

static void note_states(lk_parallel *parallel, const float *sums)
{
    lki_ledger *ledger = &parallel->ledger;
    if (parallel->state_width == 0)
        return;
    for (uint32_t o = parallel->local; o < parallel->world.widest; o += parallel->locals)
        ledger->state_sums[o] = (uint64_t)(sums - ledger->gradients);
}

static float *find_sum(const lk_parallel *parallel, size_t span)
{
    return parallel->ledger.gradients + parallel->ledger.sums[span];
}

static void mark(lk_parallel *parallel, const lki_tally *tally)
{
    lki_ledger *ledger = &parallel->ledger;
    uint64_t    steps  = parallel->step + 1;
    lki_mark   *mine   = &ledger->marks[parallel->rank];

    atomic_store(&mine->turns[steps & 1].steps, 0);
    mine->turns[steps & 1].tally = *tally;
    atomic_store(&mine->turns[steps & 1].steps, steps);
}

/* Returns a free entry.  Waits for one if more threads change spans than there are entries. */
static lki_entry *free_entry(lk_parallel *parallel)
{
    lki_ledger *ledger = &parallel->ledger;
    uint32_t    i      = 0;

    for (; atomic_exchange(&ledger->holds[i].held, true); i = (i + 1) % LKI_ENTRIES)
        lki_relax();
    return &ledger->entries[(size_t)parallel->rank * LKI_ENTRIES + i];
}

/* Finds the parts of a span that a stage changes.  Unchanged parts are set to NULL. */
static void parts_of(const lk_parallel *parallel, size_t index, lki_update_stage stage,
                     float *part[LKI_ENTRY_PARTS])
{
    const lki_param_span *span   = &parallel->layout->spans[index];
    const lki_ledger     *ledger = &parallel->ledger;

    for (uint32_t i = 0; i < LKI_ENTRY_PARTS; i++)
        part[i] = NULL;
    for (uint32_t i = 0; i < lk_optimizer_state_count(&parallel->optimizer); i++)
        part[i] = parallel->optimizer_state[i] + lki_stored_at(parallel, span);
    if (stage == LKI_UPDATED)
        part[LKI_ENTRY_VALUES] = lki_values_of(parallel, span);
    if (stage == LKI_DIRECTED || parallel->clip.value > 0)
        part[LKI_ENTRY_SUMS] = ledger->gradients + ledger->sums[index];
}

static lki_entry *begin_span(lk_parallel *parallel, size_t index, lki_update_stage stage)
{
    const lki_ledger *ledger = &parallel->ledger;
    lki_entry        *entry  = free_entry(parallel);
    entry->stamp             = stamp_of(parallel, stage);
    say(&entry->progress, ledger->begun[index] << 32);
    say(&entry->span, index + 1);
    return entry;
}

static bool is_begun(const lk_parallel *parallel, size_t index)
{
    return parallel->ledger.begun[index] > 0;
}

static bool next_piece(const lk_parallel *parallel, size_t index, lki_entry *entry,
                       lki_piece *piece)
{
    const size_t count = parallel->layout->spans[index].count;
    float       *part[LKI_ENTRY_PARTS];

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

static void end_span(lk_parallel *parallel, size_t index, lki_entry *entry)
{
    lki_ledger *ledger = &parallel->ledger;

    say(&ledger->stamps[index], entry->stamp);
    ledger->begun[index] = 0;
    say(&entry->span, 0);
    lki_hold *mine = &ledger->holds[(size_t)(entry - ledger->entries) % LKI_ENTRIES];
    atomic_store(&mine->held, false);
}

static bool has(const lk_parallel *parallel, size_t index, lki_update_stage stage)
{
    const lki_ledger *ledger = &parallel->ledger;
    return atomic_load(&ledger->stamps[index]) >= stamp_of(parallel, stage);
}

static lki_running_update begin_running(lk_parallel *parallel, uint32_t owner, size_t first,
                                        size_t end, const float *sums)
{
    const lki_ledger  *ledger = &parallel->ledger;
    const size_t       bytes  = (end - first) * sizeof(float);
    lki_running_update at     = { .sums   = ledger->gradients + ledger->state_sums[owner],
                                  .values = ledger->staged };

    (void)sums; /* the ledger has the address of the sums */
    if (parallel->running.mean != NULL)
        at.mean = ledger->staged + parallel->state_width;
    at.complete = atomic_load(&ledger->state_stamps[owner]) == parallel->step + 1;
    if (at.complete)
        return at;
    memcpy(at.values + first, parallel->running.values + first, bytes);
    if (at.mean != NULL)
        memcpy(at.mean + first, parallel->running.mean + first, bytes);
    return at;
}

/* Copies the new values.  All of them are complete before the first old value is overwritten. */
static void end_running(lk_parallel *parallel, uint32_t owner, size_t first, size_t end)
{
    const lki_ledger *ledger = &parallel->ledger;
    const float      *staged = ledger->staged + first;
    const size_t      bytes  = (end - first) * sizeof(float);

    atomic_store(&ledger->state_stamps[owner], parallel->step + 1);
    memcpy(parallel->running.values + first, staged, bytes);
    if (parallel->running.mean != NULL)
        memcpy(parallel->running.mean + first, staged + parallel->state_width, bytes);
}

const lki_durable lki_durable_ledger = {
    .lay_out       = ledger_lay_out,
    .open          = ledger_open,
    .close         = ledger_close,
    .note_sum      = note_sum,
    .note_states   = note_states,
    .find_sum      = find_sum,
    .mark          = mark,
    .has           = has,
    .is_begun      = is_begun,
    .begin_span    = begin_span,
    .next_piece    = next_piece,
    .end_span      = end_span,
    .begin_running = begin_running,
    .end_running   = end_running,
};

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
    memcpy(parallel->ledger.staged, parallel->running.values, bytes);
    if (parallel->running.mean != NULL)
        memcpy(parallel->ledger.staged + parallel->state_width, parallel->running.mean, bytes);
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
    for (size_t i = 0; i < (size_t)ledger->seats * LKI_ENTRIES; i++)
        undo(parallel, &ledger->entries[i]);
}
