/* Requests that act on a command or on all. Must never report an end before it is true. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "control.h"
#include "tree.h"

#define SWEEP_MS 2

static struct command *running_of(struct request *r)
{
    char *id = request_text(r, F_COMMAND);
    struct command *c = id != NULL ? command_find(id) : NULL;
    free(id);
    if (c == NULL)
        reply_error(r->connection, r->id, E_NO_COMMAND, 0, "no such command");
    else if (c->state != RUNNING || c->leader_gone)
        reply_error(r->connection, r->id, E_NOT_RUNNING, 0, "the command is over");
    else
        return c;
    return NULL;
}

/* To the leader's process group, as a terminal would. */
void request_signal(struct request *r)
{
    uint64_t number = request_number(r, F_SIGNAL, 0);
    struct command *c = running_of(r);
    if (c == NULL)
        return;
    if (number < 1 || number > 64) {
        reply_error(r->connection, r->id, E_BAD_REQUEST, 0, "a signal is 1 to 64");
        return;
    }
    if (number == SIGKILL)
        c->sent_kill = true;
    /* a child that was only just made has no group of its own yet */
    if (kill(-c->leader, (int)number) < 0 && kill(c->leader, (int)number) < 0)
        reply_error(r->connection, r->id, E_SYSTEM, errno, NULL);
    else
        reply_empty(r->connection, r->id);
}

void request_resize(struct request *r)
{
    struct command *c = running_of(r);
    if (c == NULL)
        return;
    struct winsize size = {.ws_col = (unsigned short)request_number(r, F_COLUMNS, 80),
                           .ws_row = (unsigned short)request_number(r, F_ROWS, 24)};
    if (c->terminal_fd < 0)
        reply_error(r->connection, r->id, E_BAD_REQUEST, 0, "the command has no terminal");
    else if (ioctl(c->terminal_fd, TIOCSWINSZ, &size) < 0)
        reply_error(r->connection, r->id, E_SYSTEM, errno, NULL);
    else
        reply_empty(r->connection, r->id);
}

/* Answered at once; who wants to know the end waits for it. */
void request_cancel(struct request *r)
{
    char *id = request_text(r, F_COMMAND);
    struct command *c = id != NULL ? command_find(id) : NULL;
    free(id);
    if (c == NULL) {
        reply_error(r->connection, r->id, E_NO_COMMAND, 0, "no such command");
        return;
    }
    command_end_tree(c, END_CANCELLED);
    reply_empty(r->connection, r->id);
}

/* ---- all of them ---- */

static struct list sweeping = {&sweeping, &sweeping}; /* streams that wait for the end of everything */
static int64_t sweep_at_ms = NEVER;

static const struct stream_kind sweep_kind = {.counts_as_busy = true};

static bool anything_left(void)
{
    siginfo_t info;
    bool children = waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != ECHILD;
    return children || commands_running_count > 0;
}

/* Every orphan comes to us, so once we have no child there is no process left but us. */
static void sweep(void)
{
    list_each(at, following, &commands_running) {
        struct command *c = container_of(at, struct command, link);
        if (!c->leader_gone && c->ending == 0)
            c->ending = END_CANCELLED;
        tree_kill(c);
    }
    if (guest.is_init)
        kill(-1, SIGKILL); /* as pid 1: everything in our namespace but us */
    else
        proc_kill_descendants(getpid());
}

void sweep_tick(void)
{
    if (sweep_at_ms > now_ms())
        return;
    if (anything_left()) {
        sweep();
        sweep_at_ms = now_ms() + SWEEP_MS;
        return;
    }
    sweep_at_ms = NEVER;
    while (!list_empty(&sweeping)) {
        struct stream *s = container_of(sweeping.next, struct stream, on);
        stream_reply_end(s, stream_reply_begin(s));
    }
}

int64_t sweep_deadline_ms(void) { return sweep_at_ms; }

void commands_kill_all(struct connection *c, uint32_t id)
{
    struct stream *s = stream_open(c, id, &sweep_kind, sizeof *s);
    if (s == NULL)
        return;
    list_append(&sweeping, &s->on);
    sweep_at_ms = 0;
}

void sweep_now(void)
{
    for (int i = 0; i < 1000 && anything_left(); i++) {
        sweep();
        commands_reap();
        usleep(1000);
    }
}
