/* sc_mount.h - the kind of file system that a file is on
 * SPDX-License-Identifier: MIT */
#ifndef SC_MOUNT_H
#define SC_MOUNT_H

#include "base/sc_common.h"

/* Return the number of statfs() for the file system of an open file; 0: unknown. ext2, ext3 and ext4 share one. */
uint64_t sc_mount_magic(int fd);

#endif
