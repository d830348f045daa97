/* Requests: who answers which, and how answers are written. Must never trust a field to be there. */
#include "guest.h"

#include <stdlib.h>
#include <string.h>

size_t reply_begin(struct connection *c, uint32_t id) { return frame_begin(&c->out, T_REPLY, id); }

void reply_end(struct connection *c, size_t mark)
{
    frame_end(&c->out, mark);
    connection_touch(c);
}

void reply_empty(struct connection *c, uint32_t id) { reply_end(c, reply_begin(c, id)); }

void reply_error(struct connection *c, uint32_t id, enum error_code code, int error, const char *message)
{
    size_t mark = frame_begin(&c->out, T_ERROR, id);
    put_number(&c->out, F_CODE, code);
    if (error != 0)
        put_number(&c->out, F_ERRNO, (uint64_t)error);
    put_text(&c->out, F_MESSAGE, message != NULL ? message : strerror(error));
    reply_end(c, mark);
}

bool request_field(const struct request *r, uint16_t tag, struct field *field)
{
    struct fields fields = r->fields;
    while (fields_next(&fields, field))
        if (field->tag == tag)
            return true;
    return false;
}

uint64_t request_number(const struct request *r, uint16_t tag, uint64_t fallback)
{
    struct field field;
    return request_field(r, tag, &field) ? field_number(&field, fallback) : fallback;
}

char *request_text(const struct request *r, uint16_t tag)
{
    struct field field;
    return request_field(r, tag, &field) ? field_text(&field) : NULL;
}

static void request_kill_all(struct request *r) { commands_kill_all(r->connection, r->id); }

static void request_shutdown(struct request *r)
{
    guest.stopping = true;
    reply_empty(r->connection, r->id);
}

static void request_hello(struct request *r)
{
    struct connection *c = r->connection;
    if (request_number(r, F_VERSION, 0) != PROTOCOL_VERSION) {
        reply_error(c, r->id, E_VERSION, 0, "this guest speaks protocol version 1");
        c->closing = true;
        return;
    }
    c->greeted = true;
    guest.last_heartbeat_ms = now_ms();
    size_t mark = reply_begin(c, r->id);
    put_number(&c->out, F_VERSION, PROTOCOL_VERSION);
    put_text(&c->out, F_TREE, guest.cgroup_fd >= 0 ? "cgroup" : "keeper");
    reply_end(c, mark);
}

static const struct {
    uint16_t type;
    bool keeps_alive; /* no request of somebody's own: does not count against the idle limit */
    void (*handle)(struct request *r);
} handlers[] = {
    {T_PING, true, request_ping},        {T_START, false, request_start},
    {T_WAIT, false, request_wait},       {T_OUTPUT, false, request_output},
    {T_STDIN, false, request_stdin},     {T_SIGNAL, false, request_signal},
    {T_RESIZE, false, request_resize},   {T_CANCEL, false, request_cancel},
    {T_COMMANDS, false, request_commands}, {T_KILL_ALL, false, request_kill_all},
    {T_HEARTBEAT, true, request_heartbeat}, {T_EXTEND, true, request_extend},
    {T_SHUTDOWN, false, request_shutdown}, {T_READ, false, request_read},
    {T_WRITE, false, request_write},     {T_STAT, false, request_stat},
    {T_LIST, false, request_list},       {T_MAKE_DIR, false, request_make_dir},
    {T_REMOVE, false, request_remove},   {T_MOVE, false, request_move},
    {T_SYMLINK, false, request_symlink},
};

static void on_stream(struct connection *c, const struct frame *frame)
{
    struct stream *s = stream_find(c, frame->id);
    if (s == NULL)
        return; /* it ended while this was on its way */
    switch (frame->type) {
    case T_DATA:
        if (frame->body_bytes < DATA_HEADER_BYTES || load_u64(frame->body) != s->received ||
            s->kind->data == NULL) {
            stream_fail(s, E_BAD_REQUEST, 0, "this data does not belong here");
            return;
        }
        size_t n = frame->body_bytes - DATA_HEADER_BYTES;
        s->received += n;
        s->owed += n;
        if (s->owed > WINDOW_BYTES) {
            stream_fail(s, E_LIMIT, 0, "more data than there was credit for");
            return;
        }
        s->kind->data(s, frame->body + DATA_HEADER_BYTES, n);
        return;
    case T_CREDIT:
        if (frame->body_bytes != 8)
            return;
        uint64_t more = load_u64(frame->body);
        s->credit = more > UINT64_MAX - s->credit ? UINT64_MAX : s->credit + more;
        if (s->kind->pump != NULL)
            stream_wake(s);
        return;
    case T_FINISH:
        if (s->kind->finish != NULL)
            s->kind->finish(s);
        return;
    default: /* T_RESET */
        stream_close(s);
    }
}

void request_dispatch(struct connection *c, const struct frame *frame)
{
    struct request request = {c, frame->id, fields_of(frame)};
    bool raw = frame->type == T_DATA || frame->type == T_CREDIT;
    if (c->greeted && frame->type >= T_DATA && frame->type <= T_RESET) {
        guest.last_request_ms = now_ms();
        on_stream(c, frame);
        return;
    }
    if (raw || !fields_valid(frame) || (!c->greeted && frame->type != T_HELLO)) {
        reply_error(c, frame->id, E_BAD_FRAME, 0,
                    c->greeted ? "the fields of this frame are torn" : "the first frame must be HELLO");
        c->closing = true;
        return;
    }
    if (frame->type == T_HELLO) {
        request_hello(&request);
        return;
    }
    for (size_t i = 0; i < sizeof handlers / sizeof *handlers; i++) {
        if (handlers[i].type != frame->type)
            continue;
        if (!handlers[i].keeps_alive)
            guest.last_request_ms = now_ms();
        handlers[i].handle(&request);
        return;
    }
    reply_error(c, frame->id, E_UNKNOWN_TYPE, 0, "no such request");
}
