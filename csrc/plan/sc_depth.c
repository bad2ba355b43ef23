/* sc_depth.c - the threads, workers and bytes of a run with many reads at a time (see sc_depth.h)
 * SPDX-License-Identifier: MIT */
#include "plan/sc_depth.h"

#include "base/sc_alloc.h"
#include "io/sc_latency.h"

/* To wake a reader takes about so long, so more of them are not worth it before the first call has ended. */
#define WAKE_NS 4000
#define AUTO_DEPTH 32

/* Free memory of the run; this header is in its first bytes. */
struct sc_spare {
    struct sc_spare *next;
    size_t capacity;
};

uint64_t
sc_depth_latency(const struct sc_io_rules *rules, const struct sc_file_id *id)
{
    if (rules->latency_ns != SC_IO_MEASURED)
        return rules->latency_ns;
    return id->inode ? sc_latency_of(id->device) : 0;
}

uint64_t
sc_depth_expected(const struct sc_depth *depth, const struct sc_source *first)
{
    if (!first->path && !first->is_open)
        return 0;
    if (depth->rules->latency_ns != SC_IO_MEASURED)
        return depth->rules->latency_ns;
    return depth->hint ? sc_latency_expected(depth->hint) : 0;
}

/* A file of the run is on this device. */
static void
set_place(struct sc_depth *depth, uint64_t device)
{
    sc_latency_hint(&depth->place, device);
    if (depth->hint)
        sc_latency_hint(depth->hint, device);
}

/* Return the device of the files of this run, or of the array before, plus 1; 0: unknown. */
static uint64_t
known_place(const struct sc_depth *depth)
{
    uint64_t known = atomic_load_explicit(&depth->place.device, memory_order_relaxed);

    return known || !depth->hint ? known : atomic_load_explicit(&depth->hint->device, memory_order_relaxed);
}

/* Note how long the open of a missing file took, and return what a call costs there; 0: unknown. */
static uint64_t
learn_missing(struct sc_depth *depth, const char *path, uint64_t ns)
{
    uint64_t known = known_place(depth), device = known - 1;

    if (!known && (atomic_exchange(&depth->is_placed, true) || !sc_file_device_of(path, &device)))
        return 0;
    if (!known)
        set_place(depth, device);
    sc_latency_note_missing(device, ns);
    return sc_latency_of(device);
}

uint64_t
sc_depth_learn(struct sc_depth *depth, const struct sc_source *source, const struct sc_opened *file)
{
    if (!source->path && !source->is_open)
        return 0;
    if (SC_LIKELY(file->id.inode)) /* not a descriptor of the caller */
        set_place(depth, file->id.device);
    if (depth->rules->latency_ns != SC_IO_MEASURED || SC_LIKELY(file->id.inode))
        return sc_depth_latency(depth->rules, &file->id);
    return source->is_open ? 0 : learn_missing(depth, source->path, file->missing_ns);
}

void
sc_depth_init(struct sc_depth *depth, const struct sc_io_rules *rules, unsigned n_threads, unsigned n_flat,
              void (*fn)(void *), void *arg)
{
    unsigned most = rules->depth ? rules->depth : n_threads > AUTO_DEPTH ? n_threads : AUTO_DEPTH;

    *depth = (struct sc_depth){ .rules = rules, .n_threads = n_threads, .n_flat = n_flat, .n_members = n_flat };
    depth->job.fn = fn;
    depth->job.arg = arg;
    most = most < SC_POOL_MAX_READERS ? most : SC_POOL_MAX_READERS;
    depth->most = most > n_flat ? most : n_flat;
    atomic_init(&depth->is_deep, false);
    atomic_init(&depth->is_placed, false);
    pthread_mutex_init(&depth->mutex, NULL);
    pthread_cond_init(&depth->has_worker, NULL);
    pthread_cond_init(&depth->has_room, NULL);
}

void
sc_depth_destroy(struct sc_depth *depth)
{
    while (depth->free) {
        struct sc_worker *next = depth->free->next;

        sc_worker_put(depth->free);
        depth->free = next;
    }
    while (depth->spare) {
        struct sc_spare *next = depth->spare->next;

        sc_free(depth->spare);
        depth->spare = next;
    }
    pthread_cond_destroy(&depth->has_room);
    pthread_cond_destroy(&depth->has_worker);
    pthread_mutex_destroy(&depth->mutex);
}

struct sc_read_sizes
sc_depth_sizes(const struct sc_depth *depth, uint64_t latency_ns, uint64_t nbytes, struct sc_read_sizes flat)
{
    uint64_t worth = sc_depth_worth(latency_ns), gap = worth / depth->most;

    worth = min_u64(worth, depth->rules->max_nbytes / depth->most);
    worth = min_u64(worth, nbytes / (2 * depth->n_threads));
    return (struct sc_read_sizes){ max_u64(flat.group_nbytes, worth), max_u64(flat.max_gap_nbytes, gap) };
}

void
sc_depth_bound(struct sc_depth *depth, uint64_t nbytes_of_thread)
{
    uint64_t most = depth->rules->max_nbytes / max_u64(nbytes_of_thread, 1);

    depth->most = (unsigned)min_u64(depth->most, max_u64(most, depth->n_members));
}

void
sc_depth_run(struct sc_depth *depth)
{
    sc_pool_run_job(&depth->job, depth->n_flat);
}

/* Return how many threads are useful for calls of this cost. */
static unsigned
useful_depth(const struct sc_depth *depth, uint64_t latency_ns)
{
    uint64_t useful = max_u64(latency_ns / WAKE_NS, depth->n_threads);

    return depth->rules->depth ? depth->most : (unsigned)min_u64(useful, depth->most);
}

void
sc_depth_expect(struct sc_depth *depth, uint64_t latency_ns, uint64_t n_calls)
{
    unsigned n = 0, wanted;

    if (SC_LIKELY(latency_ns < SC_LATENCY_DEEP_NS))
        return;
    pthread_mutex_lock(&depth->mutex);
    depth->n_calls += n_calls;
    wanted = (unsigned)min_u64(depth->n_calls, useful_depth(depth, latency_ns));
    if (wanted > depth->n_members) {
        n = wanted - depth->n_members;
        depth->n_members = wanted;
        atomic_store(&depth->is_deep, true);
    }
    pthread_mutex_unlock(&depth->mutex);
    if (n)
        sc_pool_grow(&depth->job, n);
}

/* Take spare memory of at least n bytes, or else any, which is then replaced. Under the mutex. */
static void
take_spare(struct sc_depth *depth, uint64_t n, struct sc_buffer *buffer)
{
    struct sc_spare **link = &depth->spare, *found;

    while (*link && (*link)->capacity < n)
        link = &(*link)->next;
    if (!*link)
        link = &depth->spare;
    found = *link;
    if (!found)
        return;
    *link = found->next;
    depth->spare_nbytes -= found->capacity;
    *buffer = (struct sc_buffer){ (uint8_t *)found, found->capacity };
}

/* Keep the memory of a buffer, unless it would be more than the bound together with `used` bytes. Under the mutex. */
static void
keep_spare(struct sc_depth *depth, uint64_t used, struct sc_buffer *buffer)
{
    struct sc_spare *spare = (struct sc_spare *)(void *)buffer->data;
    uint64_t most = depth->rules->max_nbytes;

    if (!spare || buffer->capacity - SC_ALIGNMENT > most - min_u64(used, most)) /* capacities are rounded up */
        return;
    *spare = (struct sc_spare){ depth->spare, buffer->capacity };
    depth->spare = spare;
    depth->spare_nbytes += buffer->capacity;
    *buffer = (struct sc_buffer){ 0 };
}

void
sc_depth_enter(struct sc_depth *depth, uint64_t n, struct sc_buffer *buffer)
{
    pthread_mutex_lock(&depth->mutex);
    while (depth->nbytes && n > depth->rules->max_nbytes - min_u64(depth->nbytes, depth->rules->max_nbytes))
        pthread_cond_wait(&depth->has_room, &depth->mutex);
    depth->nbytes += n;
    depth->peak_nbytes = max_u64(depth->peak_nbytes, depth->nbytes);
    if (!buffer->data)
        take_spare(depth, n, buffer);
    pthread_mutex_unlock(&depth->mutex);
}

void
sc_depth_leave(struct sc_depth *depth, uint64_t n, struct sc_buffer *buffer)
{
    pthread_mutex_lock(&depth->mutex);
    keep_spare(depth, depth->nbytes - n + depth->spare_nbytes, buffer);
    if (buffer->data) { /* freed before another thread allocates as much */
        pthread_mutex_unlock(&depth->mutex);
        sc_buffer_free(buffer);
        pthread_mutex_lock(&depth->mutex);
    }
    depth->nbytes -= n;
    pthread_cond_broadcast(&depth->has_room);
    pthread_mutex_unlock(&depth->mutex);
}

/* ---- one thread of a run ---- */

static struct sc_worker *
borrow(struct sc_depth *depth)
{
    struct sc_worker *worker;

    pthread_mutex_lock(&depth->mutex);
    while (!depth->free && depth->n_workers >= depth->n_threads)
        pthread_cond_wait(&depth->has_worker, &depth->mutex);
    worker = depth->free;
    if (worker)
        depth->free = worker->next;
    else
        depth->n_workers++;
    pthread_mutex_unlock(&depth->mutex);
    if (worker || (worker = sc_worker_take()))
        return worker;
    pthread_mutex_lock(&depth->mutex);
    depth->n_workers--;
    pthread_cond_signal(&depth->has_worker);
    pthread_mutex_unlock(&depth->mutex);
    return NULL;
}

static void
give_back(struct sc_depth *depth, struct sc_worker *worker)
{
    pthread_mutex_lock(&depth->mutex);
    worker->next = depth->free;
    depth->free = worker;
    pthread_cond_signal(&depth->has_worker);
    pthread_mutex_unlock(&depth->mutex);
}

enum sc_status
sc_seat_begin_work(struct sc_seat *seat)
{
    if (SC_LIKELY(seat->worker != NULL))
        return SC_OK;
    seat->worker = borrow(seat->depth);
    if (!seat->worker)
        return SC_NO_MEMORY;
    seat->worker->allow_in_index = seat->depth->allow_in_index;
    return SC_OK;
}

void
sc_seat_give_back(struct sc_seat *seat)
{
    if (seat->worker)
        give_back(seat->depth, seat->worker);
    seat->worker = NULL;
    seat->io = &seat->own_io;
}

enum sc_status
sc_seat_take(struct sc_seat *seat)
{
    enum sc_status status;

    seat->io = &seat->own_io;
    if (sc_depth_is_deep(seat->depth))
        return SC_OK;
    status = sc_seat_begin_work(seat);
    if (!status)
        seat->io = &seat->worker->io;
    return status;
}

void
sc_seat_leave(struct sc_seat *seat)
{
    sc_seat_give_back(seat);
    sc_buffer_free(&seat->own_io);
}
