/* sc_divide.h - division by a constant that is known at run time
 *
 * A 64-bit division takes tens of cycles, a multiplication three. For n and d below 2^32, with m = floor((2^64 - 1) / d) + 1:
 *
 *     m = (2^64 + e) / d  with  0 <= e < d,    so    m * n / 2^64 = n / d + e * n / (d * 2^64)
 *
 * and the excess is less than n / 2^64 < 1 / d, too little to reach the next integer. So the high word of the product
 * is the quotient. For d = 1 m wraps to 0; then, and for larger numbers, 0 selects an ordinary division.
 *
 * SPDX-License-Identifier: MIT */
#ifndef SC_DIVIDE_H
#define SC_DIVIDE_H

#include "base/sc_common.h"

struct sc_divisor {
    uint64_t by, reciprocal;
};

/* Prepare a division by `by`, which is not 0, of numbers below `limit`. */
static inline struct sc_divisor
sc_divisor(uint64_t by, uint64_t limit)
{
    struct sc_divisor divisor = { by, 0 };

#ifdef __SIZEOF_INT128__
    if (by <= UINT32_MAX && limit <= (uint64_t)UINT32_MAX + 1)
        divisor.reciprocal = UINT64_MAX / by + 1;
#endif
    return divisor;
}

static inline uint64_t
sc_divide(struct sc_divisor divisor, uint64_t n)
{
#ifdef __SIZEOF_INT128__
    if (SC_LIKELY(divisor.reciprocal))
        return (uint64_t)((unsigned __int128)divisor.reciprocal * n >> 64);
#endif
    return divisor.by == 1 ? n : n / divisor.by;
}

#endif
