/* lockstep/mesh.h -- ranks arranged along named axes, such as "data", "pipeline" and "tensor".
 *
 * Part of lockstep/comm.h, which includes it.  A mesh divides the ranks of a communicator along
 * axes, as JAX's Mesh and PyTorch's DeviceMesh do.  Ranks are in row-major order: the last axis
 * varies fastest.  With the axes data 3 x pipeline 2, rank 2 * d + p has the coordinates d along
 * data and p along pipeline.  So neighbouring ranks, which are usually on one host, differ in the
 * last axis.
 *
 * The communicator of an axis has the ranks that differ from this rank only along that axis.  Its
 * ranks are the coordinates along the axis, so reductions along an axis, and their order, are those
 * of its communicator.  As a group of lk_comm_split(), the communicator has its own order of
 * operations, and it fails together with all others.
 */
#ifndef LK_MESH_H
#define LK_MESH_H

#include "lockstep/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lk_mesh lk_mesh;

typedef struct {
    const char *name; /* not empty; no two axes have the same name */
    uint32_t    size; /* number of ranks along the axis; 0 = the rest, for at most one axis */
} lk_mesh_axis;

/* Arranges all ranks of `comm` along the axes, and creates a communicator for each axis.
 * Collective, with the same axes on all ranks (otherwise LK_EMISMATCH).  The product of the sizes
 * must be the size of `comm`.  Names are copied.  An example:
 *
 *     const lk_mesh_axis axes[] = { { "data", 0 }, { "pipeline", 2 } };
 *     lk_mesh           *mesh;
 *     lk_status          status = lk_mesh_open(&mesh, comm, axes, 2);
 *
 * `comm` stays the caller's, and must not be freed before the mesh. */
LK_API LK_NODISCARD lk_status lk_mesh_open(lk_mesh **out, lk_comm *comm, const lk_mesh_axis *axes,
                                           uint32_t axis_count);

/* Frees the mesh and the communicators of its axes, as lk_comm_free() does.  Accepts NULL. */
LK_API void lk_mesh_free(lk_mesh *mesh);

/* Returns the axes, with the size of each, and writes their number to *count. */
LK_API const lk_mesh_axis *lk_mesh_axes(const lk_mesh *mesh, uint32_t *count);

/* Returns the communicator of an axis.  The mesh owns it.  Its size is the size of the axis, and
 * its rank is this rank's coordinate.  Returns NULL if the mesh has no such axis; the last error
 * then lists its axes. */
LK_API lk_comm *lk_mesh_axis_comm(const lk_mesh *mesh, const char *axis);

/* Writes the coordinates of a rank of the mesh, in the order of the axes. */
LK_API LK_NODISCARD lk_status lk_mesh_coordinates(uint32_t *out, const lk_mesh *mesh,
                                                  uint32_t rank);

/* Finds the rank with these coordinates, which are in the order of the axes. */
LK_API LK_NODISCARD lk_status lk_mesh_rank(uint32_t *out, const lk_mesh *mesh,
                                           const uint32_t *coordinates);

/* Creates one communicator over several axes together: the ranks that differ from this rank only
 * along these axes.  They are in row-major order of the listed axes, the last of which varies
 * fastest.  Collective over the mesh, with the same list on all ranks.  The caller frees *out. */
LK_API LK_NODISCARD lk_status lk_mesh_flatten(lk_comm **out, lk_mesh *mesh,
                                              const char *const *axes, uint32_t axis_count);

#ifdef __cplusplus
}
#endif
#endif /* LK_MESH_H */
