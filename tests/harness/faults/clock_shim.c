/* A wall clock that can be moved: LD_PRELOADed into a server, it answers clock_gettime(CLOCK_REALTIME
 * and CLOCK_REALTIME_COARSE), gettimeofday and time with the kernel's time plus an offset, which is
 * read anew each time from the file that QUORLOCK_CLOCK_OFFSET names: eight bytes, nanoseconds.
 * From the start of the process on it gains QUORLOCK_CLOCK_PPM parts in a million, where that is set.
 * Elapsed time (CLOCK_MONOTONIC and the others) is left alone: it is the wall clock that jumps.
 *
 * No function here may allocate or ask the dynamic linker: the server's malloc asks for the time
 * while it starts. Hence system calls, and the kernel's time where the file cannot be mapped.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static const volatile int64_t still = 0;
static const volatile int64_t *offset = &still;
static int64_t ppm = 0, start = 0;

static int64_t real_now(clockid_t clock)
{
    struct timespec real;
    syscall(SYS_clock_gettime, clock, &real);
    return (int64_t)real.tv_sec * SECOND + real.tv_nsec;
}

__attribute__((constructor)) static void set_rate(void)
{
    const char *text = getenv("QUORLOCK_CLOCK_PPM");
    start = real_now(CLOCK_REALTIME);
    ppm = text ? atoll(text) : 0;
}

__attribute__((constructor)) static void map_offset(void)
{
    const char *path = getenv("QUORLOCK_CLOCK_OFFSET");
    int file = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (file < 0)
        return;
    if (ftruncate(file, sizeof(int64_t)) == 0) { /* longer it is not, and shorter it may not be */
        void *page = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
        if (page != MAP_FAILED)
            offset = page;
    }
    close(file);
}

static int64_t moved_now(clockid_t clock)
{
    int64_t now = real_now(clock);
    return now + (now - start) / 1000 * ppm / 1000 + *offset;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int64_t ns;
    if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)
        return (int)syscall(SYS_clock_gettime, clock, now);
    ns = moved_now(clock);
    now->tv_sec = ns / SECOND;
    now->tv_nsec = ns % SECOND;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    int64_t ns = moved_now(CLOCK_REALTIME);
    (void)zone;
    now->tv_sec = ns / SECOND;
    now->tv_usec = ns % SECOND / 1000;
    return 0;
}

time_t time(time_t *result)
{
    time_t now = moved_now(CLOCK_REALTIME) / SECOND;
    if (result)
        *result = now;
    return now;
}
