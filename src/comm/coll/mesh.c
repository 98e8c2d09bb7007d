/* mesh.c -- ranks arranged along named axes, with a communicator for each axis.
 *
 * In row-major order a rank is the sum of coordinate * stride over the axes, where the stride of an
 * axis is the product of the sizes of the axes after it.  The group of a rank along some axes has
 * the ranks with equal coordinates along all others.  So the other axes' part of the sum is the
 * color of the group, and the coordinates along the axes give the order in it.
 *
 * Cost:    one split for each axis.
 * Memory:  that of the groups (split.c).
 */
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "comm/coll/split.h"
#include "comm/group/group.h"

struct lk_mesh {
    lk_comm      *comm;
    uint32_t      count;
    lk_mesh_axis *axes;    /* [count]; names point into `names` */
    uint32_t     *strides; /* [count] */
    lk_comm     **comms;   /* [count]; owned */
    char         *names;   /* owned */
    uint64_t      hash;    /* of names and sizes */
};

typedef struct {
    char text[320];
} axes_text;

/* ---- The axes ---------------------------------------------------------------------------- */

/* Returns "data 3 x pipeline 2".  A long list is cut. */
static axes_text list(const lk_mesh_axis *axes, uint32_t count)
{
    axes_text out  = { "" };
    size_t    used = 0;

    for (uint32_t i = 0; i < count && used < sizeof out.text; i++) {
        char size[16] = "(rest)";
        if (axes[i].size > 0)
            (void)snprintf(size, sizeof size, "%u", axes[i].size);
        used += (size_t)snprintf(out.text + used, sizeof out.text - used, "%s%.60s %s",
                                 i == 0 ? "" : " x ", axes[i].name, size);
    }
    return out;
}

static lk_status check_names(const lk_mesh_axis *axes, uint32_t count)
{
    if (count == 0 || axes == NULL)
        return lk_fail(LK_EINVAL, "a mesh needs at least one axis");
    for (uint32_t i = 0; i < count; i++)
        if (axes[i].name == NULL || axes[i].name[0] == '\0')
            return lk_fail(LK_EINVAL, "axis %u of %u of the mesh has no name", i + 1, count);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t k = 0; k < i; k++)
            if (strcmp(axes[i].name, axes[k].name) == 0)
                return lk_fail(LK_EINVAL, "axes %s: two axes have the name \"%.60s\"",
                               list(axes, count).text, axes[i].name);
    return LK_OK;
}

/* Computes the product of the sizes that are given.  *rest becomes the index of the axis without a
 * size; `count` if there is none. */
static lk_status multiply(uint64_t *out, uint32_t *rest, const lk_mesh_axis *axes, uint32_t count,
                          uint32_t ranks)
{
    *out  = 1;
    *rest = count;
    for (uint32_t i = 0; i < count; i++) {
        if (axes[i].size == 0 && *rest < count)
            return lk_fail(LK_EINVAL, "axes %s: only one axis can have size 0, the rest of the "
                           "ranks", list(axes, count).text);
        if (axes[i].size == 0)
            *rest = i;
        else if (*out <= UINT32_MAX)
            *out *= axes[i].size;
    }
    if (*out <= UINT32_MAX)
        return LK_OK;
    return lk_fail(LK_EINVAL, "axes %s need more than 2^32 ranks, and the communicator has %u",
                   list(axes, count).text, ranks);
}

/* Checks the axes against the number of ranks, and computes the size of the axis without one. */
static lk_status measure(uint32_t *rest_size, const lk_mesh_axis *axes, uint32_t count,
                         uint32_t ranks)
{
    uint64_t product;
    uint32_t rest;

    LK_TRY(check_names(axes, count));
    LK_TRY(multiply(&product, &rest, axes, count, ranks));
    *rest_size = (uint32_t)(ranks / product);
    if (rest == count && product != ranks)
        return lk_fail(LK_EINVAL, "axes %s need %llu ranks, and the communicator has %u",
                       list(axes, count).text, (unsigned long long)product, ranks);
    if (rest < count && (*rest_size == 0 || ranks % product != 0))
        return lk_fail(LK_EINVAL, "axes %s need a multiple of %llu ranks, and the communicator has "
                       "%u", list(axes, count).text, (unsigned long long)product, ranks);
    return LK_OK;
}

/* ---- Life cycle -------------------------------------------------------------------------- */

static lk_status copy_names(lk_mesh *mesh, const lk_mesh_axis *axes)
{
    size_t bytes = 0, at = 0;

    for (uint32_t i = 0; i < mesh->count; i++)
        bytes += strlen(axes[i].name) + 1;
    LK_TRY(LKI_NEW(&mesh->names, bytes, "names of axes"));
    for (uint32_t i = 0; i < mesh->count; i++) {
        const size_t length = strlen(axes[i].name) + 1;
        memcpy(mesh->names + at, axes[i].name, length);
        mesh->axes[i].name = mesh->names + at;
        at += length;
    }
    return LK_OK;
}

static lk_status fill(lk_mesh *mesh, const lk_mesh_axis *axes, uint32_t rest_size)
{
    uint32_t stride = 1;

    LK_TRY(LKI_NEW(&mesh->axes, mesh->count, "axes of a mesh"));
    LK_TRY(LKI_NEW(&mesh->strides, mesh->count, "axes of a mesh"));
    LK_TRY(LKI_NEW(&mesh->comms, mesh->count, "axes of a mesh"));
    LK_TRY(copy_names(mesh, axes));
    for (uint32_t i = mesh->count; i-- > 0;) {
        mesh->axes[i].size = axes[i].size > 0 ? axes[i].size : rest_size;
        mesh->strides[i]   = stride;
        stride            *= mesh->axes[i].size;
        const uint64_t words[] = { mesh->hash, mesh->axes[i].size,
                                   lki_xxh3(axes[i].name, strlen(axes[i].name)) };
        mesh->hash             = lki_xxh3(words, sizeof words);
    }
    return LK_OK;
}

static uint32_t coordinate(const lk_mesh *mesh, uint32_t rank, uint32_t axis)
{
    return rank / mesh->strides[axis] % mesh->axes[axis].size;
}

/* Creates the communicator of the listed axes. */
static lk_status split(lk_comm **out, const lk_mesh *mesh, const uint32_t *axes, uint32_t count)
{
    const uint32_t rank = mesh->comm->rank;
    uint32_t       others = rank, at = 0;
    const uint64_t words[] = { mesh->hash, lki_xxh3(axes, count * sizeof *axes) };

    for (uint32_t i = 0; i < count; i++) {
        others -= coordinate(mesh, rank, axes[i]) * mesh->strides[axes[i]];
        at      = at * mesh->axes[axes[i]].size + coordinate(mesh, rank, axes[i]);
    }
    return lki_split(out, mesh->comm, others, at, lki_xxh3(words, sizeof words));
}

lk_status lk_mesh_open(lk_mesh **out, lk_comm *comm, const lk_mesh_axis *axes,
                       uint32_t axis_count)
{
    uint32_t rest_size;

    *out = NULL;
    LK_TRY(measure(&rest_size, axes, axis_count, comm->size));
    LK_TRY(LKI_NEW(out, 1, "mesh"));
    (*out)->comm  = comm;
    (*out)->count = axis_count;
    lk_status st  = fill(*out, axes, rest_size);
    for (uint32_t i = 0; i < axis_count && st == LK_OK; i++)
        st = split(&(*out)->comms[i], *out, &i, 1);
    if (st != LK_OK) {
        lk_mesh_free(*out);
        *out = NULL;
    }
    return st;
}

void lk_mesh_free(lk_mesh *mesh)
{
    if (mesh == NULL)
        return;
    for (uint32_t i = 0; mesh->comms != NULL && i < mesh->count; i++)
        lk_comm_free(mesh->comms[i]);
    lki_free(mesh->names);
    lki_free(mesh->comms);
    lki_free(mesh->strides);
    lki_free(mesh->axes);
    lki_free(mesh);
}

/* ---- Questions --------------------------------------------------------------------------- */

const lk_mesh_axis *lk_mesh_axes(const lk_mesh *mesh, uint32_t *count)
{
    *count = mesh->count;
    return mesh->axes;
}

static lk_status find(uint32_t *out, const lk_mesh *mesh, const char *name)
{
    for (*out = 0; *out < mesh->count && name != NULL; ++*out)
        if (strcmp(mesh->axes[*out].name, name) == 0)
            return LK_OK;
    return lk_fail(LK_EINVAL, "the mesh has no axis \"%.60s\"; its axes are %s",
                   name != NULL ? name : "", list(mesh->axes, mesh->count).text);
}

lk_comm *lk_mesh_axis_comm(const lk_mesh *mesh, const char *axis)
{
    uint32_t at;

    return find(&at, mesh, axis) == LK_OK ? mesh->comms[at] : NULL;
}

lk_status lk_mesh_coordinates(uint32_t *out, const lk_mesh *mesh, uint32_t rank)
{
    if (rank >= mesh->comm->size)
        return lk_fail(LK_EINVAL, "rank %u is not in the mesh %s of %u ranks", rank,
                       list(mesh->axes, mesh->count).text, mesh->comm->size);
    for (uint32_t i = 0; i < mesh->count; i++)
        out[i] = coordinate(mesh, rank, i);
    return LK_OK;
}

lk_status lk_mesh_rank(uint32_t *out, const lk_mesh *mesh, const uint32_t *coordinates)
{
    uint32_t rank = 0;

    LK_TRY(lki_check_given("mesh_rank", "coordinates", coordinates, mesh->count));
    for (uint32_t i = 0; i < mesh->count; i++) {
        if (coordinates[i] >= mesh->axes[i].size)
            return lk_fail(LK_EINVAL, "coordinate %u along axis %.60s, which has size %u",
                           coordinates[i], mesh->axes[i].name, mesh->axes[i].size);
        rank += coordinates[i] * mesh->strides[i];
    }
    *out = rank;
    return LK_OK;
}

/* ---- Several axes ------------------------------------------------------------------------ */

static lk_status find_all(uint32_t *out, const lk_mesh *mesh, const char *const *names,
                          uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        LK_TRY(find(&out[i], mesh, names[i]));
        for (uint32_t k = 0; k < i; k++)
            if (out[k] == out[i])
                return lk_fail(LK_EINVAL, "axis \"%.60s\" is in the list twice", names[i]);
    }
    return LK_OK;
}

lk_status lk_mesh_flatten(lk_comm **out, lk_mesh *mesh, const char *const *axes,
                          uint32_t axis_count)
{
    uint32_t *at;

    *out = NULL;
    if (axis_count == 0 || axes == NULL)
        return lk_fail(LK_EINVAL, "flatten: no axis is listed; the axes of the mesh are %s",
                       list(mesh->axes, mesh->count).text);
    LK_TRY(LKI_NEW(&at, axis_count, "axes of a mesh"));
    lk_status st = find_all(at, mesh, axes, axis_count);
    if (st == LK_OK)
        st = split(out, mesh, at, axis_count);
    lki_free(at);
    return st;
}
