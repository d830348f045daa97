/*
 * Connections: bytes in, frames out. Must never block, nor let one client's silence hold up another: what
 * a client does not read stays bounded, and a client that floods without reading is no longer read.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "guest.h"

#define READ_BYTES 16384
#define OUT_BYTES_PUMPED 65536      /* data is added only while less than this waits */
#define OUT_BYTES_MAX (1u << 20)    /* more than this, and no request is answered until it has been read */
#define FLUSH_ROUNDS 16             /* then it is somebody else's turn */

static struct list dirty = {&dirty, &dirty};

static void connection_ready(struct source *source, uint32_t events);
static void writer_ready(struct source *source, uint32_t events);
static void parse(struct connection *c);

static struct connection *of_source(struct source *source)
{
    return container_of(source, struct connection, source);
}

int connection_open(int read_fd, int write_fd)
{
    struct connection *c = guest.connection_count < CONNECTIONS_MAX ? calloc(1, sizeof *c) : NULL;
    if (c == NULL) {
        close(read_fd);
        return -1;
    }
    c->source = (struct source){read_fd, connection_ready};
    c->writer = (struct source){write_fd == read_fd ? -1 : write_fd, writer_ready};
    list_init(&c->streams);
    list_init(&c->ready);
    list_init(&c->dirty);
    if (loop_add(&c->source, EPOLLIN) < 0) {
        close(read_fd);
        free(c);
        return -1;
    }
    if (c->writer.fd >= 0)
        loop_add(&c->writer, 0);
    list_append(&guest.connections, &c->link);
    guest.connection_count++;
    return 0;
}

/* No descriptor is left for one more client: take it with the one held back for this, and let it go. */
static void turn_away(int listener)
{
    if (guest.spare_fd >= 0)
        close(guest.spare_fd);
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0)
        close(fd);
    guest.spare_fd = fcntl(guest.root_fd, F_DUPFD_CLOEXEC, 0);
}

void connection_accept_on(struct source *listener)
{
    for (int i = 0; i < 16; i++) {
        int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE)
                turn_away(listener->fd);
            return;
        }
        connection_open(fd, fd);
    }
}

void connection_close(struct connection *c)
{
    while (!list_empty(&c->streams))
        stream_close(container_of(c->streams.next, struct stream, link));
    list_remove(&c->link);
    list_remove(&c->dirty);
    guest.connection_count--;
    loop_close(&c->source);
    loop_close(&c->writer);
    buffer_free(&c->in);
    buffer_free(&c->out);
    loop_free_later(c);
}

void connection_touch(struct connection *c)
{
    if (!list_linked(&c->dirty))
        list_append(&dirty, &c->dirty);
}

bool connections_pending(void) { return !list_empty(&dirty); }

/* Ask epoll for what matters now: reading unless paused, writing when the socket was full. */
static void watch(struct connection *c)
{
    uint32_t reads = c->reading_paused || c->closing ? 0 : EPOLLIN;
    uint32_t writes = c->waits_for_room ? EPOLLOUT : 0;
    if (c->writer.fd >= 0) {
        loop_change(&c->source, reads);
        loop_change(&c->writer, writes);
    } else {
        loop_change(&c->source, reads | writes);
    }
}

static void fill(struct connection *c)
{
    while (buffer_size(&c->out) < OUT_BYTES_PUMPED && !list_empty(&c->ready)) {
        struct stream *s = container_of(c->ready.next, struct stream, ready);
        list_remove(&s->ready);
        list_append(&c->ready, &s->ready); /* round robin */
        s->kind->pump(s);
    }
}

/* Write what waits; false when there is nothing more to do now, *gone when the connection cannot go on. */
static bool write_some(struct connection *c, bool *gone)
{
    size_t size = buffer_size(&c->out);
    ssize_t n = c->writer.fd >= 0 ? write(c->writer.fd, buffer_bytes(&c->out), size)
                                  : send(c->source.fd, buffer_bytes(&c->out), size, MSG_NOSIGNAL);
    if (n >= 0) {
        buffer_consume(&c->out, (size_t)n);
        return true;
    }
    if (errno == EINTR)
        return true;
    *gone = errno != EAGAIN;
    if (!*gone) {
        c->waits_for_room = true;
        watch(c);
    }
    return false;
}

static void flush(struct connection *c)
{
    bool gone = false;
    for (int round = 0; round < FLUSH_ROUNDS && !gone; round++) {
        fill(c);
        gone = c->out.failed || c->in.failed;
        if (buffer_size(&c->out) > 0 && !gone) {
            if (!write_some(c, &gone) && !gone)
                return;
        } else if (c->closing) {
            gone = true;
        } else if (c->reading_paused) {
            c->reading_paused = false; /* on with the requests that waited */
            parse(c);
        } else if (!gone) {
            return;
        }
    }
    if (gone)
        connection_close(c);
    else
        connection_touch(c); /* somebody else's turn first */
}

void connections_flush(void)
{
    struct list batch = {&batch, &batch};
    while (!list_empty(&dirty)) {
        struct list *link = dirty.next;
        list_remove(link);
        list_append(&batch, link);
    }
    while (!list_empty(&batch)) {
        struct connection *c = container_of(batch.next, struct connection, dirty);
        list_remove(&c->dirty);
        if (!c->waits_for_room)
            flush(c);
    }
}

static void parse(struct connection *c)
{
    struct frame frame;
    size_t used;
    while (!c->closing) {
        if (buffer_size(&c->out) > OUT_BYTES_MAX) {
            c->reading_paused = true;
            connection_touch(c);
            break;
        }
        switch (frame_parse(buffer_bytes(&c->in), buffer_size(&c->in), &frame, &used)) {
        case FRAME_PARTIAL:
            watch(c);
            return;
        case FRAME_INVALID:
            reply_error(c, 0, E_BAD_FRAME, 0, "this is no frame");
            c->closing = true;
            watch(c);
            return;
        case FRAME_COMPLETE:
            request_dispatch(c, &frame);
            buffer_consume(&c->in, used);
        }
    }
    watch(c);
}

static void room(struct connection *c)
{
    c->waits_for_room = false;
    watch(c);
    connection_touch(c);
}

static void connection_ready(struct source *source, uint32_t events)
{
    struct connection *c = of_source(source);
    if (events & EPOLLOUT)
        room(c);
    if ((events & (EPOLLERR | EPOLLHUP)) && !(events & EPOLLIN)) {
        connection_close(c);
        return;
    }
    if (!(events & EPOLLIN) || c->closing)
        return;
    unsigned char *to = buffer_reserve(&c->in, READ_BYTES);
    if (to == NULL) {
        connection_close(c);
        return;
    }
    ssize_t n = read(source->fd, to, c->in.capacity - c->in.end);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        connection_close(c);
        return;
    }
    c->in.end += (size_t)n;
    parse(c);
}

static void writer_ready(struct source *source, uint32_t events)
{
    struct connection *c = container_of(source, struct connection, writer);
    if (events & (EPOLLERR | EPOLLHUP))
        connection_close(c);
    else if (events & EPOLLOUT)
        room(c);
}
