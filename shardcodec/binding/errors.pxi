# errors.pxi - conversion of a C status to an exception
# SPDX-License-Identifier: MIT

class Cancelled(Exception):
    """The caller stopped the plan."""


cdef object known(uint64_t value):
    return None if value == SC_NOWHERE else value


cdef str text(const char *s):
    return None if s == NULL else s.decode("ascii")


cdef str place(const sc_where *at):
    """Return the location of an error within nested shards, as a prefix of its message; empty for the outer shard."""
    if at.level == 0:
        return ""
    if at.nested_entry == SC_NOWHERE:
        return f"in the shard nested at level {at.level}: "
    return f"in inner chunk {at.nested_entry} of the shard nested at level {at.level}: "


cdef object format_error(sc_status status, const sc_where *at):
    cdef str where = place(at)
    if status == SC_TOO_SHORT:
        return ShardFormatError(
            # zarr's own tests match "too short to hold its index"
            f"{where}object is too short to hold its index: expected at least {at.limit} bytes, got {at.nbytes}",
            nbytes=at.nbytes, limit=at.limit, level=at.level, entry=known(at.entry))
    if status == SC_HALF_EMPTY:
        return ShardFormatError(
            f"{where}index entry: expected both or neither of offset and nbytes to be 2^64-1, got offset {at.offset} "
            f"and nbytes {at.nbytes}",
            entry=known(at.entry), offset=at.offset, nbytes=at.nbytes, limit=at.limit, level=at.level)
    if status == SC_BAD_RANGE:
        return ShardFormatError(
            f"{where}index entry claims {at.nbytes} bytes at offset {at.offset}, but the shard has {at.limit} bytes",
            entry=known(at.entry), offset=at.offset, nbytes=at.nbytes, limit=at.limit, level=at.level)
    if status == SC_IN_INDEX:
        return ShardFormatError(
            f"{where}index entry claims {at.nbytes} bytes at offset {at.offset}, which overlaps the index "
            f"({at.actual} bytes at offset {at.expected})",
            entry=known(at.entry), offset=at.offset, nbytes=at.nbytes, limit=at.limit, expected=at.expected,
            actual=at.actual, level=at.level)
    if status == SC_BAD_LENGTH:
        return ShardFormatError(
            f"{where}expected a chunk of {at.expected} bytes, got {'more' if at.actual == SC_NOWHERE else at.actual}",
            entry=known(at.entry), expected=at.expected, actual=known(at.actual), level=at.level)
    return ShardFormatError(
        f"{where}file was changed while it was in use: expected {at.limit} bytes and the same times, got {at.nbytes} "
        f"bytes; repeat the call",
        entry=known(at.entry), nbytes=at.nbytes, limit=at.limit, level=at.level, changed=True)


cdef object checksum_error(sc_status status, const sc_where *at):
    cdef str codec = text(at.codec) or "crc32c"
    cdef str what = "index" if status == SC_INDEX_CHECKSUM else "chunk"
    return ChecksumError(
        f"{place(at)}checksum of the {what}: expected 0x{at.expected:08x} (stored), got 0x{at.actual:08x} (computed)",
        entry=known(at.entry), expected=at.expected, actual=at.actual, level=at.level, codec=codec)


cdef tuple element_of(const sc_where *at):
    """Return an element that a codec refused, and its text with the digits that its type has."""
    letter = "bhiqBHIQefd"[at.type]
    (value,) = struct.unpack_from(f"={letter}", PyBytes_FromStringAndSize(<const char *>at.value, 8))
    return value, format(value, {"e": ".5g", "f": ".9g"}.get(letter, ""))


cdef object codec_error(sc_status status, const sc_where *at):
    cdef str codec = text(at.codec) or "codec"
    if status == SC_CODEC_ENCODE and at.limit:
        return CodecError(
            f"{place(at)}{codec}: cannot encode {at.nbytes} bytes, expected at most {at.limit}; choose smaller inner "
            f"chunks or another codec",
            entry=known(at.entry), codec=codec, nbytes=at.nbytes, limit=at.limit, level=at.level)
    if at.element != SC_NOWHERE:
        value, shown = element_of(at)
        return CodecError(
            f"{place(at)}{codec}: element {at.element}: {shown} {text(at.detail)} {ITEM_TYPES[at.other_type]}",
            entry=known(at.entry), codec=codec, nbytes=at.nbytes, element=at.element, actual=value, level=at.level)
    cdef str detail = text(at.detail) or ("cannot encode" if status == SC_CODEC_ENCODE else "malformed data")
    return CodecError(
        f"{place(at)}{codec}: {detail} ({at.nbytes} bytes, library code {at.library_code})",
        entry=known(at.entry), codec=codec, nbytes=at.nbytes, library_code=at.library_code, level=at.level)


cdef object vlen_error(const sc_where *at):
    cdef str codec = text(at.codec) or "vlen"
    element = known(at.offset)
    where = "" if element is None else f"element {element}: "
    return CodecError(
        f"{place(at)}{codec}: {where}expected {at.expected} {text(at.detail)}, got "
        f"{'more' if at.actual == SC_NOWHERE else at.actual}",
        entry=known(at.entry), codec=codec, element=element, expected=at.expected, actual=known(at.actual), level=at.level)


cdef object path_of(const sc_where *at, object paths):
    """Return the path of the file of an error, also for a file given by its descriptor; None if it is unknown."""
    if paths is None or at.shard == SC_NOWHERE:
        return None
    path = paths[at.shard]
    if isinstance(path, int):
        try:
            return os.readlink(f"/proc/self/fd/{path}")
        except OSError:
            return None
    return os.fsdecode(path) or None


cdef int raise_status(sc_status status, const sc_where *at, object paths=None) except -1:
    """Raise the exception for a status; `error.shard` is the position in the plan. The only such table."""
    cdef object error
    if status == SC_OK:
        return 0
    if status == SC_NO_MEMORY:
        raise MemoryError("shardcodec: cannot allocate memory for a work buffer or an encoded chunk")
    if status == SC_CANCELLED:
        raise Cancelled
    if status == SC_BAD_ARGUMENT:
        raise ValueError(f"{text(at.codec) or 'engine'}: {text(at.detail) or 'argument out of range'}")
    if status == SC_IO:
        error = OSError(at.sys_errno, f"{os.strerror(at.sys_errno)} [{text(at.call)}]", path_of(at, paths))
        raise error
    if status in (SC_INDEX_CHECKSUM, SC_CHUNK_CHECKSUM):
        error = checksum_error(status, at)
    elif status in (SC_CODEC_DATA, SC_CODEC_ENCODE):
        error = codec_error(status, at)
    elif status == SC_VLEN:
        error = vlen_error(at)
    elif status == SC_NOT_A_FILE:
        path = path_of(at, paths)
        error = ShardFileError(f"expected a regular file, got a {text(at.detail)}: {path!r}", kind=text(at.detail))
    elif SC_TOO_SHORT <= status <= SC_CHANGED:
        error = format_error(status, at)
    else:
        raise SystemError(f"unmapped status {text(sc_status_name(status))} ({<int>status})")
    if at.shard != SC_NOWHERE:
        error.shard = at.shard
    raise error
