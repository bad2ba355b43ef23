/* chunks.c - many threads that look up, load and forget chunks of a small cache, for ThreadSanitizer
 *
 * The elements of a chunk follow from its key. The look-up takes no lock, so it may meet a chunk that is evicted, used again for
 * another key, or loaded at this moment: it must never return one with elements of another key, or with half of its own. The cache is
 * so small that memory is used again at once, and so full of keys that its table grows.
 * SPDX-License-Identifier: MIT */
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/sc_alloc.h"
#include "plan/sc_chunks.h"

#define N_THREADS 6
#define N_ROUNDS 60
#define N_STEPS 2000u
#define N_KEYS 600u
#define N_GROWN 200000u
#define MAX_NBYTES (64u << 10)
#define MAX_OVER (64 << 10) /* unused entries that are not freed one by one */

static struct sc_chunks *chunks;
static atomic_uint n_loaded;
static atomic_long n_live; /* allocations */
static atomic_long live_nbytes; /* with what the allocator takes */

struct counts {
    uint64_t hits, loads, evictions;
};

static bool
allows(size_t nbytes)
{
    (void)nbytes;
    return true;
}

static void
taken(void *memory, size_t nbytes)
{
    (void)nbytes;
    n_live++;
    live_nbytes += (long)malloc_usable_size(memory) + 8;
}

static void
freed(void *memory)
{
    n_live -= memory != NULL;
    live_nbytes -= memory ? (long)malloc_usable_size(memory) + 8 : 0;
}

static uint64_t
nbytes_of(const struct sc_chunk_key *key)
{
    return key->chain == 1 ? (uint64_t)128 << (key->position % 4) : key->chain;
}

static uint64_t
element_of(const struct sc_chunk_key *key, uint64_t i)
{
    return key->position * 1000003 + key->state * 17 + i;
}

static void
fill(const struct sc_chunk_key *key, const struct sc_kept_chunk *chunk)
{
    for (uint64_t i = 0; i < chunk->nbytes / 8; i++)
        ((uint64_t *)(void *)chunk->elements)[i] = element_of(key, i);
}

static void
check(const struct sc_chunk_key *key, const struct sc_kept_chunk *chunk)
{
    const uint64_t *elements = (const uint64_t *)(const void *)chunk->elements;
    bool is_right = chunk->nbytes == nbytes_of(key);

    for (uint64_t i = 0; is_right && i < chunk->nbytes / 8; i++)
        is_right = elements[i] == element_of(key, i);
    if (!is_right) {
        fprintf(stderr, "the chunk at %llu has other elements\n", (unsigned long long)key->position);
        exit(1);
    }
}

/* Read one chunk as the engine does. */
static void
read_chunk(const struct sc_chunk_key *key, bool fails, struct counts *counts)
{
    struct sc_kept_chunk *chunk = sc_chunks_find(chunks, key);
    uint64_t evictions = 0;

    counts->hits += chunk != NULL;
    if (!chunk &&
        sc_chunks_claim(chunks, key, nbytes_of(key), key->position % 3 == 0, &chunk, &evictions) == SC_CACHE_LOAD) {
        fails = fails && key->position % 7 == 0;
        if (!fails)
            fill(key, chunk);
        sc_chunks_loaded(chunks, key, chunk, !fails);
        counts->loads++;
        if (fails) {
            sc_kept_chunk_release(chunk);
            return;
        }
    }
    if (chunk)
        check(key, chunk);
    sc_kept_chunk_release(chunk);
}

static void
check_bound(void)
{
    struct sc_chunks_info info;

    sc_chunks_get_info(chunks, &info);
    if (info.nbytes > MAX_NBYTES) {
        fprintf(stderr, "%llu bytes are kept\n", (unsigned long long)info.nbytes);
        exit(1);
    }
}

static void *
reader(void *arg)
{
    struct counts *counts = arg;
    unsigned seed = (unsigned)(uintptr_t)arg;

    for (unsigned step = 0; step < N_STEPS; step++) {
        unsigned at = (unsigned)rand_r(&seed) % N_KEYS;
        struct sc_chunk_key key = { 1 + step / 512, 1, at % 3 ? at % 40 : at }; /* some are wanted often */

        read_chunk(&key, at % 50 == 0, counts);
        (void)sc_chunks_has(chunks, &key);
        if (step % 250 == 125)
            sc_chunks_clear(chunks);
        if (step % 100 == 0)
            check_bound();
    }
    return NULL;
}

/* A child forgets all chunks while other threads of the parent look some up. */
static void
fork_once(void)
{
    struct sc_chunk_key key = { 1, 1, 3 };
    struct counts counts = { 0 };
    int status = 1;
    pid_t child;

    sc_chunks_lock(chunks);
    child = fork();
    if (child == 0) {
        sc_chunks_renew(chunks);
        read_chunk(&key, false, &counts);
        read_chunk(&key, false, &counts);
        _exit(counts.hits != 1);
    }
    sc_chunks_unlock(chunks);
    if (child < 0 || waitpid(child, &status, 0) != child || status) {
        fprintf(stderr, "the forked child failed: %d\n", status);
        exit(1);
    }
}

/* A new cache, so that its table grows beside look-ups. */
static void
round_of_readers(int number, struct counts *sum)
{
    struct counts counts[N_THREADS] = { 0 };
    pthread_t threads[N_THREADS];
    struct sc_chunks_info info;

    chunks = sc_chunks_new(MAX_NBYTES);
    for (int i = 0; i < N_THREADS; i++)
        pthread_create(&threads[i], NULL, reader, &counts[i]);
    if (number % 4 == 0)
        fork_once();
    for (int i = 0; i < N_THREADS; i++) {
        pthread_join(threads[i], NULL);
        sum->hits += counts[i].hits;
        sum->loads += counts[i].loads;
    }
    sc_chunks_get_info(chunks, &info);
    sum->evictions += info.evictions;
    sc_chunks_free(chunks);
}

static void *
finder(void *n_missing)
{
    unsigned seed = 5, n;

    while ((n = n_loaded) < N_GROWN) {
        struct sc_chunk_key key = { 1, 1, n ? (unsigned)rand_r(&seed) % n : 0 };
        struct sc_kept_chunk *chunk = sc_chunks_find(chunks, &key);

        *(unsigned *)n_missing += n && !chunk;
        sc_kept_chunk_release(chunk);
    }
    return NULL;
}

/* Chunks that stay are found while the table grows. Growing relinked them, and a quarter of the look-ups missed. */
static unsigned
growth(void)
{
    struct counts counts = { 0 };
    unsigned n_missing = 0;
    pthread_t thread;

    chunks = sc_chunks_new((uint64_t)1 << 30);
    pthread_create(&thread, NULL, finder, &n_missing);
    while (n_loaded < N_GROWN) {
        struct sc_chunk_key key = { 1, 1, n_loaded };

        read_chunk(&key, false, &counts); /* some are kept at their second read */
        read_chunk(&key, false, &counts);
        n_loaded++;
    }
    pthread_join(thread, NULL);
    sc_chunks_free(chunks);
    return n_missing;
}

/* All memory of the cache stays below its bound, also while small chunks make way for large ones, beside look-ups. Entries of
 * forgotten chunks were kept for ever and not counted: 1.7 times the bound. Return the greatest excess. */
static long
excess(void)
{
    const uint64_t sizes[] = { 64, 1u << 20, 64, 4096, 300000, 64 };
    const uint64_t max_nbytes = 16u << 20;
    struct counts counts = { 0 };
    unsigned n_missing = 0, n_large = 0, n_kept = 0;
    long most = 0, before = live_nbytes;
    pthread_t thread;

    n_loaded = 0;
    chunks = sc_chunks_new(max_nbytes);
    pthread_create(&thread, NULL, finder, &n_missing);
    for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (uint64_t at = 0; at < 2 * max_nbytes / (sizes[i] + 200); at++) {
            struct sc_chunk_key key = { 2 + i, sizes[i], at };
            long nbytes;

            read_chunk(&key, false, &counts);
            read_chunk(&key, false, &counts);
            n_large += sizes[i] >= 4096;
            n_kept += sizes[i] >= 4096 && sc_chunks_has(chunks, &key);
            nbytes = live_nbytes - before - (long)max_nbytes - (long)sizes[i];
            most = nbytes > most ? nbytes : most;
        }
    }
    if (n_kept < n_large - n_large / 20) {
        fprintf(stderr, "%u of %u large chunks are not kept\n", n_large - n_kept, n_large);
        exit(1);
    }
    n_loaded = N_GROWN;
    pthread_join(thread, NULL);
    sc_chunks_free(chunks);
    return most;
}

int
main(void)
{
    struct counts sum = { 0 };
    unsigned n_missing;
    long n_over;

    sc_alloc_set_hook(&(struct sc_alloc_hook){ allows, taken, freed });
    for (int i = 0; i < N_ROUNDS; i++)
        round_of_readers(i, &sum);
    n_missing = growth();
    n_over = excess();
    printf("%llu hits, %llu chunks loaded, %llu evicted; %u not found while the table grew; "
           "%ld bytes above the bound\n",
           (unsigned long long)sum.hits, (unsigned long long)sum.loads, (unsigned long long)sum.evictions, n_missing,
           n_over);
    if (sum.hits < 1000 || sum.evictions < 1000 || n_missing > 10 || sc_chunks_total() || n_live || n_over > MAX_OVER) {
        fprintf(stderr, "not all was tried, chunks were not found, or memory is lost or above the bound\n");
        return 1;
    }
    return 0;
}
