# codecs.pxd - the C interface of csrc/codecs: the table of codecs
# SPDX-License-Identifier: MIT

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from shardcodec.csrc.base cimport sc_status, sc_where


cdef extern from "codecs/sc_codec.h" nogil:
    enum sc_codec_id:
        SC_N_CODECS

    struct sc_mapped:
        uint64_t source "from"
        uint64_t to

    struct sc_op:
        sc_codec_id codec
        int level
        bint checksum
        int compressor
        int shuffle
        uint32_t typesize
        uint32_t blocksize
        bint at_start
        int item
        int encoded_item
        double offset
        double scale
        bint offset_is_integer
        bint scale_is_integer
        uint64_t offset_word
        uint64_t scale_word
        int first_bit
        int last_bit
        int n_bits
        bint is_signed
        int padding
        int rounding
        int out_of_range
        const sc_mapped *mapped[2]
        size_t n_mapped[2]

    struct sc_codec_state
    sc_codec_state *sc_codec_state_new()
    void sc_codec_state_free(sc_codec_state *state)

    struct sc_codec:
        const char *name
        size_t max_nbytes
        bint fixed_size
        size_t (*bound)(const sc_op *op, size_t nbytes) noexcept nogil
        sc_status (*encode)(const sc_op *op, sc_codec_state *state, const uint8_t *src, size_t src_nbytes, uint8_t *dst,
                            size_t dst_capacity, size_t *dst_nbytes, sc_where *where) noexcept nogil
        sc_status (*decode)(const sc_op *op, sc_codec_state *state, const uint8_t *src, size_t src_nbytes, uint8_t *dst,
                            size_t dst_capacity, size_t *dst_nbytes, sc_where *where) noexcept nogil

    const sc_codec *sc_codec_get(sc_codec_id id)
    const char *const *sc_codec_names
    sc_status sc_codec_selftest(const char **what)
    const char *sc_codec_library_version(const char *library)
