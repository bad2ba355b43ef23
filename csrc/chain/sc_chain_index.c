/* sc_chain_index.c - the index of a shard as its chain stores it: transposed or not, with its checksums
 * SPDX-License-Identifier: MIT */
#include "base/sc_check.h"
#include "kernels/sc_crc32c.h"
#include "chain/sc_chain.h"

enum sc_status
sc_index_compare_checksum(const uint8_t *stored_checksum, uint32_t actual, uint64_t nbytes, struct sc_where *where)
{
    uint32_t expected = load_le32(stored_checksum);

    if (SC_LIKELY(expected == actual))
        return SC_OK;
    where->expected = expected;
    where->actual = actual;
    where->nbytes = nbytes;
    where->in_index = true;
    return SC_INDEX_CHECKSUM;
}

enum sc_status
sc_index_verify(const struct sc_index_layout *index, const uint8_t *stored, struct sc_where *where)
{
    enum sc_status status = SC_OK;
    uint64_t n = index->nbytes;

    for (unsigned i = 0; !status && i < index->n_checksums; i++) {
        n -= 4;
        status = sc_index_compare_checksum(stored + n, sc_crc32c_extend(0, stored, n), n, where);
    }
    return status;
}

static uint64_t
load_word(const struct sc_index_layout *index, const uint8_t *pairs, uint64_t word)
{
    return index->big_endian ? load_be64(pairs + 8 * word) : load_le64(pairs + 8 * word);
}

/* The word of the offset of the inner chunk at c. */
static uint64_t
word_of(const struct sc_chain *shard, const uint64_t *c)
{
    uint64_t word = 0;

    for (int a = 0; a < shard->ndim; a++)
        word += c[a] * shard->index.strides[a];
    return word;
}

struct sc_entry
sc_index_get(const struct sc_chain *shard, const uint8_t *pairs, uint64_t first_word, const uint64_t *c)
{
    const struct sc_index_layout *index = &shard->index;
    uint64_t word = word_of(shard, c) - first_word;

    return (struct sc_entry){ load_word(index, pairs, word), load_word(index, pairs, word + index->half_stride) };
}

/* Step coordinates in C order; false after the last. */
static bool
next_coordinates(uint64_t *c, const uint64_t *shape, int ndim)
{
    for (int a = ndim - 1; a >= 0; a--) {
        if (++c[a] < shape[a])
            return true;
        c[a] = 0;
    }
    return false;
}

void
sc_index_load(const struct sc_chain *shard, const uint8_t *pairs, struct sc_entry *entries)
{
    uint64_t c[SC_MAX_NDIM] = { 0 }, i = 0;

    if (shard->index.in_c_order) {
        sc_index_decode(pairs, entries, shard->n_chunks, shard->index.big_endian);
        return;
    }
    do
        entries[i++] = sc_index_get(shard, pairs, 0, c);
    while (next_coordinates(c, shard->grid, shard->ndim));
}

static void
store_word(const struct sc_index_layout *index, uint8_t *pairs, uint64_t word, uint64_t value)
{
    if (index->big_endian)
        store_be64(pairs + 8 * word, value);
    else
        store_le64(pairs + 8 * word, value);
}

enum sc_status
sc_index_check_stored(const struct sc_chain *shard, const uint8_t *pairs, const struct sc_index_extent *extent,
                      struct sc_where *where)
{
    uint64_t c[SC_MAX_NDIM] = { 0 }, i = 0;

    if (shard->index.in_c_order)
        return sc_index_check_pairs(pairs, shard->n_chunks, shard->index.big_endian, extent, where);
    do {
        struct sc_entry e = sc_index_get(shard, pairs, 0, c);
        enum sc_status status = sc_entry_is_absent(e) ? SC_OK : sc_entry_check(e, extent, false, where);

        if (status) {
            where->entry = i;
            return status;
        }
        i++;
    } while (next_coordinates(c, shard->grid, shard->ndim));
    return SC_OK;
}

#ifdef SHARDCODEC_CHECKS
/* A reader gets the same entries out of a stored index. */
static void
check_stored(const struct sc_chain *shard, const struct sc_entry *entries, const uint8_t *stored)
{
    uint64_t c[SC_MAX_NDIM] = { 0 }, i = 0;
    struct sc_where where;

    SC_CHECK(sc_index_verify(&shard->index, stored, &where) == SC_OK, "a stored index has its checksums",
             .entry = UINT64_MAX, .nbytes = shard->index.nbytes);
    do {
        struct sc_entry e = sc_index_get(shard, stored, 0, c);

        SC_CHECK(e.offset == entries[i].offset && e.nbytes == entries[i].nbytes, "a stored index has the given entries",
                 .entry = i, .offset = e.offset, .nbytes = e.nbytes, .limit = entries[i].offset);
        i++;
    } while (next_coordinates(c, shard->grid, shard->ndim));
}
#else
#define check_stored(...) ((void)0)
#endif

void
sc_index_store(const struct sc_chain *shard, const struct sc_entry *entries, uint8_t *stored)
{
    const struct sc_index_layout *index = &shard->index;
    uint64_t c[SC_MAX_NDIM] = { 0 }, n = index->pairs_nbytes, i = 0;

    if (index->in_c_order) {
        sc_index_encode(entries, stored, shard->n_chunks, index->big_endian);
    } else {
        do {
            uint64_t word = word_of(shard, c);

            store_word(index, stored, word, entries[i].offset);
            store_word(index, stored, word + index->half_stride, entries[i].nbytes);
            i++;
        } while (next_coordinates(c, shard->grid, shard->ndim));
    }
    for (unsigned k = 0; k < index->n_checksums; k++, n += 4)
        store_le32(stored + n, sc_crc32c_extend(0, stored, n));
    if (SC_CHECKS)
        check_stored(shard, entries, stored);
}

enum sc_status
sc_index_locate(const struct sc_index_layout *index, uint64_t shard_nbytes, struct sc_index_extent *extent,
                struct sc_where *where)
{
    if (shard_nbytes < index->nbytes) {
        where->nbytes = shard_nbytes;
        where->limit = index->nbytes;
        where->in_index = true;
        return SC_TOO_SHORT;
    }
    extent->nbytes = index->nbytes;
    extent->shard_nbytes = shard_nbytes;
    extent->offset = index->at_start ? 0 : shard_nbytes - index->nbytes;
    return SC_OK;
}
