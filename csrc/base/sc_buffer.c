/* sc_buffer.c - memory that grows and is used again
 * SPDX-License-Identifier: MIT */
#include "base/sc_buffer.h"

#include <stdatomic.h>

#include "base/sc_alloc.h"
#include "base/sc_fork.h"

/* ---- memory that is kept ---- */

/* Smaller memory comes from the heap of the C library, which keeps it. */
#define LEAST_NBYTES ((size_t)1 << 20)
#define MAX_KEPT 16u

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct sc_buffer kept[MAX_KEPT];
static unsigned n_kept;
static uint64_t kept_nbytes;
static _Atomic int64_t most_nbytes; /* that may be kept */

/* Under the mutex. The order stays: the oldest memory comes first. */
static struct sc_buffer
take(unsigned i)
{
    struct sc_buffer buffer = kept[i];

    memmove(kept + i, kept + i + 1, (--n_kept - i) * sizeof *kept);
    kept_nbytes -= buffer.capacity;
    return buffer;
}

/* Take the smallest kept memory of at least n bytes, and of less than twice as many. */
static bool
take_kept(size_t n, struct sc_buffer *buffer)
{
    unsigned best = MAX_KEPT;

    if (n < LEAST_NBYTES || !atomic_load_explicit(&most_nbytes, memory_order_relaxed))
        return false;
    pthread_mutex_lock(&mutex);
    for (unsigned i = 0; i < n_kept; i++)
        if (kept[i].capacity / 2 < n && kept[i].capacity >= n &&
            (best == MAX_KEPT || kept[i].capacity < kept[best].capacity))
            best = i;
    if (best < MAX_KEPT)
        *buffer = take(best);
    pthread_mutex_unlock(&mutex);
    return best < MAX_KEPT;
}

/* Keep memory, if it may be kept, instead of the oldest one: that may have a size that is not needed any more. */
static bool
keep(const struct sc_buffer *buffer)
{
    uint8_t *old[MAX_KEPT];
    unsigned n_old = 0;
    int64_t most;
    bool keeps;

    if (buffer->capacity < LEAST_NBYTES || (uintptr_t)buffer->data % SC_BLOCK_NBYTES ||
        !atomic_load_explicit(&most_nbytes, memory_order_relaxed))
        return false;
    pthread_mutex_lock(&mutex);
    most = atomic_load(&most_nbytes);
    keeps = most > 0 && buffer->capacity <= (uint64_t)most;
    while (keeps && (n_kept == MAX_KEPT || kept_nbytes + buffer->capacity > (uint64_t)most))
        old[n_old++] = take(0).data;
    if (keeps) {
        kept[n_kept++] = *buffer;
        kept_nbytes += buffer->capacity;
    }
    pthread_mutex_unlock(&mutex);
    while (n_old)
        sc_free(old[--n_old]);
    return keeps;
}

void
sc_buffer_keep(int64_t nbytes)
{
    struct sc_buffer buffer;

    atomic_fetch_add(&most_nbytes, nbytes);
    do {
        buffer.data = NULL;
        pthread_mutex_lock(&mutex);
        if (n_kept && (int64_t)kept_nbytes > atomic_load(&most_nbytes))
            buffer = take(0);
        pthread_mutex_unlock(&mutex);
        sc_free(buffer.data);
    } while (buffer.data);
}

SC_HOLD_ACROSS_FORK(mutex)

/* The child has none of the streams that have raised the limit. */
static void
after_fork_in_child(void)
{
    pthread_mutex_init(&mutex, NULL);
    atomic_store(&most_nbytes, 0);
    while (n_kept)
        sc_free(take(0).data);
}

enum sc_status
sc_buffer_init(void)
{
    return sc_fork_handlers(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* ---- buffers ---- */

enum sc_status
sc_buffer_reserve(struct sc_buffer *buffer, size_t n)
{
    return sc_buffer_grow(buffer, 0, n);
}

enum sc_status
sc_buffer_grow(struct sc_buffer *buffer, size_t used, size_t n)
{
    struct sc_buffer larger = { .capacity = n };

    if (SC_LIKELY(n <= buffer->capacity && buffer->data))
        return SC_OK;
    if (n > SIZE_MAX - 2 * SC_ALIGNMENT)
        return SC_NO_MEMORY;
    if (!used)
        sc_buffer_free(buffer); /* free first, because the old and the new memory are never needed together */
    if (!take_kept(n, &larger)) {
        larger.capacity = (n + SC_ALIGNMENT) / SC_ALIGNMENT * SC_ALIGNMENT;
        larger.data =
            sc_aligned_alloc(larger.capacity < SC_BLOCK_NBYTES ? SC_ALIGNMENT : SC_BLOCK_NBYTES, larger.capacity);
    }
    if (!larger.data)
        return SC_NO_MEMORY;
    if (used)
        memcpy(larger.data, buffer->data, used);
    sc_buffer_free(buffer);
    *buffer = larger;
    return SC_OK;
}

void
sc_buffer_free(struct sc_buffer *buffer)
{
    if (!keep(buffer))
        sc_free(buffer->data);
    buffer->data = NULL;
    buffer->capacity = 0;
}
