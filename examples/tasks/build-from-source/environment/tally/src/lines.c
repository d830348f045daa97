/* Reading lines. */
#include <string.h>

#include "tally.h"

#define LINE_MAX 256

/* Return the next line without its line feed, or NULL at the end. The caller owns it. */
char *read_line(FILE *file)
{
    char buffer[LINE_MAX];
    size_t length;
    char *line;

    if (!fgets(buffer, sizeof buffer, file))
        return NULL;
    length = strlen(buffer);
    if (feof(file))
        return NULL;
    if (buffer[length - 1] == '\n')
        length--;
    line = xalloc(length + 1, 1);
    memcpy(line, buffer, length);
    return line;
}
