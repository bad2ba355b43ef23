/* sc_fault.h - make one of the calls that change a file system fail, fall short, wait, or be the last; or an allocation
 * fail: for tests
 *
 * The calls are counted from the moment it is armed, in all threads together.
 * SPDX-License-Identifier: MIT */
#ifndef SC_FAULT_H
#define SC_FAULT_H

#include "base/sc_status.h"

enum sc_fault_action {
    SC_FAULT_COUNT = 0, /* nothing happens */
    SC_FAULT_KILL = 1, /* the process is killed instead of the call */
    SC_FAULT_ERROR = 2, /* the call fails with the errno `value` */
    SC_FAULT_SHORT = 3, /* a write moves no more than `value` bytes */
    /* as SC_FAULT_SHORT, and the process is killed before the next call. A write that the kernel does as a whole
     * (pwrite_once) is not cut, because no kill can cut it. */
    SC_FAULT_TORN = 4,
    SC_FAULT_STOP = 5, /* the process stops before the call, until it gets SIGCONT */
};

#define SC_FAULT_LOG 1024u

/* Install the fork handlers. Once, at import. */
enum sc_status sc_fault_init(void);

/* Act at the n-th call, counted from 0. */
void sc_fault_arm(uint64_t n, enum sc_fault_action action, uint64_t value);

/* Remove the fault and return the number of calls. sc_fault_call() names the first SC_FAULT_LOG of them. */
uint64_t sc_fault_disarm(void);
const char *sc_fault_call(uint64_t n);

/* Fail the n-th allocation, counted from 0, and with `and_all_after` each later one. The caller frees the free
 * workers first, and again before it removes the fault (sc_worker_drop_free()): memory that they keep is not
 * counted. */
void sc_fault_arm_memory(uint64_t n, bool and_all_after);

/* The allocations since then. */
struct sc_fault_memory {
    uint64_t n_asked;
    uint64_t n_live; /* not freed */
    uint64_t live_nbytes;
    uint64_t peak_nbytes; /* most of live_nbytes at a time */
};

/* Remove it. */
struct sc_fault_memory sc_fault_disarm_memory(void);

#endif
