/* Streams on a connection: opened by a request, closed by its REPLY or ERROR. Must never outlive either end. */
#include <stdlib.h>

#include "guest.h"

void *stream_open(struct connection *c, uint32_t id, const struct stream_kind *kind, size_t size)
{
    if (stream_find(c, id) != NULL) {
        reply_error(c, 0, E_BAD_FRAME, 0, "a request id was used again while it was open");
        c->closing = true;
        return NULL;
    }
    struct stream *s = c->stream_count < STREAMS_PER_CONNECTION_MAX ? calloc(1, size) : NULL;
    if (s == NULL) {
        reply_error(c, id, E_LIMIT, 0, "too many open requests on this connection");
        return NULL;
    }
    s->connection = c;
    s->kind = kind;
    s->id = id;
    list_init(&s->ready);
    list_init(&s->on);
    list_append(&c->streams, &s->link);
    c->stream_count++;
    return s;
}

struct stream *stream_find(struct connection *c, uint32_t id)
{
    list_each(at, following, &c->streams) {
        struct stream *s = container_of(at, struct stream, link);
        if (s->id == id)
            return s;
    }
    return NULL;
}

void stream_close(struct stream *s)
{
    if (s->kind->drop != NULL)
        s->kind->drop(s);
    list_remove(&s->link);
    list_remove(&s->ready);
    list_remove(&s->on);
    s->connection->stream_count--;
    free(s);
}

void stream_wake(struct stream *s)
{
    if (!list_linked(&s->ready))
        list_append(&s->connection->ready, &s->ready);
    connection_touch(s->connection);
}

void stream_rest(struct stream *s) { list_remove(&s->ready); }

void stream_send_data(struct stream *s, uint64_t offset, const unsigned char *bytes, size_t n)
{
    struct buffer *out = &s->connection->out;
    unsigned char header[DATA_HEADER_BYTES];
    store_u64(header, offset);
    size_t mark = frame_begin(out, T_DATA, s->id);
    buffer_append(out, header, sizeof header);
    buffer_append(out, bytes, n);
    frame_end(out, mark);
    s->credit -= n < s->credit ? n : s->credit;
    connection_touch(s->connection);
}

void stream_give_credit(struct stream *s, uint64_t n)
{
    unsigned char body[8];
    struct buffer *out = &s->connection->out;
    store_u64(body, n);
    size_t mark = frame_begin(out, T_CREDIT, s->id);
    buffer_append(out, body, sizeof body);
    frame_end(out, mark);
    s->owed -= n < s->owed ? n : s->owed;
    connection_touch(s->connection);
}

void stream_fail(struct stream *s, enum error_code code, int error, const char *message)
{
    reply_error(s->connection, s->id, code, error, message);
    stream_close(s);
}

size_t stream_reply_begin(struct stream *s) { return reply_begin(s->connection, s->id); }

void stream_reply_end(struct stream *s, size_t mark)
{
    reply_end(s->connection, mark);
    stream_close(s);
}
