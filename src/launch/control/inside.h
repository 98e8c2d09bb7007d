/* launch/control/inside.h -- state shared by the files of the launcher's side. */
#ifndef LKI_LAUNCH_CONTROL_INSIDE_H
#define LKI_LAUNCH_CONTROL_INSIDE_H

#include "launch/control/control.h"
#include "comm/board.h"
#include "comm/packet.h"

struct lki_control {
    lki_board *board;
    size_t     bytes; /* size of the board */
    int        fd;
    lki_roster roster;
    int       *sockets; /* sockets of the ranks of this host */
    lki_ask   *asked;   /* pending requests of the ranks of this host; timeout_ms 0 = none */
    bool      *enters;  /* whether each rank of this host waits to enter */
    uint32_t   elsewhere; /* number of other hosts that wait to enter */
    uint64_t  *numbers; /* numbers of the last requests of this host's ranks */
    int       *arenas;
    size_t     arena_count, arena_capacity;
    void     (*tell)(void *context, const char *text); /* NULL: no listener */
    void      *context;
    lki_control_journal journal; /* functions that write the journal; NULL functions: no journal */
};

static inline int *lki_control_socket_of(const lki_control *control, uint32_t rank)
{
    LK_ASSERT(rank - control->roster.first < control->roster.count);
    return &control->sockets[rank - control->roster.first];
}

/* Creates a new board (the layout of the control memory).  On success, the new board replaces the
 * control's board. `out` is as in lki_board_init(). */
LK_NODISCARD lk_status lki_control_board_create(lki_control *control, const bool *out,
                                                uint32_t members);

/* Closes all descriptors and memory of one epoch. */
void lki_control_board_close(lki_control *control);

/* Answers all ranks that have requested the new group, and all ranks that wait to enter and are
 * admitted.  The answer is the new group or, if `status` is an error, the reason `why` no group was
 * formed. */
void lki_control_answer_all(lki_control *control, lk_status status, const char *why);

/* Records a rank's request for the next group, or to enter that group. */
void lki_control_take_ask(lki_control *control, uint32_t rank, const lki_ask *ask);

/* Records whether a rank waits to enter, and publishes in the control memory whether any rank
 * waits. */
void lki_control_set_entering(lki_control *control, uint32_t rank, bool enters);

#endif
