/*
 * Clones sandboxes for a worker without copying the spawner's memory: the child borrows it until it becomes the guest
 * (CLONE_VM and CLONE_VFORK), on a stack of its own. The caller of such a clone sleeps meanwhile, but somebody must map
 * ids and mount the root, so each worker has a partner that only clones. The child uses the sleeping partner's thread
 * area (errno); nobody else touches that. Copying instead would cost a fault, and a message to all processors, for
 * every page that any thread of ours writes to afterwards.
 *
 * Descriptors are shared too, until the child takes a copy of the low ones: those that stand for living sandboxes are
 * above `descriptors_low`, so that a sandbox costs the same when there are ten thousand of them.
 */
#include "spawner.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdlib.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "sys.h"

#define STACK_BYTES (64u << 10)
#define LOW_MAX 2048
#define LOW_MIN 128
#define NAMESPACES                                                                                                     \
    (CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET)

struct partner {
    struct birth *birth;
    atomic_uint asked, step, done;
    int error, pidfd;
    pid_t pid;
    char *stack;
};

enum { WAITING = 0, APART = 1, OVER = 2 };
unsigned descriptors_low = LOW_MAX;

static void wait_while(atomic_uint *word, unsigned value)
{
    while (atomic_load(word) == value)
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void set(atomic_uint *word, unsigned value)
{
    atomic_store(word, value);
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* As many descriptors as we may have; the lower part is for what is open only for a moment. */
void descriptors_raise(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0)
        return;
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    if (files.rlim_cur / 4 < descriptors_low)
        descriptors_low = files.rlim_cur / 4 < LOW_MIN ? LOW_MIN : (unsigned)(files.rlim_cur / 4);
}

/* Moves a descriptor that is here to stay out of the way; -1 where there is no room. */
int descriptor_to_keep(int fd)
{
    int kept = fcntl(fd, F_DUPFD_CLOEXEC, (int)descriptors_low);
    if (fd >= 0)
        close(fd);
    return kept;
}

/* The child begins here, on its own stack. */
static _Noreturn void begin(void *argument)
{
    struct partner *p = argument;
    if (syscall(SYS_close_range, descriptors_low, ~0u, CLOCHE_CLOSE_RANGE_UNSHARE) != 0)
        _exit(2);
    set(&p->step, APART);
    child_main(p->birth);
}

/* clone3 with a stack: a function call cannot return on another stack than it was made on. */
static long clone_onto_stack(struct kernel_clone_args *args, void (*function)(void *), void *argument)
{
#if defined(__x86_64__)
    long result;
    register void (*target)(void *) __asm__("r8") = function;
    register void *value __asm__("r9") = argument;
    __asm__ volatile("syscall\n\t"
                     "test %%rax, %%rax\n\t"
                     "jnz 1f\n\t"
                     "xor %%ebp, %%ebp\n\t"
                     "mov %%r9, %%rdi\n\t"
                     "call *%%r8\n\t"
                     "hlt\n"
                     "1:"
                     : "=a"(result)
                     : "0"((long)SYS_clone3), "D"(args), "S"(sizeof *args), "r"(target), "r"(value)
                     : "rcx", "r11", "memory");
    return result;
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = SYS_clone3;
    register long x0 __asm__("x0") = (long)args;
    register long x1 __asm__("x1") = sizeof *args;
    register void (*target)(void *) __asm__("x9") = function;
    register void *value __asm__("x10") = argument;
    __asm__ volatile("svc #0\n\t"
                     "cbnz x0, 1f\n\t"
                     "mov x29, #0\n\t"
                     "mov x0, x10\n\t"
                     "blr x9\n\t"
                     "brk #1\n"
                     "1:"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(target), "r"(value)
                     : "memory", "cc");
    return x0;
#else
#error "this architecture has no clone_onto_stack"
#endif
}

static void clone_one(struct partner *p)
{
    const struct birth *b = p->birth;
    uint32_t base = base_id(b->sandbox->slot);
    struct kernel_clone_args args = {
        .flags = NAMESPACES | CLONE_VM | CLONE_VFORK | CLONE_FILES | CLONE_PARENT_SETTID | CLOCHE_CLONE_PIDFD |
                 (b->cgroup >= 0 ? CLOCHE_CLONE_INTO_CGROUP : 0),
        .pidfd = (uint64_t)(uintptr_t)&p->pidfd,
        .parent_tid = (uint64_t)(uintptr_t)&p->pid,
        .exit_signal = SIGCHLD,
        .stack = (uint64_t)(uintptr_t)p->stack,
        .stack_size = STACK_BYTES,
        .cgroup = b->cgroup >= 0 ? (uint64_t)b->cgroup : 0,
    };
    p->error = 0;
    p->pid = p->pidfd = -1;
    if (act_as(base) != 0) {
        p->error = errno;
    } else {
        long result = clone_onto_stack(&args, begin, p);
        if (result < 0)
            p->error = (int)-result;
    }
    if (act_as(0) != 0)
        _exit(70); /* this thread must not go on as somebody else */
}

static void *serve(void *argument)
{
    struct partner *p = argument;
    worker_identity();
    for (;;) {
        wait_while(&p->asked, 0);
        atomic_store(&p->asked, 0);
        clone_one(p);
        if (atomic_load(&p->step) == WAITING)
            set(&p->step, OVER);
        set(&p->done, 1);
    }
    return NULL;
}

struct partner *partner_start(const pthread_attr_t *attributes)
{
    pthread_t thread;
    struct partner *p = calloc(1, sizeof *p);
    if (p == NULL)
        return NULL;
    p->stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    return p->stack == MAP_FAILED || pthread_create(&thread, attributes, serve, p) != 0 ? NULL : p;
}

/* Returns once the child has descriptors of its own. The clone is made by the range's root: limits are charged to it. */
int partner_clone(struct partner *p, struct birth *birth, struct failure *f)
{
    p->birth = birth;
    atomic_store(&p->step, WAITING);
    atomic_store(&p->done, 0);
    set(&p->asked, 1);
    wait_while(&p->step, WAITING);
    birth->sandbox->pid = p->pid;
    birth->sandbox->pidfd = descriptor_to_keep(p->pidfd);
    if (atomic_load(&p->step) == APART)
        return 0;
    partner_wait(p);
    errno = p->error != 0 ? p->error : ECHILD;
    return fail(f, "make the sandbox's namespaces");
}

/* Until the child is the guest, or gone, it lives in our memory: nothing of the birth may go before that. */
void partner_wait(struct partner *p) { wait_while(&p->done, 0); }
