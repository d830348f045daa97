/* The guest's own cgroup2 mount and the commands' directories in it; see tree.h. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tree.h"

#ifndef SYS_fsopen
#define SYS_fsopen 430 /* the same on every architecture */
#define SYS_fsconfig 431
#define SYS_fsmount 432
#endif
#define FSCONFIG_CMD_CREATE_ 6

static bool write_at(const char *path, const char *text)
{
    int fd = openat(guest.cgroup_fd, path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool good = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    close(fd);
    return good;
}

static ssize_t read_at(const char *path, char *text, size_t size)
{
    int fd = openat(guest.cgroup_fd, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t n = read(fd, text, size - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    return n;
}

static int mount_detached(void)
{
    int context = (int)syscall(SYS_fsopen, "cgroup2", 1u /* FSOPEN_CLOEXEC */);
    if (context < 0)
        return -1;
    int fd = -1;
    if (syscall(SYS_fsconfig, context, FSCONFIG_CMD_CREATE_, NULL, NULL, 0) == 0)
        fd = (int)syscall(SYS_fsmount, context, 1u /* FSMOUNT_CLOEXEC */, 0u);
    close(context);
    return fd;
}

bool cgroup_setup(void)
{
    guest.cgroup_fd = mount_detached();
    if (guest.cgroup_fd < 0)
        return false;
    /* only a cgroup that is not the host's root has this file: never touch a hierarchy that is not ours */
    bool own = faccessat(guest.cgroup_fd, "cgroup.kill", F_OK, 0) == 0;
    if (own && (mkdirat(guest.cgroup_fd, "guest", 0755) == 0 || errno == EEXIST) &&
        write_at("guest/cgroup.procs", "0"))
        return true;
    close(guest.cgroup_fd);
    guest.cgroup_fd = -1;
    return false;
}

int cgroup_make(struct command *c)
{
    static unsigned long long counter; /* never the same name twice: a killed cgroup must not be reused */
    if (guest.cgroup_fd < 0)
        return -1;
    snprintf(c->group, sizeof c->group, "c%llu", ++counter);
    if (mkdirat(guest.cgroup_fd, c->group, 0755) == 0) {
        int fd = openat(guest.cgroup_fd, c->group, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0)
            return fd;
        unlinkat(guest.cgroup_fd, c->group, AT_REMOVEDIR);
    }
    c->group[0] = 0;
    return -1;
}

uint64_t cgroup_oom_kills(void)
{
    char text[512];
    if (guest.cgroup_fd < 0 || read_at("memory.events", text, sizeof text) <= 0)
        return 0;
    char *at = strstr(text, "oom_kill ");
    return at != NULL ? strtoull(at + 9, NULL, 10) : 0;
}

static void cgroup_signal(struct command *c, int signal)
{
    char path[64], text[4096];
    snprintf(path, sizeof path, "%s/cgroup.procs", c->group);
    int fd = openat(guest.cgroup_fd, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    size_t kept = 0;
    ssize_t n;
    while ((n = read(fd, text + kept, sizeof text - 1 - kept)) > 0) {
        text[kept + (size_t)n] = 0;
        char *at = text, *end;
        while ((end = strchr(at, '\n')) != NULL) {
            pid_t pid = (pid_t)strtol(at, NULL, 10);
            if (pid > 1)
                kill(pid, signal);
            at = end + 1;
        }
        kept = strlen(at);
        memmove(text, at, kept + 1);
    }
    close(fd);
}

static bool cgroup_empty(struct command *c)
{
    char path[64], text[256];
    snprintf(path, sizeof path, "%s/cgroup.events", c->group);
    return read_at(path, text, sizeof text) <= 0 || strstr(text, "populated 0") != NULL;
}

void tree_signal(struct command *c, int signal)
{
    if (c->group[0] != 0)
        cgroup_signal(c, signal);
    else if (c->keeper > 0)
        proc_signal_descendants(c->keeper, signal);
    else if (c->leader > 0)
        proc_signal_session(c->leader, signal);
}

void tree_kill(struct command *c)
{
    c->sent_kill = true;
    if (c->group[0] != 0) {
        char path[64];
        snprintf(path, sizeof path, "%s/cgroup.kill", c->group);
        if (!write_at(path, "1"))
            cgroup_signal(c, SIGKILL); /* before Linux 5.14 */
    } else if (c->keeper > 0) {
        proc_kill_descendants(c->keeper);
    } else if (c->leader > 0) {
        proc_signal_session(c->leader, SIGKILL);
    }
}

bool tree_empty(struct command *c)
{
    if (c->group[0] != 0)
        return cgroup_empty(c);
    if (c->keeper > 0)
        return c->report.fd < 0 || proc_signal_descendants(c->keeper, 0) == 0;
    return c->leader <= 0 || proc_signal_session(c->leader, 0) == 0;
}

bool tree_forget(struct command *c)
{
    if (c->group[0] != 0) {
        if (unlinkat(guest.cgroup_fd, c->group, AT_REMOVEDIR) < 0 && errno == EBUSY)
            return false;
        c->group[0] = 0;
        return true;
    }
    return c->keeper <= 0 || c->report.fd < 0;
}
