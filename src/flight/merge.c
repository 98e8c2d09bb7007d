/* merge.c -- the ranks and groups in the records of all ranks.
 *
 * If the files belong to different jobs (in a directory that was used twice), the job opened last
 * is used.  Groups are read from the files that list them.  If no file had room for a group, the
 * group is found by its operations.
 */
#include "flight/flight.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

/* ---- Ranks ------------------------------------------------------------------------------- */

static lk_flight_state state_of(const lki_flight_file *file)
{
    if (file->header.failure.seal != 0)
        return LK_FLIGHT_FAILED;
    if (file->header.left != 0)
        return LK_FLIGHT_LEFT;
    if (!file->here)
        return LK_FLIGHT_UNKNOWN;
    switch (file->process) {
    case 'T':
    case 't': return LK_FLIGHT_STOPPED;
    case 'Z':
    case 'X':
    case '\0': return LK_FLIGHT_DEAD;
    default: return LK_FLIGHT_RUNNING;
    }
}

static int64_t last_sign(const lki_flight_file *file)
{
    int64_t last = lki_flight_later(file->header.opened, file->header.left);

    last = lki_flight_later(last, lki_flight_later(file->header.failure.at, file->place.at));
    for (uint32_t i = 0; i < file->entry_count; i++)
        last = lki_flight_later(
            last, lki_flight_later(file->entries[i].at,
                                   lki_flight_later(file->entries[i].met, file->entries[i].ended)));
    return last;
}

static void describe_rank(lk_flight *flight, uint32_t rank)
{
    const lki_flight_file *file = flight->of_rank[rank];
    lk_flight_rank        *out  = &flight->ranks[rank];

    if (file == NULL)
        return;
    out->state     = state_of(file);
    out->problem   = file->problem;
    out->host      = file->header.host;
    out->pid       = file->header.pid;
    out->opened_ns = lki_flight_wall(file, file->header.opened);
    out->last_ns   = lki_flight_wall(file, last_sign(file));
    out->entries   = file->entry_count;
    out->lost      = file->lost;
    out->noted     = file->place.number != 0;
    out->step      = file->place.step;
    out->phase     = file->place.phase;
    out->noted_ns  = lki_flight_wall(file, file->place.at);
    out->failure   = file->header.failure.text;
    out->failed_ns = lki_flight_wall(file, file->header.failure.at);
}

/* Returns the world size of the job that was opened last. */
static uint32_t world_of(const lki_flight_file *files, size_t count)
{
    uint32_t world  = 0;
    int64_t  newest = 0;

    for (size_t i = 0; i < count; i++) {
        int64_t opened = files[i].header.opened + files[i].header.wall_offset;
        if (files[i].readable && (world == 0 || opened > newest)) {
            world  = files[i].header.world;
            newest = opened;
        }
    }
    return world;
}

/* Sets one clock offset for all files that were written on one machine since its last boot.  The
 * time of day may have been adjusted between the openings of the files. */
static void share_clocks(lki_flight_file *files, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < i; k++)
            if (files[i].header.boot[0] != '\0' && files[k].readable &&
                strcmp(files[i].header.boot, files[k].header.boot) == 0) {
                files[i].header.wall_offset = files[k].header.wall_offset;
                break;
            }
}

static void claim(lk_flight *flight, lki_flight_file *file)
{
    uint32_t rank;

    if (!lki_flight_is_rank(file->name, &rank) || rank >= flight->world)
        return;
    flight->ranks[rank].problem = file->problem;
    if (!file->readable)
        return;
    if (file->header.world != flight->world)
        (void)snprintf(file->problem, sizeof file->problem, "it is of another job, of %u ranks",
                       file->header.world);
    else if (file->header.rank != rank)
        (void)snprintf(file->problem, sizeof file->problem, "it says that it is of rank %u",
                       file->header.rank);
    else
        flight->of_rank[rank] = file;
}

static lk_status collect_ranks(lk_flight *flight)
{
    static const char no_file[] = "it is not there";

    flight->world = world_of(flight->files, flight->file_count);
    if (flight->world == 0)
        return lk_fail(LK_EFORMAT, "no flight record could be read; %.40s: %.200s",
                       flight->file_count == 0 ? "" : flight->files[0].name,
                       flight->file_count == 0 ? "there is none" : flight->files[0].problem);
    share_clocks(flight->files, flight->file_count);
    LK_TRY(LKI_NEW(&flight->of_rank, flight->world, "files of the ranks"));
    LK_TRY(LKI_NEW(&flight->ranks, flight->world, "ranks of a flight"));
    LK_TRY(LKI_NEW(&flight->chance, flight->world, "ranks of a flight"));
    for (uint32_t rank = 0; rank < flight->world; rank++)
        flight->ranks[rank] = (lk_flight_rank){
            .rank = rank, .problem = no_file, .host = "", .phase = "", .failure = ""
        };
    for (size_t i = 0; i < flight->file_count; i++)
        claim(flight, &flight->files[i]);
    for (uint32_t rank = 0; rank < flight->world; rank++)
        describe_rank(flight, rank);
    return LK_OK;
}

/* ---- Groups ------------------------------------------------------------------------------ */

lki_flight_circle *lki_flight_circle_of(const lk_flight *flight, uint64_t id)
{
    for (size_t i = 0; i < flight->circle_count; i++)
        if (flight->circles[i].id == id)
            return &flight->circles[i];
    return NULL;
}

static lk_status add_circle(lk_flight *flight, uint64_t id, uint64_t label, uint32_t size)
{
    void *circles = flight->circles;

    if (lki_flight_circle_of(flight, id) != NULL)
        return LK_OK;
    lk_status st    = lki_reserve(&circles, &flight->circle_capacity, flight->circle_count,
                                  sizeof *flight->circles, "groups of a flight");
    flight->circles = circles;
    LK_TRY(st);
    lki_flight_circle *new = &flight->circles[flight->circle_count++];
    *new                   = (lki_flight_circle){ .id = id, .label = label, .size = size };
    return LK_OK;
}

static void add_member(lki_flight_circle *circle, uint32_t rank)
{
    if (!lki_flight_is_member(circle, rank))
        circle->member_count++;
    circle->members[rank / 64] |= UINT64_C(1) << rank % 64;
}

/* Adds the members of the groups that a file lists. */
static lk_status add_listed(lk_flight *flight, const lki_flight_file *file)
{
    for (uint32_t i = 0; i < file->group_count; i++) {
        const lki_flight_group *group = &file->groups[i];
        LK_TRY(add_circle(flight, group->id, group->label, group->size));
        lki_flight_circle *circle = lki_flight_circle_of(flight, group->id);
        for (uint32_t rank = 0; rank < flight->world; rank++)
            if ((group->members[rank / 64] >> rank % 64 & 1) != 0)
                add_member(circle, rank);
        add_member(circle, file->header.rank);
        circle->world[group->rank] = (uint16_t)(1 + file->header.rank);
    }
    return LK_OK;
}

/* Adds groups that a file does not list, with the ranks that took part in their operations. */
static lk_status add_seen(lk_flight *flight, const lki_flight_file *file)
{
    for (uint32_t i = 0; i < file->entry_count; i++) {
        const lki_flight_entry *e = &file->entries[i];
        if (e->kind != LKI_FLIGHT_OPERATION)
            continue;
        uint64_t size = e->op.label == 0 ? flight->world : e->op.label >> 32;
        size          = size == 0 || size > LKI_RANKS_MAX ? LKI_RANKS_MAX : size;
        LK_TRY(add_circle(flight, e->op.group, e->op.label, (uint32_t)size));
        add_member(lki_flight_circle_of(flight, e->op.group), file->header.rank);
        if (e->rank < LKI_RANKS_MAX)
            lki_flight_circle_of(flight, e->op.group)->world[e->rank] =
                (uint16_t)(1 + file->header.rank);
    }
    return LK_OK;
}

/* Orders the first communicator before others, and larger groups before smaller ones. */
static int by_importance(const void *a, const void *b)
{
    const lki_flight_circle *x = a, *y = b;
    if ((x->label != 0) != (y->label != 0))
        return x->label != 0 ? 1 : -1;
    if (x->size != y->size)
        return x->size < y->size ? 1 : -1;
    if (x->label != y->label)
        return x->label > y->label ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

/* Writes the name of a group.  A first communicator (label 0) smaller than the job consists of one
 * host's ranks. */
static void name_circle(const lk_flight *flight, lki_flight_circle *circle)
{
    uint32_t lowest = 0;

    while (lowest + 1 < flight->world && !lki_flight_is_member(circle, lowest))
        lowest++;
    if (circle->label == 0 && circle->size == flight->world)
        (void)snprintf(circle->text, sizeof circle->text, "all ranks");
    else
        (void)snprintf(circle->text, sizeof circle->text, "%u ranks with rank %u", circle->size,
                       lowest);
}

static lk_status collect_circles(lk_flight *flight)
{
    for (uint32_t rank = 0; rank < flight->world; rank++)
        if (flight->of_rank[rank] != NULL)
            LK_TRY(add_listed(flight, flight->of_rank[rank]));
    for (uint32_t rank = 0; rank < flight->world; rank++)
        if (flight->of_rank[rank] != NULL)
            LK_TRY(add_seen(flight, flight->of_rank[rank]));
    if (flight->circle_count > 0)
        qsort(flight->circles, flight->circle_count, sizeof *flight->circles, by_importance);
    size_t places = 0;
    for (size_t i = 0; i < flight->circle_count; i++) {
        name_circle(flight, &flight->circles[i]);
        flight->circles[i].first_place = places;
        places += flight->circles[i].member_count;
    }
    flight->place_count = places;
    LK_TRY(LKI_NEW(&flight->places, places + 1, "places of a flight"));
    for (size_t i = 0; i < flight->circle_count; i++) {
        const lki_flight_circle *circle = &flight->circles[i];
        size_t                   at     = circle->first_place;
        for (uint32_t rank = 0; rank < flight->world; rank++)
            if (lki_flight_is_member(circle, rank))
                flight->places[at++] = (lk_flight_place){ .rank       = rank,
                                                          .group_size = circle->size,
                                                          .group      = circle->text };
    }
    return LK_OK;
}

/* ---- The flight -------------------------------------------------------------------------- */

void lk_flight_free(lk_flight *flight)
{
    if (flight == NULL)
        return;
    for (size_t i = 0; i < flight->file_count; i++)
        lki_flight_file_deinit(&flight->files[i]);
    lki_free(flight->files);
    lki_free(flight->of_rank);
    lki_free(flight->ranks);
    lki_free(flight->circles);
    lki_free(flight->events);
    lki_free(flight->visits);
    lki_free(flight->absent);
    lki_free(flight->texts);
    lki_free(flight->places);
    lki_free(flight->chance);
    lki_free(flight->findings);
    lki_free(flight);
}

lk_status lki_flight_merge(lk_flight **out, lki_flight_file *files, size_t count, int64_t now)
{
    lk_flight *flight;

    *out         = NULL;
    lk_status st = LKI_NEW(&flight, 1, "flight");
    if (st != LK_OK) {
        for (size_t i = 0; i < count; i++)
            lki_flight_file_deinit(&files[i]);
        lki_free(files);
        return st;
    }
    flight->now        = now;
    flight->files      = files;
    flight->file_count = count;
    st                 = collect_ranks(flight);
    if (st == LK_OK)
        st = collect_circles(flight);
    if (st == LK_OK)
        st = lki_flight_collect_events(flight);
    if (st == LK_OK)
        st = lki_flight_find(flight);
    if (st != LK_OK) {
        lk_flight_free(flight);
        return st;
    }
    *out = flight;
    return LK_OK;
}

int64_t lk_flight_time(const lk_flight *flight)
{
    return flight->now;
}

const lk_flight_rank *lk_flight_rank_at(const lk_flight *flight, size_t index)
{
    return index < flight->world ? &flight->ranks[index] : NULL;
}

const lk_flight_operation *lk_flight_operation_at(const lk_flight *flight, size_t index)
{
    return index < flight->event_count ? &flight->events[index].super : NULL;
}

size_t lk_flight_operation_count(const lk_flight *flight)
{
    return flight->event_count;
}

const lk_flight_place *lk_flight_place_at(const lk_flight *flight, size_t index)
{
    return index < flight->place_count ? &flight->places[index] : NULL;
}

const lk_flight_finding *lk_flight_finding_at(const lk_flight *flight, size_t index)
{
    return index < flight->finding_count ? &flight->findings[index] : NULL;
}
