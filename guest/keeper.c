/*
 * The keeper: stands between guest and leader where there is no cgroup, so that orphans of the command stay
 * below it; see tree.h. Must never hold a descriptor but the one it reports on, nor do anything but wait.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch.h"

#ifndef SYS_close_range
#define SYS_close_range 436 /* the same on every architecture */
#endif

struct report {
    int32_t pid, status;
    int64_t cpu_us, peak_bytes;
};

static int64_t usage_cpu_us(const struct rusage *u)
{
    return (int64_t)(u->ru_utime.tv_sec + u->ru_stime.tv_sec) * 1000000 + u->ru_utime.tv_usec +
           u->ru_stime.tv_usec;
}

/* What wait() would have said. */
static int wait_status(const siginfo_t *info)
{
    if (info->si_code == CLD_EXITED)
        return (info->si_status & 0xff) << 8;
    return info->si_status | (info->si_code == CLD_DUMPED ? 0x80 : 0);
}

static void close_all_but(int fd)
{
    dup2(fd, 0);
    if (syscall(SYS_close_range, 1u, ~0u, 0u) < 0)
        for (int at = 1; at < 1024; at++)
            close(at);
}

static void tell(int fd, struct report report)
{
    ssize_t n = write(fd, &report, sizeof report);
    (void)n;
}

static _Noreturn void keeper_run(const struct launch *l, int report_fd)
{
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    prctl(PR_SET_NAME, "cloche-keeper", 0, 0, 0);
    pid_t leader = fork();
    if (leader == 0)
        child_run(l);
    if (leader < 0)
        child_fail(l, "cannot start", l->argv[0], errno);
    close_all_but(report_fd);
    tell(0, (struct report){.pid = leader});
    for (;;) { /* told before it is reaped: whoever kills the keeper in between leaves the status to us */
        siginfo_t info = {0};
        struct rusage usage;
        if (syscall(SYS_waitid, P_ALL, 0, &info, WEXITED | WNOWAIT, &usage) < 0) {
            if (errno == EINTR)
                continue;
            _exit(0);
        }
        if (info.si_pid == leader)
            tell(0, (struct report){leader, wait_status(&info), usage_cpu_us(&usage), usage.ru_maxrss * 1024});
        waitpid(info.si_pid, NULL, 0);
    }
}

static void report_ready(struct source *source, uint32_t events)
{
    struct command *c = container_of(source, struct command, report);
    struct report report;
    (void)events;
    ssize_t n = read(source->fd, &report, sizeof report);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n == (ssize_t)sizeof report && !c->leader_gone) {
        command_leader_gone(c, report.status, report.cpu_us, report.peak_bytes);
        return;
    }
    loop_close(source); /* the keeper is gone, and with it the tree; or it was killed: then by session */
    if (!c->leader_gone && kill(c->leader, 0) < 0 && errno == ESRCH)
        command_leader_gone(c, SIGKILL, 0, 0); /* killed together, and nobody was there to take its status */
    else
        command_advance(c);
}

bool keeper_start(struct command *c, struct launch *l)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return false;
    pid_t pid = fork();
    if (pid == 0)
        keeper_run(l, ends[1]);
    int error = errno;
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        errno = error;
        return false;
    }
    struct report first = {0};
    ssize_t n;
    do
        n = read(ends[0], &first, sizeof first);
    while (n < 0 && errno == EINTR);
    c->keeper = pid;
    c->leader = n == (ssize_t)sizeof first ? first.pid : 0;
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    c->report = (struct source){ends[0], report_ready};
    if (c->leader == 0 || loop_add(&c->report, EPOLLIN) < 0) {
        close(ends[0]);
        c->report.fd = -1;
        errno = EAGAIN;
        return c->leader != 0;
    }
    return true;
}
