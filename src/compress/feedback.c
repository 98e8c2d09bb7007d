/* feedback.c -- error feedback: what messages do not say is added to the next gradient. */
#include "lockstep/compress.h"

void lk_feedback_add(size_t count, const float *error, uint64_t samples, float *values)
{
    const float factor = (float)samples;
    for (size_t i = 0; i < count; i++) {
        float add = factor * error[i];
        values[i] = add == 0 ? values[i] : values[i] + add; /* -0 stays -0 without an error */
    }
}

void lk_feedback_keep(size_t count, const float *residual, uint64_t samples, float *error)
{
    const float divisor = (float)samples;
    for (size_t i = 0; i < count && samples > 0; i++)
        error[i] = residual[i] / divisor;
}
