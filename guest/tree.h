/*
 * The whole tree of a command: every process it started, setsid and double forks included.
 *
 * With a cgroup: a child cgroup per command on a cgroup2 mount of the guest's own that no path leads to;
 * cgroup.kill is atomic. Without: a keeper, a small process between guest and leader that is a subreaper, so
 * that whatever is orphaned below it stays below it and /proc tells the whole tree by parents. A workload
 * with root could kill its keeper; then what is left of the tree is known by its session only.
 */
#ifndef CLOCHE_TREE_H
#define CLOCHE_TREE_H

#include "guest.h"

/* Mount cgroup2 detached, move into "guest"; false when this sandbox has no cgroup of its own. */
bool cgroup_setup(void);
/* Make the command's cgroup and return its directory's descriptor; -1 when there can be none. */
int cgroup_make(struct command *c);
/* OOM kills in the sandbox so far, 0 where the guest cannot see them. */
uint64_t cgroup_oom_kills(void);

void tree_signal(struct command *c, int signal);
void tree_kill(struct command *c);
bool tree_empty(struct command *c);
/* Remove what is empty; true when nothing of the tree is left. */
bool tree_forget(struct command *c);

/* Send a signal to every descendant of root but root; returns how many there are (zombies not counted). */
unsigned proc_signal_descendants(pid_t root, int signal);
unsigned proc_signal_session(pid_t session, int signal);
/* Stop, then kill every descendant, so that forks under way do not outrun it. */
void proc_kill_descendants(pid_t root);

#endif
