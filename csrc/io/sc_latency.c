/* sc_latency.c - the table of estimates (see sc_latency.h)
 *
 * One word for each file system: the estimate, as 256 * log2(nanoseconds). A second word is the device plus one.
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "io/sc_latency.h"

#include <stdatomic.h>
#include <time.h>

#define DOUBLING 256           /* of the estimate */
#define MAX_STEP (2 * DOUBLING) /* of one call, before the division */
#define WEIGHT_DOWN 4
#define WEIGHT_UP 8
#define UNTIMED_CALLS 7 /* after a fast one */
#define SLOW_CALLS 4    /* of one thread, one after the other, that set the estimate */
#define SLOW_NS_PER_BYTE 4 /* of a large read of a warm file, while many threads share processors and memory */

struct mount {
    _Atomic uint64_t key; /* device + 1; 0: free */
    _Atomic uint32_t level; /* 0: none yet */
};

static struct mount mounts[SC_LATENCY_MOUNTS];
static _Thread_local unsigned n_untimed; /* calls that follow */

/* The last calls of this thread, if all of them were slow and on one file system. */
static _Thread_local struct {
    uint64_t device, least_ns;
    unsigned n;
} slow;

/* Return 256 * log2(ns), linear between powers of two; at least 1. It is rounded up, so that a time which reaches a limit still
 * does as an estimate. */
static uint32_t
level_of(uint64_t ns)
{
    uint32_t bits, mantissa; /* of 256 to 512 */

    ns = ns > 2 ? ns : 2;
    bits = 63 - (uint32_t)__builtin_clzll(ns);
    if (bits < 8)
        mantissa = (uint32_t)(ns << (8 - bits));
    else
        mantissa = (uint32_t)(ns >> (bits - 8)) + ((ns & (((uint64_t)1 << (bits - 8)) - 1)) != 0);
    return DOUBLING * bits + mantissa - DOUBLING;
}

static uint64_t
ns_of(uint32_t level)
{
    uint32_t bits = level / DOUBLING;
    uint64_t one = (uint64_t)1 << bits;

    return level ? one + (one * (level % DOUBLING)) / DOUBLING : 0;
}

/* Return the entry of a device, a new one if `make`; else NULL. */
static struct mount *
find(uint64_t device, bool make)
{
    uint64_t key = device + 1, none;
    size_t first = (size_t)((key * 0x9e3779b97f4a7c15u) >> 32) % SC_LATENCY_MOUNTS;

    for (size_t i = 0; i < SC_LATENCY_MOUNTS; i++) {
        struct mount *mount = &mounts[(first + i) % SC_LATENCY_MOUNTS];

        none = atomic_load_explicit(&mount->key, memory_order_relaxed);
        if (none == key)
            return mount;
        if (none)
            continue;
        if (!make)
            return NULL;
        if (atomic_compare_exchange_strong(&mount->key, &none, key) || none == key)
            return mount;
    }
    if (make) {
        atomic_store(&mounts[first].level, 0);
        atomic_store(&mounts[first].key, key);
    }
    return make ? &mounts[first] : NULL;
}

uint64_t
sc_clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void
note(uint64_t device, uint64_t ns)
{
    struct mount *mount = find(device, true);
    uint32_t old = atomic_load_explicit(&mount->level, memory_order_relaxed), level = level_of(ns);
    int32_t step;

    if (old) {
        step = (int32_t)level - (int32_t)old;
        step = step > MAX_STEP ? MAX_STEP : step < -MAX_STEP ? -MAX_STEP : step;
        level = (uint32_t)((int32_t)old + step / (step < 0 ? WEIGHT_DOWN : WEIGHT_UP));
    } else if (level > level_of(2 * SC_LATENCY_DEEP_NS)) { /* the first call may have been delayed by chance */
        level = level_of(2 * SC_LATENCY_DEEP_NS);
    }
    atomic_store_explicit(&mount->level, level, memory_order_relaxed);
}

/* A thread that has lost its processor makes one slow call, not several in a row. So the fastest of some that were slow raises
 * the estimate at once: a program on such a mount reads deep from its second read on. */
static void
note_slow(uint64_t device, uint64_t ns)
{
    struct mount *mount;

    if (ns < SC_LATENCY_DEEP_NS || slow.device != device)
        slow.n = 0;
    if (ns < SC_LATENCY_DEEP_NS)
        return;
    slow.device = device;
    slow.least_ns = slow.n++ ? min_u64(slow.least_ns, ns) : ns;
    if (slow.n < SLOW_CALLS)
        return;
    slow.n = 0;
    mount = find(device, true);
    if (level_of(slow.least_ns) > atomic_load_explicit(&mount->level, memory_order_relaxed) + DOUBLING)
        atomic_store_explicit(&mount->level, level_of(slow.least_ns), memory_order_relaxed);
}

/* Time fewer calls after a fast one. */
static void
time_next(uint64_t ns)
{
    n_untimed = ns < SC_LATENCY_DEEP_NS ? UNTIMED_CALLS : 0;
}

uint64_t
sc_latency_begin(void)
{
    if (!n_untimed)
        return sc_clock_ns();
    n_untimed--;
    return 0;
}

void
sc_latency_end(uint64_t begin, uint64_t device, uint64_t nbytes)
{
    bool is_large = nbytes > SC_LATENCY_NBYTES;
    uint64_t ns, least_ns, most_ns;

    if (!begin)
        return;
    ns = sc_clock_ns() - begin;
    least_ns = most_ns = ns - min_u64(ns, nbytes / 4);
    if (is_large) {
        least_ns = ns - min_u64(ns, SLOW_NS_PER_BYTE * nbytes);
        most_ns = max_u64(most_ns, SC_LATENCY_DEEP_NS / 4); /* a fast copy says nothing of calls */
    }
    time_next(least_ns);
    note_slow(device, least_ns);
    if (!is_large || most_ns < sc_latency_of(device)) /* a program may make no small reads that lower it */
        note(device, most_ns);
}

uint64_t
sc_latency_end_missing(uint64_t begin)
{
    uint64_t ns;

    if (!begin)
        return 0;
    ns = sc_clock_ns() - begin;
    time_next(ns);
    return ns;
}

void
sc_latency_note_missing(uint64_t device, uint64_t ns)
{
    if (ns)
        note_slow(device, ns);
}

uint64_t
sc_latency_of(uint64_t device)
{
    struct mount *mount = find(device, false);

    return mount ? ns_of(atomic_load_explicit(&mount->level, memory_order_relaxed)) : 0;
}

uint64_t
sc_latency_expected(const struct sc_device_hint *hint)
{
    uint64_t device = atomic_load_explicit(&hint->device, memory_order_relaxed);

    return device ? sc_latency_of(device - 1) : 0;
}

void
sc_latency_hint(struct sc_device_hint *hint, uint64_t device)
{
    if (atomic_load_explicit(&hint->device, memory_order_relaxed) != device + 1)
        atomic_store_explicit(&hint->device, device + 1, memory_order_relaxed);
}

void
sc_latency_seed(uint64_t device, uint64_t ns)
{
    struct mount *mount = find(device, true);
    uint32_t none = 0;

    atomic_compare_exchange_strong(&mount->level, &none, level_of(ns));
}

void
sc_latency_raise(uint64_t device, uint64_t ns)
{
    struct mount *mount = find(device, true);

    if (atomic_load(&mount->level) < level_of(ns))
        atomic_store(&mount->level, level_of(ns));
}

size_t
sc_latency_list(uint64_t *devices, uint64_t *ns)
{
    size_t n = 0;

    for (size_t i = 0; i < SC_LATENCY_MOUNTS; i++) {
        uint64_t key = atomic_load(&mounts[i].key);
        uint32_t level = atomic_load(&mounts[i].level);

        if (!key || !level)
            continue;
        devices[n] = key - 1;
        ns[n++] = ns_of(level);
    }
    return n;
}

void
sc_latency_reset(void)
{
    for (size_t i = 0; i < SC_LATENCY_MOUNTS; i++)
        atomic_store(&mounts[i].level, 0);
}
