/*
 * The floor: how fast the kernel alone makes, runs and removes a sandbox of cloche's kind.
 *
 * Per cycle: cgroup directories (v1 memory, cpu and pids with limits where they are mounted, and a v2 directory), clone3
 * into it with user, pid, mount, uts, ipc, network and cgroup namespaces, an id-mapped view of the store, an overlay
 * on it, /proc, pivot_root, exec of a static /bin/true, reap, removal of the directories and of the upper layer.
 * No protocol, no record, no client. Must never be used for anything but this measurement.
 *
 * usage: floor STORE LOWER CYCLES WORKERS      (STORE holds LOWER; on the file system under test)
 * prints one JSON object: {"wall_s": ..., "cycles_ms": [...]}
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define V2 "/sys/fs/cgroup/unified"
#define RANGE 65536u

static const char *const v1_names[] = {"memory", "cpu", "pids"};
static const char *const v1_limits[] = {"memory.limit_in_bytes", "cpu.cfs_quota_us", "pids.max"};
static const char *const v1_values[] = {"536870912", "100000", "512"};

struct sandbox {
    const char *store, *lower;
    int worker;
    unsigned base;
    char v2[128], upper[256], work[256];
};

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static void put(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) < 0)
        die(path);
    close(fd);
}

static const char *v2_root(void)
{
    struct stat st;
    return stat(V2, &st) == 0 ? V2 : "/sys/fs/cgroup";
}

static void v1_path(char *out, size_t size, int which, int worker)
{
    snprintf(out, size, "/sys/fs/cgroup/%s/floor-%d", v1_names[which], worker);
}

static int has_v1(void)
{
    struct stat st;
    return stat("/sys/fs/cgroup/memory", &st) == 0;
}

static void make_cgroups(struct sandbox *s)
{
    snprintf(s->v2, sizeof s->v2, "%s/floor-%d", v2_root(), s->worker);
    if (mkdir(s->v2, 0755) != 0)
        die(s->v2);
    for (int i = 0; has_v1() && i < 3; i++) {
        char path[160], file[224];
        v1_path(path, sizeof path, i, s->worker);
        if (mkdir(path, 0755) != 0)
            die(path);
        snprintf(file, sizeof file, "%s/%s", path, v1_limits[i]);
        put(file, v1_values[i]);
    }
}

static void enter_v1(struct sandbox *s, pid_t pid)
{
    char text[16];
    snprintf(text, sizeof text, "%d", pid);
    for (int i = 0; has_v1() && i < 3; i++) {
        char path[160], file[224];
        v1_path(path, sizeof path, i, s->worker);
        snprintf(file, sizeof file, "%s/cgroup.procs", path);
        put(file, text);
    }
}

static void remove_cgroups(struct sandbox *s)
{
    for (int i = 0; has_v1() && i < 3; i++) {
        char path[160];
        v1_path(path, sizeof path, i, s->worker);
        while (rmdir(path) != 0 && errno == EBUSY)
            usleep(200);
    }
    while (rmdir(s->v2) != 0 && errno == EBUSY)
        usleep(200);
}

static void make_upper(struct sandbox *s)
{
    snprintf(s->upper, sizeof s->upper, "%s/floor-upper-%d", s->store, s->worker);
    snprintf(s->work, sizeof s->work, "%s/floor-work-%d", s->store, s->worker);
    if (mkdir(s->upper, 0755) != 0 || mkdir(s->work, 0755) != 0)
        die(s->upper);
}

static void remove_upper(struct sandbox *s)
{
    char inner[280];
    snprintf(inner, sizeof inner, "%s/work", s->work);
    rmdir(inner);
    if (rmdir(s->work) != 0 || rmdir(s->upper) != 0)
        die("remove upper");
}

/* The overlay is mounted in the initial user namespace by the range's root, over an id-mapped view of the store. */
static int mount_overlay(struct sandbox *s, pid_t pid)
{
    char path[64], view[600], work[600], lower[600];
    snprintf(path, sizeof path, "/proc/%d/ns/user", pid);
    int userns = open(path, O_RDONLY | O_CLOEXEC);
    int tree = syscall(SYS_open_tree, AT_FDCWD, s->store, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t)userns};
    if (userns < 0 || tree < 0 || syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &attr, sizeof attr) != 0)
        die("id-mapped view");
    size_t skip = strlen(s->store);
    snprintf(lower, sizeof lower, "/proc/self/fd/%d%s", tree, s->lower + skip);
    snprintf(view, sizeof view, "/proc/self/fd/%d%s", tree, s->upper + skip);
    snprintf(work, sizeof work, "/proc/self/fd/%d%s", tree, s->work + skip);
    setfsuid(s->base);
    setfsgid(s->base);
    struct __user_cap_header {
        uint32_t version;
        int pid;
    } header = {0x20080522, 0};
    uint32_t data[6];
    if (syscall(SYS_capget, &header, data) != 0)
        die("capget");
    data[0] = data[1];
    data[3] = data[4];
    syscall(SYS_capset, &header, data);
    int fs = syscall(SYS_fsopen, "overlay", FSOPEN_CLOEXEC);
    syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "lowerdir", lower, 0);
    syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "upperdir", view, 0);
    syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "workdir", work, 0);
    if (syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) != 0)
        die("overlay");
    int mounted = syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, 0);
    if (mounted < 0)
        die("fsmount");
    setfsuid(0);
    setfsgid(0);
    close(fs);
    close(tree);
    close(userns);
    return mounted;
}


/* The child shares the parent's descriptor table until exec, so only the overlay's number is told. */
static void child(int go)
{
    int root;
    if (read(go, &root, sizeof root) != (ssize_t)sizeof root)
        _exit(2);
    if (setresuid(0, 0, 0) != 0 || setresgid(0, 0, 0) != 0)
        _exit(3);
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        _exit(4);
    if (syscall(SYS_move_mount, root, "", AT_FDCWD, "/mnt", MOVE_MOUNT_F_EMPTY_PATH) != 0)
        _exit(5);
    if (mount("proc", "/mnt/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) != 0)
        _exit(6);
    if (chdir("/mnt") != 0 || syscall(SYS_pivot_root, ".", ".") != 0 || umount2(".", MNT_DETACH) != 0 || chdir("/") != 0)
        _exit(7);
    execl("/bin/true", "true", (char *)NULL);
    _exit(8);
}

static void map_ids(struct sandbox *s, pid_t pid)
{
    char path[64], line[64];
    snprintf(line, sizeof line, "0 %u %u", s->base, RANGE);
    snprintf(path, sizeof path, "/proc/%d/uid_map", pid);
    put(path, line);
    snprintf(path, sizeof path, "/proc/%d/gid_map", pid);
    put(path, line);
}

static void cycle(struct sandbox *s)
{
    int go[2], status;
    make_cgroups(s);
    make_upper(s);
    if (pipe2(go, O_CLOEXEC) != 0)
        die("pipe2");
    int cgroup = open(s->v2, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct clone_args args = {
        .flags = CLONE_INTO_CGROUP | CLONE_FILES | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC |
                 CLONE_NEWNET | CLONE_NEWCGROUP,
        .exit_signal = SIGCHLD,
        .cgroup = (uint64_t)cgroup,
    };
    pid_t pid = syscall(SYS_clone3, &args, sizeof args);
    if (pid < 0)
        die("clone3");
    if (pid == 0)
        child(go[0]);
    map_ids(s, pid);
    enter_v1(s, pid);
    int overlay = mount_overlay(s, pid);
    if (write(go[1], &overlay, sizeof overlay) < 0)
        die("write");
    if (waitpid(pid, &status, 0) != pid || status != 0) {
        fprintf(stderr, "the sandbox ended with status %d\n", status);
        exit(1);
    }
    int all[] = {overlay, cgroup, go[0], go[1]};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
        close(all[i]);
    remove_cgroups(s);
    remove_upper(s);
}

static void worker(struct sandbox *s, int cycles, int out)
{
    for (int i = 0; i < cycles; i++) {
        double begin = now_ms();
        cycle(s);
        double took = now_ms() - begin;
        if (write(out, &took, sizeof took) != (ssize_t)sizeof took)
            die("write");
    }
    exit(0);
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: floor STORE LOWER CYCLES WORKERS\n");
        return 2;
    }
    int cycles = atoi(argv[3]), workers = atoi(argv[4]), results[2];
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 || pipe(results) != 0)
        die("set-up");
    double begin = now_ms(), took;
    for (int i = 0; i < workers; i++) {
        struct sandbox s = {.store = argv[1], .lower = argv[2], .worker = i, .base = 0x70000000u + (unsigned)i * RANGE};
        pid_t pid = fork();
        if (pid == 0)
            worker(&s, cycles / workers, results[1]);
        if (pid < 0)
            die("fork");
    }
    close(results[1]);
    printf("{\"cycles_ms\": [");
    for (int i = 0; read(results[0], &took, sizeof took) == (ssize_t)sizeof took; i++)
        printf("%s%.4f", i ? ", " : "", took);
    int status, failed = 0;
    while (wait(&status) > 0)
        failed |= status != 0;
    printf("], \"wall_s\": %.6f}\n", (now_ms() - begin) / 1e3);
    return failed;
}
