/* sc_kept.c - second names of shards (see sc_kept.h)
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "io/sc_kept.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/sc_alloc.h"
#include "io/sc_file.h"
#include "io/sc_lock.h"
#include "io/sc_staging.h"

/* Other processes can undo a step so often before the lock counts as lost. */
#define MAX_TRIES 16

/* A holder that is cut off in step c may link P late, after the update of the next one. So its K has a lower number than theirs. */
#define STEP_OF_SHARD 1
#define STEP_OF_UPDATE 2

/* What a look at the folder of the lock file has found of one shard. */
struct look {
    int at;
    uint64_t shard;
    const char *own;
    struct sc_kept kept; /* the newest K */
    unsigned n_kept;
    char late[SC_KEPT_CAPACITY]; /* a T that is to replace the shard; "": none */
    uint64_t replaced; /* the inode in its name */
    int error;
};

static int
remove_name(int at, const char *name)
{
    return sc_staging_remove(at, name) && errno != ENOENT ? errno : 0;
}

/* True for an F_T of which no request comes any more. */
static bool
is_over(int at, const char *name)
{
    struct stat st;

    return fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
           st.st_mtim.tv_sec < time(NULL) - SC_STAGING_FOREIGN_SECONDS;
}

static void
note_temporary(struct look *look, const struct sc_staging_entry *entry)
{
    int error;

    if (look->own && strcmp(entry->name, look->own) == 0)
        return;
    if (entry->replaced) {
        snprintf(look->late, sizeof look->late, "%s", entry->name);
        look->replaced = entry->replaced;
    } else if ((error = remove_name(look->at, entry->name))) {
        look->error = error;
    }
}

static void
note_newest(void *context, const struct sc_staging_entry *entry)
{
    struct sc_kept *kept = context;

    if (entry->kind != SC_STAGING_KEPT || (kept->name[0] && entry->number < kept->number))
        return;
    kept->number = entry->number;
    snprintf(kept->name, sizeof kept->name, "%s", entry->name);
}

static void
note(void *context, const struct sc_staging_entry *entry)
{
    struct look *look = context;

    if (entry->kind == SC_STAGING_TEMPORARY)
        note_temporary(look, entry);
    if (entry->kind == SC_STAGING_LATE && (!is_over(look->at, entry->name) || remove_name(look->at, entry->name)))
        look->kept.is_needed = true;
    look->n_kept += entry->kind == SC_STAGING_KEPT;
    note_newest(&look->kept, entry);
}

/* Look at the names of a shard, and remove each T that replaces nothing. 0, or an errno. */
static int
look_at_names(struct look *look, int at, uint64_t shard, const char *own)
{
    *look = (struct look){ .at = at, .shard = shard, .own = own };
    return sc_staging_list(at, shard, note, look) ? errno : look->error;
}

/* ---- steps ---- */

/* Link a file to a name that is free, or was free before another process took the same step. 0, or an errno. */
static int
link_to(int from_at, const char *from, int at, const char *to)
{
    if (sc_file_allows("link", to, NULL) && linkat(from_at, from, at, to, 0) == 0)
        return 0;
    return errno == EEXIST ? 0 : errno;
}

static bool
links_unsupported(int error)
{
    return error == EMLINK || sc_file_call_refused(error);
}

/* Find the name that a client has given to the shard with an inode. ENOENT: there is none. */
static int
restore_old_name(const char *path, uint64_t inode)
{
    char prefix[32], *name = sc_file_folder_of(path);
    DIR *folder = name ? opendir(name) : NULL;
    const struct dirent *d;
    int error = ENOENT;

    snprintf(prefix, sizeof prefix, ".nfs%016llx", (unsigned long long)inode);
    sc_free(name);
    while (folder && error && (d = readdir(folder)))
        if (strncmp(d->d_name, prefix, strlen(prefix)) == 0)
            error = link_to(dirfd(folder), d->d_name, AT_FDCWD, path);
    if (folder)
        closedir(folder);
    return error;
}

/* Step b. inode: that of the shard, if it is known. Return 0 if P is there now, ENOENT if nothing is known of a shard, ESTALE if it has
 * only a second name, or another errno. */
static int
restore(const struct sc_kept *kept, int at, const char *path, uint64_t inode)
{
    struct stat st;
    int error;

    sc_lock_look_at_folder(path);
    if (sc_lock_stat_now(AT_FDCWD, path, &st) == 0)
        return 0;
    error = errno;
    if (error == ENOENT && kept->name[0])
        return link_to(at, kept->name, AT_FDCWD, path) ? ESTALE : 0;
    return error == ENOENT && inode ? restore_old_name(path, inode) : error;
}

/* Choose the name of a new K: a higher number, and a name that no other process makes. */
static int
name_next(const struct sc_kept *kept, uint64_t shard, unsigned step, struct sc_kept *next)
{
    char *name = sc_staging_name("", shard, 0);

    *next = *kept;
    next->number = kept->number + step;
    if (name)
        sc_staging_kept_name(next->name, sizeof next->name, next->number, name + 1);
    sc_free(name);
    return name ? 0 : ENOMEM;
}

/* True if K and the shard are one file. */
static bool
is_kept(const struct sc_kept *kept, int at, const struct stat *shard)
{
    struct stat st;

    return kept->name[0] && sc_lock_stat_now(at, kept->name, &st) == 0 && st.st_ino == shard->st_ino &&
           st.st_dev == shard->st_dev;
}

/* Steps b and c: give the shard its name, and a K. inode: that of the shard which a T is to replace, if it is known. 0, or an
 * errno. */
static int
keep(struct sc_kept *kept, int at, uint64_t shard, const char *path, uint64_t inode)
{
    struct sc_kept next;
    struct stat st;

    for (int i = 0; i < MAX_TRIES; i++) {
        int error = restore(kept, at, path, inode);

        if (error)
            return sc_file_means_missing(error) ? 0 : error; /* a shard that is not there needs no second name */
        if (sc_lock_stat_now(AT_FDCWD, path, &st))
            continue;
        if (is_kept(kept, at, &st))
            return 0;
        if ((error = name_next(kept, shard, STEP_OF_SHARD, &next)))
            return error;
        error = link_to(AT_FDCWD, path, at, next.name);
        if (!error)
            error = sc_kept_pass(kept, at, &next);
        if (links_unsupported(error))
            return 0;
        if (error && error != ENOENT && error != ESTALE)
            return error;
    }
    return ESTALE;
}

/* Make F_T. */
static int
mark(int at, const char *temp)
{
    char name[SC_KEPT_CAPACITY];
    int fd;

    sc_staging_late_name(name, sizeof name, temp);
    if (!sc_file_allows("open", name, NULL))
        return errno;
    fd = openat(at, name, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0)
        return errno;
    sc_file_close(fd);
    return 0;
}

/* Steps a to d for the T that was found. */
static int
end_late(struct look *look, const char *path)
{
    int error = mark(look->at, look->late);

    if (!error)
        error = keep(&look->kept, look->at, look->shard, path, look->replaced);
    return error ? error : remove_name(look->at, look->late);
}

static void
remove_older(void *context, const struct sc_staging_entry *entry)
{
    struct look *look = context;

    if (entry->kind == SC_STAGING_KEPT && strcmp(entry->name, look->kept.name) != 0)
        sc_staging_remove(look->at, entry->name); /* a failure is harmless: it has a lower number */
}

int
sc_kept_fence(struct sc_kept *kept, int at, uint64_t shard, const char *path, const char *own)
{
    struct look look;
    int error = 0;

    for (int i = 0; i < MAX_TRIES; i++) { /* a T that was not seen may have linked a K before it was removed */
        error = look_at_names(&look, at, shard, own);
        if (error || !look.late[0])
            break;
        error = end_late(&look, path);
        if (error)
            break;
        error = ESTALE;
    }
    *kept = look.kept;
    if (error || (!kept->is_needed && !look.n_kept))
        return error;
    error = kept->is_needed ? keep(kept, at, shard, path, 0) : restore(kept, at, path, 0);
    if (error == ESTALE && !kept->is_needed &&
        sc_file_allows("rename", path, NULL)) /* no hard links, and the lock is held */
        error = renameat(at, kept->name, AT_FDCWD, path) ? errno : 0;
    if (!error && !kept->is_needed)
        sc_kept_pass(kept, at, &(struct sc_kept){ 0 }); /* an older state stays if it is open on a server of SMB */
    look.kept = *kept;
    if (!error && look.n_kept > 1)
        error = sc_staging_list(at, shard, remove_older, &look) ? errno : 0;
    return error;
}

int
sc_kept_link(const struct sc_kept *kept, int at, const char *temp, struct sc_kept *next)
{
    uint64_t shard;
    int error;

    *next = *kept;
    if (!kept->is_needed || !sc_staging_shard_of(temp, &shard))
        return 0;
    error = name_next(kept, shard, STEP_OF_UPDATE, next);
    if (!error)
        error = link_to(at, temp, at, next->name);
    if (error)
        *next = links_unsupported(error) ? (struct sc_kept){ .is_needed = true } : *kept;
    return links_unsupported(error) ? 0 : error;
}

int
sc_kept_move(const struct sc_kept *kept, int at, uint64_t shard, const char *path, struct sc_kept *next)
{
    int error = name_next(kept, shard, STEP_OF_UPDATE, next);

    if (!error && (!sc_file_allows("rename", path, NULL) || renameat(AT_FDCWD, path, at, next->name)))
        error = errno;
    if (error)
        *next = *kept;
    return error == ENOENT ? 0 : error;
}

int
sc_kept_pass(struct sc_kept *kept, int at, const struct sc_kept *next)
{
    int error = kept->name[0] && strcmp(kept->name, next->name) != 0 ? remove_name(at, kept->name) : 0;

    if (next->name[0])
        error = 0; /* two names are no harm: the new one has the higher number */
    if (!error)
        *kept = *next;
    return error;
}

struct failure {
    struct sc_kept kept;
    const char *mark;
    bool is_marked;
};

static void
note_mark(void *context, const struct sc_staging_entry *entry)
{
    struct failure *failure = context;

    failure->is_marked |= strcmp(entry->name, failure->mark) == 0;
    note_newest(&failure->kept, entry);
}

void
sc_kept_failed(int at, uint64_t shard, const char *path, uint64_t inode, const char *temp, int error)
{
    char name[SC_KEPT_CAPACITY];
    struct failure failure = { .mark = name };

    sc_staging_late_name(name, sizeof name, temp);
    if (!inode || sc_staging_list(at, shard, note_mark, &failure))
        return;
    /* with F_T a later holder has done it, and may have removed the shard since then */
    restore(&failure.kept, at, path, failure.is_marked ? 0 : inode);
    if (failure.is_marked && (error == ENOENT || error == ESTALE)) /* else a request may still be on its way */
        sc_staging_remove(at, name); /* if it stays, it costs calls only */
}
