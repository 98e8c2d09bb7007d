/* mail.c -- one message between two ranks, and the receiver's acknowledgement.
 *
 * A send of any size is complete when the receiver has received everything: see coll/send_recv.c.
 *
 * Cost:    2 rounds, n bytes.
 * Order:   nothing is computed.
 * Memory:  none.
 */
#include "comm/algorithm/schedule.h"

static void build(const lki_problem *p, lki_schedule *s)
{
    lki_range whole = lki_problem_whole(p);
    bool      sends = p->kind == LKI_OP_SEND;

    if (sends)
        lki_schedule_send(s, p->root, lki_spot_at(LKI_SEND_BUFFER, whole.at), whole.bytes);
    else
        lki_schedule_receive(s, p->root, lki_spot_at(LKI_RECV_BUFFER, whole.at), whole.bytes);
    lki_schedule_round(s, 1);
    if (sends)
        lki_schedule_await(s, p->root);
    else
        lki_schedule_signal(s, p->root);
}

static bool can(const lki_problem *p)
{
    return p->kind == LKI_OP_SEND || p->kind == LKI_OP_RECV;
}

static lki_work work(const lki_problem *p)
{
    return (lki_work){ 2, 1, (double)p->bytes, 0, 1, (double)p->bytes };
}

const lki_method lki_method_mail = {
    .name = "mail", .exact = true, .uncut = true, .can = can, .work = work, .build = build
};
