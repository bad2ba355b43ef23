# errors.pxi - how a status of C becomes an exception
# SPDX-License-Identifier: MIT

class Cancelled(Exception):
    """A plan was told to stop."""


cdef object known(uint64_t value):
    return None if value == SC_NOWHERE else value


cdef str text(const char *s):
    return None if s == NULL else s.decode("ascii")


cdef str place(const sc_where *at):
    """'nested inner chunk 3 of ' when the trouble lies below the shard itself."""
    if at.level == 0:
        return ""
    if at.nested_entry == SC_NOWHERE:
        return f"in the shard nested at level {at.level}: "
    return f"in inner chunk {at.nested_entry} of the shard nested at level {at.level}: "


cdef object format_error(sc_status status, const sc_where *at):
    cdef str where = place(at)
    if status == SC_TOO_SHORT:
        return ShardFormatError(
            f"{where}object of {at.nbytes} bytes is too short to hold its index of {at.limit}",
            nbytes=at.nbytes, limit=at.limit, level=at.level, entry=known(at.entry))
    if status == SC_HALF_EMPTY:
        return ShardFormatError(
            f"{where}index entry has offset {at.offset} and nbytes {at.nbytes}: either both or neither may be 2^64-1",
            entry=known(at.entry), offset=at.offset, nbytes=at.nbytes, limit=at.limit, level=at.level)
    if status == SC_BAD_RANGE:
        return ShardFormatError(
            f"{where}index entry claims {at.nbytes} bytes at offset {at.offset}, but the shard has {at.limit} bytes",
            entry=known(at.entry), offset=at.offset, nbytes=at.nbytes, limit=at.limit, level=at.level)
    if status == SC_IN_INDEX:
        return ShardFormatError(
            f"{where}index entry claims {at.nbytes} bytes at offset {at.offset}, which touches the index "
            f"({at.actual} bytes at offset {at.expected})",
            entry=known(at.entry), offset=at.offset, nbytes=at.nbytes, limit=at.limit, expected=at.expected,
            actual=at.actual, level=at.level)
    if status == SC_BAD_LENGTH:
        return ShardFormatError(
            f"{where}chunk has {'more' if at.actual == SC_NOWHERE else at.actual} bytes where {at.expected} are due",
            entry=known(at.entry), expected=at.expected, actual=known(at.actual), level=at.level)
    return ShardFormatError(
        f"{where}file has {at.nbytes} bytes where {at.limit} were expected, or other times: it was changed while it was "
        f"in use",
        entry=known(at.entry), nbytes=at.nbytes, limit=at.limit, level=at.level, changed=True)


cdef object checksum_error(sc_status status, const sc_where *at):
    cdef str what = "index" if status == SC_INDEX_CHECKSUM else "chunk"
    return ChecksumError(
        f"{place(at)}checksum of the {what} is 0x{at.actual:08x}, but 0x{at.expected:08x} is stored",
        entry=known(at.entry), expected=at.expected, actual=at.actual, level=at.level, codec="crc32c")


cdef object codec_error(sc_status status, const sc_where *at):
    cdef str codec = text(at.codec) or "codec"
    if status == SC_CODEC_ENCODE and at.limit:
        return CodecError(
            f"{place(at)}{codec}: cannot encode {at.nbytes} bytes, the codec takes at most {at.limit}: choose smaller "
            f"inner chunks or another codec",
            entry=known(at.entry), codec=codec, nbytes=at.nbytes, limit=at.limit, level=at.level)
    cdef str detail = text(at.detail) or ("cannot encode" if status == SC_CODEC_ENCODE else "malformed data")
    return CodecError(
        f"{place(at)}{codec}: {detail} ({at.nbytes} bytes, library code {at.library_code})",
        entry=known(at.entry), codec=codec, nbytes=at.nbytes, library_code=at.library_code, level=at.level)


cdef object path_of(const sc_where *at, object paths):
    """The file in question, be it open under a number only; None where that is not known."""
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
    """The one table from statuses to exceptions. `error.shard` is the position in the plan."""
    cdef object error
    if status == SC_OK:
        return 0
    if status == SC_NO_MEMORY:
        raise MemoryError("shardcodec: no memory for scratch or for an encoded chunk")
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
    elif status == SC_NOT_A_FILE:
        path = path_of(at, paths)
        error = ShardFileError(f"expected a regular file, found a {text(at.detail)}: {path!r}", kind=text(at.detail))
    elif SC_TOO_SHORT <= status <= SC_CHANGED:
        error = format_error(status, at)
    else:
        raise SystemError(f"unmapped status {text(sc_status_name(status))} ({<int>status})")
    if at.shard != SC_NOWHERE:
        error.shard = at.shard
    raise error
