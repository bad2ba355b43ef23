/* codec_bit_fields.c - the codec "packbits" of zarr-extensions: some bits of each element, without gaps
 *
 * b = last_bit - first_bit + 1 bits of an element are stored; those of element i are the bits [i * b, (i + 1) * b) of a
 * sequence. Byte k has its bits [8 * k, 8 * k + 8), the first of them as its lowest bit. Zeros fill the last byte; their
 * number may be stored in one more byte. The parts of a complex number are two elements. (The codec of that name in
 * numcodecs begins with the highest bit of a byte: codec_packbits.c.)
 * SPDX-License-Identifier: MIT */
#include "codecs/codec_impl.h"

struct field {
    unsigned first, n;  /* the stored bits of an element */
    uint64_t mask;      /* n ones */
    uint64_t extension; /* signed elements: the bits above the field, which repeat its highest one */
    bool is_truth;      /* any byte but 0 is true */
};

static uint64_t
low_bits(unsigned n)
{
    return n ? UINT64_MAX >> (64 - n) : 0;
}

/* False: the Python layer makes no such op. */
static bool
is_valid(const struct sc_op *op)
{
    const uint32_t size = op->typesize;

    return (size == 1 || size == 2 || size == 4 || size == 8) && op->first_bit >= 0 && op->first_bit <= op->last_bit &&
           op->last_bit < op->n_bits && (unsigned)op->n_bits <= 8 * size && op->padding >= SC_PADDING_NONE &&
           op->padding <= SC_PADDING_LAST;
}

static struct field
field_of(const struct sc_op *op)
{
    const unsigned first = (unsigned)op->first_bit, end = (unsigned)op->last_bit + 1, n_bits = (unsigned)op->n_bits;

    return (struct field){
        .first = first,
        .n = end - first,
        .mask = low_bits(end - first),
        .extension = op->is_signed ? low_bits(n_bits) & ~low_bits(end) : 0,
        .is_truth = n_bits == 1,
    };
}

/* The bytes of n elements; their bits fit 64 bits. */
static size_t
packed_nbytes(const struct field *field, size_t n)
{
    return (size_t)(((uint64_t)n * field->n + 7) / 8);
}

static size_t
bound(const struct sc_op *op, size_t nbytes)
{
    struct field field;
    uint64_t n_bits;

    if (!is_valid(op) || nbytes % op->typesize)
        return 0;
    field = field_of(op);
    if (!mul_fits(nbytes / op->typesize, field.n, &n_bits) || n_bits > UINT64_MAX - 7)
        return 0;
    return packed_nbytes(&field, nbytes / op->typesize) + (op->padding != SC_PADDING_NONE);
}

/* Load 8 bytes; zeros where there are fewer. */
static inline uint64_t
load_part(const uint8_t *src, size_t nbytes)
{
    uint8_t bytes[8] = { 0 };

    if (SC_LIKELY(nbytes >= 8))
        return load_le64(src);
    memcpy(bytes, src, nbytes);
    return load_le64(bytes);
}

/* Store 8 bytes, or the first nbytes of them. */
static inline void
store_part(uint8_t *dst, size_t nbytes, uint64_t word)
{
    uint8_t bytes[8];

    if (SC_LIKELY(nbytes >= 8)) {
        store_le64(dst, word);
        return;
    }
    store_le64(bytes, word);
    memcpy(dst, bytes, nbytes);
}

/* ---- elements of one byte: eight of them in one word become field->n bytes, by pairs, fours and eights */

#define EACH_BYTE UINT64_C(0x0101010101010101)

static uint64_t
pack_eight(const struct field *field, uint64_t x)
{
    const uint64_t low = 0x7f * EACH_BYTE;
    const unsigned n = field->n;

    if (field->is_truth)
        x = (((x & low) + low) | x) >> 7 & EACH_BYTE;
    else
        x = x >> field->first & field->mask * EACH_BYTE;
    x = (x & UINT64_C(0x00ff00ff00ff00ff)) | (x >> 8 & UINT64_C(0x00ff00ff00ff00ff)) << n;
    x = (x & UINT64_C(0x0000ffff0000ffff)) | (x >> 16 & UINT64_C(0x0000ffff0000ffff)) << (2 * n);
    return (x & UINT64_C(0xffffffff)) | (x >> 32) << (4 * n);
}

static uint64_t
unpack_eight(const struct field *field, uint64_t x)
{
    const unsigned n = field->n;
    const uint64_t fours = low_bits(4 * n), pairs = low_bits(2 * n) * UINT64_C(0x0000000100000001);
    const uint64_t ones = field->mask * UINT64_C(0x0001000100010001);

    x = (x & fours) | (x >> (4 * n) & fours) << 32;
    x = (x & pairs) | (x >> (2 * n) & pairs) << 16;
    x = (x & ones) | (x >> n & ones) << 8;
    x <<= field->first;
    return x | (x >> (field->first + n - 1) & EACH_BYTE) * field->extension;
}

static void
pack_bytes(const struct field *field, const uint8_t *src, size_t n, uint8_t *dst)
{
    const size_t n_packed = packed_nbytes(field, n);

    for (size_t i = 0, at = 0; i < n; i += 8, at += field->n)
        store_part(dst + at, n_packed - at, pack_eight(field, load_part(src + i, n - i)));
}

static void
unpack_bytes(const struct field *field, const uint8_t *src, size_t n, uint8_t *dst)
{
    const size_t n_packed = packed_nbytes(field, n);

    for (size_t i = 0, at = 0; i < n; i += 8, at += field->n)
        store_part(dst + i, n - i, unpack_eight(field, load_part(src + at, n_packed - at)));
}

/* ---- wider elements, one after the other */

/* The field that begins at this bit; `src` has 8 bytes from its first byte on, and all bytes of the field. */
static inline uint64_t
field_at(const struct field *field, const uint8_t *src, uint64_t bit)
{
    const unsigned shift = bit % 8;
    uint64_t x = load_le64(src + bit / 8) >> shift;

    if (shift + field->n > 64)
        x |= (uint64_t)src[bit / 8 + 8] << (64 - shift);
    x = (x & field->mask) << field->first;
    return x | (x >> (field->first + field->n - 1) & 1) * field->extension;
}

/* The number of elements, of n, for which field_at() reads nothing behind the packed bytes. */
static size_t
n_inside(const struct field *field, size_t n, size_t n_packed)
{
    return n_packed < 8 ? 0 : (size_t)min_u64(n, (8 * ((uint64_t)n_packed - 8) + 7) / field->n + 1);
}

#define WIDE(Item)                                                                                   \
    static void pack_##Item(const struct field *field, const uint8_t *src, size_t n, uint8_t *dst)   \
    {                                                                                                \
        uint64_t word = 0;                                                                           \
        unsigned used = 0;                                                                           \
                                                                                                     \
        for (size_t i = 0; i < n; i++) {                                                             \
            uint64_t bits;                                                                           \
            Item item;                                                                               \
                                                                                                     \
            memcpy(&item, src + i * sizeof item, sizeof item);                                       \
            bits = (uint64_t)item >> field->first & field->mask;                                     \
            word |= bits << used;                                                                    \
            used += field->n;                                                                        \
            if (used >= 64) {                                                                        \
                store_le64(dst, word);                                                               \
                dst += 8;                                                                            \
                used -= 64;                                                                          \
                word = used ? bits >> (field->n - used) : 0;                                         \
            }                                                                                        \
        }                                                                                            \
        store_part(dst, (used + 7) / 8, word);                                                       \
    }                                                                                                \
                                                                                                     \
    static void unpack_##Item(const struct field *field, const uint8_t *src, size_t n, uint8_t *dst) \
    {                                                                                                \
        const size_t n_packed = packed_nbytes(field, n), inside = n_inside(field, n, n_packed);      \
        const uint64_t end = (uint64_t)inside * field->n / 8 * 8;                                    \
        uint8_t rest[16] = { 0 };                                                                    \
                                                                                                     \
        for (size_t i = 0; i < inside; i++) {                                                        \
            Item item = (Item)field_at(field, src, (uint64_t)i * field->n);                          \
                                                                                                     \
            memcpy(dst + i * sizeof item, &item, sizeof item);                                       \
        }                                                                                            \
        if (inside < n)                                                                              \
            memcpy(rest, src + end / 8, n_packed - end / 8);                                         \
        for (size_t i = inside; i < n; i++) {                                                        \
            Item item = (Item)field_at(field, rest, (uint64_t)i * field->n - end);                   \
                                                                                                     \
            memcpy(dst + i * sizeof item, &item, sizeof item);                                       \
        }                                                                                            \
    }

WIDE(uint16_t)
WIDE(uint32_t)
WIDE(uint64_t)

typedef void move_fields(const struct field *field, const uint8_t *src, size_t n, uint8_t *dst);

/* ---- the codec */

static enum sc_status
encode(const struct sc_op *op, struct sc_codec_state *state, const uint8_t *src, size_t src_nbytes, uint8_t *dst,
       size_t dst_capacity, size_t *dst_nbytes, struct sc_where *where)
{
    static move_fields *const pack[] = { pack_bytes, pack_uint16_t, pack_uint32_t, pack_uint64_t };
    const size_t n_encoded = bound(op, src_nbytes), at_start = op->padding == SC_PADDING_FIRST;
    struct field field;
    size_t n, n_packed;

    (void)state;
    (void)where;
    if (!is_valid(op) || src_nbytes % op->typesize || (src_nbytes && !n_encoded))
        return SC_BAD_ARGUMENT;
    if (dst_capacity < n_encoded)
        return SC_DST_TOO_SMALL;
    field = field_of(op);
    n = src_nbytes / op->typesize;
    n_packed = packed_nbytes(&field, n);
    if (op->padding != SC_PADDING_NONE)
        dst[at_start ? 0 : n_packed] = (uint8_t)(8 * n_packed - n * field.n);
    pack[__builtin_ctz(op->typesize)](&field, src, n, dst + at_start);
    *dst_nbytes = n_encoded;
    return SC_OK;
}

/* Find the number of elements. Without a number of padding bits, it is that which the caller expects, if the bytes have this
 * size, or else the largest. Return what is wrong with the bytes; NULL: nothing. */
static const char *
count_items(const struct sc_op *op, const struct field *field, const uint8_t *src, size_t src_nbytes, size_t expected,
            size_t *n)
{
    const size_t n_bytes = op->padding != SC_PADDING_NONE;
    const uint8_t *packed = src + (op->padding == SC_PADDING_FIRST);
    uint64_t n_bits, n_padding;

    if (src_nbytes < n_bytes)
        return "no number of padding bits";
    if (src_nbytes > PTRDIFF_MAX / 8)
        return "more bits than memory has";
    n_bits = 8 * ((uint64_t)src_nbytes - n_bytes);
    n_padding = n_bytes ? src[op->padding == SC_PADDING_FIRST ? 0 : src_nbytes - 1] : 0;
    if (n_padding > 7 || n_padding > n_bits)
        return "a wrong number of padding bits";
    *n = (size_t)((n_bits - n_padding) / field->n);
    if (!n_bytes && expected < *n && packed_nbytes(field, expected) == src_nbytes)
        *n = expected;
    if (!n_bytes)
        n_padding = n_bits - (uint64_t)*n * field->n;
    if (n_padding > 7 || n_bits - n_padding != (uint64_t)*n * field->n)
        return "no whole number of elements";
    if (n_padding && packed[n_bits / 8 - 1] >> (8 - n_padding))
        return "padding bits that are not 0";
    return NULL;
}

static enum sc_status
decode(const struct sc_op *op, struct sc_codec_state *state, const uint8_t *src, size_t src_nbytes, uint8_t *dst,
       size_t dst_capacity, size_t *dst_nbytes, struct sc_where *where)
{
    static move_fields *const unpack[] = { unpack_bytes, unpack_uint16_t, unpack_uint32_t, unpack_uint64_t };
    struct field field;
    const char *wrong;
    size_t n, most;

    (void)state;
    if (!is_valid(op))
        return SC_BAD_ARGUMENT;
    field = field_of(op);
    most = dst_capacity / op->typesize;
    wrong = count_items(op, &field, src, src_nbytes, most, &n);
    if (wrong)
        return sc_codec_failed(SC_CODEC_DATA, where, "packbits", wrong, 0, src_nbytes);
    if (n > most)
        return SC_DST_TOO_SMALL;
    unpack[__builtin_ctz(op->typesize)](&field, src + (op->padding == SC_PADDING_FIRST), n, dst);
    *dst_nbytes = n * op->typesize;
    return SC_OK;
}

const struct sc_codec sc_codec_bit_fields = {
    .name = "bit_fields",
    .max_nbytes = SIZE_MAX,
    .fixed_size = true,
    .bound = bound,
    .encode = encode,
    .decode = decode,
};
