/* parallel/unit_buffers.h -- the unit buffers (slots) that hold units of parameters while blocks
 * read them.
 *
 * A turn reads units in a known order, the list of reads.  A read needs one unit, or a few that a
 * block reads together.  Only some of the units have a slot at any time.  A unit that is not in a
 * slot is put into an empty one, or replaces the unit whose next read is farthest.  No other choice
 * gathers less (L.  A.  Belady, A study of replacement algorithms for a virtual-storage computer,
 * 1966).  Every rank makes the same choices, and an estimate of the bytes of a step repeats them.
 *
 * A unit may be put into its slot ahead of its read, if the slot's present unit is not read
 * earlier.  This does not change the number of units that are gathered.
 */
#ifndef LKI_PARALLEL_UNIT_BUFFERS_H
#define LKI_PARALLEL_UNIT_BUFFERS_H

#include "parallel/layout.h"

enum { LKI_UNITS_TOGETHER = 4 }; /* maximum number of units that a block reads together */

typedef struct {
    uint32_t term; /* the first term of the block that reads */
    uint32_t count, units[LKI_UNITS_TOGETHER];
} lki_read;

typedef struct {
    uint32_t  unit_count, slot_count, read_count;
    /* the first `forward` reads are those of the forward pass: each block once */
    uint32_t  forward;
    lki_read *reads;
    /* [u]: unit u is read at reads_at[first_at[u]] up to reads_at[first_at[u + 1] - 1], in
     * order. */
    uint32_t *first_at, *reads_at;
    uint32_t *slot_of; /* [unit_count]: its unit buffer, or LKI_NO_SLOT */
    uint32_t *unit_in; /* [slot_count]: its unit, or LKI_NO_UNIT */
    unsigned char *slots;   /* in the arena, slot_bytes each */
    size_t         slot_bytes;
    /* The quantised units as received, parcel_bytes each: one for each unit buffer, or one for each
     * unit if gathered units stay in memory. */
    unsigned char *parcels;
    size_t         parcel_bytes;
} lki_unit_buffers;

#define LKI_NO_SLOT UINT32_MAX
#define LKI_NO_UNIT UINT32_MAX

/* Lists the reads.  A unit is a bucket of the layout.  On failure call lki_unit_buffers_deinit() as
 * well. */
LK_NODISCARD lk_status lki_unit_buffers_init(lki_unit_buffers *slots, const lki_layout *layout,
                                             const lk_parallel_options *options);
void                   lki_unit_buffers_deinit(lki_unit_buffers *slots);

/* Returns the unit that contains a parameter. */
uint32_t lki_unit_of(const lki_layout *layout, uint32_t param);

/* Returns the bytes of the largest unit, in the type in which units are read. */
size_t lki_unit_largest(const lki_layout *layout);

/* Empties all unit buffers. */
void lki_unit_buffers_clear(lki_unit_buffers *slots);

/* Puts the next unit that read `at` needs into a unit buffer, and sets *unit.  Returns false if all
 * units of the read have unit buffers.  Reads repeat after `period`. */
bool lki_unit_buffers_put(lki_unit_buffers *slots, uint32_t at, uint32_t period, uint32_t *unit);

/* Puts into a unit buffer a unit for the first later read within the period that lacks one.
 * Returns false if no read lacks a unit, or if the unit cannot have a unit buffer yet. */
bool lki_unit_buffers_put_ahead(lki_unit_buffers *slots, uint32_t at, uint32_t period,
                                uint32_t *unit);

/* The number of times that a unit is put into a unit buffer: in the first turn, and in all later
 * turns together (`others`).  [0] counts the reads of the forward pass, [1] all other reads. */
typedef struct {
    uint64_t first[2], others[2];
} lki_gathers;

/* Counts how often each unit is put into a unit buffer in `turns` turns, starting with empty unit
 * buffers.  out[unit_count] must be zeroed.  Defined in gathers.c. */
LK_NODISCARD lk_status lki_unit_buffers_count(lki_unit_buffers *slots, uint64_t turns,
                                              lki_gathers *out);

#endif
