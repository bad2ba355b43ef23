/* sc_real_loops.h - loops over blocks of floats or of doubles; sc_reals.h includes this text once for each of them
 *
 * REAL is the type, REAL_BITS a signed integer of the same size, REAL_NAME(name) the name of a function. The type has REAL_ROUND,
 * REAL_FABS and REAL_COPYSIGN.
 * SPDX-License-Identifier: MIT */

/* Round to integers by one rule. sc_round() rounds to the nearest, even if there are two; the others correct its result. `mode` is a
 * constant where this is called. */
static inline __attribute__((always_inline)) void
REAL_NAME(round_in)(const enum sc_rounding mode, REAL *work, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const REAL x = work[i], size = REAL_FABS(x), near = REAL_FABS(REAL_ROUND(x));
        const REAL less = near - (near > size ? (REAL)1 : (REAL)0);
        REAL result = less;

        if (mode == SC_NEAREST_EVEN)
            result = near;
        else if (mode == SC_TOWARDS_POSITIVE)
            result += (less < size) & (x > 0) ? (REAL)1 : (REAL)0;
        else if (mode == SC_TOWARDS_NEGATIVE)
            result += (less < size) & (x < 0) ? (REAL)1 : (REAL)0;
        else if (mode == SC_NEAREST_AWAY)
            result += size - less >= (REAL)0.5 ? (REAL)1 : (REAL)0;
        work[i] = REAL_COPYSIGN(result, x);
    }
}

static inline void
REAL_NAME(round)(enum sc_rounding mode, REAL *work, size_t n)
{
    switch (mode) {
    case SC_NEAREST_EVEN:
        REAL_NAME(round_in)(SC_NEAREST_EVEN, work, n);
        break;
    case SC_TOWARDS_ZERO:
        REAL_NAME(round_in)(SC_TOWARDS_ZERO, work, n);
        break;
    case SC_TOWARDS_POSITIVE:
        REAL_NAME(round_in)(SC_TOWARDS_POSITIVE, work, n);
        break;
    case SC_TOWARDS_NEGATIVE:
        REAL_NAME(round_in)(SC_TOWARDS_NEGATIVE, work, n);
        break;
    case SC_NEAREST_AWAY:
        REAL_NAME(round_in)(SC_NEAREST_AWAY, work, n);
        break;
    }
}

/* True if all numbers are in [least, above). */
static inline bool
REAL_NAME(fit)(const REAL *work, size_t n, REAL least, REAL above)
{
    REAL_BITS bad = 0;

    for (size_t i = 0; i < n; i++)
        bad |= work[i] >= least && work[i] < above ? 0 : 1;
    return !bad;
}

static inline void
REAL_NAME(clamp)(REAL *work, size_t n, REAL least, REAL most)
{
    for (size_t i = 0; i < n; i++) {
        const REAL x = work[i] < least ? least : work[i];

        work[i] = x > most ? most : x;
    }
}

static inline void
REAL_NAME(scale)(const uint8_t *restrict src, size_t n, REAL offset, REAL scale, uint8_t *restrict dst)
{
    REAL item;

    for (size_t i = 0; i < n; i++) {
        memcpy(&item, src + i * sizeof item, sizeof item);
        item = (item - offset) * scale;
        memcpy(dst + i * sizeof item, &item, sizeof item);
    }
}

static inline void
REAL_NAME(unscale)(const uint8_t *restrict src, size_t n, REAL offset, REAL scale, uint8_t *restrict dst)
{
    REAL item;

    for (size_t i = 0; i < n; i++) {
        memcpy(&item, src + i * sizeof item, sizeof item);
        item = item / scale + offset;
        memcpy(dst + i * sizeof item, &item, sizeof item);
    }
}

/* The first number, then the differences of neighbours. */
static inline void
REAL_NAME(difference)(const uint8_t *restrict src, size_t n, uint8_t *restrict dst)
{
    REAL last, item;

    memcpy(dst, src, n ? sizeof item : 0);
    for (size_t i = 1; i < n; i++) {
        memcpy(&last, src + (i - 1) * sizeof last, sizeof last);
        memcpy(&item, src + i * sizeof item, sizeof item);
        item -= last;
        memcpy(dst + i * sizeof item, &item, sizeof item);
    }
}

static inline void
REAL_NAME(sum)(const uint8_t *restrict src, size_t n, uint8_t *restrict dst)
{
    REAL sum = 0, item;

    for (size_t i = 0; i < n; i++) {
        memcpy(&item, src + i * sizeof item, sizeof item);
        sum = i ? sum + item : item;
        memcpy(dst + i * sizeof sum, &sum, sizeof sum);
    }
}

#undef REAL
#undef REAL_BITS
#undef REAL_NAME
#undef REAL_ROUND
#undef REAL_FABS
#undef REAL_COPYSIGN
