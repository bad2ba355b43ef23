/* sc_status.c - names of the statuses
 * SPDX-License-Identifier: MIT */
#include "base/sc_status.h"

void
sc_where_clear(struct sc_where *where)
{
    memset(where, 0, sizeof *where);
    where->shard = where->entry = where->nested_entry = where->element = SC_NOWHERE;
    where->type = where->other_type = -1;
}

enum sc_status
sc_codec_failed(enum sc_status status, struct sc_where *where, const char *codec, const char *detail,
                int64_t library_code, uint64_t nbytes)
{
    where->codec = codec;
    where->detail = detail;
    where->library_code = library_code;
    where->nbytes = nbytes;
    return status;
}

bool
sc_status_is_damage(enum sc_status status)
{
    return (status >= SC_TOO_SHORT && status <= SC_CODEC_DATA && status != SC_CHANGED) || status == SC_VLEN;
}

const char *
sc_status_name(enum sc_status status)
{
    static const char *const names[] = {
#define NAME(s) [s] = #s
        NAME(SC_OK),         NAME(SC_NO_MEMORY),    NAME(SC_BAD_ARGUMENT),   NAME(SC_DST_TOO_SMALL),
        NAME(SC_TOO_SHORT),  NAME(SC_HALF_EMPTY),   NAME(SC_BAD_RANGE),      NAME(SC_IN_INDEX),
        NAME(SC_BAD_LENGTH), NAME(SC_CHANGED),      NAME(SC_INDEX_CHECKSUM), NAME(SC_CHUNK_CHECKSUM),
        NAME(SC_CODEC_DATA), NAME(SC_CODEC_ENCODE), NAME(SC_VLEN),           NAME(SC_IO),
        NAME(SC_NOT_A_FILE), NAME(SC_CANCELLED),
#undef NAME
    };

    return (size_t)status < SC_ARRAY_SIZE(names) && names[status] ? names[status] : "unknown";
}
