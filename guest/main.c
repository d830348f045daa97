/*
 * cloche-guest: pid 1 of a sandbox. Runs commands and moves files for whoever holds its socket, reaps
 * orphans, and ends, and with it the sandbox, when its lease runs out. Must never be ended or slowed by what
 * runs beside it.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "control.h"
#include "options.h"
#include "tree.h"

/* the same on every architecture, and newer than some C libraries */
enum { N_open_tree = 428, N_move_mount = 429, N_mount_setattr = 442 };

struct guest guest = {.root_fd = -1, .spare_fd = -1, .oom_fd = -1, .cgroup_fd = -1};

static struct source listener = {.fd = -1}, children = {.fd = -1};

static void listener_ready(struct source *source, uint32_t events)
{
    (void)events;
    connection_accept_on(source);
}

static void children_ready(struct source *source, uint32_t events)
{
    struct signalfd_siginfo info[16];
    (void)events;
    ssize_t size;
    while ((size = read(source->fd, info, sizeof info)) > 0)
        for (size_t i = 0; i < (size_t)size / sizeof *info; i++)
            if (info[i].ssi_signo == SIGUSR1 && info[i].ssi_code == SI_USER && info[i].ssi_pid == 0)
                lease_resumed(); /* nobody inside can send one like it: those have a pid */
    commands_reap();
}

static int fail(const char *what)
{
    fprintf(stderr, "cloche-guest: %s: %s\n", what, strerror(errno));
    return 1;
}

/* The workload's root owns the files in /proc/1 as well, and could offer the guest to the OOM killer there. */
static int freeze_own_proc(void)
{
    struct {
        uint64_t set, clear, propagation, user_namespace;
    } read_only = {.set = 1 /* MOUNT_ATTR_RDONLY */};
    int copy = (int)syscall(N_open_tree, AT_FDCWD, "/proc/1", 1u | O_CLOEXEC /* OPEN_TREE_CLONE */);
    if (copy < 0)
        return -1;
    int good = syscall(N_mount_setattr, copy, "", 0x1000u /* AT_EMPTY_PATH */, &read_only, sizeof read_only) == 0 &&
               syscall(N_move_mount, copy, "", AT_FDCWD, "/proc/1", 4u /* MOVE_MOUNT_F_EMPTY_PATH */) == 0;
    close(copy);
    return good ? 0 : -1;
}

/* Standard streams that are open, and nothing inherited that a command could get. */
static void settle_descriptors(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    while (fd >= 0 && fd < 3);
    if (fd >= 0)
        close(fd);
    for (fd = 3; fd < 64; fd++)
        fcntl(fd, F_SETFD, FD_CLOEXEC);
}

static bool settle_signals(void)
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL); /* none of them may end or stop the guest */
    sigemptyset(&all);
    sigaddset(&all, SIGCHLD);
    sigaddset(&all, SIGUSR1); /* the host tells that it let a paused sandbox go on */
    children = (struct source){signalfd(-1, &all, SFD_CLOEXEC | SFD_NONBLOCK), children_ready};
    return children.fd >= 0 && loop_add(&children, EPOLLIN) == 0;
}

static bool settle_transport(void)
{
    if (guest.options.listen_fd >= 0) {
        listener = (struct source){guest.options.listen_fd, listener_ready};
        fcntl(listener.fd, F_SETFD, FD_CLOEXEC);
        fcntl(listener.fd, F_SETFL, O_NONBLOCK);
        if (loop_add(&listener, EPOLLIN) < 0)
            return false;
    }
    if (!guest.options.stdio)
        return true;
    int in = fcntl(0, F_DUPFD_CLOEXEC, 3), out = fcntl(1, F_DUPFD_CLOEXEC, 3);
    if (in < 0 || out < 0)
        return false;
    fcntl(in, F_SETFL, O_NONBLOCK);
    fcntl(out, F_SETFL, O_NONBLOCK);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC); /* nobody but the protocol uses these two */
    if (null >= 0) {
        dup2(null, 0);
        dup2(null, 1);
        close(null);
    }
    return connection_open(in, out) == 0;
}

static int64_t earliest(int64_t a, int64_t b) { return a < b ? a : b; }

static void run(void)
{
    while (!guest.stopping && !lease_expired()) {
        int64_t deadline = earliest(lease_deadline_ms(), earliest(commands_deadline_ms(), sweep_deadline_ms()));
        if (deadline < 1)
            deadline = 1;
        loop_turn(connections_pending() ? 0 : deadline);
        commands_tick();
        sweep_tick();
        connections_flush();
    }
}

int main(int argc, char **argv)
{
    if (!options_read(&guest.options, argc, argv))
        return 2;
    guest.is_init = getpid() == 1;
    list_init(&guest.connections);
    settle_descriptors();
    guest.root_fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    guest.spare_fd = fcntl(guest.root_fd, F_DUPFD_CLOEXEC, 0);
    guest.oom_fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); /* /proc/1/fd and ptrace are closed to the workload's root */
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    if (guest.is_init && guest.options.harden && freeze_own_proc() < 0)
        return fail("cannot make its own files in /proc read-only");
    if (guest.root_fd < 0 || loop_open() < 0 || !settle_signals())
        return fail("cannot start");
    if (guest.options.cgroup && !cgroup_setup())
        guest.cgroup_fd = -1; /* keepers instead */
    if (!settle_transport())
        return fail("cannot serve");
    lease_start();
    run();
    if (!guest.is_init)
        sweep_now();
    return guest.stopping ? 0 : lease_status();
}
