/* sc_codec.h - one interface over the codecs of an inner chain that change bytes: filters, checksums, compressors
 *
 * SPDX-License-Identifier: MIT */
#ifndef SC_CODEC_H
#define SC_CODEC_H

#include "base/sc_status.h"

/* All codecs. ROW(ID, name): SC_CODEC_ID is the number in struct sc_op, sc_codec_<name> the row that a file codec_*.c
 * defines, and `name` that of the Python layer. */
#define SC_CODECS(ROW)                      \
    ROW(CRC32C, crc32c)                     \
    ROW(ZSTD, zstd)                         \
    ROW(GZIP, gzip)                         \
    ROW(ZLIB, zlib)                         \
    ROW(LZ4, lz4)                           \
    ROW(BLOSC, blosc)                       \
    ROW(SHUFFLE, shuffle)                   \
    ROW(FLETCHER32, fletcher32)             \
    ROW(CRC32, crc32)                       \
    ROW(ADLER32, adler32)                   \
    ROW(DELTA, delta)                       \
    ROW(FIXEDSCALEOFFSET, fixedscaleoffset) \
    ROW(BITROUND, bitround)                 \
    ROW(QUANTIZE, quantize)                 \
    ROW(ASTYPE, astype)                     \
    ROW(PACKBITS, packbits)                 \
    ROW(BIT_FIELDS, bit_fields)             \
    ROW(SCALE_OFFSET, scale_offset)         \
    ROW(CAST_VALUE, cast_value)             \
    ROW(BYTESWAP, byteswap)                 \
    ROW(JENKINS_LOOKUP3, jenkins_lookup3)

#define SC_CODEC_NUMBER(ID, name) SC_CODEC_##ID,
enum sc_codec_id { SC_CODECS(SC_CODEC_NUMBER) SC_N_CODECS };

/* order of our own; the container's codes are in codec_blosc_impl.h */
enum sc_blosc_compressor {
    SC_BLOSC_BLOSCLZ = 0,
    SC_BLOSC_LZ4 = 1,
    SC_BLOSC_LZ4HC = 2,
    SC_BLOSC_ZLIB = 3,
    SC_BLOSC_ZSTD = 4,
};

enum sc_blosc_shuffle { SC_BLOSC_NOSHUFFLE = 0, SC_BLOSC_SHUFFLE = 1, SC_BLOSC_BITSHUFFLE = 2 };

/* bit_fields: the place of the byte that has the number of padding bits. */
enum sc_padding { SC_PADDING_NONE, SC_PADDING_FIRST, SC_PADDING_LAST };

/* cast_value: an entry of scalar_map. The bits of an item, and of what it becomes. */
struct sc_mapped {
    uint64_t from, to;
};

#define SC_MAX_MAPPED 256

/* One codec of a chain as configured: immutable while a plan runs, shared by all workers. */
struct sc_op {
    enum sc_codec_id codec;
    int level;      /* zstd (negative allowed), gzip, zlib, blosc clevel, lz4 acceleration; bitround: kept bits */
    bool checksum;  /* zstd: frame checksum */
    int compressor; /* blosc: enum sc_blosc_compressor */
    int shuffle;    /* blosc: enum sc_blosc_shuffle */
    uint32_t typesize;  /* blosc: 1..255; shuffle: at least 1; byteswap: 2, 4 or 8; bit_fields: 1, 2, 4 or 8 */
    uint32_t blocksize; /* blosc: 0 = automatic, as c-blosc 1.21 chooses it */
    bool at_start; /* checksums: in front of the bytes, not behind them */
    int item, encoded_item; /* filters: enum sc_item_type (sc_items.h) of the elements, before and after encoding */
    double offset, scale;   /* fixedscaleoffset; quantize; scale_offset */
    bool offset_is_integer, scale_is_integer; /* it is given as an integer, of at most 2^53 */
    uint64_t offset_word, scale_word; /* scale_offset of integers: the same as integers of any size, modulo 2^64 */
    int first_bit, last_bit, n_bits; /* bit_fields: what is stored, of the bits of an element */
    bool is_signed;                  /* bit_fields */
    int padding;                     /* bit_fields: enum sc_padding */
    int rounding, out_of_range;       /* cast_value: enum sc_rounding, enum sc_out_of_range (sc_items.h) */
    const struct sc_mapped *mapped[2]; /* cast_value: scalar_map of encoding and of decoding, n_mapped entries */
    size_t n_mapped[2];
};

/* Library contexts and small scratch of one worker; made once, reused for every chunk; grow-only. Not for two threads at once. */
struct sc_codec_state;
struct sc_codec_state *sc_codec_state_new(void); /* NULL: no memory */
void sc_codec_state_free(struct sc_codec_state *state);

/* The bytes of a decoded chunk that are wanted: `count` runs of nbytes each, `distance` (at least nbytes) from one
 * to the next. */
struct sc_comb {
    uint64_t first, nbytes, distance, count;
};

/* True if the comb has a byte in [low, high). */
static inline bool
sc_comb_touches(const struct sc_comb *comb, uint64_t low, uint64_t high)
{
    uint64_t tooth = 0; /* the first that ends behind low */

    if (low >= comb->first + comb->nbytes)
        tooth = (low - comb->first - comb->nbytes) / comb->distance + 1;
    return tooth < comb->count && comb->first + tooth * comb->distance < high;
}

struct sc_codec {
    const char *name; /* as in Zarr metadata */

    size_t max_nbytes; /* most bytes that encode() takes; SIZE_MAX: as many as there are */

    bool fixed_size; /* encode() writes bound() bytes, whatever the data are */

    bool elementwise; /* each element alone: the encoded blocks of an array are its encoded form */

    /* A checksum: a little-endian u4 beside the unchanged bytes, which the chain checks and adds without a copy. The
     * second function also copies the bytes. NULL if this codec is not a checksum. */
    uint32_t (*checksum)(const uint8_t *src, size_t nbytes);
    uint32_t (*copy_checksum)(const uint8_t *src, size_t nbytes, uint8_t *dst);

    /* Most bytes that encode() may write for nbytes of input; 0 when the codec cannot take that many. */
    size_t (*bound)(const struct sc_op *op, size_t nbytes);

    /* dst and src do not overlap. SC_DST_TOO_SMALL is impossible when dst_capacity >= bound. */
    enum sc_status (*encode)(const struct sc_op *op, struct sc_codec_state *state, const uint8_t *src,
                             size_t src_nbytes, uint8_t *dst, size_t dst_capacity, size_t *dst_nbytes,
                             struct sc_where *where);

    /* Decode all of src (several zstd frames, several gzip members). It never writes past dst_capacity and never
     * reads past src_nbytes, whatever the bytes are. SC_DST_TOO_SMALL: the stream holds more than fits.
     * SC_CODEC_DATA: it is malformed or cut; where->codec, ->detail and ->library_code are set. SC_CHUNK_CHECKSUM: a
     * checksum differs. Streams of compressors describe themselves, so their decoders do not use `op`. */
    enum sc_status (*decode)(const struct sc_op *op, struct sc_codec_state *state, const uint8_t *src,
                             size_t src_nbytes, uint8_t *dst, size_t dst_capacity, size_t *dst_nbytes,
                             struct sc_where *where);

    /* Return the decoded size that a stream claims, which may be wrong; 0: it claims none. NULL: no stream does. */
    uint64_t (*claimed_nbytes)(const uint8_t *src, size_t src_nbytes);

    /* Decode only the bytes of the comb; the bytes between its teeth are undefined, and of their encoded form only
     * the framing is checked. NULL: this codec cannot skip anything. */
    enum sc_status (*decode_some)(const struct sc_op *op, struct sc_codec_state *state, const uint8_t *src,
                                  size_t src_nbytes, const struct sc_comb *wanted, uint8_t *dst, size_t dst_capacity,
                                  size_t *dst_nbytes, struct sc_where *where);

    const struct sc_filter *filter; /* sc_filter.h; NULL for a codec that is not a filter */
};

/* Return the table row of an id; NULL if the id is unknown. */
const struct sc_codec *sc_codec_get(enum sc_codec_id id);

/* The names of all rows, by id. */
extern const char *const sc_codec_names[SC_N_CODECS];

/* Check the checksum of *nbytes stored bytes at *src and drop it from the range. */
enum sc_status sc_checksum_check(const struct sc_op *op, const uint8_t **src, size_t *nbytes, struct sc_where *where);

/* Encode and decode a fixed text with every library and check versions that the prototypes in sc_libs.h rely on.
 * *what names the library that failed. Run once at import. */
enum sc_status sc_codec_selftest(const char **what);

/* Versions of the linked libraries, static strings: "1.5.7" for zstd and so on. */
const char *sc_codec_library_version(const char *library);

#endif
