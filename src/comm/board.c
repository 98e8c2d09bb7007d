/* board.c -- the control memory: its layout, and a reader's view of a rank's record. */
#include "comm/group.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"

static const uint64_t board_magic = UINT64_C(0x6c6b2d626f617264); /* "lk-board" */

/* Bytes before the staging buffers, which begin on a page. */
static size_t records_bytes(uint32_t size)
{
    return lki_round_up(sizeof(lki_board) + ((size_t)size + 1) * sizeof(lki_rank), 4096);
}

size_t lki_board_bytes(uint32_t size)
{
    return records_bytes(size) + (size_t)size * LKI_STAGES * LKI_STAGE_BYTES;
}

void lki_board_init(lki_board *board, uint32_t size)
{
    board->magic      = board_magic;
    board->bytes      = lki_board_bytes(size);
    board->size       = size;
    board->rank_bytes = sizeof(lki_rank);
}

bool lki_board_valid(const lki_board *board, size_t bytes)
{
    return bytes >= sizeof *board && board->magic == board_magic && board->bytes == bytes
           && board->rank_bytes == sizeof(lki_rank) && board->size >= 1
           && board->size <= LKI_RANKS_MAX && bytes == lki_board_bytes(board->size);
}

void *lki_stage(const lk_comm *comm, uint32_t rank, uint64_t chunk)
{
    size_t index = (size_t)rank * LKI_STAGES + (size_t)(chunk % LKI_STAGES);
    return (unsigned char *)comm->board + records_bytes(comm->size) + index * LKI_STAGE_BYTES;
}

/* ---- What the last operation of a rank was ----------------------------------------------- */

static const char *kind_name(uint64_t kind)
{
    static const char *const names[] = {
        [LKI_OP_NONE] = "nothing",           [LKI_OP_BARRIER] = "barrier",
        [LKI_OP_BROADCAST] = "broadcast",    [LKI_OP_ALL_GATHER] = "all_gather",
        [LKI_OP_ALL_REDUCE] = "all_reduce",  [LKI_OP_TREE_REDUCE] = "tree_reduce",
        [LKI_OP_ARENA] = "creating an arena", [LKI_OP_AGREE] = "comparing outcomes",
    };
    return kind < sizeof names / sizeof names[0] ? names[kind] : "?";
}

void lki_print_text(char *out, size_t bytes, lki_print print, uint64_t seq)
{
    uint64_t   kind = print.what & 0xff, root = print.what >> 32;
    lk_dtype   dtype = (lk_dtype)(print.what >> 8 & 0xff);
    const char *name = kind_name(kind);

    if (kind == LKI_OP_ALL_REDUCE || kind == LKI_OP_TREE_REDUCE)
        snprintf(out, bytes, "%s #%llu (%s, %llu elements)", name, (unsigned long long)seq,
                 lk_dtype_name(dtype), (unsigned long long)print.count);
    else if (kind == LKI_OP_BROADCAST)
        snprintf(out, bytes, "%s #%llu (%llu bytes from rank %llu)", name, (unsigned long long)seq,
                 (unsigned long long)print.count, (unsigned long long)root);
    else if (kind == LKI_OP_ALL_GATHER || kind == LKI_OP_ARENA)
        snprintf(out, bytes, "%s #%llu (%llu bytes)", name, (unsigned long long)seq,
                 (unsigned long long)print.count);
    else
        snprintf(out, bytes, "%s #%llu", name, (unsigned long long)seq);
}

static void operation_text(const lki_rank *record, char *out, size_t bytes)
{
    uint64_t started = atomic_load(&record->started);
    if (started == 0) {
        snprintf(out, bytes, "no operation yet");
        return;
    }
    const lki_slot *slot  = &record->slots[(started - 1) % LKI_IN_FLIGHT];
    lki_print       print = {
        .what  = atomic_load_explicit(&slot->what, memory_order_relaxed),
        .count = atomic_load_explicit(&slot->count, memory_order_relaxed),
        .hash  = 0,
    };
    lki_print_text(out, bytes, print, started - 1);
}

/* ---- A view of a record ------------------------------------------------------------------ */

/* The owner may be writing: a torn phase is possible, an unterminated one is not. */
static void read_phase(const lki_rank *record, char out[LKI_PHASE_BYTES])
{
    uint64_t words[LKI_PHASE_BYTES / 8];
    for (size_t i = 0; i < LKI_PHASE_BYTES / 8; i++)
        words[i] = atomic_load_explicit(&record->phase[i], memory_order_relaxed);
    memcpy(out, words, LKI_PHASE_BYTES);
    out[LKI_PHASE_BYTES - 1] = '\0';
}

void lki_board_view(const lki_board *board, uint32_t rank, lki_rank_view *out)
{
    const lki_rank *record = &board->ranks[rank];

    memset(out, 0, sizeof *out);
    out->state     = (lki_rank_state)atomic_load(&record->state);
    out->pid       = atomic_load(&record->pid);
    out->exit_code = atomic_load(&record->exit_code);
    out->signal    = atomic_load(&record->signal);
    out->noted     = atomic_load_explicit(&record->noted, memory_order_acquire) != 0;
    out->step      = atomic_load_explicit(&record->step, memory_order_relaxed);
    read_phase(record, out->phase);
    operation_text(record, out->operation, sizeof out->operation);
    if (!out->noted)
        snprintf(out->place, sizeof out->place, "before its first step");
    else
        snprintf(out->place, sizeof out->place, "at step %llu%s%s", (unsigned long long)out->step,
                 out->phase[0] != '\0' ? " in " : "", out->phase);
    if (atomic_load_explicit(&record->erred, memory_order_acquire) != 0) {
        out->status = record->status;
        memcpy(out->message, record->message, sizeof out->message);
    }
}
