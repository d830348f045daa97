/* Reading lines. */
#include <stdlib.h>
#include <string.h>

#include "tally.h"

/* Return the next line without its line feed, or NULL at the end. The caller owns it. */
char *read_line(FILE *file)
{
    size_t length = 0, room = 256;
    char *line = xalloc(room, 1);
    int byte;

    while ((byte = getc(file)) != EOF && byte != '\n') {
        if (length + 1 == room) {
            char *larger = xalloc(room * 2, 1);

            memcpy(larger, line, length);
            free(line);
            line = larger;
            room *= 2;
        }
        line[length++] = byte;
    }
    if (byte == EOF && length == 0) {
        free(line);
        return NULL;
    }
    line[length] = '\0';
    return line;
}
