/*
 * System calls and constants that C libraries do not all have. Names and numbers are the kernel's (linux/mount.h,
 * linux/sched.h, linux/pidfd.h); including those headers beside sys/mount.h does not compile everywhere.
 */
#ifndef CLOCHE_SYS_H
#define CLOCHE_SYS_H

#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef OPEN_TREE_CLONE
#define OPEN_TREE_CLONE 1
#define OPEN_TREE_CLOEXEC O_CLOEXEC
#endif
#ifndef MOVE_MOUNT_F_EMPTY_PATH
#define MOVE_MOUNT_F_EMPTY_PATH 0x04
#endif
#ifndef MOVE_MOUNT_T_EMPTY_PATH
#define MOVE_MOUNT_T_EMPTY_PATH 0x40
#endif
#ifndef FSOPEN_CLOEXEC
#define FSOPEN_CLOEXEC 1
#define FSMOUNT_CLOEXEC 1
#endif
#ifndef FSCONFIG_SET_FLAG
#define FSCONFIG_SET_FLAG 0
#define FSCONFIG_SET_STRING 1
#define FSCONFIG_CMD_CREATE 6
#endif
#ifndef MOUNT_ATTR_RDONLY
#define MOUNT_ATTR_RDONLY 0x01
#define MOUNT_ATTR_NOSUID 0x02
#define MOUNT_ATTR_NODEV 0x04
#define MOUNT_ATTR_NOEXEC 0x08
#endif
#ifndef MOUNT_ATTR_IDMAP
#define MOUNT_ATTR_IDMAP 0x00100000
#endif
#ifndef AT_RECURSIVE
#define AT_RECURSIVE 0x8000
#endif
#ifndef AT_EMPTY_PATH
#define AT_EMPTY_PATH 0x1000
#endif
#ifndef CLONE_NEWCGROUP
#define CLONE_NEWCGROUP 0x02000000
#endif
#define CLOCHE_CLONE_PIDFD 0x00001000ull
#define CLOCHE_CLONE_INTO_CGROUP 0x200000000ull
#define CLOCHE_P_PIDFD 3
#define CLOCHE_CLOSE_RANGE_UNSHARE 2u
#define CLOCHE_RESOLVE_NO_MAGICLINKS 0x02
#define CLOCHE_RESOLVE_NO_SYMLINKS 0x04
#define CLOCHE_RESOLVE_IN_ROOT 0x10

struct kernel_mount_attr {
    uint64_t set, clear, propagation, userns_fd;
};

struct kernel_clone_args {
    uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
};

/* linux/pidfd.h, version 0 of the structure */
struct kernel_pidfd_info {
    uint64_t mask, cgroup;
    uint32_t pid, tgid, ppid, ids[8];
    int32_t exit_code;
};
#define CLOCHE_PIDFD_INFO_EXIT (1u << 3)
#define CLOCHE_PIDFD_GET_INFO _IOWR(0xFF, 11, struct kernel_pidfd_info)

struct kernel_open_how {
    uint64_t flags, mode, resolve;
};

static inline int sys_open_tree(int dir, const char *path, unsigned flags)
{
    return (int)syscall(SYS_open_tree, dir, path, flags);
}

static inline int sys_move_mount(int from, const char *from_path, int to, const char *to_path, unsigned flags)
{
    return (int)syscall(SYS_move_mount, from, from_path, to, to_path, flags);
}

static inline int sys_fsopen(const char *type) { return (int)syscall(SYS_fsopen, type, FSOPEN_CLOEXEC); }

static inline int sys_fsconfig(int fs, unsigned command, const char *key, const char *value)
{
    return (int)syscall(SYS_fsconfig, fs, command, key, value, 0);
}

static inline int sys_fsmount(int fs, unsigned attributes)
{
    return (int)syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, attributes);
}

static inline int sys_mount_setattr(int fd, const struct kernel_mount_attr *attr)
{
    return (int)syscall(SYS_mount_setattr, fd, "", AT_EMPTY_PATH, attr, sizeof *attr);
}

static inline int sys_openat2(int dir, const char *path, uint64_t flags, uint64_t mode, uint64_t resolve)
{
    struct kernel_open_how how = {flags, mode, resolve};
    return (int)syscall(SYS_openat2, dir, path, &how, sizeof how);
}

#endif
