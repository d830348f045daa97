/* Readers of commands: waits, output streams and the listing. Must never make one reader wait for another. */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "guest.h"

#define ENTRIES_PER_PAGE 512

struct reader {
    struct stream base;
    struct command *command;
    int which;       /* 0 stdout, 1 stderr; -1 waits for the end only */
    uint64_t offset; /* of the next byte to send */
    bool at_end;     /* not before the end, and then what memory holds */
};

static void wait_pump(struct stream *s);
static void output_pump(struct stream *s);

static const struct stream_kind wait_kind = {.pump = wait_pump, .counts_as_busy = true};
static const struct stream_kind output_kind = {.pump = output_pump, .counts_as_busy = true};

void put_end_record(struct buffer *b, const struct command *c)
{
    put_number(b, F_REASON, c->reason);
    if (c->reason != END_START_FAILED) {
        if (WIFEXITED(c->status))
            put_number(b, F_EXIT_CODE, (uint64_t)WEXITSTATUS(c->status));
        else if (WIFSIGNALED(c->status))
            put_number(b, F_SIGNAL, (uint64_t)WTERMSIG(c->status));
    }
    put_number(b, F_DURATION_US, (uint64_t)(c->ended_us - c->started_us));
    put_number(b, F_CPU_US, (uint64_t)c->cpu_us);
    put_number(b, F_PEAK_BYTES, (uint64_t)c->peak_bytes);
    if (c->unexpected)
        put_number(b, F_UNEXPECTED, 1);
    if (c->message != NULL)
        put_text(b, F_MESSAGE, c->message);
}

static struct reader *open_reader(struct request *r, const struct stream_kind *kind)
{
    char *id = request_text(r, F_COMMAND);
    struct command *c = id != NULL ? command_find(id) : NULL;
    free(id);
    if (c == NULL) {
        reply_error(r->connection, r->id, E_NO_COMMAND, 0, "no such command");
        return NULL;
    }
    struct reader *reader = stream_open(r->connection, r->id, kind, sizeof *reader);
    if (reader == NULL)
        return NULL;
    reader->command = c;
    reader->which = -1;
    list_append(&c->streams, &reader->base.on);
    stream_wake(&reader->base);
    return reader;
}

void request_wait(struct request *r) { open_reader(r, &wait_kind); }

static void wait_pump(struct stream *s)
{
    struct reader *reader = container_of(s, struct reader, base);
    if (reader->command->state != ENDED) {
        stream_rest(s);
        return;
    }
    size_t mark = stream_reply_begin(s);
    put_end_record(&s->connection->out, reader->command);
    stream_reply_end(s, mark);
}

void request_output(struct request *r)
{
    uint64_t which = request_number(r, F_STREAM, 0);
    if (which > 1) {
        reply_error(r->connection, r->id, E_BAD_REQUEST, 0, "a stream is 0 or 1");
        return;
    }
    struct reader *reader = open_reader(r, &output_kind);
    if (reader == NULL)
        return;
    reader->which = (int)which;
    reader->offset = request_number(r, F_OFFSET, 0);
    reader->at_end = request_number(r, F_AT_END, 0) != 0;
    reader->base.credit = request_number(r, F_CREDIT, 0);
}

static void output_end(struct stream *s, const struct log *log)
{
    size_t mark = stream_reply_begin(s);
    put_number(&s->connection->out, F_TOTAL_BYTES, log->total);
    stream_reply_end(s, mark);
}

static void output_pump(struct stream *s)
{
    struct reader *reader = container_of(s, struct reader, base);
    const struct log *log = &reader->command->logs[reader->which];
    unsigned char spilled[DATA_BYTES_MAX / 4];
    const unsigned char *bytes = NULL;
    size_t n = 0;
    if (reader->at_end && !log->closed) {
        stream_rest(s);
        return;
    }
    if (!reader->at_end && log_spilled(log, reader->offset)) {
        ssize_t got = log_read_spill(log, reader->offset, spilled, sizeof spilled);
        bytes = spilled;
        n = got > 0 ? (size_t)got : 0;
    }
    if (n == 0) {
        reader->offset = log_held(log, reader->offset);
        n = log_view(log, reader->offset, &bytes);
    }
    if (n == 0 && log->closed) {
        output_end(s, log);
        return;
    }
    n = n < DATA_BYTES_MAX ? n : DATA_BYTES_MAX;
    n = n < s->credit ? n : (size_t)s->credit;
    if (n == 0) {
        stream_rest(s);
        return;
    }
    stream_send_data(s, reader->offset, bytes, n);
    reader->offset += n;
}

void command_wake_streams(struct command *c, int which)
{
    list_each(at, following, &c->streams) {
        struct stream *s = container_of(at, struct stream, on);
        if (s->kind == &output_kind && container_of(s, struct reader, base)->which == which)
            stream_wake(s);
    }
}

void command_wake_ended(struct command *c)
{
    list_each(at, following, &c->streams) {
        struct stream *s = container_of(at, struct stream, on);
        if (s->kind->pump != NULL)
            stream_wake(s);
    }
}

static void put_entry(struct buffer *b, const struct command *c)
{
    size_t mark = put_begin(b, F_ENTRY);
    put_text(b, F_COMMAND, c->id);
    put_number(b, F_RUNNING, c->state != ENDED);
    put_number(b, F_STARTED_MS, (uint64_t)c->started_real_ms);
    if (c->leader > 0)
        put_number(b, F_PID, (uint64_t)c->leader);
    for (int which = 0; which < 2; which++)
        put_number(b, F_TOTAL_BYTES, c->logs[which].total);
    if (c->state == ENDED)
        put_end_record(b, c);
    put_end(b, mark);
}

/* Pages by position, the running ones first: a table that changes meanwhile may repeat or miss some. */
void request_commands(struct request *r)
{
    uint64_t skip = request_number(r, F_OFFSET, 0), at_index = 0;
    struct buffer *out = &r->connection->out;
    size_t mark = reply_begin(r->connection, r->id);
    struct list *heads[2] = {&commands_running, &commands_remembered};
    for (int i = 0; i < 2; i++) {
        list_each(at, following, heads[i]) {
            if (at_index++ < skip)
                continue;
            if (at_index > skip + ENTRIES_PER_PAGE) {
                put_number(out, F_NEXT, skip + ENTRIES_PER_PAGE);
                reply_end(r->connection, mark);
                return;
            }
            put_entry(out, container_of(at, struct command, link));
        }
    }
    reply_end(r->connection, mark);
}
