/* sc_buffer.h - memory that grows and is used again
 * SPDX-License-Identifier: MIT */
#ifndef SC_BUFFER_H
#define SC_BUFFER_H

#include "base/sc_status.h"

/* Grow-only memory aligned to SC_ALIGNMENT. */
struct sc_buffer {
    uint8_t *data;
    size_t capacity;
};

/* At least n bytes; what was there is lost when it grows. */
enum sc_status sc_buffer_reserve(struct sc_buffer *buffer, size_t n);

/* At least n bytes, the first `used` of which are kept. */
enum sc_status sc_buffer_grow(struct sc_buffer *buffer, size_t used, size_t n);
void sc_buffer_free(struct sc_buffer *buffer);

#endif
