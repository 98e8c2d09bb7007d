/* comm/control_inside.h -- what the two files of the launcher's side share. */
#ifndef LKI_CONTROL_INSIDE_H
#define LKI_CONTROL_INSIDE_H

#include "comm/control.h"
#include "comm/group.h"

struct lki_control {
    lki_board *board;
    size_t     bytes; /* of it */
    int        fd;
    lki_roster roster;
    int       *sockets; /* of the ranks of this host */
    lki_ask   *asked;   /* what they have asked for: timeout_ms 0 = nothing */
    bool      *enters;  /* whether they wait to enter */
    uint32_t   elsewhere; /* so many other hosts wait for that */
    uint64_t  *numbers; /* of the last thing that they have asked for */
    int       *arenas;
    size_t     arena_count, arena_capacity;
    void     (*tell)(void *context, const char *text); /* NULL: nobody listens */
    void      *context;
    lki_control_journal journal; /* none: no functions */
};

static inline int *lki_control_socket_of(const lki_control *control, uint32_t rank)
{
    LK_ASSERT(rank - control->roster.first < control->roster.count);
    return &control->sockets[rank - control->roster.first];
}

/* What stands in the control is replaced when all has gone well.  `out`: as lki_board_init(). */
LK_NODISCARD lk_status lki_control_board_create(lki_control *control, const bool *out,
                                                uint32_t members);

/* All that belongs to one epoch. */
void lki_control_board_close(lki_control *control);

/* Gives all who have asked, or wait to enter and are let in, what they wait for, or why not. */
void lki_control_answer_all(lki_control *control, lk_status status, const char *why);

/* A rank has asked for the group that follows, or to enter it. */
void lki_control_take_ask(lki_control *control, uint32_t rank, const lki_ask *ask);

/* Whether anybody waits to enter stands where the ranks of the group look. */
void lki_control_set_entering(lki_control *control, uint32_t rank, bool enters);

#endif
