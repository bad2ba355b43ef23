/* codec_shuffle.c - the two shuffles of Blosc1, and the codec "shuffle" of numcodecs, which is the first of them
 *
 * A block of n elements of `typesize` bytes is a matrix; both shuffles transpose it, so that alike bytes lie together.
 *
 *     shuffle      bytes:  [element][byte]       ->  [byte][element]
 *     bitshuffle   bits:   [element][byte][bit]  ->  [byte][bit][element], bit 0 the lowest, 8 elements to a byte
 *
 * Bytes behind the last whole element are copied. Blosc1 bit-shuffles only if n is a multiple of 8, else the block is
 * unchanged. (Blosc2 shuffles the first n - n % 8 elements, and given a Blosc1 block its decoder omits the bytes behind
 * the last element. So only multiples of 8 elements are passed to it.)
 *
 * The functions of the archive use vector units. The portable ones serve the build with system libraries, and the
 * self-test.
 * SPDX-License-Identifier: MIT */
#include "codecs/codec_impl.h"

/* The compiler unrolls and vectorises these two for the constant typesizes below. */
static inline __attribute__((always_inline)) void
transpose_bytes(size_t typesize, size_t n, const uint8_t *restrict src, uint8_t *restrict dst)
{
    for (size_t b = 0; b < typesize; b++)
        for (size_t i = 0; i < n; i++)
            dst[b * n + i] = src[i * typesize + b];
}

static inline __attribute__((always_inline)) void
untranspose_bytes(size_t typesize, size_t n, const uint8_t *restrict src, uint8_t *restrict dst)
{
    for (size_t i = 0; i < n; i++)
        for (size_t b = 0; b < typesize; b++)
            dst[i * typesize + b] = src[b * n + i];
}

static void
portable_shuffle(size_t typesize, size_t n, const uint8_t *src, uint8_t *dst)
{
    switch (typesize) {
    case 2:
        transpose_bytes(2, n, src, dst);
        break;
    case 4:
        transpose_bytes(4, n, src, dst);
        break;
    case 8:
        transpose_bytes(8, n, src, dst);
        break;
    default:
        transpose_bytes(typesize, n, src, dst);
    }
}

static void
portable_unshuffle(size_t typesize, size_t n, const uint8_t *src, uint8_t *dst)
{
    switch (typesize) {
    case 2:
        untranspose_bytes(2, n, src, dst);
        break;
    case 4:
        untranspose_bytes(4, n, src, dst);
        break;
    case 8:
        untranspose_bytes(8, n, src, dst);
        break;
    default:
        untranspose_bytes(typesize, n, src, dst);
    }
}

/* Bit c of byte r becomes bit r of byte c (bytes counted from the lowest): swap off-diagonal bits, then 2 x 2, then
 * 4 x 4 blocks. Doing it twice undoes it. */
static uint64_t
transpose_8x8(uint64_t x)
{
    uint64_t t;

    t = (x ^ x >> 7) & 0x00AA00AA00AA00AA;
    x ^= t ^ t << 7;
    t = (x ^ x >> 14) & 0x0000CCCC0000CCCC;
    x ^= t ^ t << 14;
    t = (x ^ x >> 28) & 0x00000000F0F0F0F0;
    return x ^ t ^ t << 28;
}

/* n: a multiple of 8. One byte of all elements after the other: eight rows grow in step and stay in the cache. */
static void
portable_bitshuffle(size_t typesize, size_t n, const uint8_t *src, uint8_t *dst)
{
    const size_t row = n / 8;

    for (size_t b = 0; b < typesize; b++)
        for (size_t i = 0; i < n; i += 8) {
            uint64_t x = 0;

            for (size_t k = 0; k < 8; k++)
                x |= (uint64_t)src[(i + k) * typesize + b] << 8 * k;
            x = transpose_8x8(x);
            for (size_t k = 0; k < 8; k++)
                dst[(b * 8 + k) * row + i / 8] = (uint8_t)(x >> 8 * k);
        }
}

static void
portable_bitunshuffle(size_t typesize, size_t n, const uint8_t *src, uint8_t *dst)
{
    const size_t row = n / 8;

    for (size_t b = 0; b < typesize; b++)
        for (size_t i = 0; i < n; i += 8) {
            uint64_t x = 0;

            for (size_t k = 0; k < 8; k++)
                x |= (uint64_t)src[(b * 8 + k) * row + i / 8] << 8 * k;
            x = transpose_8x8(x);
            for (size_t k = 0; k < 8; k++)
                dst[(i + k) * typesize + b] = (uint8_t)(x >> 8 * k);
        }
}

#ifdef SHARDCODEC_SYSTEM_LIBS

#define linked_shuffle portable_shuffle
#define linked_unshuffle portable_unshuffle
#define linked_bitshuffle portable_bitshuffle
#define linked_bitunshuffle portable_bitunshuffle

#else

/* A block is smaller than 2^31 bytes: its size comes from a Blosc header. */
static void
linked_shuffle(size_t typesize, size_t n, const uint8_t *src, uint8_t *dst)
{
    blosc2_shuffle((int32_t)typesize, (int32_t)(n * typesize), src, dst);
}

static void
linked_unshuffle(size_t typesize, size_t n, const uint8_t *src, uint8_t *dst)
{
    blosc2_unshuffle((int32_t)typesize, (int32_t)(n * typesize), src, dst);
}

static void
linked_bitshuffle(size_t typesize, size_t n, const uint8_t *src, uint8_t *dst)
{
    blosc2_bitshuffle((int32_t)typesize, (int32_t)(n * typesize), src, dst);
}

static void
linked_bitunshuffle(size_t typesize, size_t n, const uint8_t *src, uint8_t *dst)
{
    blosc2_bitunshuffle((int32_t)typesize, (int32_t)(n * typesize), src, dst);
}

#endif

typedef void transposition(size_t typesize, size_t n, const uint8_t *src, uint8_t *dst);

/* Transpose the whole elements if their number is a multiple of `unit`, and copy the bytes behind them. */
static void
apply(transposition *f, size_t unit, size_t typesize, size_t nbytes, const uint8_t *src, uint8_t *dst)
{
    size_t n = nbytes / typesize, done = 0;

    if (n > 0 && n % unit == 0) {
        f(typesize, n, src, dst);
        done = n * typesize;
    }
    memcpy(dst + done, src + done, nbytes - done);
}

void
sc_shuffle(size_t typesize, size_t nbytes, const uint8_t *src, uint8_t *dst)
{
    apply(linked_shuffle, 1, typesize, nbytes, src, dst);
}

void
sc_unshuffle(size_t typesize, size_t nbytes, const uint8_t *src, uint8_t *dst)
{
    apply(linked_unshuffle, 1, typesize, nbytes, src, dst);
}

void
sc_bitshuffle(size_t typesize, size_t nbytes, const uint8_t *src, uint8_t *dst)
{
    apply(linked_bitshuffle, 8, typesize, nbytes, src, dst);
}

void
sc_bitunshuffle(size_t typesize, size_t nbytes, const uint8_t *src, uint8_t *dst)
{
    apply(linked_bitunshuffle, 8, typesize, nbytes, src, dst);
}

/* ---- the codec "shuffle". It has no size or checksum, and refuses bytes that are no whole elements, as numcodecs does. */

static size_t
bound(const struct sc_op *op, size_t nbytes)
{
    return op->typesize > 1 && nbytes % op->typesize ? 0 : nbytes;
}

/* True if the vector functions take these bytes: they count in 32 bits, and Blosc has no elements above 255 bytes. */
static bool
fits_linked(const struct sc_op *op, size_t nbytes)
{
    return op->typesize <= 255 && nbytes <= INT32_MAX;
}

static enum sc_status
run(const struct sc_op *op, enum sc_status status, transposition *linked, transposition *portable, const uint8_t *src,
    size_t nbytes, uint8_t *dst, size_t dst_capacity, size_t *dst_nbytes, struct sc_where *where)
{
    if (op->typesize > 1 && nbytes % op->typesize)
        return sc_codec_failed(status, where, op->codec == SC_CODEC_BYTESWAP ? "byteswap" : "shuffle",
                               "no whole number of elements", op->typesize, nbytes);
    if (nbytes > dst_capacity)
        return SC_DST_TOO_SMALL;
    if (op->typesize > 1)
        apply(fits_linked(op, nbytes) ? linked : portable, 1, op->typesize, nbytes, src, dst);
    else if (nbytes)
        memcpy(dst, src, nbytes);
    *dst_nbytes = nbytes;
    return SC_OK;
}

static enum sc_status
encode(const struct sc_op *op, struct sc_codec_state *state, const uint8_t *src, size_t src_nbytes, uint8_t *dst,
       size_t dst_capacity, size_t *dst_nbytes, struct sc_where *where)
{
    (void)state;
    return run(op, SC_CODEC_ENCODE, linked_shuffle, portable_shuffle, src, src_nbytes, dst, dst_capacity, dst_nbytes,
               where);
}

static enum sc_status
decode(const struct sc_op *op, struct sc_codec_state *state, const uint8_t *src, size_t src_nbytes, uint8_t *dst,
       size_t dst_capacity, size_t *dst_nbytes, struct sc_where *where)
{
    (void)state;
    return run(op, SC_CODEC_DATA, linked_unshuffle, portable_unshuffle, src, src_nbytes, dst, dst_capacity, dst_nbytes,
               where);
}

const struct sc_codec sc_codec_shuffle = {
    .name = "shuffle",
    .max_nbytes = SIZE_MAX,
    .fixed_size = true,
    .bound = bound,
    .encode = encode,
    .decode = decode,
};

/* ---- the swap of the byte order of elements of 2, 4 or 8 bytes behind filters; the codec "bytes" has it elsewhere */

#define DEFINE_SWAP(Bits, swapped)                                                        \
    static void swap_##Bits(const uint8_t *restrict src, size_t n, uint8_t *restrict dst) \
    {                                                                                     \
        for (size_t i = 0; i < n; i++) {                                                  \
            Bits item;                                                                    \
                                                                                          \
            memcpy(&item, src + i * sizeof item, sizeof item);                            \
            item = swapped(item);                                                         \
            memcpy(dst + i * sizeof item, &item, sizeof item);                            \
        }                                                                                 \
    }

DEFINE_SWAP(uint16_t, __builtin_bswap16)
DEFINE_SWAP(uint32_t, __builtin_bswap32)
DEFINE_SWAP(uint64_t, __builtin_bswap64)

static void
swap_bytes(size_t typesize, size_t n, const uint8_t *restrict src, uint8_t *restrict dst)
{
    if (typesize == 2)
        swap_uint16_t(src, n, dst);
    else if (typesize == 4)
        swap_uint32_t(src, n, dst);
    else
        swap_uint64_t(src, n, dst);
}

static size_t
swapped_bound(const struct sc_op *op, size_t nbytes)
{
    return op->typesize == 2 || op->typesize == 4 || op->typesize == 8 ? bound(op, nbytes) : 0;
}

static enum sc_status
swap(const struct sc_op *op, struct sc_codec_state *state, const uint8_t *src, size_t src_nbytes, uint8_t *dst,
     size_t dst_capacity, size_t *dst_nbytes, struct sc_where *where)
{
    (void)state;
    if (!swapped_bound(op, 8))
        return SC_BAD_ARGUMENT;
    return run(op, SC_CODEC_DATA, swap_bytes, swap_bytes, src, src_nbytes, dst, dst_capacity, dst_nbytes, where);
}

const struct sc_codec sc_codec_byteswap = {
    .name = "byteswap",
    .max_nbytes = SIZE_MAX,
    .fixed_size = true,
    .elementwise = true,
    .bound = swapped_bound,
    .encode = swap,
    .decode = swap,
};

/* ---- self-test */

/* True if `linked` gives the bytes of `own` for elements of this size. */
static bool
agree(transposition *linked, transposition *own, size_t typesize, const uint8_t *src)
{
    uint8_t a[1024], b[1024];
    size_t n = sizeof a / typesize / 8 * 8;

    memset(a, 0, sizeof a);
    memset(b, 0, sizeof b);
    linked(typesize, n, src, a);
    own(typesize, n, src, b);
    return memcmp(a, b, sizeof a) == 0;
}

bool
sc_shuffle_selftest(void)
{
    static const size_t typesizes[] = { 2, 3, 4, 8, 12, 16, 24, 32 };
    uint8_t src[1024];

    for (size_t i = 0; i < sizeof src; i++)
        src[i] = (uint8_t)(i * 2654435761u >> 13);
    for (size_t i = 0; i < SC_ARRAY_SIZE(typesizes); i++)
        if (!agree(linked_shuffle, portable_shuffle, typesizes[i], src) ||
            !agree(linked_unshuffle, portable_unshuffle, typesizes[i], src) ||
            !agree(linked_bitshuffle, portable_bitshuffle, typesizes[i], src) ||
            !agree(linked_bitunshuffle, portable_bitunshuffle, typesizes[i], src))
            return false;
    return true;
}
