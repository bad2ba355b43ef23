/* sc_buffer.h - memory that grows and is used again
 * SPDX-License-Identifier: MIT */
#ifndef SC_BUFFER_H
#define SC_BUFFER_H

#include "base/sc_status.h"

/* Memory that only grows, aligned to SC_ALIGNMENT; to SC_BLOCK_NBYTES if it has as many. */
struct sc_buffer {
    uint8_t *data;
    size_t capacity;
};

/* Make room for at least n bytes. The old content is lost if the buffer grows. */
enum sc_status sc_buffer_reserve(struct sc_buffer *buffer, size_t n);

/* Make room for at least n bytes and keep the first `used`. */
enum sc_status sc_buffer_grow(struct sc_buffer *buffer, size_t used, size_t n);

/* Make room for n bytes behind the first `used`, which are kept. It grows by half, so many small additions cost little. */
static inline enum sc_status
sc_buffer_extend(struct sc_buffer *buffer, size_t used, size_t n)
{
    if (SC_LIKELY(n <= buffer->capacity - used))
        return SC_OK;
    if (n > PTRDIFF_MAX - used)
        return SC_NO_MEMORY;
    return sc_buffer_grow(buffer, used, used + n + (used / 2 > 1024 ? used / 2 : 1024));
}

void sc_buffer_free(struct sc_buffer *buffer);

/* Let buffers that are freed keep so many more bytes for the next ones, or fewer; 0 at the beginning. A program that makes large
 * buffers again and again would give their pages to the system each time, and get new ones, which cost as much as a copy. */
void sc_buffer_keep(int64_t nbytes);

/* Install the fork handlers. Once, at import. */
enum sc_status sc_buffer_init(void);

#endif
