/*
 * Trees by way of /proc, for sandboxes without a cgroup of their own. Must never signal the guest, nor a
 * process that the scan at hand did not see.
 */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tree.h"

#define ROUNDS_MAX 64

struct process {
    pid_t pid, parent, session;
    bool in_tree, dead, stopped;
};

struct scan {
    struct process *at;
    size_t count, capacity;
};

/* The fields after the name, which may itself hold anything: look from the last parenthesis on. */
static bool read_process(int proc, const char *name, struct process *p)
{
    char path[64], text[512], state;
    int parent, group, session;
    snprintf(path, sizeof path, "%.20s/stat", name);
    int fd = openat(proc, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    char *after = strrchr(text, ')');
    if (after == NULL || sscanf(after + 1, " %c %d %d %d", &state, &parent, &group, &session) != 4)
        return false;
    *p = (struct process){.pid = (pid_t)strtol(name, NULL, 10), .parent = parent, .session = session,
                          .dead = state == 'Z' || state == 'X', .stopped = state == 'T' || state == 't'};
    return true;
}

static struct scan scan_proc(void)
{
    struct scan scan = {0};
    DIR *proc = opendir("/proc");
    if (proc == NULL)
        return scan;
    struct dirent *entry;
    while ((entry = readdir(proc)) != NULL) {
        struct process p;
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9' || !read_process(dirfd(proc), entry->d_name, &p))
            continue;
        if (scan.count == scan.capacity) {
            size_t capacity = scan.capacity == 0 ? 64 : scan.capacity * 2;
            struct process *larger = realloc(scan.at, capacity * sizeof *larger);
            if (larger == NULL)
                break;
            scan.at = larger;
            scan.capacity = capacity;
        }
        scan.at[scan.count++] = p;
    }
    closedir(proc);
    return scan;
}

static bool below(const struct scan *scan, pid_t parent, pid_t root)
{
    if (parent == root)
        return true;
    for (size_t i = 0; i < scan->count; i++)
        if (scan->at[i].pid == parent)
            return scan->at[i].in_tree;
    return false;
}

/* Children may stand before their parents: go round until nothing is added. */
static void mark_descendants(struct scan *scan, pid_t root)
{
    bool added = true;
    while (added) {
        added = false;
        for (size_t i = 0; i < scan->count; i++) {
            struct process *p = &scan->at[i];
            if (!p->in_tree && p->pid != root && below(scan, p->parent, root))
                p->in_tree = added = true;
        }
    }
}

static unsigned signal_marked(const struct scan *scan, int signal)
{
    unsigned living = 0;
    for (size_t i = 0; i < scan->count; i++) {
        const struct process *p = &scan->at[i];
        if (!p->in_tree || p->dead || p->pid == getpid())
            continue;
        living++;
        if (signal != 0)
            kill(p->pid, signal);
    }
    return living;
}

unsigned proc_signal_descendants(pid_t root, int signal)
{
    struct scan scan = scan_proc();
    mark_descendants(&scan, root);
    unsigned living = signal_marked(&scan, signal);
    free(scan.at);
    return living;
}

unsigned proc_signal_session(pid_t session, int signal)
{
    struct scan scan = scan_proc();
    for (size_t i = 0; i < scan.count; i++)
        scan.at[i].in_tree = scan.at[i].session == session;
    unsigned living = signal_marked(&scan, signal);
    free(scan.at);
    return living;
}

void proc_kill_descendants(pid_t root)
{
    /* what is stopped cannot fork: go on until a whole scan meets nothing that still runs */
    for (int round = 0; round < ROUNDS_MAX; round++) {
        struct scan scan = scan_proc();
        bool running = false;
        mark_descendants(&scan, root);
        for (size_t i = 0; i < scan.count; i++) {
            struct process *p = &scan.at[i];
            p->in_tree = p->in_tree && !p->stopped;
            running = running || (p->in_tree && !p->dead && p->pid != getpid());
        }
        signal_marked(&scan, SIGSTOP);
        free(scan.at);
        if (!running)
            break;
    }
    proc_signal_descendants(root, SIGKILL);
}
