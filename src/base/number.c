/* number.c -- numbers as text. */
#include "lockstep/base.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* 15 digits are enough for every double that was written with as many.  Below DBL_MIN a double has
 * fewer bits, so fewer digits may be enough. */
void lk_number_text(char text[LK_NUMBER_BYTES], double value)
{
    char whole[40] = ""; /* at most 24 are used, which not every gcc sees */
    for (int digits = fabs(value) < DBL_MIN ? 1 : 15; digits <= 17; digits++) {
        (void)snprintf(whole, sizeof whole, "%.*g", digits, value);
        double back = strtod(whole, NULL);
        if (!(back < value || back > value))
            break;
    }
    memcpy(text, whole, LK_NUMBER_BYTES);
}
