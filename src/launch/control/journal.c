/* journal.c -- the state of a control that the next coordinator needs.
 *
 * The control memory is shared and outlives both coordinators.  The remaining state is private: the
 * ranks' requests, the open sockets, and the number of other hosts that wait to enter.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launch/control/control.h"
#include "launch/control/inside.h"

typedef struct {
    lki_ask  ask;
    uint64_t number;
    bool     enters, connected;
} of_rank;

typedef struct {
    uint64_t epoch;
    uint32_t elsewhere;
    of_rank  ranks[];
} saved;

size_t lki_control_saved_bytes(const lki_control *control)
{
    return sizeof(saved) + control->roster.count * sizeof(of_rank);
}

void lki_control_save(const lki_control *control, void *to)
{
    saved *out = to;

    out->epoch     = control->board->job.epoch;
    out->elsewhere = control->elsewhere;
    for (uint32_t i = 0; i < control->roster.count; i++) {
        of_rank *its   = &out->ranks[i];
        its->ask       = control->asked[i];
        its->number    = control->numbers[i];
        its->enters    = control->enters[i];
        its->connected = control->sockets[i] >= 0;
    }
}

uint64_t lki_control_saved_epoch(const void *from)
{
    return ((const saved *)from)->epoch;
}

/* Returns true if a request for this epoch's group is still recorded.  The rank that made the
 * request may not have received an answer. */
static bool was_answering(const lki_control *control)
{
    bool answering = false;

    for (uint32_t i = 0; i < control->roster.count; i++) {
        bool in   = lki_control_is_member(control, control->roster.first + i);
        bool asks = control->asked[i].timeout_ms != 0;
        answering = answering || (asks && control->asked[i].epoch < control->board->job.epoch) ||
                    (control->enters[i] && in);
    }
    return answering;
}

void lki_control_restore(lki_control *control, const void *from)
{
    const saved *in = from;

    LK_ASSERT(in->epoch == control->board->job.epoch);
    control->elsewhere = in->elsewhere;
    for (uint32_t i = 0; i < control->roster.count; i++) {
        const of_rank *its  = &in->ranks[i];
        control->asked[i]   = its->ask;
        control->numbers[i] = its->number;
        control->enters[i]  = its->enters;
        if (!its->connected && control->sockets[i] >= 0) {
            (void)close(control->sockets[i]);
            control->sockets[i] = -1;
        }
    }
    if (was_answering(control))
        lki_control_answer_all(control, LK_OK, "");
}

lk_status lki_control_move(lki_control *control, int fd)
{
    lki_control next = *control;
    struct stat file;
    void       *memory = MAP_FAILED;

    if (fstat(fd, &file) == 0)
        memory = mmap(NULL, (size_t)file.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        lk_status st = lk_fail(LK_ENOMEM, "the control memory of the next epoch: %s",
                               strerror(errno));
        (void)close(fd);
        return st;
    }
    next.board  = memory;
    next.bytes  = (size_t)file.st_size;
    next.fd     = fd;
    next.arenas = NULL;
    next.arena_count = next.arena_capacity = 0;
    lki_control_board_close(control);
    *control = next;
    return LK_OK;
}
