/*
 * Ends sandboxes and removes all that belongs to them; also what a dead spawner left. Everything is found by the
 * sandbox's id, so that it can be done again, by anyone, at any time. The run folder goes last: while it is there,
 * there is something to remove.
 */
#include "spawner.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <time.h>

#include "sys.h"

#define QUICK_DEATH_MS 500
#define DEATH_MS 20000

/*
 * Whether the first process is over. A pid without a pidfd is safe to name while it is a child of ours that nobody has
 * reaped; that of an adopted sandbox is another's as soon as its start time is another.
 */
bool sandbox_gone(const struct sandbox *s)
{
    siginfo_t info = {0};
    if (s->pidfd >= 0)
        return poll(&(struct pollfd){.fd = s->pidfd, .events = POLLIN}, 1, 0) == 1;
    if (s->adopted)
        return process_start_time(s->pid) != s->start_time;
    return waitid(P_PID, (id_t)s->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == s->pid;
}

void sandbox_signal(const struct sandbox *s, int signal_number)
{
    if (s->pidfd >= 0)
        syscall(SYS_pidfd_send_signal, s->pidfd, signal_number, NULL, 0);
    else if (!sandbox_gone(s))
        kill(s->pid, signal_number);
}

static bool ends_in_time(const struct sandbox *s, int limit_ms)
{
    if (s->pidfd >= 0)
        return poll(&(struct pollfd){.fd = s->pidfd, .events = POLLIN}, 1, limit_ms) == 1;
    for (int ms = 0; ms < limit_ms; ms++) {
        if (sandbox_gone(s))
            return true;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return false;
}

/* The first process of a pid namespace takes all others with it, and lets none be born, before its own end shows. */
static int end_process(struct sandbox *s, siginfo_t *info, struct failure *f)
{
    *info = (siginfo_t){0};
    if (s == NULL || s->pid <= 0)
        return 0;
    sandbox_signal(s, SIGKILL);
    cgroup_thaw_for_death(s->id);
    if (!ends_in_time(s, QUICK_DEATH_MS))
        cgroup_kill(s->id); /* it takes a lock that all of cgroups share: only where the kernel's own way is slow */
    if (!ends_in_time(s, DEATH_MS))
        return fail_with(f, "failed", EBUSY, "process %d does not end", s->pid);
    if (!s->adopted)
        waitid(P_PID, (id_t)s->pid, info, WEXITED | WNOHANG);
    return 0;
}

/*
 * The writable layer. A sandbox that wrote nothing leaves only folders that we and the kernel made, whose names are known:
 * six calls, where looking would take dozens. None of those but `upper`, the last of its path, can be a workload's.
 */
static int remove_layer(const char *id)
{
    static const char *const made[] = {"work/work/incompat/volatile", "work/work/incompat", "work/work", "work", "upper"};
    int own = openat(uppers_fd, id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (own >= 0) {
        for (size_t i = 0; i < sizeof made / sizeof *made; i++)
            unlinkat(own, made[i], AT_REMOVEDIR);
        bool gone = unlinkat(uppers_fd, id, AT_REMOVEDIR) == 0;
        close(own); /* its blocks are freed here, not under the lock of the folder that all sandboxes share */
        if (gone || store_remove(id) == 0)
            return 1;
    }
    return remove_tree(uppers_fd, id);
}

int sandbox_remove(const char *id, struct sandbox *s, bool keep_record, struct failure *f)
{
    static const char *const kept[] = {"record.json", "end.json", NULL};
    siginfo_t info;
    if (s == NULL || s->pid <= 0)
        cgroup_kill(id); /* who knows what is in there */
    if (end_process(s, &info, f) != 0)
        return -1;
    if (s != NULL)
        network_remove(s);
    int groups = cgroup_remove(id);
    if (groups < 0)
        return fail_with(f, "failed", EBUSY, "a cgroup of %s cannot be removed", id);
    int upper = remove_layer(id);
    if (upper < 0)
        return fail(f, "remove the writable layer");
    int folder;
    if (keep_record) {
        int dir = openat(sandboxes_fd, id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        folder = dir < 0 ? 0 : remove_entries(dir, kept);
        close(dir);
    } else {
        folder = remove_tree(sandboxes_fd, id);
    }
    if (folder < 0)
        return fail(f, "remove the run folder");
    return groups > 0 || upper > 0 || folder > 0 || s != NULL;
}

static void write_end(const char *id, const char *reason, int code, int signal_number)
{
    char text[200];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int size = snprintf(text, sizeof text, "{\"reason\": \"%s\", \"exit_code\": %d, \"signal\": %d, \"ended_at\": %lld.%03ld}\n",
                        reason, code, signal_number, (long long)now.tv_sec, now.tv_nsec / 1000000);
    int dir = openat(sandboxes_fd, id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0)
        return;
    write_file_at(dir, "end.json", text, (size_t)size, 0600);
    close(dir);
}

/*
 * How the first process ended. It is our child, or another's that has not reaped it yet, or (Linux 6.15) its pidfd
 * tells, which it does only once it is reaped.
 */
static bool end_status(const struct sandbox *s, int *status)
{
    if (!s->adopted)
        return waitpid(s->pid, status, 0) == s->pid;
    *status = process_wait_status(s->pid);
    if (process_start_time(s->pid) == s->start_time)
        return true; /* asked in this order, it was the same process */
    if (s->pidfd < 0)
        return false;
    struct kernel_pidfd_info info = {.mask = CLOCHE_PIDFD_INFO_EXIT};
    bool told = ioctl(s->pidfd, CLOCHE_PIDFD_GET_INFO, &info) == 0 && (info.mask & CLOCHE_PIDFD_INFO_EXIT) != 0;
    *status = info.exit_code;
    return told;
}

/* A sandbox whose guest is gone: say why, sweep all but that. */
void sandbox_ended(struct sandbox *s)
{
    int status;
    struct failure ignored;
    bool known = end_status(s, &status);
    bool exited = known && WIFEXITED(status);
    const char *reason = "lost";
    if (exited)
        reason = "guest_exit";
    else if (s->pooled && cgroup_pool_kills() > s->pool_kills)
        reason = "host_memory";
    else if (cgroup_oom_kills(s->id) > 0)
        reason = "out_of_memory";
    write_end(s->id, reason, exited ? WEXITSTATUS(status) : -1, known && !exited ? WTERMSIG(status) : 0);
    sandbox_remove(s->id, s, true, &ignored);
}

/* A paused sandbox whose time is over: its guest, which is frozen, cannot end it. */
void sandbox_overdue(struct sandbox *s)
{
    struct failure ignored;
    write_end(s->id, "guest_exit", 10, 0);
    sandbox_remove(s->id, s, true, &ignored);
}

static uint64_t value_of(const char *text, const char *key)
{
    char line[32];
    snprintf(line, sizeof line, "%s ", key);
    const char *at = strstr(text, line);
    return at == NULL ? 0 : strtoull(at + strlen(line), NULL, 10);
}

static bool alive(const struct sandbox *s)
{
    return s->pid > 0 && s->start_time != 0 && process_start_time(s->pid) == s->start_time && !sandbox_gone(s);
}

static void adopt(const char *id)
{
    char path[ID_BYTES + 16], text[512];
    struct failure ignored;
    struct sandbox s = {.pidfd = -1, .adopted = true};
    snprintf(path, sizeof path, "%s/native", id);
    if (read_file_at(sandboxes_fd, path, text, sizeof text) <= 0)
        return; /* not born yet, or swept: whoever reaps looks at its age */
    strcpy(s.id, id);
    s.pid = (pid_t)value_of(text, "pid");
    s.start_time = value_of(text, "start");
    s.slot = (unsigned)value_of(text, "slot");
    s.pooled = value_of(text, "pooled") != 0;
    s.pool_kills = s.pooled ? cgroup_pool_kills() : 0;
    s.public = value_of(text, "public") != 0;
    s.address = (uint32_t)value_of(text, "address");
    if (s.pid > 0)
        s.pidfd = descriptor_to_keep((int)syscall(SYS_pidfd_open, s.pid, 0));
    if (alive(&s))
        pause_adopt(&s);
    if (alive(&s) && table_adopt(&s) == 0) {
        server_watch(&s);
        return;
    }
    if (s.pidfd >= 0)
        close(s.pidfd);
    s.pidfd = -1;
    s.pid = 0;
    write_end(id, "lost", -1, 0);
    sandbox_remove(id, &s, true, &ignored);
}

void adopt_all(void)
{
    int dir = openat(sandboxes_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = dir < 0 ? NULL : fdopendir(dir);
    if (entries == NULL)
        return;
    for (struct dirent *e; (e = readdir(entries)) != NULL;)
        if (id_valid(e->d_name))
            adopt(e->d_name);
    closedir(entries);
    network_adopted();
}
