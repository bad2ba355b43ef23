/* sc_write_tail.c - the bytes of the user behind the last inner chunk, and a mark that describes them
 *
 *     [inner chunks][mark][zeros][footer][index]
 *
 * The format cannot distinguish a footer from the bytes of an inner chunk that was erased, nor a header from those of
 * one that was replaced. So every write of a shard with a header, a footer or an alignment leaves a mark. So does an
 * update that leaves dead bytes, because it writes behind them or keeps their offsets (access/user_bytes.py does so for
 * new shards, and reads marks). No index refers to the bytes of the mark, so every reader skips it. The footer stays
 * the last thing before the index, where programs that know its size look for it. The zeros make a write past the page
 * cache end with a block.
 *
 *     bytes  0 to 16   "shardcodec tail" and the version, 1
 *           16 to 24   where the mark is, from the beginning of the object
 *           24 to 32   where the footer ends: the index begins, or, if it is at the start, the object ends
 *           32 to 40   size of the header
 *           40 to 48   size of the footer
 *           48 to 52   alignment of inner chunks
 *           52 to 56   CRC-32C of bytes 0 to 52
 *
 * All numbers are little-endian. A mark is valid only for the object that it was written for: if another program
 * carried it along, the footer no longer ends at the offset in the mark. The footer may hold a copy of a mark, which
 * then has another place.
 *
 * SPDX-License-Identifier: MIT */
#include "kernels/sc_crc32c.h"
#include "plan/sc_write_impl.h"

static const char magic[16] = "shardcodec tail\001";

static void
store_mark(const struct sc_write_item *item, struct sc_tail *tail)
{
    uint8_t *p = tail->mark;

    memcpy(p, magic, sizeof magic);
    store_le64(p + 16, tail->mark_at);
    store_le64(p + 24, tail->end);
    store_le64(p + 32, item->header_nbytes);
    store_le64(p + 40, item->footer_nbytes);
    store_le32(p + 48, (uint32_t)item->alignment);
    store_le32(p + 52, sc_crc32c_extend(0, p, 52));
}

/* True if the update of a shard's own file writes behind the end of the file. */
static bool
goes_behind(const struct sc_write_object *object)
{
    const struct sc_write_item *item = object->item;

    if (item->append == SC_APPEND_NOT)
        return false;
    if (item->result_nbytes)
        return true;
    return !object->slots.n &&
           memcmp(item->old_entries, object->entries, (size_t)item->chain->n_chunks * sizeof *item->old_entries) != 0;
}

bool
sc_write_object_tail(const struct sc_write_object *object, struct sc_tail *tail)
{
    const struct sc_write_item *item = object->item;
    uint64_t behind = item->footer_nbytes + (item->chain->index.at_start ? 0 : item->chain->index.nbytes);

    if (in_own_file(item) && !goes_behind(object))
        return false;
    tail->mark_nbytes = item->marks ? SC_MARK_NBYTES : 0;
    tail->mark_at = object->at;
    tail->footer_at = object->at + tail->mark_nbytes;
    if (item->marks && in_own_file(item) && !item->chain->index.at_start)
        tail->footer_at = (tail->footer_at + behind + SC_BLOCK_NBYTES - 1) / SC_BLOCK_NBYTES * SC_BLOCK_NBYTES - behind;
    tail->end = tail->footer_at + item->footer_nbytes;
    if (tail->mark_nbytes)
        store_mark(item, tail);
    return true;
}
