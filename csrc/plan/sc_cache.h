/* sc_cache.h - decoded indexes, decoded inner chunks and open files that readers keep between calls
 *
 * An index is kept under the name of its object, together with the identity of the file when the index was read. A
 * reader that opens the file again compares both, so a file that was replaced or changed since is a miss, never a wrong
 * answer. An index is not kept if time stamps could not show a change: clocks of file systems tick every few
 * milliseconds (or seconds), so a change right after this one could leave the same stamps. git calls such a file racy.
 *
 *     get --> HIT    use it, release it
 *         --> LOAD   read the index, then put it or give up; other threads wait meanwhile, for this object only
 *         --> PASS   the caller reads the index, and nothing is kept
 *
 * Large indexes are kept at their second reading. Otherwise a program that reads one element of each of many shards
 * would decode every index completely.
 *
 * The bytes of all kept indexes, names included, stay below a limit; the least recently used are removed first. An
 * index that is in use lives until it is released.
 *
 * Decoded inner chunks (sc_chunks.h) are kept under the number of an index, so they are as current as it is. An object without
 * an index, which is one chunk, has an empty one.
 *
 * Open files are kept by name too, if the caller asks for it. A kept file is used if its name still leads to the same
 * inode: while it is open, the file system gives that inode to no other file.
 *
 * Threads may share a cache. A forked child finds it empty.
 * SPDX-License-Identifier: MIT */
#ifndef SC_CACHE_H
#define SC_CACHE_H

#include "base/sc_cancel.h"
#include "chain/sc_chain.h"
#include "io/sc_file.h"
#include "plan/sc_chunks.h"

/* Longer than the step of any clock, and than the usual difference between the clocks of a file server and of this
 * machine. */
#define SC_CACHE_GRAIN_NS ((int64_t)2000 * 1000 * 1000)

/* An index above this is kept at its second reading. */
#define SC_CACHE_AT_ONCE_NBYTES ((uint64_t)256 << 10)

struct sc_cache;

/* A decoded index, n_entries in C order; shared, never changed. */
struct sc_cached_index {
    atomic_uint n_users;
    uint64_t number; /* no other index of this process has it: it names the state of the object */
    uint64_t n_entries, n_notes;
    bool is_sound; /* all entries have been checked and are valid */
    _Atomic uint64_t *
        notes; /* which do change: mtime of the file when an inner chunk agreed with its checksum; 0: not compared (sc_read_disk.c) */
    struct sc_entry entries[];
};

struct sc_cache_info {
    uint64_t max_nbytes, nbytes, n_indexes, hits, misses, evictions;
    uint64_t max_files, n_files, file_hits, file_misses;
    struct sc_chunks_info chunks;
};

/* Install the fork handlers. Once, at import. */
enum sc_status sc_cache_init(void);

/* max_nbytes 0: no indexes; max_files 0: no files; max_chunks_nbytes 0: no inner chunks. NULL: no memory. */
struct sc_cache *sc_cache_new(uint64_t max_nbytes, uint64_t max_files, uint64_t max_chunks_nbytes, int64_t grain_ns);

/* No thread may use the cache any more. Indexes that were taken from it may still be in use. */
void sc_cache_free(struct sc_cache *cache);

/* Forget everything, or one object (before it is replaced). */
void sc_cache_clear(struct sc_cache *cache);
void sc_cache_drop(struct sc_cache *cache, const char *name);

/* True if the only inner chunk that a box touches is kept under that name, even if the object has changed since. */
bool sc_cache_has_chunk(struct sc_cache *cache, const char *name, const struct sc_chain *object,
                        const struct sc_box *box);

/* The inner chunks of the cache; NULL: it keeps none. */
struct sc_chunks *sc_cache_chunks(const struct sc_cache *cache);

/* ---- indexes ---- */

/* Ask for the index of an object. file: identifies its present state; NULL for an object that is not in a file and
 * that the user has declared immutable. With SC_CACHE_HIT the caller holds *index. Waits while another thread loads
 * the same index, unless `native` stops the plan (then SC_CACHE_PASS). */
enum sc_cache_answer sc_cache_get(struct sc_cache *cache, const char *name, const struct sc_file_id *file,
                                  const struct sc_chain *shard, struct sc_cancel *cancel,
                                  struct sc_cached_index **index);

/* After SC_CACHE_LOAD: keep the index (the caller still holds it), or NULL: it could not be read. */
void sc_cache_loaded(struct sc_cache *cache, const char *name, const struct sc_file_id *file,
                     const struct sc_chain *shard, struct sc_cached_index *index);

/* True if an index of that name is kept, even if the object has changed since. It is neither a hit nor a miss. */
bool sc_cache_has(struct sc_cache *cache, const char *name, const struct sc_chain *shard);

/* True if the cache would keep this index at its next read: it is not cached, and it is small or was read before. */
bool sc_cache_wants(struct sc_cache *cache, const char *name, const struct sc_chain *shard);

/* Return the number of the cached index of an object that is not in a file; 0: it is not cached, or no inner chunks are. */
uint64_t sc_cache_state(struct sc_cache *cache, const char *name, const struct sc_chain *shard);

/* Return the cached index without waiting or loading; NULL if it is not cached. */
struct sc_cached_index *sc_cache_peek(struct sc_cache *cache, const char *name, const struct sc_chain *shard);

/* Keep an index that the caller has read, of an object that is not in a file. */
void sc_cache_put(struct sc_cache *cache, const char *name, const struct sc_chain *shard,
                  struct sc_cached_index *index);

/* True if the time stamps are so old that a later change of the file must have others. */
bool sc_cache_is_stable(const struct sc_cache *cache, const struct sc_file_id *file);

/* Make memory for the entries of a shard, with room for the checksums of the stored index behind them, and for notes. The caller
 * holds it. NULL: no memory. */
struct sc_cached_index *sc_cached_index_new(const struct sc_chain *shard, uint64_t n_notes);

/* Return the memory to which the stored index can be read: pairs in C order are decoded in place, so they need no
 * second memory. NULL: the index has another order and needs memory of its own. */
uint8_t *sc_cached_index_stored(struct sc_cached_index *index, const struct sc_chain *shard);

/* Decode a stored index whose checksums have been verified. If sc_index_must_be_sound(), check it and note the
 * result. */
void sc_cached_index_fill(struct sc_cached_index *index, const struct sc_chain *shard, const uint8_t *stored,
                          const struct sc_index_extent *extent);

/* Check all entries if only that can find a wrong one (sc_index_must_be_sound()). An index that passed is not checked again. */
enum sc_status sc_cached_index_check(const struct sc_cached_index *index, const struct sc_chain *shard,
                                     const struct sc_index_extent *extent, struct sc_where *where);

void sc_cached_index_release(struct sc_cached_index *index);

/* ---- files ---- */

struct sc_cached_file;

/* An open file. fd is -1 if the file does not exist. */
struct sc_opened {
    int fd;
    struct sc_file_id id; /* inode 0: missing */
    uint64_t missing_ns; /* the time of the open that has found it missing; 0: not timed */
    struct sc_cached_file *kept; /* closes fd; NULL: sc_cache_close() does */
};

/* As sc_file_open(), but through the cache if it keeps files (cache may be NULL). `trusted`: use a file that is open
 * already without a check of its name. Increments *opens and *hits. */
enum sc_status sc_cache_open(struct sc_cache *cache, const char *name, bool trusted, struct sc_opened *file,
                             uint64_t *opens, uint64_t *hits, struct sc_where *where);
void sc_cache_close(struct sc_cache *cache, struct sc_opened *file);

/* Forget all open files: one of them is stale. */
void sc_cache_drop_files(struct sc_cache *cache);

void sc_cache_get_info(struct sc_cache *cache, struct sc_cache_info *info);

#endif
