/* sc_attributes.h - what a new file takes over from the one that it replaces
 *
 *     owner and group    where permitted: root, or a group that the process is a member of
 *     ACLs and extended attributes    where permitted, and where the file system has them
 *     mode               always; less of it where the owner or the group could not be kept
 *
 * In this order: chown() clears set-user-ID bits, and an ACL sets the bits of the group. Not taken over are attributes that
 * describe the inode or its bytes (IMA and EVM hashes, layouts of Lustre, marks of overlayfs), nor flags (chattr), nor times.
 * SPDX-License-Identifier: MIT */
#ifndef SC_ATTRIBUTES_H
#define SC_ATTRIBUTES_H

#include <sys/stat.h>

#include "base/sc_status.h"

/* Copy owner, ACLs, attributes and mode of `path` to an open new file. `old`: the result of stat() of `path`. What
 * is not permitted is left out; other errors are reported. guarded: the new file was made under a lock file (sc_guard.h), so it keeps
 * that mark, and an equal mode is not set. */
enum sc_status sc_attributes_copy(int fd, const char *path, const struct stat *old, bool guarded,
                                  struct sc_where *where);

#endif
