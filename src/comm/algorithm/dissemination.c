/* dissemination.c -- a barrier in which every round doubles the number of arrivals that a rank
 * knows.
 *
 *      round k   rank r signals its arrival to rank r + 2^k, and awaits the signal of rank r - 2^k
 *
 * After round k a rank knows that the 2^(k+1) ranks up to itself have arrived.
 *
 * Cost:    log2 N rounds, rounded up, and as many messages without payload.
 * Order:   nothing is computed.
 * Memory:  none.
 * Source:  Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization" (International
 *          Journal of Parallel Programming 17, 1988).
 */
#include "comm/algorithm/schedule.h"

static void build(const lki_problem *p, lki_schedule *s)
{
    uint32_t round = 0;

    for (uint32_t step = 1; step < p->size; step *= 2) {
        lki_schedule_round(s, round++);
        lki_schedule_signal(s, (p->rank + step) % p->size);
        lki_schedule_await(s, (p->rank + p->size - step) % p->size);
    }
}

static bool can(const lki_problem *p)
{
    return p->kind == LKI_OP_BARRIER;
}

static lki_work work(const lki_problem *p)
{
    double rounds = 0;
    for (uint32_t step = 1; step < p->size; step *= 2)
        rounds++;
    return lki_work_alike(p->size, rounds, rounds, 0, 0);
}

const lki_method lki_method_dissemination = {
    .name = "dissemination", .exact = true, .can = can, .work = work, .build = build
};
