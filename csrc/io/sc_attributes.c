/* sc_attributes.c - owner, mode, ACLs and extended attributes of a replaced file (see sc_attributes.h)
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "io/sc_attributes.h"

#include <errno.h>
#include <stdatomic.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/limits.h>
#include <sys/xattr.h>
#endif

#include "base/sc_alloc.h"
#include "io/sc_file.h"
#include "io/sc_guard.h"

/* ---- owner, group and mode ---- */

/* 0, or -1 and errno. */
static int
change_owner(int fd, const char *path, uid_t owner, gid_t group)
{
    return sc_file_allows("fchown", path, NULL) ? fchown(fd, owner, group) : -1;
}

/* Copy owner and group, or the group alone. *st becomes the result. */
static enum sc_status
copy_owner(int fd, const char *path, const struct stat *old, struct stat *st, struct sc_where *where)
{
    bool same_owner = st->st_uid == old->st_uid, same_group = st->st_gid == old->st_gid;

    if (same_owner && same_group)
        return SC_OK;
    if (change_owner(fd, path, same_owner ? (uid_t)-1 : old->st_uid, same_group ? (gid_t)-1 : old->st_gid) == 0) {
        st->st_uid = old->st_uid;
        st->st_gid = old->st_gid;
        return SC_OK;
    }
    if (sc_file_call_refused(errno) && !same_owner && !same_group &&
        change_owner(fd, path, (uid_t)-1, old->st_gid) == 0) {
        st->st_gid = old->st_gid;
        return SC_OK;
    }
    return sc_file_call_refused(errno) ? SC_OK : sc_file_error(where, "fchown");
}

/* Return the old mode bits. No user gets rights on the new file that this user did not have on the old one. */
static mode_t
kept_mode(const struct stat *old, const struct stat *st)
{
    mode_t mode = old->st_mode & 07777;

    if (st->st_uid != old->st_uid)
        mode &= ~(mode_t)S_ISUID;
    if (st->st_gid != old->st_gid) /* another group: it gets the rights of all other users */
        mode = (mode & ~(mode_t)(S_ISGID | S_IRWXG)) | (mode & S_IRWXO) << 3;
    return mode;
}

/* ---- extended attributes ---- */

#ifdef __linux__

/* Attributes that are not copied: they describe an inode, or the bytes in it. */
static const char *const never[] = {
    "security.ima", "security.evm",       "trusted.overlay.", "trusted.lov", "trusted.lma", "trusted.link",
    "trusted.gfid", "trusted.glusterfs.", "trusted.afr.",     "lustre.",     "ceph."
};

static const char access_acl[] = "system.posix_acl_access";

static bool
is_copied(const char *name)
{
    for (size_t i = 0; i < sizeof never / sizeof *never; i++)
        if (strncmp(name, never[i], strlen(never[i])) == 0)
            return false;
    return true;
}

static bool
lists(const char *names, ssize_t n, const char *name)
{
    for (const char *p = names; p < names + n; p += strlen(p) + 1)
        if (strcmp(p, name) == 0)
            return true;
    return false;
}

/* One attribute; `scratch` holds two values of XATTR_SIZE_MAX bytes. */
static enum sc_status
copy_one(int fd, const char *path, const char *name, uint8_t *scratch, struct sc_where *where)
{
    uint8_t *there = scratch + XATTR_SIZE_MAX;
    ssize_t n = getxattr(path, name, scratch, XATTR_SIZE_MAX);

    if (n < 0) /* this process may not read it, or it was removed meanwhile */
        return SC_OK;
    if (fgetxattr(fd, name, there, XATTR_SIZE_MAX) == n && memcmp(scratch, there, (size_t)n) == 0)
        return SC_OK; /* already equal, as are SELinux labels, which few processes may set */
    if (sc_file_allows("fsetxattr", path, NULL) && fsetxattr(fd, name, scratch, (size_t)n, 0) == 0)
        return SC_OK;
    return sc_file_call_refused(errno) ? SC_OK : sc_file_error(where, "fsetxattr");
}

/* The old file has no ACL, but the new file has got the default ACL of the folder: remove it. */
static enum sc_status
drop_inherited(int fd, const char *path, struct sc_where *where)
{
    if (sc_file_allows("fremovexattr", path, NULL) && fremovexattr(fd, access_acl) == 0)
        return SC_OK;
    return errno == ENODATA || sc_file_call_refused(errno) ? SC_OK : sc_file_error(where, "fremovexattr");
}

/* The ACL that new files of a lock file's folder get, as a hash with their owner and mode; 0: not known yet. On NFS each look is a
 * request, so an old file with this ACL is not compared with the new one again. */
static _Atomic uint64_t usual_acl;

static const char nfs_acl[] = "system.nfs4_acl";

static uint64_t
hash_of(const struct stat *st, const uint8_t *value, size_t n)
{
    uint64_t hash =
        (uint64_t)st->st_dev * 31 + ((uint64_t)st->st_uid << 32) + st->st_gid * 4096u + (st->st_mode & 0777);

    for (size_t i = 0; i < n; i++)
        hash = (hash ^ value[i]) * 0x100000001b3u;
    return hash ? hash : 1;
}

/* True if the old file has the ACL that new files get; `value` has room for it. */
static bool
has_usual_acl(int fd, const char *path, const struct stat *old, const struct stat *st, uint8_t *value)
{
    uint64_t usual = atomic_load(&usual_acl);
    ssize_t n;

    if (!usual) {
        n = fgetxattr(fd, nfs_acl, value, XATTR_SIZE_MAX);
        if (n < 0)
            return false;
        usual = hash_of(st, value, (size_t)n);
        atomic_store(&usual_acl, usual);
    }
    n = getxattr(path, nfs_acl, value, XATTR_SIZE_MAX);
    return n < 0 || hash_of(old, value, (size_t)n) == usual;
}

/* Two calls if neither file has any, which is the usual case; one under a lock file. */
static enum sc_status
copy_extended(int fd, const char *path, const struct stat *old, const struct stat *st, bool guarded,
              struct sc_where *where)
{
    ssize_t n = guarded ? 1 : listxattr(path, NULL, 0), n_own = guarded ? 0 : flistxattr(fd, NULL, 0);
    uint8_t *memory;
    char *names;
    enum sc_status status = SC_OK;

    if (n <= 0 && n_own <= 0)
        return SC_OK;
    memory = sc_malloc(2 * XATTR_SIZE_MAX + XATTR_LIST_MAX);
    if (!memory)
        return SC_NO_MEMORY;
    names = (char *)memory + 2 * XATTR_SIZE_MAX;
    n = listxattr(path, names, XATTR_LIST_MAX);
    for (const char *name = names; !status && name < names + n; name += strlen(name) + 1)
        if (is_copied(name) && !(guarded && strcmp(name, nfs_acl) == 0 && has_usual_acl(fd, path, old, st, memory)))
            status = copy_one(fd, path, name, memory, where);
    if (!status && n_own > 0 && !lists(names, n, access_acl))
        status = drop_inherited(fd, path, where);
    sc_free(memory);
    return status;
}

#else

static enum sc_status
copy_extended(int fd, const char *path, const struct stat *old, const struct stat *st, bool guarded,
              struct sc_where *where)
{
    (void)fd, (void)path, (void)old, (void)st, (void)guarded, (void)where;
    return SC_OK;
}

#endif

enum sc_status
sc_attributes_copy(int fd, const char *path, const struct stat *old, bool guarded, struct sc_where *where)
{
    enum sc_status status;
    struct stat st;
    mode_t mode;

    if (fstat(fd, &st))
        return sc_file_error(where, "fstat");
    status = copy_owner(fd, path, old, &st, where);
    if (!status)
        status = copy_extended(fd, path, old, &st, guarded, where);
    mode = kept_mode(old, &st);
    if (guarded) {
        if (((mode ^ st.st_mode) & 07777 & ~(mode_t)SC_GUARD_MARK) == 0)
            return status; /* a request less; the file was made with the mark, or the server has none */
        mode |= SC_GUARD_MARK;
    }
    if (!status && (!sc_file_allows("fchmod", path, NULL) || fchmod(fd, mode)))
        status = sc_file_error(where, "fchmod");
    return status;
}
