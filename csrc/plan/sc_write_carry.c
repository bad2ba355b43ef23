/* sc_write_carry.c - copy what a new object keeps of the old one (see sc_engine.h)
 *
 * Inner chunks that are given encoded may take the slots of old ones, among the bytes that are copied. They are written
 * together with these. The other ones, which have no place yet, are left to the batches of the object:
 *
 *      old       [ kept ][ slot ][ kept ][slot][ kept ]
 *      given             [ new ]         [new ]                      of that very size
 *
 * A write call takes as long as copying some KiB. So if there are many slots, old and new bytes are joined in memory
 * and written together.
 *
 * SPDX-License-Identifier: MIT */
#include "plan/sc_write_impl.h"

#include "base/sc_radix.h"

#define PIECE_NBYTES ((size_t)1 << 18)
/* A copy through memory takes a tenth longer. But with more than one slot in this many bytes, one write for each
 * slot takes longer still. */
#define DENSE_NBYTES ((uint64_t)1 << 15)

/* A new inner chunk in its slot of the new object. */
struct patch {
    uint64_t offset, nbytes, bytes; /* the last is an address */
};

static const uint8_t *
bytes_of(const struct patch *patch)
{
    return (const uint8_t *)(uintptr_t)patch->bytes;
}

/* True if this inner chunk has a slot among the bytes of this run. */
static bool
has_slot(const struct sc_write_object *object, const struct sc_carry *run, const struct sc_encoded *chunk)
{
    const struct sc_entry *e = &object->entries[chunk->position];

    return chunk->nbytes && !sc_entry_is_absent(*e) && e->nbytes == chunk->nbytes && e->nbytes <= run->nbytes &&
           e->offset >= run->to && e->offset - run->to <= run->nbytes - e->nbytes;
}

/* Divide the given inner chunks: those with slots in a run become patches, ascending; the others are left to the
 * batches. */
static enum sc_status
part_given(struct sc_writer *writer, struct sc_write_object *object, const struct sc_carry *run,
           struct sc_buffer *memory, size_t *n_patches)
{
    const struct sc_write_item *item = object->item;
    size_t n = 0, n_rest = 0;
    struct sc_encoded *rest;
    struct patch *patches;
    enum sc_status status;

    *n_patches = 0;
    for (size_t i = 0; i < item->n_encoded; i++)
        n += has_slot(object, run, &item->encoded[i]);
    if (!n)
        return SC_OK;
    status = sc_buffer_reserve(memory, n * sizeof *patches);
    if (!status)
        status = sc_buffer_reserve(&object->given_memory, (item->n_encoded - n + 1) * sizeof *rest);
    if (status)
        return status;
    patches = (struct patch *)(void *)memory->data;
    rest = (struct sc_encoded *)(void *)object->given_memory.data;
    n = 0;
    for (size_t i = 0; i < item->n_encoded; i++) {
        const struct sc_encoded *chunk = &item->encoded[i];

        if (has_slot(object, run, chunk))
            patches[n++] = (struct patch){ object->entries[chunk->position].offset, chunk->nbytes,
                                           (uint64_t)(uintptr_t)chunk->bytes };
        else
            rest[n_rest++] = *chunk;
        if (SC_CHECKS && has_slot(object, run, chunk))
            sc_write_check_note(object, chunk->position, chunk->bytes, chunk->nbytes);
    }
    object->given = rest;
    object->n_given = n_rest;
    *n_patches = n;
    return sc_radix_sort((uint64_t *)(void *)patches, n, sizeof *patches / 8, 0, writer->seat.io);
}

/* Lay patches over bytes that are written to `at`. *next becomes the first patch that is not finished. */
static void
lay_over(uint8_t *piece, uint64_t at, size_t n, const struct patch *patches, size_t n_patches, size_t *next)
{
    for (; *next < n_patches && patches[*next].offset < at + n; (*next)++) {
        const struct patch *patch = &patches[*next];
        uint64_t first = max_u64(patch->offset, at), end = min_u64(patch->offset + patch->nbytes, at + n);

        if (first < end)
            memcpy(piece + (first - at), bytes_of(patch) + (first - patch->offset), (size_t)(end - first));
        if (patch->offset + patch->nbytes > at + n)
            return;
    }
}

static enum sc_status
copy_through_memory(struct sc_writer *writer, struct sc_write_object *object, const struct sc_carry *run,
                    const struct patch *patches, size_t n_patches)
{
    struct sc_buffer *io = writer->seat.io;
    enum sc_status status = sc_buffer_reserve(io, PIECE_NBYTES);
    size_t next = 0;

    for (uint64_t done = 0; !status && done < run->nbytes;) {
        size_t n = (size_t)min_u64(run->nbytes - done, PIECE_NBYTES);

        status = sc_file_read_exactly(object->old_fd, io->data, n, run->from + done, &writer->where);
        if (status)
            break;
        lay_over(io->data, run->to + done, n, patches, n_patches, &next);
        status = sc_file_write(object->file.fd, object->file.path, io->data, n, run->to + done, &writer->where);
        done += n;
    }
    return status;
}

#define SMALL_NBYTES ((uint64_t)1 << 16)

static enum sc_status
copy_run(struct sc_writer *writer, struct sc_write_object *object, const struct sc_carry *run,
         const struct patch *patches, size_t n_patches)
{
    uint64_t cloned = 0;
    enum sc_status status;

    writer->stats.bytes_written += run->nbytes;
    /* a copy in the server is a request, the bytes around it are another one, and so is the state of the file between them */
    if (object->file.guarded && run->nbytes <= SMALL_NBYTES)
        return copy_through_memory(writer, object, run, patches, n_patches);
    if (n_patches > run->nbytes / DENSE_NBYTES) {
        cloned = sc_file_clone(object->file.fd, object->file.path, object->old_fd, run->from, run->nbytes, run->to);
        if (!cloned)
            return copy_through_memory(writer, object, run, patches, n_patches);
    }
    status = sc_file_copy(object->file.fd, object->file.path, object->old_fd, run->from + cloned, run->nbytes - cloned,
                          run->to + cloned, &writer->where);
    for (size_t i = 0; !status && i < n_patches; i++)
        status =
            sc_write_object_put(writer, object, bytes_of(&patches[i]), (size_t)patches[i].nbytes, patches[i].offset);
    return status;
}

/* The run in which slots are searched: all inner chunks that keep their place are in one run. */
static const struct sc_carry *
largest(const struct sc_write_item *item)
{
    const struct sc_carry *found = &item->carries[0];

    for (size_t i = 1; i < item->n_carries; i++)
        if (item->carries[i].nbytes > found->nbytes)
            found = &item->carries[i];
    return found;
}

static enum sc_status
carry_in_files(struct sc_writer *writer, struct sc_write_object *object)
{
    const struct sc_write_item *item = object->item;
    const struct sc_carry *body = largest(item);
    struct sc_buffer memory = { 0 };
    size_t n_patches = 0;
    enum sc_status status = sc_write_file_begin(writer, object);

    if (!status && item->encoded)
        status = part_given(writer, object, body, &memory, &n_patches);
    for (size_t i = 0; !status && i < item->n_carries; i++) {
        const struct sc_carry *run = &item->carries[i];

        status =
            copy_run(writer, object, run, (const struct patch *)(const void *)memory.data, run == body ? n_patches : 0);
    }
    sc_buffer_free(&memory);
    return status;
}

enum sc_status
sc_write_object_carry(struct sc_writer *writer, struct sc_write_object *object)
{
    const struct sc_write_item *item = object->item;
    enum sc_status status = SC_OK;

    if (item->n_carries && item->path && object->old_fd >= 0)
        return carry_in_files(writer, object);
    if (item->onto_old) {
        for (size_t i = 0; i < item->n_carries; i++)
            writer->stats.bytes_written += item->carries[i].nbytes;
        return SC_OK;
    }
    /* Allocate once, with room for the new chunks: growing later would copy everything. Unused memory is never
     * touched. */
    if (item->n_carries && !item->path && item->data_offset < PTRDIFF_MAX / 2)
        status = sc_buffer_reserve(&object->result, (size_t)(item->data_offset + item->data_offset / 2));
    for (size_t i = 0; !status && i < item->n_carries; i++) {
        const struct sc_carry *run = &item->carries[i];

        status = sc_write_object_put(writer, object, item->old.data + run->from, (size_t)run->nbytes, run->to);
    }
    return status;
}

void
sc_write_object_pack_old(struct sc_write_object *object)
{
    const struct sc_write_item *item = object->item;

    for (size_t i = 0; i < item->n_carries; i++) {
        const struct sc_carry *run = &item->carries[i];

        if (run->to != run->from)
            memmove(old_memory(item) + run->to, item->old.data + run->from, (size_t)run->nbytes);
    }
}
