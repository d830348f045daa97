/*
 * The extra filter of commands: what the well-known container profile allows and a sandbox's inside has no
 * use for (user namespaces above all). Must never allow what the base filter refuses: filters only add up.
 *
 * clone3 takes its flags in memory, where a filter cannot look: ENOSYS makes every C library fall back to
 * clone. System calls of another architecture (32-bit) get ENOSYS, since their numbers mean other things.
 */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "launch.h"

#if defined(__x86_64__)
#define NATIVE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define NATIVE AUDIT_ARCH_AARCH64
#else
#error "this architecture has no entry here yet"
#endif

#define NEW_USER 0x10000000u
#define X32 0x40000000u

#define FIELD(name) ((uint32_t)offsetof(struct seccomp_data, name))
#define LOAD(offset) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset)
#define RETURN(value) BPF_STMT(BPF_RET | BPF_K, value)
#define REFUSE(error) RETURN(SECCOMP_RET_ERRNO | (error))
#define SKIP_UNLESS(value, n) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, n)
#define REFUSE_CALL(number) SKIP_UNLESS(number, 1), REFUSE(EPERM)

/* numbers that are the same everywhere, and newer than some C libraries */
enum {
    N_pidfd_getfd = 438, N_open_tree = 428, N_move_mount = 429, N_fsopen = 430, N_fsconfig = 431,
    N_fsmount = 432, N_fspick = 433, N_clone3 = 435, N_mount_setattr = 442, N_io_uring_setup = 425,
    N_io_uring_enter = 426, N_io_uring_register = 427, N_process_madvise = 440, N_memfd_secret = 447,
    N_open_tree_attr = 467,
};

int seccomp_harden(void)
{
    static struct sock_filter filter[] = {
        LOAD(FIELD(arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, NATIVE, 1, 0),
        REFUSE(ENOSYS),
        LOAD(FIELD(nr)),
#if defined(__x86_64__)
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, X32, 0, 1),
        REFUSE(ENOSYS),
#endif
        SKIP_UNLESS(N_clone3, 1), REFUSE(ENOSYS),
        REFUSE_CALL(SYS_setns), REFUSE_CALL(SYS_mount), REFUSE_CALL(SYS_umount2),
        REFUSE_CALL(SYS_pivot_root), REFUSE_CALL(N_fsopen), REFUSE_CALL(N_fsconfig),
        REFUSE_CALL(N_fsmount), REFUSE_CALL(N_fspick), REFUSE_CALL(N_open_tree),
        REFUSE_CALL(N_open_tree_attr), REFUSE_CALL(N_move_mount), REFUSE_CALL(N_mount_setattr),
        REFUSE_CALL(SYS_keyctl), REFUSE_CALL(SYS_add_key), REFUSE_CALL(SYS_request_key),
        REFUSE_CALL(SYS_bpf), REFUSE_CALL(N_io_uring_setup), REFUSE_CALL(N_io_uring_enter),
        REFUSE_CALL(N_io_uring_register), REFUSE_CALL(SYS_userfaultfd), REFUSE_CALL(N_pidfd_getfd),
        REFUSE_CALL(SYS_process_vm_readv), REFUSE_CALL(SYS_process_vm_writev),
        REFUSE_CALL(N_process_madvise), REFUSE_CALL(SYS_name_to_handle_at),
        REFUSE_CALL(SYS_open_by_handle_at), REFUSE_CALL(N_memfd_secret),
        /* the guest has the user of the workload's root: nobody sets another process's limits */
        SKIP_UNLESS(SYS_prlimit64, 4),
        LOAD(FIELD(args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0),
        REFUSE(EPERM),
        RETURN(SECCOMP_RET_ALLOW),
        /* clone and unshare: only the flag for a new user namespace is refused */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 1, 0),
        SKIP_UNLESS(SYS_unshare, 3),
        LOAD(FIELD(args[0])), /* the low half: both architectures are little-endian */
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, NEW_USER, 0, 1),
        REFUSE(EPERM),
        RETURN(SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) < 0 ? errno : 0;
}
