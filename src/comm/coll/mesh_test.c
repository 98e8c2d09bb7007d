/* mesh_test.c -- meshes with any number of axes.
 *
 * Goal:   along each axis, and along several together, a rank is in the group that its coordinates
 *         define, in the documented order.  Wrong axes are refused with their names and sizes.
 * Method: every rank gathers the members of its groups and compares them with a search over all
 *         ranks.  Reductions along an axis are compared with the sum over these members.
 *         conformance_test.c runs every operation along the axes of a mesh.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "comm/hosted_testing.h"

enum { AXES = 3, RANKS_MOST = 16 };

static const char *const names[AXES] = { "data", "pipeline", "tensor" };

typedef struct {
    uint32_t size[AXES];
} shape;

/* ---- Groups ------------------------------------------------------------------------------ */

/* Computes coordinates digit by digit, from the last axis. */
static void coordinates_of(uint32_t *out, const shape *s, uint32_t rank)
{
    for (uint32_t i = AXES; i-- > 0; rank /= s->size[i])
        out[i] = rank % s->size[i];
}

/* Lists the ranks that differ from `me` only along the listed axes, in row-major order of the
 * list. */
static uint32_t members_of(uint32_t *out, const shape *s, uint32_t ranks, uint32_t me,
                           const uint32_t *axes, uint32_t count)
{
    uint32_t mine[AXES], at[AXES], found = 0, places[RANKS_MOST];

    coordinates_of(mine, s, me);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        uint32_t place = 0, slot = found;
        bool     listed[AXES] = { false }, belongs = true;
        coordinates_of(at, s, rank);
        for (uint32_t i = 0; i < count; i++) {
            place           = place * s->size[axes[i]] + at[axes[i]];
            listed[axes[i]] = true;
        }
        for (uint32_t i = 0; i < AXES; i++)
            belongs = belongs && (listed[i] || at[i] == mine[i]);
        if (!belongs)
            continue;
        for (; slot > 0 && places[slot - 1] > place; slot--) {
            places[slot] = places[slot - 1];
            out[slot]    = out[slot - 1];
        }
        places[slot] = place;
        out[slot]    = rank;
        found++;
    }
    return found;
}

static bool has_members(lk_comm *group, lk_comm *comm, const shape *s, const uint32_t *axes,
                        uint32_t count)
{
    uint32_t me = lk_comm_rank(comm), wanted[RANKS_MOST], got[RANKS_MOST];
    uint32_t size = members_of(wanted, s, lk_comm_size(comm), me, axes, count);
    float    sum = 0, right = 0, mine = (float)(1 << me);

    CHECK(lk_comm_size(group) == size);
    CHECK(lk_all_gather(group, &me, got, sizeof me) == LK_OK);
    CHECK(memcmp(got, wanted, size * sizeof *got) == 0);
    CHECK(got[lk_comm_rank(group)] == me);
    CHECK(lk_all_reduce(group, &mine, &sum, 1, LK_F32, LK_SUM) == LK_OK);
    for (uint32_t i = 0; i < size; i++)
        right += (float)(1 << wanted[i]);
    CHECK(sum == right);
    return true;
}

static bool knows_coordinates(const lk_mesh *mesh, lk_comm *comm, const shape *s)
{
    uint32_t count, got[AXES], wanted[AXES], back, ranks = lk_comm_size(comm);

    const lk_mesh_axis *axes = lk_mesh_axes(mesh, &count);
    CHECK(count == AXES);
    for (uint32_t i = 0; i < AXES; i++)
        CHECK(axes[i].size == s->size[i] && strcmp(axes[i].name, names[i]) == 0);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        coordinates_of(wanted, s, rank);
        CHECK(lk_mesh_coordinates(got, mesh, rank) == LK_OK);
        CHECK(memcmp(got, wanted, sizeof got) == 0);
        CHECK(lk_mesh_rank(&back, mesh, wanted) == LK_OK && back == rank);
    }
    CHECK(lk_mesh_coordinates(got, mesh, ranks) == LK_EINVAL);
    wanted[1] = s->size[1];
    CHECK(lk_mesh_rank(&back, mesh, wanted) == LK_EINVAL);
    CHECK(strstr(lk_error_last()->message, "along axis pipeline, which has size") != NULL);
    CHECK(lk_mesh_rank(&back, mesh, NULL) == LK_EINVAL);
    return true;
}

static bool flattens(lk_mesh *mesh, lk_comm *comm, const shape *s)
{
    static const uint32_t lists[][AXES] = { { 0, 2 }, { 2, 0 }, { 1, 2 }, { 2, 1, 0 } };
    static const uint32_t counts[]      = { 2, 2, 2, 3 };
    lk_comm              *group;

    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        const char *list[AXES];
        for (uint32_t i = 0; i < counts[k]; i++)
            list[i] = names[lists[k][i]];
        CHECK(lk_mesh_flatten(&group, mesh, list, counts[k]) == LK_OK);
        CHECK(has_members(group, comm, s, lists[k], counts[k]));
        lk_comm_free(group);
    }
    return true;
}

static bool arranges(lk_comm *comm, void *context)
{
    const shape *s = context;
    lk_mesh_axis axes[AXES];
    char         name[AXES][16];
    lk_mesh     *mesh;

    for (uint32_t i = 0; i < AXES; i++) {
        (void)snprintf(name[i], sizeof name[i], "%s", names[i]);
        axes[i] = (lk_mesh_axis){ name[i], i == 1 ? 0 : s->size[i] };
    }
    CHECK(lk_mesh_open(&mesh, comm, axes, AXES) == LK_OK);
    memset(name, 'x', sizeof name); /* the mesh has copies of the names */
    CHECK(knows_coordinates(mesh, comm, s));
    for (uint32_t i = 0; i < AXES; i++) {
        uint32_t at[AXES];
        lk_comm *axis = lk_mesh_axis_comm(mesh, names[i]);
        CHECK(axis != NULL && has_members(axis, comm, s, &i, 1));
        coordinates_of(at, s, lk_comm_rank(comm));
        CHECK(lk_comm_rank(axis) == at[i]);
    }
    CHECK(flattens(mesh, comm, s));
    lk_mesh_free(mesh);
    return true;
}

static void groups_are_those_of_the_coordinates(void **state)
{
    static shape shapes[] = { { { 1, 1, 1 } }, { { 3, 2, 1 } }, { { 2, 2, 2 } }, { { 2, 3, 2 } } };
    (void)state;
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
        const uint32_t *n = shapes[k].size;
        assert_true(world_all(n[0] * n[1] * n[2], k % 2 == 0, arranges, &shapes[k]));
    }
}

static void groups_over_hosts_are_those_of_the_coordinates(void **state)
{
    static shape s = { { 2, 3, 2 } };
    (void)state;
    assert_true(hosted_all((hosted){ .hosts = 3, .each = 4 }, arranges, &s));
    assert_true(hosted_all((hosted){ .hosts = 2, .each = 7, .fewer = 2 }, arranges, &s));
}

/* ---- Errors ------------------------------------------------------------------------------ */

typedef struct {
    uint32_t     count;
    lk_mesh_axis axes[3];
    const char  *message;
} refusal;

static const refusal refusals[] = {
    { 2, { { "data", 3 }, { "pipeline", 2 } },
      "axes data 3 x pipeline 2 need 6 ranks, and the communicator has 4" },
    { 2, { { "data", 0 }, { "pipeline", 3 } },
      "axes data (rest) x pipeline 3 need a multiple of 3 ranks, and the communicator has 4" },
    { 2, { { "data", 0 }, { "pipeline", 8 } },
      "axes data (rest) x pipeline 8 need a multiple of 8 ranks, and the communicator has 4" },
    { 3, { { "data", 0 }, { "pipeline", 2 }, { "tensor", 0 } },
      "axes data (rest) x pipeline 2 x tensor (rest): only one axis can have size 0" },
    { 2, { { "data", 2 }, { "data", 2 } },
      "axes data 2 x data 2: two axes have the name \"data\"" },
    { 3, { { "a", UINT32_MAX }, { "b", UINT32_MAX }, { "c", UINT32_MAX } },
      "x c 4294967295 need more than 2^32 ranks, and the communicator has 4" },
    { 2, { { "data", 2 }, { "", 2 } }, "axis 2 of 2 of the mesh has no name" },
    { 1, { { NULL, 4 } }, "axis 1 of 1 of the mesh has no name" },
    { 0, { { NULL, 0 } }, "a mesh needs at least one axis" },
};

static bool refuses(lk_comm *comm, void *context)
{
    static const char *const unknown[] = { "data", "tensor" }, *const twice[] = { "data", "data" };
    const lk_mesh_axis       good[] = { { "data", 2 }, { "pipeline", 2 } };
    lk_mesh                 *mesh;
    lk_comm                 *group;

    (void)context;
    for (size_t k = 0; k < sizeof refusals / sizeof *refusals; k++) {
        CHECK(lk_mesh_open(&mesh, comm, refusals[k].axes, refusals[k].count) == LK_EINVAL);
        CHECK(mesh == NULL && strstr(lk_error_last()->message, refusals[k].message) != NULL);
    }
    CHECK(lk_mesh_open(&mesh, comm, NULL, 2) == LK_EINVAL && mesh == NULL);
    CHECK(lk_mesh_open(&mesh, comm, good, 2) == LK_OK);
    CHECK(lk_mesh_axis_comm(mesh, NULL) == NULL);
    CHECK(lk_mesh_flatten(&group, mesh, NULL, 2) == LK_EINVAL && group == NULL);
    CHECK(lk_mesh_axis_comm(mesh, "tensor") == NULL);
    CHECK(strstr(lk_error_last()->message,
                 "the mesh has no axis \"tensor\"; its axes are data 2 x pipeline 2") != NULL);
    CHECK(lk_mesh_flatten(&group, mesh, unknown, 2) == LK_EINVAL && group == NULL);
    CHECK(lk_mesh_flatten(&group, mesh, twice, 2) == LK_EINVAL && group == NULL);
    CHECK(lk_mesh_flatten(&group, mesh, twice, 0) == LK_EINVAL && group == NULL);
    lk_mesh_free(mesh);
    lk_mesh_free(NULL);
    return true;
}

static void wrong_axes_are_refused_by_name(void **state)
{
    (void)state;
    assert_true(world_all(4, true, refuses, NULL));
}

/* Rank 1 lists the same axes in another order, or gives an axis another name. */
static bool disagrees(lk_comm *comm, void *context)
{
    const bool         renames  = *(const bool *)context;
    const lk_mesh_axis usual[]  = { { "data", 2 }, { "pipeline", 2 } };
    const lk_mesh_axis other[]  = { { renames ? "tensor" : "pipeline", 2 }, { "data", 2 } };
    lk_mesh           *mesh;

    CHECK(lk_mesh_open(&mesh, comm, lk_comm_rank(comm) == 1 ? other : usual, 2) == LK_EMISMATCH);
    CHECK(mesh == NULL);
    return true;
}

static void ranks_with_different_axes_fail(void **state)
{
    bool renames = false;
    (void)state;
    assert_true(world_all(4, true, disagrees, &renames));
    renames = true;
    assert_true(world_all(4, true, disagrees, &renames));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_are_those_of_the_coordinates),
        cmocka_unit_test(groups_over_hosts_are_those_of_the_coordinates),
        cmocka_unit_test(wrong_axes_are_refused_by_name),
        cmocka_unit_test(ranks_with_different_axes_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
