/* parallel/strategies/shelf.h -- where units of parameters are put while somebody reads them.
 *
 * A turn reads units in an order that is known: the list of reads, each of one unit or of the few
 * that a block needs together.  There are slots for some of them.  A unit that is not in a slot
 * comes into an empty one, or into that of the unit whose next read is farthest: no other choice
 * gathers less (L. A. Belady, A study of replacement algorithms for a virtual-storage computer,
 * 1966).  Every rank makes the same choices, and so can somebody who only wants to know what a step
 * will send.
 *
 * A unit may be put ahead of its read, where it would come then anyway if nobody reads until then
 * what is there: so what is gathered is the same.
 */
#ifndef LKI_PARALLEL_SHELF_H
#define LKI_PARALLEL_SHELF_H

#include "parallel/layout.h"

enum { LKI_UNITS_TOGETHER = 4 }; /* that a block reads, at most */

typedef struct {
    uint32_t term; /* the first of the block that reads */
    uint32_t count, units[LKI_UNITS_TOGETHER];
} lki_read;

typedef struct {
    uint32_t  unit_count, slot_count, read_count;
    uint32_t  forward; /* so many reads are of all blocks, each once */
    lki_read *reads;
    uint32_t *first_at, *reads_at; /* unit u is read at reads_at[first_at[u]] to before that of
                                    * first_at[u + 1], in order */
    uint32_t *slot_of; /* of every unit, or LKI_NO_SLOT */
    uint32_t *unit_in; /* every slot, or LKI_NO_UNIT */
} lki_shelf;

#define LKI_NO_SLOT UINT32_MAX
#define LKI_NO_UNIT UINT32_MAX

/* Units are the layout's buckets.  lki_shelf_deinit() accepts a half-made one. */
LK_NODISCARD lk_status lki_shelf_init(lki_shelf *shelf, const lki_layout *layout,
                                     const lk_parallel_options *options);
void                   lki_shelf_deinit(lki_shelf *shelf);

/* The unit in which a parameter lies. */
uint32_t lki_unit_of(const lki_layout *layout, uint32_t param);

/* Bytes of the largest one, as it is read. */
size_t lki_unit_largest(const lki_layout *layout);

/* Nothing is in any slot. */
void lki_shelf_clear(lki_shelf *shelf);

/* Puts the next unit that read `at` lacks into a slot; false when none is lacking.  After the last
 * of `period` reads comes the first again. */
bool lki_shelf_put(lki_shelf *shelf, uint32_t at, uint32_t period, uint32_t *unit);

/* The same for the first read after `at` that lacks one, before the period ends; false when there
 * is none, or no slot for it yet. */
bool lki_shelf_put_ahead(lki_shelf *shelf, uint32_t at, uint32_t period, uint32_t *unit);

/* How often a unit is put: in the reads of the first turn that are forward's, and others; and the
 * same of all further turns. */
typedef struct {
    uint64_t first[2], others[2];
} lki_gathers;

/* plan/gathers.c: of all units in so many turns that begin with nothing in any slot.
 * out[unit_count], zeroed. */
LK_NODISCARD lk_status lki_shelf_count(lki_shelf *shelf, uint64_t turns, lki_gathers *out);

#endif
