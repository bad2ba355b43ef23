/* counts.c - counts the locks, atomic operations and wake-ups of the engine
 *
 * The engine is built with -fsanitize=thread, so each atomic operation is a call of __tsan_*. This library takes the name of
 * the sanitizer's (-Wl,-soname,libtsan.so.2) and is preloaded, so the loader does not look for the real one: the calls come
 * here, are counted, and done. Calls of pthread_* that do not come from the engine are passed on without being counted.
 *
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

enum { LOCKS, CONTENDED, WAITS, WAKES, THREADS, UPDATES, LOADS, STORES, N_COUNTERS };

static _Atomic uint64_t counters[N_COUNTERS];

static void
count(unsigned which)
{
    atomic_fetch_add_explicit(&counters[which], 1, memory_order_relaxed);
}

/* Set all counters to zero and copy what they were. */
void
counts_take(uint64_t *out)
{
    for (unsigned i = 0; i < N_COUNTERS; i++)
        out[i] = atomic_exchange(&counters[i], 0);
}

/* ---- calls of pthread */

static bool
is_engine(void *address)
{
    static _Thread_local void *last; /* the latest address in the engine */
    Dl_info info;

    if (address == last)
        return true;
    if (!dladdr(address, &info) || !info.dli_fname || !strstr(info.dli_fname, "_native"))
        return false;
    last = address;
    return true;
}

static void *
next(const char *name)
{
    void *symbol = dlvsym(RTLD_NEXT, name, "GLIBC_2.3.2"); /* dlsym gives an older one */

    return symbol ? symbol : dlsym(RTLD_NEXT, name);
}

int
pthread_mutex_lock(pthread_mutex_t *mutex)
{
    static int (*lock)(pthread_mutex_t *);
    static int (*try)(pthread_mutex_t *);

    if (!lock) {
        try
            = (int (*)(pthread_mutex_t *))dlsym(RTLD_NEXT, "pthread_mutex_trylock");
        lock = (int (*)(pthread_mutex_t *))dlsym(RTLD_NEXT, "pthread_mutex_lock");
    }
    if (!is_engine(__builtin_return_address(0)))
        return lock(mutex);
    count(LOCKS);
    if (try (mutex) == 0)
        return 0;
    count(CONTENDED);
    return lock(mutex);
}

/* All functions of conditions are here, because the engine's calls have no version, and would get the oldest one. */

int
pthread_cond_init(pthread_cond_t *condition, const pthread_condattr_t *attributes)
{
    static int (*begin)(pthread_cond_t *, const pthread_condattr_t *);

    if (!begin)
        begin = (int (*)(pthread_cond_t *, const pthread_condattr_t *))next("pthread_cond_init");
    return begin(condition, attributes);
}

int
pthread_cond_destroy(pthread_cond_t *condition)
{
    static int (*end)(pthread_cond_t *);

    if (!end)
        end = (int (*)(pthread_cond_t *))next("pthread_cond_destroy");
    return end(condition);
}

int
pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until)
{
    static int (*wait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);

    if (!wait)
        wait = (int (*)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *))next("pthread_cond_timedwait");
    if (is_engine(__builtin_return_address(0)))
        count(WAITS);
    return wait(condition, mutex, until);
}

int
pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
{
    static int (*wait)(pthread_cond_t *, pthread_mutex_t *);

    if (!wait)
        wait = (int (*)(pthread_cond_t *, pthread_mutex_t *))next("pthread_cond_wait");
    if (is_engine(__builtin_return_address(0)))
        count(WAITS);
    return wait(condition, mutex);
}

int
pthread_cond_signal(pthread_cond_t *condition)
{
    static int (*wake)(pthread_cond_t *);

    if (!wake)
        wake = (int (*)(pthread_cond_t *))next("pthread_cond_signal");
    if (is_engine(__builtin_return_address(0)))
        count(WAKES);
    return wake(condition);
}

int
pthread_cond_broadcast(pthread_cond_t *condition)
{
    static int (*wake)(pthread_cond_t *);

    if (!wake)
        wake = (int (*)(pthread_cond_t *))next("pthread_cond_broadcast");
    if (is_engine(__builtin_return_address(0)))
        count(WAKES);
    return wake(condition);
}

int
pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
    static int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

    if (!create)
        create =
            (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(RTLD_NEXT, "pthread_create");
    if (is_engine(__builtin_return_address(0)))
        count(THREADS);
    return create(thread, attributes, run, argument);
}

/* ---- atomic operations; the order of memory that the caller asks for is replaced by the strongest */

#define ATOMICS(bits)                                                                                            \
    uint##bits##_t __tsan_atomic##bits##_load(const volatile uint##bits##_t *at, int order)                      \
    {                                                                                                            \
        (void)order;                                                                                             \
        count(LOADS);                                                                                            \
        return __atomic_load_n(at, __ATOMIC_SEQ_CST);                                                            \
    }                                                                                                            \
    void __tsan_atomic##bits##_store(volatile uint##bits##_t *at, uint##bits##_t value, int order)               \
    {                                                                                                            \
        (void)order;                                                                                             \
        count(STORES);                                                                                           \
        __atomic_store_n(at, value, __ATOMIC_SEQ_CST);                                                           \
    }                                                                                                            \
    uint##bits##_t __tsan_atomic##bits##_exchange(volatile uint##bits##_t *at, uint##bits##_t value, int order)  \
    {                                                                                                            \
        (void)order;                                                                                             \
        count(UPDATES);                                                                                          \
        return __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);                                                 \
    }                                                                                                            \
    uint##bits##_t __tsan_atomic##bits##_fetch_add(volatile uint##bits##_t *at, uint##bits##_t value, int order) \
    {                                                                                                            \
        (void)order;                                                                                             \
        count(UPDATES);                                                                                          \
        return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);                                                  \
    }                                                                                                            \
    uint##bits##_t __tsan_atomic##bits##_fetch_sub(volatile uint##bits##_t *at, uint##bits##_t value, int order) \
    {                                                                                                            \
        (void)order;                                                                                             \
        count(UPDATES);                                                                                          \
        return __atomic_fetch_sub(at, value, __ATOMIC_SEQ_CST);                                                  \
    }                                                                                                            \
    uint##bits##_t __tsan_atomic##bits##_fetch_or(volatile uint##bits##_t *at, uint##bits##_t value, int order)  \
    {                                                                                                            \
        (void)order;                                                                                             \
        count(UPDATES);                                                                                          \
        return __atomic_fetch_or(at, value, __ATOMIC_SEQ_CST);                                                   \
    }                                                                                                            \
    uint##bits##_t __tsan_atomic##bits##_fetch_and(volatile uint##bits##_t *at, uint##bits##_t value, int order) \
    {                                                                                                            \
        (void)order;                                                                                             \
        count(UPDATES);                                                                                          \
        return __atomic_fetch_and(at, value, __ATOMIC_SEQ_CST);                                                  \
    }                                                                                                            \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile uint##bits##_t *at, uint##bits##_t *expected,     \
                                                      uint##bits##_t value, int order, int failure)              \
    {                                                                                                            \
        (void)order;                                                                                             \
        (void)failure;                                                                                           \
        count(UPDATES);                                                                                          \
        return __atomic_compare_exchange_n(at, expected, value, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);          \
    }                                                                                                            \
    int __tsan_atomic##bits##_compare_exchange_weak(volatile uint##bits##_t *at, uint##bits##_t *expected,       \
                                                    uint##bits##_t value, int order, int failure)                \
    {                                                                                                            \
        return __tsan_atomic##bits##_compare_exchange_strong(at, expected, value, order, failure);               \
    }

ATOMICS(8)
ATOMICS(16)
ATOMICS(32)
ATOMICS(64)

/* ---- the rest of what the compiler calls */

void
__tsan_init(void)
{
}

void
__tsan_func_entry(void *address)
{
    (void)address;
}

void
__tsan_func_exit(void)
{
}

#define ACCESS(name)         \
    void name(void *address) \
    {                        \
        (void)address;       \
    }

ACCESS(__tsan_read1)
ACCESS(__tsan_read2)
ACCESS(__tsan_read4)
ACCESS(__tsan_read8)
ACCESS(__tsan_read16)
ACCESS(__tsan_write1)
ACCESS(__tsan_write2)
ACCESS(__tsan_write4)
ACCESS(__tsan_write8)
ACCESS(__tsan_write16)

void
__tsan_read_range(void *address, size_t nbytes)
{
    (void)address;
    (void)nbytes;
}

void
__tsan_write_range(void *address, size_t nbytes)
{
    (void)address;
    (void)nbytes;
}
