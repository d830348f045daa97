/*
 * Contents of files, both ways, a frame at a time. Must never show a half-written file under its name: bytes
 * go to a nameless neighbour that takes the name at the end.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"

void part_name(char *name)
{
    static uint64_t counter;
    uint64_t salt = 0;
    if (getrandom(&salt, sizeof salt, GRND_NONBLOCK) < 0)
        salt = (uint64_t)now_us();
    snprintf(name, PART_NAME_BYTES, ".cloche-%08llx%04llx.part", (unsigned long long)(salt & 0xffffffff),
             (unsigned long long)(++counter & 0xffff));
}

/* ---- reading ---- */

struct file_reader {
    struct stream base;
    int fd;
    uint64_t offset, left;
};

static void reader_pump(struct stream *s);
static void reader_drop(struct stream *s);

static const struct stream_kind reader_kind = {
    .pump = reader_pump, .drop = reader_drop, .counts_as_busy = true};

static void reader_drop(struct stream *s) { close(container_of(s, struct file_reader, base)->fd); }

static void reader_pump(struct stream *s)
{
    struct file_reader *f = container_of(s, struct file_reader, base);
    unsigned char bytes[DATA_BYTES_MAX];
    size_t wanted = f->left < sizeof bytes ? (size_t)f->left : sizeof bytes;
    if (wanted > s->credit)
        wanted = (size_t)s->credit;
    if (wanted == 0 && f->left > 0) {
        stream_rest(s);
        return;
    }
    ssize_t n = wanted == 0 ? 0 : pread(f->fd, bytes, wanted, (off_t)f->offset);
    if (n < 0) {
        stream_fail(s, E_SYSTEM, errno, NULL);
        return;
    }
    if (n == 0) {
        size_t mark = stream_reply_begin(s);
        put_number(&s->connection->out, F_OFFSET, f->offset);
        stream_reply_end(s, mark);
        return;
    }
    stream_send_data(s, f->offset, bytes, (size_t)n);
    f->offset += (uint64_t)n;
    f->left -= (uint64_t)n;
}

void request_read(struct request *r)
{
    char *path = request_path(r, F_PATH);
    struct stat info;
    if (path == NULL)
        return;
    int fd = path_open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0);
    free(path);
    if (fd < 0 || fstat(fd, &info) < 0 || !S_ISREG(info.st_mode)) {
        int error = fd < 0 ? errno : S_ISDIR(info.st_mode) ? EISDIR : EINVAL;
        if (fd >= 0)
            close(fd);
        reply_errno(r, error);
        return;
    }
    struct file_reader *f = stream_open(r->connection, r->id, &reader_kind, sizeof *f);
    if (f == NULL) {
        close(fd);
        return;
    }
    f->fd = fd;
    f->offset = request_number(r, F_OFFSET, 0);
    f->left = request_number(r, F_LENGTH, UINT64_MAX);
    f->base.credit = request_number(r, F_CREDIT, 0);
    stream_wake(&f->base);
}

/* ---- writing ---- */

struct file_writer {
    struct stream base;
    int folder, fd;
    uid_t uid;
    gid_t gid;
    mode_t mode;
    char name[NAME_MAX + 1], part[PART_NAME_BYTES];
};

static void writer_data(struct stream *s, const unsigned char *bytes, size_t n);
static void writer_finish(struct stream *s);
static void writer_drop(struct stream *s);

static const struct stream_kind writer_kind = {
    .data = writer_data, .finish = writer_finish, .drop = writer_drop, .counts_as_busy = true};

static void writer_drop(struct stream *s)
{
    struct file_writer *f = container_of(s, struct file_writer, base);
    if (f->part[0] != 0)
        unlinkat(f->folder, f->part, 0);
    close(f->fd);
    close(f->folder);
}

static void writer_data(struct stream *s, const unsigned char *bytes, size_t n)
{
    struct file_writer *f = container_of(s, struct file_writer, base);
    for (size_t done = 0; done < n;) {
        ssize_t wrote = write(f->fd, bytes + done, n - done);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0) {
            stream_fail(s, E_SYSTEM, wrote < 0 ? errno : EIO, NULL);
            return;
        }
        done += (size_t)wrote;
    }
    if (s->owed >= WINDOW_BYTES / 4)
        stream_give_credit(s, s->owed);
}

/* A file that something is mounted on cannot be replaced: fill it where it is. */
static int fill_in_place(struct file_writer *f)
{
    int fd = openat(f->folder, f->name, O_WRONLY | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    off_t from = 0;
    ssize_t n = -1;
    if (fd >= 0) {
        do
            n = sendfile(fd, f->fd, &from, 1u << 20);
        while (n > 0);
    }
    int error = n < 0 ? errno : 0;
    if (fd >= 0)
        close(fd);
    return error;
}

static void writer_finish(struct stream *s)
{
    struct file_writer *f = container_of(s, struct file_writer, base);
    int error = 0;
    if (fchown(f->fd, f->uid, f->gid) < 0 || fchmod(f->fd, f->mode) < 0)
        error = errno;
    else if (renameat(f->folder, f->part, f->folder, f->name) == 0)
        f->part[0] = 0;
    else
        error = errno == EBUSY ? fill_in_place(f) : errno;
    if (error != 0)
        stream_fail(s, E_SYSTEM, error, NULL);
    else
        stream_reply_end(s, stream_reply_begin(s));
}

void request_write(struct request *r)
{
    struct file_writer f = {.folder = -1, .fd = -1};
    char *path = request_path(r, F_PATH);
    if (path == NULL)
        return;
    if (!request_owner(r, &f.uid, &f.gid)) {
        free(path);
        return;
    }
    f.mode = (mode_t)request_number(r, F_MODE, 0644) & 07777;
    part_name(f.part);
    f.folder = open_parent_made(path, f.name, f.uid, f.gid);
    if (f.folder >= 0)
        f.fd = openat(f.folder, f.part, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    free(path);
    if (f.fd < 0) {
        reply_errno(r, errno);
        if (f.folder >= 0)
            close(f.folder);
        return;
    }
    struct file_writer *kept = stream_open(r->connection, r->id, &writer_kind, sizeof *kept);
    if (kept == NULL) {
        writer_drop(&f.base);
        return;
    }
    memcpy((char *)kept + sizeof kept->base, (char *)&f + sizeof f.base, sizeof f - sizeof f.base);
}
