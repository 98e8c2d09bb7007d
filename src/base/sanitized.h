/* sanitized.h -- for tests: whether a sanitizer watches.
 *
 * Release tries every size and number of ranks; where that would take minutes under a sanitizer, it
 * gets the first few.
 */
#ifndef LKI_BASE_SANITIZED_H
#define LKI_BASE_SANITIZED_H

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
