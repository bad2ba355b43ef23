/* sc_vlen.c - elements of any length, one behind the other (see sc_vlen.h)
 * SPDX-License-Identifier: MIT */
#include "kernels/sc_vlen.h"

/* ---- UTF-8 */

#define HIGH_BITS UINT64_C(0x8080808080808080)

/* True if no byte has its high bit set. Lengths below 128 pass too, so a chunk of short ASCII texts is one pass. */
static bool
is_ascii(const uint8_t *bytes, size_t nbytes)
{
    size_t i = 0;
    uint8_t rest = 0;

    for (; nbytes - i >= 64; i += 64) {
        uint64_t all = 0;

        for (size_t k = 0; k < 64; k += 8)
            all |= load_le64(bytes + i + k);
        if (all & HIGH_BITS)
            return false;
    }
    for (; i < nbytes; i++)
        rest |= bytes[i];
    return !(rest & 0x80);
}

/* Return the length of the character at `bytes`, which is not ASCII; 0: it is malformed or cut. The second byte excludes
 * overlong forms, surrogates and what lies above U+10FFFF (Unicode, table 3-7). */
static size_t
character(const uint8_t *bytes, size_t nbytes)
{
    uint8_t first = bytes[0], low = 0x80, high = 0xBF;
    size_t length = first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;

    if (!length || length > nbytes)
        return 0;
    if (first == 0xE0)
        low = 0xA0;
    else if (first == 0xED)
        high = 0x9F;
    else if (first == 0xF0)
        low = 0x90;
    else if (first == 0xF4)
        high = 0x8F;
    if (bytes[1] < low || bytes[1] > high)
        return 0;
    for (size_t i = 2; i < length; i++)
        if ((bytes[i] & 0xC0) != 0x80)
            return 0;
    return length;
}

size_t
sc_utf8_span(const uint8_t *bytes, size_t nbytes)
{
    size_t i = 0, n;

    while (i < nbytes) {
        if (nbytes - i >= 8 && !(load_le64(bytes + i) & HIGH_BITS)) {
            i += 8;
        } else if (bytes[i] < 0x80) {
            i++;
        } else {
            n = character(bytes + i, nbytes - i);
            if (!n)
                return i;
            i += n;
        }
    }
    return nbytes;
}

/* ---- elements */

static enum sc_status
malformed(struct sc_where *where, const char *detail, uint64_t element, uint64_t expected, uint64_t actual)
{
    where->detail = detail;
    where->offset = element;
    where->expected = expected;
    where->actual = actual;
    return SC_VLEN;
}

static enum sc_status
check_texts(const uint8_t *bytes, uint64_t n, const uint64_t *places, struct sc_where *where)
{
    for (uint64_t i = 0; i < n; i++) {
        uint32_t length = sc_vlen_length(bytes, places[i]);
        size_t span = sc_utf8_span(bytes + places[i], length);

        if (span < length)
            return malformed(where, "bytes of UTF-8", i, length, span);
    }
    return SC_OK;
}

enum sc_status
sc_vlen_split(const uint8_t *bytes, size_t nbytes, uint64_t n, bool is_text, struct sc_buffer *places,
              struct sc_where *where)
{
    uint64_t at = SC_VLEN_HEAD, *begins;
    enum sc_status status;

    if (nbytes < SC_VLEN_HEAD)
        return malformed(where, "bytes", SC_NOWHERE, SC_VLEN_HEAD, nbytes);
    if (load_le32(bytes) != n)
        return malformed(where, "elements", SC_NOWHERE, n, load_le32(bytes));
    if ((nbytes - SC_VLEN_HEAD) / 4 < n) /* before memory is taken for n numbers */
        return malformed(where, "bytes", SC_NOWHERE, SC_VLEN_HEAD + 4 * n, nbytes);
    status = sc_buffer_reserve(places, (size_t)n * sizeof *begins);
    if (status)
        return status;
    begins = (uint64_t *)(void *)places->data;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t length;

        if (nbytes - at < 4)
            return malformed(where, "bytes of its length", i, 4, nbytes - at);
        length = load_le32(bytes + at);
        at += 4;
        if (length > nbytes - at)
            return malformed(where, "bytes", i, length, nbytes - at);
        begins[i] = at;
        at += length;
    }
    if (at != nbytes)
        return malformed(where, "bytes", SC_NOWHERE, at, nbytes);
    return !is_text || is_ascii(bytes, nbytes) ? SC_OK : check_texts(bytes, n, begins, where);
}

enum sc_status
sc_vlen_add(struct sc_buffer *buffer, size_t *used, const uint8_t *bytes, size_t nbytes)
{
    enum sc_status status;

    if (nbytes > UINT32_MAX || nbytes > PTRDIFF_MAX - 4)
        return SC_NO_MEMORY;
    status = sc_buffer_extend(buffer, *used, nbytes + 4);
    if (status)
        return status;
    store_le32(buffer->data + *used, (uint32_t)nbytes);
    if (nbytes)
        memcpy(buffer->data + *used + 4, bytes, nbytes);
    *used += nbytes + 4;
    return SC_OK;
}
