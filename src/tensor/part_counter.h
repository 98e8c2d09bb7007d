/* tensor/part_counter.h -- the order in which the sums of parts are merged by the canonical tree.
 *
 * The parts of a sum, whose number is a power of two, are computed in order.  Sums wait for their
 * neighbours in slots, as the digits of a binary counter do:
 *
 *      for (uint32_t i = 0; i < count; i++) {
 *          uint32_t slot = lki_part_slot(i);
 *          ... compute part i in `slot` ...
 *          for (uint32_t k = 0; k < lki_part_merges(i); k++, slot--)
 *              ... add slot - 1 and `slot`, in this order, and write the sum to slot - 1 ...
 *      }
 *
 * The root of the tree is then in slot 0.
 */
#ifndef LKI_TENSOR_PART_COUNTER_H
#define LKI_TENSOR_PART_COUNTER_H

#include <stdint.h>

/* Returns the slot in which part `i` is computed: the number of sums that wait before it. */
static inline uint32_t lki_part_slot(uint32_t i)
{
    return (uint32_t)__builtin_popcount(i);
}

/* Returns how often the last two slots in use are merged after part `i`. */
static inline uint32_t lki_part_merges(uint32_t i)
{
    return (uint32_t)__builtin_ctz(i + 1);
}

/* Returns the number of slots for `count` parts, a power of two. */
static inline uint32_t lki_part_slots(uint32_t count)
{
    return (uint32_t)__builtin_ctz(count) + 1;
}

#endif
