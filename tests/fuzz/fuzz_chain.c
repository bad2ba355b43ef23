/* fuzz_chain.c - hostile shards through the engine: index, ranges, codecs, scatter
 *
 * Random bytes are hardly ever a shard. So the input either is the shard, or it is a list of changes to a valid shard
 * that is encoded here. The index checksum may be corrected afterwards, so that wrong entries are not refused by the
 * checksum.
 * SPDX-License-Identifier: MIT */
#include <stdlib.h>

#include "base/sc_cpu.h"
#include "kernels/sc_crc32c.h"
#include "plan/sc_engine.h"
#include "base/sc_pool.h"
#include "chain/sc_worker.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define HEAD_NBYTES 16
#define EXTENT 8
#define N_SHARDS 5

static uint8_t fill[4] = { 7, 0, 7, 0 };
static struct sc_chain leaves[N_SHARDS], middle, shards[N_SHARDS];
static uint8_t *encoded[N_SHARDS];
static uint64_t encoded_nbytes[N_SHARDS];

static void
require(bool condition)
{
    if (!condition)
        __builtin_trap();
}

static uint8_t *
allocate(size_t n)
{
    uint8_t *p = malloc(n ? n : 1);

    require(p != NULL);
    return p;
}

static void
begin_chain(struct sc_chain *chain, uint64_t extent)
{
    chain->ndim = 2;
    chain->itemsize = 2;
    chain->shape[0] = chain->shape[1] = extent;
    chain->perm[1] = 1;
    chain->fill = fill;
    chain->fill_stored = fill + 2;
    chain->index.in_c_order = true;
}

static void
make_shard(struct sc_chain *shard, const struct sc_chain *inner)
{
    begin_chain(shard, EXTENT);
    shard->inner = inner;
}

static void
make_chains(void)
{
    for (int i = 0; i < N_SHARDS; i++) {
        begin_chain(&leaves[i], i == 3 ? 2 : 4);
        make_shard(&shards[i], &leaves[i]);
    }
    /* 0: raw, no checksums. 1: zstd, checksums, index at the start. */
    leaves[1].n_ops = 2;
    leaves[1].ops[0] = (struct sc_op){ .codec = SC_CODEC_ZSTD, .level = 1 };
    leaves[1].ops[1] = (struct sc_op){ .codec = SC_CODEC_CRC32C };
    shards[1].index.n_checksums = 1;
    shards[1].index.at_start = true;
    /* 2: blosc, big-endian index. */
    leaves[2].n_ops = 1;
    leaves[2].ops[0] = (struct sc_op){
        .codec = SC_CODEC_BLOSC, .level = 5, .compressor = SC_BLOSC_LZ4, .shuffle = SC_BLOSC_SHUFFLE, .typesize = 2
    };
    shards[2].index.big_endian = true;
    /* 3: nested shard, gzip. */
    leaves[3].n_ops = 1;
    leaves[3].ops[0] = (struct sc_op){ .codec = SC_CODEC_GZIP, .level = 1 };
    begin_chain(&middle, 4);
    middle.inner = &leaves[3];
    shards[3].inner = &middle;
    shards[3].index.n_checksums = 1;
    /* 4: transposed, lz4. */
    leaves[4].n_ops = 1;
    leaves[4].ops[0] = (struct sc_op){ .codec = SC_CODEC_LZ4, .level = 1 };
    shards[4].perm[0] = 1;
    shards[4].perm[1] = 0;
}

/* The shards must be valid before they are damaged. */
static void
check_encoded(const struct sc_chain *shard, const uint8_t *object, uint64_t n, const uint16_t *elements)
{
    uint16_t decoded[EXTENT * EXTENT];
    struct sc_read_item item = { .chain = shard, .source = { .data = object, .nbytes = n }, .dst = (uint8_t *)decoded };
    struct sc_read_plan plan = { .items = &item, .n_items = 1, .n_threads = 1, .group_nbytes = 64 };
    struct sc_where where;

    for (int a = 0; a < 2; a++) {
        item.box.step[a] = 1;
        item.box.count[a] = EXTENT;
    }
    plan.dst_strides[0] = 2 * EXTENT;
    plan.dst_strides[1] = 2;
    sc_where_clear(&where);
    require(sc_read(&plan, &where) == SC_OK && memcmp(decoded, elements, sizeof decoded) == 0);
}

static void
encode_all(void)
{
    uint16_t elements[EXTENT * EXTENT];
    int64_t strides[SC_MAX_NDIM] = { 2 * EXTENT, 2 };
    struct sc_write_rules rules = { .order = SC_ORDER_MORTON };
    struct sc_worker *worker = sc_worker_take();
    struct sc_where where;

    require(worker != NULL);
    for (unsigned i = 0; i < EXTENT * EXTENT; i++)
        elements[i] = (uint16_t)(i * i / 5);
    for (unsigned i = 0; i < EXTENT / 2; i++)
        memset(&elements[EXTENT * i], 7, EXTENT / 2 * sizeof elements[0]);
    for (int i = 0; i < N_SHARDS; i++) {
        size_t bound;

        sc_where_clear(&where);
        require(sc_chain_prepare(&leaves[i]) == SC_OK);
        if (i == 3)
            require(sc_chain_prepare(&middle) == SC_OK);
        require(sc_chain_prepare(&shards[i]) == SC_OK);
        bound = sc_chain_bound(&shards[i]);
        encoded[i] = allocate(bound);
        require(sc_chain_encode(&shards[i], worker, 0, (const uint8_t *)elements, strides, &rules, encoded[i], bound,
                                &encoded_nbytes[i], &where) == SC_OK);
        check_encoded(&shards[i], encoded[i], encoded_nbytes[i], elements);
    }
    sc_worker_put(worker);
}

static void
set_up(void)
{
    static bool done;

    if (done)
        return;
    done = true;
    sc_cpu_init();
    sc_crc32c_init();
    require(sc_pool_init() == SC_OK && sc_worker_init() == SC_OK);
    make_chains();
    encode_all();
}

/* Rewrite the index checksum, if there is one and the object is long enough for it. */
static void
correct_checksum(const struct sc_chain *shard, uint8_t *object, uint64_t n)
{
    const struct sc_index_layout *index = &shard->index;
    uint8_t *stored;

    if (index->n_checksums != 1 || n < index->nbytes)
        return;
    stored = index->at_start ? object : object + n - index->nbytes;
    store_le32(stored + index->pairs_nbytes, sc_crc32c_extend(0, stored, index->pairs_nbytes));
}

static uint8_t *
make_object(unsigned which, const uint8_t *head, const uint8_t *rest, size_t size, uint64_t *n)
{
    uint8_t *object;

    if (head[1] & 1) {
        object = allocate(size);
        memcpy(object, rest, size);
        *n = size;
    } else {
        *n = encoded_nbytes[which] - (head[1] & 2 ? head[2] % encoded_nbytes[which] : 0);
        object = allocate(*n);
        memcpy(object, encoded[which], *n);
        for (; *n && size >= 3; rest += 3, size -= 3)
            object[(rest[0] | (uint64_t)rest[1] << 8) % *n] = rest[2];
    }
    if (head[1] & 4)
        correct_checksum(&shards[which], object, *n);
    return object;
}

/* True for every status that damaged bytes may cause; a status about bad arguments would be a bug. */
static bool
is_about_data(enum sc_status status)
{
    return status == SC_OK || status == SC_NO_MEMORY || (status >= SC_TOO_SHORT && status <= SC_CODEC_DATA);
}

static void
read_box(const struct sc_chain *shard, const uint8_t *object, uint64_t n, const uint8_t *head)
{
    struct sc_read_item item = { .chain = shard, .source = { .data = object, .nbytes = n } };
    struct sc_read_plan plan = { .items = &item, .n_items = 1, .n_threads = 1 + (head[1] >> 7), .group_nbytes = 64 };
    struct sc_where where;
    uint8_t *dst;

    for (int a = 0; a < 2; a++) {
        uint64_t start = head[3 + a] % EXTENT, step = 1 + head[5 + a] % 3;

        item.box.start[a] = start;
        item.box.step[a] = (int64_t)step;
        item.box.count[a] = 1 + head[7 + a] % ((EXTENT - 1 - start) / step + 1);
    }
    plan.allow_in_index = head[1] & 8;
    plan.max_gap_nbytes = head[9];
    plan.dst_strides[1] = 2;
    plan.dst_strides[0] = (int64_t)(2 * item.box.count[1]);
    dst = allocate(2 * item.box.count[0] * item.box.count[1]);
    item.dst = dst;
    sc_where_clear(&where);
    require(is_about_data(sc_read(&plan, &where)));
    free(dst);
}

/* Read the index for an update that replaces the first inner chunk: its old entry may have any value. */
static void
read_index(const struct sc_chain *shard, const uint8_t *object, uint64_t n, bool allow_in_index)
{
    uint8_t *replaced = allocate(shard->n_chunks);
    struct sc_source source = { .data = object, .nbytes = n };
    struct sc_entry *entries = (struct sc_entry *)allocate(shard->index.nbytes);
    struct sc_where where;
    uint64_t shard_nbytes;

    enum sc_status status, unless_replaced;

    memset(replaced, 0, shard->n_chunks);
    replaced[0] = 1;
    sc_where_clear(&where);
    status = sc_read_index(shard, &source, allow_in_index, NULL, entries, &shard_nbytes, NULL, NULL, &where);
    require(is_about_data(status));
    sc_where_clear(&where);
    unless_replaced =
        sc_read_index(shard, &source, allow_in_index, replaced, entries, &shard_nbytes, NULL, NULL, &where);
    require(is_about_data(unless_replaced));
    require(status != SC_OK || unless_replaced == SC_OK);
    require(unless_replaced != SC_OK || sc_entry_is_absent(entries[0]) || entries[0].nbytes <= n);
    free(replaced);
    free(entries);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned which;
    uint64_t n;
    uint8_t *object;

    if (size < HEAD_NBYTES)
        return 0;
    set_up();
    which = data[0] % N_SHARDS;
    object = make_object(which, data, data + HEAD_NBYTES, size - HEAD_NBYTES, &n);
    read_index(&shards[which], object, n, data[1] & 8);
    read_box(&shards[which], object, n, data);
    free(object);
    return 0;
}
