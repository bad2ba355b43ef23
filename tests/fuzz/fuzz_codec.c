/* fuzz_codec.c - hostile streams for every codec, and round trips
 *
 * The first bytes choose the codec, its parameters, the capacity for the result, and whether the rest is a stream or
 * data. A stream is decoded. Data are encoded, and their stream is decoded again, unchanged and with a few changed
 * bytes.
 * SPDX-License-Identifier: MIT */
#include <stdlib.h>

#include "codecs/sc_codec.h"
#include "codecs/sc_items.h"
#include "base/sc_cpu.h"
#include "kernels/sc_crc32c.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define HEAD_NBYTES 16

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

static struct sc_codec_state *
state(void)
{
    static struct sc_codec_state *shared;

    if (!shared) {
        sc_cpu_init();
        sc_crc32c_init();
        shared = sc_codec_state_new();
        require(shared != NULL);
    }
    return shared;
}

static struct sc_mapped mapped[2][2];

static struct sc_op
choose(const uint8_t *head)
{
    struct sc_op op = { .codec = (enum sc_codec_id)(head[0] % SC_N_CODECS) };

    op.level = head[1] % 10;
    op.checksum = head[2] & 1;
    op.compressor = head[3] % 5;
    op.shuffle = head[4] % 3;
    op.typesize = head[5] ? head[5] : 1;
    op.blocksize = head[6] & 1 ? 256u * head[7] : 0;
    op.at_start = head[2] & 4;
    op.item = head[3] % SC_N_ITEM_TYPES;
    op.encoded_item = op.codec == SC_CODEC_BITROUND ? op.item : head[4] % SC_N_ITEM_TYPES;
    op.offset = head[5];
    op.scale = 1 + head[6];
    op.offset_is_integer = head[2] & 8;
    op.scale_is_integer = head[2] & 16;
    op.offset_word = head[5];
    op.scale_word = head[2] & 32 ? UINT64_MAX : 1u + head[6];
    op.scale = head[2] & 32 ? -1 : op.scale;
    op.rounding = head[1] % 5;
    op.out_of_range = head[6] % 3;
    for (int k = 0; k < 2; k++) { /* the map has the entries in the head itself */
        mapped[k][0] = (struct sc_mapped){ load_le64(head), head[7] };
        mapped[k][1] = (struct sc_mapped){ 0, load_le64(head + 8) };
        op.mapped[k] = mapped[k];
        op.n_mapped[k] = head[7] % 3;
    }
    op.typesize = op.codec == SC_CODEC_BIT_FIELDS ? 1u << head[5] % 4 : op.typesize;
    op.n_bits = 1 + head[6] % (int)(8 * op.typesize);
    op.last_bit = head[7] % op.n_bits;
    op.first_bit = head[1] % (op.last_bit + 1);
    op.is_signed = head[2] & 64;
    op.padding = head[3] % 3;
    if (op.codec == SC_CODEC_BYTESWAP)
        op.typesize = 2u << head[5] % 3;
    if (op.codec == SC_CODEC_SCALE_OFFSET)
        op.encoded_item = op.item;
    return op;
}

static bool
is_lossless(const struct sc_op *op)
{
    switch (op->codec) {
    case SC_CODEC_FIXEDSCALEOFFSET:
    case SC_CODEC_BITROUND:
    case SC_CODEC_QUANTIZE:
    case SC_CODEC_ASTYPE:
    case SC_CODEC_PACKBITS:
    case SC_CODEC_CAST_VALUE:
        return false;
    case SC_CODEC_BIT_FIELDS:
        return op->last_bit - op->first_bit + 1 == (int)(8 * op->typesize);
    case SC_CODEC_SCALE_OFFSET:
        return sc_item_is_integer(op->item);
    case SC_CODEC_DELTA:
        return op->item == op->encoded_item && sc_item_is_integer(op->item);
    default:
        return true;
    }
}

/* True if the codec refuses numbers that have no place in its other data type. */
static bool
may_refuse(const struct sc_op *op)
{
    return op->codec == SC_CODEC_DELTA || op->codec == SC_CODEC_CAST_VALUE || op->codec == SC_CODEC_SCALE_OFFSET;
}

/* A stream that can be decoded whole can be decoded in part; the wanted bytes must be equal. */
static void
decode_some(const struct sc_op *op, const uint8_t *src, size_t n, size_t room, const uint8_t *whole, size_t nbytes)
{
    const struct sc_codec *codec = sc_codec_get(op->codec);
    struct sc_comb comb = { .first = nbytes / 3, .nbytes = nbytes / 16 + 1, .distance = nbytes / 5 + 1, .count = 3 };
    uint8_t *dst;
    struct sc_where where;
    size_t n_out = SIZE_MAX;

    if (!codec->decode_some || comb.first + 2 * comb.distance + comb.nbytes > nbytes)
        return;
    dst = allocate(room);
    sc_where_clear(&where);
    require(codec->decode_some(op, state(), src, n, &comb, dst, room, &n_out, &where) == SC_OK && n_out == nbytes);
    for (uint64_t i = 0; i < comb.count; i++)
        require(!memcmp(dst + comb.first + i * comb.distance, whole + comb.first + i * comb.distance, comb.nbytes));
    free(dst);
}

static void
decode(const struct sc_op *op, const uint8_t *src, size_t n, size_t room)
{
    uint8_t *dst = allocate(room);
    struct sc_where where;
    size_t n_out = SIZE_MAX;
    enum sc_status status;

    sc_where_clear(&where);
    status = sc_codec_get(op->codec)->decode(op, state(), src, n, dst, room, &n_out, &where);
    require(status == SC_OK || status == SC_CODEC_DATA || status == SC_CHUNK_CHECKSUM || status == SC_DST_TOO_SMALL ||
            status == SC_NO_MEMORY || (status == SC_BAD_ARGUMENT && sc_codec_get(op->codec)->fixed_size));
    require(status != SC_OK || n_out <= room);
    if (status == SC_OK)
        decode_some(op, src, n, room, dst, n_out);
    free(dst);
}

static void
round_trip(const struct sc_op *op, const uint8_t *data, size_t n, const uint8_t *head)
{
    const struct sc_codec *codec = sc_codec_get(op->codec);
    size_t bound = codec->bound(op, n), n_encoded = 0, n_decoded = 0;
    uint8_t *encoded, *decoded;
    enum sc_status status;
    struct sc_where where;

    sc_where_clear(&where);
    if (!bound) { /* a filter takes only whole elements */
        require(n == 0 || codec->fixed_size);
        return;
    }
    encoded = allocate(bound);
    decoded = allocate(n);
    status = codec->encode(op, state(), data, n, encoded, bound, &n_encoded, &where);
    if (may_refuse(op) && status == SC_CODEC_ENCODE) {
        require(op->codec == SC_CODEC_DELTA || where.element < n / sc_item_nbytes(op->item));
        free(encoded);
        free(decoded);
        return;
    }
    require(status == SC_OK && n_encoded <= bound);
    status = codec->decode(op, state(), encoded, n_encoded, decoded, n, &n_decoded, &where);
    if (op->codec == SC_CODEC_CAST_VALUE && status == SC_CODEC_DATA) { /* a number changed, by a rule or the map */
        free(encoded);
        free(decoded);
        return;
    }
    require(status == SC_OK);
    require(n_decoded == n && (n == 0 || !is_lossless(op) || memcmp(decoded, data, n) == 0));
    decode_some(op, encoded, n_encoded, n, data, n);

    for (size_t i = 0; i < head[8] % 4u && n_encoded; i++)
        encoded[(head[9 + i] * 257u + head[10 + i]) % (i ? n_encoded : min_u64(n_encoded, 32))] ^= head[12 + i];
    /* A copy of exact size, so that a sanitizer finds a read past the stream. */
    free(decoded);
    decoded = allocate(n_encoded);
    memcpy(decoded, encoded, n_encoded);
    decode(op, decoded, n_encoded - (head[8] & 16 ? head[15] % (n_encoded + 1) : 0), n + head[11]);
    free(encoded);
    free(decoded);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sc_op op;

    if (size < HEAD_NBYTES)
        return 0;
    op = choose(data);
    if (data[2] & 2)
        round_trip(&op, data + HEAD_NBYTES, size - HEAD_NBYTES, data);
    else
        decode(&op, data + HEAD_NBYTES, size - HEAD_NBYTES, (size_t)data[9] << (data[10] % 12));
    return 0;
}
