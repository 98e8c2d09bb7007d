/* run_environment.c -- sets rounding mode and locale for a run, and restores them afterwards. */
#include "train/core/run_environment.h"

#include <stddef.h>

#include "base/float.h"

lki_run_environment lki_run_environment_enter(void)
{
    lki_run_environment environment = { .float_mode = lki_float_mode(),
                                        .numbers    = newlocale(LC_NUMERIC_MASK, "C", NULL) };
    lki_float_mode_set(LKI_FLOAT_STANDARD); /* inherited by threads that the run starts */
    if (environment.numbers != NULL)
        environment.before = uselocale(environment.numbers);
    return environment;
}

void lki_run_environment_leave(const lki_run_environment *environment)
{
    if (environment->numbers != NULL) {
        (void)uselocale(environment->before);
        freelocale(environment->numbers);
    }
    lki_float_mode_set(environment->float_mode);
}
