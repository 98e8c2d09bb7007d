/* span/forest_state.h -- the state of a forest, which forest.c and forest_pieces.c share. */
#ifndef LKI_COMM_FOREST_STATE_H
#define LKI_COMM_FOREST_STATE_H

#include "comm/coll/tree_reduce.h"
#include "comm/span/forest.h"
#include "comm/span/span.h"

/* A tree node of which one host has all leaves. */
typedef struct {
    uint32_t first, count, host;
    uint32_t lane; /* index among its host's branches */
} lki_branch;

typedef enum { LKI_FOREST_GATHERING, LKI_FOREST_SETS, LKI_FOREST_PIECES } lki_forest_stage;

struct lki_forest {
    lk_comm        *comm;
    const lki_host_map *map;
    lk_tree_op      tree; /* the caller owns its arrays */
    lki_forest_stage stage;
    lk_request     *gathering; /* owned */
    lki_task       *task;      /* owned */
    lki_tree_input *inputs;    /* this host's nodes */
    uint32_t        input_count;
    size_t          words; /* number of 64-bit words of a set of leaves */
    uint64_t       *sets;  /* [host]: the host's leaves */
    bool           *peers; /* [rank]: this rank exchanges sets with that rank */
    lki_branch     *branches;
    size_t          branch_count, branch_capacity;
    size_t         *have;   /* [host]: number of the host's branches */
    size_t          part;   /* maximum number of elements in a host's part of a piece */
    bool            linear; /* every host that wants a piece sums all of it */
    uint64_t       *pieces; /* [slice]: number of pieces of earlier slices; last: of all slices */
    size_t         *places; /* [slice]: offset of its sum in tree.out, if owned here */
};

/* ---- Owners and hosts -------------------------------------------------------------------- */

static inline uint32_t lki_forest_here(const lki_forest *f)
{
    return f->map->host_of[f->comm->rank];
}

/* Returns the rank that owns the slice on a host. */
static inline uint32_t lki_forest_owner(const lki_forest *f, const lk_slice *slice, uint32_t host)
{
    const lki_host_map *map = f->map;
    LK_ASSERT(map->local_sizes[host] > 0);
    return map->ranks[map->first_of[host] + slice->owner % map->local_sizes[host]];
}

static inline bool lki_forest_is_mine(const lki_forest *f, const lk_slice *slice)
{
    return slice->count > 0 && lki_forest_owner(f, slice, lki_forest_here(f)) == f->comm->rank;
}

static inline bool lki_forest_wants(const lki_forest *f, const lk_slice *slice, uint32_t host)
{
    if (f->tree.wanted != NULL)
        return f->tree.shards < 2 || f->tree.wanted[host * f->tree.shards + slice->shard];
    return f->tree.shards < 2 || host % f->tree.shards == slice->shard;
}

/* ---- Pieces: forest_pieces.c ------------------------------------------------------------- */

/* Cuts all slices into pieces.  The branches must be known. */
void lki_forest_count_pieces(lki_forest *forest);

/* The method whose segment number i is piece i. */
extern const lki_method lki_method_pieces;

#endif
