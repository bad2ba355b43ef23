/* standalone.c - runs a libFuzzer target if clang's libFuzzer is not available
 *
 *     fuzz_x [-max_total_time=S] [-max_len=N] [-seed=N] [-artifact_prefix=P] [FOLDER or FILE ...]
 *
 * Each file is run once; this reproduces a finding. Without files, inputs from the folders and empty inputs are mutated
 * until the time is up. There is no coverage feedback, so the targets build valid inputs themselves, and the bytes
 * choose what to damage. If a sanitizer ends the process, the input is written to P followed by "crash".
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
void __sanitizer_set_death_callback(void (*callback)(void));

#define MAX_INPUTS 1024

struct input {
    uint8_t *data;
    size_t size;
};

static struct input corpus[MAX_INPUTS];
static size_t n_corpus;
static struct input current;
static const char *artifact_prefix = "./";
static uint64_t random_state = 1;

/* xorshift64: the same seed gives the same run. */
static uint64_t
random_below(uint64_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return n ? random_state % n : 0;
}

static void
save_current(void)
{
    char path[4096];
    FILE *file;

    snprintf(path, sizeof path, "%scrash", artifact_prefix);
    file = fopen(path, "wb");
    if (!file)
        return;
    fwrite(current.data, 1, current.size, file);
    fclose(file);
    fprintf(stderr, "input of %zu bytes written to %s\n", current.size, path);
}

static void
run(const uint8_t *data, size_t size)
{
    /* A separate block, so that a sanitizer finds a read one byte past the input. */
    current.data = malloc(size ? size : 1);
    if (!current.data)
        exit(2);
    current.size = size;
    if (size)
        memcpy(current.data, data, size);
    LLVMFuzzerTestOneInput(current.data, size);
    free(current.data);
}

static void
load_file(const char *path, struct input *input)
{
    struct stat info;
    FILE *file = fopen(path, "rb");

    if (!file || fstat(fileno(file), &info)) {
        perror(path);
        exit(2);
    }
    input->size = (size_t)info.st_size;
    input->data = malloc(input->size ? input->size : 1);
    if (!input->data || fread(input->data, 1, input->size, file) != input->size) {
        perror(path);
        exit(2);
    }
    fclose(file);
}

static void
load_folder(const char *folder)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;

    if (!dir)
        return;
    while ((entry = readdir(dir)) && n_corpus < MAX_INPUTS) {
        char path[4096];

        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        load_file(path, &corpus[n_corpus++]);
    }
    closedir(dir);
}

/* Return often a number at which code that counts bytes tends to be wrong. */
static uint8_t
interesting_byte(void)
{
    static const uint8_t values[] = { 0, 1, 2, 7, 8, 15, 16, 31, 32, 63, 64, 127, 128, 254, 255 };

    return random_below(2) ? values[random_below(sizeof values)] : (uint8_t)random_below(256);
}

static size_t
mutate(uint8_t *data, size_t size, size_t max_size)
{
    size_t at = random_below(size), n = 1 + random_below(8);

    switch (random_below(6)) {
    case 0: /* grow by random bytes */
        for (; n > 0 && size < max_size; n--)
            data[size++] = interesting_byte();
        return size;
    case 1: /* cut */
        return random_below(size + 1);
    case 2: /* flip a bit */
        if (size)
            data[at] ^= (uint8_t)(1u << random_below(8));
        return size;
    case 3: /* one value for several bytes, as in a number of all ones */
        for (uint8_t value = interesting_byte(); n > 0 && at < size; n--)
            data[at++] = value;
        return size;
    case 4: /* copy one part over another */
        if (size) {
            size_t from = random_below(size);
            size_t longest = size - (from > at ? from : at);

            memmove(data + at, data + from, n < longest ? n : longest);
        }
        return size;
    default:
        if (size)
            data[at] = interesting_byte();
        return size;
    }
}

static void
fuzz(long seconds, size_t max_size)
{
    uint8_t *data = malloc(max_size);
    time_t end = time(NULL) + seconds;
    unsigned long n_runs = 0;

    if (!data)
        exit(2);
    for (; time(NULL) < end; n_runs++) {
        size_t size = 0;

        if (n_corpus && random_below(8)) {
            const struct input *base = &corpus[random_below(n_corpus)];

            size = base->size < max_size ? base->size : max_size;
            memcpy(data, base->data, size);
        } else {
            size_t wanted = random_below(random_below(8) ? 64 : max_size);

            while (size < wanted)
                data[size++] = interesting_byte();
        }
        for (uint64_t n = random_below(8); n > 0; n--)
            size = mutate(data, size, max_size);
        run(data, size);
    }
    printf("%lu inputs in %ld s, from a corpus of %zu\n", n_runs, seconds, n_corpus);
    free(data);
}

static const char *
option(const char *argument, const char *name)
{
    size_t n = strlen(name);

    return strncmp(argument, name, n) == 0 ? argument + n : NULL;
}

int
main(int argc, char **argv)
{
    long seconds = 10;
    size_t max_size = 4096, n_files = 0;
    const char *value;

    __sanitizer_set_death_callback(save_current);
    random_state = (uint64_t)time(NULL) | 1;
    for (int i = 1; i < argc; i++) {
        struct stat info;
        struct input input;

        if ((value = option(argv[i], "-max_total_time=")))
            seconds = strtol(value, NULL, 10);
        else if ((value = option(argv[i], "-max_len=")))
            max_size = strtoul(value, NULL, 10);
        else if ((value = option(argv[i], "-seed=")))
            random_state = strtoull(value, NULL, 10) | 1;
        else if ((value = option(argv[i], "-artifact_prefix=")))
            artifact_prefix = value;
        else if (stat(argv[i], &info) == 0 && S_ISDIR(info.st_mode))
            load_folder(argv[i]);
        else {
            load_file(argv[i], &input);
            run(input.data, input.size);
            n_files++;
        }
    }
    if (n_files == 0)
        fuzz(seconds, max_size ? max_size : 1);
    return 0;
}
