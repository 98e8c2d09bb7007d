/* number.c -- numbers as text. */
#include "base/number.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* 15 digits are enough for every double that was written with as many.  Below DBL_MIN a double has
 * fewer bits, so fewer digits may be enough. */
void lki_number_text(char text[LKI_NUMBER_BYTES], double value)
{
    char   whole[48] = ""; /* at most 24 are used, but gcc does not see the bound of `digits` */
    double back;
    int    digits = fabs(value) < DBL_MIN ? 1 : 15;
    do {
        (void)snprintf(whole, sizeof whole, "%.*g", digits, value);
        back = strtod(whole, NULL);
    } while ((back < value || back > value) && digits++ < 17);
    memcpy(text, whole, LKI_NUMBER_BYTES);
}
