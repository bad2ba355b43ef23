/* sc_chunks.c - decoded inner chunks that readers keep between calls (see sc_chunks.h)
 * SPDX-License-Identifier: MIT */
#include "plan/sc_chunks.h"

#include <pthread.h>
#include <sched.h>

#include "base/sc_alloc.h"
#include "base/sc_visits.h"

/* So much memory for each part, and at most so many parts: in smaller ones chance would fill some more than others. */
#define PART_NBYTES ((uint64_t)512 << 20)
#define MAX_PARTS 16u

#define MIN_BUCKETS 64u

/* A part frees its unused entries when it has this many. */
#define MAX_UNUSED 128u

/* Attempts to free them when the cache is cleared. */
#define MAX_TRIES 100

/* The share of the queue of new chunks, and the limit of what a chunk's uses count. */
#define NEW_SHARE 10
#define MAX_USES 3

enum queue_name { QUEUE_NEW, QUEUE_MAIN, QUEUE_GHOSTS, N_QUEUES, LOADING };

/* At most so many nodes a look-up without the mutex visits: nodes that are used again meanwhile might lead it in a circle. */
#define MAX_STEPS 64u

/* What look-ups without the mutex read is atomic, or does not change. */
struct node {
    _Atomic(struct node *) next[2];        /* in its bucket of the table of this parity */
    _Atomic(struct sc_kept_chunk *) chunk; /* NULL: a ghost */
    _Atomic uint64_t hash;
    atomic_uint uses;
    struct node *newer, *older; /* in its queue; older: also among the unused ones */
    struct sc_chunk_key key;
    uint64_t nbytes; /* what the chunk costs with everything around it */
    enum queue_name queue;
    bool returns; /* loading: it was a ghost */
};

/* What a node needs, with its places in a table and what the allocator takes; and a chunk beside its elements. Large elements are
 * mapped in whole pages. */
#define NODE_NBYTES (sizeof(struct node) + 4 * sizeof(void *) + 16)
#define CHUNK_NBYTES (sizeof(struct sc_kept_chunk) + 2 * SC_ALIGNMENT + 2 * 16)
#define MAPPED_NBYTES ((uint64_t)128 << 10)
#define PAGE_NBYTES 4096

struct table {
    struct table *older; /* the one before, which look-ups may still use */
    size_t n_buckets;    /* a power of two */
    unsigned parity; /* not that of `older`, whose chains stay as they are while this one is made */
    _Atomic(struct node *) buckets[];
};

struct queue {
    struct node *newest, *oldest;
    uint64_t nbytes; /* of the chunks; of ghosts: what they had */
};

struct part {
    struct sc_visits look_ups;
    pthread_mutex_t mutex;
    pthread_cond_t loaded;
    _Atomic(struct table *) table;
    size_t n_nodes;
    struct node *unused_nodes;
    size_t n_unused_nodes;
    struct sc_kept_pool pool;
    struct queue queues[N_QUEUES];
    struct sc_chunks_info info;
};

struct sc_chunks {
    unsigned n_parts;
    struct part parts[];
};

static _Atomic uint64_t total;

/* ---- the table of a part; what changes it, under its mutex ---- */

static uint64_t
hash_of(const struct sc_chunk_key *key)
{
    uint64_t h = key->state * 0x9e3779b97f4a7c15u ^ key->chain * 0xc2b2ae3d27d4eb4fu ^ key->position;

    h = (h ^ (h >> 32)) * 0xd6e8feb86659fd93u;
    h = (h ^ (h >> 32)) * 0xd6e8feb86659fd93u;
    return h ^ (h >> 32);
}

static struct part *
part_of(struct sc_chunks *chunks, uint64_t hash)
{
    return &chunks->parts[(hash >> 48) % chunks->n_parts];
}

static _Atomic(struct node *) *
bucket_of(struct table *table, uint64_t hash)
{
    return &table->buckets[hash & (table->n_buckets - 1)];
}

static _Atomic(struct node *) *
place_of(struct part *part, const struct sc_chunk_key *key, uint64_t hash)
{
    struct table *table = part->table;
    _Atomic(struct node *) *place = bucket_of(table, hash);

    for (struct node *node; (node = *place) != NULL && memcmp(&node->key, key, sizeof *key) != 0;)
        place = &node->next[table->parity];
    return place;
}

static struct node *
node_of(struct part *part, const struct sc_chunk_key *key, uint64_t hash)
{
    return *place_of(part, key, hash);
}

static void
enter(struct table *table, struct node *node)
{
    _Atomic(struct node *) *bucket = bucket_of(table, node->hash);

    node->next[table->parity] = *bucket;
    *bucket = node;
}

static struct table *
new_table(size_t n_buckets)
{
    struct table *table = sc_calloc(1, sizeof *table + n_buckets * sizeof table->buckets[0]);

    if (table)
        table->n_buckets = n_buckets;
    return table;
}

static void
resize(struct part *part, size_t n_buckets)
{
    struct table *older = part->table, *table = new_table(n_buckets);

    if (!table)
        return; /* longer chains */
    table->older = older;
    table->parity = !older->parity;
    for (size_t i = 0; i < older->n_buckets; i++) {
        for (struct node *node = older->buckets[i], *next; node; node = next) {
            next = node->next[older->parity];
            enter(table, node);
        }
    }
    part->table = table;
}

static uint64_t
charge_of(uint64_t nbytes)
{
    return nbytes + (nbytes < MAPPED_NBYTES ? 0 : PAGE_NBYTES) + NODE_NBYTES + CHUNK_NBYTES;
}

static void
charge(struct part *part, uint64_t nbytes)
{
    part->info.nbytes += nbytes;
    atomic_fetch_add_explicit(&total, nbytes, memory_order_relaxed);
}

static void
discharge(struct part *part, uint64_t nbytes)
{
    part->info.nbytes -= nbytes;
    atomic_fetch_sub_explicit(&total, nbytes, memory_order_relaxed);
}

static struct node *
add_node(struct part *part, const struct sc_chunk_key *key, uint64_t hash, uint64_t nbytes)
{
    struct node *node = part->unused_nodes;

    if (node) {
        part->unused_nodes = node->older;
        part->n_unused_nodes--;
    } else if (!(node = sc_calloc(1, sizeof *node))) {
        return NULL;
    }
    if (part->n_nodes >= part->table->n_buckets)
        resize(part, part->table->n_buckets * 2);
    node->hash = hash;
    node->uses = 0;
    node->key = *key;
    node->nbytes = charge_of(nbytes);
    enter(part->table, node);
    part->n_nodes++;
    return node;
}

static void
remove_node(struct part *part, struct node *node)
{
    struct table *table = part->table;

    *place_of(part, &node->key, node->hash) = node->next[table->parity];
    node->chunk = NULL;
    part->n_nodes--;
    node->older = part->unused_nodes;
    part->unused_nodes = node;
    part->n_unused_nodes++;
}

static void
free_unused(struct part *part)
{
    while (part->table && part->table->older) {
        struct table *older = part->table->older;

        part->table->older = older->older;
        sc_free(older);
    }
    while (part->unused_nodes) {
        struct node *node = part->unused_nodes;

        part->unused_nodes = node->older;
        sc_free(node);
    }
    part->n_unused_nodes = 0;
    sc_kept_pool_free(&part->pool);
}

/* Free unused entries if there are `least` or more, and old tables. False: a look-up goes on, so a later call frees them. */
static bool
trim(struct part *part, size_t least)
{
    size_t n_buckets = part->table->n_buckets;

    if (part->n_unused_nodes + part->pool.n_unused < least && !part->table->older)
        return true;
    while (n_buckets > MIN_BUCKETS && n_buckets / 4 > part->n_nodes)
        n_buckets /= 2;
    if (n_buckets < part->table->n_buckets)
        resize(part, n_buckets);
    if (!sc_visits_none(&part->look_ups))
        return false;
    free_unused(part);
    return true;
}

/* ---- queues; under the mutex ---- */

static void
join(struct part *part, struct node *node, enum queue_name name)
{
    struct queue *queue = &part->queues[name];

    node->queue = name;
    node->newer = NULL;
    node->older = queue->newest;
    *(queue->newest ? &queue->newest->newer : &queue->oldest) = node;
    queue->newest = node;
    queue->nbytes += node->nbytes;
}

static void
leave(struct part *part, struct node *node)
{
    struct queue *queue = &part->queues[node->queue];

    *(node->newer ? &node->newer->older : &queue->newest) = node->older;
    *(node->older ? &node->older->newer : &queue->oldest) = node->newer;
    queue->nbytes -= node->nbytes;
}

/* Forget the oldest key without elements. False: there is none. */
static bool
forget_ghost(struct part *part)
{
    struct node *oldest = part->queues[QUEUE_GHOSTS].oldest;

    if (!oldest)
        return false;
    leave(part, oldest);
    discharge(part, NODE_NBYTES);
    remove_node(part, oldest);
    return true;
}

/* Remember a key without elements, and forget the oldest such keys: they may stand for as much memory as the chunks have. */
static void
join_ghosts(struct part *part, struct node *node)
{
    struct queue *ghosts = &part->queues[QUEUE_GHOSTS];

    charge(part, NODE_NBYTES);
    join(part, node, QUEUE_GHOSTS);
    while (ghosts->nbytes > part->info.max_nbytes && ghosts->oldest != node)
        (void)forget_ghost(part);
}

/* Return the oldest chunk of the queue that gives memory back; NULL: there is none. */
static struct node *
oldest_of(const struct part *part)
{
    const struct queue *new = &part->queues[QUEUE_NEW], *main = &part->queues[QUEUE_MAIN];
    bool from_new = new->oldest && (new->nbytes > part->info.max_nbytes / NEW_SHARE || !main->oldest);

    return from_new ? new->oldest : main->oldest;
}

/* Return the chunk to evict next; NULL: there is none. Chunks that were used meanwhile go to the end of the main queue, each about
 * MAX_USES times. Look-ups of other threads count uses at the same time, so the number of steps is limited. */
static struct node *
next_victim(struct part *part)
{
    uint64_t left = (MAX_USES + 1) * part->info.n_chunks;
    struct node *node;

    while ((node = oldest_of(part)) != NULL && node->uses && left--) {
        leave(part, node);
        node->uses = node->queue == QUEUE_NEW ? 0 : node->uses - 1;
        join(part, node, QUEUE_MAIN);
    }
    return node;
}

/* Return the memory of unused entries, `n_listed` of which will be in the pool. */
static uint64_t
unused_nbytes(const struct part *part, uint64_t n_listed)
{
    return part->n_unused_nodes * NODE_NBYTES + (part->pool.n_unused + n_listed) * CHUNK_NBYTES;
}

/* Evict chunks, and then forget keys, until so many bytes fit beside unused entries that cannot be freed yet; the list of unused
 * memory grows. False: chunks that are being loaded take too much. */
static bool
make_room(struct part *part, uint64_t nbytes, struct sc_kept_chunk **unused)
{
    uint64_t n_listed = 0;

    while (part->info.nbytes + unused_nbytes(part, n_listed) + nbytes > part->info.max_nbytes) {
        struct node *node = next_victim(part);
        struct sc_kept_chunk *chunk;
        bool was_new;

        if (!node && forget_ghost(part))
            continue;
        if (!node) {
            sc_kept_chunks_give_back(*unused);
            *unused = NULL;
            n_listed = 0;
            if (part->n_unused_nodes + part->pool.n_unused == 0 || !trim(part, 1))
                return false;
            continue;
        }
        was_new = node->queue == QUEUE_NEW;
        leave(part, node);
        discharge(part, node->nbytes);
        part->info.n_chunks--;
        part->info.evictions++;
        chunk = node->chunk;
        node->chunk = NULL;
        sc_kept_chunk_release_to(chunk, unused);
        n_listed++;
        if (was_new)
            join_ghosts(part, node);
        else
            remove_node(part, node);
    }
    return true;
}

/* ---- chunks ---- */

static void
count_use(struct node *node)
{
    if (node->uses < MAX_USES)
        node->uses++; /* threads that count at the same time may exceed the limit by their number */
}

/* Return a chunk, held, and its node; NULL: it is not there, or moves at this moment. Takes no lock. */
static struct sc_kept_chunk *
look_up(struct part *part, const struct sc_chunk_key *key, uint64_t hash, struct node **node)
{
    struct table *table = part->table;
    _Atomic(struct node *) *place = bucket_of(table, hash);

    for (unsigned i = 0; i < MAX_STEPS && (*node = *place) != NULL; i++) {
        struct sc_kept_chunk *chunk = (*node)->hash == hash ? (*node)->chunk : NULL;

        if (chunk && (chunk = sc_kept_chunk_hold(chunk, key)) != NULL)
            return chunk;
        place = &(*node)->next[table->parity];
    }
    return NULL;
}

/* Do as look_up; also count the use if it is one. */
static struct sc_kept_chunk *
visit(struct sc_chunks *chunks, const struct sc_chunk_key *key, bool is_use)
{
    uint64_t hash = hash_of(key);
    struct part *part = part_of(chunks, hash);
    atomic_uint *line = sc_visit_begin(&part->look_ups);
    struct node *node;
    struct sc_kept_chunk *chunk = look_up(part, key, hash, &node);

    if (chunk && is_use)
        count_use(node);
    sc_visit_end(line);
    return chunk;
}

struct sc_kept_chunk *
sc_chunks_find(struct sc_chunks *chunks, const struct sc_chunk_key *key)
{
    return visit(chunks, key, true);
}

bool
sc_chunks_has(struct sc_chunks *chunks, const struct sc_chunk_key *key)
{
    struct sc_kept_chunk *chunk = visit(chunks, key, false);

    sc_kept_chunk_release(chunk);
    return chunk != NULL;
}

/* Take a ghost out of its queue, or make a node, for a chunk that will be loaded; make room for it. NULL: it is not kept. */
static struct node *
begin_load(struct part *part, struct node *node, const struct sc_chunk_key *key, uint64_t hash, uint64_t nbytes,
           struct sc_kept_chunk **unused)
{
    bool returns = node != NULL;

    if (returns) {
        leave(part, node);
        discharge(part, NODE_NBYTES);
    } else if (!(node = add_node(part, key, hash, nbytes))) {
        return NULL;
    }
    node->queue = LOADING; /* also, so that it is not forgotten while room is made */
    node->returns = returns;
    if (!make_room(part, node->nbytes, unused)) {
        remove_node(part, node);
        return NULL;
    }
    charge(part, node->nbytes);
    return node;
}

static enum sc_cache_answer
claim(struct part *part, const struct sc_chunk_key *key, uint64_t hash, uint64_t nbytes, bool at_once,
      struct sc_kept_chunk **chunk, struct sc_kept_chunk **unused)
{
    struct node *node = node_of(part, key, hash);

    if (node && node->chunk) { /* under the mutex it stays there */
        *chunk = sc_kept_chunk_hold(node->chunk, key);
        count_use(node);
        return SC_CACHE_HIT;
    }
    if (charge_of(nbytes) > part->info.max_nbytes)
        return SC_CACHE_PASS;
    if (!node && !at_once) {
        if (make_room(part, NODE_NBYTES, unused) && (node = add_node(part, key, hash, nbytes)) != NULL)
            join_ghosts(part, node);
        return SC_CACHE_PASS;
    }
    node = begin_load(part, node, key, hash, nbytes, unused);
    if (!node)
        return SC_CACHE_PASS;
    *chunk = sc_kept_chunk_new(&part->pool, unused, key, nbytes);
    if (!*chunk) {
        discharge(part, node->nbytes);
        remove_node(part, node);
        return SC_CACHE_PASS;
    }
    node->chunk = *chunk;
    return SC_CACHE_LOAD;
}

enum sc_cache_answer
sc_chunks_claim(struct sc_chunks *chunks, const struct sc_chunk_key *key, uint64_t nbytes, bool at_once,
                struct sc_kept_chunk **chunk, uint64_t *evictions)
{
    uint64_t hash = hash_of(key);
    struct part *part = part_of(chunks, hash);
    struct sc_kept_chunk *unused = NULL;
    enum sc_cache_answer answer;
    const struct node *node;

    *chunk = NULL;
    pthread_mutex_lock(&part->mutex);
    (void)trim(part, MAX_UNUSED);
    while ((node = node_of(part, key, hash)) != NULL && node->queue == LOADING)
        pthread_cond_wait(&part->loaded, &part->mutex);
    *evictions -= part->info.evictions;
    answer = claim(part, key, hash, nbytes, at_once, chunk, &unused);
    *evictions += part->info.evictions;
    pthread_mutex_unlock(&part->mutex);
    sc_kept_chunks_give_back(unused);
    if (part->pool.n_unused >= MAX_UNUSED) {
        pthread_mutex_lock(&part->mutex);
        (void)trim(part, MAX_UNUSED);
        pthread_mutex_unlock(&part->mutex);
    }
    return answer;
}

void
sc_chunks_loaded(struct sc_chunks *chunks, const struct sc_chunk_key *key, struct sc_kept_chunk *chunk, bool is_loaded)
{
    uint64_t hash = hash_of(key);
    struct part *part = part_of(chunks, hash);
    struct sc_kept_chunk *unused = NULL;
    struct node *node;

    pthread_mutex_lock(&part->mutex);
    node = node_of(part, key, hash);
    if (node && node->queue == LOADING && node->chunk == chunk) { /* otherwise all chunks were forgotten meanwhile */
        if (is_loaded) {
            chunk->is_loaded = true;
            join(part, node, node->returns ? QUEUE_MAIN : QUEUE_NEW);
            part->info.n_chunks++;
        } else {
            unused = chunk;
            discharge(part, node->nbytes);
            remove_node(part, node);
        }
    }
    pthread_cond_broadcast(&part->loaded);
    pthread_mutex_unlock(&part->mutex);
    sc_kept_chunk_release(unused);
}

/* ---- the cache ---- */

static void
init_part(struct part *part)
{
    pthread_mutex_init(&part->mutex, NULL);
    pthread_cond_init(&part->loaded, NULL);
}

/* Forget all chunks. */
static void
clear_part(struct part *part)
{
    struct table *table = part->table;

    for (size_t i = 0; table && i < table->n_buckets; i++) {
        for (struct node *node; (node = table->buckets[i]) != NULL;) {
            struct sc_kept_chunk *chunk = node->chunk;

            remove_node(part, node);
            sc_kept_chunk_release(chunk);
        }
    }
    memset(part->queues, 0, sizeof part->queues);
    discharge(part, part->info.nbytes);
    part->info.n_chunks = 0;
}

struct sc_chunks *
sc_chunks_new(uint64_t max_nbytes)
{
    uint64_t n = max_nbytes / PART_NBYTES;
    unsigned n_parts = n < 1 ? 1 : n < MAX_PARTS ? (unsigned)n : MAX_PARTS;
    size_t nbytes = sizeof(struct sc_chunks) + n_parts * sizeof(struct part);
    struct sc_chunks *chunks = sc_aligned_alloc(SC_ALIGNMENT, nbytes);

    if (!chunks)
        return NULL;
    memset(chunks, 0, nbytes);
    for (; chunks->n_parts < n_parts; chunks->n_parts++) {
        struct part *part = &chunks->parts[chunks->n_parts];

        part->table = new_table(MIN_BUCKETS);
        if (!part->table) {
            sc_chunks_free(chunks);
            return NULL;
        }
        part->info.max_nbytes = max_nbytes / n_parts;
        init_part(part);
    }
    return chunks;
}

void
sc_chunks_clear(struct sc_chunks *chunks)
{
    for (unsigned i = 0; i < chunks->n_parts; i++) {
        struct part *part = &chunks->parts[i];
        bool is_trimmed;

        pthread_mutex_lock(&part->mutex);
        clear_part(part);
        is_trimmed = trim(part, 1);
        pthread_cond_broadcast(&part->loaded);
        pthread_mutex_unlock(&part->mutex);
        for (int tries = 0; !is_trimmed && tries < MAX_TRIES; tries++) {
            sched_yield();
            pthread_mutex_lock(&part->mutex);
            is_trimmed = trim(part, 1);
            pthread_mutex_unlock(&part->mutex);
        }
    }
}

void
sc_chunks_free(struct sc_chunks *chunks)
{
    for (unsigned i = 0; chunks && i < chunks->n_parts; i++) {
        struct part *part = &chunks->parts[i];

        clear_part(part);
        free_unused(part);
        sc_free(part->table);
        pthread_cond_destroy(&part->loaded);
        pthread_mutex_destroy(&part->mutex);
    }
    sc_free(chunks);
}

void
sc_chunks_get_info(struct sc_chunks *chunks, struct sc_chunks_info *info)
{
    *info = (struct sc_chunks_info){ 0 };
    for (unsigned i = 0; chunks && i < chunks->n_parts; i++) {
        struct part *part = &chunks->parts[i];

        pthread_mutex_lock(&part->mutex);
        info->max_nbytes += part->info.max_nbytes;
        info->nbytes += part->info.nbytes;
        info->n_chunks += part->info.n_chunks;
        info->evictions += part->info.evictions;
        pthread_mutex_unlock(&part->mutex);
    }
}

uint64_t
sc_chunks_total(void)
{
    return atomic_load_explicit(&total, memory_order_relaxed);
}

/* ---- fork ---- */

void
sc_chunks_lock(struct sc_chunks *chunks)
{
    for (unsigned i = 0; chunks && i < chunks->n_parts; i++)
        pthread_mutex_lock(&chunks->parts[i].mutex);
}

void
sc_chunks_unlock(struct sc_chunks *chunks)
{
    for (unsigned i = 0; chunks && i < chunks->n_parts; i++)
        pthread_mutex_unlock(&chunks->parts[i].mutex);
}

void
sc_chunks_renew(struct sc_chunks *chunks)
{
    for (unsigned i = 0; chunks && i < chunks->n_parts; i++) {
        struct part *part = &chunks->parts[i];

        init_part(part);
        memset(&part->look_ups, 0, sizeof part->look_ups);
        sc_kept_pool_renew(&part->pool);
        clear_part(part);
        part->info.evictions = 0;
    }
}
