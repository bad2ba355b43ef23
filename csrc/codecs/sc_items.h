/* sc_items.h - numbers of several types: blocks of them are converted, changed and converted again
 *
 * Filters compute in double, in float or modulo 2^64. One function for each type converts a block between memory and
 * such a work type, so a filter needs no code for each pair of types, and the compiler uses vectors.
 *
 * Memory need not be aligned. Floats outside of an integer type, and NaN, become what numpy gives on x86-64, on every
 * processor; numpy calls these results undefined.
 * SPDX-License-Identifier: MIT */
#ifndef SC_ITEMS_H
#define SC_ITEMS_H

#include "base/sc_common.h"

enum sc_item_type {
    SC_INT8,
    SC_INT16,
    SC_INT32,
    SC_INT64,
    SC_UINT8,
    SC_UINT16,
    SC_UINT32,
    SC_UINT64,
    SC_FLOAT16, /* only its size and its bits */
    SC_FLOAT32,
    SC_FLOAT64,
    SC_N_ITEM_TYPES
};

#define SC_BLOCK_ITEMS 512

/* 0 for an unknown type. */
size_t sc_item_nbytes(int type);

static inline bool
sc_item_is_float(int type)
{
    return type == SC_FLOAT32 || type == SC_FLOAT64;
}

static inline bool
sc_item_is_integer(int type)
{
    return type >= SC_INT8 && type <= SC_UINT64;
}

/* n is at most SC_BLOCK_ITEMS. The type is an integer or a float, not float16. */
void sc_items_to_doubles(int type, const uint8_t *src, size_t n, double *work);
void sc_items_from_doubles(int type, const double *work, size_t n, uint8_t *dst);

/* Integers modulo 2^64. is_unsigned: they came from uint64; it matters if they become floats. */
void sc_items_to_words(int type, const uint8_t *src, size_t n, uint64_t *work);
void sc_items_from_words(int type, bool is_unsigned, const uint64_t *work, size_t n, uint8_t *dst);

/* Convert n items of any number; the types may be equal. */
void sc_items_convert(int from, int to, const uint8_t *src, size_t n, uint8_t *dst);

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
