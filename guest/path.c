/* Paths inside the sandbox; see path.h. */
#include "path.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "guest.h"

#ifndef SYS_openat2
#define SYS_openat2 437 /* the same on every architecture */
#endif
#define RESOLVE_NO_MAGICLINKS_ 0x02
#define RESOLVE_IN_ROOT_ 0x10

static int open_in_root(const char *path, uint64_t flags, mode_t mode)
{
    struct {
        uint64_t flags, mode, resolve;
    } how = {flags | O_CLOEXEC, flags & (O_CREAT | O_TMPFILE) ? mode : 0,
             RESOLVE_IN_ROOT_ | RESOLVE_NO_MAGICLINKS_};
    if ((flags & O_TMPFILE) != O_TMPFILE && !(flags & O_CREAT))
        how.mode = 0;
    int fd = (int)syscall(SYS_openat2, guest.root_fd, path, &how, sizeof how);
    for (int i = 0; i < 8 && fd < 0 && errno == EAGAIN; i++) /* a rename raced with ".." */
        fd = (int)syscall(SYS_openat2, guest.root_fd, path, &how, sizeof how);
    return fd;
}

int path_open(const char *path, int flags, mode_t mode) { return open_in_root(path, (unsigned)flags, mode); }

int path_open_parent(const char *path, char *name)
{
    size_t end = strlen(path);
    while (end > 0 && path[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    size_t bytes = end - begin;
    if (bytes == 0 || (bytes == 1 && path[begin] == '.') || (bytes == 2 && !memcmp(path + begin, "..", 2))) {
        errno = EINVAL;
        return -1;
    }
    if (bytes > NAME_MAX || begin >= PATH_MAX) {
        errno = ENAMETOOLONG;
        return -1;
    }
    char parent[PATH_MAX + 1];
    memcpy(parent, path, begin);
    memcpy(parent + begin, begin == 0 ? "/" : "", begin == 0 ? 2 : 1);
    memcpy(name, path + begin, bytes);
    name[bytes] = 0;
    return path_open(parent, O_PATH | O_DIRECTORY, 0);
}

/* Make one folder of the way and say whether it is there now. */
static bool make_one(const char *path, mode_t mode, uid_t uid, gid_t gid)
{
    char name[NAME_MAX + 1];
    int parent = path_open_parent(path, name);
    if (parent < 0)
        return false;
    bool made = mkdirat(parent, name, mode) == 0;
    bool there = made || errno == EEXIST;
    if (made) { /* the mode as asked, whatever the umask; the owner never through a link */
        int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0) {
            fchown(fd, uid, gid);
            fchmod(fd, mode);
            close(fd);
        }
    }
    int error = errno;
    close(parent);
    errno = error;
    return there;
}

int path_make_dirs(const char *path, mode_t mode, uid_t uid, gid_t gid)
{
    int fd = path_open(path, O_PATH | O_DIRECTORY, 0);
    if (fd >= 0 || errno != ENOENT)
        return fd;
    char *upto = strdup(path);
    if (upto == NULL)
        return -1;
    bool good = true;
    for (char *at = upto; good && *at != 0; at++) {
        while (*at == '/')
            at++;
        char *end = strchrnul(at, '/');
        char was = *end;
        *end = 0;
        if (*at != 0 && strcmp(at, ".") != 0 && strcmp(at, "..") != 0)
            good = make_one(upto, mode, uid, gid);
        *end = was;
        if (was == 0)
            break;
        at = end;
    }
    int error = errno;
    free(upto);
    errno = error;
    return good ? path_open(path, O_PATH | O_DIRECTORY, 0) : -1;
}

char *path_read_file(const char *path, size_t max, size_t *bytes)
{
    int fd = path_open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0);
    if (fd < 0)
        return NULL;
    struct buffer text = {0};
    ssize_t n = 0;
    while (buffer_size(&text) <= max && buffer_reserve(&text, 4096) != NULL) {
        n = read(fd, text.data + text.end, 4095);
        if (n <= 0)
            break;
        text.end += (size_t)n;
    }
    int error = errno;
    close(fd);
    if (n != 0 || text.failed || text.data == NULL) {
        errno = n < 0 ? error : EFBIG;
        buffer_free(&text);
        return NULL;
    }
    text.data[text.end] = 0;
    *bytes = text.end;
    return (char *)text.data;
}
