/*
 * What commands write: pipes and terminals into logs. Must never leave a pipe unread: a child that outlives
 * its command keeps a reader (whose bytes go nowhere), so that it neither blocks nor meets SIGPIPE.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "guest.h"

#define TURN_BYTES_MAX (256u << 10) /* then it is somebody else's turn */
#define QUIET_MS 200
#define IDLE_TERMINAL_MS 50

static void output_ready(struct source *source, uint32_t events);

void output_open(struct command *c, int which, int fd)
{
    struct pipe_end *end = &c->outputs[which];
    end->command = c;
    end->source = (struct source){fd, output_ready};
    fcntl(fd, F_SETFL, O_NONBLOCK);
    if (loop_add(&end->source, EPOLLIN) < 0) {
        close(fd);
        end->source.fd = -1;
    }
}

/*
 * Nobody has the terminal open. Closing our side would hang it up, and with SIGHUP end a command that is
 * only about to exit, or that opens /dev/tty again: so keep it and look again later.
 */
static void idle_terminal(struct command *c)
{
    loop_pause(&c->outputs[0].source);
    loop_pause(&c->input.source);
    c->terminal_idle = true;
    c->retry_at_ms = now_ms() + IDLE_TERMINAL_MS;
}

void output_resume(struct command *c)
{
    if (!c->terminal_idle)
        return;
    c->terminal_idle = false;
    loop_add(&c->outputs[0].source, EPOLLIN);
    if (c->input.source.fd >= 0)
        loop_add(&c->input.source, buffer_size(&c->input.bytes) > 0 ? EPOLLOUT : 0);
}

/* Read into the log; true when the turn is used up and there may be more. */
static bool take(struct command *c, int which)
{
    struct source *source = &c->outputs[which].source;
    struct log *log = &c->logs[which];
    uint64_t before = log->total;
    bool more = false;
    while (source->fd >= 0 && !more) {
        size_t space;
        unsigned char *at = log_space(log, &space);
        ssize_t n = read(source->fd, at, space);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n <= 0 && c->terminal_fd >= 0 && !c->leader_gone) {
            idle_terminal(c);
            break;
        }
        if (n <= 0) {
            loop_close(source);
            break;
        }
        log_commit(log, at, (size_t)n);
        more = log->total - before >= TURN_BYTES_MAX;
    }
    if (log->total != before) {
        c->quiet_until_ms = now_ms() + QUIET_MS;
        command_wake_streams(c, which);
    }
    return more;
}

static void output_ready(struct source *source, uint32_t events)
{
    struct pipe_end *end = container_of(source, struct pipe_end, source);
    struct command *c = end->command;
    (void)events;
    take(c, (int)(end - c->outputs));
    if (source->fd < 0)
        command_advance(c);
}

void output_drain(struct command *c)
{
    for (int which = 0; which < 2; which++)
        take(c, which);
}

bool output_open_any(const struct command *c)
{
    return c->outputs[0].source.fd >= 0 || c->outputs[1].source.fd >= 0;
}

void output_hang_up(struct command *c)
{
    if (c->terminal_fd < 0)
        return;
    take(c, 0);
    loop_close(&c->outputs[0].source);
    input_close(c);
    c->terminal_fd = -1;
}

/* ---- after the command ---- */

struct sink {
    struct list unused; /* loop_free_later writes here */
    struct source source;
};

static void sink_ready(struct source *source, uint32_t events)
{
    char bytes[4096];
    (void)events;
    for (int i = 0; i < 16; i++) {
        ssize_t n = read(source->fd, bytes, sizeof bytes);
        if (n > 0)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        loop_close(source);
        loop_free_later(container_of(source, struct sink, source));
        return;
    }
}

/* Hand a pipe that children still hold to a sink of its own; a terminal is hung up instead. */
static void let_go(struct source *source, bool terminal)
{
    struct sink *sink = source->fd >= 0 && !terminal ? calloc(1, sizeof *sink) : NULL;
    if (sink == NULL) {
        loop_close(source);
        return;
    }
    sink->source = (struct source){source->fd, sink_ready};
    source->fd = -1;
    loop_change(&sink->source, EPOLLIN);
}

void output_let_go(struct command *c)
{
    for (int which = 0; which < 2; which++) {
        let_go(&c->outputs[which].source, c->terminal_fd >= 0);
        log_close(&c->logs[which]);
    }
    c->terminal_fd = -1;
}
