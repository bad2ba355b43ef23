/* fuzz_blosclz.c - the blosclz encoder of builds with the libraries of the system: what it writes is decoded to the same bytes
 *
 * The first bytes choose the capacity of the output, and how often the rest is repeated, for far matches.
 * SPDX-License-Identifier: MIT */
/* For this file only: the other objects, and all declarations, are those of a build with the bundled libraries. */
#define SC_OWN_BLOSCLZ_ENCODER
#define sc_blosclz_encode own_blosclz_encode
#include "codecs/codec_blosclz_encode.c"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define HEAD_NBYTES 4
#define MAX_NBYTES (1u << 18)

static uint8_t *
allocate(size_t n)
{
    uint8_t *p = malloc(n ? n : 1);

    if (!p)
        __builtin_trap();
    return p;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t n, capacity, n_encoded;
    uint8_t *src, *dst, *exact, *again;

    if (size <= HEAD_NBYTES)
        return 0;
    size -= HEAD_NBYTES;
    n = min_u64(size * (1 + data[0]), MAX_NBYTES);
    src = allocate(n);
    for (size_t i = 0; i < n; i++)
        src[i] = data[HEAD_NBYTES + i % size];
    capacity = data[1] & 1 ? n + 1 + n / 16 : (size_t)(data[2] | data[3] << 8) % (n + 1);
    dst = allocate(capacity);
    n_encoded = own_blosclz_encode(1 + data[1] % 9, src, n, dst, capacity);
    if (n_encoded > capacity || (n_encoded == 0 && data[1] & 1))
        __builtin_trap();
    if (n_encoded > 0) {
        exact = allocate(n_encoded);
        again = allocate(n);
        memcpy(exact, dst, n_encoded);
        if (!sc_blosclz_decode(exact, n_encoded, again, n) || memcmp(src, again, n) != 0)
            __builtin_trap();
        free(exact);
        free(again);
    }
    free(src);
    free(dst);
    return 0;
}
