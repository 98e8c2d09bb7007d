/* tuning.c -- any bytes as a file of constants, and as names of algorithms.
 *
 * Accepted constants are within the limits.  Accepted algorithms are found under the operation for
 * which they were given.
 */
#include "fuzz.h"

#include <string.h>

#include "base/status.h"
#include "comm/algorithm/cost.h"
#include "comm/algorithm/schedule.h"

enum { TEXT_BYTES = 300 };

static bool is_constant(double value)
{
    return value > 0 && value < 10;
}

static void read_file(const char *text, size_t bytes)
{
    lki_model model;
    unsigned  found;

    if (lki_model_parse(&model, &found, text, bytes, "input") != LK_OK)
        return;
    LK_ASSERT(found <= LKI_MODEL_WHOLE);
    LK_ASSERT(is_constant(model.alpha) && is_constant(model.omega) && is_constant(model.beta)
              && is_constant(model.gamma));
}

static void read_names(const char *data, size_t bytes)
{
    lki_tuning tuning = { .cores = 0 };
    char       text[TEXT_BYTES];
    size_t     length = bytes < sizeof text ? bytes : sizeof text - 1;

    memcpy(text, data, length);
    text[length] = '\0';
    if (lki_tuning_force(&tuning, text, NULL) != LK_OK)
        return;
    for (uint32_t kind = 0; kind < LKI_TUNING_OPS; kind++)
        if (tuning.forced[kind] != NULL)
            LK_ASSERT(strstr(text, tuning.forced[kind]->name) != NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    read_file((const char *)data, bytes);
    read_names((const char *)data, bytes);
    return 0;
}
