/* sc_vlen.h - elements of any length, one behind the other: the bytes of `vlen-utf8` and `vlen-bytes`
 *
 *     u4 n | u4 length, bytes | u4 length, bytes | ...        n elements in C order; numbers are little-endian
 *
 * SC-46. Source: numcodecs, vlen.pyx; zarr-extensions, codecs `vlen-utf8` and `vlen-bytes`.
 * SPDX-License-Identifier: MIT */
#ifndef SC_VLEN_H
#define SC_VLEN_H

#include "base/sc_buffer.h"

#define SC_VLEN_HEAD 4u

/* Check the bytes of n elements, and with is_text that each one is UTF-8. `places` becomes n numbers of 8 bytes: where the
 * bytes of each element begin; sc_vlen_length() returns how many they are. SC_VLEN: where->detail says what is wrong,
 * where->offset is the element (SC_NOWHERE: none), and there are where->expected and where->actual. */
enum sc_status sc_vlen_split(const uint8_t *bytes, size_t nbytes, uint64_t n, bool is_text, struct sc_buffer *places,
                             struct sc_where *where);

/* Return the length of the element whose bytes begin at `place`. */
static inline uint32_t
sc_vlen_length(const uint8_t *bytes, uint64_t place)
{
    return load_le32(bytes + place - 4);
}

/* Store the number of elements at the start of a buffer that has room for it. */
static inline void
sc_vlen_begin(struct sc_buffer *buffer, size_t *used, uint32_t n)
{
    store_le32(buffer->data, n);
    *used = SC_VLEN_HEAD;
}

/* Add an element to the first *used bytes of a buffer. */
enum sc_status sc_vlen_add(struct sc_buffer *buffer, size_t *used, const uint8_t *bytes, size_t nbytes);

/* Return how many bytes from the start are UTF-8: no surrogates, no overlong forms, nothing above U+10FFFF. */
size_t sc_utf8_span(const uint8_t *bytes, size_t nbytes);

#endif
