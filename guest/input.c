/* What is written to commands. Must never block on a command that does not read: the client waits for credit. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "guest.h"

#define END_OF_TRANSMISSION "\x04" /* what a terminal takes as the end of input */

static void input_ready(struct source *source, uint32_t events);

struct input_stream {
    struct stream base;
    struct command *command;
};

static void input_data(struct stream *s, const unsigned char *bytes, size_t n);
static void input_finish(struct stream *s);

static const struct stream_kind input_kind = {
    .data = input_data, .finish = input_finish, .counts_as_busy = true};

void input_open(struct command *c, int fd)
{
    c->input.source = (struct source){fd, input_ready};
    fcntl(fd, F_SETFL, O_NONBLOCK);
    if (loop_add(&c->input.source, 0) < 0) {
        close(fd);
        c->input.source.fd = -1;
    }
}

void input_close(struct command *c)
{
    loop_close(&c->input.source);
    buffer_free(&c->input.bytes);
    c->input.closed = true;
    list_each(at, following, &c->streams) {
        struct stream *s = container_of(at, struct stream, on);
        if (s->kind == &input_kind)
            stream_fail(s, E_CLOSED, 0, "its standard input is closed");
    }
}

/* n bytes left the buffer: give them back to those who sent them, the first first. */
static void give_back(struct command *c, size_t n)
{
    list_each(at, following, &c->streams) {
        struct stream *s = container_of(at, struct stream, on);
        if (s->kind != &input_kind || s->owed == 0 || n == 0)
            continue;
        size_t part = s->owed < n ? (size_t)s->owed : n;
        stream_give_credit(s, part);
        n -= part;
    }
}

static void push(struct command *c)
{
    struct input *in = &c->input;
    while (in->source.fd >= 0 && buffer_size(&in->bytes) > 0) {
        ssize_t n = write(in->source.fd, buffer_bytes(&in->bytes), buffer_size(&in->bytes));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            loop_change(&in->source, EPOLLOUT);
            return;
        }
        if (n <= 0) {
            input_close(c);
            return;
        }
        buffer_consume(&in->bytes, (size_t)n);
        give_back(c, (size_t)n);
    }
    loop_change(&in->source, 0);
    if (in->finishing && !in->closed) {
        if (c->terminal_fd >= 0) {
            ssize_t n = write(in->source.fd, END_OF_TRANSMISSION, 1);
            (void)n;
            in->finishing = false;
        } else {
            input_close(c);
        }
    }
}

static void input_ready(struct source *source, uint32_t events)
{
    struct command *c = container_of(container_of(source, struct input, source), struct command, input);
    if ((events & (EPOLLERR | EPOLLHUP)) && c->terminal_fd >= 0)
        loop_pause(source); /* the output's side sees it too, and resumes both */
    else if (events & (EPOLLERR | EPOLLHUP))
        input_close(c); /* nobody is left to read it */
    else
        push(c);
}

static void input_data(struct stream *s, const unsigned char *bytes, size_t n)
{
    struct command *c = container_of(s, struct input_stream, base)->command;
    buffer_append(&c->input.bytes, bytes, n);
    if (c->input.bytes.failed)
        stream_fail(s, E_LIMIT, 0, "no memory for its input");
    else
        push(c);
}

static void input_finish(struct stream *s)
{
    struct command *c = container_of(s, struct input_stream, base)->command;
    list_remove(&s->on); /* so that closing does not fail the one that asked for it */
    c->input.finishing = true;
    stream_reply_end(s, stream_reply_begin(s));
    push(c);
}

void request_stdin(struct request *r)
{
    char *id = request_text(r, F_COMMAND);
    struct command *c = id != NULL ? command_find(id) : NULL;
    free(id);
    if (c == NULL) {
        reply_error(r->connection, r->id, E_NO_COMMAND, 0, "no such command");
        return;
    }
    if (c->input.closed || c->input.source.fd < 0 || c->input.finishing) {
        reply_error(r->connection, r->id, c->state == RUNNING ? E_CLOSED : E_NOT_RUNNING, 0,
                    c->state == RUNNING ? "its standard input is closed" : "the command is over");
        return;
    }
    struct input_stream *s = stream_open(r->connection, r->id, &input_kind, sizeof *s);
    if (s == NULL)
        return;
    s->command = c;
    list_append(&c->streams, &s->base.on);
    stream_give_credit(&s->base, 0); /* says that it is open */
}
