/* base/status.h -- failing with a reason, asserting our own invariants.
 *
 * lk_fail() is for whoever decides that something is a failure: it stores the message for this
 * thread and returns the status.  Whoever passes a status on says nothing (LK_TRY).
 */
#ifndef LKI_STATUS_H
#define LKI_STATUS_H

#include "lockstep/base.h"

/* Records the failure and yields `status`, which must not be LK_OK.  printf-like. */
#define lk_fail(status, ...) lki_fail((status), __FILE__, __LINE__, __VA_ARGS__)

/* The static analyzer sees one file at a time: it must be told that the result is `status`. */
#ifdef __clang_analyzer__
#undef lk_fail
#define lk_fail(status, ...)                                                                     \
    ((void)lki_fail((status), __FILE__, __LINE__, __VA_ARGS__), (lk_status)(status))
#endif

lk_status lki_fail(lk_status status, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Makes `error` this thread's last failure (one that happened on another thread) and yields
 * its status. */
lk_status lki_fail_again(const lk_error *error);

/* Leaves the enclosing function with the status of a call that failed. */
#define LK_TRY(call)                                                                             \
    do {                                                                                         \
        lk_status lk_try_status_ = (call);                                                       \
        if (lk_try_status_ != LK_OK)                                                             \
            return lk_try_status_;                                                               \
    } while (0)

/* Our bugs only; on in every build.  An expression, so that no else can dangle. */
#define LK_ASSERT(condition)                                                                     \
    ((condition) ? (void)0 : lki_assert_failed(#condition, __FILE__, __LINE__))

_Noreturn void lki_assert_failed(const char *condition, const char *file, int line);

#endif
