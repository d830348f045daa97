/*
 * Control groups in three layouts: pure v2, hybrid (v2 for killing and placement, v1 for limits) and none.
 *
 * cloche-INSTANCE/ID holds one sandbox in every hierarchy; names with an underscore are ours. A v2 directory is used
 * once: kernels compare kill counts on clone, and a child cloned from or into a directory that was ever killed may
 * die at once. So the spawner sits in a fresh directory of its own and never kills a directory that it will use again.
 */
#include "spawner.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "sys.h"

enum { MEMORY, CPU, PIDS, FREEZER, CONTROLLERS }; /* the last only where there is no v2 */
static const char *const names[CONTROLLERS] = {"memory", "cpu", "pids", "freezer"};
static int v1_top[CONTROLLERS] = {-1, -1, -1, -1}, v1_root[CONTROLLERS] = {-1, -1, -1, -1};
static int v2_root = -1, v2_top = -1;
static bool v2_limits[CONTROLLERS];
static char top_name[32], own_name[48];

static bool has_word(const char *list, const char *word, char separator)
{
    size_t size = strlen(word);
    for (const char *at = strstr(list, word); at != NULL; at = strstr(at + 1, word)) {
        bool begins = at == list || at[-1] == separator || at[-1] == ' ';
        if (begins && (at[size] == 0 || at[size] == separator || at[size] == '\n'))
            return true;
    }
    return false;
}

/* A line: id parent major:minor root point options [tags] - type source super-options */
static void look_at_mount(char *line)
{
    char *dash = strstr(line, " - cgroup"), *fields[5], *state = NULL;
    if (dash == NULL)
        return;
    *dash = 0;
    char *type = dash + 3, *super = strchr(type, ' ');
    super = super == NULL ? NULL : strchr(super + 1, ' ');
    for (int i = 0; i < 5; i++)
        if ((fields[i] = strtok_r(i == 0 ? line : NULL, " ", &state)) == NULL)
            return;
    if (strncmp(type, "cgroup2 ", 8) == 0 && v2_root < 0)
        v2_root = open(fields[4], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int i = 0; i < CONTROLLERS && super != NULL && strncmp(type, "cgroup ", 7) == 0; i++)
        if (has_word(super + 1, names[i], ',') && v1_root[i] < 0)
            v1_root[i] = open(fields[4], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static void find_mounts(void)
{
    char *line = NULL;
    size_t size = 0;
    FILE *mounts = fopen("/proc/self/mountinfo", "re");
    while (mounts != NULL && getline(&line, &size, mounts) > 0)
        look_at_mount(line);
    free(line);
    if (mounts != NULL)
        fclose(mounts);
}

static int make_open(int parent, const char *name)
{
    if (mkdirat(parent, name, 0755) != 0 && errno != EEXIST)
        return -1;
    return openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static void enable_v2_limits(void)
{
    char controllers[256], text[32];
    if (read_file_at(v2_root, "cgroup.controllers", controllers, sizeof controllers) <= 0)
        return;
    for (int i = 0; i < CONTROLLERS; i++) {
        if (v1_top[i] >= 0 || !has_word(controllers, names[i], ' '))
            continue;
        snprintf(text, sizeof text, "+%s", names[i]);
        v2_limits[i] = put_text_at(v2_root, "cgroup.subtree_control", text) == 0 &&
                       put_text_at(v2_top, "cgroup.subtree_control", text) == 0;
    }
}

static void remove_stale_spawners(void);

int cgroup_start(struct failure *f)
{
    snprintf(top_name, sizeof top_name, "cloche-%s", settings.instance);
    find_mounts();
    if (v2_root >= 0 && v1_root[FREEZER] >= 0) {
        close(v1_root[FREEZER]);
        v1_root[FREEZER] = -1;
    }
    for (int i = 0; i < CONTROLLERS; i++)
        if (v1_root[i] >= 0 && (v1_top[i] = make_open(v1_root[i], top_name)) < 0)
            return fail(f, "make a cgroup (v1)");
    if (v2_root < 0)
        return 0;
    if ((v2_top = make_open(v2_root, top_name)) < 0)
        return fail(f, "make a cgroup (v2)");
    enable_v2_limits();
    remove_stale_spawners();
    snprintf(own_name, sizeof own_name, "_spawner-%d-%llx", getpid(), (unsigned long long)time(NULL));
    int own = make_open(v2_top, own_name);
    int moved = own < 0 ? -1 : put_text_at(own, "cgroup.procs", "0");
    close(own);
    return moved == 0 ? 0 : fail(f, "enter a cgroup of its own");
}

const char *cgroup_enforced(void)
{
    static char text[32];
    text[0] = 0;
    for (int i = 0; i < FREEZER; i++)
        if (v1_top[i] >= 0 || v2_limits[i])
            strcat(strcat(text, text[0] ? " " : ""), names[i]);
    return text;
}

static int put_number_at(int dir, const char *file, uint64_t number)
{
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)number);
    return put_text_at(dir, file, text);
}

/* Files that not every kernel has may be missing; anything else is an error. */
static int put_if_there(int dir, const char *file, uint64_t number)
{
    return put_number_at(dir, file, number) == 0 || errno == ENOENT || errno == EACCES ? 0 : -1;
}

static int limit_v1(int which, int dir, const struct request *r, uint64_t memory)
{
    if (which == MEMORY)
        return put_number_at(dir, "memory.limit_in_bytes", memory) == 0
                   ? put_if_there(dir, "memory.memsw.limit_in_bytes", memory)
                   : -1;
    if (which == CPU)
        return put_number_at(dir, "cpu.cfs_quota_us", r->cpu_us);
    if (which == FREEZER)
        return 0;
    return put_number_at(dir, "pids.max", r->pids);
}

static int limit_v2(int dir, const struct request *r)
{
    char text[48];
    if (v2_limits[MEMORY] && r->memory != 0)
        if (put_number_at(dir, "memory.max", r->memory) != 0 || put_if_there(dir, "memory.swap.max", 0) != 0)
            return -1;
    snprintf(text, sizeof text, "%llu 100000", (unsigned long long)r->cpu_us);
    if (v2_limits[CPU] && r->cpu_us != 0 && put_text_at(dir, "cpu.max", text) != 0)
        return -1;
    return v2_limits[PIDS] && r->pids != 0 ? put_number_at(dir, "pids.max", r->pids) : 0;
}

/* Sandboxes without a memory limit live in one directory, which has the pool's. */
static int open_pool(int top, const struct request *r, const char *file)
{
    int pool = make_open(top, "_pool");
    if (pool >= 0 && r->pool != 0 && put_number_at(pool, file, r->pool) != 0 && errno != EBUSY)
        goto failed;
    if (pool >= 0 && top == v2_top)
        for (int i = 0; i < CONTROLLERS; i++) {
            char text[32];
            snprintf(text, sizeof text, "+%s", names[i]);
            if (v2_limits[i] && put_text_at(pool, "cgroup.subtree_control", text) != 0)
                goto failed;
        }
    return pool;
failed:
    close(pool);
    return -1;
}

/* The mapped root may make and fill children, and touch none of the limits. */
static int delegate(int dir, uint32_t owner)
{
    static const char *const files[] = {"cgroup.procs", "cgroup.threads", "cgroup.subtree_control"};
    if (fchown(dir, owner, owner) != 0)
        return -1;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (fchownat(dir, files[i], owner, owner, 0) != 0)
            return -1;
    return 0;
}

static bool wanted_v1(int which, const struct request *r)
{
    uint64_t limit[CONTROLLERS] = {r->memory, r->cpu_us, r->pids, 1};
    return v1_top[which] >= 0 && limit[which] != 0;
}

static int make_v2(const struct sandbox *s, const struct request *r)
{
    int parent = v2_top;
    if (v2_limits[MEMORY] && r->memory == 0 && (parent = open_pool(v2_top, r, "memory.max")) < 0)
        return -1;
    int dir = mkdirat(parent, s->id, 0755) == 0 ? make_open(parent, s->id) : -1;
    if (parent != v2_top)
        close(parent);
    if (dir >= 0 && (limit_v2(dir, r) != 0 || delegate(dir, base_id(s->slot)) != 0)) {
        close(dir);
        return -1;
    }
    return dir;
}

int cgroup_make(const struct sandbox *s, const struct request *r, int *dir, struct failure *f)
{
    *dir = -1;
    for (int i = 0; i < CONTROLLERS; i++) {
        if (!wanted_v1(i, r))
            continue;
        int made = mkdirat(v1_top[i], s->id, 0755) == 0 ? make_open(v1_top[i], s->id) : -1;
        if (made < 0)
            return fail(f, "make a cgroup (v1)");
        int result = limit_v1(i, made, r, r->memory);
        close(made);
        if (result != 0)
            return fail(f, names[i]);
    }
    if (v2_top >= 0 && (*dir = make_v2(s, r)) < 0)
        return fail(f, "make a cgroup (v2)");
    return 0;
}

int cgroup_enter(const struct sandbox *s, const struct request *r, struct failure *f)
{
    char file[ID_BYTES + 16];
    snprintf(file, sizeof file, "%s/cgroup.procs", s->id);
    for (int i = 0; i < CONTROLLERS; i++) {
        if (wanted_v1(i, r)) {
            if (put_number_at(v1_top[i], file, (uint64_t)s->pid) != 0)
                return fail(f, "enter a cgroup (v1)");
        } else if (i == MEMORY && v1_top[i] >= 0) {
            int pool = open_pool(v1_top[i], r, "memory.limit_in_bytes");
            int result = pool < 0 ? -1 : put_number_at(pool, "cgroup.procs", (uint64_t)s->pid);
            close(pool);
            if (result != 0)
                return fail(f, "enter the shared memory cgroup");
        }
    }
    return 0;
}

/* What v2 has frozen dies all the same; v1's freezer is asked to let go once the kill is sent. */
void cgroup_thaw_for_death(const char *id)
{
    char file[ID_BYTES + 16];
    snprintf(file, sizeof file, "%s/freezer.state", id);
    if (v2_top < 0 && v1_top[FREEZER] >= 0)
        put_text_at(v1_top[FREEZER], file, "THAWED");
}

void cgroup_kill(const char *id)
{
    char file[ID_BYTES + 32];
    static const char *const places[] = {"%s/cgroup.kill", "_pool/%s/cgroup.kill"};
    for (int i = 0; i < 2 && v2_top >= 0; i++) {
        snprintf(file, sizeof file, places[i], id);
        put_text_at(v2_top, file, "1");
    }
}

/* Whether it becomes frozen within ten seconds: a process may be in the middle of something. */
static bool becomes_frozen(int dir)
{
    char text[256];
    int events = openat(dir, "cgroup.events", O_RDONLY | O_CLOEXEC);
    for (int tries = 0; events >= 0 && tries < 100; tries++) {
        ssize_t n = pread(events, text, sizeof text - 1, 0);
        text[n > 0 ? n : 0] = 0;
        if (strstr(text, "frozen 1") != NULL) {
            close(events);
            return true;
        }
        poll(&(struct pollfd){.fd = events, .events = POLLPRI}, 1, 100);
    }
    close(events);
    errno = EBUSY;
    return false;
}

static bool becomes_frozen_v1(int dir)
{
    char text[32];
    for (int tries = 0; tries < 10000; tries++) {
        if (read_file_at(dir, "freezer.state", text, sizeof text) > 0 && strncmp(text, "FROZEN", 6) == 0)
            return true;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    errno = EBUSY;
    return false;
}

static int open_v2(const char *id)
{
    char pooled[ID_BYTES + 8];
    snprintf(pooled, sizeof pooled, "_pool/%s", id);
    int dir = openat(v2_top, id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return dir >= 0 ? dir : openat(v2_top, pooled, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* Returns once every process is frozen; or all may go on, which needs no waiting. */
int cgroup_freeze(const char *id, bool frozen, struct failure *f)
{
    bool v2 = v2_top >= 0;
    int dir = v2 ? open_v2(id) : v1_top[FREEZER] < 0 ? -1 : openat(v1_top[FREEZER], id, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return v2 || v1_top[FREEZER] >= 0 ? fail(f, "find the sandbox's cgroup")
                                          : fail_with(f, "unsupported", ENOTSUP, "no cgroup here can freeze processes");
    int result = v2 ? put_text_at(dir, "cgroup.freeze", frozen ? "1" : "0")
                    : put_text_at(dir, "freezer.state", frozen ? "FROZEN" : "THAWED");
    if (result == 0 && frozen && !(v2 ? becomes_frozen(dir) : becomes_frozen_v1(dir)))
        result = -1;
    if (result != 0)
        fail(f, frozen ? "freeze the sandbox" : "let the sandbox go on");
    close(dir);
    return result;
}

/* Removes a directory and those below it, waiting for dying processes up to two seconds in all. */
static int remove_group(int parent, const char *name, int depth, int *patience)
{
    if (unlinkat(parent, name, AT_REMOVEDIR) == 0)
        return 1;
    if (errno == ENOENT)
        return 0;
    int dir = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0)
        return errno == ENOENT ? 0 : -1;
    DIR *entries = depth > 0 ? fdopendir(dir) : NULL;
    if (entries == NULL) {
        close(dir);
        return -1;
    }
    for (struct dirent *e; (e = readdir(entries)) != NULL;)
        if (e->d_type == DT_DIR && strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            remove_group(dirfd(entries), e->d_name, depth - 1, patience);
    closedir(entries);
    while (unlinkat(parent, name, AT_REMOVEDIR) != 0) {
        if (errno == ENOENT)
            return 0;
        if (errno != EBUSY || --*patience < 0)
            return -1;
        nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
    }
    return 1;
}

/* 1 when there was one, 0 when there was none, -1 when one is still there. */
int cgroup_remove(const char *id)
{
    int patience = 4000, found = 0;
    char pooled[ID_BYTES + 8];
    snprintf(pooled, sizeof pooled, "_pool/%s", id);
    for (int i = 0; i < CONTROLLERS; i++) {
        int result = v1_top[i] < 0 ? 0 : remove_group(v1_top[i], id, 2, &patience);
        found = result < 0 || found < 0 ? -1 : found | result;
    }
    for (int i = 0; i < 2 && v2_top >= 0; i++) {
        int result = remove_group(v2_top, i == 0 ? id : pooled, 8, &patience);
        found = result < 0 || found < 0 ? -1 : found | result;
    }
    return found;
}

/* Directories of spawners that were killed; they are empty, for only one spawner lives at a time. */
static void remove_stale_spawners(void)
{
    int dir = openat(v2_top, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = dir < 0 ? NULL : fdopendir(dir);
    if (entries == NULL)
        return;
    for (struct dirent *e; (e = readdir(entries)) != NULL;)
        if (strncmp(e->d_name, "_spawner-", 9) == 0)
            unlinkat(v2_top, e->d_name, AT_REMOVEDIR);
    closedir(entries);
}

static uint64_t read_oom_kills(int dir, const char *file)
{
    char text[512];
    if (read_file_at(dir, file, text, sizeof text) <= 0)
        return 0;
    char *at = strstr(text, "oom_kill ");
    return at == NULL ? 0 : strtoull(at + 9, NULL, 10);
}

/* How many processes of this sandbox its own memory limit has killed. */
uint64_t cgroup_oom_kills(const char *id)
{
    char file[ID_BYTES + 32];
    bool v1 = v1_top[MEMORY] >= 0;
    snprintf(file, sizeof file, v1 ? "%s/memory.oom_control" : "%s/memory.events", id);
    return v1 || v2_top >= 0 ? read_oom_kills(v1 ? v1_top[MEMORY] : v2_top, file) : 0;
}

/* The same of the limit that all sandboxes without one share. */
uint64_t cgroup_pool_kills(void) { return cgroup_oom_kills("_pool"); }

/* Leaves its own directory for the root, and removes what is empty. */
void cgroup_stop(void)
{
    int patience = 200;
    if (v2_top >= 0) {
        put_text_at(v2_root, "cgroup.procs", "0");
        remove_group(v2_top, own_name, 1, &patience);
        remove_stale_spawners(); /* a name server that was adopted kept its first one busy */
        unlinkat(v2_top, "_pool", AT_REMOVEDIR);
        unlinkat(v2_root, top_name, AT_REMOVEDIR);
    }
    for (int i = 0; i < CONTROLLERS; i++) {
        if (v1_top[i] < 0)
            continue;
        unlinkat(v1_top[i], "_pool", AT_REMOVEDIR);
        unlinkat(v1_root[i], top_name, AT_REMOVEDIR);
    }
}
