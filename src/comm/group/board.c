/* board.c -- the control memory: its layout, and snapshots of a rank's record. */
#include "comm/board.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/memory.h"

enum { PIECES_BYTES = 262144, PIECE_BYTES_MAX = 16384 };

static const uint64_t board_magic = UINT64_C(0x6c6b2d626f617264); /* "lk-board" */

/* Returns the size of one piece of a message, in bytes.  The messages of a rank with all its peers
 * use at most 256 KiB.  A piece is a whole number of cache lines. */
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

/* Returns the size of the header and the records.  The seats begin on the next page. */
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

lk_status lki_board_create(lki_board **out, int *fd, lki_roster roster, const bool *absent,
                           uint32_t members)
{
    size_t bytes = lki_board_bytes(roster, members);
    int    file  = memfd_create("lockstep-control", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (file < 0)
        return lk_fail(LK_EIO, "cannot create the control memory: %s", strerror(errno));
    int   error  = posix_fallocate(file, 0, (off_t)bytes);
    void *memory = MAP_FAILED;
    if (error == 0) {
        (void)fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        error  = memory == MAP_FAILED ? errno : 0;
    }
    if (error != 0) {
        (void)close(file);
        return lk_fail(LK_ENOMEM, "control memory of %u ranks, %zu bytes: %s%s", roster.world,
                       bytes, strerror(error), lki_memory_hint(error));
    }
    lki_board_init(memory, roster, absent);
    *out = memory;
    *fd  = file;
    return LK_OK;
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

/* ---- Snapshots of a record --------------------------------------------------------------- */

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

/* Copies the phase of a rank while the rank may be writing it.  The copy may mix two phases, but is
 * terminated. */
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

/* Finds the next "rank 5 " in a message that is not followed by a host name.  Returns the end of
 * this text; *rank becomes the number.  Accepts only text at the start of the message, after a
 * semicolon, or before " sends ". */
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

/* Adds host names until one of them does not fit. */
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
    out->message = "";
    if (atomic_load_explicit(&record->erred, memory_order_acquire) != 0) {
        out->status  = record->failure.status;
        out->message = record->failure.text + record->failure.own;
    }
}

/* ---- Ends of processes ------------------------------------------------------------------- */

static void how_it_ended(char *out, size_t bytes, int exit_code, int signal)
{
    const char *name = signal == 0 ? NULL : sigabbrev_np(signal);
    if (signal == 0)
        snprintf(out, bytes, "exited with status %d", exit_code);
    else if (name == NULL)
        snprintf(out, bytes, "was killed by signal %d", signal);
    else
        snprintf(out, bytes, "was killed by SIG%s", name);
}

bool lki_board_ended(lki_board *board, uint32_t rank, int exit_code, int signal)
{
    lki_rank *record = &board->ranks[rank];
    char      how[64], message[LKI_MESSAGE_BYTES];

    atomic_store(&record->exit_code, exit_code);
    atomic_store(&record->signal, signal);
    if ((signal == 0 && exit_code == 0) || record->seat == 0) {
        atomic_store(&record->state, signal == 0 && exit_code == 0 ? LKI_RANK_LEFT : LKI_RANK_DEAD);
        lki_wake_all(board);
        return false;
    }
    lki_rank_view view;
    char          who[LKI_WHO_BYTES];
    lki_board_view(board, rank, &view);
    lki_board_who(who, board, rank, "");
    atomic_store(&record->state, LKI_RANK_DEAD);
    how_it_ended(how, sizeof how, exit_code, signal);
    int used = snprintf(message, sizeof message, "%s %s %s", who, how, view.place);
    if (view.status != LK_OK)
        snprintf(message + used, sizeof message - (size_t)used, ": %s", view.message);
    lki_board_condemn(board, board->size, rank, LK_EPEER, LK_EPEER, message);
    return true;
}
