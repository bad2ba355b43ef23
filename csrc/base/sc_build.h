/* sc_build.h - how this binary was compiled, for bug reports
 *
 * SPDX-License-Identifier: MIT */
#ifndef SC_BUILD_H
#define SC_BUILD_H

#include "base/sc_common.h"

struct sc_build {
    const char *libraries; /* "bundled" or "system" */
    const char *sanitizer; /* "address" or "thread"; NULL without one */
    const char *compiler;  /* as it names itself */
    bool is_abi3;          /* for the stable ABI of CPython, not for one version */
    bool is_optimised;
    bool has_assertions;
    bool has_checks; /* what is written is checked and read again (sc_check.h) */
};

struct sc_build sc_build_facts(void);

#endif
