/* sc_write_bench.c - the inner chunks of one object: encoded by several threads, placed in their order (see sc_engine.h)
 *
 * A *bench* is one thread's object in the making. Its inner chunks are encoded in *units* of about unit_nbytes, each into
 * memory of its own, by whichever thread is free; a unit's place in the file is known once all units before it are
 * encoded, so the file has the chosen order however many threads took part:
 *
 *     encoded   [0][1]   [3]         unit 2 is still at work; 3 waits in the window; nobody waits for it
 *     placed    [0][1]               when 2 is done, its thread places and writes 2 and 3
 *
 * The window bounds how far the encoding may run ahead, and so the memory. A thread prefers to begin a file of its own:
 * writes to one file are serialised by the kernel.
 *
 * SPDX-License-Identifier: MIT */
#include "plan/sc_write_impl.h"

bool
sc_bench_stopped(const struct run *run, const struct bench *bench)
{
    return sc_failure_before(&run->failure, bench->item_no) || sc_cancelled(run->plan->cancel);
}

/* ---- where bytes go ---- */

enum sc_status
sc_bench_begin_file(struct writer *writer, struct bench *bench)
{
    enum sc_status status = SC_OK;

    pthread_mutex_lock(&bench->mutex);
    if (bench->file.fd < 0)
        status = sc_newfile_begin(&bench->file, bench->item->path, writer->run->plan->staging, &writer->where);
    pthread_mutex_unlock(&bench->mutex);
    return status;
}

enum sc_status
sc_bench_put(struct writer *writer, struct bench *bench, const uint8_t *src, size_t n, uint64_t offset)
{
    writer->stats.bytes_written += n;
    if (!in_memory(bench)) {
        enum sc_status status = sc_bench_begin_file(writer, bench);

        return status ? status : sc_file_write(bench->file.fd, bench->file.path, src, n, offset, &writer->where);
    }

    if (bench->item->in_place && offset < bench->item->data_offset)
        return sc_slots_add(&bench->slots, src, n, offset);
    if (bench->item->onto_old && offset < bench->item->data_offset) { /* the index, or slots and what follows */
        size_t head = (size_t)min_u64(n, bench->item->data_offset - offset);

        memcpy(old_memory(bench->item) + offset, src, head);
        if (head == n)
            return SC_OK;
        src += head;
        offset += head;
        n -= head;
    }
    if (is_tail(bench->item))
        offset -= bench->item->data_offset;
    if (offset > PTRDIFF_MAX - n)
        return SC_NO_MEMORY;
    if (offset + n > bench->result.capacity) {
        uint64_t want = max_u64(offset + n, bench->result.capacity + bench->result.capacity / 2);
        enum sc_status status = sc_buffer_grow(&bench->result, (size_t)bench->item->result_nbytes, (size_t)want);

        if (status)
            return status;
    }
    if (offset > bench->item->result_nbytes) /* an object shows no memory of ours */
        memset(bench->result.data + bench->item->result_nbytes, 0, (size_t)(offset - bench->item->result_nbytes));
    memcpy(bench->result.data + offset, src, n);
    bench->item->result_nbytes = max_u64(bench->item->result_nbytes, offset + n);
    return SC_OK;
}

/* ---- one shard, shared by threads ---- */

/* As many of the given encoded chunks as make a unit, counted in bytes. */
static void
claim_encoded(struct bench *bench, struct unit *unit)
{
    uint64_t nbytes = 0;

    unit->first = bench->next_given;
    while (unit->n < bench->unit_chunks && bench->next_given < bench->n_given) {
        const struct sc_encoded *chunk = &bench->given[bench->next_given];

        if (unit->n && nbytes + chunk->nbytes > bench->unit_nbytes)
            break;
        nbytes += chunk->nbytes;
        unit->positions[unit->n++] = chunk->position;
        bench->next_given++;
    }
    bench->all_claimed = bench->next_given == bench->n_given;
}

/* Does the box or pick have an element in this inner chunk of the range that is walked? */
static bool
is_touched(const struct bench *bench, uint64_t position)
{
    const struct sc_chain *shard = bench->item->chain;
    uint64_t c[SC_MAX_NDIM];
    struct sc_box part;
    int64_t offset;

    if (bench->item->pick)
        return sc_touches_have(&bench->touches, position);
    if (!bench->walk.leaps)
        return true;
    sc_walk_coordinates(shard, position, c);
    return sc_walk_cut(&bench->walk, shard->inner, c, &part, &offset);
}

/* Under the bench's mutex: the positions of the next unit; n = 0 when none is left. Chunks that a step leaps over are dropped. */
static void
claim(struct bench *bench, struct unit *unit)
{
    unit->n = 0;
    if (bench->item->encoded)
        claim_encoded(bench, unit);
    while (!unit->n && !bench->all_claimed) {
        size_t got = sc_order_next(&bench->order, unit->positions, bench->unit_chunks);

        bench->all_claimed = got == 0;
        for (size_t i = 0; i < got; i++)
            if (is_touched(bench, unit->positions[i]))
                unit->positions[unit->n++] = unit->positions[i];
    }
    unit->number = bench->n_claimed;
    bench->n_claimed += unit->n > 0;
}

/* May a new chunk take the old one's place? Whoever reads with an old index gets bytes of the size that is written there; of
 * another size they may only be if a checksum tells. */
static bool
fits_slot(const struct sc_write_item *item, uint64_t slot_nbytes, uint64_t nbytes)
{
    if (item->in_place && sc_chain_is_checked(item->chain->inner))
        return nbytes <= slot_nbytes;
    return nbytes == slot_nbytes;
}

/* Under the bench's mutex: give every unit that can have one its place; the list of them is for the caller to write. */
static struct unit *
place(struct bench *bench)
{
    struct unit *first = NULL, **link = &first, *unit;

    while ((unit = bench->window[bench->n_placed % WINDOW])) {
        uint64_t at = bench->at, end = bench->item->in_place ? bench->item->old.nbytes : UINT64_MAX;

        bench->window[bench->n_placed % WINDOW] = NULL;
        bench->n_placed++;
        for (size_t i = 0; i < unit->n; i++) {
            struct sc_entry *e = &bench->entries[unit->positions[i]];

            if (unit->sizes[i] == SC_ABSENT) {
                *e = (struct sc_entry){ SC_ABSENT, SC_ABSENT };
                continue;
            }
            if (sc_entry_is_absent(*e) || !fits_slot(bench->item, e->nbytes, unit->sizes[i])) {
                /* what has no bytes is anywhere, but inside the shard, which may not grow to `at` */
                if (unit->sizes[i] && bench->item->alignment)
                    at = (at + bench->item->alignment - 1) / bench->item->alignment * bench->item->alignment;
                *e = (struct sc_entry){ unit->sizes[i] ? at : min_u64(at, end), unit->sizes[i] };
                at += unit->sizes[i];
            } /* else it has a slot of its own already */
            e->nbytes = unit->sizes[i];
        }
        bench->at = at;
        *link = unit;
        unit->next = NULL;
        link = &unit->next;
    }
    return first;
}

static void
note_failure(struct writer *writer, struct bench *bench, enum sc_status status)
{
    sc_failure_note(&writer->run->failure, status, &writer->where, bench->item_no);
    pthread_mutex_lock(&bench->mutex);
    bench->failed = true;
    pthread_cond_broadcast(&bench->changed);
    pthread_mutex_unlock(&bench->mutex);
}

/* Write the chunks of a placed unit, those that go side by side at once. */
static enum sc_status
write_unit(struct writer *writer, struct bench *bench, const struct unit *unit)
{
    const uint8_t *bytes = unit->bytes.data;
    uint64_t offset = 0;
    size_t n = 0;
    enum sc_status status = SC_OK;

    for (size_t i = 0; !status && i < unit->n; i++) {
        uint64_t to = bench->entries[unit->positions[i]].offset;

        if (unit->sizes[i] == SC_ABSENT || !unit->sizes[i])
            continue;
        if (n && to != offset + n) {
            status = sc_bench_put(writer, bench, bytes, n, offset);
            bytes += n;
            n = 0;
        }
        if (!n)
            offset = to;
        n += (size_t)unit->sizes[i];
    }
    return status || !n ? status : sc_bench_put(writer, bench, bytes, n, offset);
}

/* Write placed units. A result in memory may move when it grows, so that is done under the mutex. */
static void
write_units(struct writer *writer, struct bench *bench, struct unit *units)
{
    while (units) {
        struct unit *next = units->next;
        bool memory = in_memory(bench);
        enum sc_status status;

        if (memory)
            pthread_mutex_lock(&bench->mutex);
        status = write_unit(writer, bench, units);
        if (memory)
            pthread_mutex_unlock(&bench->mutex);
        if (status)
            note_failure(writer, bench, status);
        sc_unit_put(writer->run, units);
        units = next;
    }
}

bool
sc_bench_work(struct writer *writer, struct bench *bench)
{
    struct unit *unit = sc_unit_take(writer->run), *placed;

    sc_where_clear(&writer->where);
    if (!unit) {
        note_failure(writer, bench, SC_NO_MEMORY);
        return false;
    }
    pthread_mutex_lock(&bench->mutex);
    while (!bench->all_claimed && !bench->failed && bench->n_claimed - bench->n_placed >= WINDOW)
        pthread_cond_wait(&bench->changed, &bench->mutex);
    unit->n = 0;
    if (!bench->failed)
        claim(bench, unit);
    pthread_mutex_unlock(&bench->mutex);
    if (!unit->n) {
        sc_unit_put(writer->run, unit);
        return false;
    }

    if (sc_bench_stopped(writer->run, bench)) {
        unit->n = unit->used = 0; /* it takes its place all the same, or the others would wait for it */
        note_failure(writer, bench, SC_CANCELLED);
    } else {
        sc_unit_encode(writer, bench, unit);
    }
    pthread_mutex_lock(&bench->mutex);
    bench->window[unit->number % WINDOW] = unit;
    placed = place(bench);
    if (placed)
        pthread_cond_broadcast(&bench->changed);
    pthread_mutex_unlock(&bench->mutex);
    write_units(writer, bench, placed);
    return true;
}
