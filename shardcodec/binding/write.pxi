# write.pxi - writes of many objects
# SPDX-License-Identifier: MIT

# Ways to append; the names are those of `access.placement`.
APPEND_WAYS = {"direct": SC_APPEND_DIRECT, "leap": SC_APPEND_LEAP, "index": SC_APPEND_INDEX}
# Ways to update a shard in its own file: append, or in place. An update in place may append the inner chunks without a slot.
UPDATE_WAYS = {way: (number, False) for way, number in APPEND_WAYS.items()}
UPDATE_WAYS |= {f"in_place+{way}": (number, True) for way, number in APPEND_WAYS.items()}
UPDATE_WAYS["in_place"] = SC_APPEND_NOT, True


def direct_append_works(str folder):
    """Return True if a direct write appends atomically here; call it only for file systems known to (csrc/io/sc_append.h)."""
    cdef bytes name = path_bytes(folder)
    cdef const char *chars = path_chars(name)
    cdef bint works
    with nogil:
        works = sc_append_direct_works(chars)
    return bool(works)


def keep_memory(int64_t nbytes):
    """Let freed buffers keep so many more bytes for the next ones, or fewer (csrc/base/sc_buffer.h)."""
    with nogil:
        sc_buffer_keep(nbytes)


def file_system_magic(int fd):
    """Return the `statfs` magic number of the file system of an open file; 0 if it is unknown."""
    cdef uint64_t magic
    with nogil:
        magic = sc_mount_magic(fd)
    return magic


cdef class Seen:
    """An `OpenFile` for the engine."""

    cdef sc_file_id id

    def __cinit__(self, file):
        self.id.nbytes, self.id.mtime_ns, self.id.ctime_ns = file.nbytes, file.mtime_ns, file.ctime_ns
        self.id.device, self.id.inode, self.id.n_links = file.device, file.inode, file.n_links


cdef int read_old(Batch batch, object given, sc_write_item *item, size_t number) except -1:
    """Read how a new object is made from the old one: what an `access.records.PlanItem` says of it; see sc_write_item."""
    cdef View view
    cdef uint64_t n = item.chain.n_chunks
    cdef size_t i
    cdef Seen seen
    old, placement, way, user = given.old, given.placement, given.way, given.user
    source, nbytes, file, old_entries = old.source, old.nbytes, old.file, old.entries
    entries = carries = data_offset = None
    if placement is not None:
        entries, carries, data_offset = placement.entries, placement.carries, placement.data_offset
    batch.read_source(source, &item.old)
    batch.paths.pop()
    if source is None:
        item.only_new = True
    if way == "onto":  # the new object reuses the old object's memory
        if source is None or entries is None or carries is None or item.path != NULL:
            raise ValueError("expected a shard in memory: only its memory can become the new object")
        batch.keep.append(View(source, PyBUF_WRITABLE))
        item.onto_old = True
    elif way is not None:
        if way not in UPDATE_WAYS or old_entries is None or entries is None or len(carries) or \
                not item.old.is_open or item.path == NULL or <uint64_t>data_offset < <uint64_t>nbytes:
            raise ValueError(f"expected an update of an open file by one of {sorted(UPDATE_WAYS)}, got {way!r}")
        item.append, item.in_place = UPDATE_WAYS[way]
    elif item.path != NULL and source is not None and not item.old.is_open:
        # its bytes would be written first, and those of new inner chunks over them, perhaps by two threads at the same time
        raise ValueError("expected an open file as the old object of a file, got one in memory")
    if item.old.is_open:
        item.old.nbytes = nbytes
    if file is not None:
        seen = Seen(file)
        batch.keep.append(seen)
        item.seen = &seen.id
    if user is not None:
        item.marks = True
        item.header_nbytes, item.alignment = user.header_nbytes, user.alignment
        view = View(user.footer)
        batch.keep.append(view)
        item.footer, item.footer_nbytes = view.data(), view.nbytes()
    if data_offset is not None:
        item.data_offset = data_offset
    if old_entries is not None:
        view = View(old_entries)
        batch.keep.append(view)
        item.old_entries = <const sc_entry *>view.words(2 * n)
    if entries is not None:
        view = View(entries, PyBUF_WRITABLE)
        batch.keep.append(view)
        item.entries = <sc_entry *>view.words(2 * n)
    if carries is not None:
        view = View(carries)
        batch.keep.append(view)
        item.n_carries = view.nbytes() // sizeof(sc_carry)
        item.carries = <const sc_carry *>view.words(3 * item.n_carries)
        for i in range(item.n_carries):
            if item.carries[i].source_offset > item.old.nbytes or \
                    item.carries[i].nbytes > item.old.nbytes - item.carries[i].source_offset:
                raise ValueError(f"expected a carried run inside the old object of {item.old.nbytes} bytes, got "
                                 f"{item.carries[i].nbytes} bytes at offset {item.carries[i].source_offset}")
            if item.onto_old and (item.carries[i].to > item.carries[i].source_offset or
                                  item.carries[i].nbytes > item.data_offset - item.carries[i].to):
                raise ValueError(f"expected a carried run to move towards the start and to end by {item.data_offset}, got "
                                 f"{item.carries[i].nbytes} bytes from {item.carries[i].source_offset} to "
                                 f"{item.carries[i].to}")
    if item.onto_old:
        if item.data_offset > item.old.nbytes:
            raise ValueError(f"expected new chunks inside the old object of {item.old.nbytes} bytes, got offset "
                             f"{item.data_offset}")
        batch.kept[number] = memoryview(source).cast("B")[:item.data_offset]
    return 0


cdef class Encoded:
    """Encoded inner chunks: their positions in the index, and a buffer for each."""

    cdef sc_encoded *chunks
    cdef size_t n
    cdef list keep

    def __cinit__(self, Chain chain, positions, buffers):
        cdef uint64_t n_chunks = chain.chain.n_chunks
        cdef View view
        cdef size_t i = 0
        if not chain.is_shard:
            raise ValueError("expected the chain of a shard: only its inner chunks can be stored one by one")
        self.n = len(positions)
        if self.n != <size_t>len(buffers):
            raise ValueError(f"expected {self.n} buffers, one per position, got {len(buffers)}")
        self.keep = []
        self.chunks = <sc_encoded *>calloc(self.n + 1, sizeof(sc_encoded))
        if self.chunks == NULL:
            raise MemoryError
        for position, buffer in zip(positions, buffers):
            self.chunks[i].position = position
            if self.chunks[i].position >= n_chunks:
                raise ValueError(f"expected a position less than {n_chunks}, the number of inner chunks, got {position}")
            view = View(buffer)
            self.keep.append(view)
            self.chunks[i].bytes, self.chunks[i].nbytes = view.data(), view.nbytes()
            i += 1

    def __dealloc__(self):
        free(self.chunks)


cdef int read_chunks(Batch batch, Chain chain, object chunks, sc_write_item *item) except -1:
    """Read an `access.records.ChunkBytes`: encoded inner chunks, and the footer behind them."""
    cdef Encoded encoded = Encoded(chain, chunks.positions, chunks.buffers)
    cdef View view
    batch.keep.append(encoded)
    item.encoded, item.n_encoded = encoded.chunks, encoded.n
    if chunks.footer is not None:
        view = View(chunks.footer)
        batch.keep.append(view)
        item.footer, item.footer_nbytes = view.data(), view.nbytes()
    return 0


def write(items, value=b"", axes=(), *, str order="morton", bint write_empty=False, bint keep_empty=False,
          bint sync=False, bint only_encodes=False, bint tells_states=False, bint allow_in_index=False, staging=None,
          unsigned n_threads=1, uint64_t batch_nbytes=524288, Cancel cancel=None, unsigned io_depth=0, io_latency=None):
    """Write parts of one array, or encoded inner chunks, into many objects.

    items: sequence of `access.records.PlanItem`; `selection` as for `read`. With a path, the file is replaced, updated as `way`
    says, or removed if the shard becomes empty. Without a path, the new object is returned.
    staging: folder for temporary names. only_encodes: the new objects are stored by a later write, which counts them.
    tells_states: return the states of the new files. io_depth, io_latency: as for `read`.

    Returns four lists: the new objects by item; positions of items that must be new but exist, and of items whose file cannot be
    appended to (the plan skips both); the states of the new files by item, as `OpenShard.state`. An object is `Bytes`; None if
    it is empty or in a file; or a tuple of contiguous buffers if it reuses the memory of the old object.
    """
    cdef Batch batch = Batch(value, PyBUF_SIMPLE, axes)
    cdef size_t n = len(items), i = 0
    cdef sc_write_plan plan
    cdef sc_write_item *item
    cdef sc_source target
    cdef Chain chain
    cdef uint8_t *src
    memset(&plan, 0, sizeof(plan))
    plan.rules.order = order_of(order)
    plan.items = <sc_write_item *>calloc(n + 1, sizeof(sc_write_item))
    if plan.items == NULL:
        raise MemoryError
    try:
        batch.array_strides(plan.src_strides)
        for given in items:
            item = &plan.items[i]
            chain, path, chunks = given.chain, given.path, given.chunks
            item.chain = &chain.chain
            batch.keep.append(chain)
            if path is not None and not isinstance(path, str):
                raise TypeError(f"path: expected str or None, got {type(path).__name__}")
            batch.read_source(path, &target)
            item.path = target.path
            if chunks is None:
                chain.refuse_opaque()
                batch.read_selection(&chain.chain, given.selection, True, plan.src_strides, &item.box, &item.selection, &src)
                item.src = src
            else:
                read_chunks(batch, chain, chunks, item)
            item.data_offset = chain.chain.index.nbytes if chain.inner is not None and chain.chain.index.at_start else 0
            if given.old is not None:
                read_old(batch, given, item, i)
            if given.inside is not None:
                item.has_inside = True
                read_numbers(given.inside, chain.chain.ndim, item.inside)
            i += 1
        plan.n_items = n
        plan.rules.write_empty = write_empty
        plan.rules.keep_empty = keep_empty
        plan.sync = sync
        plan.only_encodes = only_encodes
        plan.tells_states = tells_states
        plan.allow_in_index = allow_in_index
        plan.staging = batch.read_folder(staging)
        plan.n_threads = n_threads
        plan.batch_nbytes = batch_nbytes
        read_rules(&plan.io, io_depth, io_latency, SC_IO_MAX_NBYTES)
        return run_write(&plan, batch, cancel)
    finally:
        free_write(&plan, n)


cdef object run_write(sc_write_plan *plan, Batch batch, Cancel cancel):
    """Run a complete plan; return what `write` returns."""
    cancel = entered(cancel)
    plan.cancel = &cancel.cancel
    cdef sc_where where
    cdef sc_status status
    cdef size_t i
    with nogil:
        status = sc_write(plan, &where)
    objects = []
    for i in range(plan.n_items):
        if plan.items[i].result != NULL:
            result = adopt(plan.items[i].result, plan.items[i].result_nbytes, plan.items[i].result_capacity)
            plan.items[i].result = NULL
            objects.append((batch.kept[i], result) if i in batch.kept else result)
        elif i in batch.kept and not plan.items[i].empty:
            objects.append((batch.kept[i],))
        else:
            objects.append(None)
    cancel.raise_caught()
    raise_status(status, &where, batch.paths)
    exist = [i for i in range(plan.n_items) if plan.items[i].exists]
    declined = [i for i in range(plan.n_items) if plan.items[i].declined]
    states = [b"" if plan.items[i].exists or plan.items[i].declined else version_bytes(&plan.items[i].made)
              for i in range(plan.n_items)]
    return objects, exist, declined, states


cdef void free_write(sc_write_plan *plan, size_t n) noexcept:
    cdef size_t i
    for i in range(n):
        free(plan.items[i].result)
    free(plan.items)
