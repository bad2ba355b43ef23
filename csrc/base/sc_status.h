/* sc_status.h - status codes, and where a failure was
 *
 * Values never change: the binding maps each to one exception in one table, and logs contain them.
 * SPDX-License-Identifier: MIT */
#ifndef SC_STATUS_H
#define SC_STATUS_H

#include "base/sc_common.h"

enum sc_status {
    SC_OK = 0,
    SC_NO_MEMORY = 1,
    SC_BAD_ARGUMENT = 2, /* the caller broke a rule of the interface; data never causes it */
    SC_DST_TOO_SMALL = 3, /* the output does not fit; callers that can will grow and retry */

    /* the bytes of a shard contradict its metadata */
    SC_TOO_SHORT = 10,  /* object of .nbytes bytes is shorter than its index, .limit bytes */
    SC_HALF_EMPTY = 11, /* exactly one of .offset and .nbytes is 2^64-1 */
    SC_BAD_RANGE = 12,  /* .offset + .nbytes goes beyond the object of .limit bytes */
    SC_IN_INDEX = 13,   /* the range touches the index, which lies at .expected, .actual bytes long */
    SC_BAD_LENGTH = 14, /* decodes to .actual bytes (or more), not to .expected */
    SC_CHANGED = 15,    /* the file changed size while it was read: .nbytes now, .limit before */

    /* checksums: .expected is the stored one, .actual that of the bytes */
    SC_INDEX_CHECKSUM = 20,
    SC_CHUNK_CHECKSUM = 21,

    /* a codec rejects its input; .codec and .library_code say more */
    SC_CODEC_DATA = 30,   /* malformed or truncated stream of .nbytes bytes */
    SC_CODEC_ENCODE = 31, /* the library failed to encode */
    SC_VLEN = 32, /* elements of any length: .expected of .detail, but there are .actual; .offset is the element */

    /* a system call failed: .sys_errno and .call */
    SC_IO = 40,
    SC_NOT_A_FILE = 41, /* the object is not a regular file: .detail says what it is */

    /* the caller asked to stop */
    SC_CANCELLED = 50,
};

/* Where a failure was, and what was found. It is filled on failure only; unused members are SC_NOWHERE or 0. */
struct sc_where {
    uint64_t shard;    /* position in the plan */
    uint64_t entry;    /* inner chunk, C order over the shard's grid */
    uint64_t level;    /* 0: the shard itself; 1: a shard nested in one of its inner chunks; ... */
    uint64_t nested_entry; /* level > 0: inner chunk of that nested shard */
    uint64_t offset;   /* what the index claims */
    uint64_t nbytes;
    uint64_t limit;    /* what is true */
    uint64_t expected;
    uint64_t actual;
    uint64_t element;  /* of the decoded or encoded array of a codec, in stored order */
    uint8_t value[8];  /* that element, in native byte order, */
    int type, other_type; /* its type and that in which it has no place: enum sc_item_type, -1 if unknown */
    const char *codec; /* static string: name of the codec in Zarr metadata */
    const char *detail; /* static string: what a codec found wrong, may be NULL */
    int64_t library_code;
    bool in_index; /* the index itself is wrong, not one of its entries or chunks */
    int sys_errno;
    const char *call; /* static string: the system call */
};

#define SC_NOWHERE UINT64_MAX

/* Reset to "nowhere". */
void sc_where_clear(struct sc_where *where);

/* Fill *where for a failure of a codec and return `status`. */
enum sc_status sc_codec_failed(enum sc_status status, struct sc_where *where, const char *codec, const char *detail,
                               int64_t library_code, uint64_t nbytes);

/* True if a status says that stored bytes are damaged: not for a file that changes, or that cannot be read. */
bool sc_status_is_damage(enum sc_status status);

/* Return the name of a status, such as "SC_BAD_RANGE" for 12; "unknown" for any other number. */
const char *sc_status_name(enum sc_status status);

#endif
