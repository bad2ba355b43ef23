/* sc_check.c - the end of a process in which a check of a debug build has failed
 * SPDX-License-Identifier: MIT */
#include "base/sc_check.h"

#ifdef SHARDCODEC_CHECKS
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

void
sc_check_failed(const char *file, int line, const char *rule, const struct sc_check_subject *subject)
{
    fprintf(stderr, "shardcodec: check failed: %s (%s:%d)\n  shard %s", rule, file, line,
            subject->path ? subject->path : "in memory");
    if (subject->entry != UINT64_MAX)
        fprintf(stderr, ", inner chunk %" PRIu64, subject->entry);
    fprintf(stderr, ": offset %" PRIu64 ", nbytes %" PRIu64 ", limit %" PRIu64 "\n", subject->offset, subject->nbytes,
            subject->limit);
    fflush(stderr);
    abort();
}
#endif
