/* sc_read_disk.c - an object whose encoded bytes are in a file of the cache on a local disk (option `cache_dir`)
 *
 * shardcodec/storage/disk_cache.py writes these files, and describes them. A file has the bytes of some inner chunks, each at its
 * offset in the object, behind the head, and for each of them a slot with its checksum, which was written after the bytes.
 * Only what has a slot is read here, and only bytes that agree with it are decoded. What is not there is missing: the caller
 * requests it from the store. The state of the object is not compared, so only reads of immutable objects may use the file.
 *
 * What has been compared is not compared again until the file changes. The notes of the cached index have, for each inner chunk, the
 * time of the last change of the file when its bytes agreed. So the second read of a part of an uncompressed chunk reads no more than
 * from any other local file.
 *
 * SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L

#include <sys/stat.h>
#include <time.h>

#include "kernels/sc_crc32c.h"
#include "kernels/sc_index.h"
#include "plan/sc_read_impl.h"

#define HEAD_NBYTES ((uint64_t)512)
#define NAME_NBYTES ((size_t)32)
#define SLOT_NBYTES ((uint64_t)8)
#define MARK 0x5ca1ab1eu

/* All slots are read with the head. The caller reads objects that have more. */
#define MAX_CHUNKS ((uint64_t)8192)

/* A file is used more often than its time of last use is written. */
#define TOUCH_NS ((int64_t)60 * 1000 * 1000 * 1000)

static uint64_t
n_chunks_of(const struct sc_read_object *object)
{
    return sc_chain_is_shard(chain_of(object)) ? chain_of(object)->n_chunks : 1;
}

static bool
has_slot(const struct sc_read_object *object, uint64_t entry)
{
    const uint8_t *slot = object->slots + SLOT_NBYTES * entry;

    return (load_le32(slot) ^ MARK) == load_le32(slot + 4);
}

static bool
is_right(const struct sc_read_object *object, uint64_t entry, const uint8_t *bytes, uint64_t n)
{
    return has_slot(object, entry) &&
           sc_crc32c_turned(bytes, (size_t)n) == load_le32(object->slots + SLOT_NBYTES * entry);
}

/* True if the name in the head is that of the file, which has it in hexadecimal digits. */
static bool
is_of_file(const uint8_t *name, const char *path)
{
    static const char suffix[] = ".cached", digits[] = "0123456789abcdef";
    size_t n = strlen(path), n_name = 2 * NAME_NBYTES + sizeof suffix - 1;
    const char *at = path + (n < n_name ? n : n - n_name);

    if (n < n_name || strcmp(at + 2 * NAME_NBYTES, suffix) != 0)
        return false;
    for (size_t i = 0; i < NAME_NBYTES; i++) {
        if (at[2 * i] != digits[name[i] >> 4] || at[2 * i + 1] != digits[name[i] & 15])
            return false;
    }
    return true;
}

static bool
is_head(const uint8_t *head, uint64_t n_slots, const char *path)
{
    return memcmp(head, "shardcd3", 8) == 0 && load_le64(head + 16) == n_slots && is_of_file(head + 40, path) &&
           sc_crc32c_extend(0, head + 12, HEAD_NBYTES - 12) == load_le32(head + 8);
}

/* The files that were used longest ago are evicted first. The time of their last change stays, because what was compared depends on it. */
static void
touch(const struct sc_input *input)
{
    const struct timespec times[2] = { { .tv_nsec = UTIME_NOW }, { .tv_nsec = UTIME_OMIT } };
    const struct sc_file_id *id = &input->file.id;
    int64_t used_ns = id->atime_ns > id->mtime_ns ? id->atime_ns : id->mtime_ns;

    if (used_ns < id->seen_ns - TOUCH_NS || used_ns > id->seen_ns + TOUCH_NS)
        (void)futimens(input->fd, times); /* on a file system that is read-only nothing is evicted */
}

enum sc_status
sc_read_disk_open(struct sc_reader *reader, struct sc_read_object *object)
{
    struct sc_input *input = &object->input;
    uint64_t n = n_chunks_of(object), n_head;
    enum sc_status status;
    size_t got = 0;

    object->slots = NULL;
    object->lacks = false;
    if (SC_LIKELY(!object->item->source.is_on_disk) || input->missing)
        return SC_OK;
    input->missing = true;
    if (n > MAX_CHUNKS)
        return SC_OK;
    n_head = HEAD_NBYTES + SLOT_NBYTES * (n + 1);
    status = sc_buffer_reserve(&object->slots_memory, (size_t)n_head);
    if (!status)
        status = sc_file_read(input->fd, object->slots_memory.data, (size_t)n_head, 0, &got, &reader->where);
    if (status || got < n_head || !is_head(object->slots_memory.data, n + 1, object->item->source.path))
        return status;
    input->nbytes = load_le64(object->slots_memory.data + 24);
    if (input->nbytes > SC_UNKNOWN_NBYTES)
        return SC_OK;
    input->missing = false;
    object->slots = object->slots_memory.data + HEAD_NBYTES;
    input->base = n_head + sizeof(struct sc_entry) * n;
    touch(input);
    input->file.id.ctime_ns = input->file.id.mtime_ns; /* a use changes it, too */
    object->changed_ns = 0;
    if (input->cache && sc_cache_is_stable(input->cache, &input->file.id))
        object->changed_ns = (uint64_t)input->file.id.mtime_ns;
    /* More bytes come into the file, but its index never changes. A file that replaces it, also in the same inode, has another
     * token. */
    input->file.id.nbytes = load_le64(object->slots_memory.data + 72);
    input->file.id.mtime_ns = input->file.id.ctime_ns = 0;
    return SC_OK;
}

/* Read the index from the file, which has it in C order. */
static enum sc_status
read_index(struct sc_reader *reader, struct sc_read_object *object, struct sc_cached_index **index)
{
    const struct sc_chain *shard = chain_of(object);
    uint64_t n = shard->n_chunks, nbytes = sizeof(struct sc_entry) * n, at = HEAD_NBYTES + SLOT_NBYTES * (n + 1);
    struct sc_cached_index *made = sc_cached_index_new(shard, n);
    enum sc_status status = made ? sc_buffer_reserve(&object->index, (size_t)nbytes) : SC_NO_MEMORY;

    if (!status)
        status = sc_file_read_exactly(object->input.fd, object->index.data, (size_t)nbytes, at, &reader->where);
    if (!status && !is_right(object, n, object->index.data, nbytes))
        status = SC_CHANGED;
    if (status) {
        sc_cached_index_release(made);
        return status;
    }
    sc_index_decode(object->index.data, made->entries, (size_t)n, false);
    *index = made;
    return SC_OK;
}

enum sc_status
sc_read_disk_find_index(struct sc_reader *reader, struct sc_read_object *object)
{
    const struct sc_chain *shard = chain_of(object);
    struct sc_input *input = &object->input;
    struct sc_cache *cache = reader->run->plan->cache;
    enum sc_cache_answer answer = SC_CACHE_PASS;
    enum sc_status status = sc_index_locate(&shard->index, input->nbytes, &input->extent, &reader->where);

    if (!status && cache)
        answer = sc_cache_get(cache, object->item->source.path, &input->file.id, shard, reader->run->plan->cancel,
                              &input->index);
    if (status || answer == SC_CACHE_HIT)
        return status;
    status = read_index(reader, object, &input->index);
    if (answer == SC_CACHE_LOAD)
        sc_cache_loaded(cache, object->item->source.path, &input->file.id, shard, input->index); /* on failure NULL */
    return status;
}

bool
sc_read_disk_was_compared(const struct sc_read_object *object, uint64_t entry)
{
    const struct sc_cached_index *index = object->input.index;

    return index && object->changed_ns && index->notes[entry] == object->changed_ns;
}

void
sc_read_disk_note(struct sc_read_object *object, uint64_t entry)
{
    object->lacks = object->lacks || !has_slot(object, entry);
}

void
sc_read_disk_end_plan(struct sc_read_object *object)
{
    if (!object->lacks)
        return;
    object->n_tasks = object->n_kept = object->n_absent = object->n_parts = 0;
    object->item->missing = true;
}

enum sc_status
sc_read_disk_check(struct sc_reader *reader, const struct sc_read_object *object, const struct sc_read_task *t,
                   const uint8_t *bytes)
{
    if (!is_narrow(chunk_of(object), t) && !sc_read_disk_was_compared(object, t->entry)) {
        if (!is_right(object, t->entry, bytes, t->nbytes)) {
            reader->where.entry = t->entry;
            return SC_CHANGED;
        }
        if (object->input.index && object->changed_ns)
            object->input.index->notes[t->entry] = object->changed_ns;
    }
    reader->stats.disk_hits++;
    reader->stats.disk_bytes_read += t->nbytes;
    return SC_OK;
}
