/* link/patient_clock_testing.h -- for tests: a clock that counts only time in which the test runs.
 *
 * The linker redirects clock_gettime() and epoll_wait() to this file (x_test.wrap).  An
 * epoll_wait() that finds no events advances the clock by its timeout, and pass_ms() advances it by
 * the given time.  Otherwise the clock advances by at most CLOCK_STEP_MS between two readings.  A
 * process that is not scheduled for a while therefore misses no deadline.
 */
#ifndef LKI_LINK_PATIENT_CLOCK_TESTING_H
#define LKI_LINK_PATIENT_CLOCK_TESTING_H

#include <pthread.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <time.h>

enum { CLOCK_STEP_MS = 20 };

static struct {
    pthread_mutex_t lock;
    int64_t         real_ns, told_ns; /* real time and returned time at the last reading */
    unsigned        looks;
} patient_clock = { .lock = PTHREAD_MUTEX_INITIALIZER };

int __wrap_clock_gettime(clockid_t id, struct timespec *out);
int __real_clock_gettime(clockid_t id, struct timespec *out);

int __wrap_clock_gettime(clockid_t id, struct timespec *out)
{
    int status = __real_clock_gettime(id, out);
    if (status != 0 || id != CLOCK_MONOTONIC)
        return status;
    (void)pthread_mutex_lock(&patient_clock.lock);
    int64_t real   = (int64_t)out->tv_sec * 1000000000 + out->tv_nsec;
    int64_t passed = real - patient_clock.real_ns, most = CLOCK_STEP_MS * INT64_C(1000000);
    patient_clock.real_ns = real;
    patient_clock.told_ns += passed < most ? passed : most;
    patient_clock.looks++;
    out->tv_sec  = (time_t)(patient_clock.told_ns / 1000000000);
    out->tv_nsec = (long)(patient_clock.told_ns % 1000000000);
    (void)pthread_mutex_unlock(&patient_clock.lock);
    return 0;
}

static inline void pass_ms(int64_t ms)
{
    (void)pthread_mutex_lock(&patient_clock.lock);
    patient_clock.told_ns += ms * 1000000;
    (void)pthread_mutex_unlock(&patient_clock.lock);
}

int __wrap_epoll_wait(int epoll, struct epoll_event *events, int count, int ms);
int __real_epoll_wait(int epoll, struct epoll_event *events, int count, int ms);

int __wrap_epoll_wait(int epoll, struct epoll_event *events, int count, int ms)
{
    int ready = __real_epoll_wait(epoll, events, count, ms);
    if (ready == 0 && ms > 0)
        pass_ms(ms);
    return ready;
}

#endif
