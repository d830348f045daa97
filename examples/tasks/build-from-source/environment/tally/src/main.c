/* The command line. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tally.h"

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "tally: %s: %s\n", what, why);
    exit(2);
}

/* Return the number in an argument of -n. */
static size_t count_of(const char *text)
{
    long count = atol(text);

    if (count < 1)
        fail(text, "not a count");
    return count;
}

int main(int argc, char **argv)
{
    struct table table;
    struct entry *sorted;
    size_t at, most = (size_t)-1;
    FILE *file = stdin;
    char *line;
    int next = 1;

    if (next < argc && strcmp(argv[next], "-n") == 0) {
        most = count_of(argv[next + 1]);
        next += 2;
    }
    if (next < argc) {
        file = fopen(argv[next], "r");
        if (!file)
            fail(argv[next], strerror(errno));
    }
    table_init(&table);
    while ((line = read_line(file))) {
        table_add(&table, line);
        free(line);
    }
    if (ferror(file))
        fail("input", strerror(errno));
    sorted = table_sorted(&table);
    for (at = 0; at < table.used && at < most; at++)
        printf("%lu\t%s\n", sorted[at].count, sorted[at].line);
    return 0;
}
