/* sc_cache.c - decoded indexes and open files between calls (see sc_cache.h)
 *
 * One mutex for each cache, held for a look-up and never during input or output.
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "base/sc_alloc.h"
#include "base/sc_fork.h"
#include "chain/sc_walk.h"
#include "plan/sc_cache_impl.h"

/* The cached knowledge about the index of one object. */
struct slot {
    struct sc_lru_node node;
    bool loading; /* one thread loads it; other threads wait */
    bool in_file;
    struct sc_file_id file;
    int ndim;
    struct sc_index_layout layout;
    struct sc_cached_index *index; /* NULL: seen once, or loading */
    uint64_t charge;
};

static pthread_mutex_t caches_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct sc_cache *caches;

/* ---- indexes that are held ---- */

struct sc_cached_index *
sc_cached_index_new(const struct sc_chain *shard, uint64_t n_notes)
{
    static _Atomic uint64_t n_indexes;
    struct sc_cached_index *index = NULL;
    uint64_t at, nbytes; /* place of the notes, before it is rounded down to eight bytes; size of all */

    if (add_fits(sizeof *index + 7, shard->index.nbytes, &at) && mul_fits(n_notes, sizeof index->notes[0], &nbytes) &&
        add_fits(at, nbytes, &nbytes) && nbytes <= SIZE_MAX)
        index = sc_calloc(1, (size_t)nbytes);
    if (index) {
        index->notes = (_Atomic uint64_t *)(void *)((uint8_t *)index + (at & ~(uint64_t)7));
        index->n_notes = n_notes;
        atomic_init(&index->n_users, 1);
        index->number = atomic_fetch_add_explicit(&n_indexes, 1, memory_order_relaxed) + 1;
        index->n_entries = shard->n_chunks;
        index->is_sound = false;
    }
    return index;
}

uint8_t *
sc_cached_index_stored(struct sc_cached_index *index, const struct sc_chain *shard)
{
    return shard->index.in_c_order ? (uint8_t *)index->entries : NULL;
}

void
sc_cached_index_fill(struct sc_cached_index *index, const struct sc_chain *shard, const uint8_t *stored,
                     const struct sc_index_extent *extent)
{
    struct sc_where ignored;

    sc_index_load(shard, stored, index->entries);
    index->is_sound = sc_index_must_be_sound(shard) && !sc_cached_index_check(index, shard, extent, &ignored);
}

enum sc_status
sc_cached_index_check(const struct sc_cached_index *index, const struct sc_chain *shard,
                      const struct sc_index_extent *extent, struct sc_where *where)
{
    if (index->is_sound || !sc_index_must_be_sound(shard))
        return SC_OK;
    return sc_index_check(index->entries, index->n_entries, extent, false, where);
}

static struct sc_cached_index *
held(struct sc_cached_index *index)
{
    atomic_fetch_add_explicit(&index->n_users, 1, memory_order_relaxed);
    return index;
}

void
sc_cached_index_release(struct sc_cached_index *index)
{
    if (index && atomic_fetch_sub_explicit(&index->n_users, 1, memory_order_acq_rel) == 1)
        sc_free(index);
}

/* ---- slots; all under the mutex ---- */

static struct slot *
slot_find(struct sc_cache *cache, const char *name)
{
    return (struct slot *)(void *)sc_lru_find(&cache->indexes, name);
}

static uint64_t
charge_of(const char *name, uint64_t n_entries)
{
    return sizeof(struct slot) + sizeof(struct sc_cached_index) + strlen(name) + 1 +
           n_entries * sizeof(struct sc_entry);
}

/* Two notes take as much memory as an entry. */
static uint64_t
n_entries_of(const struct sc_cached_index *index)
{
    return index->n_entries + (index->n_notes + 1) / 2;
}

static void
slot_empty(struct sc_cache *cache, struct slot *slot)
{
    cache->info.nbytes -= slot->charge;
    slot->charge = 0;
    sc_cached_index_release(slot->index);
    slot->index = NULL;
}

static void
slot_remove(struct sc_cache *cache, struct slot *slot)
{
    slot_empty(cache, slot);
    sc_lru_remove(&cache->indexes, &slot->node);
    sc_free(slot);
}

static void
slot_charge(struct sc_cache *cache, struct slot *slot, uint64_t n_entries)
{
    slot->charge = charge_of(slot->node.name, n_entries);
    cache->info.nbytes += slot->charge;
    for (struct sc_lru_node *node = cache->indexes.oldest, *newer; node && cache->info.nbytes > cache->info.max_nbytes;
         node = newer) {
        struct slot *old = (struct slot *)(void *)node;

        newer = node->newer;
        if (old == slot || old->loading)
            continue;
        slot_remove(cache, old);
        cache->info.evictions++;
    }
}

static bool
layouts_equal(const struct slot *slot, const struct sc_chain *shard)
{
    const struct sc_index_layout *a = &slot->layout, *b = &shard->index;

    if (slot->ndim != shard->ndim || a->pairs_nbytes != b->pairs_nbytes || a->at_start != b->at_start ||
        a->big_endian != b->big_endian || a->n_checksums != b->n_checksums || a->in_c_order != b->in_c_order)
        return false;
    return a->in_c_order || (a->half_stride == b->half_stride &&
                             !memcmp(a->strides, b->strides, (size_t)shard->ndim * sizeof *a->strides));
}

static bool
slot_fits(const struct slot *slot, const struct sc_file_id *file, const struct sc_chain *shard)
{
    if (slot->in_file != (file != NULL) || !layouts_equal(slot, shard))
        return false;
    return !file || sc_file_id_equal(&slot->file, file);
}

/* Return the slot of that name, emptied or new, for this version of the object. NULL: no memory. */
static struct slot *
slot_begin(struct sc_cache *cache, struct slot *slot, const char *name, const struct sc_file_id *file,
           const struct sc_chain *shard)
{
    if (!slot) {
        slot = sc_calloc(1, sizeof *slot);
        if (!slot)
            return NULL;
        if (!sc_lru_add(&cache->indexes, &slot->node, name)) {
            sc_free(slot);
            return NULL;
        }
    }
    slot_empty(cache, slot);
    slot->in_file = file != NULL;
    if (file)
        slot->file = *file;
    slot->ndim = shard->ndim;
    slot->layout = shard->index;
    return slot;
}

bool
sc_cache_is_stable(const struct sc_cache *cache, const struct sc_file_id *file)
{
    int64_t changed = file->mtime_ns > file->ctime_ns ? file->mtime_ns : file->ctime_ns;

    return changed <= file->seen_ns - cache->grain_ns;
}

static void
wait_a_little(struct sc_cache *cache)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += SC_POLL_NS;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_cond_timedwait(&cache->changed, &cache->mutex, &until);
}

/* ---- indexes ---- */

/* Handle a miss: the caller loads the index for the cache, or only for itself. */
static enum sc_cache_answer
begin_load(struct sc_cache *cache, struct slot *slot, const char *name, const struct sc_file_id *file,
           const struct sc_chain *shard)
{
    bool seen = slot && slot_fits(slot, file, shard);

    cache->info.misses++;
    if (!seen) {
        if (!sc_cache_is_stable(cache, file) || charge_of(name, shard->n_chunks) > cache->info.max_nbytes) {
            if (slot)
                slot_remove(cache, slot);
            return SC_CACHE_PASS;
        }
        slot = slot_begin(cache, slot, name, file, shard);
        if (!slot)
            return SC_CACHE_PASS;
        slot_charge(cache, slot, 0);
        if (shard->index.pairs_nbytes > SC_CACHE_AT_ONCE_NBYTES)
            return SC_CACHE_PASS;
    }
    slot->loading = true;
    return SC_CACHE_LOAD;
}

enum sc_cache_answer
sc_cache_get(struct sc_cache *cache, const char *name, const struct sc_file_id *file, const struct sc_chain *shard,
             struct sc_cancel *cancel, struct sc_cached_index **index)
{
    enum sc_cache_answer answer = SC_CACHE_PASS;
    bool stop = cache->info.max_nbytes == 0;

    *index = NULL;
    if (stop)
        return SC_CACHE_PASS;
    pthread_mutex_lock(&cache->mutex);
    while (!stop) {
        struct slot *slot = slot_find(cache, name);
        bool fits = slot && slot_fits(slot, file, shard);

        if (slot && slot->loading) {
            if (!fits)
                break; /* another thread loads another version of it */
            wait_a_little(cache);
            pthread_mutex_unlock(&cache->mutex);
            stop = sc_cancelled(cancel); /* this may run code of the user, so no lock is held */
            pthread_mutex_lock(&cache->mutex);
            continue;
        }
        if (fits && slot->index) {
            *index = held(slot->index);
            cache->info.hits++;
            answer = SC_CACHE_HIT;
        } else {
            answer = begin_load(cache, slot, name, file, shard);
        }
        break;
    }
    pthread_mutex_unlock(&cache->mutex);
    return answer;
}

void
sc_cache_loaded(struct sc_cache *cache, const char *name, const struct sc_file_id *file, const struct sc_chain *shard,
                struct sc_cached_index *index)
{
    struct slot *slot;

    pthread_mutex_lock(&cache->mutex);
    slot = slot_find(cache, name);
    if (slot && slot->loading && slot_fits(slot, file, shard)) { /* otherwise it was dropped meanwhile */
        slot->loading = false;
        if (index && charge_of(name, n_entries_of(index)) <= cache->info.max_nbytes) {
            slot_empty(cache, slot);
            slot->index = held(index);
            slot_charge(cache, slot, n_entries_of(index));
        } else {
            slot_remove(cache, slot);
        }
    }
    pthread_cond_broadcast(&cache->changed);
    pthread_mutex_unlock(&cache->mutex);
}

struct sc_cached_index *
sc_cache_peek(struct sc_cache *cache, const char *name, const struct sc_chain *shard)
{
    struct sc_cached_index *index = NULL;
    struct slot *slot;

    pthread_mutex_lock(&cache->mutex);
    slot = slot_find(cache, name);
    if (slot && slot->index && slot_fits(slot, NULL, shard))
        index = held(slot->index);
    *(index ? &cache->info.hits : &cache->info.misses) += 1;
    pthread_mutex_unlock(&cache->mutex);
    return index;
}

uint64_t
sc_cache_state(struct sc_cache *cache, const char *name, const struct sc_chain *shard)
{
    const struct slot *slot;
    uint64_t state;

    pthread_mutex_lock(&cache->mutex);
    slot = cache->chunks ? slot_find(cache, name) : NULL;
    state = slot && slot->index && slot_fits(slot, NULL, shard) ? slot->index->number : 0;
    pthread_mutex_unlock(&cache->mutex);
    return state;
}

bool
sc_cache_has(struct sc_cache *cache, const char *name, const struct sc_chain *shard)
{
    const struct slot *slot;
    bool has;

    pthread_mutex_lock(&cache->mutex);
    slot = slot_find(cache, name);
    has = slot && slot->index && layouts_equal(slot, shard);
    pthread_mutex_unlock(&cache->mutex);
    return has;
}

bool
sc_cache_has_chunk(struct sc_cache *cache, const char *name, const struct sc_chain *object, const struct sc_box *box)
{
    const struct sc_chain *chunk = sc_chain_is_shard(object) ? object->inner : object;
    struct sc_chunk_key key = { 0, chunk->number, 0 };
    const struct slot *slot;

    if (!cache->chunks || sc_touched_nbytes(object, box) > chunk->nbytes)
        return false;
    for (int a = 0; chunk != object && a < object->ndim; a++)
        key.position += box->start[object->perm[a]] / chunk->shape[a] * object->grid_strides[a];
    pthread_mutex_lock(&cache->mutex);
    slot = slot_find(cache, name);
    key.state = slot && slot->index && layouts_equal(slot, object) ? slot->index->number : 0;
    pthread_mutex_unlock(&cache->mutex);
    return key.state && sc_chunks_has(cache->chunks, &key);
}

bool
sc_cache_wants(struct sc_cache *cache, const char *name, const struct sc_chain *shard)
{
    const struct slot *slot;
    bool wants;

    if (charge_of(name, shard->n_chunks) > cache->info.max_nbytes)
        return false;
    pthread_mutex_lock(&cache->mutex);
    slot = slot_find(cache, name);
    if (slot && layouts_equal(slot, shard))
        wants = !slot->index;
    else
        wants = shard->index.pairs_nbytes <= SC_CACHE_AT_ONCE_NBYTES;
    pthread_mutex_unlock(&cache->mutex);
    return wants;
}

/* True if the slot has the same index already: it keeps its number, under which inner chunks may be kept. */
static bool
has_entries(const struct slot *slot, const struct sc_chain *shard, const struct sc_cached_index *index)
{
    return slot && slot->index && slot_fits(slot, NULL, shard) && slot->index->n_entries == index->n_entries &&
           !memcmp(slot->index->entries, index->entries, (size_t)index->n_entries * sizeof index->entries[0]);
}

void
sc_cache_put(struct sc_cache *cache, const char *name, const struct sc_chain *shard, struct sc_cached_index *index)
{
    struct slot *slot;

    if (charge_of(name, index->n_entries) > cache->info.max_nbytes)
        return;
    pthread_mutex_lock(&cache->mutex);
    slot = slot_find(cache, name);
    if ((!slot || !slot->loading) && !has_entries(slot, shard, index)) {
        slot = slot_begin(cache, slot, name, NULL, shard);
        if (slot) {
            slot->index = held(index);
            slot_charge(cache, slot, index->n_entries);
        }
    }
    pthread_mutex_unlock(&cache->mutex);
}

/* ---- the cache ---- */

void
sc_cache_clear(struct sc_cache *cache)
{
    struct sc_cached_file *unused;

    pthread_mutex_lock(&cache->mutex);
    while (cache->indexes.oldest)
        slot_remove(cache, (struct slot *)(void *)cache->indexes.oldest);
    unused = sc_cache_files_remove(cache);
    pthread_cond_broadcast(&cache->changed);
    pthread_mutex_unlock(&cache->mutex);
    sc_cached_files_close(unused);
    if (cache->chunks)
        sc_chunks_clear(cache->chunks);
}

struct sc_chunks *
sc_cache_chunks(const struct sc_cache *cache)
{
    return cache ? cache->chunks : NULL;
}

void
sc_cache_drop(struct sc_cache *cache, const char *name)
{
    struct sc_cached_file *unused;
    struct slot *slot;

    pthread_mutex_lock(&cache->mutex);
    slot = slot_find(cache, name);
    if (slot)
        slot_remove(cache, slot);
    unused = sc_cache_file_remove(cache, name);
    pthread_cond_broadcast(&cache->changed);
    pthread_mutex_unlock(&cache->mutex);
    sc_cached_files_close(unused);
}

void
sc_cache_get_info(struct sc_cache *cache, struct sc_cache_info *info)
{
    pthread_mutex_lock(&cache->mutex);
    *info = cache->info;
    info->n_indexes = cache->indexes.n_nodes;
    info->n_files = cache->files.n_nodes;
    pthread_mutex_unlock(&cache->mutex);
    sc_chunks_get_info(cache->chunks, &info->chunks);
}

struct sc_cache *
sc_cache_new(uint64_t max_nbytes, uint64_t max_files, uint64_t max_chunks_nbytes, int64_t grain_ns)
{
    struct sc_cache *cache = sc_calloc(1, sizeof *cache);

    if (!cache)
        return NULL;
    if (max_chunks_nbytes && !(cache->chunks = sc_chunks_new(max_chunks_nbytes))) {
        sc_free(cache);
        return NULL;
    }
    cache->info.max_nbytes = max_nbytes;
    cache->info.max_files = max_files;
    cache->grain_ns = grain_ns;
    pthread_mutex_init(&cache->mutex, NULL);
    pthread_cond_init(&cache->changed, NULL);
    pthread_mutex_lock(&caches_mutex);
    cache->link = &caches;
    cache->next = caches;
    if (caches)
        caches->link = &cache->next;
    caches = cache;
    pthread_mutex_unlock(&caches_mutex);
    return cache;
}

void
sc_cache_free(struct sc_cache *cache)
{
    if (!cache)
        return;
    pthread_mutex_lock(&caches_mutex);
    *cache->link = cache->next;
    if (cache->next)
        cache->next->link = cache->link;
    pthread_mutex_unlock(&caches_mutex);
    sc_cache_clear(cache);
    sc_lru_reset(&cache->indexes);
    sc_lru_reset(&cache->files);
    sc_chunks_free(cache->chunks);
    pthread_cond_destroy(&cache->changed);
    pthread_mutex_destroy(&cache->mutex);
    sc_free(cache);
}

/* ---- fork ---- */

static void
before_fork(void)
{
    pthread_mutex_lock(&caches_mutex);
    for (struct sc_cache *cache = caches; cache; cache = cache->next) {
        pthread_mutex_lock(&cache->mutex);
        sc_chunks_lock(cache->chunks);
    }
}

static void
after_fork_in_parent(void)
{
    for (struct sc_cache *cache = caches; cache; cache = cache->next) {
        sc_chunks_unlock(cache->chunks);
        pthread_mutex_unlock(&cache->mutex);
    }
    pthread_mutex_unlock(&caches_mutex);
}

/* The child starts with an empty cache: it has no other threads, so none is loading. Memory that they used stays
 * allocated. */
static void
after_fork_in_child(void)
{
    pthread_mutex_init(&caches_mutex, NULL);
    for (struct sc_cache *cache = caches; cache; cache = cache->next) {
        pthread_mutex_init(&cache->mutex, NULL);
        pthread_cond_init(&cache->changed, NULL);
        sc_chunks_renew(cache->chunks);
        sc_cache_files_disown(cache);
        sc_cache_clear(cache);
        cache->info =
            (struct sc_cache_info){ .max_nbytes = cache->info.max_nbytes, .max_files = cache->info.max_files };
    }
}

enum sc_status
sc_cache_init(void)
{
    return sc_fork_handlers(before_fork, after_fork_in_parent, after_fork_in_child);
}
