/* sc_alloc.h - all memory of csrc and of its binding is allocated here
 *
 * These are the functions of the C library. They are called in one place, so a test can make the n-th allocation
 * fail and find memory that was not freed (sc_fault.h). The codec libraries allocate their own memory, except
 * zlib-ng, which is given these functions.
 * SPDX-License-Identifier: MIT */
#ifndef SC_ALLOC_H
#define SC_ALLOC_H

#include "base/sc_common.h"

/* How a test takes part: `allows` is called before memory is taken; false makes the allocation fail. The other
 * functions are called after memory was taken or freed. */
struct sc_alloc_hook {
    bool (*allows)(size_t nbytes);
    void (*taken)(void *memory, size_t nbytes);
    void (*freed)(void *memory);
};

/* Set the hook; NULL removes it. Do not call this while a plan runs. */
void sc_alloc_set_hook(const struct sc_alloc_hook *hook);

/* True if a library may allocate memory itself. Call this before it does. */
bool sc_alloc_allows(size_t nbytes);

/* Each of these functions returns NULL if memory runs out. A size of 0 allocates one byte. */
void *sc_malloc(size_t nbytes) __attribute__((malloc, warn_unused_result));
void *sc_calloc(size_t n, size_t size) __attribute__((malloc, warn_unused_result));

/* `alignment` is a power of two, at least that of a pointer; nbytes need not be a multiple of it. */
void *sc_aligned_alloc(size_t alignment, size_t nbytes) __attribute__((malloc, warn_unused_result));

char *sc_strdup(const char *text) __attribute__((malloc, warn_unused_result));
char *sc_strndup(const char *text, size_t nbytes) __attribute__((malloc, warn_unused_result));
char *sc_format(const char *format, ...) __attribute__((malloc, warn_unused_result, format(printf, 1, 2)));

void sc_free(void *memory);

#endif
