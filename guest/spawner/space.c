/*
 * The spawner's own mount namespace: a root of a handful of mounts, so that copying it for each sandbox is cheap and
 * shows the sandbox nothing of the host. A /proc and a /sys without anything mounted over them must be in it, or the
 * kernel refuses both inside a user namespace.
 *
 * All sandboxes without a network share one /sys: it shows the devices of a network namespace that has none but lo. A
 * sysfs each would make every new one slower than the last, for the kernel compares it with all that there are.
 *
 *   /sys-none /proc /sys /store (the state folder) /dev (what sandboxes get) /mnt (where roots are put)
 */
#include "spawner.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "sys.h"

static int empty_net_ns_fd = -1;
int store_fd, sandboxes_fd, uppers_fd, run_fd, host_mount_ns_fd, own_mount_ns_fd, host_state_fd, host_run_fd;

static const struct {
    const char *name;
    unsigned major, minor;
} devices[] = {{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}};

static const char *const links[][2] = {
    {"/proc/self/fd", "fd"}, {"/proc/self/fd/0", "stdin"}, {"/proc/self/fd/1", "stdout"}, {"/proc/self/fd/2", "stderr"},
    {"pts/ptmx", "ptmx"}};

static int make_devices(int root)
{
    if (mkdirat(root, "dev", 0755) != 0)
        return -1;
    int dev = openat(root, "dev", O_RDONLY | O_DIRECTORY | O_CLOEXEC), result = 0;
    if (dev < 0)
        return -1;
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        dev_t number = makedev(devices[i].major, devices[i].minor);
        if (mknodat(dev, devices[i].name, S_IFCHR | 0666, number) != 0 || fchmodat(dev, devices[i].name, 0666, 0) != 0)
            result = -1;
    }
    for (size_t i = 0; i < sizeof links / sizeof *links; i++)
        if (symlinkat(links[i][0], dev, links[i][1]) != 0)
            result = -1;
    if (mkdirat(dev, "pts", 0755) != 0 || mkdirat(dev, "shm", 0755) != 0 || mkdirat(dev, "mqueue", 0755) != 0)
        result = -1;
    close(dev);
    return result;
}

static int mount_new(const char *type, unsigned attributes)
{
    int fs = sys_fsopen(type);
    if (fs < 0)
        return -1;
    int mounted = sys_fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL) == 0 ? sys_fsmount(fs, attributes) : -1;
    close(fs);
    return mounted;
}

static int attach(int mount_fd, const char *path)
{
    if (mount_fd < 0)
        return -1;
    int result = sys_move_mount(mount_fd, "", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH);
    close(mount_fd);
    return result;
}

/* Put a new tmpfs over /proc (which every machine has), fill it and make it the root. */
static int make_root(int store)
{
    static const char *const folders[] = {"proc", "sys", "sys-none", "store", "mnt", "views"};
    if (attach(mount_new("tmpfs", 0), "/proc") != 0 || chdir("/proc") != 0)
        return -1;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        if (mkdir(folders[i], 0755) != 0)
            return -1;
    int root = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0 || make_devices(root) != 0)
        return -1;
    close(root);
    if (attach(store, "store") != 0)
        return -1;
    if (syscall(SYS_pivot_root, ".", ".") != 0 || umount2(".", MNT_DETACH) != 0 || chdir("/") != 0)
        return -1;
    if (attach(mount_new("proc", MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC), "/proc") != 0)
        return -1;
    return attach(mount_new("sysfs", MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV), "/sys");
}

/* The devices become a mount of their own that nobody can write to. */
static int close_devices(void)
{
    struct kernel_mount_attr attr = {.set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC};
    int dev = sys_open_tree(AT_FDCWD, "/dev", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (dev < 0 || sys_mount_setattr(dev, &attr) != 0)
        return -1;
    return attach(dev, "/dev");
}

/* Hides what sandboxes must not see, as child.c does for those with a sysfs of their own. */
static int mask_shared(void)
{
    static const char *const emptied[] = {"/sys-none/firmware", "/sys-none/devices/virtual/powercap"};
    for (size_t i = 0; i < sizeof emptied / sizeof *emptied; i++)
        if (access(emptied[i], F_OK) == 0 &&
            attach(sys_open_tree(AT_FDCWD, "/dev/mqueue", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC), emptied[i]) != 0)
            return -1;
    return 0;
}

static int share_sysfs(void)
{
    int before = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (before < 0 || unshare(CLONE_NEWNET) != 0) {
        close(before);
        return -1;
    }
    empty_net_ns_fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC); /* held, so that lo stays */
    int result = empty_net_ns_fd < 0 || link_set_up("lo") != 0 ? -1 : 0;
    if (result == 0)
        result = attach(mount_new("sysfs", MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC),
                        "/sys-none");
    if (setns(before, CLONE_NEWNET) != 0)
        result = -1;
    close(before);
    return result == 0 ? mask_shared() : -1;
}

/*
 * The lowest layer of every root: places for what is mounted, so that an image that lacks them costs no copies into the
 * writable layer. An image's own come before it.
 */
static int make_skeleton(void)
{
    static const char *const folders[] = {"skeleton", "skeleton/proc", "skeleton/sys", "skeleton/dev", "skeleton/etc"};
    static const char *const files[] = {"skeleton/etc/hosts", "skeleton/etc/hostname", "skeleton/etc/resolv.conf"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        if (mkdirat(store_fd, folders[i], 0755) != 0 && errno != EEXIST)
            return -1;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (write_file_at(store_fd, files[i], "", 0, 0644) != 0)
            return -1;
    return 0;
}

static int open_folder(const char *parent, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", parent, name);
    return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

int space_make(struct failure *f)
{
    host_mount_ns_fd = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    run_fd = open_folder(settings.run_dir, "");
    host_state_fd = open_folder(settings.state_dir, "");
    host_run_fd = open_folder(settings.run_dir, "");
    if (host_mount_ns_fd < 0 || run_fd < 0 || host_state_fd < 0 || host_run_fd < 0 || (sandboxes_fd = open_folder(settings.run_dir, "sandboxes")) < 0)
        return fail(f, "open the run folder");
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        return fail(f, "make a mount namespace");
    int store = sys_open_tree(AT_FDCWD, settings.state_dir, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (store < 0)
        return fail(f, "open the state folder as a mount");
    if (make_root(store) != 0 || close_devices() != 0 || share_sysfs() != 0)
        return fail(f, "make the spawner's root");
    store_fd = open_folder("", "store");
    own_mount_ns_fd = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    uppers_fd = open_folder("/store", "uppers");
    if (store_fd < 0 || uppers_fd < 0 || own_mount_ns_fd < 0)
        return fail(f, "open the state folder");
    if (make_skeleton() != 0)
        return fail(f, "make the lowest layer");
    return 0;
}
