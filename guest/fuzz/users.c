/* Fuzz target: /etc/passwd and /etc/group of a hostile image. The input is a user, a NUL, one file, a NUL, the other. */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../guest.h"
#include "../user.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct guest guest = {.root_fd = -1, .spare_fd = -1, .oom_fd = -1, .cgroup_fd = -1};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *parts[3] = {NULL, NULL, NULL};
    for (int i = 0; i < 3; i++) {
        const uint8_t *end = i < 2 ? memchr(data, 0, size) : NULL;
        size_t n = end != NULL ? (size_t)(end - data) : size;
        parts[i] = malloc(n + 1);
        if (parts[i] == NULL)
            abort();
        memcpy(parts[i], data, n);
        parts[i][n] = 0;
        data += end != NULL ? n + 1 : n;
        size -= end != NULL ? n + 1 : n;
    }
    struct identity who = {0};
    const char *error = NULL;
    if (identity_from(parts[1], parts[2], parts[0], &who, &error)) {
        assert(who.group_count >= 0 && who.group_count <= GROUPS_MAX);
        assert(memchr(who.home, 0, sizeof who.home) != NULL);
        assert(who.uid != (uid_t)-1 && who.gid != (gid_t)-1);
    } else {
        assert(error != NULL);
    }
    for (int i = 0; i < 3; i++)
        free(parts[i]);
    return 0;
}
