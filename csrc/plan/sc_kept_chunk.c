/* sc_kept_chunk.c - decoded elements of an inner chunk that threads share (see sc_kept_chunk.h)
 * SPDX-License-Identifier: MIT */
#include "plan/sc_kept_chunk.h"

#include "base/sc_alloc.h"

static struct sc_kept_chunk *
take_of_size(struct sc_kept_chunk **unused, uint64_t nbytes)
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
give_back(struct sc_kept_chunk *chunk)
{
    struct sc_kept_pool *pool = chunk->pool;

    sc_free(chunk->elements);
    atomic_fetch_add(&pool->n_unused, 1);
    chunk->next = pool->unused;
    while (!atomic_compare_exchange_weak(&pool->unused, &chunk->next, chunk))
        ;
}

/* Take one out of the pool, or make one. Only one thread takes at a time, so the next of the first stays what it is. */
static struct sc_kept_chunk *
take(struct sc_kept_pool *pool)
{
    struct sc_kept_chunk *chunk = pool->unused;

    while (chunk && !atomic_compare_exchange_weak(&pool->unused, &chunk, chunk->next))
        ;
    if (chunk)
        atomic_fetch_sub(&pool->n_unused, 1);
    else if ((chunk = sc_calloc(1, sizeof *chunk)) != NULL)
        chunk->pool = pool;
    return chunk;
}

struct sc_kept_chunk *
sc_kept_chunk_new(struct sc_kept_pool *pool, struct sc_kept_chunk **unused, const struct sc_chunk_key *key,
                  uint64_t nbytes)
{
    struct sc_kept_chunk *chunk = take_of_size(unused, nbytes);

    if (!chunk) {
        chunk = take(pool);
        if (!chunk)
            return NULL;
        chunk->elements = nbytes <= SIZE_MAX ? sc_aligned_alloc(SC_ALIGNMENT, (size_t)nbytes) : NULL;
        if (!chunk->elements) {
            give_back(chunk);
            return NULL;
        }
        chunk->nbytes = nbytes;
    }
    chunk->key = *key;
    chunk->is_loaded = false;
    chunk->n_users = 2;
    return chunk;
}

struct sc_kept_chunk *
sc_kept_chunk_hold(struct sc_kept_chunk *chunk, const struct sc_chunk_key *key)
{
    unsigned n_users = chunk->n_users;

    do {
        if (!n_users)
            return NULL;
    } while (!atomic_compare_exchange_weak(&chunk->n_users, &n_users, n_users + 1));
    if (chunk->is_loaded && memcmp(&chunk->key, key, sizeof *key) == 0)
        return chunk;
    sc_kept_chunk_release(chunk);
    return NULL;
}

void
sc_kept_chunk_release(struct sc_kept_chunk *chunk)
{
    if (chunk && atomic_fetch_sub(&chunk->n_users, 1) == 1)
        give_back(chunk);
}

void
sc_kept_chunk_release_to(struct sc_kept_chunk *chunk, struct sc_kept_chunk **unused)
{
    if (atomic_fetch_sub(&chunk->n_users, 1) != 1)
        return;
    chunk->next = *unused;
    *unused = chunk;
}

void
sc_kept_chunks_give_back(struct sc_kept_chunk *unused)
{
    while (unused) {
        struct sc_kept_chunk *chunk = unused;

        unused = chunk->next;
        give_back(chunk);
    }
}

void
sc_kept_pool_free(struct sc_kept_pool *pool)
{
    for (struct sc_kept_chunk *chunk = atomic_exchange(&pool->unused, NULL), *next; chunk; chunk = next) {
        next = chunk->next;
        sc_free(chunk);
        atomic_fetch_sub(&pool->n_unused, 1);
    }
}

void
sc_kept_pool_renew(struct sc_kept_pool *pool)
{
    pool->n_unused = 0;
    for (struct sc_kept_chunk *chunk = pool->unused; chunk; chunk = chunk->next)
        pool->n_unused++;
}
