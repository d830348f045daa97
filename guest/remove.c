/*
 * Removing files and whole folders. A folder is removed by a child of the guest, so that a large one holds
 * up nobody. Must never follow a link, nor climb by "..": what is too deep is moved up and removed there.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "files.h"

#define DEPTH_MAX 128

/* ---- in the child ---- */

static unsigned moved;

static int remove_entry(int top, int folder, const char *name, int depth);

/* Remove what the folder holds; owns fd. Returns 0 or errno. */
static int empty_folder(int top, int fd, int depth)
{
    DIR *dir = fdopendir(fd);
    struct dirent *entry;
    int error = 0;
    if (dir == NULL) {
        close(fd);
        return ENOMEM;
    }
    while (error == 0 && (entry = readdir(dir)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            error = remove_entry(top, fd, entry->d_name, depth);
    closedir(dir);
    return error;
}

static int remove_entry(int top, int folder, const char *name, int depth)
{
    if (unlinkat(folder, name, 0) == 0 || errno == ENOENT)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return errno;
    if (unlinkat(folder, name, AT_REMOVEDIR) == 0)
        return 0;
    if (errno != ENOTEMPTY && errno != EEXIST)
        return errno == ENOTDIR ? EPERM : errno;
    if (depth >= DEPTH_MAX) { /* the top is read again until it is empty */
        char up[PART_NAME_BYTES];
        snprintf(up, sizeof up, ".cloche-%d-%u.removed", (int)getpid(), ++moved);
        return renameat(folder, name, top, up) < 0 ? errno : 0;
    }
    int fd = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno;
    int error = empty_folder(top < 0 ? fd : top, top < 0 ? dup(fd) : fd, depth + 1);
    if (top < 0) {
        unsigned before = 0;
        while (error == 0 && moved != before) {
            before = moved;
            lseek(fd, 0, SEEK_SET);
            error = empty_folder(fd, dup(fd), depth + 1);
        }
        close(fd);
    }
    if (error == 0 && unlinkat(folder, name, AT_REMOVEDIR) < 0)
        error = errno;
    return error;
}

/* ---- in the guest ---- */

struct removal {
    struct stream base;
    pid_t helper; /* 0 once it is reaped */
};

static struct list removals = {&removals, &removals};

static const struct stream_kind removal_kind = {.counts_as_busy = true};

bool helper_reaped(pid_t pid, int status)
{
    list_each(at, following, &removals) {
        struct removal *r = container_of(at, struct removal, base.on);
        if (r->helper != pid)
            continue;
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            stream_reply_end(&r->base, stream_reply_begin(&r->base));
        else
            stream_fail(&r->base, E_SYSTEM, WIFEXITED(status) ? WEXITSTATUS(status) : EINTR, NULL);
        return true;
    }
    return false;
}

static void remove_tree(struct request *r, int folder, const char *name)
{
    struct removal *removal = stream_open(r->connection, r->id, &removal_kind, sizeof *removal);
    if (removal == NULL)
        return;
    pid_t pid = fork();
    if (pid == 0) {
        int error = remove_entry(-1, folder, name, 0);
        _exit(error > 255 ? EIO : error);
    }
    if (pid < 0) {
        stream_fail(&removal->base, E_SYSTEM, errno, NULL);
        return;
    }
    removal->helper = pid;
    list_append(&removals, &removal->base.on);
}

void request_remove(struct request *r)
{
    char name[NAME_MAX + 1], *path = request_path(r, F_PATH);
    if (path == NULL)
        return;
    int folder = path_open_parent(path, name);
    free(path);
    if (folder < 0) {
        reply_errno(r, errno);
        return;
    }
    if (unlinkat(folder, name, 0) == 0 ||
        ((errno == EISDIR || errno == EPERM) && unlinkat(folder, name, AT_REMOVEDIR) == 0))
        reply_empty(r->connection, r->id);
    else if ((errno == ENOTEMPTY || errno == EEXIST) && request_number(r, F_RECURSIVE, 0) != 0)
        remove_tree(r, folder, name);
    else
        reply_errno(r, errno);
    close(folder);
}
