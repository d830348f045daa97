/*
 * cloche-spawner: start and end of the process.
 *
 * usage: cloche-spawner --instance=HEX8 --state-dir=DIR --run-dir=DIR --guest=FILE [--idle-ms=N] [--workers=N]
 *                       [--nft-file=FILE --pool=U32/BITS --gateway=U32] [-- NAME SERVER ARGV...]   < FILTER
 *
 * Standard input is the system call filter of all sandboxes, as an array of struct sock_filter. The process returns 0
 * once a copy of it in the background listens, 75 when another spawner of this installation runs, 1 with a line on
 * standard error when it cannot work here.
 */
#include "spawner.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "sys.h"

#define FILTER_BYTES_MAX (4096 * sizeof(struct sock_filter))
#define ALREADY_RUNS 75

struct settings settings = {.idle_ms = 10000, .workers = 4};
int guest_fd = -1, null_fd = -1;

static _Noreturn void refuse(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static const char *value_of(const char *argument, const char *name)
{
    size_t size = strlen(name);
    return strncmp(argument, name, size) == 0 ? argument + size : NULL;
}

static void take_argument(const char *argument)
{
    const char *value;
    if ((value = value_of(argument, "--instance=")) != NULL)
        snprintf(settings.instance, sizeof settings.instance, "%s", value);
    else if ((value = value_of(argument, "--state-dir=")) != NULL)
        settings.state_dir = value;
    else if ((value = value_of(argument, "--run-dir=")) != NULL)
        settings.run_dir = value;
    else if ((value = value_of(argument, "--guest=")) != NULL)
        settings.guest_path = value;
    else if ((value = value_of(argument, "--nft-file=")) != NULL)
        settings.nft_file = value;
    else if ((value = value_of(argument, "--idle-ms=")) != NULL)
        settings.idle_ms = (unsigned)strtoul(value, NULL, 10);
    else if ((value = value_of(argument, "--workers=")) != NULL)
        settings.workers = (unsigned)strtoul(value, NULL, 10);
    else if ((value = value_of(argument, "--gateway=")) != NULL)
        settings.gateway = (uint32_t)strtoul(value, NULL, 10);
    else if ((value = value_of(argument, "--pool=")) != NULL) {
        char *bits;
        settings.pool = (uint32_t)strtoul(value, &bits, 10);
        settings.pool_bits = *bits == '/' ? (unsigned)strtoul(bits + 1, NULL, 10) : 16;
    } else {
        errno = EINVAL;
        refuse(argument);
    }
}

static void take_arguments(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--") == 0) {
            settings.resolver = i + 1 < argc ? argv + i + 1 : NULL;
            break;
        }
        take_argument(argv[i]);
    }
    errno = EINVAL;
    if (strlen(settings.instance) != 8 || settings.state_dir == NULL || settings.run_dir == NULL ||
        settings.guest_path == NULL || settings.workers == 0 || settings.workers > 256)
        refuse("--instance, --state-dir, --run-dir and --guest are needed");
    if (settings.resolver != NULL && (settings.pool_bits < 8 || settings.pool_bits > 22 || settings.gateway == 0))
        refuse("--pool (8 to 22 bits) and --gateway are needed");
}

static void read_filter(void)
{
    static struct sock_fprog program;
    char *bytes = malloc(FILTER_BYTES_MAX);
    size_t size = 0;
    ssize_t n = 1;
    while (bytes != NULL && size < FILTER_BYTES_MAX && (n = read(0, bytes + size, FILTER_BYTES_MAX - size)) > 0)
        size += (size_t)n;
    errno = EINVAL;
    if (bytes == NULL || n < 0 || size == 0 || size % sizeof(struct sock_filter) != 0)
        refuse("read the system call filter");
    program.len = (unsigned short)(size / sizeof(struct sock_filter));
    program.filter = (struct sock_filter *)bytes;
    seccomp_program = &program;
}

/* Numbers below FD_FIRST_FREE are for the children alone, so that moving descriptors there clobbers nothing. */
static void reserve_descriptors(void)
{
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    while (fd >= 0 && fd < FD_FIRST_FREE - 1)
        fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null_fd < FD_FIRST_FREE)
        refuse("open /dev/null");
}

/* A sealed copy: whatever a workload does to its own first process, it cannot write to this program. */
static void load_guest(void)
{
    char block[65536];
    ssize_t n;
    int file = open(settings.guest_path, O_RDONLY | O_CLOEXEC);
    guest_fd = memfd_create("cloche-guest", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (file < 0 || guest_fd < 0)
        refuse("open the guest program");
    while ((n = read(file, block, sizeof block)) > 0)
        if (write(guest_fd, block, (size_t)n) != n)
            refuse("copy the guest program");
    close(file);
    if (n < 0 || fchmod(guest_fd, 0555) != 0 ||
        fcntl(guest_fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) != 0)
        refuse("seal the guest program");
}

/* One spawner per installation: the lock ends with the process. */
static void lock_installation(void)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/spawner.lock", settings.run_dir);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        refuse(path);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0)
        exit(ALREADY_RUNS);
}

static int make_listener(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/spawner.sock", run_fd);
    unlinkat(run_fd, "spawner.sock", 0);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    mode_t before = umask(0177);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 512) != 0)
        refuse("listen");
    umask(before);
    return fd;
}

static void go_to_background(void)
{
    pid_t pid = fork();
    if (pid < 0)
        refuse("fork");
    if (pid > 0)
        _exit(0);
    int log = openat(run_fd, "spawner.log", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (setsid() < 0 || dup2(null_fd, 0) < 0 || dup2(null_fd, 1) < 0 || dup2(log < 0 ? null_fd : log, 2) < 0)
        _exit(1);
    if (log >= 0)
        close(log);
}

int main(int argc, char **argv)
{
    struct failure f;
    take_arguments(argc, argv);
    umask(022);
    signal(SIGPIPE, SIG_IGN);
    lock_installation();
    descriptors_raise();
    read_filter();
    reserve_descriptors();
    load_guest();
    if (syscall(SYS_setgroups, 0, NULL) != 0)
        refuse("drop groups");
    if (cgroup_start(&f) != 0 || space_make(&f) != 0 || server_start() != 0) {
        fprintf(stderr, "%s\n", f.message);
        cgroup_stop();
        return 1;
    }
    int listener = make_listener();
    go_to_background();
    adopt_all();
    jobs_start(settings.workers);
    server_run(listener);
    unlinkat(run_fd, "spawner.sock", 0);
    network_stop();
    cgroup_stop();
    return 0;
}
