/* sc_texts.h - one encoded chunk of elements of any length: text or bytes
 *
 * The bytes -> bytes codecs are those of a chain. Its number of elements and its bounds do not count, because the decoded
 * size of such a chunk is not known.
 *
 * SPDX-License-Identifier: MIT */
#ifndef SC_TEXTS_H
#define SC_TEXTS_H

#include "chain/sc_worker.h"
#include "kernels/sc_vlen.h"

/* The elements of a decoded chunk, in stored order: in the memory of the worker or in that of the encoded bytes. */
struct sc_texts {
    const uint8_t *bytes;
    const uint64_t *places; /* as of sc_vlen_split() */
};

/* Decode and check one chunk of n_items elements; valid until the next call with this worker. */
enum sc_status sc_texts_decode(const struct sc_chain *chain, struct sc_worker *worker, uint64_t n_items, bool is_text,
                               const uint8_t *src, size_t n, struct sc_texts *texts, struct sc_where *where);

/* Apply the codecs to the n bytes of a chunk. The result is in new memory, which the caller frees with sc_free(). */
enum sc_status sc_texts_encode(const struct sc_chain *chain, struct sc_worker *worker, const uint8_t *bytes, size_t n,
                               uint8_t **encoded, size_t *encoded_nbytes, struct sc_where *where);

#endif
