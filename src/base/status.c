/* status.c -- the last failure on this thread, the only thread-local variable of the library. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local lk_error last_error;
static _Thread_local char     last_where[64];

const lk_error *lk_error_last(void)
{
    return &last_error;
}

lk_status lki_fail(lk_status status, const char *file, int line, const char *format, ...)
{
    LK_ASSERT(status != LK_OK);
    char        message[sizeof last_error.message]; /* the arguments may point into last_error */
    const char *slash = strrchr(file, '/');
    va_list     args;

    va_start(args, format);
    (void)vsnprintf(message, sizeof message, format, args);
    va_end(args);
    for (char *c = message; *c != '\0'; c++)
        if (*c == '\n' || *c == '\r')
            *c = ' ';
    (void)snprintf(last_where, sizeof last_where, "%s:%d", slash ? slash + 1 : file, line);
    last_error.status = status;
    last_error.where  = last_where;
    memcpy(last_error.message, message, sizeof message);
    return status;
}

lk_status lk_error_set(lk_status status, const char *message)
{
    return lk_fail(status == LK_OK ? LK_EINVAL : status, "%s", message);
}

lk_status lki_fail_again(const lk_error *error)
{
    LK_ASSERT(error->status != LK_OK);
    if (error != &last_error) {
        last_error = *error;
        if (error->where != last_where) /* false if `error` is a copy of an error that this thread
                                         * recorded before */
            (void)snprintf(last_where, sizeof last_where, "%s", error->where ? error->where : "?");
        last_error.where = last_where;
    }
    return last_error.status;
}

void lki_assert_failed(const char *condition, const char *file, int line)
{
    fprintf(stderr, "lockstep: internal error: %s is false at %s:%d; please report this\n",
            condition, file, line);
    abort();
}

const char *lk_status_name(lk_status status)
{
    switch (status) {
#define NAME_CASE(name, value, text)                                                             \
    case LK_##name: return #name;
        LK_STATUS_TABLE(NAME_CASE)
#undef NAME_CASE
    default: return "unknown";
    }
}

const char *lk_status_text(lk_status status)
{
    switch (status) {
#define TEXT_CASE(name, value, text)                                                             \
    case LK_##name: return text;
        LK_STATUS_TABLE(TEXT_CASE)
#undef TEXT_CASE
    default: return "unknown status";
    }
}

lk_status lki_check_given(const char *call, const char *argument, const void *given, size_t count)
{
    if (given != NULL || count == 0)
        return LK_OK;
    return lk_fail(LK_EINVAL, "%s: `%s` is NULL", call, argument);
}

const char *lk_label_name(lk_label label)
{
    switch (label) {
    case LK_LABEL_EXACT: return "exact";
    case LK_LABEL_INVARIANT: return "invariant";
    case LK_LABEL_RECORDED: return "recorded";
    case LK_LABEL_TIMED: return "timed";
    default: return "?";
    }
}

size_t lk_dtype_bytes(lk_dtype dtype)
{
    switch ((int)dtype) {
#define BYTES_CASE(name, code, bytes, text)                                                      \
    case LK_##name: return bytes;
        LK_DTYPE_TABLE(BYTES_CASE)
#undef BYTES_CASE
    default: return 0;
    }
}

const char *lk_dtype_name(lk_dtype dtype)
{
    switch (dtype) {
#define DTYPE_CASE(name, code, bytes, text)                                                      \
    case LK_##name: return text;
        LK_DTYPE_TABLE(DTYPE_CASE)
#undef DTYPE_CASE
#define WIRE_CASE(name, code, text, label)                                                       \
    case LK_##name: return #name;
        LK_ENCODING_TABLE(LK_NO_ENCODING, WIRE_CASE)
#undef WIRE_CASE
    default: return "?";
    }
}
