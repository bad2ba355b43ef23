/* sc_cache_files.c - open files between calls (see sc_cache.h)
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "base/sc_alloc.h"
#include "io/sc_latency.h"
#include "plan/sc_cache_impl.h"

struct sc_cached_file {
    struct sc_lru_node node;
    unsigned n_users;
    bool is_out; /* removed from the table: the last user closes it */
    int fd;
    struct sc_file_id id;
    struct sc_cached_file *next; /* in a list of files to close */
};

static struct sc_cached_file *
file_of(struct sc_lru_node *node)
{
    return (struct sc_cached_file *)(void *)node;
}

/* Remove a file from the table, under the mutex; put it on the list if it has no user. */
static void
file_remove(struct sc_cache *cache, struct sc_cached_file *file, struct sc_cached_file **unused)
{
    sc_lru_remove(&cache->files, &file->node);
    if (file->n_users) {
        file->is_out = true;
    } else {
        file->next = *unused;
        *unused = file;
    }
}

void
sc_cached_files_close(struct sc_cached_file *unused)
{
    while (unused) {
        struct sc_cached_file *next = unused->next;

        sc_file_close(unused->fd);
        sc_free(unused);
        unused = next;
    }
}

static void
file_leave(struct sc_cache *cache, struct sc_cached_file *file)
{
    bool last;

    pthread_mutex_lock(&cache->mutex);
    last = --file->n_users == 0 && file->is_out;
    pthread_mutex_unlock(&cache->mutex);
    if (last) {
        sc_file_close(file->fd);
        sc_free(file);
    }
}

/* Take a file that is open already and still has that name. */
static bool
take_open_file(struct sc_cache *cache, const char *name, bool trusted, struct sc_opened *opened)
{
    struct sc_cached_file *file;

    pthread_mutex_lock(&cache->mutex);
    file = file_of(sc_lru_find(&cache->files, name));
    if (file)
        file->n_users++;
    pthread_mutex_unlock(&cache->mutex);
    if (!file)
        return false;
    opened->fd = file->fd;
    opened->kept = file;
    opened->id = file->id;
    if (trusted || (sc_file_identify(name, &opened->id) && opened->id.inode == file->id.inode &&
                    opened->id.device == file->id.device))
        return true;
    pthread_mutex_lock(&cache->mutex);
    if (!file->is_out) {
        sc_lru_remove(&cache->files, &file->node);
        file->is_out = true;
    }
    pthread_mutex_unlock(&cache->mutex);
    file_leave(cache, file);
    return false;
}

static void
keep_file(struct sc_cache *cache, const char *name, struct sc_opened *opened)
{
    struct sc_cached_file *file = sc_calloc(1, sizeof *file), *unused = NULL;

    if (!file)
        return;
    *file = (struct sc_cached_file){ .n_users = 1, .fd = opened->fd, .id = opened->id };
    pthread_mutex_lock(&cache->mutex);
    if (!sc_lru_find(&cache->files, name) && sc_lru_add(&cache->files, &file->node, name)) {
        opened->kept = file;
        if (cache->files.n_nodes > cache->info.max_files)
            file_remove(cache, file_of(cache->files.oldest), &unused);
        file = NULL;
    }
    pthread_mutex_unlock(&cache->mutex);
    sc_cached_files_close(unused);
    sc_free(file); /* another thread was faster: this file stays with the caller */
}

static enum sc_status
open_timed(const char *name, struct sc_opened *file, struct sc_where *where)
{
    uint64_t begin = sc_latency_begin();
    enum sc_status status = sc_file_open_id(name, &file->fd, &file->id, where);

    file->missing_ns = 0;
    if (!status && file->fd >= 0)
        sc_latency_end(begin, file->id.device, 0);
    else if (!status)
        file->missing_ns = sc_latency_end_missing(begin);
    return status;
}

enum sc_status
sc_cache_open(struct sc_cache *cache, const char *name, bool trusted, struct sc_opened *file, uint64_t *opens,
              uint64_t *hits, struct sc_where *where)
{
    /* a relative name means another file after chdir() */
    bool keeps = cache && cache->info.max_files && name[0] == '/',
         hit = keeps && take_open_file(cache, name, trusted, file);
    enum sc_status status = SC_OK;

    if (!hit) {
        file->kept = NULL;
        ++*opens;
        status = open_timed(name, file, where);
        if (!status && keeps && file->fd >= 0)
            keep_file(cache, name, file);
    }
    *hits += hit;
    if (trusted)
        file->id.seen_ns = INT64_MAX; /* the caller says that it never changes */
    if (keeps) {
        pthread_mutex_lock(&cache->mutex);
        *(hit ? &cache->info.file_hits : &cache->info.file_misses) += 1;
        pthread_mutex_unlock(&cache->mutex);
    }
    return status;
}

void
sc_cache_close(struct sc_cache *cache, struct sc_opened *file)
{
    if (file->kept)
        file_leave(cache, file->kept);
    else
        sc_file_close(file->fd);
    file->fd = -1;
    file->kept = NULL;
}

struct sc_cached_file *
sc_cache_file_remove(struct sc_cache *cache, const char *name)
{
    struct sc_lru_node *node = sc_lru_find(&cache->files, name);
    struct sc_cached_file *unused = NULL;

    if (node)
        file_remove(cache, file_of(node), &unused);
    return unused;
}

struct sc_cached_file *
sc_cache_files_remove(struct sc_cache *cache)
{
    struct sc_cached_file *unused = NULL;

    while (cache->files.oldest)
        file_remove(cache, file_of(cache->files.oldest), &unused);
    return unused;
}

void
sc_cache_files_disown(struct sc_cache *cache)
{
    for (struct sc_lru_node *node = cache->files.oldest; node; node = node->newer)
        file_of(node)->n_users = 0;
}

void
sc_cache_drop_files(struct sc_cache *cache)
{
    struct sc_cached_file *unused;

    pthread_mutex_lock(&cache->mutex);
    unused = sc_cache_files_remove(cache);
    pthread_mutex_unlock(&cache->mutex);
    sc_cached_files_close(unused);
}
