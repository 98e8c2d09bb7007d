/* trace.c -- any bytes as the trace parts of two ranks: the result is JSON whose events have a time
 * and a duration, or the parts are refused.
 *
 * The first byte determines the length of the first part, the second byte whether both parts get a
 * valid beginning.
 */
#include "fuzz.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lockstep/train.h"
#include "train/observe/observe.h"

static void write_part(const char *trace, uint32_t rank, const uint8_t *data, size_t bytes,
                       bool begin)
{
    char path[4096];

    LK_ASSERT(lki_trace_part_path(path, trace, rank) == LK_OK);
    FILE *file = fopen(path, "wb");
    LK_ASSERT(file != NULL);
    if (begin)
        LK_ASSERT(fwrite(LKI_TRACE_MAGIC, sizeof LKI_TRACE_MAGIC - 1, 1, file) == 1);
    LK_ASSERT(fwrite(data, 1, bytes, file) == bytes && fclose(file) == 0);
}

static void remove_part(const char *trace, uint32_t rank)
{
    char path[4096];
    LK_ASSERT(lki_trace_part_path(path, trace, rank) == LK_OK);
    (void)unlink(path);
}

static void check(const char *trace)
{
    const json_t *event;
    size_t        i;
    json_error_t  why;
    json_t       *root = json_load_file(trace, 0, &why);

    LK_ASSERT(root != NULL);
    json_array_foreach(json_object_get(root, "traceEvents"), i, event)
    {
        const char *kind = json_string_value(json_object_get(event, "ph"));
        LK_ASSERT(kind != NULL && json_is_string(json_object_get(event, "name")));
        if (strcmp(kind, "X") == 0)
            LK_ASSERT(json_real_value(json_object_get(event, "ts")) >= 0
                      && json_real_value(json_object_get(event, "dur")) >= 0);
    }
    json_decref(root);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char trace[64];

    if (bytes < 2)
        return 0;
    (void)snprintf(trace, sizeof trace, "/tmp/lockstep-fuzz-trace-%d", (int)getpid());
    size_t first = (bytes - 2) * data[0] / 255;
    write_part(trace, 0, data + 2, first, data[1] & 1);
    write_part(trace, 1, data + 2 + first, bytes - 2 - first, data[1] & 1);
    if (lk_trace_merge(trace, 0, 2, 0) == LK_OK && access(trace, F_OK) == 0)
        check(trace);
    (void)unlink(trace);
    remove_part(trace, 0);
    remove_part(trace, 1);
    return 0;
}
