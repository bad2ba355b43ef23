/* fuzz_texts.c - hostile chunks of elements of any length, and round trips
 *
 * The first bytes choose the codecs, the shape of the chunk and a box. The rest is the chunk as it is stored, or its bytes
 * before the codecs, which are then encoded here: random bytes are hardly ever a stream.
 * SPDX-License-Identifier: MIT */
#include <stdlib.h>

#include "base/sc_alloc.h"
#include "base/sc_cpu.h"
#include "base/sc_pool.h"
#include "kernels/sc_crc32c.h"
#include "plan/sc_text_read.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define HEAD_NBYTES 12

static uint8_t fill[2];

static void
require(bool condition)
{
    if (!condition)
        __builtin_trap();
}

static uint8_t *
copy_of(const uint8_t *src, size_t n)
{
    uint8_t *p = malloc(n ? n : 1); /* of exact size, so that a sanitizer finds a read past the chunk */

    require(p != NULL);
    if (n)
        memcpy(p, src, n);
    return p;
}

static void
begin(struct sc_chain *chain, const uint8_t *head)
{
    static bool is_ready;

    if (!is_ready) {
        sc_cpu_init();
        sc_crc32c_init();
        require(sc_pool_init() == SC_OK && sc_worker_init() == SC_OK);
        is_ready = true;
    }
    memset(chain, 0, sizeof *chain);
    chain->ndim = 2;
    chain->itemsize = 1;
    chain->shape[0] = chain->shape[1] = 1;
    chain->perm[0] = head[0] & 1;
    chain->perm[1] = !(head[0] & 1);
    chain->fill = fill;
    chain->fill_stored = fill + 1;
    for (int i = 1; i < 3; i++)
        if (head[i] % 8 < 6)
            chain->ops[chain->n_ops++] = (struct sc_op){
                .codec = (enum sc_codec_id[]){ SC_CODEC_CRC32C, SC_CODEC_ZSTD, SC_CODEC_GZIP, SC_CODEC_ZLIB,
                                               SC_CODEC_LZ4, SC_CODEC_BLOSC }[head[i] % 8],
                .level = 1,
                .compressor = SC_BLOSC_LZ4,
                .typesize = 1,
            };
    require(sc_chain_prepare(chain) == SC_OK);
}

/* Read a box of the chunk; if all is well, each of its elements must lie in the arena. */
static void
read_box(const struct sc_chain *chain, const uint8_t *src, size_t n, const uint8_t *head, bool must_be_sound)
{
    struct sc_text_place places[256];
    struct sc_text_box box = { 0 };
    struct sc_text_chunk chunk = { .src = src, .nbytes = n, .boxes = &box, .n_boxes = 1 };
    struct sc_text_arena arena;
    struct sc_text_plan plan = {
        .chain = chain, .is_text = head[0] & 2, .chunks = &chunk, .n_chunks = 1, .n_threads = 1
    };
    struct sc_where where;
    int64_t offsets[257];
    enum sc_status status;
    uint8_t *joined;
    size_t n_places;

    for (int a = 0; a < 2; a++) {
        uint64_t extent = chunk.shape[a] = 1 + head[3 + a] % 16;

        box.part.start[a] = head[5 + a] % extent;
        box.part.step[a] = 1 + head[7 + a] % 3;
        box.part.count[a] = (extent - 1 - box.part.start[a]) / (uint64_t)box.part.step[a] + 1;
    }
    n_places = (size_t)(box.part.count[0] * box.part.count[1]);
    box.first = (uint8_t *)places;
    box.strides[1] = sizeof places[0];
    box.strides[0] = (int64_t)(box.part.count[1] * sizeof places[0]);
    sc_text_arena_begin(&arena);
    plan.sink = &arena.sink;
    status = sc_text_read(&plan, &where);
    require(status == SC_OK || status == SC_VLEN || status == SC_CODEC_DATA || status == SC_CHUNK_CHECKSUM ||
            status == SC_NO_MEMORY);
    require(status == SC_OK || !must_be_sound);
    if (status == SC_OK) {
        sc_text_offsets(places, n_places, offsets);
        joined = malloc((size_t)offsets[n_places] + 1);
        require(joined != NULL);
        sc_text_join(places, n_places, joined);
        for (size_t i = 0; i < n_places && head[0] & 2; i++)
            require(sc_utf8_span(joined + offsets[i], (size_t)(offsets[i + 1] - offsets[i])) ==
                    (size_t)(offsets[i + 1] - offsets[i]));
        free(joined);
    }
    sc_text_arena_free(&arena);
}

/* Encode the rest of the input as the elements of a chunk, cut into pieces by its own bytes. */
static void
round_trip(const struct sc_chain *chain, const uint8_t *data, size_t size, const uint8_t *head)
{
    struct sc_buffer buffer = { 0 };
    uint32_t n = (1u + head[3] % 16) * (1u + head[4] % 16);
    size_t used = 0;

    require(sc_buffer_reserve(&buffer, 4) == SC_OK);
    sc_vlen_begin(&buffer, &used, n);
    for (uint32_t i = 0; i < n; i++) {
        size_t length = size ? min_u64(data[0] % 24, size) : 0;

        require(sc_vlen_add(&buffer, &used, data, length) == SC_OK);
        data += length;
        size -= length;
    }
    {
        struct sc_worker *worker = sc_worker_take();
        struct sc_where where;
        uint8_t *encoded = NULL, *exact;
        size_t nbytes = 0;

        require(worker != NULL);
        sc_where_clear(&where);
        require(sc_texts_encode(chain, worker, buffer.data, used, &encoded, &nbytes, &where) == SC_OK);
        sc_worker_put(worker);
        exact = copy_of(encoded, nbytes);
        read_box(chain, exact, nbytes, head, !(head[0] & 2));
        for (unsigned i = 0; i < 1u + head[9] % 3 && nbytes; i++)
            exact[(head[10] * 257u + head[11] + i * 31u) % nbytes] ^= (uint8_t)(1u << i);
        read_box(chain, exact, nbytes, head, false);
        free(exact);
        sc_free(encoded);
    }
    sc_buffer_free(&buffer);
}

/* Encode the input as it is: malformed elements in a sound stream. */
static void
encoded_as_it_is(const struct sc_chain *chain, const uint8_t *data, size_t size, const uint8_t *head)
{
    struct sc_worker *worker = sc_worker_take();
    struct sc_where where;
    uint8_t *encoded = NULL, *exact;
    size_t nbytes = 0;

    require(worker != NULL);
    sc_where_clear(&where);
    require(size == 0 || sc_texts_encode(chain, worker, data, size, &encoded, &nbytes, &where) == SC_OK);
    sc_worker_put(worker);
    exact = copy_of(encoded, nbytes);
    read_box(chain, exact, nbytes, head, false);
    free(exact);
    sc_free(encoded);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sc_chain chain;
    uint8_t *exact;

    if (size < HEAD_NBYTES)
        return 0;
    begin(&chain, data);
    if (data[0] & 4) {
        round_trip(&chain, data + HEAD_NBYTES, size - HEAD_NBYTES, data);
    } else if (data[0] & 8) {
        encoded_as_it_is(&chain, data + HEAD_NBYTES, size - HEAD_NBYTES, data);
    } else {
        exact = copy_of(data + HEAD_NBYTES, size - HEAD_NBYTES);
        read_box(&chain, exact, size - HEAD_NBYTES, data, false);
        free(exact);
    }
    return 0;
}
