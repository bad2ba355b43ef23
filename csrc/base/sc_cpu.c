/* sc_cpu.c - the features of the processor, and those that SHARDCODEC_CPU allows (see sc_cpu.h)
 *
 * On x86 an instruction set can be used only if the operating system also saves its registers: cpuid says what the
 * processor has, XCR0 which registers survive a context switch. macOS on x86 enables the AVX-512 state at its first
 * use, so it is not detected there; the SSE 4.2 code is then used.
 *
 * SPDX-License-Identifier: MIT */
#include "base/sc_cpu.h"

#include <stdlib.h>

#if defined(SC_ARCH_X86_64)
#include <cpuid.h>
#elif defined(SC_ARCH_ARM64) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(SC_ARCH_ARM64) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

/* By bit. */
static const char *const names[] = {
    "sse42", "pclmul", "avx2", "avx512", "vpclmulqdq", "bmi2", "zen4", "zen5", "armv8_crc", "armv8_pmull",
};

/* Words of the override that select several features: each variant of a kernel by its name, with all features that
 * it needs. */
#define VPCLMUL (SC_CPU_VPCLMULQDQ | SC_CPU_AVX512 | SC_CPU_PCLMUL | SC_CPU_SSE42)
static const struct {
    const char *name;
    uint32_t bits;
} variants[] = {
    { "portable", 0 },
    { "vpclmulqdq", VPCLMUL },
    { "vpclmulqdq_avx2", SC_CPU_VPCLMULQDQ | SC_CPU_AVX2 | SC_CPU_PCLMUL | SC_CPU_SSE42 },
    { "pclmulqdq", SC_CPU_AVX2 | SC_CPU_PCLMUL | SC_CPU_SSE42 },
    { "vpclmulqdq_crc32x4", VPCLMUL | SC_CPU_ZEN4 },
    { "vpclmulqdq_crc32x8", VPCLMUL | SC_CPU_ZEN5 },
    { "armv8", SC_CPU_ARMV8_CRC | SC_CPU_ARMV8_PMULL },
};

/* These features say only which instructions are worth their cost. No processor fails without them, so the override
 * may claim them. */
#define TRAITS (SC_CPU_ZEN4 | SC_CPU_ZEN5)

static uint32_t detected;
static uint32_t usable;
static bool initialised;
static char override_text[128]; /* a copy: a later setenv() may move the original */
static bool override_set;
static bool override_valid = true;

#if defined(SC_ARCH_X86_64)

enum {
    LEAF1_ECX_PCLMUL = 1 << 1,
    LEAF1_ECX_SSE42 = 1 << 20,
    LEAF1_ECX_POPCNT = 1 << 23,
    LEAF1_ECX_OSXSAVE = 1 << 27,
    LEAF7_EBX_AVX2 = 1 << 5,
    LEAF7_EBX_BMI2 = 1 << 8,
    LEAF7_EBX_AVX512F = 1 << 16,
    LEAF7_EBX_AVX512DQ = 1 << 17,
    LEAF7_EBX_AVX512BW = 1 << 30,
    LEAF7_ECX_VPCLMULQDQ = 1 << 10,
    XCR0_YMM = 0x06, /* XMM and the upper halves of YMM */
    XCR0_ZMM = 0xE6, /* those, mask registers, upper halves of ZMM0-15, ZMM16-31 */
};
#define LEAF7_EBX_AVX512VL (1u << 31)

/* Return the register states that the operating system saves; only if cpuid announces OSXSAVE. */
static uint32_t
read_xcr0(void)
{
    uint32_t low, high;

    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    (void)high;
    return low;
}

static bool
all_of(uint32_t value, uint32_t bits)
{
    return (value & bits) == bits;
}

/* AMD processors with AVX-512: Zen 4 is in family 19h (with Zen 3, which has none), Zen 5 in 1Ah. The vendor name is
 * in ebx, edx, ecx. */
static uint32_t
zen_with_avx512(void)
{
    uint32_t eax, ebx, ecx, edx, family;

    if (!__get_cpuid(0, &eax, &ebx, &ecx, &edx) || ebx != signature_AMD_ebx || edx != signature_AMD_edx ||
        ecx != signature_AMD_ecx || !__get_cpuid(1, &eax, &ebx, &ecx, &edx))
        return 0;
    family = (eax >> 8 & 0xF) + (eax >> 20 & 0xFF);
    return family == 0x19 ? SC_CPU_ZEN4 : family == 0x1A ? SC_CPU_ZEN5 : 0u;
}

static uint32_t
detect(void)
{
    const uint32_t avx512 = LEAF7_EBX_AVX512F | LEAF7_EBX_AVX512DQ | LEAF7_EBX_AVX512BW | LEAF7_EBX_AVX512VL;
    uint32_t eax, ebx, ecx, edx, xcr0, found = 0;

    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx))
        return 0;
    if (all_of(ecx, LEAF1_ECX_SSE42 | LEAF1_ECX_POPCNT))
        found |= SC_CPU_SSE42;
    if (all_of(ecx, LEAF1_ECX_PCLMUL))
        found |= SC_CPU_PCLMUL;
    xcr0 = all_of(ecx, LEAF1_ECX_OSXSAVE) ? read_xcr0() : 0;

    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx))
        return found;
    if (all_of(ebx, LEAF7_EBX_BMI2))
        found |= SC_CPU_BMI2;
    if (!all_of(xcr0, XCR0_YMM))
        return found;
    if (all_of(ebx, LEAF7_EBX_AVX2))
        found |= SC_CPU_AVX2;
    if (all_of(ecx, LEAF7_ECX_VPCLMULQDQ))
        found |= SC_CPU_VPCLMULQDQ;
    if (all_of(xcr0, XCR0_ZMM) && all_of(ebx, avx512))
        found |= SC_CPU_AVX512 | zen_with_avx512();
    return found;
}

#elif defined(SC_ARCH_ARM64) && defined(__linux__)

static uint32_t
detect(void)
{
    enum { HAS_PMULL = 1 << 4, HAS_CRC32 = 1 << 7 }; /* bits of AT_HWCAP; old <asm/hwcap.h> lack the names */
    const unsigned long capabilities = getauxval(AT_HWCAP);

    return (capabilities & HAS_CRC32 ? SC_CPU_ARMV8_CRC : 0u) | (capabilities & HAS_PMULL ? SC_CPU_ARMV8_PMULL : 0u);
}

#elif defined(SC_ARCH_ARM64) && defined(__APPLE__)

static bool
has(const char *name)
{
    int value = 0;
    size_t size = sizeof value;

    return sysctlbyname(name, &value, &size, NULL, 0) == 0 && value != 0;
}

static uint32_t
detect(void)
{
    return (has("hw.optional.armv8_crc32") ? SC_CPU_ARMV8_CRC : 0u) |
           (has("hw.optional.arm.FEAT_PMULL") ? SC_CPU_ARMV8_PMULL : 0u);
}

#else

static uint32_t
detect(void)
{
    return 0;
}

#endif

static bool
is_word(const char *word, size_t length, const char *name)
{
    return length == strlen(name) && memcmp(word, name, length) == 0;
}

/* Return the features of one word of the override. False: unknown word. */
static bool
bits_of(const char *word, size_t length, uint32_t *bits)
{
    for (size_t i = 0; i < SC_ARRAY_SIZE(variants); i++) {
        if (is_word(word, length, variants[i].name)) {
            *bits = variants[i].bits;
            return true;
        }
    }
    for (unsigned i = 0; i < SC_ARRAY_SIZE(names); i++) {
        if (is_word(word, length, names[i])) {
            *bits = 1u << i;
            return true;
        }
    }
    return false;
}

/* Return the features of a comma-separated list of words; blanks around a word are ignored. */
static bool
parse(const char *text, uint32_t *mask)
{
    *mask = 0;
    for (;;) {
        size_t length = strcspn(text, ",");
        const char *next = text + length;
        uint32_t bits;

        while (length > 0 && *text == ' ') {
            text++;
            length--;
        }
        while (length > 0 && text[length - 1] == ' ')
            length--;
        if (!bits_of(text, length, &bits))
            return false;
        *mask |= bits;
        if (*next == '\0')
            return true;
        text = next + 1;
    }
}

/* Apply SHARDCODEC_CPU. Empty means unset. A text too long for the copy contains an unknown name. */
static void
apply_override(const char *text)
{
    uint32_t mask;

    if (!text || *text == '\0')
        return;
    override_set = true;
    strncpy(override_text, text, sizeof override_text - 1);
    override_valid = strlen(text) < sizeof override_text && parse(override_text, &mask);
    if (override_valid)
        usable = (detected | TRAITS) & mask;
}

void
sc_cpu_init(void)
{
    if (initialised)
        return;
    detected = detect();
    usable = detected;
    apply_override(getenv("SHARDCODEC_CPU"));
    initialised = true;
}

uint32_t
sc_cpu_features(void)
{
    return usable;
}

uint32_t
sc_cpu_detected(void)
{
    return detected;
}

const char *
sc_cpu_override(bool *valid)
{
    *valid = override_valid;
    return override_set ? override_text : NULL;
}

const char *
sc_cpu_feature_name(unsigned i)
{
    return i < SC_ARRAY_SIZE(names) ? names[i] : NULL;
}
