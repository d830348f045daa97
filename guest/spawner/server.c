/* The main thread: takes requests from clients, notices ends of sandboxes, and leaves when there is nothing to do. */
#include "spawner.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define READ_BYTES 65536
#define EVENTS 64
#define TICK_MS 250
#define LOOK_MS 2000 /* how often for ends of which no descriptor tells */
#define LISTEN_KEY UINT64_MAX
#define SLOT_FLAG (1ull << 63)

struct client {
    int fd;
    unsigned references;
    pthread_mutex_t lock;
    struct buffer in;
    bool greeted;
};

static int epoll_fd = -1;
static unsigned clients;
static bool asked_to_stop;

void server_watch(const struct sandbox *s)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.u64 = SLOT_FLAG | s->slot};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, s->pidfd, &event); /* without a pidfd: end_quiet_ones */
}

void server_unwatch(const struct sandbox *s) { epoll_ctl(epoll_fd, EPOLL_CTL_DEL, s->pidfd, NULL); }

void client_hold(struct client *client)
{
    pthread_mutex_lock(&client->lock);
    client->references++;
    pthread_mutex_unlock(&client->lock);
}

void client_drop(struct client *client)
{
    pthread_mutex_lock(&client->lock);
    bool unused = --client->references == 0;
    pthread_mutex_unlock(&client->lock);
    if (!unused)
        return;
    close(client->fd);
    buffer_free(&client->in);
    pthread_mutex_destroy(&client->lock);
    free(client);
}

/* Answers are small; a client that does not read them loses its connection. */
void client_send(struct client *client, const struct buffer *message)
{
    size_t size = buffer_size(message);
    if (message->failed)
        size = 0;
    pthread_mutex_lock(&client->lock);
    if (size == 0 || send(client->fd, buffer_bytes(message), size, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)size)
        shutdown(client->fd, SHUT_RDWR);
    pthread_mutex_unlock(&client->lock);
}

static void accept_client(int listen_fd)
{
    int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct client *client = fd < 0 || clients >= CLIENTS_MAX ? NULL : calloc(1, sizeof *client);
    if (client == NULL) {
        if (fd >= 0)
            close(fd);
        return;
    }
    client->fd = fd;
    client->references = 1;
    pthread_mutex_init(&client->lock, NULL);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = client};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        client_drop(client);
        return;
    }
    clients++;
}

static void answer_status(struct client *client, const struct frame *frame)
{
    struct buffer out = {0};
    size_t mark = frame_begin(&out, A_REPLY, frame->id);
    put_number(&out, W_VERSION, SPAWNER_VERSION);
    put_number(&out, W_PID, (uint64_t)getpid());
    put_number(&out, W_LIVE, table_count());
    put_text(&out, W_ENFORCED, cgroup_enforced());
    frame_end(&out, mark);
    client_send(client, &out);
    buffer_free(&out);
}

static void answer_error(struct client *client, const struct frame *frame, const char *code, const char *message)
{
    struct buffer out = {0};
    size_t mark = frame_begin(&out, A_ERROR, frame->id);
    put_text(&out, W_CODE, code);
    put_text(&out, W_MESSAGE, message);
    frame_end(&out, mark);
    client_send(client, &out);
    buffer_free(&out);
}

static bool versions_match(const struct frame *frame)
{
    struct fields fields = fields_of(frame);
    struct field field;
    return fields_next(&fields, &field) && field.tag == W_VERSION && field_number(&field, 0) == SPAWNER_VERSION;
}

/* False: the connection is over. */
static bool handle(struct client *client, const struct frame *frame)
{
    if (!client->greeted && (frame->type != R_HELLO || !versions_match(frame))) {
        answer_error(client, frame, "version", "the spawner that runs speaks another version");
        return false;
    }
    client->greeted = true;
    switch (frame->type) {
    case R_SHUTDOWN:
        asked_to_stop = true; /* once nothing is alive */
        /* fall through */
    case R_HELLO:
    case R_STATUS:
        answer_status(client, frame);
        return true;
    case R_CREATE:
    case R_DELETE:
    case R_PAUSE:
    case R_RESUME:
    case R_ATTACH:
        asked_to_stop = false;
        if (jobs_add(client, frame) != 0)
            answer_error(client, frame, "host_limit", "too many requests are waiting");
        return true;
    default:
        answer_error(client, frame, "bad_request", "unknown request");
        return true;
    }
}

static bool read_client(struct client *client)
{
    unsigned char *to = buffer_reserve(&client->in, READ_BYTES);
    ssize_t n = to == NULL ? -1 : recv(client->fd, to, READ_BYTES, 0);
    if (n <= 0)
        return n < 0 && to != NULL && (errno == EAGAIN || errno == EINTR);
    client->in.end += (size_t)n;
    for (;;) {
        struct frame frame;
        size_t used;
        enum frame_result result = frame_parse(buffer_bytes(&client->in), buffer_size(&client->in), &frame, &used);
        if (result == FRAME_PARTIAL)
            return true;
        if (result == FRAME_INVALID || !handle(client, &frame))
            return false;
        buffer_consume(&client->in, used);
    }
}

static void serve(struct client *client)
{
    if (read_client(client))
        return;
    epoll_ctl(epoll_fd, EPOLL_CTL_DEL, client->fd, NULL);
    clients--; /* answers that are still to come keep it open */
    client_drop(client);
}

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Whether there has been nothing to do for long enough. */
static bool done(int64_t *idle_since)
{
    bool idle = table_count() == 0 && jobs_idle() && (clients == 0 || asked_to_stop);
    if (!idle) {
        *idle_since = 0;
        return false;
    }
    if (*idle_since == 0)
        *idle_since = now_ms();
    return asked_to_stop || now_ms() - *idle_since >= settings.idle_ms;
}

static void end_quiet_ones(void)
{
    unsigned slots[EVENTS], n, from = 0;
    static int64_t next_ms, next_look_ms;
    if (now_ms() < next_ms)
        return;
    next_ms = now_ms() + TICK_MS;
    n = table_overdue(slots, EVENTS);
    for (unsigned i = 0; i < n; i++)
        jobs_add_ended(slots[i]);
    if (now_ms() < next_look_ms)
        return;
    next_look_ms = now_ms() + LOOK_MS;
    while ((n = table_silent(from, slots, EVENTS)) > 0) {
        for (unsigned i = 0; i < n; i++)
            jobs_add_ended(slots[i]);
        from = slots[n - 1] + 1;
    }
}

int server_start(void)
{
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    return epoll_fd < 0 ? -1 : 0;
}

int server_run(int listen_fd)
{
    struct epoll_event events[EVENTS], event = {.events = EPOLLIN, .data.u64 = LISTEN_KEY};
    int64_t idle_since = 0;
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listen_fd, &event) != 0)
        return -1;
    while (!done(&idle_since)) {
        int n = epoll_wait(epoll_fd, events, EVENTS, TICK_MS);
        for (int i = 0; i < n; i++) {
            uint64_t key = events[i].data.u64;
            if (key == LISTEN_KEY)
                accept_client(listen_fd);
            else if (key & SLOT_FLAG)
                jobs_add_ended((unsigned)(key & ~SLOT_FLAG));
            else
                serve(events[i].data.ptr);
        }
        network_tick();
        end_quiet_ones();
    }
    return 0;
}
