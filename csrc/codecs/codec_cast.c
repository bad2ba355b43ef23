/* codec_cast.c - the codec "cast_value": numbers in another data type, rounded and brought into its range by rules
 *
 * Each number passes the same steps, a block at once: scalar_map; rounding to the numbers of the other type, as if it had no
 * limits; the rule for numbers out of range. Decoding is the same with the types exchanged. Integers become other integers
 * directly. All else computes in double, which holds every number but some of 64 bits, or in float, where that suffices.
 * SPDX-License-Identifier: MIT */
#include "codecs/codec_impl.h"
#include "codecs/sc_filter.h"
#include "codecs/sc_reals.h"

/* One direction of a codec. */
struct cast {
    int from, to;
    enum sc_rounding rounding;
    enum sc_out_of_range out_of_range;
    const struct sc_mapped *map;
    size_t n_mapped;
};

static unsigned
n_bits(int type)
{
    return 8 * (unsigned)sc_item_nbytes(type);
}

/* The least number above the range of an integer type; every float type has it. */
static double
above(int type)
{
    return 2 * (double)(UINT64_C(1) << (n_bits(type) - 1 - sc_item_is_signed(type)));
}

/* ---- integers to integers */

/* fit_<Item>() is true if all integers are in [least, most], and clamp_<Item>() makes them so. */
#define DEFINE_RANGE_LOOPS(ID, Item)                                                            \
    static bool fit_##Item(const uint8_t *src, size_t n, Item least, Item most)                 \
    {                                                                                           \
        Item bad = 0;                                                                           \
                                                                                                \
        for (size_t i = 0; i < n; i++) {                                                        \
            Item item;                                                                          \
                                                                                                \
            memcpy(&item, src + i * sizeof item, sizeof item);                                  \
            bad |= item < least || item > most ? 1 : 0;                                         \
        }                                                                                       \
        return !bad;                                                                            \
    }                                                                                           \
                                                                                                \
    static void clamp_##Item(const uint8_t *src, size_t n, Item least, Item most, uint8_t *dst) \
    {                                                                                           \
        for (size_t i = 0; i < n; i++) {                                                        \
            Item item;                                                                          \
                                                                                                \
            memcpy(&item, src + i * sizeof item, sizeof item);                                  \
            item = item < least ? least : item;                                                 \
            item = item > most ? most : item;                                                   \
            memcpy(dst + i * sizeof item, &item, sizeof item);                                  \
        }                                                                                       \
    }

SC_INTEGERS(DEFINE_RANGE_LOOPS)

/* True if all integers are in [low, high], which are numbers of their type. */
static bool
integers_fit(int type, const uint8_t *src, size_t n, int64_t low, uint64_t high)
{
    bool fit = false;

    switch (type) {
#define FIT(ID, Item)                                    \
    case ID:                                             \
        fit = fit_##Item(src, n, (Item)low, (Item)high); \
        break;
        SC_INTEGERS(FIT)
#undef FIT
    }
    return fit;
}

static void
clamp_integers(int type, const uint8_t *src, size_t n, int64_t low, uint64_t high, uint8_t *clamped)
{
    switch (type) {
#define CLAMP(ID, Item)                                       \
    case ID:                                                  \
        clamp_##Item(src, n, (Item)low, (Item)high, clamped); \
        break;
        SC_INTEGERS(CLAMP)
#undef CLAMP
    }
}

static bool
cast_integers(const struct cast *cast, const uint8_t *src, size_t n, uint8_t *dst)
{
    const int64_t a = sc_item_least(cast->from), b = sc_item_least(cast->to), low = a > b ? a : b;
    const uint64_t high = min_u64(sc_item_most(cast->from), sc_item_most(cast->to));
    uint8_t clamped[8 * SC_BLOCK_ITEMS];

    if (cast->out_of_range != SC_WRAP && !integers_fit(cast->from, src, n, low, high)) {
        if (cast->out_of_range == SC_REFUSE)
            return false;
        clamp_integers(cast->from, src, n, low, high, clamped);
        src = clamped;
    }
    sc_items_convert(cast->from, cast->to, src, n, dst);
    return true;
}

/* ---- floats to integers */

static inline bool
is_finite(double x)
{
    return x - x == 0;
}

/* An integer in a double, modulo 2^64. */
static uint64_t
wrap(double x)
{
    uint64_t bits, word;
    unsigned shift;

    if (x > -0x1p63 && x < 0x1p63)
        return (uint64_t)(int64_t)x;
    memcpy(&bits, &x, sizeof bits);
    shift = (unsigned)(bits >> 52 & 0x7ff) - 1075; /* a mantissa of 53 bits times 2^shift */
    word = shift < 64 ? ((bits & 0xfffffffffffff) | UINT64_C(1) << 52) << shift : 0;
    return x < 0 ? 0 - word : word;
}

/* Integers in doubles of which some are out of range. */
static bool
bring_into_range(const struct cast *cast, const double *work, size_t n, uint8_t *dst)
{
    const double least = (double)sc_item_least(cast->to), limit = above(cast->to);
    uint64_t words[SC_BLOCK_ITEMS];

    for (size_t i = 0; i < n; i++) {
        if (!is_finite(work[i]) || cast->out_of_range == SC_REFUSE)
            return false;
        if (cast->out_of_range == SC_WRAP)
            words[i] = wrap(work[i]);
        else
            words[i] = work[i] < least    ? (uint64_t)sc_item_least(cast->to)
                       : work[i] >= limit ? sc_item_most(cast->to)
                                          : wrap(work[i]);
    }
    sc_items_from_words(cast->to, words, n, dst);
    return true;
}

static bool
cast_doubles_to_integers(const struct cast *cast, const uint8_t *src, size_t n, uint8_t *dst)
{
    double work[SC_BLOCK_ITEMS];

    sc_items_to_doubles(cast->from, src, n, work);
    round_doubles(cast->rounding, work, n);
    if (!fit_doubles(work, n, (double)sc_item_least(cast->to), above(cast->to)))
        return bring_into_range(cast, work, n, dst);
    sc_items_from_doubles(cast->to, work, n, dst);
    return true;
}

/* store_<Item>(): floats that are integers of this type, modulo its size. */
#define DEFINE_STORE(Item)                                                                \
    static void store_##Item(const float *restrict work, size_t n, uint8_t *restrict dst) \
    {                                                                                     \
        for (size_t i = 0; i < n; i++) {                                                  \
            const Item item = (Item)(int32_t)work[i];                                     \
                                                                                          \
            memcpy(dst + i * sizeof item, &item, sizeof item);                            \
        }                                                                                 \
    }

DEFINE_STORE(uint8_t)
DEFINE_STORE(uint16_t)

/* Integers of 8 or 16 bits: the limits are floats, too. */
static bool
cast_floats_to_integers(const struct cast *cast, const uint8_t *src, size_t n, uint8_t *restrict dst)
{
    const float least = (float)sc_item_least(cast->to), most = (float)sc_item_most(cast->to);
    float work[SC_BLOCK_ITEMS];

    sc_items_convert(cast->from, SC_FLOAT32, src, n, (uint8_t *)work);
    round_floats(cast->rounding, work, n);
    if (!fit_floats(work, n, least, most + 1)) {
        if (cast->out_of_range != SC_CLAMP)
            return cast_doubles_to_integers(cast, src, n, dst);
        if (!fit_floats(work, n, -0x1.fffffep127f, __builtin_inff()))
            return false;
        clamp_floats(work, n, least, most);
    }
    if (sc_item_nbytes(cast->to) == 1)
        store_uint8_t(work, n, dst);
    else
        store_uint16_t(work, n, dst);
    return true;
}

/* ---- to floats */

static unsigned
mantissa_of(int type)
{
    return type == SC_FLOAT16 ? 10 : type == SC_FLOAT32 ? 23 : 52;
}

/* Twice the greatest power of two. */
static double
limit_of(int type)
{
    return type == SC_FLOAT16 ? 0x1p16 : type == SC_FLOAT32 ? 0x1p128 : __builtin_inf();
}

/* Numbers of 1 + 52 bits are rounded to those of a narrower float type: multiples of the last place of their power of two, and of the
 * least number of the type. Numbers that are too large become `limit`. `mode` is a constant where this is called, so each loop has
 * one rule and the compiler uses vectors. */
static inline __attribute__((always_inline)) void
round_in(const enum sc_rounding mode, double limit, double least_power, double last_place, double *work, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const double x = work[i], any = __builtin_fabs(x), size = any < limit ? any : limit;
        double power, unit, sum, near, less, result;
        uint64_t bits;

        memcpy(&bits, &size, sizeof bits);
        bits &= 0x7ff0000000000000;
        memcpy(&power, &bits, sizeof power);
        unit = (power > least_power ? power : least_power) * last_place;
        sum = unit * 0x1p52;
        near = (size + sum) - sum;
        less = near - (near > size ? unit : 0);
        result = less;
        if (mode == SC_NEAREST_EVEN)
            result = near;
        else if (mode == SC_TOWARDS_POSITIVE)
            result += (less < size) & (x > 0) ? unit : 0;
        else if (mode == SC_TOWARDS_NEGATIVE)
            result += (less < size) & (x < 0) ? unit : 0;
        else if (mode == SC_NEAREST_AWAY)
            result += size - less >= unit * 0.5 ? unit : 0;
        work[i] = x - x == 0 ? __builtin_copysign(result, x) : x;
    }
}

static void
round_to_type(int type, enum sc_rounding mode, double *work, size_t n)
{
    const double limit = limit_of(type), least_power = type == SC_FLOAT16 ? 0x1p-14 : 0x1p-126;
    const double last_place = type == SC_FLOAT16 ? 0x1p-10 : 0x1p-23;

    switch (mode) {
    case SC_NEAREST_EVEN:
        round_in(SC_NEAREST_EVEN, limit, least_power, last_place, work, n);
        break;
    case SC_TOWARDS_ZERO:
        round_in(SC_TOWARDS_ZERO, limit, least_power, last_place, work, n);
        break;
    case SC_TOWARDS_POSITIVE:
        round_in(SC_TOWARDS_POSITIVE, limit, least_power, last_place, work, n);
        break;
    case SC_TOWARDS_NEGATIVE:
        round_in(SC_TOWARDS_NEGATIVE, limit, least_power, last_place, work, n);
        break;
    case SC_NEAREST_AWAY:
        round_in(SC_NEAREST_AWAY, limit, least_power, last_place, work, n);
        break;
    }
}

/* Round an integer of more than 53 bits to one of 1 + `mantissa` bits. */
static double
round_word(uint64_t size, bool is_negative, unsigned mantissa, enum sc_rounding mode)
{
    const unsigned dropped = 63 - (unsigned)__builtin_clzll(size) - mantissa;
    const uint64_t rest = size & ((UINT64_C(1) << dropped) - 1), half = UINT64_C(1) << (dropped - 1);
    uint64_t kept = size >> dropped;
    double rounded;

    if (mode == SC_NEAREST_EVEN)
        kept += rest > half || (rest == half && kept & 1);
    else if (mode == SC_NEAREST_AWAY)
        kept += rest >= half;
    else if (mode == (is_negative ? SC_TOWARDS_NEGATIVE : SC_TOWARDS_POSITIVE))
        kept += rest > 0;
    rounded = (double)kept * (double)(UINT64_C(1) << dropped);
    return is_negative ? -rounded : rounded;
}

/* Integers of 64 bits: those that a double cannot hold are rounded here. */
static void
load_words(const struct cast *cast, const uint8_t *src, size_t n, double *work)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t word, size;
        bool is_negative;

        memcpy(&word, src + i * sizeof word, sizeof word);
        is_negative = cast->from == SC_INT64 && (int64_t)word < 0;
        size = is_negative ? 0 - word : word;
        if (size > UINT64_C(1) << 53)
            work[i] = round_word(size, is_negative, mantissa_of(cast->to), cast->rounding);
        else
            work[i] = is_negative ? -(double)(int64_t)size : (double)(int64_t)size;
    }
}

/* True if the other type has every number of this one. */
static bool
is_exact(int from, int to)
{
    if (sc_item_is_float(from))
        return from < to;
    return n_bits(from) - sc_item_is_signed(from) <= mantissa_of(to) + 1;
}

static bool
cast_to_floats(const struct cast *cast, const uint8_t *src, size_t n, uint8_t *dst)
{
    const double limit = limit_of(cast->to);
    double work[SC_BLOCK_ITEMS];
    int64_t too_large = 0;

    if (is_exact(cast->from, cast->to)) {
        sc_items_convert(cast->from, cast->to, src, n, dst);
        return true;
    }
    if (cast->from == SC_INT64 || cast->from == SC_UINT64)
        load_words(cast, src, n, work);
    else
        sc_items_to_doubles(cast->from, src, n, work);
    if (cast->to != SC_FLOAT64)
        round_to_type(cast->to, cast->rounding, work, n);
    for (size_t i = 0; i < n; i++)
        too_large |= __builtin_fabs(work[i]) == limit && limit < __builtin_inf() ? 1 : 0;
    if (too_large && cast->out_of_range != SC_CLAMP)
        return false;
    if (too_large) /* become infinite */
        for (size_t i = 0; i < n; i++)
            work[i] = __builtin_fabs(work[i]) == limit ? __builtin_copysign(__builtin_inf(), work[i]) : work[i];
    sc_items_from_doubles(cast->to, work, n, dst);
    return true;
}

/* ---- scalar_map: a number that is mapped passes the other steps as zero */

/* Which items equal a key: as bits, or as NaN, which all are equal. */
struct match {
    uint64_t key, mask;
    bool is_nan;
    uint16_t number;
};

/* match_<Bits>(): hits[i] becomes the number of the match where item i is equal. */
#define DEFINE_MATCH(Bits)                                                                     \
    static void match_##Bits(const uint8_t *src, size_t n, struct match match, uint16_t *hits) \
    {                                                                                          \
        const Bits key = (Bits)match.key, mask = (Bits)match.mask;                             \
        const uint16_t number = match.number;                                                  \
        const bool is_nan = match.is_nan;                                                      \
                                                                                               \
        for (size_t i = 0; i < n; i++) {                                                       \
            Bits item;                                                                         \
                                                                                               \
            memcpy(&item, src + i * sizeof item, sizeof item);                                 \
            item &= mask;                                                                      \
            hits[i] = (is_nan ? item > key : item == key) ? number : hits[i];                  \
        }                                                                                      \
    }

DEFINE_MATCH(uint8_t)
DEFINE_MATCH(uint16_t)
DEFINE_MATCH(uint32_t)
DEFINE_MATCH(uint64_t)

/* What equals a key of the map: numbers for which `==` says so, and all NaN. */
static struct match
match_of(int type, uint64_t key, uint16_t number)
{
    const unsigned bits = n_bits(type);
    const uint64_t sign = UINT64_C(1) << (bits - 1), size = key & (sign - 1);
    struct match match = { key, UINT64_MAX >> (64 - bits), false, number };
    uint64_t infinity;

    if (!sc_item_is_float(type))
        return match;
    infinity = (sign - 1) & ~((UINT64_C(1) << mantissa_of(type)) - 1);
    match.is_nan = size > infinity;
    if (match.is_nan || !size)
        match.mask = sign - 1;
    match.key = match.is_nan ? infinity : key & match.mask;
    return match;
}

/* Later entries first: of equal keys the first one counts. */
static void
find_mapped(const struct cast *cast, const uint8_t *src, size_t n, uint16_t *hits)
{
    memset(hits, 0, n * sizeof *hits);
    for (size_t k = cast->n_mapped; k > 0; k--) {
        const struct match match = match_of(cast->from, cast->map[k - 1].from, (uint16_t)k);

        switch (sc_item_nbytes(cast->from)) {
        case 1:
            match_uint8_t(src, n, match, hits);
            break;
        case 2:
            match_uint16_t(src, n, match, hits);
            break;
        case 4:
            match_uint32_t(src, n, match, hits);
            break;
        default:
            match_uint64_t(src, n, match, hits);
        }
    }
}

static void
put_item(uint8_t *item, size_t nbytes, uint64_t bits)
{
    for (size_t b = 0; b < nbytes; b++)
        item[SC_IS_BIG_ENDIAN ? nbytes - 1 - b : b] = (uint8_t)(bits >> 8 * b);
}

/* ---- a block */

/* False: an item cannot be cast. */
static bool
cast_unmapped(const struct cast *cast, const uint8_t *src, size_t n, uint8_t *dst)
{
    if (cast->from == cast->to)
        memcpy(dst, src, n * sc_item_nbytes(cast->to));
    else if (sc_item_is_float(cast->to))
        return cast_to_floats(cast, src, n, dst);
    else if (sc_item_is_integer(cast->from))
        return cast_integers(cast, src, n, dst);
    else if (sc_item_nbytes(cast->to) <= 2 && cast->from != SC_FLOAT64)
        return cast_floats_to_integers(cast, src, n, dst);
    else
        return cast_doubles_to_integers(cast, src, n, dst);
    return true;
}

static bool
cast_block(const struct cast *cast, const uint8_t *src, size_t n, uint8_t *dst)
{
    const size_t from = sc_item_nbytes(cast->from), to = sc_item_nbytes(cast->to);
    uint16_t hits[SC_BLOCK_ITEMS];
    uint8_t others[8 * SC_BLOCK_ITEMS];

    if (!cast->n_mapped)
        return cast_unmapped(cast, src, n, dst);
    find_mapped(cast, src, n, hits);
    memcpy(others, src, n * from);
    for (size_t i = 0; i < n; i++)
        if (hits[i])
            memset(others + i * from, 0, from);
    if (!cast_unmapped(cast, others, n, dst))
        return false;
    for (size_t i = 0; i < n; i++)
        if (hits[i])
            put_item(dst + i * to, to, cast->map[hits[i] - 1].to);
    return true;
}

static bool
takes_types(const struct sc_op *op)
{
    return sc_item_nbytes(op->item) && sc_item_nbytes(op->encoded_item) && op->n_mapped[0] <= SC_MAX_MAPPED &&
           op->n_mapped[1] <= SC_MAX_MAPPED;
}

static bool
encode(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    const struct cast cast = { op->item,         op->encoded_item, op->rounding,
                               op->out_of_range, op->mapped[0],    op->n_mapped[0] };

    return cast_block(&cast, src, n, dst);
}

static bool
decode(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    const struct cast cast = { op->encoded_item, op->item,      op->rounding,
                               op->out_of_range, op->mapped[1], op->n_mapped[1] };

    return cast_block(&cast, src, n, dst);
}

static const struct sc_filter sc_filter_cast_value = {
    .takes = takes_types,
    .encode = encode,
    .decode = decode,
    .not_encoded = "does not fit",
    .not_decoded = "does not fit",
};

SC_FILTER_ROW(cast_value, true);
