/*
 * Makes one sandbox, from the outside. The order matters: the record is on disk before the clone, and the child waits
 * until ids, cgroups, the `native` file, the network and the root are done. Whatever fails, nothing is left.
 */
#include "spawner.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "sys.h"

#define BACKLOG 128
#define BIRTH_MS 30000

struct making {
    struct partner *partner;
    struct sandbox *s;
    const struct request *r;
    struct birth birth;
    bool cloned;
    int folder, cgroup, control, mounts[1 + VOLUMES_MAX]; /* mounts: the root, then the volumes */
};

static void close_all(const int *fds, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

static int make_folder(struct making *m, struct failure *f)
{
    const struct request *r = m->r;
    if (mkdirat(sandboxes_fd, r->id, 0700) != 0)
        return errno == EEXIST ? fail_with(f, "exists", EEXIST, "there is a sandbox %s already", r->id)
                               : fail(f, "make the sandbox's folder");
    m->folder = openat(sandboxes_fd, r->id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (m->folder < 0 || write_file_at(m->folder, "record.json", r->record.value, r->record.bytes, 0600) != 0)
        return fail(f, "write the record");
    return 0;
}

static int make_socket(struct making *m, struct failure *f)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/guest.sock", m->folder);
    m->birth.listen = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    m->birth.log = openat(m->folder, "guest.log", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (m->birth.listen < 0 || m->birth.log < 0 ||
        bind(m->birth.listen, (struct sockaddr *)&address, sizeof address) != 0 || listen(m->birth.listen, BACKLOG) != 0)
        return fail(f, "make the guest's socket");
    return 0;
}

/* Threads keep identities of their own: the system calls are made bare, not through the C library. */
int act_as(uint32_t id)
{
    if (syscall(SYS_setresgid, -1, id, -1) != 0 || syscall(SYS_setresuid, -1, id, -1) != 0)
        return -1;
    return 0;
}

static int map_ids(struct making *m, struct failure *f)
{
    char path[48], line[48];
    snprintf(line, sizeof line, "0 %u %u", base_id(m->s->slot), RANGE_IDS);
    snprintf(path, sizeof path, "/proc/%d/uid_map", m->s->pid);
    if (put_text_at(AT_FDCWD, path, line) != 0)
        return fail(f, "map user ids");
    snprintf(path, sizeof path, "/proc/%d/gid_map", m->s->pid);
    return put_text_at(AT_FDCWD, path, line) == 0 ? 0 : fail(f, "map group ids");
}

static int make_root(struct making *m, struct failure *f)
{
    char path[48];
    snprintf(path, sizeof path, "/proc/%d/ns/user", m->s->pid);
    int userns = open(path, O_RDONLY | O_CLOEXEC);
    if (userns < 0)
        return fail(f, "open the user namespace");
    int result = overlay_mount(m->s, m->r, userns, &m->mounts[0], f);
    close(userns);
    return result;
}

/* By root itself, for whom the whole path is open. */
static int make_volumes(struct making *m, struct failure *f)
{
    char path[48];
    if (m->r->volume_count == 0)
        return 0;
    snprintf(path, sizeof path, "/proc/%d/ns/user", m->s->pid);
    int userns = open(path, O_RDONLY | O_CLOEXEC);
    int result = userns < 0 ? fail(f, "open the user namespace") : volumes_open(m->r, userns, m->mounts + 1, f);
    close(userns);
    return result;
}

/* What the next spawner needs to know the process again; the old file holds until the new one is whole. */
int write_native(int folder, const struct sandbox *s, struct failure *f)
{
    char text[256];
    int size = snprintf(text, sizeof text, "pid %d\nstart %llu\nslot %u\npooled %d\npublic %d\naddress %u\n", s->pid,
                        (unsigned long long)s->start_time, s->slot, s->pooled, s->public, s->address);
    if (write_file_at(folder, "native.new", text, (size_t)size, 0600) != 0 ||
        renameat(folder, "native.new", folder, "native") != 0)
        return fail(f, "write the native record");
    return 0;
}

static int send_go(struct making *m, struct failure *f)
{
    char space[CMSG_SPACE(sizeof m->mounts)] = {0};
    size_t bytes = (1 + m->r->volume_count) * sizeof(int);
    struct iovec data = {&m->s->address, sizeof m->s->address};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = space, .msg_controllen = CMSG_SPACE(bytes)};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(bytes);
    memcpy(CMSG_DATA(header), m->mounts, bytes);
    return sendmsg(m->control, &message, MSG_NOSIGNAL) == (ssize_t)data.iov_len ? 0 : fail(f, "hand the root over");
}

/* The child's end closes when it becomes the guest; a message before that says what failed. */
static int wait_for_birth(struct making *m, struct failure *f)
{
    int message[2];
    struct pollfd wait = {.fd = m->control, .events = POLLIN};
    if (poll(&wait, 1, BIRTH_MS) != 1)
        return fail_with(f, "failed", ETIMEDOUT, "the sandbox did not start within %d s", BIRTH_MS / 1000);
    ssize_t n = recv(m->control, message, sizeof message, 0);
    if (n == (ssize_t)sizeof message)
        return fail_with(f, message[1] == ENOSPC || message[1] == EDQUOT ? "disk_full" : "failed", message[1],
                         "%s: %s", child_step(message[0]), strerror(message[1]));
    if (n != 0 || sandbox_gone(m->s))
        return fail_with(f, "failed", ECHILD, "the first process of the sandbox died at once");
    return 0;
}

static int give_birth(struct making *m, struct failure *f)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return fail(f, "make a control socket");
    m->control = pair[0];
    m->birth.control = pair[1];
    m->birth.cgroup = m->cgroup;
    m->birth.sandbox = m->s;
    m->birth.request = m->r;
    int result = partner_clone(m->partner, &m->birth, f);
    close(pair[1]);
    if (result != 0)
        return -1;
    m->cloned = true;
    if (act_as(base_id(m->s->slot)) != 0)
        return fail(f, "act as the range's root");
    if (map_ids(m, f) != 0 || make_root(m, f) != 0)
        result = -1;
    if (act_as(0) != 0)
        _exit(70); /* this thread must not go on as somebody else */
    if (result != 0 || make_volumes(m, f) != 0 || cgroup_enter(m->s, m->r, f) != 0)
        return -1;
    if (m->s->public && network_make(m->s, f) != 0)
        return -1;
    m->s->start_time = process_start_time(m->s->pid);
    if (write_native(m->folder, m->s, f) != 0 || send_go(m, f) != 0)
        return -1;
    return wait_for_birth(m, f);
}

int sandbox_create(struct partner *partner, struct sandbox *s, const struct request *r, struct failure *f)
{
    struct making m = {.partner = partner, .s = s, .r = r, .folder = -1, .cgroup = -1, .control = -1};
    memset(m.mounts, -1, sizeof m.mounts);
    m.birth = (struct birth){.control = -1, .listen = -1, .log = -1};
    s->pooled = r->memory == 0;
    s->pool_kills = s->pooled ? cgroup_pool_kills() : 0;
    if (s->public && network_start(f) != 0)
        return -1;
    int result = make_folder(&m, f);
    bool ours = result == 0 || strcmp(f->code, "exists") != 0;
    if (result == 0 && (overlay_make_folders(s, r, f) != 0 || cgroup_make(s, r, &m.cgroup, f) != 0 || make_socket(&m, f) != 0 || give_birth(&m, f) != 0))
        result = -1;
    int fds[] = {m.folder, m.cgroup, m.control, m.birth.listen, m.birth.log};
    close_all(fds, sizeof fds / sizeof *fds); /* a child that waits for us sees that, and ends */
    close_all(m.mounts, sizeof m.mounts / sizeof *m.mounts);
    if (m.cloned && result != 0)
        sandbox_signal(s, SIGKILL);
    if (m.cloned)
        partner_wait(partner);
    if (result != 0 && ours) {
        struct failure ignored;
        sandbox_remove(s->id, s, false, &ignored);
    }
    return result;
}
