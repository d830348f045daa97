/*
 * Fuzz target: a whole conversation with the guest, bytes in, frames out. Runs only as the first process of namespaces
 * of its own, in a root without any program (scripts/fuzz makes both): commands are really started, files really
 * written. Whatever comes in, what comes out is whole frames of whole fields, and the connection ends.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../control.h"
#include "../guest.h"
#include "../options.h"
#include "../tree.h"

#define TURNS_MAX 64 /* after the last byte */

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct guest guest = {.root_fd = -1, .spare_fd = -1, .oom_fd = -1, .cgroup_fd = -1};

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    if (getpid() != 1 || access("/bin", F_OK) == 0) {
        fputs("error: this would run commands on this machine\nhint: scripts/fuzz\n", stderr);
        exit(2);
    }
    mkdir("/inside", 0755);
    char *arguments[] = {"cloche-guest", "--stdio", NULL};
    if (!options_read(&guest.options, 2, arguments))
        return 1;
    guest.is_init = true;
    guest.root_fd = open("/inside", O_PATH | O_DIRECTORY | O_CLOEXEC);
    list_init(&guest.connections);
    lease_start();
    return guest.root_fd < 0 || loop_open() < 0;
}

/* Take what the guest says; it must be frames. */
static void hear(int fd, struct buffer *heard)
{
    struct frame frame;
    size_t used;
    for (;;) {
        unsigned char *to = buffer_reserve(heard, 65536);
        ssize_t n = to == NULL ? -1 : recv(fd, to, 65536, MSG_DONTWAIT);
        if (n <= 0)
            return;
        heard->end += (size_t)n;
        while (frame_parse(buffer_bytes(heard), buffer_size(heard), &frame, &used) == FRAME_COMPLETE) {
            bool known = frame.type == T_REPLY || frame.type == T_ERROR || frame.type == T_DATA || frame.type == T_CREDIT;
            bool raw = frame.type == T_DATA || frame.type == T_CREDIT;
            assert(known && (raw ? frame.body_bytes >= 8 : fields_valid(&frame)));
            buffer_consume(heard, used);
        }
        assert(frame_parse(buffer_bytes(heard), buffer_size(heard), &frame, &used) == FRAME_PARTIAL);
    }
}

static void turn(void)
{
    loop_turn(0);
    commands_reap();
    commands_tick();
    sweep_tick();
    connections_flush();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int pair[2];
    struct buffer heard = {0};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0)
        abort();
    bool open = connection_open(pair[0], pair[0]) == 0;
    for (size_t at = 0; at < size && open;) {
        ssize_t n = send(pair[1], data + at, size - at, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN)
            break; /* it has hung up */
        at += n > 0 ? (size_t)n : 0;
        turn();
        hear(pair[1], &heard);
    }
    for (int i = 0; i < TURNS_MAX && (i < 2 || connections_pending()); i++) {
        turn();
        hear(pair[1], &heard);
    }
    shutdown(pair[1], SHUT_RDWR); /* a child that is being started may hold a copy for a moment */
    close(pair[1]);
    for (int i = 0; i < TURNS_MAX && guest.connection_count > 0; i++)
        turn();
    assert(guest.connection_count == 0);
    sweep_now();
    guest.stopping = false;
    buffer_free(&heard);
    return 0;
}
