/* sc_cache.h - what readers keep between calls: decoded indexes, and open files
 *
 * An index is kept under the name of its object together with what identified the file when the index was read. A reader
 * that opens the file again compares both, so a file that was replaced or changed since is a miss, never a wrong
 * answer. What a file's stamps cannot tell apart is not kept at all: a change right after this one could leave
 * the same stamps, since clocks of file systems tick every few milliseconds (or seconds); git calls such a file racy.
 *
 *     get --> HIT    use it, release it
 *         --> LOAD   read the index, then put it or give up; other threads wait meanwhile, for this object only
 *         --> PASS   read the index for yourself, nothing is kept
 *
 * Large indexes are kept at their second reading: one element from each of many shards would otherwise pay for
 * decoding every index whole.
 *
 * The bytes of all indexes kept, names included, stay below a bound; the least recently used go first. An index that
 * is in use lives on until it is released.
 *
 * Open files are kept by name too, if asked for. A kept file counts if its name still leads to the same inode: while it
 * is open, the file system gives that inode to no other file.
 *
 * Threads may share a cache. A forked child finds it empty.
 * SPDX-License-Identifier: MIT */
#ifndef SC_CACHE_H
#define SC_CACHE_H

#include "base/sc_cancel.h"
#include "chain/sc_chain.h"
#include "io/sc_file.h"

/* Older than any clock's grain, and than the usual difference between the clocks of a file server and ours. */
#define SC_CACHE_GRAIN_NS ((int64_t)2000 * 1000 * 1000)

/* An index above this is kept at its second reading. */
#define SC_CACHE_AT_ONCE_NBYTES ((uint64_t)256 << 10)

struct sc_cache;

/* A decoded index, n_entries in C order; shared, never changed. */
struct sc_cached_index {
    atomic_uint n_users;
    uint64_t n_entries;
    bool is_sound; /* all entries have been checked, and are right */
    struct sc_entry entries[];
};

struct sc_cache_info {
    uint64_t max_nbytes, nbytes, n_indexes, hits, misses, evictions;
    uint64_t max_files, n_files, file_hits, file_misses;
};

enum sc_cache_answer { SC_CACHE_HIT, SC_CACHE_LOAD, SC_CACHE_PASS };

/* Install the fork handlers. Once, at import. */
enum sc_status sc_cache_init(void);

/* max_nbytes 0: no indexes; max_files 0: no files. NULL: no memory. */
struct sc_cache *sc_cache_new(uint64_t max_nbytes, uint64_t max_files, int64_t grain_ns);

/* No thread may use the cache any more; indexes taken from it may still be in use. */
void sc_cache_free(struct sc_cache *cache);

/* Forget everything, or what is known of one object (before it is replaced). */
void sc_cache_clear(struct sc_cache *cache);
void sc_cache_drop(struct sc_cache *cache, const char *name);

/* ---- indexes ---- */

/* Ask for the index of an object. file: what identifies it now; NULL when it is in no file, and the user has said that it
 * never changes. With SC_CACHE_HIT *index is held for the caller. Waits while another thread loads the same one, unless
 * `cancel` says stop (then SC_CACHE_PASS). */
enum sc_cache_answer sc_cache_get(struct sc_cache *cache, const char *name, const struct sc_file_id *file,
                                  const struct sc_chain *shard, struct sc_cancel *cancel,
                                  struct sc_cached_index **index);

/* After SC_CACHE_LOAD: keep the index (the caller goes on holding it), or NULL: it could not be read. */
void sc_cache_loaded(struct sc_cache *cache, const char *name, const struct sc_file_id *file,
                     const struct sc_chain *shard, struct sc_cached_index *index);

/* True if an index of that name is kept, even if the object has changed since. Counts as neither hit nor miss. */
bool sc_cache_has(struct sc_cache *cache, const char *name, const struct sc_chain *shard);

/* The index that is kept, without waiting or loading; NULL: none. */
struct sc_cached_index *sc_cache_peek(struct sc_cache *cache, const char *name, const struct sc_chain *shard);

/* Keep an index that was read outside, of an object in no file. */
void sc_cache_put(struct sc_cache *cache, const char *name, const struct sc_chain *shard,
                  struct sc_cached_index *index);

/* Room for the entries of a shard, held once, and behind them for the checksums of the stored index. NULL: no memory. */
struct sc_cached_index *sc_cached_index_new(const struct sc_chain *shard);

/* Where the stored index may be read to: pairs in C order are decoded where they lie, so they take no memory twice.
 * NULL: of another order, it needs memory of its own. */
uint8_t *sc_cached_index_stored(struct sc_cached_index *index, const struct sc_chain *shard);

/* Decode a stored index whose checksums have been verified, and look whether it is sound where that counts. */
void sc_cached_index_fill(struct sc_cached_index *index, const struct sc_chain *shard, const uint8_t *stored,
                          const struct sc_index_extent *extent);

/* Check all entries if only that can find a wrong one (sc_index_must_be_sound()). An index that passed is not checked again. */
enum sc_status sc_cached_index_check(const struct sc_cached_index *index, const struct sc_chain *shard,
                                     const struct sc_index_extent *extent, struct sc_where *where);

void sc_cached_index_release(struct sc_cached_index *index);

/* ---- files ---- */

struct sc_cached_file;

/* An open file; fd -1: there is none of that name. */
struct sc_opened {
    int fd;
    struct sc_file_id id;
    struct sc_cached_file *kept; /* closes fd; NULL: sc_cache_close() does */
};

/* As sc_file_open(), through the cache where there is one that keeps files (cache may be NULL). `trusted`: a file that is
 * open already is used without a look at its name. *opens and *hits are counted up. */
enum sc_status sc_cache_open(struct sc_cache *cache, const char *name, bool trusted, struct sc_opened *file,
                             uint64_t *opens, uint64_t *hits, struct sc_where *where);
void sc_cache_close(struct sc_cache *cache, struct sc_opened *file);

/* Forget all open files: one of them turned out stale. */
void sc_cache_drop_files(struct sc_cache *cache);

void sc_cache_get_info(struct sc_cache *cache, struct sc_cache_info *info);

#endif
