/* sc_reals.h - loops over blocks of floats and of doubles: `scale_floats`, `scale_doubles` and so on, one text for both
 * SPDX-License-Identifier: MIT */
#ifndef SC_REALS_H
#define SC_REALS_H

#include "codecs/sc_items.h"

#define REAL float
#define REAL_BITS int32_t
#define REAL_NAME(name) name##_floats
#define REAL_ROUND sc_roundf
#define REAL_FABS __builtin_fabsf
#define REAL_COPYSIGN __builtin_copysignf
#include "codecs/sc_real_loops.h"

#define REAL double
#define REAL_BITS int64_t
#define REAL_NAME(name) name##_doubles
#define REAL_ROUND sc_round
#define REAL_FABS __builtin_fabs
#define REAL_COPYSIGN __builtin_copysign
#include "codecs/sc_real_loops.h"

/* float16 is computed as double and rounded after each step, which gives the nearest float16. */
static inline void
round_to_halves(double *work, size_t n)
{
    for (size_t i = 0; i < n; i++)
        work[i] = sc_nearest_half(work[i]);
}

static inline void
scale_halves(const uint8_t *src, size_t n, double offset, double scale, double *work)
{
    sc_items_to_doubles(SC_FLOAT16, src, n, work);
    for (size_t i = 0; i < n; i++)
        work[i] -= sc_nearest_half(offset);
    round_to_halves(work, n);
    for (size_t i = 0; i < n; i++)
        work[i] *= sc_nearest_half(scale);
    round_to_halves(work, n);
}

static inline void
unscale_halves(const uint8_t *src, size_t n, double offset, double scale, double *work)
{
    sc_items_to_doubles(SC_FLOAT16, src, n, work);
    for (size_t i = 0; i < n; i++)
        work[i] /= sc_nearest_half(scale);
    round_to_halves(work, n);
    for (size_t i = 0; i < n; i++)
        work[i] += sc_nearest_half(offset);
    round_to_halves(work, n);
}

#endif
