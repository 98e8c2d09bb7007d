/* train/surroundings.h -- what a run does not take from the thread that calls it. */
#ifndef LKI_TRAIN_SURROUNDINGS_H
#define LKI_TRAIN_SURROUNDINGS_H

#include <locale.h>
#include <stdint.h>

/* What the caller's thread may have set and a run must not see: how numbers are rounded, and with
 * which decimal point they are written. */
typedef struct {
    uint64_t float_mode;
    locale_t numbers, before;
} lki_surroundings;

lki_surroundings lki_surroundings_enter(void);
void             lki_surroundings_leave(const lki_surroundings *around);

#endif
