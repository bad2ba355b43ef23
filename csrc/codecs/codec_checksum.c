/* codec_checksum.c - the checksums: "crc32c", and "fletcher32", "crc32", "adler32", "jenkins_lookup3" as numcodecs has them
 *
 *     encoded = data, then the checksum as a little-endian u4          (op->at_start: the checksum, then the data)
 *
 * A chain checks and adds them in place (sc_checksum_check, sc_codec.h); encode and decode serve single calls.
 * SPDX-License-Identifier: MIT */
#include "codecs/codec_impl.h"

#include "kernels/sc_crc32c.h"

#define NBYTES 4

/* ---- the functions */

static uint32_t
crc32c(const uint8_t *src, size_t nbytes)
{
    return sc_crc32c_extend(0, src, nbytes);
}

static uint32_t
copy_crc32c(const uint8_t *src, size_t nbytes, uint8_t *dst)
{
    return sc_crc32c_copy(0, dst, src, nbytes);
}

/* zlib.h declares functions of the names crc32 and adler32. */
static uint32_t
crc32_of(const uint8_t *src, size_t nbytes)
{
    return zng_crc32_z(0, src, nbytes);
}

static uint32_t
adler32_of(const uint8_t *src, size_t nbytes)
{
    return zng_adler32_z(1, src, nbytes);
}

/* Fletcher's sums of HDF5 are modulo 65535 with end-around carry: a sum of 0 stays 0, any other multiple is 65535. */
static uint64_t
carried(uint64_t sum)
{
    return sum ? (sum - 1) % 65535 + 1 : 0;
}

/* The most words for which the weighted sum of a block fits 32 bits. */
#define BLOCK 360

/* As H5_checksum_fletcher32: words are big-endian; an odd byte counts as the high one of a word. HDF5 adds word after
 * word; here the sums of a block do not depend on those before it, so that the compiler uses vectors. */
static uint32_t
fletcher32(const uint8_t *src, size_t nbytes)
{
    uint64_t sum = 0, weighted = 0;
    size_t n = nbytes / 2;

    for (; n >= BLOCK; n -= BLOCK, src += 2 * BLOCK) {
        uint32_t a = 0, b = 0;

        for (uint32_t i = 0; i < BLOCK; i++) {
            uint32_t word = (uint32_t)src[2 * i] << 8 | src[2 * i + 1];

            a += word;
            b += (BLOCK - i) * word;
        }
        weighted = carried(weighted + BLOCK * sum + b);
        sum = carried(sum + a);
    }
    for (size_t i = 0; i < n; i++) {
        sum += (uint64_t)src[2 * i] << 8 | src[2 * i + 1];
        weighted += sum;
    }
    if (nbytes % 2) {
        sum += (uint64_t)src[2 * n] << 8;
        weighted += sum;
    }
    return (uint32_t)(carried(weighted) << 16 | carried(sum));
}

/* As H5_checksum_lookup3, which is hashlittle() of Bob Jenkins' lookup3.c, with an initial value of 0. */

#define ROTATED(x, k) ((x) << (k) | (x) >> (32 - (k)))

#define MIX(x, y, z, k) \
    x -= z;             \
    x ^= ROTATED(z, k); \
    z += y;

#define FINISH(x, y, k) \
    x ^= y;             \
    x -= ROTATED(y, k);

static uint32_t
jenkins_lookup3(const uint8_t *src, size_t nbytes)
{
    uint32_t a, b, c;
    uint8_t rest[12] = { 0 };

    a = b = c = 0xdeadbeef + (uint32_t)nbytes;
    if (!nbytes)
        return c;
    for (; nbytes > 12; nbytes -= 12, src += 12) {
        a += load_le32(src);
        b += load_le32(src + 4);
        c += load_le32(src + 8);
        MIX(a, b, c, 4)
        MIX(b, c, a, 6)
        MIX(c, a, b, 8)
        MIX(a, b, c, 16)
        MIX(b, c, a, 19)
        MIX(c, a, b, 4)
    }
    memcpy(rest, src, nbytes);
    a += load_le32(rest);
    b += load_le32(rest + 4);
    c += load_le32(rest + 8);
    FINISH(c, b, 14)
    FINISH(a, c, 11)
    FINISH(b, a, 25)
    FINISH(c, b, 16)
    FINISH(a, c, 4)
    FINISH(b, a, 14)
    FINISH(c, b, 24)
    return c;
}

/* ---- in place, for a chain */

enum sc_status
sc_checksum_check(const struct sc_op *op, const uint8_t **src, size_t *nbytes, struct sc_where *where)
{
    const struct sc_codec *codec = sc_codec_get(op->codec);
    uint32_t expected, actual;

    if (*nbytes < NBYTES)
        return sc_codec_failed(SC_CODEC_DATA, where, codec->name, "fewer than the 4 bytes of a checksum", 0, *nbytes);
    *nbytes -= NBYTES;
    expected = load_le32(op->at_start ? *src : *src + *nbytes);
    if (op->at_start)
        *src += NBYTES;
    actual = codec->checksum(*src, *nbytes);
    if (expected == actual)
        return SC_OK;
    where->codec = codec->name;
    where->expected = expected;
    where->actual = actual;
    return SC_CHUNK_CHECKSUM;
}

/* ---- the rows */

static size_t
bound(const struct sc_op *op, size_t nbytes)
{
    (void)op;
    return nbytes > PTRDIFF_MAX - NBYTES ? 0 : nbytes + NBYTES;
}

static enum sc_status
encode(const struct sc_op *op, struct sc_codec_state *state, const uint8_t *src, size_t src_nbytes, uint8_t *dst,
       size_t dst_capacity, size_t *dst_nbytes, struct sc_where *where)
{
    const struct sc_codec *codec = sc_codec_get(op->codec);
    uint8_t *to = op->at_start ? dst + NBYTES : dst;
    uint32_t sum;

    (void)state;
    if (dst_capacity < src_nbytes + NBYTES)
        return sc_codec_failed(SC_DST_TOO_SMALL, where, codec->name, "output full", 0, src_nbytes);
    if (codec->copy_checksum) {
        sum = codec->copy_checksum(src, src_nbytes, to);
    } else {
        if (src_nbytes)
            memcpy(to, src, src_nbytes);
        sum = codec->checksum(to, src_nbytes);
    }
    store_le32(op->at_start ? dst : dst + src_nbytes, sum);
    *dst_nbytes = src_nbytes + NBYTES;
    return SC_OK;
}

static enum sc_status
decode(const struct sc_op *op, struct sc_codec_state *state, const uint8_t *src, size_t src_nbytes, uint8_t *dst,
       size_t dst_capacity, size_t *dst_nbytes, struct sc_where *where)
{
    enum sc_status status = sc_checksum_check(op, &src, &src_nbytes, where);

    (void)state;
    if (status)
        return status;
    if (src_nbytes > dst_capacity)
        return SC_DST_TOO_SMALL;
    if (src_nbytes)
        memcpy(dst, src, src_nbytes);
    *dst_nbytes = src_nbytes;
    return SC_OK;
}

#define ROW(codec, function, copy)             \
    const struct sc_codec sc_codec_##codec = { \
        .name = #codec,                        \
        .max_nbytes = PTRDIFF_MAX - NBYTES,    \
        .fixed_size = true,                    \
        .checksum = function,                  \
        .copy_checksum = copy,                 \
        .bound = bound,                        \
        .encode = encode,                      \
        .decode = decode,                      \
    }

ROW(crc32c, crc32c, copy_crc32c);
ROW(fletcher32, fletcher32, NULL);
ROW(crc32, crc32_of, NULL);
ROW(adler32, adler32_of, NULL);
ROW(jenkins_lookup3, jenkins_lookup3, NULL);
