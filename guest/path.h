/* Paths inside the sandbox. Must never follow a magic link, nor leave "/" whatever a path says. */
#ifndef CLOCHE_PATH_H
#define CLOCHE_PATH_H

#include <sys/types.h>

/* Open relative to "/" with RESOLVE_IN_ROOT and RESOLVE_NO_MAGICLINKS; O_CLOEXEC is added. -1 and errno. */
int path_open(const char *path, int flags, mode_t mode);
/* Open the folder that holds the last component, which is copied to name (NAME_MAX + 1 bytes). EINVAL for
 * a path without one ("/", "a/.."). */
int path_open_parent(const char *path, char *name);
/* Like mkdir -p: open the folder, made with this owner and mode where it is missing. */
int path_make_dirs(const char *path, mode_t mode, uid_t uid, gid_t gid);
/* Read a whole file of at most max bytes, with a NUL after it; to be freed. NULL and errno. */
char *path_read_file(const char *path, size_t max, size_t *bytes);

#endif
