/* sc_fault.c - faults for tests (see sc_fault.h)
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "io/sc_fault.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/sc_alloc.h"
#include "base/sc_fork.h"
#include "io/sc_file.h"

static struct {
    atomic_uint_fast64_t count;
    uint64_t at, value;
    enum sc_fault_action action;
    const char *calls[SC_FAULT_LOG];
} fault;

static void
die(void)
{
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

static int
before(const char *call, const char *path, uint64_t *limit, void *arg)
{
    uint64_t n = atomic_fetch_add(&fault.count, 1);
    bool whole = strcmp(call, "pwrite_once") == 0;

    (void)path, (void)arg;
    if (n < SC_FAULT_LOG)
        fault.calls[n] = call;
    if (fault.action == SC_FAULT_TORN && n == fault.at + 1)
        die();
    if (n != fault.at)
        return 0;
    switch (fault.action) {
    case SC_FAULT_KILL:
        die();
        break;
    case SC_FAULT_STOP:
        raise(SIGSTOP);
        break;
    case SC_FAULT_ERROR:
        return (int)fault.value;
    case SC_FAULT_SHORT:
        *limit = min_u64(*limit, fault.value);
        break;
    case SC_FAULT_TORN:
        if (!whole)
            *limit = min_u64(*limit, fault.value);
        break;
    case SC_FAULT_COUNT:
        break;
    }
    return 0;
}

void
sc_fault_arm(uint64_t n, enum sc_fault_action action, uint64_t value)
{
    static const struct sc_file_hook hook = { before, NULL };

    atomic_store(&fault.count, 0);
    fault.at = n;
    fault.action = action;
    fault.value = value;
    sc_file_set_hook(&hook);
}

uint64_t
sc_fault_disarm(void)
{
    sc_file_set_hook(NULL);
    return atomic_load(&fault.count);
}

const char *
sc_fault_call(uint64_t n)
{
    return n < SC_FAULT_LOG && n < atomic_load(&fault.count) ? fault.calls[n] : NULL;
}

/* ---- memory ---- */

/* The blocks that were taken while a test counts. A plan holds some dozens, so a linear search is enough. A block
 * that does not fit is counted as live, so the test fails. */
#define MAX_LIVE 4096u

static struct {
    pthread_mutex_t mutex;
    uint64_t at, n_asked, n_live, live_nbytes, peak_nbytes;
    bool and_all_after;
    struct {
        void *block;
        size_t nbytes;
    } live[MAX_LIVE];
} memory = { .mutex = PTHREAD_MUTEX_INITIALIZER };

static bool
allows(size_t nbytes)
{
    uint64_t n;

    (void)nbytes;
    pthread_mutex_lock(&memory.mutex);
    n = memory.n_asked++;
    pthread_mutex_unlock(&memory.mutex);
    return n < memory.at || (n > memory.at && !memory.and_all_after);
}

static void
taken(void *block, size_t nbytes)
{
    pthread_mutex_lock(&memory.mutex);
    if (memory.n_live < MAX_LIVE) {
        memory.live[memory.n_live].block = block;
        memory.live[memory.n_live].nbytes = nbytes;
    }
    memory.n_live++;
    memory.live_nbytes += nbytes;
    memory.peak_nbytes = max_u64(memory.peak_nbytes, memory.live_nbytes);
    pthread_mutex_unlock(&memory.mutex);
}

/* Blocks that were taken before the test began are not counted. */
static void
freed(void *block)
{
    pthread_mutex_lock(&memory.mutex);
    for (uint64_t i = min_u64(memory.n_live, MAX_LIVE); i-- > 0;) {
        if (memory.live[i].block != block)
            continue;
        memory.n_live--;
        memory.live_nbytes -= memory.live[i].nbytes;
        memory.live[i] = memory.live[min_u64(memory.n_live, MAX_LIVE - 1)];
        break;
    }
    pthread_mutex_unlock(&memory.mutex);
}

void
sc_fault_arm_memory(uint64_t n, bool and_all_after)
{
    static const struct sc_alloc_hook hook = { allows, taken, freed };

    memory.at = n;
    memory.and_all_after = and_all_after;
    memory.n_asked = memory.n_live = memory.live_nbytes = memory.peak_nbytes = 0;
    sc_alloc_set_hook(&hook);
}

struct sc_fault_memory
sc_fault_disarm_memory(void)
{
    sc_alloc_set_hook(NULL);
    return (struct sc_fault_memory){ memory.n_asked, memory.n_live, memory.live_nbytes, memory.peak_nbytes };
}

SC_HOLD_ACROSS_FORK(memory.mutex)

static void
after_fork_in_child(void)
{
    pthread_mutex_init(&memory.mutex, NULL);
}

enum sc_status
sc_fault_init(void)
{
    return sc_fork_handlers(before_fork, after_fork_in_parent, after_fork_in_child);
}
