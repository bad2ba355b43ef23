/* sc_common.h - what every file of csrc needs: byte access, checked arithmetic, attributes
 *
 * It uses C11 and the C library only, and knows neither Python nor shards.
 * SPDX-License-Identifier: MIT */
#ifndef SC_COMMON_H
#define SC_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#define SC_ARCH_X86_64 1
#elif defined(__aarch64__)
#define SC_ARCH_ARM64 1
#endif

#if !defined(__GNUC__)
#error "shardcodec needs gcc or clang (function attributes, overflow built-ins)"
#endif

#define SC_TARGET(features) __attribute__((target(features)))
#define SC_LIKELY(x) __builtin_expect(!!(x), 1)
#define SC_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define SC_ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

/* Zarr sets no limit on the rank. numpy allows 64; 32 is the limit of all other implementations. */
#define SC_MAX_NDIM 32

/* Buffers that vector code touches start on a cache line. */
#define SC_ALIGNMENT 64

/* No file system that is written past the page cache has larger blocks here, and no machine has smaller pages. */
#define SC_BLOCK_NBYTES 4096u

static inline uint32_t
load_le32(const uint8_t *p)
{
    uint32_t v;

    memcpy(&v, p, sizeof v);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap32(v);
#endif
    return v;
}

#define SC_IS_BIG_ENDIAN (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__)

static inline uint64_t
load_le64(const uint8_t *p)
{
    uint64_t v;

    memcpy(&v, p, sizeof v);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    return v;
}

static inline void
store_le32(uint8_t *p, uint32_t v)
{
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap32(v);
#endif
    memcpy(p, &v, sizeof v);
}

static inline void
store_le64(uint8_t *p, uint64_t v)
{
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    memcpy(p, &v, sizeof v);
}

static inline uint32_t
load_be32(const uint8_t *p)
{
    return __builtin_bswap32(load_le32(p));
}

static inline void
store_be32(uint8_t *p, uint32_t v)
{
    store_le32(p, __builtin_bswap32(v));
}

static inline uint64_t
load_be64(const uint8_t *p)
{
    return __builtin_bswap64(load_le64(p));
}

static inline void
store_be64(uint8_t *p, uint64_t v)
{
    store_le64(p, __builtin_bswap64(v));
}

/* Return a * b; false: the product does not fit. */
static inline bool
mul_fits(uint64_t a, uint64_t b, uint64_t *product)
{
    return !__builtin_mul_overflow(a, b, product);
}

/* Return a + b; false: the sum does not fit. */
static inline bool
add_fits(uint64_t a, uint64_t b, uint64_t *sum)
{
    return !__builtin_add_overflow(a, b, sum);
}

static inline uint64_t
min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t
max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

#endif
