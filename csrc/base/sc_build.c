/* sc_build.c - see sc_build.h; setup.py gives all sources the same macros and flags
 *
 * SPDX-License-Identifier: MIT */
#include "base/sc_build.h"

#include "base/sc_check.h"

/* gcc defines __SANITIZE_*__, clang answers __has_feature. */
#ifdef __has_feature
#define HAS(feature) __has_feature(feature)
#else
#define HAS(feature) 0
#endif

struct sc_build
sc_build_facts(void)
{
    struct sc_build facts = { .libraries = "bundled" };

#ifdef SHARDCODEC_SYSTEM_LIBS
    facts.libraries = "system";
#endif
#if defined(__SANITIZE_ADDRESS__) || HAS(address_sanitizer)
    facts.sanitizer = "address";
#elif defined(__SANITIZE_THREAD__) || HAS(thread_sanitizer)
    facts.sanitizer = "thread";
#endif
#ifdef __clang__
    facts.compiler = __VERSION__;
#else
    facts.compiler = "gcc " __VERSION__;
#endif
#ifdef Py_LIMITED_API
    facts.is_abi3 = true;
#endif
#ifdef __OPTIMIZE__
    facts.is_optimised = true;
#endif
#ifndef NDEBUG
    facts.has_assertions = true;
#endif
    facts.has_checks = SC_CHECKS;
    return facts;
}
