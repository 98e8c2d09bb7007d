/* base/sanitized_testing.h -- for tests: LKI_SANITIZED, 1 if a sanitizer is active.
 *
 * Release builds test every size and number of ranks.  If that would take minutes under a
 * sanitizer, sanitizer builds test only the first few.
 */
#ifndef LKI_BASE_SANITIZED_TESTING_H
#define LKI_BASE_SANITIZED_TESTING_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LKI_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define LKI_SANITIZED 1
#endif
#endif
#ifndef LKI_SANITIZED
#define LKI_SANITIZED 0
#endif

#endif
