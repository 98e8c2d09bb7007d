/* parallel/shared/internal.h -- the state of a shared vector, for the files of this folder.
 *
 * All ranks of the host share one arena: the state of tasks (lki_shared_common), a word for each
 * span, the elements, and what a replay needs.
 *
 * The word of a span is its version, and 1 + the rank that holds the span or 0.  A rank takes the
 * span by compare and exchange, changes its elements, and stores the next version.  A reader copies
 * elements without taking the span, and is done if the word is the same before and after the copy.
 * Elements are accessed by atomics: a writer releases each element and a reader acquires it, so a
 * reader that has seen a new element sees the changed word, too.
 */
#ifndef LKI_PARALLEL_SHARED_INTERNAL_H
#define LKI_PARALLEL_SHARED_INTERNAL_H

#include <stdatomic.h>

#include "base/memory.h"
#include "comm/worker.h"
#include "lockstep/parallel.h"

enum { LKI_HOLDER_BITS = 16 };
_Static_assert(LKI_RANKS_MAX < 1 << LKI_HOLDER_BITS, "a word has the number of a rank");

/* The memory that ranks share.  Each part has a cache line of its own. */
typedef struct {
    _Alignas(LKI_LINE) _Atomic uint64_t begun; /* number of tasks that ranks have taken */
    _Alignas(LKI_LINE) _Atomic uint64_t tickets; /* number of tasks that have begun to push */
    _Alignas(LKI_LINE) _Atomic uint32_t changes; /* replay: ranks that wait sleep on this word */
    _Atomic uint32_t waiting; /* replay: number of ranks that wait */
    _Atomic uint32_t blocks;  /* record: number of blocks of the file that are in use */
} lki_shared_common;

/* A version of a span that a task has read or changed. */
typedef struct {
    uint64_t span, version;
} lki_span_version;

typedef struct {
    lki_span_version *at;
    size_t            count, capacity;
} lki_span_versions;

/* A part of a pull or of a push, in one span: elements `first` and following or, if `indices` is
 * not NULL, those at indices. */
typedef struct {
    size_t          span, first, count;
    const uint32_t *indices;
} lki_span_part;

/* The file that is written, and this rank's block of it (log.h). */
typedef struct {
    int            fd;    /* -1: none */
    unsigned char *mapped; /* the blocks that are mapped, of which `block` is one; NULL: none */
    uint32_t       blocks; /* their number */
    unsigned char *block; /* NULL: none */
    size_t         used;  /* bytes of the block */
    uint64_t       last;  /* the span of the last entry */
} lki_shared_log;

typedef struct lki_shared_replay lki_shared_replay;

struct lk_shared_vector {
    lk_comm  *comm;
    uint32_t  rank, ranks;
    size_t    count, spans;
    uint32_t  shift; /* a span has 1 << shift elements */
    uint64_t  limit; /* number of tasks of all rounds */
    bool      in_round, in_task;
    bool      pushes; /* the task has a ticket */
    uint64_t  task, ticket;
    uint64_t  taken_end; /* this rank has taken the numbers from `task` to this one, exclusive */
    lki_span_versions reads, writes; /* of the task, if it is recorded or replayed; `writes` of the
                                      * current push, if it is recorded */
    lki_shared_log     log;
    lki_shared_replay *replay; /* NULL: none */

    /* The fields below point into the arena. */
    lk_arena          *arena;
    lki_shared_common *common;
    _Atomic uint64_t  *words; /* [spans] */
    float             *data;  /* [spans << shift] */
};

static inline uint32_t lki_holder(uint64_t word)
{
    return (uint32_t)(word & ((1 << LKI_HOLDER_BITS) - 1));
}

static inline uint64_t lki_version(uint64_t word)
{
    return word >> LKI_HOLDER_BITS;
}

static inline lk_status lki_span_versions_add(lki_span_versions *list, uint64_t span,
                                              uint64_t version)
{
    if (list->count == list->capacity)
        LK_TRY(lki_reserve((void **)&list->at, &list->capacity, list->count, sizeof *list->at,
                           "versions of spans"));
    list->at[list->count++] = (lki_span_version){ span, version };
    return LK_OK;
}

/* ---- Spans (spans.c) --------------------------------------------------------------------- */

/* Takes a span, and sets *version. */
LK_NODISCARD lk_status lki_span_take(lk_shared_vector *v, size_t span, uint64_t *version);

/* Returns a span that this rank has taken, as version `version`. */
void lki_span_put(lk_shared_vector *v, size_t span, uint64_t version);

/* Copies the elements of a piece from `from`, the first element of the span. */
void lki_span_part_copy(const lk_shared_vector *v, const lki_span_part *piece, const float *from,
                        float *out);

/* Adds to the elements of a piece.  The caller has taken the span. */
void lki_span_part_add(lk_shared_vector *v, const lki_span_part *piece, const float *values,
                       float scale);

/* Cuts the next piece from `left`.  Returns false at the end. */
bool lki_span_part_next(const lk_shared_vector *v, lki_span_part *left, lki_span_part *out);

/* Takes a ticket for the task, and records what it has read. */
LK_NODISCARD lk_status lki_task_take_ticket(lk_shared_vector *v);

/* Returns the hash of a push of the current task.  `writes` are the versions that it changes. */
uint64_t lki_push_hash(const lk_shared_vector *v, const lki_span_part *all, const float *values,
                       float scale, const lki_span_version *writes, size_t count);

/* ---- Replaying (replay.c) ---------------------------------------------------------------- */

/* Reads the file.  Before the arena exists. */
LK_NODISCARD lk_status lki_shared_replay_open(lk_shared_vector *v, const char *path);
void lki_shared_replay_free(lki_shared_replay *replay);

/* Divides the replay's part of the arena, at `base` + *at; returns its bytes by `at` if `base` is
 * NULL. */
void lki_shared_replay_carve(lk_shared_vector *v, char *base, size_t *at);

/* Initializes the replay's part of the arena, on one rank. */
void lki_shared_replay_fill(lk_shared_vector *v);

LK_NODISCARD lk_status lki_shared_replay_next(lk_shared_vector *v, bool *more);
LK_NODISCARD lk_status lki_shared_replay_end_task(lk_shared_vector *v);
LK_NODISCARD lk_status lki_shared_replay_pull(lk_shared_vector *v, lki_span_part left, float *out);
LK_NODISCARD lk_status lki_shared_replay_push(lk_shared_vector *v, lki_span_part left,
                                              const float *values, float scale);

/* Waits until the pushes of this rank have been added. */
LK_NODISCARD lk_status lki_shared_replay_finish(lk_shared_vector *v);

#endif
