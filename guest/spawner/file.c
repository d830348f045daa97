/* Small files, relative to folders that are held open. Must never follow a link out of them. */
#include "spawner.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int close_keeping_errno(int fd, int result)
{
    int error = errno;
    close(fd);
    errno = error;
    return result;
}

int write_file_at(int dir, const char *name, const void *data, size_t size, mode_t mode)
{
    int fd = openat(dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd < 0)
        return -1;
    const char *at = data;
    while (size > 0) {
        ssize_t n = write(fd, at, size);
        if (n < 0)
            return close_keeping_errno(fd, -1);
        at += n;
        size -= (size_t)n;
    }
    return close_keeping_errno(fd, 0);
}

/* Returns the bytes read (at most size - 1, a NUL follows), or -1. */
int read_file_at(int dir, const char *name, char *out, size_t size)
{
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return -1;
    ssize_t n = read(fd, out, size - 1);
    if (n < 0)
        return close_keeping_errno(fd, -1);
    out[n] = 0;
    return close_keeping_errno(fd, (int)n);
}

/* For files of the kernel: one write, no creation. */
int put_text_at(int dir, const char *name, const char *text)
{
    int fd = openat(dir, name, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    return close_keeping_errno(fd, write(fd, text, strlen(text)) < 0 ? -1 : 0);
}

/* With the pid it names a process for as long as the machine is up; 0 if there is none. */
/* A number of /proc/PID/stat, counted from 1 as proc(5) does; 0 when there is no such process. */
static uint64_t stat_field(pid_t pid, int wanted)
{
    char path[32], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (read_file_at(AT_FDCWD, path, text, sizeof text) <= 0)
        return 0;
    char *at = strrchr(text, ')'); /* the name may hold anything */
    for (int field = 2; at != NULL && field < wanted; field++)
        at = strchr(at + 1, ' ');
    return at == NULL ? 0 : strtoull(at + 1, NULL, 10);
}

uint64_t process_start_time(pid_t pid) { return stat_field(pid, 22); }

int process_wait_status(pid_t pid) { return (int)stat_field(pid, 52); }
