/* sc_engine.c - statistics of plans (see sc_engine.h)
 * SPDX-License-Identifier: MIT */
#include "plan/sc_engine.h"

#include <stdatomic.h>

/* All counters have one type, so they can be added up as an array. */
#define N_COUNTERS (sizeof(struct sc_stats) / sizeof(uint64_t))

static _Atomic uint64_t totals[N_COUNTERS];

void
sc_stats_add(struct sc_stats *total, const struct sc_stats *part)
{
    uint64_t sum[N_COUNTERS], more[N_COUNTERS];

    memcpy(sum, total, sizeof sum);
    memcpy(more, part, sizeof more);
    for (size_t i = 0; i < N_COUNTERS; i++)
        sum[i] += more[i];
    memcpy(total, sum, sizeof sum);
}

void
sc_stats_add_shared(struct sc_stats *total, const struct sc_stats *part)
{
    uint64_t *sum = (uint64_t *)(void *)total, more[N_COUNTERS];

    memcpy(more, part, sizeof more);
    for (size_t i = 0; i < N_COUNTERS; i++) {
        if (more[i])
            __atomic_fetch_add(&sum[i], more[i], __ATOMIC_RELAXED);
    }
}

void
sc_totals_add(const struct sc_stats *part)
{
    uint64_t more[N_COUNTERS];

    memcpy(more, part, sizeof more);
    for (size_t i = 0; i < N_COUNTERS; i++)
        if (more[i])
            atomic_fetch_add_explicit(&totals[i], more[i], memory_order_relaxed);
}

void
sc_totals_get(struct sc_stats *total)
{
    uint64_t sum[N_COUNTERS];

    for (size_t i = 0; i < N_COUNTERS; i++)
        sum[i] = atomic_load_explicit(&totals[i], memory_order_relaxed);
    memcpy(total, sum, sizeof sum);
}

void
sc_totals_reset(void)
{
    for (size_t i = 0; i < N_COUNTERS; i++)
        atomic_store_explicit(&totals[i], 0, memory_order_relaxed);
}
