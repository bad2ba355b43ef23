# write.pxi - writing
# SPDX-License-Identifier: MIT

# Ways to append, as `access.placement` names them.
APPEND_WAYS = {"direct": SC_APPEND_DIRECT, "leap": SC_APPEND_LEAP, "index": SC_APPEND_INDEX}
# Ways to update a shard in its own file: these, and in place, with one of them or none for what finds no slot.
UPDATE_WAYS = {way: (number, False) for way, number in APPEND_WAYS.items()}
UPDATE_WAYS |= {f"in_place+{way}": (number, True) for way, number in APPEND_WAYS.items()}
UPDATE_WAYS["in_place"] = SC_APPEND_NOT, True


def direct_append_works(str folder):
    """Does one write append as a whole here? To be asked only of file systems of which that is known (csrc/io/sc_append.h)."""
    cdef bytes name = path_bytes(folder)
    cdef const char *chars = path_chars(name)
    cdef bint works
    with nogil:
        works = sc_append_direct_works(chars)
    return bool(works)


def file_system_magic(int fd):
    """The number that statfs gives for the file system of an open file; 0 where that is not known."""
    cdef uint64_t magic
    with nogil:
        magic = sc_mount_magic(fd)
    return magic


FAULTS = {"count": SC_FAULT_COUNT, "kill": SC_FAULT_KILL, "error": SC_FAULT_ERROR, "short": SC_FAULT_SHORT,
          "torn": SC_FAULT_TORN}


def set_fault(uint64_t n, str action, uint64_t value=0):
    """For tests: what shall happen at the n-th call that changes a file system (csrc/io/sc_fault.h)."""
    sc_fault_arm(n, <sc_fault_action><int>FAULTS[action], value)


def end_fault():
    """For tests: no fault any more; the names of the calls since `set_fault`."""
    cdef uint64_t n = sc_fault_disarm()
    cdef const char *call
    names = []
    for i in range(n):
        call = sc_fault_call(i)
        if call == NULL:
            break
        names.append(text(call))
    return names


def set_memory_fault(uint64_t n, bint and_all_after=False):
    """For tests: fail the n-th allocation of C code, and all that follow."""
    sc_worker_drop_free()
    sc_fault_arm_memory(n, and_all_after)


def end_memory_fault():
    """For tests: no fault any more; how many allocations were asked for, how many of them live, and their bytes."""
    sc_worker_drop_free()
    cdef sc_fault_memory seen = sc_fault_disarm_memory()
    return seen.n_asked, seen.n_live, seen.live_nbytes


cdef class Stamp:
    cdef sc_file_stamp stamp

    def __cinit__(self, uint64_t nbytes, int64_t mtime_ns, int64_t ctime_ns):
        self.stamp.nbytes, self.stamp.mtime_ns, self.stamp.ctime_ns = nbytes, mtime_ns, ctime_ns


cdef int read_old(Batch batch, object old, sc_write_item *item, size_t number) except -1:
    """(source, nbytes, entries or None, carries or None, new entries or None, data_offset or None, stamp or None, append,
    (size of the header, footer, alignment) or None).

    See sc_write_item. A source of None: there was no object, and one that is there by now must not be replaced.
    """
    cdef View view
    cdef uint64_t n = item.chain.n_chunks
    cdef size_t i
    cdef Stamp seen
    source, nbytes, old_entries, carries, entries, data_offset, stamp, append, user = old
    batch.read_source(source, &item.old)
    batch.paths.pop()
    if source is None:
        item.only_new = True
    if append == "onto":  # the new object is made of the old one's memory
        if source is None or entries is None or carries is None or item.path != NULL:
            raise ValueError("only a shard in memory can be made of the old one")
        batch.keep.append(View(source, PyBUF_WRITABLE))
        item.onto_old = True
    elif append is not None:
        if append not in UPDATE_WAYS or old_entries is None or entries is None or carries is not None or \
                not item.old.is_open or item.path == NULL or <uint64_t>data_offset < <uint64_t>nbytes:
            raise ValueError(f"cannot update in this way: {append!r}")
        item.append, item.in_place = UPDATE_WAYS[append]
    if item.old.is_open:
        item.old.nbytes = 0 if nbytes is None else nbytes
    if stamp is not None:
        seen = Stamp(*stamp)
        batch.keep.append(seen)
        item.stamp = &seen.stamp
    if user is not None:
        item.marks = True
        item.header_nbytes, footer, item.alignment = user
        view = View(footer)
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
                raise ValueError(f"carried run of {item.carries[i].nbytes} bytes at {item.carries[i].source_offset} "
                                 f"is not inside the old object of {item.old.nbytes}")
            if item.onto_old and (item.carries[i].to > item.carries[i].source_offset or
                                  item.carries[i].nbytes > item.data_offset - item.carries[i].to):
                raise ValueError(f"carried run of {item.carries[i].nbytes} bytes goes to {item.carries[i].to}, which is "
                                 f"behind its place or {item.data_offset}")
    if item.onto_old:
        if item.data_offset > item.old.nbytes:
            raise ValueError(f"new chunks at {item.data_offset} are beyond the old object of {item.old.nbytes} bytes")
        batch.kept[number] = memoryview(source).cast("B")[:item.data_offset]
    return 0


def write(items, value, axes, *, str order="morton", bint write_empty=False, bint keep_empty=False, bint sync=False,
          bint allow_in_index=False, staging=None, unsigned n_threads=1, uint64_t batch_nbytes=524288,
          Cancel cancel=None):
    """Write parts of one array into many objects.

    items: sequence of (chain, path or None, parts, old or None); parts as for `read`. With a path the file is replaced,
    updated in the way that `old` says, or removed when nothing is left in it; else the new object comes back.
    staging: folder for temporary names. Returns ([Bytes of the new object, None when it is empty or in a file; a tuple of
    buffers, one behind the other, when it is made of the old one],
    counters, ([positions of items that were to be made but exist], [of those whose file cannot be appended to]));
    nothing has been done with these.
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
        for chain, path, parts, old in items:
            item = &plan.items[i]
            item.chain = &chain.chain
            chain.refuse_opaque()
            batch.keep.append(chain)
            if path is not None and not isinstance(path, str):
                raise TypeError(f"path must be str or None, not {type(path).__name__}")
            batch.read_source(path, &target)
            item.path = target.path
            batch.read_parts(&chain.chain, parts, True, plan.src_strides, &item.box, &item.selection, &src)
            item.src = src
            item.data_offset = chain.chain.index.nbytes if chain.inner is not None and chain.chain.index.at_start else 0
            if old is not None:
                read_old(batch, old, item, i)
            i += 1
        plan.n_items = n
        plan.rules.write_empty = write_empty
        plan.rules.keep_empty = keep_empty
        plan.sync = sync
        plan.allow_in_index = allow_in_index
        plan.staging = batch.read_folder(staging)
        plan.n_threads = n_threads
        plan.batch_nbytes = batch_nbytes
        return run_write(&plan, batch, cancel)
    finally:
        free_write(&plan, n)


cdef tuple run_write(sc_write_plan *plan, Batch batch, Cancel cancel, dict versions=None):
    """Run a complete plan; what `write` returns."""
    cancel = entered(cancel)
    plan.cancel = &cancel.cancel
    cdef sc_where where
    cdef sc_status status
    cdef size_t i
    with nogil:
        status = sc_write(plan, &where)
    results = []
    for i in range(plan.n_items):
        if plan.items[i].result != NULL:
            result = adopt(plan.items[i].result, plan.items[i].result_nbytes)
            plan.items[i].result = NULL
            results.append((batch.kept[i], result) if i in batch.kept else result)
        elif i in batch.kept and not plan.items[i].empty:
            results.append((batch.kept[i],))
        else:
            results.append(None)
    cancel.raise_caught()
    raise_status(status, &where, batch.paths)
    if versions is not None:
        versions.update({i: version_bytes(&plan.items[i].made) for i in range(plan.n_items)})
    return results, stats_dict(&plan.stats), (
        [i for i in range(plan.n_items) if plan.items[i].exists],
        [i for i in range(plan.n_items) if plan.items[i].declined],
    )


cdef void free_write(sc_write_plan *plan, size_t n) noexcept:
    cdef size_t i
    for i in range(n):
        free(plan.items[i].result)
    free(plan.items)


cdef class Encoded:
    """Inner chunks that are encoded already: positions in the index, and a buffer for each."""

    cdef sc_encoded *chunks
    cdef size_t n
    cdef list keep

    def __cinit__(self, Chain chain, positions, buffers):
        cdef uint64_t n_chunks = chain.chain.n_chunks
        cdef View view
        cdef size_t i = 0
        if not chain.is_shard:
            raise ValueError("inner chunks of this chain cannot be stored one by one")
        self.n = len(positions)
        if self.n != <size_t>len(buffers):
            raise ValueError(f"{self.n} positions, but {len(buffers)} buffers")
        self.keep = []
        self.chunks = <sc_encoded *>calloc(self.n + 1, sizeof(sc_encoded))
        if self.chunks == NULL:
            raise MemoryError
        for position, buffer in zip(positions, buffers):
            self.chunks[i].position = position
            if self.chunks[i].position >= n_chunks:
                raise ValueError(f"inner chunk {position} of a shard of {n_chunks}")
            view = View(buffer)
            self.keep.append(view)
            self.chunks[i].bytes, self.chunks[i].nbytes = view.data(), view.nbytes()
            i += 1

    def __dealloc__(self):
        free(self.chunks)


def write_encoded(items, *, bint keep_empty=False, bint sync=False, staging=None, unsigned n_threads=1,
                  uint64_t batch_nbytes=524288, Cancel cancel=None, dict versions=None):
    """Write encoded inner chunks into many shards.

    items: sequence of (chain, path or None, positions, buffers, old or None, footer or None); the chunks are laid out in
    this order, each position occurs once, the footer comes behind them. Otherwise as `write`.
    versions: gets, by number of the item, what `OpenShard.version` is of the file that was made; empty for none.
    """
    cdef Batch batch = Batch(b"", PyBUF_SIMPLE, ())
    cdef size_t n = len(items), i = 0
    cdef sc_write_plan plan
    cdef sc_write_item *item
    cdef sc_source target
    cdef Encoded encoded
    cdef View view
    cdef Chain chain
    memset(&plan, 0, sizeof(plan))
    plan.items = <sc_write_item *>calloc(n + 1, sizeof(sc_write_item))
    if plan.items == NULL:
        raise MemoryError
    try:
        for chain, path, positions, buffers, old, footer in items:
            item = &plan.items[i]
            encoded = Encoded(chain, positions, buffers)
            batch.keep.append((chain, encoded))
            if path is not None and not isinstance(path, str):
                raise TypeError(f"path must be str or None, not {type(path).__name__}")
            batch.read_source(path, &target)
            item.chain = &chain.chain
            item.path = target.path
            item.encoded, item.n_encoded = encoded.chunks, encoded.n
            if footer is not None:
                view = View(footer)
                batch.keep.append(view)
                item.footer, item.footer_nbytes = view.data(), view.nbytes()
            item.data_offset = chain.chain.index.nbytes if chain.chain.index.at_start else 0
            if old is not None:
                read_old(batch, old, item, i)
            i += 1
        plan.n_items = n
        plan.rules.keep_empty = keep_empty
        plan.sync = sync
        plan.staging = batch.read_folder(staging)
        plan.n_threads = n_threads
        plan.batch_nbytes = batch_nbytes
        return run_write(&plan, batch, cancel, versions)
    finally:
        free_write(&plan, n)
