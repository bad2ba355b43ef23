/* sc_fault.c - faults for tests (see sc_fault.h)
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "sc_fault.h"

#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "sc_file.h"

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
