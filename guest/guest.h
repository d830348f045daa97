/* What the whole guest shares: its options and state, connections, streams and commands. */
#ifndef CLOCHE_GUEST_H
#define CLOCHE_GUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "frame.h"
#include "list.h"
#include "log.h"
#include "loop.h"
#include "protocol.h"

#define CONNECTIONS_MAX 64
#define STREAMS_PER_CONNECTION_MAX 4096
#define RUNNING_MAX 4096
#define REMEMBERED_MAX 1024            /* ended commands whose record is kept */
#define REMEMBERED_BYTES_MAX (16u << 20) /* memory of the output of ended commands */

struct options {
    int listen_fd; /* -1: none */
    bool stdio, cgroup, harden, no_new_privs, own_caps;
    uint64_t caps;
    int64_t ttl_ms, idle_ms, heartbeat_ms; /* 0: off */
    const char *user, *cwd;
};

struct guest {
    struct options options;
    bool is_init;      /* pid 1 of its namespace: its end is everybody's end */
    int root_fd;       /* "/" */
    int spare_fd;      /* held back, so that one client too many can be turned away */
    int oom_fd;        /* own oom_score_adj, opened while that was possible; -1 */
    int cgroup_fd;     /* own cgroup2 mount, reachable by no path; -1 */
    int64_t started_ms, ttl_until_ms, last_request_ms, last_heartbeat_ms;
    struct list connections;
    unsigned connection_count;
    bool stopping;
};

extern struct guest guest;

/* ---- connections and streams (connection.c, stream.c) ---- */

struct connection {
    struct list link;
    struct source source;        /* reads, and writes where both are one descriptor */
    struct source writer;        /* stdio only */
    struct buffer in, out;
    struct list streams, ready;  /* ready: streams whose pump has something to send */
    struct list dirty;           /* link in the list of those to flush */
    unsigned stream_count;
    bool greeted, closing, waits_for_room, reading_paused;
};

struct stream;

/* Behaviour of one kind of stream; any of these may be NULL. */
struct stream_kind {
    void (*pump)(struct stream *s);   /* send one frame, or end the stream, or stream_rest() */
    void (*data)(struct stream *s, const unsigned char *bytes, size_t n);
    void (*finish)(struct stream *s); /* the client will send no more */
    void (*drop)(struct stream *s);   /* let go of everything; the memory is freed after it */
    bool counts_as_busy;              /* an open one keeps the idle limit away */
};

struct stream {
    struct list link;    /* in the connection */
    struct list ready;   /* in the connection's ready list */
    struct list on;      /* in a command's list */
    struct connection *connection;
    const struct stream_kind *kind;
    uint32_t id;
    uint64_t credit;     /* what the client takes of us */
    uint64_t received;   /* what the client has sent */
    uint64_t owed;       /* received, and not yet given back as credit */
};

void connection_accept_on(struct source *listener);
int connection_open(int read_fd, int write_fd);
void connection_close(struct connection *c);
void connection_touch(struct connection *c); /* there is something to send */
void connections_flush(void);
bool connections_pending(void);

/* A new stream of size bytes, or NULL after an ERROR was sent. */
void *stream_open(struct connection *c, uint32_t id, const struct stream_kind *kind, size_t size);
struct stream *stream_find(struct connection *c, uint32_t id);
void stream_close(struct stream *s);
void stream_wake(struct stream *s); /* its pump has something to do */
void stream_rest(struct stream *s); /* its pump has nothing to do */
void stream_send_data(struct stream *s, uint64_t offset, const unsigned char *bytes, size_t n);
/* Give back credit for n bytes the client sent. */
void stream_give_credit(struct stream *s, uint64_t n);
void stream_fail(struct stream *s, enum error_code code, int error, const char *message);
size_t stream_reply_begin(struct stream *s);
void stream_reply_end(struct stream *s, size_t mark); /* and closes the stream */

/* ---- replies (request.c) ---- */

struct request {
    struct connection *connection;
    uint32_t id;
    struct fields fields;
};

void request_dispatch(struct connection *c, const struct frame *frame);
size_t reply_begin(struct connection *c, uint32_t id);
void reply_end(struct connection *c, size_t mark);
void reply_empty(struct connection *c, uint32_t id);
void reply_error(struct connection *c, uint32_t id, enum error_code code, int error, const char *message);
/* Find a field in a request; the number or the copied text (to be freed), or the fallback or NULL. */
bool request_field(const struct request *r, uint16_t tag, struct field *field);
uint64_t request_number(const struct request *r, uint16_t tag, uint64_t fallback);
char *request_text(const struct request *r, uint16_t tag);

/* ---- commands (command.c and its neighbours) ---- */

enum command_state { RUNNING, DRAINING, ENDED };

struct pipe_end {
    struct source source;
    struct command *command;
};

struct input {
    struct source source;   /* write end of stdin, or a duplicate of the terminal's master */
    struct buffer bytes;
    bool finishing, closed;
};

struct command {
    struct list link;        /* in running or remembered, by time of start or end */
    struct command *same_hash;
    char *id;
    enum command_state state;
    pid_t leader, keeper;
    char group[24];          /* name of its cgroup; "" when it has none (any more) */
    struct source report;    /* what the keeper tells */
    int error_fd;            /* where a failed start is told; -1 */
    struct log logs[2];
    struct pipe_end outputs[2];
    struct input input;
    struct list streams;
    int terminal_fd;         /* master, only a name for outputs[0].source.fd; -1: no terminal */
    bool leader_gone, sent_kill, unexpected;
    bool terminal_idle;      /* nobody has its terminal open just now */
    enum end_reason reason, ending; /* ending: why we are ending it, 0 when we are not */
    int status;              /* wait status */
    int64_t started_us, ended_us, started_real_ms;
    int64_t timeout_at_ms, kill_at_ms, drain_until_ms, quiet_until_ms, retry_at_ms;
    int64_t grace_ms, cpu_us, peak_bytes;
    uint64_t oom_before;
    char *message;
};

struct command *command_find(const char *id);
/* The table; also used by the listing. */
extern struct list commands_running, commands_remembered;
extern unsigned commands_running_count;
struct command *command_new(char *id);
void command_started(struct command *c);
void command_leader_gone(struct command *c, int status, int64_t cpu_us, int64_t peak_bytes);
void command_fail_start(struct command *c, const char *message);
void command_advance(struct command *c); /* look whether it can go on to its next state */
void command_end_tree(struct command *c, enum end_reason why);
void commands_tick(void);
int64_t commands_deadline_ms(void);
void commands_reap(void);
void commands_kill_all(struct connection *c, uint32_t id);
void put_end_record(struct buffer *b, const struct command *c);

/* output.c */
void output_open(struct command *c, int which, int fd);
void output_drain(struct command *c); /* read what is there now */
void output_let_go(struct command *c);
void output_hang_up(struct command *c);
void output_resume(struct command *c); /* look again at a terminal that nobody had open */
bool output_open_any(const struct command *c);

/* input.c */
void input_open(struct command *c, int fd);
void input_close(struct command *c);

/* attach.c: streams on commands */
void command_wake_streams(struct command *c, int which);
void command_wake_ended(struct command *c);

/* requests, by file */
void request_start(struct request *r);
void request_wait(struct request *r);
void request_output(struct request *r);
void request_stdin(struct request *r);
void request_signal(struct request *r);
void request_resize(struct request *r);
void request_cancel(struct request *r);
void request_commands(struct request *r);
void request_read(struct request *r);
void request_write(struct request *r);
void request_stat(struct request *r);
void request_list(struct request *r);
void request_make_dir(struct request *r);
void request_remove(struct request *r);
void request_move(struct request *r);
void request_symlink(struct request *r);
void request_ping(struct request *r);
void request_heartbeat(struct request *r);
void request_extend(struct request *r);

/* lease.c */
void lease_start(void);
int64_t lease_deadline_ms(void);
bool lease_expired(void);
int lease_status(void);
void lease_resumed(void);

/* remove.c: children that work for the guest */
bool helper_reaped(pid_t pid, int status);

#endif
