/* mirror.c -- every rank's part to one rank of every other host, straight into its memory.
 *
 * A part is taken on another host by the rank that has its writer's number there, modulo how many
 * there are.
 *
 * Cost:    1 round, H - 1 messages of a rank on H hosts, and as often the bytes of its part.
 * Order:   nothing is computed.
 * Memory:  none.
 */
#include "comm/span/span.h"

uint32_t lki_mirror_taker(const lki_span *span, uint32_t rank, uint32_t host)
{
    return span->ranks[span->first_of[host] + span->local_ranks[rank] % span->local_sizes[host]];
}

static void build(const lki_problem *p, lki_schedule *s)
{
    const lki_span *span = p->span;
    uint32_t        here = span->host_of[p->rank];
    lki_range       mine = lki_problem_part(p, p->rank);

    for (uint32_t host = 0; host < span->hosts; host++)
        if (host != here)
            lki_schedule_send(s, lki_mirror_taker(span, p->rank, host),
                              lki_spot_at(LKI_SEND_BUFFER, mine.at), mine.bytes);
    for (uint32_t rank = 0; rank < p->size; rank++) {
        lki_range theirs = lki_problem_part(p, rank);
        if (span->host_of[rank] != here && lki_mirror_taker(span, rank, here) == p->rank)
            lki_schedule_receive(s, rank, lki_spot_at(LKI_RECV_BUFFER, theirs.at), theirs.bytes);
    }
}

static bool can(const lki_problem *p)
{
    return p->kind == LKI_OP_MIRROR;
}

static lki_work work(const lki_problem *p)
{
    double others = p->span->hosts - 1;
    return lki_work_alike(p->size, 1, others, others * (double)lki_problem_longest(p), 0);
}

const lki_method lki_method_mirror = {
    .name = "mirror", .exact = true, .uncut = true, .can = can, .work = work, .build = build
};
