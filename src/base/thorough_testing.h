/* base/thorough_testing.h -- for tests: lki_thorough() returns true if repetitions that take
 * minutes are wanted, and lki_brief() if time is short.
 *
 * By default a test tries every distinct case, and a few of many similar cases.  LK_THOROUGH=1 in
 * the environment, as set by `./dev check thorough`, requests all cases.  LK_BRIEF=1, as set for
 * the sanitizers, clang and 64-bit ARM under emulation, requests fewer similar cases, and fewer
 * threads.
 */
#ifndef LKI_BASE_THOROUGH_TESTING_H
#define LKI_BASE_THOROUGH_TESTING_H

#include <stdbool.h>
#include <stdlib.h>

static inline bool lki_thorough(void)
{
    return getenv("LK_THOROUGH") != NULL;
}

static inline bool lki_brief(void)
{
    return getenv("LK_BRIEF") != NULL;
}

#endif
