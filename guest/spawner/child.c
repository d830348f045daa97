/*
 * The first process of a sandbox, from the clone until it becomes the guest: it finishes its namespaces from inside.
 *
 * It borrows the spawner's memory (partner.c), so it may only make system calls and must write to its own stack alone. Mounts are made before pivot_root, where
 * a full /proc and /sys are in sight, and put in place after it, where a link in the image leads nowhere but inside.
 */
#include "spawner.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "sys.h"

#define TERMINAL_GROUP "5" /* `tty` in every common image */
#define TERMINALS_MAX "256" /* the machine has 4096 for all sandboxes together */
#define ETC_FILES 3
#define SCRATCH "/views"   /* a folder of the spawner's root, covered in ours by files of the sandbox */
#define NEVER_DUMP 1       /* a core limit of one byte also stops cores that go to a pipe */
#define OPEN_FILES_MAX 65536
#define INSIDE_PROC (MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC)

struct sock_fprog *seccomp_program;

enum step {
    STEP_DESCRIPTORS = 1, STEP_GO, STEP_IDS, STEP_MOUNTS, STEP_ROOT, STEP_PROC, STEP_SYS, STEP_DEV, STEP_ETC,
    STEP_VOLUMES, STEP_MASK, STEP_HOSTNAME, STEP_NETWORK, STEP_LIMITS, STEP_SECCOMP, STEP_EXEC,
};

static const char *const steps[] = {
    "", "set up descriptors", "wait for the spawner", "become root inside", "make the sandbox's mounts",
    "change the root", "put /proc in place", "put /sys in place", "put /dev in place", "put files of /etc in place",
    "put a volume in place (a folder of the image that is no link)", "close what /proc and /sys show of the host", "set the host name", "set the network up", "set limits",
    "install the system call filter", "start the guest",
};

const char *child_step(int step)
{
    return step > 0 && step < (int)(sizeof steps / sizeof *steps) ? steps[step] : "start";
}

static _Noreturn void stop(int step)
{
    int message[2] = {step, errno};
    if (write(FD_CHILD_CONTROL, message, sizeof message) < 0)
        _exit(2);
    _exit(1);
}

/* Keep 0 to 5, close all others: copies of what other threads were busy with. */
static void take_descriptors(const struct birth *b)
{
    if (dup3(b->control, FD_CHILD_CONTROL, O_CLOEXEC) < 0)
        _exit(2);
    if (dup2(null_fd, 0) < 0 || dup2(null_fd, 1) < 0 || dup2(b->log, 2) < 0 || dup2(b->listen, FD_GUEST_LISTEN) < 0 ||
        dup3(guest_fd, FD_CHILD_GUEST, O_CLOEXEC) < 0)
        stop(STEP_DESCRIPTORS);
    if (syscall(SYS_close_range, FD_CHILD_GUEST + 1, ~0u, 0) != 0)
        stop(STEP_DESCRIPTORS);
}

/* The spawner sends the overlay when ids, cgroups and the record are done; its death ends the wait, and us. */
static void wait_for_go(uint32_t *address, int *mounts, size_t count)
{
    char space[CMSG_SPACE((1 + VOLUMES_MAX) * sizeof(int))];
    struct iovec data = {address, sizeof *address};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    if (recvmsg(FD_CHILD_CONTROL, &message, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof *address)
        _exit(3);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header == NULL || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(count * sizeof(int)))
        _exit(3);
    memcpy(mounts, CMSG_DATA(header), count * sizeof(int));
}

static void become_root(void)
{
    struct sigaction plain = {.sa_handler = SIG_DFL};
    sigset_t none;
    sigemptyset(&none);
    sigaction(SIGPIPE, &plain, NULL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    umask(022);
    if (syscall(SYS_setgroups, 0, NULL) != 0 || syscall(SYS_setresgid, 0, 0, 0) != 0 ||
        syscall(SYS_setresuid, 0, 0, 0) != 0 || syscall(SYS_setsid) < 0)
        stop(STEP_IDS);
    if (unshare(CLONE_NEWCGROUP) != 0) /* only now, in its groups of every hierarchy: the paths above stay unseen */
        stop(STEP_IDS);
}

struct mounts {
    int proc, sys, dev, pts, shm, etc[ETC_FILES];
};

static const char *const etc_files[ETC_FILES] = {"hosts", "hostname", "resolv.conf"};

static int mount_with(const char *type, const char *const (*options)[2], unsigned attributes)
{
    int fs = sys_fsopen(type), result = 0;
    if (fs < 0)
        return -1;
    for (; options != NULL && (*options)[0] != NULL && result == 0; options++)
        result = sys_fsconfig(fs, FSCONFIG_SET_STRING, (*options)[0], (*options)[1]);
    if (result == 0)
        result = sys_fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL);
    int mounted = result == 0 ? sys_fsmount(fs, attributes) : -1;
    close(fs);
    return mounted;
}

static int write_scratch(const char *name, const void *data, size_t size)
{
    char path[48];
    snprintf(path, sizeof path, SCRATCH "/%s", name);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    int result = fd >= 0 && write(fd, data, size) == (ssize_t)size ? 0 : -1;
    close(fd);
    return result;
}

static int clone_scratch(const char *name)
{
    char path[48];
    snprintf(path, sizeof path, SCRATCH "/%s", name);
    return sys_open_tree(AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
}

/*
 * One tmpfs holds /dev/shm and the files that are bound over those of the image: they belong to root inside, are counted
 * to the sandbox's memory and bounded by one size. In the store they would cost inodes on disk.
 */
static void make_scratch(const struct request *r, struct mounts *m)
{
    char size[24], hostname[NAME_BYTES];
    snprintf(size, sizeof size, "%llu", (unsigned long long)r->shm);
    const char *const options[][2] = {{"mode", "0755"}, {"size", size}, {NULL, NULL}};
    int length = snprintf(hostname, sizeof hostname, "%s\n", r->hostname);
    int scratch = mount_with("tmpfs", options, INSIDE_PROC);
    if (scratch < 0 || sys_move_mount(scratch, "", AT_FDCWD, SCRATCH, MOVE_MOUNT_F_EMPTY_PATH) != 0 ||
        mkdir(SCRATCH "/shm", 0700) != 0 || chmod(SCRATCH "/shm", 01777) != 0 ||
        write_scratch("hosts", r->hosts.value, r->hosts.bytes) != 0 ||
        write_scratch("hostname", hostname, (size_t)length) != 0 ||
        write_scratch("resolv.conf", r->resolv.value, r->resolv.bytes) != 0)
        stop(STEP_ETC);
    close(scratch);
    m->shm = clone_scratch("shm");
    for (int i = 0; i < ETC_FILES; i++)
        if ((m->etc[i] = clone_scratch(etc_files[i])) < 0)
            stop(STEP_ETC);
}

static struct mounts make_mounts(const struct request *r, bool own_sys)
{
    const char *const terminals[][2] = {
        {"gid", TERMINAL_GROUP}, {"mode", "0620"}, {"ptmxmode", "0666"}, {"max", TERMINALS_MAX}, {NULL, NULL}};
    struct mounts m = {
        .proc = mount_with("proc", NULL, INSIDE_PROC),
        .sys = own_sys ? mount_with("sysfs", NULL, INSIDE_PROC | MOUNT_ATTR_RDONLY)
                       : sys_open_tree(AT_FDCWD, "/sys-none", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE),
        .dev = sys_open_tree(AT_FDCWD, "/dev", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC),
        .pts = mount_with("devpts", terminals, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC),
    };
    make_scratch(r, &m);
    if (m.proc < 0 || m.sys < 0 || m.dev < 0 || m.pts < 0 || m.shm < 0)
        stop(STEP_MOUNTS);
    return m;
}

static void change_root(int overlay)
{
    if (sys_move_mount(overlay, "", AT_FDCWD, "/mnt", MOVE_MOUNT_F_EMPTY_PATH) != 0 || chdir("/mnt") != 0 ||
        syscall(SYS_pivot_root, ".", ".") != 0 || umount2(".", MNT_DETACH) != 0 || chdir("/") != 0)
        stop(STEP_ROOT);
}

static int put_at(int mount_fd, int target)
{
    if (target < 0)
        return -1;
    int result = sys_move_mount(mount_fd, "", target, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH);
    close(target);
    close(mount_fd);
    return result;
}

/* Put a mount on a folder of the image, which is made if it is missing; a link there is refused. */
static void put_on_folder(int mount_fd, const char *path, int step)
{
    uint64_t strict = CLOCHE_RESOLVE_NO_SYMLINKS | CLOCHE_RESOLVE_NO_MAGICLINKS;
    int target = sys_openat2(AT_FDCWD, path, O_PATH | O_DIRECTORY | O_CLOEXEC, 0, strict);
    if (target < 0 && errno == ENOENT && mkdir(path, 0755) == 0)
        target = sys_openat2(AT_FDCWD, path, O_PATH | O_DIRECTORY | O_CLOEXEC, 0, strict);
    if (put_at(mount_fd, target) != 0)
        stop(step);
}

/* A file of /etc that is ours: whatever the image has there, a link to nowhere too, gives way. */
static void put_on_file(int mount_fd, const char *path)
{
    uint64_t strict = CLOCHE_RESOLVE_NO_SYMLINKS | CLOCHE_RESOLVE_NO_MAGICLINKS;
    int target = sys_openat2(AT_FDCWD, path, O_PATH | O_CLOEXEC, 0, strict);
    if (target < 0 && (unlink(path) == 0 || errno == ENOENT)) {
        int made = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
        if (made >= 0) {
            close(made);
            target = sys_openat2(AT_FDCWD, path, O_PATH | O_CLOEXEC, 0, strict);
        }
    }
    if (put_at(mount_fd, target) != 0)
        stop(STEP_ETC);
}

static void put_etc(const struct mounts *m)
{
    char path[48];
    if (mkdir("/etc", 0755) != 0 && errno != EEXIST)
        stop(STEP_ETC);
    for (int i = 0; i < ETC_FILES; i++) {
        snprintf(path, sizeof path, "/etc/%s", etc_files[i]);
        put_on_file(m->etc[i], path);
    }
}

/* A volume's place may be several folders deep; what is missing of them is made, a link among them is refused. */
static void put_volumes(const struct request *r, const int *mounts)
{
    for (size_t i = 0; i < r->volume_count; i++) {
        char path[TARGET_BYTES];
        strcpy(path, r->volume_targets[i]);
        for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
            *slash = 0;
            if (mkdir(path, 0755) != 0 && errno != EEXIST)
                stop(STEP_VOLUMES);
            *slash = '/';
        }
        put_on_folder(mounts[i], path, STEP_VOLUMES);
    }
}

/* Nested user namespaces are off for good; only a holder of CAP_SYS_RESOURCE inside could raise this again. */
static void limit_namespaces(void)
{
    static const char *const files[] = {"/proc/sys/user/max_user_namespaces", "/proc/sys/user/max_inotify_instances"};
    static const char *const values[] = {"0", "512"};
    for (int i = 0; i < 2; i++)
        if (put_text_at(AT_FDCWD, files[i], values[i]) != 0 && errno != ENOENT)
            stop(STEP_LIMITS);
}

/* As the common container engines do: hide what tells of the host, freeze what could change the kernel. */
static void mask(bool own_sys)
{
    static const char *const hidden[] = {"/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
                                         "/proc/sched_debug"};
    static const char *const emptied[] = {"/proc/acpi", "/proc/asound", "/proc/scsi", "/sys/firmware",
                                          "/sys/devices/virtual/powercap"}; /* the last two: the shared /sys has it done */
    static const char *const frozen[] = {"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"};
    struct kernel_mount_attr readonly = {.set = MOUNT_ATTR_RDONLY};
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++) {
        int target = open(hidden[i], O_PATH | O_CLOEXEC);
        if (target >= 0 && put_at(sys_open_tree(AT_FDCWD, "/dev/null", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC), target))
            stop(STEP_MASK);
    }
    for (size_t i = 0; i < sizeof emptied / sizeof *emptied - (own_sys ? 0 : 2); i++) {
        int target = open(emptied[i], O_PATH | O_CLOEXEC);
        if (target >= 0 && put_at(sys_open_tree(AT_FDCWD, "/dev/mqueue", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC), target))
            stop(STEP_MASK);
    }
    for (size_t i = 0; i < sizeof frozen / sizeof *frozen; i++) {
        int target = open(frozen[i], O_PATH | O_CLOEXEC);
        int copy = target < 0 ? -1 : sys_open_tree(AT_FDCWD, frozen[i], OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
        if (target >= 0 && (copy < 0 || sys_mount_setattr(copy, &readonly) != 0 || put_at(copy, target) != 0))
            stop(STEP_MASK);
    }
}

static void limit_process(void)
{
    struct rlimit files, core = {NEVER_DUMP, NEVER_DUMP};
    if (getrlimit(RLIMIT_NOFILE, &files) != 0)
        stop(STEP_LIMITS);
    if (files.rlim_max > OPEN_FILES_MAX)
        files.rlim_max = OPEN_FILES_MAX;
    files.rlim_cur = files.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &files) != 0 || setrlimit(RLIMIT_CORE, &core) != 0)
        stop(STEP_LIMITS);
}

_Noreturn void child_main(const struct birth *b)
{
    const struct request *r = b->request;
    take_descriptors(b);
    bool own_sys = b->sandbox->public;
    uint32_t address = 0; /* chosen after the clone */
    int mounts[1 + VOLUMES_MAX]; /* the root, then the volumes */
    wait_for_go(&address, mounts, 1 + r->volume_count);
    become_root();
    struct mounts m = make_mounts(r, own_sys);
    change_root(mounts[0]);
    put_on_folder(m.proc, "/proc", STEP_PROC);
    put_on_folder(m.sys, "/sys", STEP_SYS);
    put_on_folder(m.dev, "/dev", STEP_DEV);
    put_on_folder(m.pts, "/dev/pts", STEP_DEV);
    put_on_folder(m.shm, "/dev/shm", STEP_DEV);
    put_etc(&m);
    put_volumes(r, mounts + 1);
    if (child_network(address, settings.gateway, b->sandbox->public) != 0)
        stop(STEP_NETWORK);
    limit_namespaces();
    mask(own_sys);
    if (sethostname(r->hostname, strlen(r->hostname)) != 0)
        stop(STEP_HOSTNAME);
    limit_process();
    if (seccomp_program != NULL && syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, seccomp_program) != 0)
        stop(STEP_SECCOMP);
    syscall(SYS_execveat, FD_CHILD_GUEST, "", r->argv, r->envp, AT_EMPTY_PATH);
    stop(STEP_EXEC);
}
