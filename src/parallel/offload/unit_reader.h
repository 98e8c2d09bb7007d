/* parallel/offload/unit_reader.h -- reads units of parameters from files into unit buffers:
 * unit_reader.c. */
#ifndef LKI_PARALLEL_OFFLOAD_UNIT_READER_H
#define LKI_PARALLEL_OFFLOAD_UNIT_READER_H

#include "parallel/state.h"

typedef struct lki_unit_reader lki_unit_reader;

/* Opens the reader if parameters are in files; otherwise sets *out to NULL. lki_unit_reader_close()
 * accepts NULL. */
LK_NODISCARD lk_status lki_unit_reader_open(lki_unit_reader **out, lk_parallel *parallel);
void                   lki_unit_reader_close(lki_unit_reader *self);

/* Requests that this rank's part of `unit` be read into `to`, its address in the unit buffer.  The
 * read starts when all ranks of the host have finished with the unit buffer, after all earlier
 * orders.  Collective on a host. */
LK_NODISCARD lk_status lki_unit_reader_order(lki_unit_reader *self, uint32_t unit, float *to);

/* Advances the oldest order; with `wait`, until it is complete.  *unit is set to the unit whose
 * part is complete, which removes its order, or to LKI_NO_UNIT. */
LK_NODISCARD lk_status lki_unit_reader_move(lki_unit_reader *self, bool wait, uint32_t *unit);

/* Returns the number of elements of a unit that this rank stores, and sets *at to the first one's
 * offset in the parameter space. */
size_t lki_unit_reader_part(const lki_unit_reader *self, uint32_t unit, size_t *at);

#endif
