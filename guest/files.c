/* Requests about files that are answered at once: stat, list, make, move, link. Must never read contents. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "files.h"

#define PAGE_BYTES_MAX (512u << 10)
#define PARENT_MODE 0755

void reply_errno(struct request *r, int error) { reply_error(r->connection, r->id, E_SYSTEM, error, NULL); }

char *request_path(struct request *r, uint16_t tag)
{
    char *path = request_text(r, tag);
    if (path == NULL || path[0] == 0) {
        reply_error(r->connection, r->id, E_BAD_REQUEST, 0, "a path is missing");
        free(path);
        return NULL;
    }
    return path;
}

bool request_owner(struct request *r, uid_t *uid, gid_t *gid)
{
    char *user = request_text(r, F_USER);
    struct identity who;
    const char *error;
    *uid = geteuid();
    *gid = getegid();
    if (user == NULL)
        return true;
    bool good = identity_resolve(user, &who, &error);
    free(user);
    if (!good)
        reply_error(r->connection, r->id, E_BAD_REQUEST, 0, error);
    *uid = good ? who.uid : *uid;
    *gid = good ? who.gid : *gid;
    return good;
}

int open_parent_made(const char *path, char *name, uid_t uid, gid_t gid)
{
    int parent = path_open_parent(path, name);
    if (parent >= 0 || errno != ENOENT)
        return parent;
    char *folder = strdup(path);
    if (folder == NULL)
        return -1;
    char *end = folder + strlen(folder);
    while (end > folder && end[-1] == '/')
        *--end = 0;
    while (end > folder && end[-1] != '/')
        *--end = 0;
    parent = path_make_dirs(folder, PARENT_MODE, uid, gid);
    int error = errno;
    free(folder);
    errno = error;
    return parent;
}

static void put_info(struct buffer *b, int folder, const char *name, const struct stat *s)
{
    put_number(b, F_KIND, s->st_mode & S_IFMT);
    put_number(b, F_MODE, s->st_mode & 07777);
    put_number(b, F_LENGTH, (uint64_t)s->st_size);
    put_number(b, F_UID, s->st_uid);
    put_number(b, F_GID, s->st_gid);
    put_number(b, F_MTIME_NS, (uint64_t)((int64_t)s->st_mtim.tv_sec * 1000000000 + s->st_mtim.tv_nsec));
    if (!S_ISLNK(s->st_mode))
        return;
    char target[PATH_MAX];
    ssize_t n = readlinkat(folder, name, target, sizeof target);
    if (n >= 0)
        put_bytes(b, F_TARGET, target, (size_t)n);
}

void request_stat(struct request *r)
{
    char *path = request_path(r, F_PATH);
    if (path == NULL)
        return;
    bool follow = request_number(r, F_FOLLOW, 0) != 0;
    struct stat s;
    int fd = path_open(path, O_PATH | (follow ? 0 : O_NOFOLLOW), 0);
    free(path);
    if (fd < 0 || fstat(fd, &s) < 0) {
        reply_errno(r, errno);
    } else {
        size_t mark = reply_begin(r->connection, r->id);
        put_info(&r->connection->out, fd, "", &s);
        reply_end(r->connection, mark);
    }
    if (fd >= 0)
        close(fd);
}

struct dirent64_ {
    uint64_t inode;
    int64_t next;
    unsigned short bytes;
    unsigned char type;
    char name[];
};

/* Put entries until the page or the folder ends; returns where the next page starts, 0 at the end. */
static int64_t put_entries(struct buffer *out, int fd, uint64_t limit)
{
    _Alignas(uint64_t) char block[8192];
    size_t before = buffer_size(out);
    uint64_t count = 0;
    int64_t next = 0;
    long n;
    while ((n = syscall(SYS_getdents64, fd, block, sizeof block)) > 0) {
        for (long at = 0; at < n;) {
            struct dirent64_ *entry = (struct dirent64_ *)(void *)(block + at);
            struct stat s;
            at += entry->bytes;
            if (count >= limit || buffer_size(out) - before > PAGE_BYTES_MAX)
                return next;
            next = entry->next;
            if (strcmp(entry->name, ".") == 0 || strcmp(entry->name, "..") == 0 ||
                fstatat(fd, entry->name, &s, AT_SYMLINK_NOFOLLOW) < 0)
                continue;
            size_t mark = put_begin(out, F_ENTRY);
            put_bytes(out, F_NAME, entry->name, strlen(entry->name));
            put_info(out, fd, entry->name, &s);
            put_end(out, mark);
            count++;
        }
    }
    return 0;
}

void request_list(struct request *r)
{
    char *path = request_path(r, F_PATH);
    if (path == NULL)
        return;
    uint64_t limit = request_number(r, F_LIMIT, LIST_ENTRIES_MAX);
    int fd = path_open(path, O_RDONLY | O_DIRECTORY | O_NONBLOCK, 0);
    free(path);
    if (fd < 0 || lseek(fd, (off_t)request_number(r, F_OFFSET, 0), SEEK_SET) < 0) {
        reply_errno(r, errno);
    } else {
        struct buffer *out = &r->connection->out;
        size_t mark = reply_begin(r->connection, r->id);
        int64_t next = put_entries(out, fd, limit < LIST_ENTRIES_MAX ? limit : LIST_ENTRIES_MAX);
        if (next != 0)
            put_number(out, F_NEXT, (uint64_t)next);
        reply_end(r->connection, mark);
    }
    if (fd >= 0)
        close(fd);
}

void request_make_dir(struct request *r)
{
    char name[NAME_MAX + 1], *path = request_path(r, F_PATH);
    uid_t uid;
    gid_t gid;
    if (path == NULL)
        return;
    if (!request_owner(r, &uid, &gid)) {
        free(path);
        return;
    }
    mode_t mode = (mode_t)request_number(r, F_MODE, PARENT_MODE) & 07777;
    int fd = -1;
    if (request_number(r, F_PARENTS, 0) == 0) {
        int parent = path_open_parent(path, name);
        if (parent >= 0 && mkdirat(parent, name, mode) == 0)
            fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        int error = errno;
        if (fd >= 0 && (fchown(fd, uid, gid) < 0 || fchmod(fd, mode) < 0))
            error = errno;
        if (parent >= 0)
            close(parent);
        errno = error;
    } else {
        fd = path_make_dirs(path, mode, uid, gid);
    }
    free(path);
    if (fd < 0) {
        reply_errno(r, errno);
        return;
    }
    close(fd);
    reply_empty(r->connection, r->id);
}

void request_move(struct request *r)
{
    char from_name[NAME_MAX + 1], to_name[NAME_MAX + 1];
    char *path = request_path(r, F_PATH);
    char *target = path != NULL ? request_path(r, F_TARGET) : NULL;
    if (target != NULL) {
        int from = path_open_parent(path, from_name);
        int to = from >= 0 ? path_open_parent(target, to_name) : -1;
        if (to < 0 || renameat(from, from_name, to, to_name) < 0)
            reply_errno(r, errno);
        else
            reply_empty(r->connection, r->id);
        if (from >= 0)
            close(from);
        if (to >= 0)
            close(to);
    }
    free(path);
    free(target);
}

/* Under another name first, so that one that is there is replaced at once. */
void request_symlink(struct request *r)
{
    char name[NAME_MAX + 1], part[PART_NAME_BYTES];
    uid_t uid;
    gid_t gid;
    char *path = request_path(r, F_PATH);
    char *target = path != NULL ? request_path(r, F_TARGET) : NULL;
    if (target != NULL && request_owner(r, &uid, &gid)) {
        int parent = open_parent_made(path, name, uid, gid);
        part_name(part);
        if (parent < 0 || symlinkat(target, parent, part) < 0) {
            reply_errno(r, errno);
        } else if (fchownat(parent, part, uid, gid, AT_SYMLINK_NOFOLLOW) < 0 ||
                   renameat(parent, part, parent, name) < 0) {
            int error = errno;
            unlinkat(parent, part, 0);
            reply_errno(r, error);
        } else {
            reply_empty(r->connection, r->id);
        }
        if (parent >= 0)
            close(parent);
    }
    free(path);
    free(target);
}
