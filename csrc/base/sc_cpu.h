/* sc_cpu.h - the instructions that this processor has and that may be used
 *
 * SHARDCODEC_CPU, read once, limits the choice: "portable" allows none; a comma-separated list of feature names
 * ("sse42,pclmul") allows only these; the name of a variant ("vpclmulqdq") allows what that variant needs. An unknown
 * name leaves the detected set unchanged; sc_cpu_override() reports it, so that a typing error is noticed.
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
    SC_CPU_ZEN4 = 1u << 6,       /* not an instruction but a property: a 512-bit multiplication takes two cycles */
    SC_CPU_ZEN5 = 1u << 7,       /* likewise; and two crc32 instructions start in every cycle */
    SC_CPU_ARMV8_CRC = 1u << 8,
    SC_CPU_ARMV8_PMULL = 1u << 9,
};

/* Detect the features and apply SHARDCODEC_CPU. Called once at import; later calls do nothing. */
void sc_cpu_init(void);

/* Return the features that may be used: detected and not excluded. 0 before sc_cpu_init(). */
uint32_t sc_cpu_features(void);

/* Return the features of the machine, without the changes that SHARDCODEC_CPU makes. */
uint32_t sc_cpu_detected(void);

/* Return the value of SHARDCODEC_CPU; NULL if it is not set. *valid: every name in it is known. */
const char *sc_cpu_override(bool *valid);

/* Return the name of feature bit i ("sse42", ...); NULL past the last. */
const char *sc_cpu_feature_name(unsigned i);

#endif
