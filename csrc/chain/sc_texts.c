/* sc_texts.c - one encoded chunk of elements of any length (see sc_texts.h)
 * SPDX-License-Identifier: MIT */
#include "chain/sc_texts.h"

#include "base/sc_alloc.h"
#include "chain/sc_chain_impl.h"

/* A few encoded bytes may stand for gigabytes, so the decoded size has a limit: what any deflate stream can hold, and so
 * many bytes for each element. */
#define NBYTES_PER_ITEM UINT64_C(4096)
#define NBYTES_PER_BYTE UINT64_C(1032)
#define LEAST_LIMIT UINT64_C(1 << 20)

static size_t
limit_of(uint64_t n_items, uint64_t nbytes)
{
    uint64_t of_items, of_bytes, limit;

    if (!mul_fits(n_items, NBYTES_PER_ITEM, &of_items) || !mul_fits(nbytes, NBYTES_PER_BYTE, &of_bytes) ||
        !add_fits(of_items, of_bytes, &limit) || !add_fits(limit, LEAST_LIMIT, &limit) || limit > PTRDIFF_MAX)
        return PTRDIFF_MAX;
    return (size_t)limit;
}

static size_t
first_guess(const struct sc_op *op, const uint8_t *src, size_t n)
{
    const struct sc_codec *codec = sc_codec_get(op->codec);
    uint64_t claimed = codec->claimed_nbytes ? codec->claimed_nbytes(src, n) : 0;

    return claimed && claimed < PTRDIFF_MAX ? (size_t)claimed : n < PTRDIFF_MAX / 8 ? 4 * n + 4096 : n;
}

static enum sc_status
undo(const struct sc_chain *chain, struct sc_worker *worker, uint64_t n_items, const uint8_t **bytes, size_t *n,
     struct sc_where *where)
{
    struct sc_level *level = &worker->levels[0];
    unsigned stage = 0;

    for (size_t i = chain->n_ops; i-- > 0;) {
        const struct sc_op *op = &chain->ops[i];
        size_t limit = limit_of(n_items, *n);
        enum sc_status status;

        if (is_checksum(op)) {
            status = sc_checksum_check(op, bytes, n, where);
        } else {
            status = sc_decode_stage(op, worker, *bytes, *n, first_guess(op, *bytes, *n), limit, &level->stage[stage],
                                     n, where);
            *bytes = level->stage[stage].data;
            stage ^= 1;
        }
        if (status == SC_DST_TOO_SMALL) {
            where->detail = "decoded bytes at most";
            where->offset = SC_NOWHERE;
            where->expected = limit;
            where->actual = SC_NOWHERE;
            return SC_VLEN;
        }
        if (status)
            return status;
    }
    return SC_OK;
}

enum sc_status
sc_texts_decode(const struct sc_chain *chain, struct sc_worker *worker, uint64_t n_items, bool is_text,
                const uint8_t *src, size_t n, struct sc_texts *texts, struct sc_where *where)
{
    struct sc_buffer *places = &worker->levels[0].chunk;
    enum sc_status status = undo(chain, worker, n_items, &src, &n, where);

    if (!status)
        status = sc_vlen_split(src, n, n_items, is_text, places, where);
    if (status == SC_VLEN)
        where->codec = is_text ? "vlen-utf8" : "vlen-bytes";
    texts->bytes = src;
    texts->places = (const uint64_t *)(const void *)places->data;
    return status;
}

enum sc_status
sc_texts_encode(const struct sc_chain *chain, struct sc_worker *worker, const uint8_t *bytes, size_t n,
                uint8_t **encoded, size_t *encoded_nbytes, struct sc_where *where)
{
    struct sc_chain sized = *chain;
    struct sc_level *level = &worker->levels[0];
    uint64_t n_encoded = 0;
    enum sc_status status;

    sized.nbytes = n;
    sc_chain_bounds(&sized);
    if (!sc_chain_bound(&sized))
        return sc_chain_too_large(&sized, where);
    if (sized.n_ops) {
        status = sc_buffer_reserve(&level->chunk, sc_chain_bound(&sized));
        if (!status)
            status = sc_chain_apply_ops(&sized, worker, level, bytes, n, level->chunk.data, sc_chain_bound(&sized),
                                        &n_encoded, where);
        if (status)
            return status;
        bytes = level->chunk.data;
        n = (size_t)n_encoded;
    }
    *encoded = sc_malloc(n);
    if (!*encoded)
        return SC_NO_MEMORY;
    memcpy(*encoded, bytes, n);
    *encoded_nbytes = n;
    return SC_OK;
}
