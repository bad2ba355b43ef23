/* sc_crc32c.h - CRC-32C (Castagnoli), the checksum of shard indexes and of the `crc32c` codec
 * SPDX-License-Identifier: MIT */
#ifndef SC_CRC32C_H
#define SC_CRC32C_H

#include "base/sc_common.h"

/* Extend `crc` (0 to start) over n bytes. The value is the finished one (pre- and post-inverted), so that
 * extend(extend(0, a), b) is the checksum of a followed by b. p may be NULL when n is 0; any alignment. */
uint32_t sc_crc32c_extend(uint32_t crc, const uint8_t *p, size_t n);

/* The CRC-32C of the last four bytes and then of the others. The plain one is the same for all bytes of one length that end with theirs. */
static inline uint32_t
sc_crc32c_turned(const uint8_t *p, size_t n)
{
    size_t n_first = n < 4 ? 0 : n - 4;

    return sc_crc32c_extend(sc_crc32c_extend(0, p + n_first, n - n_first), p, n_first);
}

/* Copy n bytes from src to dst and extend `crc` over them in one pass. The ranges must not overlap. */
uint32_t sc_crc32c_copy(uint32_t crc, uint8_t *restrict dst, const uint8_t *restrict src, size_t n);

/* Return the CRC of a and b joined, from crc(a), crc(b) and the length of b. */
uint32_t sc_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t nbytes_b);

/* Choose the variant for this process; after sc_cpu_init(), once, before any thread runs. */
void sc_crc32c_init(void);

/* The variants compiled in, in the order of choice; the last one needs nothing. */
size_t sc_crc32c_n_impls(void);
const char *sc_crc32c_impl_name(size_t i);
bool sc_crc32c_impl_usable(size_t i); /* the machine has its features, and SHARDCODEC_CPU does not exclude them */
/* By row; i must be usable. */
uint32_t sc_crc32c_extend_impl(size_t i, uint32_t crc, const uint8_t *p, size_t n);
uint32_t sc_crc32c_copy_impl(size_t i, uint32_t crc, uint8_t *restrict dst, const uint8_t *restrict src, size_t n);
size_t sc_crc32c_chosen(void);

#endif
