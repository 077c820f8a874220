/* For LD_PRELOAD: a machine that was suspended, for as long as the file $SUSPENDED_NS says.
 *
 * CLOCK_BOOTTIME counts that time, CLOCK_MONOTONIC and all timers do not, as on Linux.  The file
 * holds one 64-bit number, in nanoseconds, and may be changed while the process runs.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *suspended;
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("SUSPENDED_NS");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        void *map = mmap(NULL, sizeof *suspended, PROT_READ, MAP_SHARED, file, 0);
        suspended = map == MAP_FAILED ? NULL : map;
        close(file);
    }
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    if (!real)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, at);
    if (!failed && suspended && clock == CLOCK_BOOTTIME) {
        int64_t total = at->tv_nsec + *suspended;
        at->tv_sec += total / 1000000000;
        at->tv_nsec = total % 1000000000;
    }
    return failed;
}
