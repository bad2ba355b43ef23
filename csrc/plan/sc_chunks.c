/* sc_chunks.c - decoded inner chunks that readers keep between calls (see sc_chunks.h)
 * SPDX-License-Identifier: MIT */
#include "plan/sc_chunks.h"

#include <pthread.h>

#include "base/sc_alloc.h"

/* So much memory for each part, and at most so many parts: in smaller ones chance would fill some more than others. */
#define PART_NBYTES ((uint64_t)512 << 20)
#define MAX_PARTS 16u

#define MIN_BUCKETS 64u

/* The share of the queue of new chunks, and the limit of what a chunk's uses count. */
#define NEW_SHARE 10
#define MAX_USES 3

enum queue_name { QUEUE_NEW, QUEUE_MAIN, QUEUE_GHOSTS, N_QUEUES, LOADING };

struct node {
    struct node *next;          /* in its bucket */
    struct node *newer, *older; /* in its queue */
    struct sc_chunk_key key;
    uint64_t hash;
    uint64_t nbytes;             /* what the chunk costs with everything around it */
    struct sc_kept_chunk *chunk; /* NULL: a ghost */
    enum queue_name queue;
    bool returns; /* loading: it was a ghost */
    unsigned uses;
};

struct queue {
    struct node *newest, *oldest;
    uint64_t nbytes; /* of the chunks; of ghosts: what they had */
};

struct part {
    pthread_mutex_t mutex;
    pthread_cond_t loaded;
    struct node **buckets; /* a power of two of them */
    size_t n_buckets, n_nodes;
    struct queue queues[N_QUEUES];
    struct sc_chunks_info info;
};

struct sc_chunks {
    unsigned n_parts;
    struct part parts[];
};

static _Atomic uint64_t total;

/* ---- the table of a part; under its mutex ---- */

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

static struct node **
place_of(const struct part *part, const struct sc_chunk_key *key, uint64_t hash)
{
    struct node **place = &part->buckets[hash & (part->n_buckets - 1)];

    while (*place && memcmp(&(*place)->key, key, sizeof *key) != 0)
        place = &(*place)->next;
    return place;
}

static void
grow(struct part *part)
{
    size_t n = part->n_buckets * 2;
    struct node **buckets = sc_calloc(n, sizeof(struct node *));

    if (!buckets)
        return; /* longer chains */
    for (size_t i = 0; i < part->n_buckets; i++) {
        for (struct node *node = part->buckets[i], *next; node; node = next) {
            struct node **place = &buckets[node->hash & (n - 1)];

            next = node->next;
            node->next = *place;
            *place = node;
        }
    }
    sc_free(part->buckets);
    part->buckets = buckets;
    part->n_buckets = n;
}

static uint64_t
charge_of(uint64_t nbytes)
{
    return nbytes + sizeof(struct sc_kept_chunk) + sizeof(struct node);
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
    struct node *node = sc_calloc(1, sizeof *node), **bucket;

    if (!node)
        return NULL;
    if (part->n_nodes >= part->n_buckets)
        grow(part);
    bucket = &part->buckets[hash & (part->n_buckets - 1)];
    node->key = *key;
    node->hash = hash;
    node->nbytes = charge_of(nbytes);
    node->next = *bucket;
    *bucket = node;
    part->n_nodes++;
    return node;
}

static void
remove_node(struct part *part, struct node *node)
{
    *place_of(part, &node->key, node->hash) = node->next;
    part->n_nodes--;
    sc_free(node);
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
    discharge(part, sizeof *oldest);
    remove_node(part, oldest);
    return true;
}

/* Remember a key without elements, and forget the oldest such keys: they may stand for as much memory as the chunks have. */
static void
join_ghosts(struct part *part, struct node *node)
{
    struct queue *ghosts = &part->queues[QUEUE_GHOSTS];

    charge(part, sizeof *node);
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

/* Return the chunk to evict next; NULL: there is none. Chunks that were used meanwhile go to the end of the main queue, each at most
 * MAX_USES times. */
static struct node *
next_victim(struct part *part)
{
    struct node *node;

    while ((node = oldest_of(part)) != NULL && node->uses) {
        leave(part, node);
        node->uses = node->queue == QUEUE_NEW ? 0 : node->uses - 1;
        join(part, node, QUEUE_MAIN);
    }
    return node;
}

/* Evict chunks, and then forget keys, until so many bytes fit; the list of unused memory grows. False: chunks that are being loaded
 * take too much. */
static bool
make_room(struct part *part, uint64_t nbytes, struct sc_kept_chunk **unused)
{
    while (part->info.nbytes + nbytes > part->info.max_nbytes) {
        struct node *node = next_victim(part);
        bool was_new;

        if (!node && forget_ghost(part))
            continue;
        if (!node)
            return false;
        was_new = node->queue == QUEUE_NEW;
        leave(part, node);
        discharge(part, node->nbytes);
        part->info.n_chunks--;
        part->info.evictions++;
        if (atomic_fetch_sub_explicit(&node->chunk->n_users, 1, memory_order_acq_rel) == 1) {
            node->chunk->next = *unused;
            *unused = node->chunk;
        }
        node->chunk = NULL;
        if (was_new)
            join_ghosts(part, node);
        else
            remove_node(part, node);
    }
    return true;
}

/* ---- memory of chunks ---- */

static struct sc_kept_chunk *
new_chunk(uint64_t nbytes)
{
    uint64_t n = nbytes + sizeof(struct sc_kept_chunk);
    struct sc_kept_chunk *chunk = n <= SIZE_MAX - SC_ALIGNMENT ? sc_aligned_alloc(SC_ALIGNMENT, (size_t)n) : NULL;

    if (chunk)
        chunk->nbytes = nbytes;
    return chunk;
}

/* Take one of this size from a list: most chunks of an array are of one size, and new memory would have to be mapped. */
static struct sc_kept_chunk *
take_unused(struct sc_kept_chunk **unused, uint64_t nbytes)
{
    for (struct sc_kept_chunk **place = unused, *chunk; (chunk = *place) != NULL; place = &chunk->next) {
        if (chunk->nbytes == nbytes) {
            *place = chunk->next;
            return chunk;
        }
    }
    return NULL;
}

static void
free_list(struct sc_kept_chunk *chunk)
{
    while (chunk) {
        struct sc_kept_chunk *next = chunk->next;

        sc_free(chunk);
        chunk = next;
    }
}

void
sc_kept_chunk_release(struct sc_kept_chunk *chunk)
{
    if (chunk && atomic_fetch_sub_explicit(&chunk->n_users, 1, memory_order_acq_rel) == 1)
        sc_free(chunk);
}

/* ---- chunks ---- */

static struct sc_kept_chunk *
hold(struct node *node)
{
    node->uses += node->uses < MAX_USES;
    atomic_fetch_add_explicit(&node->chunk->n_users, 1, memory_order_relaxed);
    return node->chunk;
}

static bool
is_there(const struct node *node)
{
    return node && (node->queue == QUEUE_NEW || node->queue == QUEUE_MAIN);
}

struct sc_kept_chunk *
sc_chunks_find(struct sc_chunks *chunks, const struct sc_chunk_key *key)
{
    uint64_t hash = hash_of(key);
    struct part *part = part_of(chunks, hash);
    struct sc_kept_chunk *chunk = NULL;
    struct node *node;

    pthread_mutex_lock(&part->mutex);
    node = *place_of(part, key, hash);
    if (is_there(node))
        chunk = hold(node);
    *(chunk ? &part->info.hits : &part->info.misses) += 1;
    pthread_mutex_unlock(&part->mutex);
    return chunk;
}

bool
sc_chunks_has(struct sc_chunks *chunks, const struct sc_chunk_key *key)
{
    uint64_t hash = hash_of(key);
    struct part *part = part_of(chunks, hash);
    bool has;

    pthread_mutex_lock(&part->mutex);
    has = is_there(*place_of(part, key, hash));
    pthread_mutex_unlock(&part->mutex);
    return has;
}

/* Take a ghost out of its queue, or make a node, for a chunk that will be loaded; make room for it. NULL: it is not kept. */
static struct node *
begin_load(struct part *part, struct node *node, const struct sc_chunk_key *key, uint64_t hash, uint64_t nbytes,
           struct sc_kept_chunk **unused)
{
    bool returns = node != NULL;

    if (returns) {
        leave(part, node);
        discharge(part, sizeof *node);
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
    struct node *node = *place_of(part, key, hash);

    if (is_there(node)) {
        *chunk = hold(node);
        return SC_CACHE_HIT;
    }
    if (charge_of(nbytes) > part->info.max_nbytes)
        return SC_CACHE_PASS;
    if (!node && !at_once) {
        if (make_room(part, sizeof *node, unused) && (node = add_node(part, key, hash, nbytes)) != NULL)
            join_ghosts(part, node);
        return SC_CACHE_PASS;
    }
    node = begin_load(part, node, key, hash, nbytes, unused);
    if (!node)
        return SC_CACHE_PASS;
    *chunk = take_unused(unused, nbytes);
    if (!*chunk)
        *chunk = new_chunk(nbytes);
    if (!*chunk) {
        discharge(part, node->nbytes);
        remove_node(part, node);
        return SC_CACHE_PASS;
    }
    atomic_init(&(*chunk)->n_users, 2); /* the table, and the caller */
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
    while ((node = *place_of(part, key, hash)) != NULL && node->queue == LOADING)
        pthread_cond_wait(&part->loaded, &part->mutex);
    *evictions -= part->info.evictions;
    answer = claim(part, key, hash, nbytes, at_once, chunk, &unused);
    *evictions += part->info.evictions;
    pthread_mutex_unlock(&part->mutex);
    free_list(unused);
    return answer;
}

void
sc_chunks_loaded(struct sc_chunks *chunks, const struct sc_chunk_key *key, const struct sc_kept_chunk *chunk,
                 bool is_loaded)
{
    uint64_t hash = hash_of(key);
    struct part *part = part_of(chunks, hash);
    struct sc_kept_chunk *unused = NULL;
    struct node *node;

    pthread_mutex_lock(&part->mutex);
    node = *place_of(part, key, hash);
    if (node && node->queue == LOADING && node->chunk == chunk) { /* otherwise all chunks were forgotten meanwhile */
        if (is_loaded) {
            join(part, node, node->returns ? QUEUE_MAIN : QUEUE_NEW);
            part->info.n_chunks++;
        } else {
            unused = node->chunk;
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

/* Forget everything, and start with no counters. */
static void
clear_part(struct part *part)
{
    for (size_t i = 0; i < part->n_buckets; i++) {
        while (part->buckets[i]) {
            struct node *node = part->buckets[i];

            sc_kept_chunk_release(node->chunk);
            part->buckets[i] = node->next;
            sc_free(node);
        }
    }
    part->n_nodes = 0;
    memset(part->queues, 0, sizeof part->queues);
    discharge(part, part->info.nbytes);
    part->info.n_chunks = 0;
}

struct sc_chunks *
sc_chunks_new(uint64_t max_nbytes)
{
    uint64_t n = max_nbytes / PART_NBYTES;
    unsigned n_parts = n < 1 ? 1 : n < MAX_PARTS ? (unsigned)n : MAX_PARTS;
    struct sc_chunks *chunks = sc_calloc(1, sizeof *chunks + n_parts * sizeof chunks->parts[0]);

    if (!chunks)
        return NULL;
    for (; chunks->n_parts < n_parts; chunks->n_parts++) {
        struct part *part = &chunks->parts[chunks->n_parts];

        part->buckets = sc_calloc(MIN_BUCKETS, sizeof(struct node *));
        if (!part->buckets) {
            sc_chunks_free(chunks);
            return NULL;
        }
        part->n_buckets = MIN_BUCKETS;
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

        pthread_mutex_lock(&part->mutex);
        clear_part(part);
        pthread_cond_broadcast(&part->loaded);
        pthread_mutex_unlock(&part->mutex);
    }
}

void
sc_chunks_free(struct sc_chunks *chunks)
{
    for (unsigned i = 0; chunks && i < chunks->n_parts; i++) {
        struct part *part = &chunks->parts[i];

        clear_part(part);
        sc_free(part->buckets);
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
        info->hits += part->info.hits;
        info->misses += part->info.misses;
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
        clear_part(part);
        part->info.hits = part->info.misses = part->info.evictions = 0;
    }
}
