/* sc_mount.h - the kind of file system that a file is on
 * SPDX-License-Identifier: MIT */
#ifndef SC_MOUNT_H
#define SC_MOUNT_H

#include "base/sc_common.h"

/* Return the number of statfs() for the file system of an open file; 0: unknown. ext2, ext3 and ext4 share one. */
uint64_t sc_mount_magic(int fd);

/* Return true for a path on a server of SMB, where a file that is open cannot be replaced. */
bool sc_mount_is_smb(const char *path);

/* Return true if the kernel may know names of this file system that another machine has changed since.
 *
 * @device:   of the open file.
 * @mount_id: number of its mount, 0: unknown. One that is never used again (Linux 6.8) saves the call after the first one. */
bool sc_mount_caches_names(int fd, uint64_t device, uint64_t mount_id);

#endif
