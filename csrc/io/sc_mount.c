/* sc_mount.c - the kind of file system that a file is on (see sc_mount.h)
 * SPDX-License-Identifier: MIT */
#include "io/sc_mount.h"

#ifdef __linux__
#include <sys/vfs.h>
#endif

uint64_t
sc_mount_magic(int fd)
{
#ifdef __linux__
    struct statfs st;

    if (fstatfs(fd, &st) == 0)
        return (uint32_t)st.f_type; /* signed, and 4 or 8 bytes long, depending on the architecture */
#else
    (void)fd;
#endif
    return 0;
}
