/* sc_inflate.h - one deflate stream (RFC 1951) from memory to memory
 *
 * It decodes only, and only whole streams: both buffers exist from the start. So the only state between calls is the
 * tables. They belong to the caller, which saves an allocation for every chunk.
 * SPDX-License-Identifier: MIT */
#ifndef SC_INFLATE_H
#define SC_INFLATE_H

#include "base/sc_status.h"

enum {
    SC_INFLATE_LITLEN_BITS = 11, /* bits of a code that the first table resolves */
    SC_INFLATE_OFFSET_BITS = 9,
    SC_INFLATE_MAX_BITS = 15, /* the longest code of the format */
    SC_INFLATE_N_LITLEN = 288,
    SC_INFLATE_N_OFFSET = 32,
};

/* Room for the first table and for as many second tables as there can be: in a complete code every prefix that needs
 * one has two codes or more behind it. */
#define SC_INFLATE_TABLE_SIZE(n_symbols, bits) ((1u << (bits)) + ((n_symbols) / 2u << (SC_INFLATE_MAX_BITS - (bits))))

/* Zero it before the first use. It may be moved, and needs no repair after a failure. */
struct sc_inflate_tables {
    uint32_t litlen[SC_INFLATE_TABLE_SIZE(SC_INFLATE_N_LITLEN, SC_INFLATE_LITLEN_BITS)];
    uint32_t offset[SC_INFLATE_TABLE_SIZE(SC_INFLATE_N_OFFSET, SC_INFLATE_OFFSET_BITS)];
    uint64_t pairs[1u << SC_INFLATE_LITLEN_BITS]; /* two symbols for one look, see sc_inflate_fast.c */
    bool hold_fixed; /* the tables hold the code that the format predefines */
};

/* Decode the raw deflate stream at the start of src, which may be followed by other bytes.
 *
 * @consumed, @produced: bytes of the stream, bytes that came out; set on SC_OK only.
 * @detail: a static string, set on SC_CODEC_DATA and SC_DST_TOO_SMALL.
 *
 * Accepts and refuses what zlib does. dst is never written past dst_capacity, but up to there its bytes behind the
 * output are undefined, as is all of it on failure. Either pointer may be NULL when its size is 0. */
enum sc_status sc_inflate_raw(struct sc_inflate_tables *tables, const uint8_t *src, size_t src_nbytes, size_t *consumed,
                              uint8_t *dst, size_t dst_capacity, size_t *produced, const char **detail);

#endif
