/* sc_alloc.c - memory, with a hook for tests (see sc_alloc.h)
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "base/sc_alloc.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static const struct sc_alloc_hook *hook;

void
sc_alloc_set_hook(const struct sc_alloc_hook *wanted)
{
    hook = wanted;
}

bool
sc_alloc_allows(size_t nbytes)
{
    return SC_LIKELY(!hook) || hook->allows(nbytes);
}

static void *
told(void *memory, size_t nbytes)
{
    if (SC_UNLIKELY(hook != NULL) && memory)
        hook->taken(memory, nbytes);
    return memory;
}

void *
sc_malloc(size_t nbytes)
{
    return sc_alloc_allows(nbytes) ? told(malloc(nbytes ? nbytes : 1), nbytes) : NULL;
}

void *
sc_calloc(size_t n, size_t size)
{
    return sc_alloc_allows(n) ? told(calloc(n ? n : 1, size ? size : 1), n * size) : NULL;
}

void *
sc_aligned_alloc(size_t alignment, size_t nbytes)
{
    void *memory;

    if (!sc_alloc_allows(nbytes) || posix_memalign(&memory, alignment, nbytes ? nbytes : 1))
        return NULL;
    return told(memory, nbytes);
}

char *
sc_strndup(const char *text, size_t nbytes)
{
    size_t n = strnlen(text, nbytes);
    char *copy = sc_malloc(n + 1);

    if (copy) {
        memcpy(copy, text, n);
        copy[n] = 0;
    }
    return copy;
}

char *
sc_strdup(const char *text)
{
    return sc_strndup(text, strlen(text));
}

char *
sc_format(const char *format, ...)
{
    char *text = NULL;
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0 || !(text = sc_malloc((size_t)n + 1)))
        return NULL;
    va_start(args, format);
    vsnprintf(text, (size_t)n + 1, format, args);
    va_end(args);
    return text;
}

void
sc_free(void *memory)
{
    if (SC_UNLIKELY(hook != NULL) && memory)
        hook->freed(memory);
    free(memory);
}
