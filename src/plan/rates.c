/* rates.c -- fits rates to amounts of work and their measured times; see lki_fit(). */
#include <math.h>
#include <string.h>

#include "plan/predict.h"

enum { ROUNDS = 20000 };

/* Minimises relative errors, by dividing the amounts of work by the measured times. */
void lki_fit(double seconds[LKI_WORK_KINDS], const lki_work *works, const double *measured,
             size_t count)
{
    double left[LKI_WORK_KINDS][LKI_WORK_KINDS] = { { 0 } }, right[LKI_WORK_KINDS] = { 0 };
    for (size_t i = 0; i < count; i++)
        for (int j = 0; j < LKI_WORK_KINDS; j++) {
            right[j] += works[i].amount[j] / measured[i];
            for (int k = 0; k < LKI_WORK_KINDS; k++)
                left[j][k] += works[i].amount[j] / measured[i] * works[i].amount[k] / measured[i];
        }
    memset(seconds, 0, LKI_WORK_KINDS * sizeof *seconds);
    for (int round = 0; round < ROUNDS; round++)
        for (int j = 0; j < LKI_WORK_KINDS; j++) {
            double rest = right[j];
            for (int k = 0; k < LKI_WORK_KINDS; k++)
                rest -= k == j ? 0 : left[j][k] * seconds[k];
            seconds[j] = left[j][j] > 0 ? fmax(0, rest / left[j][j]) : 0;
        }
}
