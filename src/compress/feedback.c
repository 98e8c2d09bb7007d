/* feedback.c -- error feedback: what messages do not say is added to the next gradient. */
#include "compress/scan.h"
#include "lockstep/compress.h"

void lk_feedback_add(size_t count, const float *error, uint64_t samples, float *values)
{
    lki_scan_best()->add_error(count, error, (float)samples, values);
}

void lk_feedback_keep(size_t count, const float *residual, uint64_t samples, float *error)
{
    if (samples > 0)
        lki_scan_best()->divide(count, residual, (float)samples, error);
}
