/* sc_codec.c - the table of codecs, their shared state, and the self-test (see sc_codec.h)
 * SPDX-License-Identifier: MIT */
#include "codecs/codec_impl.h"

#include "base/sc_alloc.h"

struct sc_codec_state *
sc_codec_state_new(void)
{
    return sc_calloc(1, sizeof(struct sc_codec_state));
}

void
sc_codec_state_free(struct sc_codec_state *state)
{
    if (!state)
        return;
    sc_zstd_release(state);
    sc_deflate_release(state);
    sc_lz4_release(state);
    sc_free(state->scratch);
    sc_free(state);
}

#define SC_CODEC_NAME(ID, name) #name,
const char *const sc_codec_names[SC_N_CODECS] = { SC_CODECS(SC_CODEC_NAME) };

#define SC_CODEC_ADDRESS(ID, name) &sc_codec_##name,
static const struct sc_codec *const codecs[] = { SC_CODECS(SC_CODEC_ADDRESS) };

const struct sc_codec *
sc_codec_get(enum sc_codec_id id)
{
    return (size_t)id < SC_N_CODECS ? codecs[id] : NULL;
}

/* ---- versions */

#ifdef SHARDCODEC_SYSTEM_LIBS
#define ZLIB_NAME "zlib"
#define ZLIB_EXPECTED "1."
#else
#define ZLIB_NAME "zlib-ng"
#define ZLIB_EXPECTED "2.3." /* its native interface is not promised to stay */
#endif

static const struct {
    const char *library, *expected; /* how the version has to begin */
} versions[] = { { "zstd", "1." }, { "lz4", "1." }, { ZLIB_NAME, ZLIB_EXPECTED } };

const char *
sc_codec_library_version(const char *library)
{
    if (!strcmp(library, "zstd"))
        return ZSTD_versionString();
    if (!strcmp(library, "lz4"))
        return LZ4_versionString();
    if (!strcmp(library, ZLIB_NAME))
        return zlibng_version();
#ifndef SHARDCODEC_SYSTEM_LIBS
    /* only the shuffles and blosclz of its archive are linked; they report no version */
    if (!strcmp(library, "blosc2"))
        return SC_BLOSC2_VERSION;
#endif
    return NULL;
}

/* The first library of another version than declared, or NULL. */
static const char *
wrong_version(void)
{
    for (size_t i = 0; i < SC_ARRAY_SIZE(versions); i++) {
        const char *version = sc_codec_library_version(versions[i].library);

        if (strncmp(version, versions[i].expected, strlen(versions[i].expected)) != 0)
            return versions[i].library;
    }
    return NULL;
}

/* ---- self-test */

#define TEXT_NBYTES 2048
#define ENCODED_NBYTES (2 * TEXT_NBYTES)

/* Compressible, but of no short period. */
static void
make_text(uint8_t *text)
{
    for (size_t i = 0; i < TEXT_NBYTES; i++)
        text[i] = (uint8_t)(i % 7 + (i / 64 * 2654435761u >> 28));
}

/* Encoding makes it smaller, decoding gives it back, and what lost its end is refused. */
static bool
survives(const struct sc_op *op, struct sc_codec_state *state, const uint8_t *text)
{
    const struct sc_codec *codec = sc_codec_get(op->codec);
    uint8_t encoded[ENCODED_NBYTES], decoded[TEXT_NBYTES];
    struct sc_where where;
    size_t n, m;

    if (codec->bound(op, TEXT_NBYTES) > ENCODED_NBYTES)
        return false;
    if (codec->encode(op, state, text, TEXT_NBYTES, encoded, sizeof encoded, &n, &where) != SC_OK || n >= TEXT_NBYTES)
        return false;
    if (codec->decode(op, state, encoded, n, decoded, sizeof decoded, &m, &where) != SC_OK || m != TEXT_NBYTES ||
        memcmp(decoded, text, TEXT_NBYTES) != 0)
        return false;
    return codec->decode(op, state, encoded, n - 1, decoded, sizeof decoded, &m, &where) == SC_CODEC_DATA;
}

static const struct {
    const char *library;
    struct sc_op op;
} probes[] = {
    { "zstd", { .codec = SC_CODEC_ZSTD, .level = 1, .checksum = true } },
    { "zstd", { .codec = SC_CODEC_ZSTD, .level = 3 } },
    { ZLIB_NAME, { .codec = SC_CODEC_GZIP, .level = 1 } },
    { ZLIB_NAME, { .codec = SC_CODEC_ZLIB, .level = 6 } },
    { "lz4", { .codec = SC_CODEC_LZ4, .level = 1 } },
    { "lz4", { .codec = SC_CODEC_BLOSC, .level = 5, .compressor = SC_BLOSC_LZ4, .shuffle = 1, .typesize = 4 } },
    { "lz4", { .codec = SC_CODEC_BLOSC, .level = 5, .compressor = SC_BLOSC_LZ4HC, .shuffle = 2, .typesize = 2 } },
#ifndef SHARDCODEC_SYSTEM_LIBS
    { "blosc2", { .codec = SC_CODEC_BLOSC, .level = 5, .compressor = SC_BLOSC_BLOSCLZ, .typesize = 1 } },
#endif
};

enum sc_status
sc_codec_selftest(const char **what)
{
    struct sc_codec_state *state = sc_codec_state_new();
    uint8_t text[TEXT_NBYTES];

    if (!state) {
        *what = "memory";
        return SC_NO_MEMORY;
    }
    *what = wrong_version();
    if (!*what && !sc_shuffle_selftest())
        *what = "blosc2";
    make_text(text);
    for (size_t i = 0; i < SC_ARRAY_SIZE(probes) && !*what; i++)
        if (!survives(&probes[i].op, state, text))
            *what = probes[i].library;
    sc_codec_state_free(state);
    return *what ? SC_CODEC_ENCODE : SC_OK;
}
