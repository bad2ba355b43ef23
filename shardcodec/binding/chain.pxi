# chain.pxi - codecs and chains of codecs
# SPDX-License-Identifier: MIT

CODECS = {text(sc_codec_names[number]): number for number in range(SC_N_CODECS)}
COMPRESSORS = ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
ITEM_TYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")
SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
ROUNDINGS = ("nearest-even", "towards-zero", "towards-positive", "towards-negative", "nearest-away")
OUT_OF_RANGE = (None, "clamp", "wrap")
PADDINGS = ("none", "first_byte", "last_byte")


cdef int read_op(sc_op *op, str name, dict params) except -1:
    """Fill `op`, which refers to the bytes of ``mapped``: the caller keeps `params`."""
    cdef dict known_params = {"level": 1, "checksum": False, "compressor": "lz4", "shuffle": "noshuffle", "typesize": 1,
                              "blocksize": 0, "at_start": False, "item": "uint8", "encoded_item": "uint8", "offset": 0,
                              "scale": 1, "rounding": "nearest-even", "out_of_range": None, "mapped": (b"", b""),
                              "first_bit": 0, "last_bit": 7, "n_bits": 8, "is_signed": False, "padding": "none"}
    unknown = set(params) - set(known_params)
    if name not in CODECS or unknown:
        raise ValueError(f"codec {name!r}: expected parameters among {sorted(known_params)}, got {sorted(unknown)}"
                         if unknown else f"expected a native codec, one of {sorted(CODECS)}, got {name!r}")
    known_params.update(params)
    memset(op, 0, sizeof(sc_op))
    op.codec = <sc_codec_id><int>CODECS[name]
    op.level = known_params["level"]
    op.checksum = known_params["checksum"]
    op.compressor = COMPRESSORS.index(known_params["compressor"])
    op.shuffle = SHUFFLES.index(known_params["shuffle"])
    op.typesize = known_params["typesize"]
    op.blocksize = known_params["blocksize"]
    op.at_start = known_params["at_start"]
    op.item = ITEM_TYPES.index(known_params["item"])
    op.encoded_item = ITEM_TYPES.index(known_params["encoded_item"])
    op.offset, op.offset_is_integer = known_params["offset"], isinstance(known_params["offset"], int)
    op.scale, op.scale_is_integer = known_params["scale"], isinstance(known_params["scale"], int)
    op.offset_word = known_params["offset"] & 0xffffffffffffffff if op.offset_is_integer else 0
    op.scale_word = known_params["scale"] & 0xffffffffffffffff if op.scale_is_integer else 0
    op.rounding = ROUNDINGS.index(known_params["rounding"])
    op.out_of_range = OUT_OF_RANGE.index(known_params["out_of_range"])
    op.first_bit = known_params["first_bit"]
    op.last_bit = known_params["last_bit"]
    op.n_bits = known_params["n_bits"]
    op.is_signed = known_params["is_signed"]
    op.padding = PADDINGS.index(known_params["padding"])
    for direction in range(2):
        pairs = known_params["mapped"][direction]
        op.mapped[direction] = <const sc_mapped *><const void *>PyBytes_AsString(pairs)
        op.n_mapped[direction] = <size_t>len(pairs) // sizeof(sc_mapped)
    return 0


def codec_encode(str name, data, **params):
    """Encode `data` with one codec, as a chain would."""
    cdef View source = View(data)
    cdef sc_op op
    read_op(&op, name, params)
    return run_codec(&op, source, True, 0)


cdef bytes run_codec(const sc_op *op, View source, bint encode, size_t max_nbytes):
    cdef const sc_codec *codec = sc_codec_get(op.codec)
    cdef sc_codec_state *state
    cdef uint8_t *out
    cdef size_t capacity, n = 0
    cdef sc_status status
    cdef sc_where where
    capacity = codec.bound(op, source.nbytes()) if encode else max_nbytes
    if encode and capacity == 0:
        raise ValueError(f"{text(codec.name)}: cannot encode {source.nbytes()} bytes")
    state = sc_codec_state_new()
    out = <uint8_t *>malloc(capacity + 1)
    try:
        if state == NULL or out == NULL:
            raise MemoryError
        sc_where_clear(&where)
        with nogil:
            if encode:
                status = codec.encode(op, state, source.data(), source.nbytes(), out, capacity, &n, &where)
            else:
                status = codec.decode(op, state, source.data(), source.nbytes(), out, capacity, &n, &where)
        if status == SC_DST_TOO_SMALL:
            raise CodecError(f"{text(codec.name)}: expected at most {max_nbytes} decoded bytes, got more than "
                             f"{max_nbytes}", codec=text(codec.name), limit=max_nbytes)
        raise_status(status, &where)
        return PyBytes_FromStringAndSize(<const char *>out, <Py_ssize_t>n)
    finally:
        free(out)
        sc_codec_state_free(state)


cdef class Chain:
    """The compiled codecs of an array (csrc/chain/sc_chain.h), from the arguments that `shardcodec.format.chain.lower` returns.

    `stage` is for the Python layers: the encoder of the chunks of an opaque chain.
    """

    cdef sc_chain chain
    cdef sc_device_hint hint  # where its objects are
    cdef Swap swap
    cdef readonly Chain inner
    cdef readonly tuple shape
    cdef readonly tuple perm
    cdef readonly tuple grid_shape  # inner chunks along each stored axis; empty for a leaf
    cdef readonly object stage
    cdef object ops  # their parameters have memory that `chain` refers to

    def __cinit__(self, *, shape, size_t itemsize, swap, perm, bytes fill, ops, inner=None, index=None,
                  bint opaque=False, stage=None, nan=None):
        cdef sc_chain *c = &self.chain
        cdef int a
        cdef size_t i
        c.ndim = read_rank(shape)
        c.itemsize = itemsize
        read_numbers(shape, c.ndim, c.shape)
        if len(perm) != c.ndim:
            raise ValueError(f"expected a permutation of {c.ndim} axes, got {perm!r}")
        for a in range(c.ndim):
            c.perm[a] = perm[a]
        self.swap = Swap(swap, itemsize)
        c.swap = self.swap.swap
        self.set_fill(fill)
        if nan is not None:
            if itemsize not in (2, 4, 8) or nan not in ("little", "big"):
                raise ValueError(f"expected floats of 2, 4 or 8 bytes and their byte order, got {itemsize} and {nan!r}")
            c.nan_fills = True
            c.nan_big_endian = nan == "big"
        if len(ops) > SC_MAX_OPS:
            raise ValueError(f"expected at most {SC_MAX_OPS} bytes -> bytes codecs, got {len(ops)}")
        c.n_ops = len(ops)
        self.ops = tuple(ops)
        c.opaque = opaque
        self.stage = stage
        for i in range(c.n_ops):
            read_op(&c.ops[i], ops[i][0], ops[i][1])
        if inner is not None:
            self.inner = inner if isinstance(inner, Chain) else Chain(**inner)
            c.inner = &self.inner.chain
            self.set_index(**index)
        if sc_chain_prepare(c) != SC_OK:
            raise ValueError(f"expected a chain with consistent shapes and sizes, got shape {tuple(shape)}")
        self.shape = tuple(c.shape[a] for a in range(c.ndim))
        self.perm = tuple(c.perm[a] for a in range(c.ndim))
        self.grid_shape = () if self.inner is None else tuple(c.grid[a] for a in range(c.ndim))

    cdef int set_fill(self, bytes fill) except -1:
        cdef sc_chain *c = &self.chain
        if <size_t>len(fill) != c.itemsize or c.itemsize == 0:
            raise ValueError(f"expected a fill value of {c.itemsize} bytes, one element, got {len(fill)}")
        c.fill = <uint8_t *>malloc(2 * c.itemsize)
        if c.fill == NULL:
            raise MemoryError
        c.fill_stored = c.fill + c.itemsize
        memcpy(c.fill, PyBytes_AsString(fill), c.itemsize)
        memcpy(c.fill_stored, c.fill, c.itemsize)
        sc_swap_items(c.fill_stored, 1, c.itemsize, &c.swap)
        return 0

    def __dealloc__(self):
        free(self.chain.fill)

    def set_index(self, *, bint at_start, bint big_endian, unsigned n_checksums, perm=None):
        """Set the layout of the index; only the constructor calls this."""
        cdef sc_chain *c = &self.chain
        cdef int a, axis
        cdef uint64_t stride = 1
        cdef list shape
        c.index.at_start = at_start
        c.index.big_endian = big_endian
        c.index.n_checksums = n_checksums
        c.index.in_c_order = perm is None or list(perm) == list(range(c.ndim + 1))
        if c.index.in_c_order:
            return
        if sorted(perm) != list(range(c.ndim + 1)):
            raise ValueError(f"index transpose: expected a permutation of {c.ndim + 1} axes, got {perm!r}")
        shape = [-(-<object>c.shape[c.perm[a]] // self.inner.shape[a]) for a in range(c.ndim)] + [2]
        for axis in reversed(perm):
            if axis == c.ndim:
                c.index.half_stride = stride
            else:
                c.index.strides[axis] = stride
            stride *= <uint64_t>shape[axis]

    cdef int refuse_opaque(self) except -1:
        if self.is_opaque:
            raise ValueError("expected a chain of native codecs, but there is no native code for some of its codecs")
        return 0

    @property
    def itemsize(self):
        return self.chain.itemsize

    @property
    def is_shard(self):
        """True if inner chunks can be read one by one."""
        return self.chain.inner != NULL and self.chain.n_ops == 0

    @property
    def is_opaque(self):
        """True if some codecs are not native; the chain then only locates inner chunks."""
        return bool(self.chain.opaque if self.inner is None else self.inner.is_opaque)

    @property
    def n_chunks(self):
        return self.chain.n_chunks if self.inner is not None else 1

    @property
    def fill(self):
        """The fill value in the byte order of the caller's memory."""
        return PyBytes_FromStringAndSize(<const char *>self.chain.fill, <Py_ssize_t>self.chain.itemsize)

    @property
    def fixed_nbytes(self):
        """Size in bytes of every encoded chunk of a leaf whose codecs depend only on sizes; None for other chains."""
        return sc_chain_bound(&self.chain) if sc_chain_has_fixed_size(&self.chain) else None

    @property
    def is_plain(self):
        """True if an encoded chunk holds the elements and nothing else."""
        return bool(sc_chain_is_plain(&self.chain))

    @property
    def most_nbytes(self):
        """Largest plausible size of an encoded chunk in bytes, a few times the bound of our encoders; None for unknown codecs."""
        cdef uint64_t least, most
        sc_chain_nbytes_limits(&self.chain, &least, &most)
        return None if self.chain.opaque else most

    @property
    def index_nbytes(self):
        return self.chain.index.nbytes if self.inner is not None else 0

    @property
    def nbytes(self):
        """Size of the decoded chunk in bytes."""
        return self.chain.nbytes

    @property
    def needs_sound_index(self):
        """True if one invalid entry makes all inner chunks suspect, because they have no checksums (csrc/chain/sc_chain.h)."""
        return self.inner is not None and bool(sc_index_must_be_sound(&self.chain))

    @property
    def index_checksums(self):
        return self.chain.index.n_checksums

    @property
    def index_at_start(self):
        return bool(self.chain.index.at_start)


cdef class Fetched:
    """A source of an item: the index of a shard and a range of its bytes, for ranges that arrive one by one.

    entries: n_chunks checked pairs. data: bytes of the shard that start at offset `first`; None for none.
    state: result of `Cache.state`, for the cache of inner chunks.
    """

    cdef sc_source source
    cdef View entries, data
    cdef object memory

    def __cinit__(self, Chain chain, entries, data, uint64_t first, *, bint fill_absent, uint64_t state=0):
        if not chain.is_shard:
            raise ValueError("expected the chain of a shard: only a shard has an index")
        self.entries = View(entries)
        self.source.entries = <const sc_entry *>self.entries.words(2 * chain.chain.n_chunks)
        self.source.first = first
        self.source.fill_absent, self.source.state = fill_absent, state
        if data is not None:
            self.data = View(data)
            self.memory = memoryview(data).cast("B")
            self.source.data, self.source.nbytes = self.data.data(), self.data.nbytes()
