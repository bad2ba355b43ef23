/* sc_filter.h - what the codecs that change numbers have in common: sizes, blocks, and the element that has no result
 *
 * A filter takes the elements of a chunk in native byte order, in the order in which they are stored. It has no framing: the
 * encoded size follows from the decoded one. A codec that is a filter has one of these beside its row, and its row has the three
 * functions below.
 * SPDX-License-Identifier: MIT */
#ifndef SC_FILTER_H
#define SC_FILTER_H

#include "codecs/sc_codec.h"
#include "codecs/sc_items.h"

/* Change n elements. False: one of them has no result. */
typedef bool sc_change_items(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst);

struct sc_filter {
    bool (*takes)(const struct sc_op *op); /* false: the Python layer makes no such op */
    sc_change_items *encode, *decode;
    const char *not_encoded, *not_decoded; /* what an error says between the element and the other type */
    bool at_once; /* all elements are changed by one call, else at most SC_BLOCK_ITEMS */
};

size_t sc_filter_bound(const struct sc_op *op, size_t nbytes);
enum sc_status sc_filter_encode(const struct sc_op *op, struct sc_codec_state *state, const uint8_t *src,
                                size_t src_nbytes, uint8_t *dst, size_t dst_capacity, size_t *dst_nbytes,
                                struct sc_where *where);
enum sc_status sc_filter_decode(const struct sc_op *op, struct sc_codec_state *state, const uint8_t *src,
                                size_t src_nbytes, uint8_t *dst, size_t dst_capacity, size_t *dst_nbytes,
                                struct sc_where *where);

/* The row of a filter sc_filter_<name>. */
#define SC_FILTER_ROW(name, is_elementwise)                     \
    const struct sc_codec sc_codec_##name = { #name,            \
                                              SIZE_MAX,         \
                                              true,             \
                                              is_elementwise,   \
                                              NULL,             \
                                              NULL,             \
                                              sc_filter_bound,  \
                                              sc_filter_encode, \
                                              sc_filter_decode, \
                                              NULL,             \
                                              NULL,             \
                                              &sc_filter_##name }

#endif
