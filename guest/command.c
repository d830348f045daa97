/*
 * The table of commands and what becomes of each: RUNNING until its leader is gone (and, when it is being
 * ended, its whole tree), DRAINING while children hold its pipes, ENDED. Must never forget a running one, nor
 * report an end before the output that came before it.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tree.h"

#define BUCKETS 256
#define DRAIN_MS 1000
#define QUIET_MS 200
#define HANG_UP_MS 250
#define RETRY_MS_MIN 1
#define RETRY_MS_MAX 50

struct list commands_running = {&commands_running, &commands_running};
struct list commands_remembered = {&commands_remembered, &commands_remembered};
unsigned commands_running_count;

static struct command *buckets[BUCKETS];
static unsigned remembered_count, lingering_count;
static size_t remembered_bytes;

static unsigned hash(const char *id)
{
    unsigned value = 2166136261u; /* FNV-1a */
    for (; *id != 0; id++)
        value = (value ^ (unsigned char)*id) * 16777619u;
    return value % BUCKETS;
}

struct command *command_find(const char *id)
{
    struct command *c = buckets[hash(id)];
    while (c != NULL && strcmp(c->id, id) != 0)
        c = c->same_hash;
    return c;
}

struct command *command_new(char *id)
{
    struct timespec now;
    struct command *c = calloc(1, sizeof *c);
    if (c == NULL)
        return NULL;
    clock_gettime(CLOCK_REALTIME, &now);
    c->id = id;
    c->error_fd = c->report.fd = c->input.source.fd = c->terminal_fd = -1;
    c->outputs[0].source.fd = c->outputs[1].source.fd = -1;
    c->started_us = now_us();
    c->started_real_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    c->timeout_at_ms = c->kill_at_ms = c->drain_until_ms = c->retry_at_ms = NEVER;
    list_init(&c->streams);
    list_append(&commands_running, &c->link);
    commands_running_count++;
    unsigned bucket = hash(id);
    c->same_hash = buckets[bucket];
    buckets[bucket] = c;
    return c;
}

static void forget(struct command *c)
{
    struct command **at = &buckets[hash(c->id)];
    while (*at != c)
        at = &(*at)->same_hash;
    *at = c->same_hash;
    list_remove(&c->link);
    remembered_count--;
    remembered_bytes -= log_memory_bytes(&c->logs[0]) + log_memory_bytes(&c->logs[1]);
    if (c->group[0] != 0 || c->report.fd >= 0)
        lingering_count--;
    tree_forget(c);
    loop_close(&c->report);
    log_drop(&c->logs[0]);
    log_drop(&c->logs[1]);
    free(c->message);
    free(c->id);
    loop_free_later(c);
}

/* Keep the memory of ended commands bounded: first outputs go, then records; the oldest first. */
static void keep_bounded(void)
{
    list_each(at, following, &commands_remembered) {
        struct command *c = container_of(at, struct command, link);
        if (remembered_count <= REMEMBERED_MAX && remembered_bytes <= REMEMBERED_BYTES_MAX)
            return;
        if (!list_empty(&c->streams))
            continue;
        if (remembered_count > REMEMBERED_MAX) {
            forget(c);
            continue;
        }
        remembered_bytes -= log_memory_bytes(&c->logs[0]) + log_memory_bytes(&c->logs[1]);
        log_drop(&c->logs[0]);
        log_drop(&c->logs[1]);
    }
}

static void finish(struct command *c)
{
    c->state = ENDED;
    if (c->ended_us == 0)
        c->ended_us = now_us();
    c->timeout_at_ms = c->kill_at_ms = c->drain_until_ms = c->retry_at_ms = NEVER;
    output_let_go(c);
    input_close(c);
    if (!tree_forget(c))
        lingering_count++;
    list_remove(&c->link);
    commands_running_count--;
    list_append(&commands_remembered, &c->link);
    remembered_count++;
    remembered_bytes += log_memory_bytes(&c->logs[0]) + log_memory_bytes(&c->logs[1]);
    command_wake_ended(c);
    keep_bounded();
}

/* Why it ended, once the leader's status is known. */
static void judge(struct command *c)
{
    char text[512];
    ssize_t n = c->error_fd >= 0 ? read(c->error_fd, text, sizeof text - 1) : 0;
    if (c->error_fd >= 0)
        close(c->error_fd);
    c->error_fd = -1;
    bool killed = WIFSIGNALED(c->status) && WTERMSIG(c->status) == SIGKILL && !c->sent_kill;
    bool like_killed = WIFEXITED(c->status) && WEXITSTATUS(c->status) == 128 + SIGKILL;
    c->unexpected = killed;
    if (n > 0) {
        text[n] = 0;
        c->message = strdup(text);
        c->reason = END_START_FAILED;
    } else if (c->ending != 0) {
        c->reason = c->ending;
    } else if ((killed || like_killed) && cgroup_oom_kills() > c->oom_before) {
        c->reason = END_OUT_OF_MEMORY;
    } else {
        c->reason = WIFSIGNALED(c->status) ? END_SIGNAL : END_EXIT;
    }
}

void command_leader_gone(struct command *c, int status, int64_t cpu_us, int64_t peak_bytes)
{
    c->leader_gone = true;
    c->status = status;
    c->cpu_us = cpu_us;
    c->peak_bytes = peak_bytes;
    c->ended_us = now_us();
    c->timeout_at_ms = NEVER;
    judge(c);
    command_advance(c);
}

void command_fail_start(struct command *c, const char *message)
{
    c->leader_gone = true;
    c->reason = END_START_FAILED;
    c->message = strdup(message);
    finish(c);
}

void command_advance(struct command *c)
{
    int64_t now = now_ms();
    if (c->state == RUNNING) {
        if (!c->leader_gone)
            return;
        if (c->ending != 0 && !tree_empty(c)) { /* part of it still winds down */
            int64_t since = now - c->ended_us / 1000;
            int64_t wait = since / 4 < RETRY_MS_MIN ? RETRY_MS_MIN : since / 4;
            c->retry_at_ms = now + (wait > RETRY_MS_MAX ? RETRY_MS_MAX : wait);
            return;
        }
        c->state = DRAINING;
        c->kill_at_ms = c->retry_at_ms = NEVER;
        c->quiet_until_ms = now + QUIET_MS;
        c->drain_until_ms = now + DRAIN_MS;
        output_drain(c);
    }
    if (c->state != DRAINING)
        return;
    if (!output_open_any(c) || now >= c->quiet_until_ms || now >= c->drain_until_ms)
        finish(c);
}

void command_end_tree(struct command *c, enum end_reason why)
{
    if (c->state == ENDED) {
        if (c->group[0] != 0 || c->report.fd >= 0)
            tree_kill(c); /* what lives on of it */
        return;
    }
    if (c->leader_gone) { /* draining: how it ended stands, and a cancel ends what it left behind */
        if (why == END_CANCELLED && c->state == DRAINING) {
            c->ending = why;
            c->state = RUNNING; /* until its tree is empty */
            tree_kill(c);
            command_advance(c);
        }
        return;
    }
    if (c->ending != 0)
        return;
    c->ending = why;
    c->timeout_at_ms = NEVER;
    if (c->grace_ms > 0) {
        if (c->terminal_fd >= 0) {
            tree_signal(c, SIGHUP); /* an interactive shell heeds no TERM */
            c->retry_at_ms = now_ms() + HANG_UP_MS;
        }
        tree_signal(c, SIGTERM);
        tree_signal(c, SIGCONT);
        c->kill_at_ms = now_ms() + c->grace_ms;
    } else {
        tree_kill(c);
        c->kill_at_ms = now_ms() + RETRY_MS_MAX;
    }
}

static int64_t deadline_of(const struct command *c)
{
    int64_t first = c->timeout_at_ms < c->kill_at_ms ? c->timeout_at_ms : c->kill_at_ms;
    if (c->retry_at_ms < first)
        first = c->retry_at_ms;
    if (c->state == DRAINING) {
        int64_t drain = c->drain_until_ms < c->quiet_until_ms ? c->drain_until_ms : c->quiet_until_ms;
        first = drain < first ? drain : first;
    }
    return first;
}

int64_t commands_deadline_ms(void)
{
    int64_t first = NEVER;
    list_each(at, following, &commands_running) {
        int64_t deadline = deadline_of(container_of(at, struct command, link));
        first = deadline < first ? deadline : first;
    }
    return first;
}

void commands_tick(void)
{
    int64_t now = now_ms();
    list_each(at, following, &commands_running) {
        struct command *c = container_of(at, struct command, link);
        if (c->timeout_at_ms <= now)
            command_end_tree(c, END_TIMEOUT);
        if (c->kill_at_ms <= now) {
            tree_kill(c);
            c->kill_at_ms = now + RETRY_MS_MAX; /* where killing is not atomic, again */
        }
        if (c->retry_at_ms <= now) {
            c->retry_at_ms = NEVER;
            if (c->ending != 0 && !c->leader_gone)
                output_hang_up(c); /* heeds neither HUP nor TERM while it waits for a key */
            else
                output_resume(c);
        }
        if (c->leader_gone)
            command_advance(c);
    }
}

/* An orphan's death may have emptied the tree of a command that ended before. */
static void look_at_lingering(void)
{
    list_each(at, following, &commands_remembered) {
        struct command *c = container_of(at, struct command, link);
        if (lingering_count == 0)
            return;
        if (c->group[0] != 0 && tree_forget(c))
            lingering_count--;
    }
}

static struct command *of_leader(pid_t pid)
{
    list_each(at, following, &commands_running) {
        struct command *c = container_of(at, struct command, link);
        if (c->leader == pid && !c->leader_gone)
            return c;
    }
    return NULL;
}

void commands_reap(void)
{
    int status;
    struct rusage usage;
    pid_t pid;
    bool orphans = false;
    while ((pid = wait4(-1, &status, WNOHANG, &usage)) > 0) {
        struct command *c = of_leader(pid);
        if (c != NULL) {
            int64_t cpu_us = (int64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000 +
                             usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
            command_leader_gone(c, status, cpu_us, usage.ru_maxrss * 1024);
        } else if (!helper_reaped(pid, status)) {
            orphans = true;
        }
    }
    if (orphans && lingering_count > 0)
        look_at_lingering();
    commands_tick();
}

