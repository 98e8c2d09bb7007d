/* lockstep/shared_vector.h -- a vector to which ranks add without waiting for each other
 * (Hogwild!), in runs that can be recorded and replayed.
 *
 * The vector is in memory that all ranks map, and is divided into spans.  A rank takes tasks, for
 * example a row or a small batch each.  A task pulls elements, computes, and pushes changes:
 *
 *     lk_shared_vector_open(&v, comm, count, &options);
 *     ... one rank writes initial values to lk_shared_vector_data(v) ...
 *     lk_shared_vector_begin(v, tasks);
 *     while (lk_shared_vector_next(v, &more, &task) == LK_OK && more) {
 *         lk_shared_vector_pull_at(v, indices, n, values);
 *         ... compute changes ...
 *         lk_shared_vector_push_at(v, indices, n, changes, -rate);
 *     }
 *     lk_shared_vector_finish(v);
 *
 * A push adds to its spans one after the other.  It waits for another rank only while that rank
 * adds to the same span.  No push is lost, and a pull never sees a span in the middle of a push.
 * But the spans of a pull may have seen different pushes.  The version of a span is the number of
 * pushes that were added to it.
 *
 * Recording: with `record` each task writes to a file which version of each span it has read, and
 * which version of each span its pushes have changed, before it changes the span.  So the file is
 * complete even if a rank dies.
 *
 * Replaying: with `replay` the tasks read and change the versions of the recorded run.  The vector
 * has the same bits, for any number of ranks.  A task whose pulls or pushes differ from those of
 * the recorded task fails with LK_EMISMATCH, and the message names the task and the span.
 *
 * Failure: the death of a rank fails the waits and the next task of the others.  After any other
 * failure call lk_comm_abort(), or the other ranks may wait for this rank.
 * Threads: one at a time per lk_shared_vector.
 */
#ifndef LK_SHARED_VECTOR_H
#define LK_SHARED_VECTOR_H

#include "lockstep/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lk_shared_vector lk_shared_vector;

typedef struct {
    size_t      struct_size; /* LK_SHARED_VECTOR_OPTIONS_INIT */
    uint32_t    span;   /* elements of a span, a power of two from 16 on; 0 = 4096.  Sparse rows
                         * need small spans */
    const char *record; /* file to write; NULL = none */
    const char *replay; /* file to read; NULL = none.  Not with `record` */
} lk_shared_vector_options;

#define LK_SHARED_VECTOR_OPTIONS_INIT LK_OPTIONS_INIT(lk_shared_vector_options)

/* Creates a vector of `count` zeros, at most 2^32.  Collective, with the same arguments on all
 * ranks.  LK_EUNSUPPORTED if the ranks are on several hosts. */
LK_API LK_NODISCARD lk_status lk_shared_vector_open(lk_shared_vector **out, lk_comm *comm,
                                                    size_t                          count,
                                                    const lk_shared_vector_options *options);

/* Frees this rank's part.  The memory is freed with the communicator.  Accepts NULL. */
LK_API void lk_shared_vector_free(lk_shared_vector *vector);

/* Returns the elements, which may be read and written directly before lk_shared_vector_begin() and
 * after lk_shared_vector_finish(). */
LK_API float *lk_shared_vector_data(lk_shared_vector *vector);

/* Begins a round of `tasks` tasks.  Collective.  Tasks are numbered through all rounds. */
LK_API LK_NODISCARD lk_status lk_shared_vector_begin(lk_shared_vector *vector, uint64_t tasks);

/* Ends this rank's task, and begins another one.  Each number is given to one rank.  *more becomes
 * false if no tasks are left.  Each rank continues until then.  A rank's numbers ascend, and all
 * ranks have about the same numbers at a time, up to 16 apart for each rank.  A replay has only the
 * tasks that are in the file: fewer than those of the round if a rank of the recorded run died. */
LK_API LK_NODISCARD lk_status lk_shared_vector_next(lk_shared_vector *vector, bool *more,
                                                    uint64_t *task);

/* Copies elements [first, first + count) to `out`.  In a task, all pulls precede all pushes. */
LK_API LK_NODISCARD lk_status lk_shared_vector_pull(lk_shared_vector *vector, size_t first,
                                                    size_t count, float *out);
/* Copies the elements at `indices`, which ascend, to `out`. */
LK_API LK_NODISCARD lk_status lk_shared_vector_pull_at(lk_shared_vector *vector,
                                                       const uint32_t *indices, size_t count,
                                                       float *out);

/* Adds scale * values[i] to element first + i. */
LK_API LK_NODISCARD lk_status lk_shared_vector_push(lk_shared_vector *vector, size_t first,
                                                    size_t count, const float *values,
                                                    float scale);
/* Adds scale * values[i] to element indices[i].  The indices ascend. */
LK_API LK_NODISCARD lk_status lk_shared_vector_push_at(lk_shared_vector *vector,
                                                       const uint32_t *indices, size_t count,
                                                       const float *values, float scale);

/* Ends this rank's last task, and waits for the other ranks.  Collective. */
LK_API LK_NODISCARD lk_status lk_shared_vector_finish(lk_shared_vector *vector);

/* Returns the number of tasks that ranks have taken, in all rounds. */
LK_API uint64_t lk_shared_vector_tasks(const lk_shared_vector *vector);

#ifdef __cplusplus
}
#endif
#endif
