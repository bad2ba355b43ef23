/* sc_lru.c - names, buckets and a list (see sc_lru.h)
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "base/sc_lru.h"

#include "base/sc_alloc.h"

#define FIRST_BUCKETS ((size_t)64)

/* FNV-1a: names are paths of the user's own arrays. */
static uint64_t
hash_of(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (; *name; name++)
        hash = (hash ^ (uint8_t)*name) * 0x100000001b3u;
    return hash ^ hash >> 32;
}

static struct sc_lru_node **
bucket_of(const struct sc_lru *table, uint64_t hash)
{
    return &table->buckets[hash & (table->n_buckets - 1)];
}

static void
list_push(struct sc_lru *table, struct sc_lru_node *node)
{
    node->newer = NULL;
    node->older = table->newest;
    if (table->newest)
        table->newest->newer = node;
    else
        table->oldest = node;
    table->newest = node;
}

static void
list_cut(struct sc_lru *table, struct sc_lru_node *node)
{
    *(node->newer ? &node->newer->older : &table->newest) = node->older;
    *(node->older ? &node->older->newer : &table->oldest) = node->newer;
}

struct sc_lru_node *
sc_lru_find(struct sc_lru *table, const char *name)
{
    uint64_t hash = hash_of(name);

    if (!table->n_nodes)
        return NULL;
    for (struct sc_lru_node *node = *bucket_of(table, hash); node; node = node->next) {
        if (node->hash != hash || strcmp(node->name, name) != 0)
            continue;
        if (node != table->newest) {
            list_cut(table, node);
            list_push(table, node);
        }
        return node;
    }
    return NULL;
}

/* Twice the buckets, so that each has about one node. */
static bool
grow(struct sc_lru *table)
{
    struct sc_lru wider = { .n_buckets = table->n_buckets ? 2 * table->n_buckets : FIRST_BUCKETS };

    wider.buckets = sc_calloc(wider.n_buckets, sizeof *wider.buckets);
    if (!wider.buckets)
        return false;
    for (struct sc_lru_node *node = table->newest; node; node = node->older) {
        struct sc_lru_node **bucket = bucket_of(&wider, node->hash);

        node->next = *bucket;
        *bucket = node;
    }
    sc_free(table->buckets);
    table->buckets = wider.buckets;
    table->n_buckets = wider.n_buckets;
    return true;
}

bool
sc_lru_add(struct sc_lru *table, struct sc_lru_node *node, const char *name)
{
    struct sc_lru_node **bucket;

    if (table->n_nodes >= table->n_buckets && !grow(table))
        return false;
    node->name = sc_strdup(name);
    if (!node->name)
        return false;
    node->hash = hash_of(name);
    bucket = bucket_of(table, node->hash);
    node->next = *bucket;
    *bucket = node;
    list_push(table, node);
    table->n_nodes++;
    return true;
}

void
sc_lru_remove(struct sc_lru *table, struct sc_lru_node *node)
{
    struct sc_lru_node **link = bucket_of(table, node->hash);

    while (*link != node)
        link = &(*link)->next;
    *link = node->next;
    list_cut(table, node);
    table->n_nodes--;
    sc_free(node->name);
    node->name = NULL;
}

void
sc_lru_reset(struct sc_lru *table)
{
    sc_free(table->buckets);
    *table = (struct sc_lru){ 0 };
}
