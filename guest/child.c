/*
 * The last steps of a child before it is the command. Runs in a copy of the guest, with all of the guest's
 * capabilities until it gives them up: must never read anything the workload could have put in its way
 * between taking the user's identity and exec, but for the program itself.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "launch.h"
#include "path.h"

#ifndef SYS_clone3
#define SYS_clone3 435 /* the same on every architecture */
#endif
#define CLONE_INTO_CGROUP_ 0x200000000ull

pid_t fork_into(int cgroup_fd)
{
    struct {
        uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid,
            set_tid_size, cgroup;
    } args = {.exit_signal = SIGCHLD};
    if (cgroup_fd < 0)
        return fork();
    args.flags = CLONE_INTO_CGROUP_;
    args.cgroup = (uint64_t)cgroup_fd;
    pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (pid >= 0 || (errno != ENOSYS && errno != EPERM && errno != EACCES && errno != EINVAL))
        return pid;
    pid = fork(); /* clone3 is not to be had: enter by the file, before anything else is done */
    if (pid == 0) {
        int procs = openat(cgroup_fd, "cgroup.procs", O_WRONLY | O_CLOEXEC);
        if (procs < 0 || write(procs, "0", 1) != 1)
            _exit(127);
        close(procs);
    }
    return pid;
}

_Noreturn void child_fail(const struct launch *l, const char *what, const char *which, int error)
{
    char text[512];
    int n = snprintf(text, sizeof text, "%s %.300s: %s", what, which, strerror(error));
    ssize_t done = write(l->error_fd, text, (size_t)(n < (int)sizeof text ? n : (int)sizeof text - 1));
    (void)done;
    _exit(error == ENOENT ? 127 : 126);
}

static void drop_bounding(const struct launch *l, uint64_t keep)
{
    for (int cap = 0; cap < 64; cap++) {
        int has = prctl(PR_CAPBSET_READ, cap, 0, 0, 0);
        if (has < 0)
            break;
        if (has == 1 && !(keep >> cap & 1) && prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0)
            child_fail(l, "cannot drop", "a capability", errno);
    }
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
}

static void set_capabilities(const struct launch *l, uint64_t keep)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct now[2], data[2] = {{0}};
    if (syscall(SYS_capget, &header, now) < 0)
        child_fail(l, "cannot read", "capabilities", errno);
    for (int i = 0; i < 2; i++) /* inheritable stays empty: see docs/protocol.md */
        data[i].permitted = data[i].effective = now[i].permitted & (uint32_t)(keep >> 32 * i);
    if (syscall(SYS_capset, &header, data) < 0)
        child_fail(l, "cannot set", "capabilities", errno);
}

static void take_identity(const struct launch *l)
{
    const struct identity *who = &l->who;
    const struct options *o = &guest.options;
    bool already = geteuid() != 0 && who->uid == geteuid() && who->gid == getegid();
    if (!already && setgroups((size_t)who->group_count, who->groups) < 0)
        child_fail(l, "cannot set", "supplementary groups", errno);
    if (o->own_caps)
        drop_bounding(l, o->caps);
    if (o->no_new_privs)
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    int error = o->harden ? seccomp_harden() : 0;
    if (error != 0)
        child_fail(l, "cannot install", "the system call filter", error);
    if (already)
        return;
    if (setresgid(who->gid, who->gid, who->gid) < 0)
        child_fail(l, "cannot take", "the group", errno);
    if (setresuid(who->uid, who->uid, who->uid) < 0)
        child_fail(l, "cannot take", "the user", errno);
    if (o->own_caps)
        set_capabilities(l, o->caps);
}

/* execvp over the command's own PATH, without the C library's fallback to a shell. */
static void run_program(const struct launch *l)
{
    const char *program = l->argv[0], *path = "";
    int error = ENOENT;
    if (strchr(program, '/') != NULL) {
        execve(program, l->argv, l->envp);
        child_fail(l, "cannot run", program, errno);
    }
    for (size_t i = 0; i < l->env_count; i++)
        if (strncmp(l->envp[i], "PATH=", 5) == 0)
            path = l->envp[i] + 5;
    while (*path != 0) {
        char candidate[4096];
        size_t bytes = (size_t)(strchrnul(path, ':') - path);
        if (bytes > 0 && bytes + strlen(program) + 2 <= sizeof candidate) {
            snprintf(candidate, sizeof candidate, "%.*s/%s", (int)bytes, path, program);
            execve(candidate, l->argv, l->envp);
            if (errno != ENOENT && errno != ENOTDIR && error != EACCES)
                error = errno;
        }
        path += bytes + (path[bytes] == ':');
    }
    child_fail(l, "cannot run", program, error);
}

_Noreturn void child_run(const struct launch *l)
{
    setsid();
    if (l->terminal && ioctl(l->fds[0], TIOCSCTTY, 0) < 0)
        child_fail(l, "cannot take", "the terminal", errno);
    for (int fd = 0; fd < 3; fd++)
        if (dup2(l->fds[fd], fd) < 0)
            child_fail(l, "cannot set", "a standard stream", errno);
    /* no magic link: /proc/self/fd/N would be a folder of the guest's own */
    int folder = path_open(l->cwd, O_PATH | O_DIRECTORY, 0);
    if (folder < 0 || fchdir(folder) < 0)
        child_fail(l, "cannot enter the folder", l->cwd, errno);
    umask(022);
    take_identity(l);
    /* What started us may ignore some (nohup, a job in the background). Asked of the kernel itself: C libraries keep
     * a few numbers to themselves. All zero is SIG_DFL without flags, on every architecture. */
    static const uint64_t plain[4];
    for (int number = 1; number <= 64; number++)
        syscall(SYS_rt_sigaction, number, plain, NULL, 8);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    run_program(l);
    _exit(127);
}
