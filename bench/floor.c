/* floor.c - how fast the same work can be: plain C, two threads, the same libraries, and nothing else
 *
 * Reads and writes whole arrays or boxes of them, knowing beforehand what a real reader has to find out: three axes
 * at most, shards and inner chunks that divide the array, index at the end, little-endian, one crc32c, one codec.
 * No cache, no planning, no errors worth a sentence. It is what a ratio is taken against, not a proven bound.
 *
 *     read    for each shard: open, read and check the index, read inner chunks in file order (near ones at once),
 *             decode, scatter into memory that the caller has just allocated
 *     write   for each shard: gather, encode, write a temporary file, piece by piece, rename
 *
 * Built by bench/peers.py as a shared object over libblosc2.a, whose headers for zstd, lz4 and zlib-ng are not
 * shipped: their prototypes stand below.
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__SSE4_2__)
#include <nmmintrin.h>
#endif

/* ---- libraries */

size_t ZSTD_compressBound(size_t n);
size_t ZSTD_compressCCtx(void *ctx, void *dst, size_t capacity, const void *src, size_t n, int level);
size_t ZSTD_decompressDCtx(void *ctx, void *dst, size_t capacity, const void *src, size_t n);
unsigned ZSTD_isError(size_t code);
void *ZSTD_createCCtx(void);
void *ZSTD_createDCtx(void);
size_t ZSTD_freeCCtx(void *ctx);
size_t ZSTD_freeDCtx(void *ctx);

int LZ4_compress_fast(const char *src, char *dst, int n, int capacity, int acceleration);
int LZ4_decompress_safe(const char *src, char *dst, int n, int capacity);

int32_t blosc2_shuffle(int32_t typesize, int32_t n, const void *src, void *dst);
int32_t blosc2_unshuffle(int32_t typesize, int32_t n, const void *src, void *dst);

typedef struct {
    const uint8_t *next_in;
    uint32_t avail_in;
    size_t total_in;
    uint8_t *next_out;
    uint32_t avail_out;
    size_t total_out;
    const char *msg;
    void *state, *zalloc, *zfree, *opaque;
    int data_type;
    uint32_t adler;
    unsigned long reserved;
} zng_stream;

int32_t zng_inflateInit2(zng_stream *z, int32_t window_bits);
int32_t zng_inflateReset(zng_stream *z);
int32_t zng_inflate(zng_stream *z, int32_t flush);
int32_t zng_inflateEnd(zng_stream *z);
int32_t zng_deflateInit2(zng_stream *z, int32_t level, int32_t method, int32_t window_bits, int32_t mem_level,
                         int32_t strategy);
int32_t zng_deflateReset(zng_stream *z);
int32_t zng_deflate(zng_stream *z, int32_t flush);
int32_t zng_deflateEnd(zng_stream *z);

/* Level 1 of zlib-ng finds few matches in noise and pays for looking; Huffman codes alone are faster and smaller. */
#define ZNG_HUFFMAN_ONLY 2
#define ZNG_FINISH 4
#define ZNG_STREAM_END 1
#define GZIP_WINDOW (15 + 16)

/* ---- what to do */

enum codec { RAW = 0, ZSTD = 1, GZIP = 2, BLOSC_LZ4_SHUFFLE = 3 };

/* All shapes have three axes; an array of fewer has axes of extent 1 in front. */
struct floor_plan {
    uint64_t array[3], shard[3], inner[3]; /* elements */
    uint64_t start[3], count[3];           /* the box to read; writing always takes the whole array */
    uint32_t itemsize;
    uint32_t rank;    /* axes that a key names */
    int32_t codec;    /* enum codec */
    int32_t level;    /* zstd, gzip; lz4: acceleration */
    int32_t n_threads;
    const char *root; /* the array's folder */
    uint8_t *data;    /* C order: the box (read) or the array (write) */

    /* Reading rows: positions along the first axis that a key names, ascending, and of each its place in the result. The box
     * is the whole array then. */
    const uint64_t *rows, *places;
    uint64_t n_rows; /* 0: the box */
};

enum {
    GROUP_NBYTES = 256 << 10, /* read at once, so that it stays in the second-level cache */
    GAP_NBYTES = 16 << 10, /* read over rather than around */
    FLUSH_NBYTES = 512 << 10, /* written at once */
    SCAN_NBYTES = 256 << 10, /* of an index */
};

struct want {
    uint64_t offset, nbytes;
    uint64_t chunk; /* C order over the shard's grid */
};

/* One thread's memory and contexts. */
struct worker {
    uint8_t *io, *chunk, *stage, *index;
    size_t io_capacity, index_capacity;
    struct want *wants;
    size_t wants_capacity;
    void *zstd;
    zng_stream gzip;
    bool gzip_ready;
};

struct job {
    const struct floor_plan *plan;
    uint64_t grid[3]; /* inner chunks in a shard */
    uint64_t first[3]; /* shards that the box touches */
    uint64_t n_shards[3];
    uint64_t n_tasks, n_parts;
    size_t chunk_nbytes;
    int (*run)(const struct job *, struct worker *, uint64_t task);
    _Atomic uint64_t next;
    _Atomic int failure; /* errno of any failing task */
};

/* ---- crc32c */

#if defined(__SSE4_2__)
/* Three streams hide the latency of the instruction; two multiplications modulo the polynomial join them. */
enum { LANE = 4096 };

static uint32_t
multiply_mod(uint32_t a, uint32_t b)
{
    uint32_t product = 0;

    for (int i = 0; i < 32; i++) {
        product ^= b & (0u - (a >> 31));
        a <<= 1;
        b = b >> 1 ^ (0x82F63B78u & (0u - (b & 1)));
    }
    return product;
}

/* The crc after n more zero bytes is crc * x^(8n); bit 31 is x^0. */
static uint32_t
zeros_operator(size_t n)
{
    uint32_t power = 1u << 31, square = 1u << 23;

    for (; n; n >>= 1) {
        if (n & 1)
            power = multiply_mod(square, power);
        square = multiply_mod(square, square);
    }
    return power;
}

static uint32_t
crc32c(uint32_t crc, const uint8_t *p, size_t n)
{
    uint64_t a = ~crc;

    if (n >= 3 * LANE) {
        uint32_t one = zeros_operator(LANE), two = zeros_operator(2 * LANE);

        for (; n >= 3 * LANE; n -= 3 * LANE, p += 3 * LANE) {
            uint64_t b = 0, c = 0;

            for (size_t i = 0; i < LANE; i += 8) {
                uint64_t v[3];

                memcpy(&v[0], p + i, 8);
                memcpy(&v[1], p + LANE + i, 8);
                memcpy(&v[2], p + 2 * LANE + i, 8);
                a = _mm_crc32_u64(a, v[0]);
                b = _mm_crc32_u64(b, v[1]);
                c = _mm_crc32_u64(c, v[2]);
            }
            a = multiply_mod((uint32_t)a, two) ^ multiply_mod((uint32_t)b, one) ^ c;
        }
    }
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t v;

        memcpy(&v, p, 8);
        a = _mm_crc32_u64(a, v);
    }
    for (; n; n--)
        a = _mm_crc32_u8((uint32_t)a, *p++);
    return ~(uint32_t)a;
}
#else
static uint32_t
crc32c(uint32_t crc, const uint8_t *p, size_t n)
{
    crc = ~crc;
    while (n--) {
        crc ^= *p++;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (0x82F63B78u & (0u - (crc & 1)));
    }
    return ~crc;
}
#endif

/* ---- codecs */

static uint32_t
load32(const uint8_t *p)
{
    uint32_t v;

    memcpy(&v, p, 4);
    return v;
}

static void
store32(uint8_t *p, uint32_t v)
{
    memcpy(p, &v, 4);
}

/* A Blosc1 container: 16 bytes of header, a table of block offsets, blocks of typesize streams (or of one). */
static int
blosc_decode(const uint8_t *src, size_t n, uint8_t *dst, size_t nbytes, uint8_t *stage)
{
    if (n < 16 || load32(src + 4) != nbytes || load32(src + 12) != n)
        return EBADMSG;
    if (src[2] & 0x02) { /* stored as it was */
        if (n != nbytes + 16)
            return EBADMSG;
        memcpy(dst, src + 16, nbytes);
        return 0;
    }
    uint32_t blocksize = load32(src + 8);

    for (size_t at = 0, block = 0; at < nbytes; at += blocksize, block++) {
        size_t length = nbytes - at < blocksize ? nbytes - at : blocksize;
        size_t n_streams = src[2] & 0x10 || length < blocksize ? 1 : src[3];
        size_t in = 16 + 4 * block + 4 <= n ? load32(src + 16 + 4 * block) : n;
        uint8_t *out = src[2] & 0x01 ? stage : dst + at;

        for (size_t s = 0; s < n_streams; s++) {
            size_t size = length / n_streams, stored = in + 4 <= n ? load32(src + in) : SIZE_MAX;

            in += 4;
            if (in > n || stored > n - in)
                return EBADMSG;
            if (stored == size)
                memcpy(out + s * size, src + in, size);
            else if (LZ4_decompress_safe((const char *)src + in, (char *)out + s * size, (int)stored, (int)size) !=
                     (int)size)
                return EBADMSG;
            in += stored;
        }
        if (out == stage)
            blosc2_unshuffle(src[3], (int32_t)length, stage, dst + at);
    }
    return 0;
}

/* One block, as c-blosc chooses it for chunks of this size at clevel 5. 0: does not get smaller. */
static size_t
blosc_encode(const uint8_t *src, size_t nbytes, uint32_t typesize, int acceleration, uint8_t *dst, uint8_t *stage)
{
    size_t at = 20, size = nbytes / typesize;
    const uint8_t header[4] = { 2, 1, 0x01 | 1 << 5, (uint8_t)typesize };

    blosc2_shuffle((int32_t)typesize, (int32_t)nbytes, src, stage);
    for (uint32_t s = 0; s < typesize; s++) {
        const char *stream = (const char *)stage + s * size;
        int stored = LZ4_compress_fast(stream, (char *)dst + at + 4, (int)size, (int)size - 1, acceleration);

        if (stored <= 0) {
            memcpy(dst + at + 4, stream, size);
            stored = (int)size;
        }
        store32(dst + at, (uint32_t)stored);
        at += 4 + (size_t)stored;
    }
    if (at >= nbytes + 16)
        return 0;
    memcpy(dst, header, 4);
    store32(dst + 4, (uint32_t)nbytes);
    store32(dst + 8, (uint32_t)nbytes);
    store32(dst + 12, (uint32_t)at);
    store32(dst + 16, 20);
    return at;
}

static size_t
blosc_store(const uint8_t *src, size_t nbytes, uint32_t typesize, uint8_t *dst)
{
    const uint8_t header[4] = { 2, 1, 0x02 | 1 << 5, (uint8_t)typesize };

    memcpy(dst, header, 4);
    store32(dst + 4, (uint32_t)nbytes);
    store32(dst + 8, (uint32_t)nbytes);
    store32(dst + 12, (uint32_t)nbytes + 16);
    memcpy(dst + 16, src, nbytes);
    return nbytes + 16;
}

static int
gzip_run(zng_stream *z, int32_t (*step)(zng_stream *, int32_t), const uint8_t *src, size_t n, uint8_t *dst,
         size_t *capacity)
{
    z->next_in = src;
    z->avail_in = (uint32_t)n;
    z->next_out = dst;
    z->avail_out = (uint32_t)*capacity;
    if (step(z, ZNG_FINISH) != ZNG_STREAM_END)
        return EBADMSG;
    *capacity -= z->avail_out;
    return 0;
}

static int
gzip_decode(struct worker *w, const uint8_t *src, size_t n, uint8_t *dst, size_t nbytes)
{
    size_t got = nbytes;

    if (!w->gzip_ready && zng_inflateInit2(&w->gzip, GZIP_WINDOW))
        return ENOMEM;
    w->gzip_ready = true;
    zng_inflateReset(&w->gzip);
    return gzip_run(&w->gzip, zng_inflate, src, n, dst, &got) || got != nbytes ? EBADMSG : 0;
}

static size_t
gzip_encode(struct worker *w, int level, const uint8_t *src, size_t n, uint8_t *dst, size_t capacity)
{
    if (!w->gzip_ready && zng_deflateInit2(&w->gzip, level, 8, GZIP_WINDOW, 8, ZNG_HUFFMAN_ONLY))
        return 0;
    w->gzip_ready = true;
    zng_deflateReset(&w->gzip);
    return gzip_run(&w->gzip, zng_deflate, src, n, dst, &capacity) ? 0 : capacity;
}

/* Decode one inner chunk; *decoded is where it then lies. */
static int
decode(const struct job *job, struct worker *w, const uint8_t *src, size_t n, const uint8_t **decoded)
{
    size_t nbytes = job->chunk_nbytes;

    *decoded = w->chunk;
    switch (job->plan->codec) {
    case RAW:
        *decoded = src;
        return n == nbytes ? 0 : EBADMSG;
    case ZSTD:
        return ZSTD_decompressDCtx(w->zstd, w->chunk, nbytes, src, n) == nbytes ? 0 : EBADMSG;
    case GZIP:
        return gzip_decode(w, src, n, w->chunk, nbytes);
    default:
        return blosc_decode(src, n, w->chunk, nbytes, w->stage);
    }
}

static size_t
encoded_bound(size_t nbytes)
{
    return ZSTD_compressBound(nbytes) + nbytes / 8 + 512; /* enough for each of the four */
}

/* Encode w->chunk; 0 is a failure. */
static size_t
encode(const struct job *job, struct worker *w, uint8_t *dst)
{
    const struct floor_plan *plan = job->plan;
    size_t nbytes = job->chunk_nbytes, n;

    switch (plan->codec) {
    case ZSTD:
        n = ZSTD_compressCCtx(w->zstd, dst, encoded_bound(nbytes), w->chunk, nbytes, plan->level);
        return ZSTD_isError(n) ? 0 : n;
    case GZIP:
        return gzip_encode(w, plan->level, w->chunk, nbytes, dst, encoded_bound(nbytes));
    default:
        n = blosc_encode(w->chunk, nbytes, plan->itemsize, plan->level, dst, w->stage);
        return n ? n : blosc_store(w->chunk, nbytes, plan->itemsize, dst);
    }
}

/* ---- moving boxes: rows along the last axis, two strides */

struct move {
    uint8_t *dst;
    const uint8_t *src;
    uint64_t planes, rows, row_nbytes;
    size_t dst_strides[2], src_strides[2];
};

static inline void
move_rows(const struct move *m, size_t row_nbytes)
{
    for (uint64_t p = 0; p < m->planes; p++) {
        uint8_t *dst = m->dst + p * m->dst_strides[0];
        const uint8_t *src = m->src + p * m->src_strides[0];

        for (uint64_t r = 0; r < m->rows; r++) {
            memcpy(dst, src, row_nbytes);
            dst += m->dst_strides[1];
            src += m->src_strides[1];
        }
    }
}

/* A constant size lets the compiler replace the call by one or two instructions. */
static void
move_box(const struct move *m)
{
    switch (m->row_nbytes) {
    case 2:
        move_rows(m, 2);
        break;
    case 4:
        move_rows(m, 4);
        break;
    case 8:
        move_rows(m, 8);
        break;
    case 64:
        move_rows(m, 64);
        break;
    default:
        move_rows(m, m->row_nbytes);
    }
}

static uint64_t
min64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t
max64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Copy what the box and the inner chunk at `origin` share. */
static void
scatter(const struct floor_plan *plan, const uint64_t *origin, const uint8_t *chunk)
{
    size_t item = plan->itemsize;
    uint64_t from[3], n[3];

    for (int a = 0; a < 3; a++) {
        from[a] = max64(origin[a], plan->start[a]);
        n[a] = min64(origin[a] + plan->inner[a], plan->start[a] + plan->count[a]) - from[a];
    }
    size_t src_row = plan->inner[2] * item, dst_row = plan->count[2] * item;
    size_t src_plane = plan->inner[1] * src_row, dst_plane = plan->count[1] * dst_row;
    const struct move m = {
        .dst = plan->data + (from[0] - plan->start[0]) * dst_plane + (from[1] - plan->start[1]) * dst_row +
               (from[2] - plan->start[2]) * item,
        .src =
            chunk + (from[0] - origin[0]) * src_plane + (from[1] - origin[1]) * src_row + (from[2] - origin[2]) * item,
        .planes = n[0],
        .rows = n[1],
        .row_nbytes = n[2] * item,
        .dst_strides = { dst_plane, dst_row },
        .src_strides = { src_plane, src_row },
    };
    move_box(&m);
}

static void
gather(const struct floor_plan *plan, const uint64_t *origin, uint8_t *chunk)
{
    size_t item = plan->itemsize;
    size_t src_row = plan->array[2] * item, src_plane = plan->array[1] * src_row;
    const struct move m = {
        .dst = chunk,
        .src = plan->data + origin[0] * src_plane + origin[1] * src_row + origin[2] * item,
        .planes = plan->inner[0],
        .rows = plan->inner[1],
        .row_nbytes = plan->inner[2] * item,
        .dst_strides = { plan->inner[1] * plan->inner[2] * item, plan->inner[2] * item },
        .src_strides = { src_plane, src_row },
    };
    move_box(&m);
}

/* ---- files */

static int
grow(uint8_t **buffer, size_t *capacity, size_t n)
{
    if (n <= *capacity)
        return 0;
    free(*buffer);
    *capacity = n;
    *buffer = aligned_alloc(64, (n + 63) & ~(size_t)63);
    return *buffer ? 0 : ENOMEM;
}

static int
read_exactly(int fd, uint8_t *p, size_t n, uint64_t offset)
{
    while (n) {
        ssize_t got = pread(fd, p, n, (off_t)offset);

        if (got <= 0)
            return got ? errno : EBADMSG;
        p += got;
        n -= (size_t)got;
        offset += (uint64_t)got;
    }
    return 0;
}

static int
write_exactly(int fd, const uint8_t *p, size_t n)
{
    while (n) {
        ssize_t put = write(fd, p, n);

        if (put < 0)
            return errno;
        p += put;
        n -= (size_t)put;
    }
    return 0;
}

static void
shard_path(const struct job *job, uint64_t shard, char *path, size_t capacity)
{
    uint64_t c[3] = { shard / (job->n_shards[1] * job->n_shards[2]), shard / job->n_shards[2] % job->n_shards[1],
                      shard % job->n_shards[2] };
    int at = snprintf(path, capacity, "%s/c", job->plan->root);

    for (uint32_t a = 3 - job->plan->rank; a < 3; a++)
        at += snprintf(path + at, capacity - (size_t)at, "/%llu", (unsigned long long)(job->first[a] + c[a]));
}

static void
shard_origin(const struct job *job, uint64_t shard, uint64_t *origin)
{
    origin[0] = (job->first[0] + shard / (job->n_shards[1] * job->n_shards[2])) * job->plan->shard[0];
    origin[1] = (job->first[1] + shard / job->n_shards[2] % job->n_shards[1]) * job->plan->shard[1];
    origin[2] = (job->first[2] + shard % job->n_shards[2]) * job->plan->shard[2];
}

static void
chunk_origin(const struct job *job, const uint64_t *shard, uint64_t chunk, uint64_t *origin)
{
    origin[0] = shard[0] + chunk / (job->grid[1] * job->grid[2]) * job->plan->inner[0];
    origin[1] = shard[1] + chunk / job->grid[2] % job->grid[1] * job->plan->inner[1];
    origin[2] = shard[2] + chunk % job->grid[2] * job->plan->inner[2];
}

/* ---- reading */

/* The first of the rows that is not below `position`. */
static uint64_t
find_row(const struct floor_plan *plan, uint64_t position)
{
    uint64_t low = 0, high = plan->n_rows;

    while (low < high) {
        uint64_t middle = low + (high - low) / 2;

        if (plan->rows[middle] < position)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool
has_rows(const struct job *job, const uint64_t *shard, uint64_t chunk)
{
    uint32_t axis = 3 - job->plan->rank;
    uint64_t origin[3];

    chunk_origin(job, shard, chunk, origin);
    return find_row(job->plan, origin[axis]) < find_row(job->plan, origin[axis] + job->plan->inner[axis]);
}

static void
scatter_rows(const struct floor_plan *plan, const uint64_t *origin, const uint8_t *chunk)
{
    uint32_t axis = 3 - plan->rank;
    uint64_t end = find_row(plan, origin[axis] + plan->inner[axis]), row_nbytes = plan->itemsize;
    struct floor_plan row = *plan;

    for (uint32_t a = axis + 1; a < 3; a++)
        row_nbytes *= plan->count[a];
    row.count[axis] = 1;
    for (uint64_t k = find_row(plan, origin[axis]); k < end; k++) {
        row.start[axis] = plan->rows[k];
        row.data = plan->data + plan->places[k] * row_nbytes;
        scatter(&row, origin, chunk);
    }
}

/* List the inner chunks of a shard that the box touches, in C order; of those, part `part` of job->n_parts. */
static int
list_wants(const struct job *job, struct worker *w, const uint64_t *shard, uint64_t part, size_t *n_wants)
{
    const struct floor_plan *plan = job->plan;
    uint64_t low[3], n[3];

    for (int a = 0; a < 3; a++) {
        uint64_t first = max64(plan->start[a], shard[a]) - shard[a];
        uint64_t last = min64(plan->start[a] + plan->count[a], shard[a] + plan->shard[a]) - 1 - shard[a];

        low[a] = first / plan->inner[a];
        n[a] = last / plan->inner[a] - low[a] + 1;
    }
    uint64_t total = n[0] * n[1] * n[2];
    uint64_t from = total * part / job->n_parts, to = total * (part + 1) / job->n_parts;

    if (w->wants_capacity < to - from) {
        free(w->wants);
        w->wants_capacity = to - from;
        w->wants = malloc(w->wants_capacity * sizeof *w->wants);
        if (!w->wants)
            return ENOMEM;
    }
    *n_wants = 0;
    for (uint64_t i = from; i < to; i++) {
        uint64_t z = low[0] + i / (n[1] * n[2]), y = low[1] + i / n[2] % n[1], x = low[2] + i % n[2];
        uint64_t chunk = (z * job->grid[1] + y) * job->grid[2] + x;

        if (!plan->n_rows || has_rows(job, shard, chunk))
            w->wants[(*n_wants)++].chunk = chunk;
    }
    return 0;
}

/* Read the index in pieces that stay in cache, check its crc, keep the entries in w->wants (which ascend). */
static int
scan_index(const struct job *job, struct worker *w, int fd, uint64_t shard_nbytes, size_t n_wants)
{
    uint64_t n_chunks = job->grid[0] * job->grid[1] * job->grid[2], nbytes = 16 * n_chunks;
    uint32_t crc = 0;
    uint8_t stored[4];
    size_t next = 0;

    if (shard_nbytes < nbytes + 4)
        return EBADMSG;
    uint64_t at = shard_nbytes - nbytes - 4;
    int failure = grow(&w->index, &w->index_capacity, SCAN_NBYTES);

    for (uint64_t done = 0; done < nbytes && !failure; done += SCAN_NBYTES) {
        size_t n = (size_t)min64(SCAN_NBYTES, nbytes - done);

        failure = read_exactly(fd, w->index, n, at + done);
        if (failure)
            return failure;
        crc = crc32c(crc, w->index, n);
        for (; next < n_wants && 16 * w->wants[next].chunk < done + n; next++) {
            struct want *want = &w->wants[next];

            memcpy(&want->offset, w->index + (16 * want->chunk - done), 8);
            memcpy(&want->nbytes, w->index + (16 * want->chunk - done) + 8, 8);
            if (want->nbytes > shard_nbytes || want->offset > shard_nbytes - want->nbytes)
                return EBADMSG; /* absent ones too: the data of this benchmark has none */
        }
    }
    if (failure || (failure = read_exactly(fd, stored, 4, at + nbytes)))
        return failure;
    return load32(stored) == crc ? 0 : EBADMSG;
}

static int
by_offset(const void *a, const void *b)
{
    uint64_t x = ((const struct want *)a)->offset, y = ((const struct want *)b)->offset;

    return (x > y) - (x < y);
}

static int
serve(const struct job *job, struct worker *w, const uint64_t *shard, const struct want *want, const uint8_t *src)
{
    const uint8_t *decoded;
    uint64_t origin[3];
    int failure = decode(job, w, src, want->nbytes, &decoded);

    if (failure)
        return failure;
    chunk_origin(job, shard, want->chunk, origin);
    (job->plan->n_rows ? scatter_rows : scatter)(job->plan, origin, decoded);
    return 0;
}

/* Read wants in file order, several with one call when they lie close together. */
static int
serve_wants(const struct job *job, struct worker *w, int fd, const uint64_t *shard, size_t n_wants)
{
    struct want *wants = w->wants;
    bool ascending = true;
    int failure = 0;

    for (size_t i = 1; i < n_wants; i++)
        ascending &= wants[i - 1].offset <= wants[i].offset;
    if (!ascending)
        qsort(wants, n_wants, sizeof *wants, by_offset);
    for (size_t i = 0; i < n_wants && !failure;) {
        uint64_t begin = wants[i].offset, end = begin + wants[i].nbytes;
        size_t last = i + 1;

        for (; last < n_wants && wants[last].offset <= end + GAP_NBYTES; last++) {
            uint64_t further = max64(end, wants[last].offset + wants[last].nbytes);

            if (further - begin > GROUP_NBYTES)
                break;
            end = further;
        }
        failure = grow(&w->io, &w->io_capacity, max64(GROUP_NBYTES, end - begin));
        if (!failure)
            failure = read_exactly(fd, w->io, end - begin, begin);
        for (; i < last && !failure; i++)
            failure = serve(job, w, shard, &wants[i], w->io + (wants[i].offset - begin));
    }
    return failure;
}

static int
read_task(const struct job *job, struct worker *w, uint64_t task)
{
    uint64_t shard = task / job->n_parts, origin[3];
    char path[4096];
    struct stat info;
    size_t n_wants = 0;

    shard_path(job, shard, path, sizeof path);
    shard_origin(job, shard, origin);
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0 || fstat(fd, &info))
        return errno;
    int failure = list_wants(job, w, origin, task % job->n_parts, &n_wants);

    if (!failure)
        failure = scan_index(job, w, fd, (uint64_t)info.st_size, n_wants);
    if (!failure)
        failure = serve_wants(job, w, fd, origin, n_wants);
    close(fd);
    return failure;
}

/* ---- writing */

static bool
is_fill(const uint8_t *p, size_t n)
{
    return p[0] == 0 && memcmp(p, p + 1, n - 1) == 0; /* the fill value of every data set is 0 */
}

static int
write_chunks(const struct job *job, struct worker *w, const uint64_t *shard, int fd, uint64_t *offset)
{
    uint64_t n_chunks = job->grid[0] * job->grid[1] * job->grid[2], origin[3];
    size_t used = 0;
    int failure = 0;

    for (uint64_t c = 0; c < n_chunks && !failure; c++) {
        bool raw = job->plan->codec == RAW;
        uint8_t *chunk = raw ? w->io + used : w->chunk;
        uint64_t entry[2] = { UINT64_MAX, UINT64_MAX };

        chunk_origin(job, shard, c, origin);
        gather(job->plan, origin, chunk);
        if (!is_fill(chunk, job->chunk_nbytes)) {
            entry[0] = *offset;
            entry[1] = raw ? job->chunk_nbytes : encode(job, w, w->io + used);
            if (entry[1] == 0)
                return EIO;
            used += entry[1];
            *offset += entry[1];
        }
        memcpy(w->index + 16 * c, entry, 16);
        if (used >= FLUSH_NBYTES || c + 1 == n_chunks) {
            failure = write_exactly(fd, w->io, used);
            used = 0;
        }
    }
    return failure;
}

static void
make_folders(char *path, size_t from)
{
    for (char *slash = strchr(path + from + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0777);
        *slash = '/';
    }
}

static int
write_task(const struct job *job, struct worker *w, uint64_t task)
{
    uint64_t nbytes = 16 * job->grid[0] * job->grid[1] * job->grid[2], offset = 0, origin[3];
    char path[4096], temporary[4110];

    shard_path(job, task, path, sizeof path);
    shard_origin(job, task, origin);
    make_folders(path, strlen(job->plan->root));
    snprintf(temporary, sizeof temporary, "%s.partial", path);
    int failure = grow(&w->io, &w->io_capacity, FLUSH_NBYTES + encoded_bound(job->chunk_nbytes));

    if (!failure)
        failure = grow(&w->index, &w->index_capacity, nbytes + 4);
    if (failure)
        return failure;
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);

    if (fd < 0)
        return errno;
    failure = write_chunks(job, w, origin, fd, &offset);
    if (!failure) {
        store32(w->index + nbytes, crc32c(0, w->index, nbytes));
        failure = write_exactly(fd, w->index, nbytes + 4);
    }
    close(fd);
    if (!failure && rename(temporary, path))
        failure = errno;
    return failure;
}

/* ---- threads */

static void *
work(void *argument)
{
    struct job *job = argument;
    const struct floor_plan *plan = job->plan;
    bool reading = job->run == read_task;
    struct worker w = { 0 };
    size_t n = (job->chunk_nbytes + 127) & ~(size_t)63;
    int failure = 0;
    uint64_t task;

    w.chunk = aligned_alloc(64, n);
    w.stage = aligned_alloc(64, n);
    if (plan->codec == ZSTD)
        w.zstd = reading ? ZSTD_createDCtx() : ZSTD_createCCtx();
    if (!w.chunk || !w.stage || (plan->codec == ZSTD && !w.zstd))
        failure = ENOMEM;
    while (!failure && (task = atomic_fetch_add(&job->next, 1)) < job->n_tasks)
        failure = job->run(job, &w, task);
    if (failure)
        atomic_store(&job->failure, failure);
    if (plan->codec == ZSTD && w.zstd)
        (reading ? ZSTD_freeDCtx : ZSTD_freeCCtx)(w.zstd);
    if (w.gzip_ready)
        (reading ? zng_inflateEnd : zng_deflateEnd)(&w.gzip);
    free(w.chunk);
    free(w.stage);
    free(w.io);
    free(w.index);
    free(w.wants);
    return NULL;
}

/* Returns 0, or the errno of a task that failed. */
static int
run(struct job *job, int n_threads)
{
    pthread_t helpers[64];
    int n = 0;

    while (n < n_threads - 1 && n < 64 && (uint64_t)n + 1 < job->n_tasks)
        if (pthread_create(&helpers[n++], NULL, work, job))
            return EAGAIN;
    work(job);
    while (n)
        pthread_join(helpers[--n], NULL);
    return atomic_load(&job->failure);
}

static void
prepare(struct job *job, const struct floor_plan *plan)
{
    job->plan = plan;
    job->chunk_nbytes = plan->itemsize;
    for (int a = 0; a < 3; a++) {
        job->grid[a] = plan->shard[a] / plan->inner[a];
        job->chunk_nbytes *= plan->inner[a];
    }
}

#define EXPORT __attribute__((visibility("default")))

/* Read the box into plan->data, which need not be initialised. */
EXPORT int floor_read(const struct floor_plan *plan);
int
floor_read(const struct floor_plan *plan)
{
    struct job job = { .run = read_task };
    uint64_t touched = 1;

    prepare(&job, plan);
    for (int a = 0; a < 3; a++) {
        uint64_t last = plan->start[a] + plan->count[a] - 1;

        job.first[a] = plan->start[a] / plan->shard[a];
        job.n_shards[a] = last / plan->shard[a] - job.first[a] + 1;
        touched *= last / plan->inner[a] - plan->start[a] / plan->inner[a] + 1;
    }
    uint64_t n_shards = job.n_shards[0] * job.n_shards[1] * job.n_shards[2];

    /* A part scans the index again, so parts are worth it where inner chunks are large; a thread costs some 30 us. */
    job.n_parts = touched * job.chunk_nbytes < (128 << 10) ? 1 : job.chunk_nbytes >= 4096 ? 4 : 1;
    job.n_tasks = n_shards * job.n_parts;
    return run(&job, touched * job.chunk_nbytes < (128 << 10) ? 1 : plan->n_threads);
}

/* Write the whole array: every shard new. */
EXPORT int floor_write(const struct floor_plan *plan);
int
floor_write(const struct floor_plan *plan)
{
    struct job job = { .run = write_task, .n_parts = 1 };

    prepare(&job, plan);
    for (int a = 0; a < 3; a++)
        job.n_shards[a] = plan->array[a] / plan->shard[a];
    job.n_tasks = job.n_shards[0] * job.n_shards[1] * job.n_shards[2];
    return run(&job, plan->n_threads);
}
