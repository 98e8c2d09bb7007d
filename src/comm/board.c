/* board.c -- the control memory: its layout, and a reader's view of a rank's record. */
#include "comm/algorithm/schedule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "device/combine.h"

enum { PIECES_BYTES = 262144, PIECE_BYTES_MAX = 16384 };

static const uint64_t board_magic = UINT64_C(0x6c6b2d626f617264); /* "lk-board" */

/* A row of mail takes no more than 256 KiB, pieces are whole cache lines. */
size_t lki_piece_bytes(uint32_t size)
{
    size_t fair = (size_t)PIECES_BYTES / 2 / size / LKI_LINE * LKI_LINE;
    return lki_max(LKI_LINE, lki_min(fair, PIECE_BYTES_MAX));
}

size_t lki_seat_bytes(uint32_t size)
{
    size_t mail = sizeof(lki_mail) + 2 * lki_piece_bytes(size);
    return sizeof(lki_seat) + lki_round_up(size * mail, 4096);
}

/* Bytes before the seats, which begin on a page. */
static size_t records_bytes(uint32_t size)
{
    return lki_round_up(sizeof(lki_board) + ((size_t)size + 1) * sizeof(lki_rank), 4096);
}

size_t lki_board_bytes(lki_roster roster, uint32_t members)
{
    return records_bytes(roster.world) + members * lki_seat_bytes(members);
}

void *lki_board_seats(lki_board *board)
{
    return (unsigned char *)board + records_bytes(board->size);
}

lki_seat *lki_board_seat(lki_board *board, uint32_t rank)
{
    size_t place = board->ranks[rank].seat - 1;
    LK_ASSERT(place < board->members);
    return (lki_seat *)(void *)((unsigned char *)lki_board_seats(board)
                                + place * lki_seat_bytes(board->members));
}

void lki_board_init(lki_board *board, lki_roster roster, const bool *out)
{
    for (uint32_t rank = 0; rank < roster.world; rank++) {
        board->ranks[rank].member = out == NULL || !out[rank];
        if (board->ranks[rank].member && rank - roster.first < roster.count)
            board->ranks[rank].seat = ++board->members;
    }
    board->magic      = board_magic;
    board->bytes      = lki_board_bytes(roster, board->members);
    board->size       = roster.world;
    board->first      = roster.first;
    board->seated     = roster.count;
    board->rank_bytes = sizeof(lki_rank) + sizeof(lki_seat);
}

uint32_t lki_board_group_size(const lki_board *board)
{
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < board->size; rank++)
        count += board->ranks[rank].member;
    return count;
}

bool lki_board_valid(const lki_board *board, size_t bytes)
{
    if (bytes < sizeof *board || board->magic != board_magic || board->bytes != bytes
        || board->rank_bytes != sizeof(lki_rank) + sizeof(lki_seat))
        return false;
    lki_roster roster = { board->size, board->first, board->seated };
    return lki_roster_valid(roster) && board->members - 1 < board->seated
           && bytes == lki_board_bytes(roster, board->members);
}

/* ---- What the last operation of a rank was ----------------------------------------------- */

typedef enum { NOTHING, BYTES, ELEMENTS, REDUCTION } unit;

typedef struct {
    const char *name, *root; /* root: how the text calls it, NULL without one */
    unit        counts;
} kind_row;

static const kind_row kinds[] = {
    [LKI_OP_NONE]             = { "nothing", NULL, NOTHING },
    [LKI_OP_BARRIER]          = { "barrier", NULL, NOTHING },
    [LKI_OP_BROADCAST]        = { "broadcast", "from", BYTES },
    [LKI_OP_ALL_GATHER]       = { "all_gather", NULL, BYTES },
    [LKI_OP_ALL_REDUCE]       = { "all_reduce", NULL, REDUCTION },
    [LKI_OP_TREE_REDUCE]      = { "tree_reduce", NULL, ELEMENTS },
    [LKI_OP_ARENA]            = { "creating an arena", NULL, BYTES },
    [LKI_OP_AGREE]            = { "comparing outcomes", NULL, NOTHING },
    [LKI_OP_REDUCE]           = { "reduce", "to", REDUCTION },
    [LKI_OP_REDUCE_SCATTER]   = { "reduce_scatter", NULL, REDUCTION },
    [LKI_OP_REDUCE_SCATTER_V] = { "reduce_scatter_v", NULL, REDUCTION },
    [LKI_OP_ALL_GATHER_V]     = { "all_gather_v", NULL, BYTES },
    [LKI_OP_GATHER]           = { "gather", "to", BYTES },
    [LKI_OP_SCATTER]          = { "scatter", "from", BYTES },
    [LKI_OP_ALL_TO_ALL]       = { "all_to_all", NULL, BYTES },
    [LKI_OP_ALL_TO_ALL_V]     = { "all_to_all_v", NULL, NOTHING },
    [LKI_OP_SEND]             = { "send", "to", BYTES },
    [LKI_OP_RECV]             = { "recv", "from", BYTES },
    [LKI_OP_SPLIT]            = { "split", NULL, NOTHING },
    [LKI_OP_ADASUM]           = { "adasum", NULL, ELEMENTS },
    [LKI_OP_MIRROR]           = { "mirror", NULL, BYTES },
    [LKI_OP_MESSAGE]          = { "message", "to", BYTES },
};

/* "F32 sum, 100 elements", "100 bytes" or nothing. */
static void count_text(char *out, size_t bytes, const kind_row *row, lki_print print)
{
    const char        *dtype = lk_dtype_name((lk_dtype)(print.what >> 8 & 0xff));
    unsigned long long count = print.count;

    out[0] = '\0';
    if (row->counts == BYTES)
        snprintf(out, bytes, "%llu bytes", count);
    else if (row->counts == ELEMENTS)
        snprintf(out, bytes, "%s, %llu elements", dtype, count);
    else if (row->counts == REDUCTION)
        snprintf(out, bytes, "%s %s, %llu elements", dtype,
                 lki_reduce_name(print.what >> 16 & 0xff), count);
}

uint64_t lki_print_bytes(lki_print print)
{
    uint64_t kind = print.what & 0xff, bytes = 0;
    unit     counts = kind < sizeof kinds / sizeof kinds[0] ? kinds[kind].counts : NOTHING;

    if (counts == BYTES)
        return print.count;
    if (counts == NOTHING
        || __builtin_mul_overflow(print.count, lk_dtype_bytes((lk_dtype)(print.what >> 8 & 0xff)),
                                  &bytes))
        return 0;
    return bytes;
}

/* " by ring" where an algorithm was asked for by name (span/span.c). */
static void method_text(char *out, size_t bytes, uint64_t number)
{
    uint64_t i = 1;

    while (i < number && lki_methods[i - 1] != NULL)
        i++;
    out[0] = '\0';
    if (number > 0 && lki_methods[i - 1] != NULL)
        snprintf(out, bytes, " by %s", lki_methods[i - 1]->name);
}

void lki_print_text(char *out, size_t bytes, lki_print print, uint64_t seq, uint64_t group)
{
    uint64_t kind = print.what & 0xff, root = print.what >> 32;
    char     count[64], rooted[40] = "", by[32] = "", where[64] = "";

    if (kind >= sizeof kinds / sizeof kinds[0])
        kind = LKI_OP_NONE;
    const kind_row *row = &kinds[kind];
    count_text(count, sizeof count, row, print);
    method_text(by, sizeof by, print.what >> 24 & 0xff);
    if (row->root != NULL)
        snprintf(rooted, sizeof rooted, " %s rank %llu", row->root, (unsigned long long)root);
    if (group != 0)
        snprintf(where, sizeof where, " in a group of %llu with rank %llu",
                 (unsigned long long)(group >> 32), (unsigned long long)(group & UINT32_MAX));
    snprintf(out, bytes, "%s #%llu%s%s%s%s%s%s", row->name, (unsigned long long)seq,
             count[0] != '\0' ? " (" : "", count, count[0] != '\0' ? rooted : "",
             count[0] != '\0' ? ")" : "", by, where);
}

static void operation_text(const lki_rank *record, char *out, size_t bytes)
{
    uint64_t  started = atomic_load(&record->started);
    lki_print print   = {
        .what  = atomic_load_explicit(&record->what, memory_order_relaxed),
        .count = atomic_load_explicit(&record->count, memory_order_relaxed),
    };
    if (started == 0)
        snprintf(out, bytes, "no operation yet");
    else
        lki_print_text(out, bytes, print, started - 1,
                       atomic_load_explicit(&record->group, memory_order_relaxed));
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

void lki_board_carry_place(lki_rank *to, const lki_rank *from)
{
    atomic_store(&to->step, atomic_load(&from->step));
    for (size_t i = 0; i < LKI_PHASE_BYTES / 8; i++)
        atomic_store(&to->phase[i], atomic_load(&from->phase[i]));
    atomic_store(&to->noted, atomic_load(&from->noted));
}

void lki_board_who(char out[LKI_WHO_BYTES], const lki_board *board, uint32_t rank,
                   const char *more)
{
    const lki_rank *record = &board->ranks[rank];
    bool            named  = record->host[0] != '\0';
    int32_t         pid    = atomic_load(&record->pid);
    char            process[24] = "";

    if (pid != 0 || !named)
        (void)snprintf(process, sizeof process, "%spid %d", named ? ", " : "", pid);
    (void)snprintf(out, LKI_WHO_BYTES, "rank %u (%s%.63s%s%.160s)", rank, named ? "host " : "",
                   record->host, process, more);
}

/* The end of the next "rank 5" that a message, or what follows a semicolon, begins with, or that
 * "sends" something, and that has not been named by whoever told us. */
static char *next_rank(char *message, char *from, uint32_t *rank)
{
    for (char *at = from; (at = strstr(at, "rank ")) != NULL; at++) {
        char *end;
        *rank       = (uint32_t)strtoul(at + 5, &end, 10);
        bool begins = at == message || (at - message > 1 && at[-2] == ';');
        if (end[0] == ' ' && end[1] != '(' && (begins || strncmp(end, " sends ", 7) == 0))
            return end;
    }
    return NULL;
}

/* What does not fit is left as it is. */
void lki_board_name_hosts(char message[LKI_MESSAGE_BYTES], const lki_board *board)
{
    char     who[LKI_WHO_BYTES], rest[LKI_MESSAGE_BYTES], *end = message;
    uint32_t rank;

    while ((end = next_rank(message, end, &rank)) != NULL) {
        if (rank >= board->size || board->ranks[rank].host[0] == '\0')
            continue;
        lki_board_who(who, board, rank, "");
        const char *more = strchr(who, ' ') + 1;
        more             = strchr(more, ' ');
        if (strlen(message) + strlen(more) >= LKI_MESSAGE_BYTES)
            return;
        (void)snprintf(rest, sizeof rest, "%s", end);
        (void)snprintf(end, LKI_MESSAGE_BYTES - (size_t)(end - message), "%s%s", more, rest);
    }
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
