/* mirror.c -- every rank's part is sent to one rank of every other host, directly into its memory.
 *
 * On each other host the receiver's local rank is the sender's local rank, modulo the number of
 * ranks of that host.
 *
 * Cost:    1 round; on H hosts a rank sends its part H - 1 times.
 * Order:   nothing is computed.
 * Memory:  none.
 */
#include "comm/algorithm/schedule.h"

uint32_t lki_mirror_taker(const lki_host_map *map, uint32_t rank, uint32_t host)
{
    return map->ranks[map->first_of[host] + map->local_ranks[rank] % map->local_sizes[host]];
}

static void build(const lki_problem *p, lki_schedule *s)
{
    const lki_host_map *map  = p->map;
    uint32_t            here = map->host_of[p->rank];
    lki_range           mine = lki_problem_part(p, p->rank);

    for (uint32_t host = 0; host < map->hosts; host++)
        if (host != here)
            lki_schedule_send(s, lki_mirror_taker(map, p->rank, host),
                              lki_spot_at(LKI_SEND_BUFFER, mine.at), mine.bytes);
    for (uint32_t rank = 0; rank < p->size; rank++) {
        lki_range theirs = lki_problem_part(p, rank);
        if (map->host_of[rank] != here && lki_mirror_taker(map, rank, here) == p->rank)
            lki_schedule_receive(s, rank, lki_spot_at(LKI_RECV_BUFFER, theirs.at), theirs.bytes);
    }
}

static bool can(const lki_problem *p)
{
    return p->kind == LKI_OP_MIRROR;
}

static lki_work work(const lki_problem *p)
{
    double others = p->map->hosts - 1;
    return lki_work_alike(p->size, 1, others, others * (double)lki_problem_longest(p), 0);
}

const lki_method lki_method_mirror = {
    .name = "mirror", .exact = true, .uncut = true, .can = can, .work = work, .build = build
};
