/* sc_mount.c - the kind of file system that a file is on (see sc_mount.h)
 * SPDX-License-Identifier: MIT */
#include "io/sc_mount.h"

#include <stdatomic.h>
#ifdef __linux__
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#endif

/* A mount gets a number from here on only once. */
#define LASTING_MOUNTS ((uint64_t)1 << 31)

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

bool
sc_mount_is_smb(const char *path)
{
#ifdef __linux__
    struct statfs st;

    if (statfs(path, &st) == 0) /* the client's numbers for SMB 1 and 2 */
        return (uint32_t)st.f_type == 0xff534d42 || (uint32_t)st.f_type == 0xfe534d42;
#endif
    (void)path;
    return false;
}

#ifdef __linux__
/* The file systems of one machine that have no block device. One that is missing here costs a look too many, but no update. */
static const uint64_t of_one_machine[] = {
    0x01021994, /* tmpfs */
    0x2fc12fc1, /* zfs */
    0x794c7630, /* overlay */
    0x858458f6, /* ramfs */
    0x9123683e, /* btrfs */
    0xca451a4e, /* bcachefs */
};

/* The last mount of one machine, and of several, that were asked about. */
static _Atomic uint64_t last_mounts[2];

static bool
is_of_one_machine(uint64_t magic)
{
    for (size_t i = 0; i < sizeof of_one_machine / sizeof *of_one_machine; i++) {
        if (of_one_machine[i] == magic)
            return true;
    }
    return false;
}
#endif

bool
sc_mount_caches_names(int fd, uint64_t device, uint64_t mount_id)
{
#ifdef __linux__
    bool lasts = mount_id >= LASTING_MOUNTS, caches;

    if (major(device)) /* a block device; GFS2 and OCFS2, which share it, tell each other before a name changes */
        return false;
    for (unsigned known = 0; lasts && known < 2; known++) {
        if (atomic_load_explicit(&last_mounts[known], memory_order_relaxed) == mount_id)
            return known;
    }
    caches = !is_of_one_machine(sc_mount_magic(fd));
    if (lasts)
        atomic_store_explicit(&last_mounts[caches], mount_id, memory_order_relaxed);
    return caches;
#else
    (void)fd;
    (void)device;
    (void)mount_id;
    return true;
#endif
}
