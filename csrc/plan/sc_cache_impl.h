/* sc_cache_impl.h - what sc_cache.c (indexes) and sc_cache_files.c (open files) share; for these two only
 * SPDX-License-Identifier: MIT */
#ifndef SC_CACHE_IMPL_H
#define SC_CACHE_IMPL_H

#include "base/sc_lru.h"
#include "plan/sc_cache.h"

struct sc_cache {
    struct sc_cache *next, **link; /* all caches, for fork */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct sc_lru indexes, files;
    struct sc_chunks *chunks; /* NULL: none; with mutexes of its own */
    struct sc_cache_info info;
    int64_t grain_ns;
};

/* Remove one open file, or all of them, under the mutex; return those without a user. The caller closes them after it has
 * released the mutex: on a network file system a close may take long. */
struct sc_cached_file *sc_cache_file_remove(struct sc_cache *cache, const char *name);
struct sc_cached_file *sc_cache_files_remove(struct sc_cache *cache);
void sc_cached_files_close(struct sc_cached_file *unused);

/* After a fork, in the child: no thread uses a file. */
void sc_cache_files_disown(struct sc_cache *cache);

#endif
