/* What a child needs to become a command. Must never be kept after the start. */
#ifndef CLOCHE_LAUNCH_H
#define CLOCHE_LAUNCH_H

#include "guest.h"
#include "user.h"

struct launch {
    char **argv, **envp;
    size_t arg_count, env_count;
    char *cwd;
    struct identity who;
    int fds[3];    /* what becomes 0, 1, 2 */
    bool terminal; /* fds[0] becomes the controlling terminal */
    int error_fd;  /* where a failure is told, in words */
    int cgroup_fd; /* its cgroup directory; -1 */
};

/* Fill argv and envp from the request. False: *error says why. */
bool launch_read(struct launch *l, const struct request *r, const char **error);
bool launch_environment(struct launch *l, bool terminal);
void launch_free(struct launch *l);
/* Become the command: never returns. */
_Noreturn void child_run(const struct launch *l);
/* Say why it cannot be, and end. */
_Noreturn void child_fail(const struct launch *l, const char *what, const char *which, int error);
/* Install the extra filter that keeps commands from what a sandbox's inside has no use for; 0 or errno. */
int seccomp_harden(void);
/* Fork into the launch's cgroup if it has one; like fork otherwise. */
pid_t fork_into(int cgroup_fd);
/* Start a keeper that starts the leader; false with errno. */
bool keeper_start(struct command *c, struct launch *l);

#endif
