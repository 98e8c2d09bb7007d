/* train/core/surroundings.h -- isolates a run from the settings of the calling thread. */
#ifndef LKI_TRAIN_SURROUNDINGS_H
#define LKI_TRAIN_SURROUNDINGS_H

#include <locale.h>
#include <stdint.h>

/* The caller's rounding mode and locale, on which a run must not depend. */
typedef struct {
    uint64_t float_mode;
    locale_t numbers, before;
} lki_surroundings;

lki_surroundings lki_surroundings_enter(void);
void             lki_surroundings_leave(const lki_surroundings *around);

#endif
