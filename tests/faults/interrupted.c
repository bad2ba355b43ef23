/* interrupted.c - a preloaded library whose writes are always interrupted, once interrupt(1) was called
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/types.h>
#include <unistd.h>

static int on;
static unsigned n_calls;

void
interrupt(int now)
{
    on = now;
}

unsigned
interrupted(void)
{
    return n_calls;
}

ssize_t
pwrite(int fd, const void *bytes, size_t n, off_t offset)
{
    static ssize_t (*next)(int, const void *, size_t, off_t);

    if (on) {
        n_calls++;
        errno = EINTR;
        return -1;
    }
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "pwrite");
    return next(fd, bytes, n, offset);
}
