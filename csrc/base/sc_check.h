/* sc_check.h - checks of debug builds: what is written is checked before, and again as it is read
 *
 * A check in a debug build compares what one part of the code has decided with what another part does. A mistake of the code then
 * ends the process with a message, before a reader finds it. setup.py switches the checks on with every sanitizer and with
 * SHARDCODEC_DEBUG=1. In a release build SC_CHECKS is false and the functions are not compiled.
 * SPDX-License-Identifier: MIT */
#ifndef SC_CHECK_H
#define SC_CHECK_H

#include "base/sc_common.h"

#ifdef SHARDCODEC_CHECKS
#define SC_CHECKS true
#else
#define SC_CHECKS false
#endif

/* What a check is about. `entry`: number of the inner chunk; UINT64_MAX: none. */
struct sc_check_subject {
    const char *path; /* NULL: an object in memory */
    uint64_t entry, offset, nbytes, limit;
};

/* Print the rule that does not hold, with its subject, and abort. */
_Noreturn void sc_check_failed(const char *file, int line, const char *rule, const struct sc_check_subject *subject);

/* Abort unless the condition is true. The remaining arguments are designated members of the subject. Only in code that a
 * release build leaves out. */
#define SC_CHECK(condition, rule, ...)                                                            \
    do {                                                                                          \
        if (!(condition))                                                                         \
            sc_check_failed(__FILE__, __LINE__, rule, &(struct sc_check_subject){ __VA_ARGS__ }); \
    } while (0)

#endif
