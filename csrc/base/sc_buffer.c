/* sc_buffer.c - memory that grows and is used again
 * SPDX-License-Identifier: MIT */
#include "base/sc_buffer.h"

#include "base/sc_alloc.h"

enum sc_status
sc_buffer_reserve(struct sc_buffer *buffer, size_t n)
{
    return sc_buffer_grow(buffer, 0, n);
}

enum sc_status
sc_buffer_grow(struct sc_buffer *buffer, size_t used, size_t n)
{
    uint8_t *data;

    if (SC_LIKELY(n <= buffer->capacity && buffer->data))
        return SC_OK;
    if (n > SIZE_MAX - 2 * SC_ALIGNMENT)
        return SC_NO_MEMORY;
    if (!used)
        sc_buffer_free(buffer); /* free first, because the old and the new memory are never needed together */
    n = (n + SC_ALIGNMENT) / SC_ALIGNMENT * SC_ALIGNMENT;
    data = sc_aligned_alloc(SC_ALIGNMENT, n);
    if (!data)
        return SC_NO_MEMORY;
    if (used)
        memcpy(data, buffer->data, used);
    sc_free(buffer->data);
    buffer->data = data;
    buffer->capacity = n;
    return SC_OK;
}

void
sc_buffer_free(struct sc_buffer *buffer)
{
    sc_free(buffer->data);
    buffer->data = NULL;
    buffer->capacity = 0;
}
