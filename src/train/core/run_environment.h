/* train/core/run_environment.h -- isolates a run from the settings of the calling thread. */
#ifndef LKI_TRAIN_RUN_ENVIRONMENT_H
#define LKI_TRAIN_RUN_ENVIRONMENT_H

#include <locale.h>
#include <stdint.h>

/* The caller's rounding mode and locale, on which a run must not depend. */
typedef struct {
    uint64_t float_mode;
    locale_t numbers, before;
} lki_run_environment;

lki_run_environment lki_run_environment_enter(void);
void                lki_run_environment_leave(const lki_run_environment *environment);

#endif
