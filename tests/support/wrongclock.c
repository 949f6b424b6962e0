/* A machine whose clock is WRONG_BY seconds ahead. Preloaded, it changes the time of day alone: what
 * is measured (CLOCK_MONOTONIC) and the times of files, which their server gives, stay. faketime
 * would break clock_nanosleep, with which Python sleeps.
 *
 * cc -shared -fPIC -o wrongclock.so wrongclock.c -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec += atol(getenv("WRONG_BY"));
    return result;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
