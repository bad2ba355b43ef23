/* sc_items.c - conversions of blocks of numbers (see sc_items.h)
 * SPDX-License-Identifier: MIT */
#include "codecs/sc_items.h"

size_t
sc_item_nbytes(int type)
{
    static const uint8_t nbytes[SC_N_ITEM_TYPES] = { 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8 };

    return type >= 0 && type < SC_N_ITEM_TYPES ? nbytes[type] : 0;
}

/* ---- floats to integers: what numpy's loops give on x86-64, where conversions outside of the range are INT_MIN */

static inline int32_t
to_int32(double x)
{
    return x > -2147483649.0 && x < 2147483648.0 ? (int32_t)x : INT32_MIN;
}

static inline int64_t
to_int64(double x)
{
    return x >= -0x1p63 && x < 0x1p63 ? (int64_t)x : INT64_MIN;
}

static inline uint32_t
to_uint32(double x)
{
    return x >= 2147483648.0 ? (uint32_t)to_int32(x - 2147483648.0) ^ 1u << 31 : (uint32_t)to_int32(x);
}

static inline uint64_t
to_uint64(double x)
{
    return x >= 0x1p63 ? (uint64_t)to_int64(x - 0x1p63) ^ (uint64_t)1 << 63 : (uint64_t)to_int64(x);
}

/* ---- one loop for each type */

#define LOAD(Item, Work)                                   \
    for (size_t i = 0; i < n; i++) {                       \
        Item item;                                         \
                                                           \
        memcpy(&item, src + i * sizeof item, sizeof item); \
        work[i] = (Work)item;                              \
    }

#define STORE(Item, value)                                 \
    for (size_t i = 0; i < n; i++) {                       \
        Item item = (Item)(value);                         \
                                                           \
        memcpy(dst + i * sizeof item, &item, sizeof item); \
    }

void
sc_items_to_doubles(int type, const uint8_t *src, size_t n, double *work)
{
    switch (type) {
    case SC_INT8:
        LOAD(int8_t, double)
        break;
    case SC_INT16:
        LOAD(int16_t, double)
        break;
    case SC_INT32:
        LOAD(int32_t, double)
        break;
    case SC_INT64:
        LOAD(int64_t, double)
        break;
    case SC_UINT8:
        LOAD(uint8_t, double)
        break;
    case SC_UINT16:
        LOAD(uint16_t, double)
        break;
    case SC_UINT32:
        LOAD(uint32_t, double)
        break;
    case SC_UINT64:
        LOAD(uint64_t, double)
        break;
    case SC_FLOAT32:
        LOAD(float, double)
        break;
    case SC_FLOAT64:
        LOAD(double, double)
        break;
    }
}

void
sc_items_from_doubles(int type, const double *work, size_t n, uint8_t *dst)
{
    switch (type) {
    case SC_INT8:
        STORE(int8_t, to_int32(work[i]))
        break;
    case SC_INT16:
        STORE(int16_t, to_int32(work[i]))
        break;
    case SC_INT32:
        STORE(int32_t, to_int32(work[i]))
        break;
    case SC_INT64:
        STORE(int64_t, to_int64(work[i]))
        break;
    case SC_UINT8:
        STORE(uint8_t, to_int32(work[i]))
        break;
    case SC_UINT16:
        STORE(uint16_t, to_int32(work[i]))
        break;
    case SC_UINT32:
        STORE(uint32_t, to_uint32(work[i]))
        break;
    case SC_UINT64:
        STORE(uint64_t, to_uint64(work[i]))
        break;
    case SC_FLOAT32:
        STORE(float, work[i])
        break;
    case SC_FLOAT64:
        STORE(double, work[i])
        break;
    }
}

void
sc_items_to_words(int type, const uint8_t *src, size_t n, uint64_t *work)
{
    switch (type) {
    case SC_INT8:
        LOAD(int8_t, uint64_t)
        break;
    case SC_INT16:
        LOAD(int16_t, uint64_t)
        break;
    case SC_INT32:
        LOAD(int32_t, uint64_t)
        break;
    case SC_INT64:
        LOAD(int64_t, uint64_t)
        break;
    case SC_UINT8:
        LOAD(uint8_t, uint64_t)
        break;
    case SC_UINT16:
        LOAD(uint16_t, uint64_t)
        break;
    case SC_UINT32:
        LOAD(uint32_t, uint64_t)
        break;
    case SC_UINT64:
        LOAD(uint64_t, uint64_t)
        break;
    }
}

void
sc_items_from_words(int type, bool is_unsigned, const uint64_t *work, size_t n, uint8_t *dst)
{
    switch (type) {
    case SC_INT8:
    case SC_UINT8:
        STORE(uint8_t, work[i])
        break;
    case SC_INT16:
    case SC_UINT16:
        STORE(uint16_t, work[i])
        break;
    case SC_INT32:
    case SC_UINT32:
        STORE(uint32_t, work[i])
        break;
    case SC_INT64:
    case SC_UINT64:
        STORE(uint64_t, work[i])
        break;
    case SC_FLOAT32:
        if (is_unsigned)
            STORE(float, work[i])
        else
            STORE(float, (int64_t)work[i])
        break;
    case SC_FLOAT64:
        if (is_unsigned)
            STORE(double, work[i])
        else
            STORE(double, (int64_t)work[i])
        break;
    }
}

void
sc_items_convert(int from, int to, const uint8_t *src, size_t n, uint8_t *dst)
{
    const size_t from_nbytes = sc_item_nbytes(from), to_nbytes = sc_item_nbytes(to);

    if (from == to) {
        if (n)
            memcpy(dst, src, n * from_nbytes);
        return;
    }
    for (size_t begin = 0; begin < n; begin += SC_BLOCK_ITEMS) {
        const size_t count = (size_t)min_u64(n - begin, SC_BLOCK_ITEMS);

        if (sc_item_is_float(from)) {
            double work[SC_BLOCK_ITEMS];

            sc_items_to_doubles(from, src + begin * from_nbytes, count, work);
            sc_items_from_doubles(to, work, count, dst + begin * to_nbytes);
        } else {
            uint64_t work[SC_BLOCK_ITEMS];

            sc_items_to_words(from, src + begin * from_nbytes, count, work);
            sc_items_from_words(to, from == SC_UINT64, work, count, dst + begin * to_nbytes);
        }
    }
}
