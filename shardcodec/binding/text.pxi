# text.pxi - elements of any length: NumPy's StringDType, str and bytes objects, and places for Arrow
# SPDX-License-Identifier: MIT

cdef extern from "Python.h":
    void *PyCapsule_GetPointer(object capsule, const char *name) except NULL
    PyObject *new_str "PyUnicode_FromStringAndSize" (const char *text, Py_ssize_t nbytes) except NULL
    PyObject *new_bytes "PyBytes_FromStringAndSize" (const char *data, Py_ssize_t nbytes) except NULL
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *nbytes) except NULL
    int PyBytes_AsStringAndSize(object data, char **start, Py_ssize_t *nbytes) except -1
    void Py_XDECREF(PyObject *reference)


# ---- NumPy's C API, by the numbers of its functions, which are stable since 2.0 (numpy/__multiarray_api.h)
#
# Without its header, because a build needs no NumPy then, and a wheel serves each NumPy of the user. A test compares the numbers with
# the header of the installed one, and `check_numpy` uses the functions once.

cdef struct StaticString:
    size_t nbytes
    const char *start

ctypedef unsigned int (*FeatureVersion)() noexcept nogil
ctypedef int (*LoadString)(void *allocator, const void *element, StaticString *text) noexcept nogil
ctypedef int (*PackString)(void *allocator, void *element, const char *text, size_t nbytes) noexcept nogil
ctypedef void *(*AcquireAllocator)(void *descr) noexcept nogil
ctypedef void (*ReleaseAllocator)(void *allocator) noexcept nogil

cdef enum:
    NUMPY_FEATURE_VERSION = 211
    NUMPY_LOAD = 313
    NUMPY_PACK = 314
    NUMPY_ACQUIRE = 316
    NUMPY_RELEASE = 318
    NUMPY_2_0 = 0x12

cdef void **numpy_api = NULL
cdef bint has_fencepost = False


cdef int find_numpy() except -1:
    """Find the functions for StringDType; ImportError where NumPy has none."""
    global numpy_api, has_fencepost
    cdef void **api
    from numpy import __version__ as version
    from numpy.lib import NumpyVersion
    if numpy_api != NULL:
        return 0
    from numpy._core import _multiarray_umath
    api = <void **>PyCapsule_GetPointer(_multiarray_umath._ARRAY_API, NULL)
    if (<FeatureVersion>api[NUMPY_FEATURE_VERSION])() < NUMPY_2_0:
        raise ImportError("expected numpy 2.0 or later, which has functions for StringDType")
    has_fencepost = NumpyVersion(version) < "2.3.2"
    check_numpy(api)
    numpy_api = api
    return 0


cdef int check_numpy(void **api) except -1:
    """Store a text and load it again; ImportError: the functions are not those that they are taken for."""
    from numpy import empty
    from numpy.dtypes import StringDType
    cdef bytes text = b"a text that is longer than fifteen bytes"
    cdef StaticString found = StaticString(0, NULL)
    cdef void *allocator
    cdef bint is_equal
    array = empty(1, StringDType())
    cdef void *element = <void *><size_t>array.__array_interface__["data"][0]
    allocator = (<AcquireAllocator>api[NUMPY_ACQUIRE])(<void *>array.dtype)
    is_equal = (<PackString>api[NUMPY_PACK])(allocator, element, <const char *>text, len(text)) == 0
    is_equal = is_equal and (<LoadString>api[NUMPY_LOAD])(allocator, element, &found) == 0
    is_equal = is_equal and found.nbytes == <size_t>len(text) and memcmp(found.start, <const char *>text, found.nbytes) == 0
    (<ReleaseAllocator>api[NUMPY_RELEASE])(allocator)
    if not is_equal or array[0] != text.decode():
        raise ImportError("expected functions of numpy for StringDType that store and load a text; this numpy has others")
    return 0


cdef int pack_string(void *allocator, void *element, const char *text, size_t nbytes) noexcept nogil:
    """Set an element; -1: no memory.

    NumPy before 2.3.2 takes the memory of an element of 255 bytes for larger than it is, if it was the first text of this element,
    and a longer text that replaces it overwrites others (its issue 29261). An element that was a short text before is safe.
    """
    cdef PackString pack = <PackString>numpy_api[NUMPY_PACK]
    if has_fencepost and nbytes >= 255:
        if pack(allocator, element, b"", 0) != 0:
            return -1
        memset(element, 0, 16)  # a new element; its old text was freed
        if pack(allocator, element, b"", 0) != 0:
            return -1
    return pack(allocator, element, text, nbytes)


cdef struct StringSink:
    sc_text_sink sink
    void *allocator


# NumPy's lock of the allocator is held for one box. No Python code runs meanwhile, and nothing waits for the GIL.
cdef void begin_strings(sc_text_sink *sink, void *descr) noexcept nogil:
    (<StringSink *>sink).allocator = (<AcquireAllocator>numpy_api[NUMPY_ACQUIRE])(descr)


cdef c_bool put_string(sc_text_sink *sink, void *element, const uint8_t *text, size_t nbytes) noexcept nogil:
    return pack_string((<StringSink *>sink).allocator, element, <const char *>text, nbytes) == 0


cdef void end_strings(sc_text_sink *sink) noexcept nogil:
    (<ReleaseAllocator>numpy_api[NUMPY_RELEASE])((<StringSink *>sink).allocator)


# ---- arrays of any data type

cdef class Elements:
    """The elements of an array of numpy; the buffer protocol does not have StringDType."""

    cdef object array, descr
    cdef str kind
    cdef uint8_t *first
    cdef int ndim
    cdef uint64_t shape[32]
    cdef int64_t strides[32]
    cdef uint64_t n

    def __cinit__(self, array):
        cdef int a
        self.array = array
        self.descr = array.dtype
        self.kind = self.descr.kind
        self.first = <uint8_t *><size_t>array.__array_interface__["data"][0]
        self.ndim = read_rank(array.shape)
        read_numbers(array.shape, self.ndim, self.shape)
        read_strides(array.strides, self.ndim, self.strides)
        self.n = 1
        for a in range(self.ndim):
            self.n *= self.shape[a]
        if self.kind == "T":
            find_numpy()

    cdef int permute(self, const int *perm) except -1:
        """Reorder the axes to those of the stored elements."""
        cdef uint64_t shape[32]
        cdef int64_t strides[32]
        cdef int a
        memcpy(shape, self.shape, sizeof(shape))
        memcpy(strides, self.strides, sizeof(strides))
        for a in range(self.ndim):
            self.shape[a], self.strides[a] = shape[perm[a]], strides[perm[a]]
        return 0


# ---- reading

cdef uint64_t MAX_TEXTS = 0xFFFFFFFF  # a chunk begins with their number


cdef class TextArena:
    """The memory of texts that `read_texts` finds places for."""

    cdef sc_text_arena arena

    def __cinit__(self):
        sc_text_arena_begin(&self.arena)

    def __dealloc__(self):
        sc_text_arena_free(&self.arena)


cdef int read_text_box(sc_text_box *box, const sc_chain *chain, const uint64_t *shape, box_, list keep,
                       str kind) except -1:
    cdef Elements elements = Elements(box_[0])
    cdef uint64_t last
    cdef int a
    keep.append(elements)
    if elements.kind != kind or elements.descr.itemsize != 16:
        raise TypeError(f"expected elements of 16 bytes and the kind {kind!r}, got {elements.descr}")
    if elements.ndim != chain.ndim:
        raise ValueError(f"expected a view of rank {chain.ndim}, got rank {elements.ndim}")
    read_numbers(box_[1], chain.ndim, box.part.start)
    for a in range(chain.ndim):
        box.part.step[a], box.part.count[a] = box_[2][a], elements.shape[a]
        last = shape[a] - 1
        if (box.part.step[a] < 1 or box.part.count[a] < 1 or box.part.start[a] > last or
                (last - box.part.start[a]) // <uint64_t>box.part.step[a] < box.part.count[a] - 1):
            raise ValueError(f"axis {a}: expected a box within {shape[a]} elements, got start {box.part.start[a]}, count "
                             f"{box.part.count[a]}, step {box.part.step[a]}")
    memcpy(box.strides, elements.strides, sizeof(box.strides))
    box.first = elements.first
    box.owner = <void *><PyObject *>elements.descr
    return 0


def read_texts(Chain chain, chunks, *, bint is_text, TextArena arena=None, unsigned n_threads=1, Cancel cancel=None):
    """Decode chunks of elements of any length, check them, and put elements into arrays.

    chain: its rank, permutation and codecs of bytes count. chunks: (data, shape, boxes); a box is (view of an array, start,
    step) by axis of the chunk, and is_text says whether elements must be UTF-8. Views have StringDType; with `arena` they have
    elements of two 64-bit numbers, which become the address and the size of a copy in the arena.
    ``.shard`` of an error is the number of the chunk.
    """
    cdef sc_text_plan plan
    cdef StringSink strings
    cdef sc_text_chunk *memory = NULL
    cdef sc_text_box *boxes = NULL
    cdef sc_text_chunk *chunk
    cdef sc_where where
    cdef sc_status status
    cdef size_t n = len(chunks), n_boxes = sum([len(parts) for _, _, parts in chunks]), i, first = 0
    cdef list keep = []
    cdef View view
    cdef uint64_t n_items
    cdef int a
    cdef str kind = "T" if arena is None else "V"
    memset(&plan, 0, sizeof(plan))
    try:
        memory = <sc_text_chunk *>calloc(n + 1, sizeof(sc_text_chunk))
        boxes = <sc_text_box *>calloc(n_boxes + 1, sizeof(sc_text_box))
        if memory == NULL or boxes == NULL:
            raise MemoryError
        for i in range(n):
            chunk = &memory[i]
            data, shape, parts = chunks[i]
            view = View(data)
            keep.append(view)
            chunk.src, chunk.nbytes = view.data(), view.nbytes()
            read_numbers(shape, chain.chain.ndim, chunk.shape)
            n_items = 1
            for a in range(chain.chain.ndim):
                if chunk.shape[a] < 1 or chunk.shape[a] > MAX_TEXTS // n_items:
                    raise ValueError(f"expected a chunk of 1 to {MAX_TEXTS} elements, got shape {tuple(shape)}")
                n_items *= chunk.shape[a]
            chunk.boxes, chunk.n_boxes = &boxes[first], len(parts)
            for part in parts:
                read_text_box(&boxes[first], &chain.chain, chunk.shape, part, keep, kind)
                first += 1
        strings.sink.begin = begin_strings
        strings.sink.put = put_string
        strings.sink.end = end_strings
        plan.chain, plan.is_text = &chain.chain, is_text
        plan.chunks, plan.n_chunks = memory, n
        plan.sink = &strings.sink if arena is None else &arena.arena.sink
        plan.n_threads = n_threads
        cancel = entered(cancel)
        plan.cancel = &cancel.cancel
        with nogil:
            status = sc_text_read(&plan, &where)
        cancel.raise_caught()
        raise_status(status, &where)
    finally:
        free(memory)
        free(boxes)


cdef int make_objects(Elements to, int axis, uint8_t *element, const sc_text_place **places, bint is_text) except -1:
    """Make an object of each place, in C order; numpy's elements are references, or NULL for None."""
    cdef PyObject *made
    cdef PyObject *old
    cdef const char *start
    cdef uint64_t k
    if axis < to.ndim:
        for k in range(to.shape[axis]):
            make_objects(to, axis + 1, element, places, is_text)
            element += to.strides[axis]
        return 0
    start = b""
    if places[0].nbytes:
        start = <const char *><size_t>places[0].address
    if is_text:
        made = new_str(start, <Py_ssize_t>places[0].nbytes)
    else:
        made = new_bytes(start, <Py_ssize_t>places[0].nbytes)
    places[0] += 1
    old = (<PyObject **>element)[0]
    (<PyObject **>element)[0] = made
    Py_XDECREF(old)
    return 0


def make_texts(places, array, *, bint is_text):
    """Set the elements of an array of objects to texts, or to bytes, from their places: as many, in C order."""
    cdef Elements to = Elements(array)
    cdef View view = View(places)
    cdef const sc_text_place *place = <const sc_text_place *>view.words(2 * to.n)
    if to.kind != "O":
        raise TypeError(f"expected an array of objects, got {to.descr}")
    make_objects(to, 0, to.first, &place, is_text)


cdef int check_offsets(Elements of, const int64_t *offsets, size_t n) except -1:
    """Check that each offset, in bytes from the first element, is that of an element of 16 bytes."""
    cdef int64_t low = 0, high = 0, distance
    cdef size_t i
    cdef int a
    for a in range(of.ndim):
        if of.shape[a] == 0:
            high = -1  # no element
            break
        distance = <int64_t>(of.shape[a] - 1) * of.strides[a]
        if distance < 0:
            low += distance
        else:
            high += distance
    for i in range(n):
        if high < 0 or offsets[i] < low or offsets[i] > high or offsets[i] % 16:
            raise ValueError(f"expected offsets of elements from {low} to {high} bytes, got {offsets[i]}")
    return 0


def copy_texts(source, froms, target, tos):
    """Copy elements of StringDType, one after the other, from these offsets in the source to those in the target.

    An offset is the distance from the first element of an array, in bytes. A single element of the source is copied to all places.
    """
    cdef Elements of = Elements(source), to = Elements(target)
    cdef View froms_ = View(froms), tos_ = View(tos)
    cdef size_t n = tos_.nbytes() // sizeof(int64_t), i
    cdef size_t step = froms_.nbytes() != sizeof(int64_t)  # 0: the source has one element
    cdef size_t n_froms = n if step else 1
    cdef const int64_t *origin = <const int64_t *>froms_.words(n_froms)
    cdef const int64_t *place = <const int64_t *>tos_.words(n)
    cdef void *descr = <void *><PyObject *>of.descr
    cdef void *target_descr = <void *><PyObject *>to.descr
    cdef const uint8_t *first = of.first
    cdef uint8_t *target_first = to.first
    cdef void *loading
    cdef void *packing
    cdef StaticString text
    cdef int failed = 0
    if of.kind != "T" or to.kind != "T" or not target.flags.writeable:
        raise TypeError(f"expected two arrays of StringDType, and to write to the second, got {of.descr} and {to.descr}")
    if descr == target_descr:
        raise ValueError("expected two arrays, which have memory of their own, got views of one")
    check_offsets(of, origin, n_froms)
    check_offsets(to, place, n)
    with nogil:
        # in the order of their addresses, as each thread does it that holds both
        if descr < target_descr:
            loading = (<AcquireAllocator>numpy_api[NUMPY_ACQUIRE])(descr)
            packing = (<AcquireAllocator>numpy_api[NUMPY_ACQUIRE])(target_descr)
        else:
            packing = (<AcquireAllocator>numpy_api[NUMPY_ACQUIRE])(target_descr)
            loading = (<AcquireAllocator>numpy_api[NUMPY_ACQUIRE])(descr)
        for i in range(n):
            text.nbytes, text.start = 0, NULL
            failed = (<LoadString>numpy_api[NUMPY_LOAD])(loading, first + origin[i * step], &text)
            if failed == 0:
                failed = pack_string(packing, target_first + place[i], text.start, text.nbytes)
            if failed != 0:
                break
        (<ReleaseAllocator>numpy_api[NUMPY_RELEASE])(packing)
        (<ReleaseAllocator>numpy_api[NUMPY_RELEASE])(loading)
    if failed > 0:
        raise ValueError("expected strings, got a missing value")
    if failed < 0:
        raise MemoryError


def text_offsets(places, offsets):
    """Set n + 1 64-bit numbers to where each text begins if all lie one behind the other, and to their end."""
    cdef View view = View(places), to = View(offsets, PyBUF_WRITABLE)
    cdef size_t n = view.nbytes() // sizeof(sc_text_place)
    cdef const sc_text_place *place = <const sc_text_place *>view.words(2 * n)
    cdef int64_t *numbers = <int64_t *>to.words(n + 1)
    with nogil:
        sc_text_offsets(place, n, numbers)


def join_texts(places, data):
    """Copy the texts of all places, one behind the other; `data` has the last one of their offsets as its size."""
    cdef View view = View(places), to = View(data, PyBUF_WRITABLE)
    cdef size_t n = view.nbytes() // sizeof(sc_text_place), i
    cdef const sc_text_place *place = <const sc_text_place *>view.words(2 * n)
    cdef uint64_t total = 0
    for i in range(n):
        total += place[i].nbytes
    if total != to.nbytes():
        raise ValueError(f"expected room for {total} bytes, got {to.nbytes()}")
    with nogil:
        sc_text_join(place, n, to.data())


# ---- writing

cdef enum Loaded:
    LOADED
    NO_MEMORY
    IS_MISSING
    NOT_UTF8
    DIFFERS


cdef struct Strings:
    const uint64_t *shape
    const int64_t *strides
    int ndim
    void *allocator
    sc_buffer *buffer  # NULL: strings are compared with the one at `start`
    size_t *used
    const char *start
    size_t nbytes


cdef Loaded load_strings(const Strings *of, int axis, const uint8_t *element) noexcept nogil:
    """Add the strings of an array from this axis on to the buffer; without a buffer, compare them with one string."""
    cdef StaticString text
    cdef Loaded outcome = LOADED
    cdef uint64_t k
    cdef int failed
    if axis < of.ndim:
        for k in range(of.shape[axis]):
            outcome = load_strings(of, axis + 1, element)
            if outcome != LOADED:
                break
            element += of.strides[axis]
        return outcome
    text.nbytes, text.start = 0, NULL
    failed = (<LoadString>numpy_api[NUMPY_LOAD])(of.allocator, element, &text)
    if failed:
        return NO_MEMORY if failed < 0 else IS_MISSING
    if of.buffer == NULL:
        if text.nbytes != of.nbytes or (text.nbytes and memcmp(text.start, of.start, text.nbytes)):
            return DIFFERS
        return LOADED
    if sc_utf8_span(<const uint8_t *>text.start, text.nbytes) != text.nbytes:  # numpy casts bytes without a check
        return NOT_UTF8
    return LOADED if sc_vlen_add(of.buffer, of.used, <const uint8_t *>text.start, text.nbytes) == SC_OK else NO_MEMORY


cdef Loaded load_all(Elements of, sc_buffer *buffer, size_t *used, const char *start, size_t nbytes) except *:
    cdef Strings plain
    cdef Loaded outcome
    cdef void *descr = <void *><PyObject *>of.descr
    cdef const uint8_t *first = of.first
    plain.shape = &of.shape[0]
    plain.strides = &of.strides[0]
    plain.ndim = of.ndim
    plain.buffer, plain.used, plain.start, plain.nbytes = buffer, used, start, nbytes
    with nogil:
        plain.allocator = (<AcquireAllocator>numpy_api[NUMPY_ACQUIRE])(descr)
        outcome = load_strings(&plain, 0, first)
        (<ReleaseAllocator>numpy_api[NUMPY_RELEASE])(plain.allocator)
    return outcome


cdef const char *bytes_of(object element, bint is_text, Py_ssize_t *nbytes) except NULL:
    """Return the bytes of an element; empty for None and 0, as numcodecs stores them."""
    cdef char *start
    if is_text and isinstance(element, str):
        return PyUnicode_AsUTF8AndSize(element, nbytes)
    if not is_text and isinstance(element, bytes):
        PyBytes_AsStringAndSize(element, &start, nbytes)
        return start
    if element is None or element == 0:
        nbytes[0] = 0
        return b""
    raise TypeError(f"expected {'str' if is_text else 'bytes'}, got {element!r}")


cdef int add_objects(Elements of, int axis, const uint8_t *element, sc_buffer *buffer, size_t *used,
                     bint is_text) except -1:
    cdef Py_ssize_t nbytes = 0
    cdef const char *start
    cdef PyObject *stored
    cdef uint64_t k
    if axis < of.ndim:
        for k in range(of.shape[axis]):
            add_objects(of, axis + 1, element, buffer, used, is_text)
            element += of.strides[axis]
        return 0
    stored = (<PyObject **>element)[0]
    text_ = None if stored == NULL else <object>stored
    start = bytes_of(text_, is_text, &nbytes)
    if sc_vlen_add(buffer, used, <const uint8_t *>start, <size_t>nbytes) != SC_OK:
        raise MemoryError
    return 0


def encode_texts(Chain chain, array, *, bint is_text):
    """Encode a chunk: an array of StringDType, or of str or bytes objects, whose axes are those of the chain."""
    cdef Elements of = Elements(array)
    cdef sc_worker *worker = NULL
    cdef sc_buffer buffer
    cdef size_t used = 0, nbytes = 0
    cdef uint8_t *encoded = NULL
    cdef sc_where where
    cdef sc_status status
    cdef Loaded outcome
    if of.ndim != chain.chain.ndim or of.kind not in "OT":
        raise ValueError(f"expected texts of rank {chain.chain.ndim}, got {of.descr} of rank {of.ndim}")
    of.permute(chain.chain.perm)
    memset(&buffer, 0, sizeof(buffer))
    sc_where_clear(&where)
    try:
        if of.n > MAX_TEXTS:
            raise ValueError(f"expected at most {MAX_TEXTS} elements in a chunk, got {of.n}")
        if sc_buffer_grow(&buffer, 0, <size_t>(16 * of.n + 64)) != SC_OK:
            raise MemoryError
        sc_vlen_begin(&buffer, &used, <uint32_t>of.n)
        if of.kind == "T":
            outcome = load_all(of, &buffer, &used, NULL, 0)
            if outcome == IS_MISSING:
                raise ValueError("expected strings, got a missing value")
            if outcome == NOT_UTF8:
                raise ValueError("expected texts, got bytes that are not UTF-8")
            if outcome != LOADED:
                raise MemoryError
        else:
            add_objects(of, 0, of.first, &buffer, &used, is_text)
        with nogil:
            worker = sc_worker_take()
            status = SC_NO_MEMORY
            if worker != NULL:
                status = sc_texts_encode(&chain.chain, worker, buffer.data, used, &encoded, &nbytes, &where)
                sc_worker_put(worker)
        raise_status(status, &where)
        return adopt(encoded, nbytes)
    finally:
        sc_buffer_free(&buffer)


cdef bint objects_equal(Elements of, int axis, const uint8_t *element, object value) except -1:
    cdef PyObject *stored
    cdef uint64_t k
    if axis < of.ndim:
        for k in range(of.shape[axis]):
            if not objects_equal(of, axis + 1, element, value):
                return False
            element += of.strides[axis]
        return True
    stored = (<PyObject **>element)[0]
    return stored != NULL and <object>stored == value


def all_texts_equal(array, value):
    """Return True if all elements of an array of texts are equal to a str or bytes object."""
    cdef Elements of = Elements(array)
    cdef Py_ssize_t nbytes = 0
    cdef const char *start
    if of.kind != "T":
        return bool(objects_equal(of, 0, of.first, value))
    start = bytes_of(value, True, &nbytes)
    return load_all(of, NULL, NULL, start, <size_t>nbytes) == LOADED
