/*
 * Removes trees that a workload made. Needs the same few descriptors however deep the tree is: a folder that is not
 * empty is renamed up into the top folder and emptied there. Must never follow a link, nor leave its folder.
 */
#include "spawner.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define BATCH_BYTES 16384

struct linux_dirent64 {
    uint64_t d_ino;
    int64_t d_off;
    unsigned short d_reclen;
    unsigned char d_type;
    char d_name[];
};

struct removal {
    int top;
    int64_t run;           /* tells our names from those of a removal that was cut short */
    unsigned long renamed; /* names in the top folder that we gave */
};

static bool is_dot(const char *name)
{
    return name[0] == '.' && (name[1] == 0 || (name[1] == '.' && name[2] == 0));
}

static bool is_kept(const char *name, const char *const *keep)
{
    for (; keep != NULL && *keep != NULL; keep++)
        if (strcmp(name, *keep) == 0)
            return true;
    return false;
}

/* Returns 0 when the entry is gone from dir, whether removed or renamed into the top folder. */
static int remove_entry(struct removal *r, int dir, const char *name, unsigned char type)
{
    if (type != DT_DIR && (unlinkat(dir, name, 0) == 0 || errno == ENOENT))
        return 0;
    if (type != DT_DIR && errno != EISDIR && errno != EPERM)
        return -1;
    if (unlinkat(dir, name, AT_REMOVEDIR) == 0 || errno == ENOENT)
        return 0;
    if ((errno != ENOTEMPTY && errno != EEXIST) || dir == r->top)
        return errno == ENOTEMPTY || errno == EEXIST ? 0 : -1; /* at the top already: its turn comes */
    char moved[64];
    for (int tries = 0; tries < 1000; tries++) {
        snprintf(moved, sizeof moved, ".gone-%lld-%lu", (long long)r->run, r->renamed++);
        if (syscall(SYS_renameat2, dir, name, r->top, moved, 1u /* RENAME_NOREPLACE */) == 0)
            return 0;
        if (errno != EEXIST)
            return -1;
    }
    return -1;
}

/* One pass over a folder. Returns how many entries it met, or -1. */
static long empty_once(struct removal *r, int dir, const char *const *keep, bool folders_too)
{
    char batch[BATCH_BYTES] __attribute__((aligned(8)));
    long met = 0;
    if (lseek(dir, 0, SEEK_SET) < 0)
        return -1;
    for (;;) {
        long size = syscall(SYS_getdents64, dir, batch, sizeof batch);
        if (size <= 0)
            return size < 0 ? -1 : met;
        for (long at = 0; at < size;) {
            struct linux_dirent64 *entry = (struct linux_dirent64 *)(batch + at);
            at += entry->d_reclen;
            if (is_dot(entry->d_name) || is_kept(entry->d_name, keep))
                continue;
            met++;
            if (!folders_too && entry->d_type == DT_DIR)
                continue;
            if (remove_entry(r, dir, entry->d_name, entry->d_type) != 0)
                return -1;
        }
    }
}

/* Empties each folder at the top, which may put new ones there, until a pass meets nothing. */
static int empty_folders(struct removal *r, const char *const *keep)
{
    char batch[BATCH_BYTES] __attribute__((aligned(8)));
    if (lseek(r->top, 0, SEEK_SET) < 0)
        return -1;
    long size = syscall(SYS_getdents64, r->top, batch, sizeof batch);
    for (long at = 0; at < size;) {
        struct linux_dirent64 *entry = (struct linux_dirent64 *)(batch + at);
        at += entry->d_reclen;
        if (is_dot(entry->d_name) || is_kept(entry->d_name, keep))
            continue;
        int dir = openat(r->top, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (dir < 0) {
            if (errno == ENOENT || unlinkat(r->top, entry->d_name, 0) == 0)
                continue;
            return -1;
        }
        long met = empty_once(r, dir, NULL, true);
        close(dir);
        if (met < 0 || (unlinkat(r->top, entry->d_name, AT_REMOVEDIR) != 0 && errno != ENOENT && errno != ENOTEMPTY))
            return -1;
    }
    return size < 0 ? -1 : 0;
}

int remove_entries(int dir, const char *const *keep)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    struct removal r = {.top = dir, .run = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec};
    for (;;) {
        long met = empty_once(&r, dir, keep, true);
        if (met <= 0)
            return (int)met;
        if (empty_folders(&r, keep) != 0)
            return -1;
    }
}

/* 1 when it was there and is gone, 0 when there was nothing, -1 on error. */
int remove_tree(int parent, const char *name)
{
    int dir = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0) {
        if (errno == ENOENT)
            return 0;
        return unlinkat(parent, name, 0) == 0 ? 1 : -1;
    }
    int result = remove_entries(dir, NULL);
    close(dir);
    if (result != 0 || (unlinkat(parent, name, AT_REMOVEDIR) != 0 && errno != ENOENT))
        return -1;
    return 1;
}
