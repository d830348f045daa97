/* A table of lines, by open addressing. */
#include <string.h>

#include "tally.h"

#define FIRST_SIZE 64

/* Return zeroed memory, or end the program. */
void *xalloc(size_t count, size_t size)
{
    void *memory = calloc(count, size);

    if (!memory) {
        fprintf(stderr, "tally: out of memory\n");
        exit(2);
    }
    return memory;
}

static size_t hash_of(const char *line)
{
    size_t hash = 5381;

    for (; *line; line++)
        hash = hash * 33 + (unsigned char)*line;
    return hash;
}

/* Return the slot that holds the line, or the free one where it belongs. */
static struct entry *slot_of(struct entry *slots, size_t size, const char *line)
{
    size_t at = hash_of(line) & (size - 1);

    while (slots[at].line && strcmp(slots[at].line, line) != 0)
        at = (at + 1) & (size - 1);
    return &slots[at];
}

void table_init(struct table *table)
{
    table->size = FIRST_SIZE;
    table->used = 0;
    table->slots = xalloc(table->size, sizeof *table->slots);
}

static void grow(struct table *table)
{
    size_t size = table->size * 2;
    struct entry *slots = xalloc(size, sizeof *slots);
    size_t at;

    for (at = 0; at < table->size; at++)
        if (table->slots[at].line)
            *slot_of(slots, table->size, table->slots[at].line) = table->slots[at];
    free(table->slots);
    table->slots = slots;
    table->size = size;
}

void table_add(struct table *table, const char *line)
{
    struct entry *slot;

    if (table->used * 4 >= table->size * 3)
        grow(table);
    slot = slot_of(table->slots, table->size, line);
    if (!slot->line) {
        slot->line = strdup(line);
        table->used++;
    }
    slot->count++;
}

static int in_order(const void *left, const void *right)
{
    const struct entry *a = left, *b = right;

    if (a->count != b->count)
        return b->count - a->count;
    return strcmp(a->line, b->line);
}

/* Return the entries in the order in which they are printed. */
struct entry *table_sorted(struct table *table)
{
    struct entry *sorted = xalloc(table->used + 1, sizeof *sorted);
    size_t at, count = 0;

    for (at = 0; at < table->size; at++)
        if (table->slots[at].line)
            sorted[count++] = table->slots[at];
    qsort(sorted, count, sizeof *sorted, in_order);
    return sorted;
}
