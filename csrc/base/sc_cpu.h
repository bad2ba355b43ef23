/* sc_cpu.h - which instructions this processor has and which we may use
 *
 * SHARDCODEC_CPU, read once, narrows the choice: "portable" leaves nothing; a comma-separated list of feature names
 * ("sse42,pclmul") leaves only those; the name of a variant ("vpclmulqdq") leaves what that variant needs. A name that
 * is unknown leaves the detected set untouched, and is reported by sc_cpu_override() so that a typing error does not
 * pass unseen.
 * SPDX-License-Identifier: MIT */
#ifndef SC_CPU_H
#define SC_CPU_H

#include "base/sc_common.h"

enum sc_cpu_feature {
    SC_CPU_SSE42 = 1u << 0,      /* crc32 instruction; implies POPCNT here */
    SC_CPU_PCLMUL = 1u << 1,
    SC_CPU_AVX2 = 1u << 2,
    SC_CPU_AVX512 = 1u << 3,     /* F, BW, VL, DQ together, and the OS saves their state */
    SC_CPU_VPCLMULQDQ = 1u << 4,
    SC_CPU_BMI2 = 1u << 5,
    SC_CPU_ZEN4 = 1u << 6,       /* no instruction but a trait: a 512-bit multiplication takes two cycles */
    SC_CPU_ZEN5 = 1u << 7,       /* likewise; and two crc32 instructions start in every cycle */
    SC_CPU_ARMV8_CRC = 1u << 8,
    SC_CPU_ARMV8_PMULL = 1u << 9,
};

/* Detect, apply SHARDCODEC_CPU, remember. Called once at import; later calls do nothing. */
void sc_cpu_init(void);

/* Features that may be used: detected and not excluded. 0 before sc_cpu_init(). */
uint32_t sc_cpu_features(void);

/* Features that the machine has, whatever SHARDCODEC_CPU says. */
uint32_t sc_cpu_detected(void);

/* The value of SHARDCODEC_CPU, NULL when unset; *valid tells whether every name in it is known. */
const char *sc_cpu_override(bool *valid);

/* Name of feature bit i ("sse42", ...), NULL past the last. */
const char *sc_cpu_feature_name(unsigned i);

#endif
