/*
 * Limits on what a sandbox may write. Which kind the store can hold is the client's to say (native/store.py); here each
 * is made or fails, so that a limit that was asked for holds or there is no sandbox.
 *
 *   btrfs   the sandbox's folder is a subvolume with a limit of its qgroup
 *   tmpfs   its writable layer is a tmpfs of that size, which counts as memory and exists nowhere but in its overlay
 */
#include "spawner.h"

#include <errno.h>
#include <linux/btrfs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include "sys.h"

#define BYTES_PER_INODE 4096 /* of a tmpfs: as many files as pages */
#define INODES_MIN 1024

static int make_subvolume(const char *id)
{
    struct btrfs_ioctl_vol_args args = {0};
    snprintf(args.name, sizeof args.name, "%s", id);
    return ioctl(uppers_fd, BTRFS_IOC_SUBVOL_CREATE, &args);
}

static int limit_subvolume(const char *id, uint64_t bytes)
{
    struct btrfs_ioctl_qgroup_limit_args args = {.lim = {.flags = BTRFS_QGROUP_LIMIT_MAX_RFER, .max_rfer = bytes}};
    int fd = openat(uppers_fd, id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -1;
    int result = ioctl(fd, BTRFS_IOC_QGROUP_LIMIT, &args);
    if (result == 0)
        result = fchmod(fd, 0700);
    close(fd);
    return result;
}

int store_make(const struct sandbox *s, const struct request *r, struct failure *f)
{
    if (r->disk == 0 || r->disk_tmpfs)
        return mkdirat(uppers_fd, s->id, 0700) == 0 ? 0 : fail(f, "make the sandbox's folder in the store");
    if (make_subvolume(s->id) != 0)
        return fail(f, "make the sandbox's subvolume in the store");
    if (limit_subvolume(s->id, r->disk) != 0)
        return fail_with(f, "unsupported", errno, "limit the sandbox's subvolume: %s (are quotas on?)", strerror(errno));
    return 0;
}

/* A whole subvolume goes at once. -1 for what is none: then its entries are removed one by one. */
int store_remove(const char *id)
{
    struct btrfs_ioctl_vol_args args = {0};
    snprintf(args.name, sizeof args.name, "%s", id);
    return ioctl(uppers_fd, BTRFS_IOC_SNAP_DESTROY, &args);
}

/* Returns a mount of a tmpfs with `upper` and `work`, that is attached nowhere. */
int store_tmpfs(uint64_t bytes, struct failure *f)
{
    char size[24], inodes[24];
    uint64_t most = bytes / BYTES_PER_INODE;
    snprintf(size, sizeof size, "%llu", (unsigned long long)bytes);
    snprintf(inodes, sizeof inodes, "%llu", (unsigned long long)(most < INODES_MIN ? INODES_MIN : most));
    int fs = sys_fsopen("tmpfs"), mounted = -1;
    if (fs >= 0 && sys_fsconfig(fs, FSCONFIG_SET_STRING, "size", size) == 0 &&
        sys_fsconfig(fs, FSCONFIG_SET_STRING, "nr_inodes", inodes) == 0 &&
        sys_fsconfig(fs, FSCONFIG_SET_STRING, "mode", "0700") == 0 &&
        sys_fsconfig(fs, FSCONFIG_SET_STRING, "uid", "0") == 0 && sys_fsconfig(fs, FSCONFIG_SET_STRING, "gid", "0") == 0 &&
        sys_fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL) == 0)
        mounted = sys_fsmount(fs, 0);
    close(fs);
    if (mounted >= 0 && mkdirat(mounted, "upper", 0755) == 0 && mkdirat(mounted, "work", 0755) == 0 &&
        fchownat(mounted, "upper", 0, 0, 0) == 0 && fchownat(mounted, "work", 0, 0, 0) == 0)
        return mounted;
    fail(f, "make a tmpfs for the sandbox's writable layer");
    if (mounted >= 0)
        close(mounted);
    return -1;
}
