/* many_reads.c - the ways to have many reads of a file in flight: threads, io_uring, posix_fadvise
 *
 *     cc -O2 -o many_reads bench/many_reads.c -lpthread
 *     ./many_reads FILE NBYTES_OF_A_READ N_READS [cold]
 *
 * Prints the milliseconds of N_READS reads at random places of FILE: one after the other; by 32 threads; by one thread with
 * io_uring, 32 at a time; one after the other, after posix_fadvise(WILLNEED) for all of them. Medians of seven turns,
 * interleaved. With "cold" the file is removed from the page cache before each turn.
 *
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define DEPTH 32
#define TURNS 7

static int fd;
static size_t nbytes, n_reads;
static off_t *places;
static atomic_size_t next;

static void
fail(const char *text)
{
    perror(text);
    exit(1);
}

static void
read_at(size_t i, char *memory)
{
    if (pread(fd, memory, nbytes, places[i]) != (ssize_t)nbytes)
        fail("pread");
}

static char *
memory_for_reads(void)
{
    char *memory = malloc(nbytes);

    if (!memory)
        fail("malloc");
    return memory;
}

static void
one_after_the_other(void)
{
    char *memory = memory_for_reads();

    for (size_t i = 0; i < n_reads; i++)
        read_at(i, memory);
    free(memory);
}

static void *
run_thread(void *arg)
{
    char *memory = memory_for_reads();
    size_t i;

    while ((i = atomic_fetch_add(&next, 1)) < n_reads)
        read_at(i, memory);
    free(memory);
    return arg;
}

static void
by_threads(void)
{
    pthread_t threads[DEPTH];

    atomic_store(&next, 0);
    for (int i = 0; i < DEPTH; i++)
        if (pthread_create(&threads[i], NULL, run_thread, NULL))
            fail("pthread_create");
    for (int i = 0; i < DEPTH; i++)
        pthread_join(threads[i], NULL);
}

static void
advised(void)
{
    for (size_t i = 0; i < n_reads; i++)
        posix_fadvise(fd, places[i], (off_t)nbytes, POSIX_FADV_WILLNEED);
    one_after_the_other();
}

/* ---- io_uring, without a library */

struct ring {
    int fd;
    struct io_uring_params params;
    char *submitted, *completed;
    struct io_uring_sqe *entries;
};

static void
open_ring(struct ring *ring)
{
    struct io_uring_params *p = &ring->params;
    size_t n_submitted, n_completed;

    memset(p, 0, sizeof *p);
    ring->fd = (int)syscall(SYS_io_uring_setup, DEPTH, p);
    if (ring->fd < 0)
        fail("io_uring_setup");
    n_submitted = p->sq_off.array + p->sq_entries * sizeof(uint32_t);
    n_completed = p->cq_off.cqes + p->cq_entries * sizeof(struct io_uring_cqe);
    ring->submitted = mmap(NULL, n_submitted, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, IORING_OFF_SQ_RING);
    ring->completed = mmap(NULL, n_completed, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, IORING_OFF_CQ_RING);
    ring->entries = mmap(NULL, p->sq_entries * sizeof *ring->entries, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd,
                         IORING_OFF_SQES);
    if (ring->submitted == MAP_FAILED || ring->completed == MAP_FAILED || ring->entries == MAP_FAILED)
        fail("mmap");
}

static void
submit(struct ring *ring, size_t i, size_t slot, char *memory)
{
    uint32_t *tail = (uint32_t *)(ring->submitted + ring->params.sq_off.tail);
    uint32_t mask = *(uint32_t *)(ring->submitted + ring->params.sq_off.ring_mask), at = *tail & mask;
    struct io_uring_sqe *entry = &ring->entries[at];

    memset(entry, 0, sizeof *entry);
    entry->opcode = IORING_OP_READ;
    entry->fd = fd;
    entry->addr = (uint64_t)(uintptr_t)(memory + slot * nbytes);
    entry->len = (uint32_t)nbytes;
    entry->off = (uint64_t)places[i];
    entry->user_data = slot;
    ((uint32_t *)(ring->submitted + ring->params.sq_off.array))[at] = at;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
}

static void
by_io_uring(void)
{
    static struct ring ring = { .fd = -1 };
    size_t begun = 0, ended = 0;
    unsigned unsent = 0;
    char *memory = malloc(DEPTH * nbytes);
    uint32_t *head, *tail, mask;
    struct io_uring_cqe *answers;

    if (!memory)
        fail("malloc");
    if (ring.fd < 0)
        open_ring(&ring);
    head = (uint32_t *)(ring.completed + ring.params.cq_off.head);
    tail = (uint32_t *)(ring.completed + ring.params.cq_off.tail);
    mask = *(uint32_t *)(ring.completed + ring.params.cq_off.ring_mask);
    answers = (struct io_uring_cqe *)(void *)(ring.completed + ring.params.cq_off.cqes);
    for (; begun < DEPTH && begun < n_reads; begun++, unsent++)
        submit(&ring, begun, begun, memory);
    while (ended < n_reads) {
        if (syscall(SYS_io_uring_enter, ring.fd, unsent, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0)
            fail("io_uring_enter");
        unsent = 0;
        for (; *head != __atomic_load_n(tail, __ATOMIC_ACQUIRE); ended++) {
            struct io_uring_cqe *answer = &answers[*head & mask];

            if (answer->res != (int)nbytes)
                fail("a read was short");
            if (begun < n_reads) {
                submit(&ring, begun++, (size_t)answer->user_data, memory);
                unsent++;
            }
            __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
        }
    }
    free(memory);
}

/* ---- turns */

static int
compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

int
main(int n, char **arguments)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } ways[] = { { "one after the other", one_after_the_other },
                 { "32 threads", by_threads },
                 { "io_uring", by_io_uring },
                 { "posix_fadvise", advised } };
    enum { N_WAYS = sizeof ways / sizeof *ways };
    double ms[N_WAYS][TURNS];
    struct stat st;

    if (n < 4 || (fd = open(arguments[1], O_RDONLY)) < 0 || fstat(fd, &st)) {
        fprintf(stderr, "usage: many_reads FILE NBYTES_OF_A_READ N_READS [cold]\n");
        return 2;
    }
    nbytes = strtoull(arguments[2], NULL, 10);
    n_reads = strtoull(arguments[3], NULL, 10);
    if (!nbytes || !n_reads || (size_t)st.st_size < nbytes) {
        fprintf(stderr, "%s: expected a file of at least one read, got %lld bytes\n", arguments[1],
                (long long)st.st_size);
        return 2;
    }
    places = malloc(n_reads * sizeof *places);
    if (!places)
        fail("malloc");
    posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM); /* the reads alone decide what is read */
    srand(1);
    for (size_t i = 0; i < n_reads; i++)
        places[i] = (off_t)((size_t)rand() % ((size_t)st.st_size / nbytes) * nbytes);
    for (int turn = 0; turn < TURNS; turn++) {
        for (int i = 0; i < N_WAYS; i++) {
            struct timespec begin, end;

            if (n > 4)
                posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
            clock_gettime(CLOCK_MONOTONIC, &begin);
            ways[i].run();
            clock_gettime(CLOCK_MONOTONIC, &end);
            ms[i][turn] = 1e3 * (double)(end.tv_sec - begin.tv_sec) + 1e-6 * (double)(end.tv_nsec - begin.tv_nsec);
        }
    }
    for (int i = 0; i < N_WAYS; i++) {
        qsort(ms[i], TURNS, sizeof **ms, compare);
        printf("%-20s %8.1f ms\n", ways[i].name, ms[i][TURNS / 2]);
    }
    return 0;
}
