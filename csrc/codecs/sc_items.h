/* sc_items.h - numbers of several types: blocks of them are converted, changed and converted again
 *
 * Filters compute in double, in float or modulo 2^64. One function converts a block between memory and such a work type,
 * so a filter needs no code for each pair of types, and the compiler uses vectors.
 *
 * Memory need not be aligned. Floats outside of an integer type, and NaN, become what numpy gives on x86-64, on every
 * processor; numpy calls these results undefined.
 * SPDX-License-Identifier: MIT */
#ifndef SC_ITEMS_H
#define SC_ITEMS_H

#include "base/sc_status.h"

enum sc_item_type {
    SC_INT8,
    SC_INT16,
    SC_INT32,
    SC_INT64,
    SC_UINT8,
    SC_UINT16,
    SC_UINT32,
    SC_UINT64,
    SC_FLOAT16,
    SC_FLOAT32,
    SC_FLOAT64,
    SC_N_ITEM_TYPES
};

#define SC_BLOCK_ITEMS 512

/* Rules of the codec "cast_value": how numbers become such of another type. */
enum sc_rounding { SC_NEAREST_EVEN, SC_TOWARDS_ZERO, SC_TOWARDS_POSITIVE, SC_TOWARDS_NEGATIVE, SC_NEAREST_AWAY };
enum sc_out_of_range { SC_REFUSE, SC_CLAMP, SC_WRAP };

/* 0 for an unknown type. */
size_t sc_item_nbytes(int type);

/* Fill *where for an item, the one of this number, that has no place in another type, and return `status`. */
enum sc_status sc_item_failed(enum sc_status status, struct sc_where *where, const char *codec, const char *detail,
                              const uint8_t *item, uint64_t number, int type, int other_type, uint64_t nbytes);

static inline bool
sc_item_is_float(int type)
{
    return type >= SC_FLOAT16 && type <= SC_FLOAT64;
}

static inline bool
sc_item_is_integer(int type)
{
    return type >= SC_INT8 && type <= SC_UINT64;
}

static inline bool
sc_item_is_signed(int type)
{
    return type >= SC_INT8 && type <= SC_INT64;
}

/* The least and the greatest number of an integer type. */
static inline int64_t
sc_item_least(int type)
{
    return sc_item_is_signed(type) ? INT64_MIN >> (64 - 8 * (unsigned)sc_item_nbytes(type)) : 0;
}

static inline uint64_t
sc_item_most(int type)
{
    return UINT64_MAX >> (64 - 8 * (unsigned)sc_item_nbytes(type) + sc_item_is_signed(type));
}

/* The integer types: ROW(ID, C type). */
#define SC_INTEGERS(ROW)     \
    ROW(SC_INT8, int8_t)     \
    ROW(SC_INT16, int16_t)   \
    ROW(SC_INT32, int32_t)   \
    ROW(SC_INT64, int64_t)   \
    ROW(SC_UINT8, uint8_t)   \
    ROW(SC_UINT16, uint16_t) \
    ROW(SC_UINT32, uint32_t) \
    ROW(SC_UINT64, uint64_t)

/* Convert n items of any number; the types may be equal. Integers become other integers modulo their size; a number that a
 * float cannot hold becomes the nearest one. src and dst do not overlap. */
void sc_items_convert(int from, int to, const uint8_t *restrict src, size_t n, uint8_t *restrict dst);

/* The conversions from and to the work types. A word is an integer modulo 2^64. */
static inline void
sc_items_to_doubles(int type, const uint8_t *src, size_t n, double *work)
{
    sc_items_convert(type, SC_FLOAT64, src, n, (uint8_t *)work);
}

static inline void
sc_items_from_doubles(int type, const double *work, size_t n, uint8_t *dst)
{
    sc_items_convert(SC_FLOAT64, type, (const uint8_t *)work, n, dst);
}

static inline void
sc_items_to_words(int type, const uint8_t *src, size_t n, uint64_t *work)
{
    sc_items_convert(type, SC_UINT64, src, n, (uint8_t *)work);
}

static inline void
sc_items_from_words(int type, const uint64_t *work, size_t n, uint8_t *dst)
{
    sc_items_convert(SC_UINT64, type, (const uint8_t *)work, n, dst);
}

/* float16, without subnormal numbers of another type, which a process may have switched off. */

static inline float
sc_float_of_half(uint16_t half)
{
    const uint32_t magnitude = half & 0x7fffu, exponent = magnitude & 0x7c00u;
    uint32_t bits = (magnitude << 13) + ((127u - 15u) << 23);
    uint32_t tiny_bits = bits + (1u << 23);
    float tiny;

    memcpy(&tiny, &tiny_bits, sizeof tiny);
    tiny -= 0x1p-14f;
    memcpy(&tiny_bits, &tiny, sizeof tiny);
    bits += exponent == 0x7c00u ? (128u - 16u) << 23 : 0;
    bits |= magnitude > 0x7c00u ? 1u << 22 : 0; /* NaN: quiet */
    bits = exponent ? bits : tiny_bits;
    bits |= (uint32_t)(half & 0x8000u) << 16;
    memcpy(&tiny, &bits, sizeof tiny);
    return tiny;
}

static inline uint16_t
sc_half_of_double(double x)
{
    double magnitude = __builtin_fabs(x), unit;
    uint64_t bits, exponent;
    uint32_t single_bits, half;
    float single;

    memcpy(&bits, &x, sizeof bits);
    magnitude = magnitude < 65536.0 ? magnitude : 65536.0;
    exponent = bits & 0x7ff0000000000000;
    memcpy(&unit, &exponent, sizeof unit);
    unit = unit > 0x1p-14 ? unit : 0x1p-14;
    unit = unit < 65536.0 ? unit : 65536.0;
    unit *= 0x1p42; /* a number of which the last place is that of the result */
    magnitude = (magnitude + unit) - unit;
    single = (float)magnitude;
    memcpy(&single_bits, &single, sizeof single_bits);
    half = magnitude < 0x1p-14 ? (uint32_t)(int32_t)(magnitude * 0x1p24) : (single_bits >> 13) - (112u << 10);
    half = x != x ? 0x7e00u | (uint32_t)(bits >> 42 & 0x3ff) : half;
    return (uint16_t)(half | (uint32_t)(bits >> 48 & 0x8000u));
}

static inline double
sc_nearest_half(double x)
{
    return sc_float_of_half(sc_half_of_double(x));
}

/* The nearest integer, even if there are two. (rint() is a call for each number without SSE 4.1.) */
static inline double
sc_round(double x)
{
    double magnitude = __builtin_fabs(x), rounded = (magnitude + 0x1p52) - 0x1p52;

    return __builtin_copysign(magnitude < 0x1p52 ? rounded : magnitude, x);
}

static inline float
sc_roundf(float x)
{
    float magnitude = __builtin_fabsf(x), rounded = (magnitude + 0x1p23f) - 0x1p23f;

    return __builtin_copysignf(magnitude < 0x1p23f ? rounded : magnitude, x);
}

#endif
