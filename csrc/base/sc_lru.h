/* sc_lru.h - a table of nodes by name, in the order of their last use
 *
 * Intrusive: a node is the first member of the struct that it belongs to. The table takes no lock; a mutex of the
 * caller protects it.
 * SPDX-License-Identifier: MIT */
#ifndef SC_LRU_H
#define SC_LRU_H

#include "base/sc_status.h"

struct sc_lru_node {
    struct sc_lru_node *next;          /* in its bucket */
    struct sc_lru_node *newer, *older; /* by last use */
    uint64_t hash;
    char *name; /* owned */
};

struct sc_lru {
    struct sc_lru_node **buckets; /* a power of two of them; NULL while the table is empty */
    size_t n_buckets, n_nodes;
    struct sc_lru_node *newest, *oldest;
};

/* Return the node of that name and make it the newest; NULL if it is missing. */
struct sc_lru_node *sc_lru_find(struct sc_lru *table, const char *name);

/* Add a node under a name that the table does not have, as the newest. False: no memory, nothing has changed. */
bool sc_lru_add(struct sc_lru *table, struct sc_lru_node *node, const char *name);

/* Remove a node. Its name is freed; the node belongs to the caller again. */
void sc_lru_remove(struct sc_lru *table, struct sc_lru_node *node);

/* Forget every node without touching it (in a forked child, where other threads may have used some), or free the
 * table once it is empty. */
void sc_lru_reset(struct sc_lru *table);

#endif
