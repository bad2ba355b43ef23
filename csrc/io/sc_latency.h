/* sc_latency.h - what a call costs on each file system: a moving estimate of the time of an open or of a small read
 *
 * Readers time some of the calls that they make anyway: a thread times one in eight fast calls, and each call after a slow
 * one, because the clock costs nothing beside it. A file system is identified by its device number. The estimate moves on a
 * logarithmic scale and by a limited step, so one call that was delayed by chance changes it little. It falls twice as fast as
 * it rises, because a busy processor makes calls slower but never faster:
 *
 *     log2(estimate) += clamp(log2(time) - log2(estimate), -2 .. 2) / (4 downwards, 8 upwards)
 *
 * Four slow calls of a thread in a row raise it at once to the fastest of them. An open that finds no file is only one of
 * these. A fast one does not show that calls are cheap, because the kernel may remember that the name does not exist.
 *
 * Threads update the table without a lock. A lost update costs nothing. A forked child keeps the table.
 * SPDX-License-Identifier: MIT */
#ifndef SC_LATENCY_H
#define SC_LATENCY_H

#include <stdatomic.h>

#include "base/sc_common.h"

/* From this cost on several reads at a time are worth a change of threads. */
#define SC_LATENCY_DEEP_NS ((uint64_t)20 * 1000)

/* A read of at most this many bytes moves the estimate. Copying takes a quarter of a nanosecond per byte, which does not count.
 * A larger one moves it only downwards. It is also one of the slow calls in a row, without four nanoseconds per byte: a thread
 * may lose its processor in each of several large reads, and memory may be slow. */
#define SC_LATENCY_NBYTES ((uint64_t)128 << 10)

/* The number of file systems that the table holds. A new one replaces an old one in a full table. */
#define SC_LATENCY_MOUNTS 64

/* Return the time in nanoseconds, of a clock that is never set back. */
uint64_t sc_clock_ns(void);

/* A call begins: return the time in nanoseconds, or 0 if this call is not timed. */
uint64_t sc_latency_begin(void);

/* The call has succeeded on a file of this device and moved so many bytes. */
void sc_latency_end(uint64_t begin, uint64_t device, uint64_t nbytes);

/* The call is an open that has found no file: return how long it took, in nanoseconds; 0: it was not timed. The caller finds
 * out which device it was, and notes the time there. */
uint64_t sc_latency_end_missing(uint64_t begin);
void sc_latency_note_missing(uint64_t device, uint64_t ns);

/* Return the estimate in nanoseconds; 0: none yet. */
uint64_t sc_latency_of(uint64_t device);

/* The device of the file that was opened last, plus one; 0: none yet. It predicts the device of the next ones. */
struct sc_device_hint {
    _Atomic uint64_t device;
};

/* Return the estimate for the device of a hint; 0: none yet. */
uint64_t sc_latency_expected(const struct sc_device_hint *hint);

/* A file on this device was opened. */
void sc_latency_hint(struct sc_device_hint *hint, uint64_t device);

/* Set the estimate of a device that has none. */
void sc_latency_seed(uint64_t device, uint64_t ns);

/* Raise the estimate to a time that the caller has measured more than once. */
void sc_latency_raise(uint64_t device, uint64_t ns);

/* Store up to SC_LATENCY_MOUNTS devices and their estimates; return their number. */
size_t sc_latency_list(uint64_t *devices, uint64_t *ns);

/* Forget all estimates. */
void sc_latency_reset(void);

#endif
