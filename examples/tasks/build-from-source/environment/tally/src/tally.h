/* What the parts of tally share. */
#ifndef TALLY_H
#define TALLY_H

#include <stddef.h>
#include <stdio.h>

/* A line and how often it was seen. */
struct entry {
    char *line;
    unsigned long count;
};

/* Entries by the hash of their line; a slot whose line is NULL is free. */
struct table {
    struct entry *slots;
    size_t size; /* a power of two */
    size_t used;
};

void table_init(struct table *table);
void table_add(struct table *table, const char *line);
struct entry *table_sorted(struct table *table);

void *xalloc(size_t count, size_t size);

#endif
