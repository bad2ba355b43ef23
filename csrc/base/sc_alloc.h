/* sc_alloc.h - where all memory of csrc and of its binding comes from
 *
 * The C library's functions, asked through one place, so that a test can make the n-th allocation fail and see what was
 * not freed (sc_fault.h). What the codec libraries allocate for themselves does not pass here, but for zlib-ng's.
 * SPDX-License-Identifier: MIT */
#ifndef SC_ALLOC_H
#define SC_ALLOC_H

#include "base/sc_common.h"

/* How a test takes part: `allows` is asked before memory is taken (false: there is none), the others are told. */
struct sc_alloc_hook {
    bool (*allows)(size_t nbytes);
    void (*taken)(void *memory, size_t nbytes);
    void (*freed)(void *memory);
};

/* NULL removes it. Not while a plan runs. */
void sc_alloc_set_hook(const struct sc_alloc_hook *hook);

/* Before a library allocates by itself: may it? */
bool sc_alloc_allows(size_t nbytes);

/* All of them return NULL when there is no memory; a size of 0 is one byte. */
void *sc_malloc(size_t nbytes) __attribute__((malloc, warn_unused_result));
void *sc_calloc(size_t n, size_t size) __attribute__((malloc, warn_unused_result));

/* `alignment` is a power of two, at least that of a pointer; nbytes need not be a multiple of it. */
void *sc_aligned_alloc(size_t alignment, size_t nbytes) __attribute__((malloc, warn_unused_result));

char *sc_strdup(const char *text) __attribute__((malloc, warn_unused_result));
char *sc_strndup(const char *text, size_t nbytes) __attribute__((malloc, warn_unused_result));
char *sc_format(const char *format, ...) __attribute__((malloc, warn_unused_result, format(printf, 1, 2)));

void sc_free(void *memory);

#endif
