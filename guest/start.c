/* Starts commands. Must never start one id twice, nor leave a descriptor of a start that failed. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launch.h"
#include "path.h"
#include "tree.h"

#define ID_BYTES_MAX 128
#define GRACE_MS_DEFAULT 2000
#define CAP_BYTES_DEFAULT (1u << 20)
#define OOM_SCORE_COMMANDS "500" /* the killer takes a command before it takes the guest */

/* Our ends of the three streams; all -1 at first. */
struct ends {
    int input, output[2], error;
};

static void close_if_open(int fd)
{
    if (fd > 2)
        close(fd);
}

static void close_launch(const struct launch *l)
{
    close_if_open(l->fds[0]);
    close_if_open(l->fds[1]);
    if (l->fds[2] != l->fds[1])
        close_if_open(l->fds[2]);
    close_if_open(l->error_fd);
    close_if_open(l->cgroup_fd);
}

static void close_ends(const struct ends *e)
{
    close_if_open(e->input);
    close_if_open(e->output[0]);
    close_if_open(e->output[1]);
    close_if_open(e->error);
}

static bool make_pipe(int *read_end, int *write_end)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return false;
    *read_end = ends[0];
    *write_end = ends[1];
    return true;
}

static bool open_pipes(struct launch *l, struct ends *e, bool stream_stdin)
{
    for (int which = 0; which < 2; which++) {
        if (!make_pipe(&e->output[which], &l->fds[1 + which]))
            return false;
        /* so that /dev/stdout can be opened anew by another user than ours */
        fchown(l->fds[1 + which], l->who.uid, l->who.gid);
    }
    if (stream_stdin) {
        if (!make_pipe(&l->fds[0], &e->input))
            return false;
        fchown(l->fds[0], l->who.uid, l->who.gid);
        return true;
    }
    l->fds[0] = path_open("/dev/null", O_RDONLY, 0);
    if (l->fds[0] >= 0)
        return true;
    int unused; /* an image without /dev/null: a pipe that nobody writes to */
    if (!make_pipe(&l->fds[0], &unused))
        return false;
    close(unused);
    return true;
}

static bool open_terminal(struct launch *l, struct ends *e, const struct request *r)
{
    int unlocked = 0;
    struct winsize size = {.ws_col = (unsigned short)request_number(r, F_COLUMNS, 80),
                           .ws_row = (unsigned short)request_number(r, F_ROWS, 24)};
    int master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (master < 0)
        return false;
    e->output[0] = master;
    if (ioctl(master, TIOCSPTLCK, &unlocked) < 0)
        return false;
    int slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (slave < 0)
        return false;
    l->fds[0] = l->fds[1] = l->fds[2] = slave;
    fchown(slave, l->who.uid, (gid_t)-1);
    ioctl(master, TIOCSWINSZ, &size);
    e->input = fcntl(master, F_DUPFD_CLOEXEC, 3);
    l->terminal = true;
    return e->input >= 0;
}

static void set_oom_score(const char *score)
{
    if (guest.oom_fd >= 0) {
        ssize_t n = pwrite(guest.oom_fd, score, strlen(score), 0);
        (void)n;
    }
}

/* The child inherits the score: raised around the fork, since the child could not write its own. */
static bool spawn(struct command *c, struct launch *l)
{
    l->cgroup_fd = cgroup_make(c);
    c->oom_before = cgroup_oom_kills();
    set_oom_score(OOM_SCORE_COMMANDS);
    bool good = true;
    if (l->cgroup_fd >= 0) {
        pid_t pid = fork_into(l->cgroup_fd);
        if (pid == 0)
            child_run(l);
        c->leader = pid < 0 ? 0 : pid;
        good = pid > 0;
    } else {
        good = keeper_start(c, l);
    }
    int error = errno;
    set_oom_score("0");
    errno = error;
    return good;
}

static int open_spill(void)
{
    static const char *const folders[] = {"/var/tmp", "/tmp", "/"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        int fd = path_open(folders[i], O_TMPFILE | O_RDWR, 0600);
        if (fd >= 0)
            return fd;
    }
    char name[64];
    static unsigned counter;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        snprintf(name, sizeof name, "%s/.cloche-%d-%u", folders[i], (int)getpid(), ++counter);
        int fd = path_open(name, O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW, 0600);
        if (fd >= 0) {
            unlink(name);
            return fd;
        }
    }
    return -1;
}

static void take_ends(struct command *c, const struct ends *e, bool terminal)
{
    c->error_fd = e->error;
    c->terminal_fd = terminal ? e->output[0] : -1;
    for (int which = 0; which < 2; which++)
        if (e->output[which] >= 0)
            output_open(c, which, e->output[which]);
    if (e->input >= 0)
        input_open(c, e->input);
    else
        c->input.closed = true;
}

/* Start what the request says as this command, or end it as START_FAILED with the reason. */
static void start(struct command *c, const struct request *r)
{
    struct launch l = {.fds = {-1, -1, -1}, .error_fd = -1, .cgroup_fd = -1};
    struct ends e = {-1, {-1, -1}, -1};
    struct field field;
    char text[512];
    const char *error = NULL;
    bool terminal = request_field(r, F_COLUMNS, &field);
    char *user = request_text(r, F_USER), *cwd = request_text(r, F_CWD);
    l.cwd = cwd != NULL ? cwd : strdup(guest.options.cwd);
    if (!launch_read(&l, r, &error) || l.cwd == NULL) {
        snprintf(text, sizeof text, "%s", error != NULL ? error : "no memory");
    } else if (!identity_resolve(user != NULL ? user : guest.options.user, &l.who, &error)) {
        snprintf(text, sizeof text, "user %.200s: %s", user != NULL ? user : guest.options.user, error);
    } else if (!launch_environment(&l, terminal) || !make_pipe(&e.error, &l.error_fd) ||
               !(terminal ? open_terminal(&l, &e, r)
                          : open_pipes(&l, &e, request_number(r, F_STDIN, STDIN_EMPTY) == STDIN_STREAM))) {
        snprintf(text, sizeof text, "cannot open its %s: %s", terminal ? "terminal" : "standard streams",
                 strerror(errno));
    } else if (spawn(c, &l)) {
        fcntl(e.error, F_SETFL, O_NONBLOCK);
        take_ends(c, &e, terminal);
        text[0] = 0;
    } else {
        snprintf(text, sizeof text, "cannot start a process: %s", strerror(errno));
    }
    close_launch(&l);
    launch_free(&l);
    free(user);
    if (text[0] == 0)
        return;
    close_ends(&e);
    command_fail_start(c, text);
}

static void read_limits(struct command *c, const struct request *r)
{
    uint64_t timeout_ms = request_number(r, F_TIMEOUT_MS, 0);
    uint64_t grace_ms = request_number(r, F_GRACE_MS, GRACE_MS_DEFAULT);
    size_t cap = (size_t)request_number(r, F_CAP_BYTES, CAP_BYTES_DEFAULT);
    c->grace_ms = grace_ms > INT32_MAX ? INT32_MAX : (int64_t)grace_ms;
    if (timeout_ms > 0 && timeout_ms < INT64_MAX / 4)
        c->timeout_at_ms = now_ms() + (int64_t)timeout_ms;
    for (int which = 0; which < 2; which++) {
        log_init(&c->logs[which], cap);
        if (request_number(r, F_SPILL, 0) != 0)
            log_spill_to(&c->logs[which], open_spill());
    }
}

static void reply_started(struct request *r, const struct command *c, bool attached)
{
    struct buffer *out = &r->connection->out;
    size_t mark = reply_begin(r->connection, r->id);
    put_number(out, F_ATTACHED, attached);
    if (c->leader > 0)
        put_number(out, F_PID, (uint64_t)c->leader);
    reply_end(r->connection, mark);
}

void request_start(struct request *r)
{
    char *id = request_text(r, F_COMMAND);
    struct command *c = id != NULL ? command_find(id) : NULL;
    if (c != NULL) {
        reply_started(r, c, true);
        free(id);
        return;
    }
    if (id == NULL || id[0] == 0 || strlen(id) > ID_BYTES_MAX) {
        reply_error(r->connection, r->id, E_BAD_REQUEST, 0, "a command needs an id of 1 to 128 bytes");
        free(id);
        return;
    }
    if (commands_running_count >= RUNNING_MAX || (c = command_new(id)) == NULL) {
        reply_error(r->connection, r->id, E_LIMIT, 0, "too many commands are running");
        free(id);
        return;
    }
    read_limits(c, r);
    start(c, r);
    reply_started(r, c, false);
}
