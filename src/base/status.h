/* base/status.h -- records failures with a reason, and asserts internal invariants.
 *
 * The function that detects a failure calls lk_fail(), which stores the message for this thread and
 * returns the status.  Callers return this status to their own callers without another message
 * (LK_TRY).
 */
#ifndef LKI_STATUS_H
#define LKI_STATUS_H

#include "lockstep/base.h"

/* The size of the buffer for an error's text.  This is the limit for all texts of failures, in
 * memory and in messages. */
enum { LKI_MESSAGE_BYTES = sizeof((lk_error *)0)->message };

/* Records a failure (printf-like) and yields `status`, which must not be LK_OK. */
#define lk_fail(status, ...) lki_fail((status), __FILE__, __LINE__, __VA_ARGS__)

/* The static analyzer sees one file at a time, and only this form shows it that the result is
 * `status`. */
#ifdef __clang_analyzer__
#undef lk_fail
#define lk_fail(status, ...)                                                                     \
    ((void)lki_fail((status), __FILE__, __LINE__, __VA_ARGS__), (lk_status)(status))
#endif

lk_status lki_fail(lk_status status, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Stores `error`, which may come from another thread, as this thread's last failure.  Returns
 * error->status. */
lk_status lki_fail_again(const lk_error *error);

/* Returns LK_EINVAL if an argument of `count` elements is NULL, unless `count` is 0.  The message
 * names the call and the argument. */
LK_NODISCARD lk_status lki_check_given(const char *call, const char *argument, const void *given,
                                       size_t count);

/* Returns from the enclosing function with the status of `call` if it fails. */
#define LK_TRY(call)                                                                             \
    do {                                                                                         \
        lk_status lk_try_status_ = (call);                                                       \
        if (lk_try_status_ != LK_OK)                                                             \
            return lk_try_status_;                                                               \
    } while (0)

/* Aborts if the condition is false, in every build.  For bugs of the library only.  The macro is an
 * expression, so it cannot capture a following `else`. */
#define LK_ASSERT(condition)                                                                     \
    ((condition) ? (void)0 : lki_assert_failed(#condition, __FILE__, __LINE__))

_Noreturn void lki_assert_failed(const char *condition, const char *file, int line);

#endif
