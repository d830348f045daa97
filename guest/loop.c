/* The event loop; see loop.h. */
#include "loop.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define BATCH 64

static int epoll_fd = -1;
static struct source timer = {.fd = -1};
static int64_t armed_ms = NEVER;

struct corpse {
    struct corpse *next;
};
static struct corpse *corpses;

static void timer_ready(struct source *source, uint32_t events)
{
    (void)events;
    uint64_t expirations;
    ssize_t n = read(source->fd, &expirations, sizeof expirations);
    (void)n;
    armed_ms = NEVER;
}

int loop_open(void)
{
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_fd < 0)
        return -1;
    timer.fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    timer.ready = timer_ready;
    return timer.fd < 0 ? -1 : loop_add(&timer, EPOLLIN);
}

int loop_add(struct source *source, uint32_t events)
{
    struct epoll_event event = {.events = events, .data = {.ptr = source}};
    return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, source->fd, &event);
}

void loop_change(struct source *source, uint32_t events)
{
    struct epoll_event event = {.events = events, .data = {.ptr = source}};
    if (source->fd >= 0)
        epoll_ctl(epoll_fd, EPOLL_CTL_MOD, source->fd, &event);
}

void loop_pause(struct source *source)
{
    if (source->fd >= 0)
        epoll_ctl(epoll_fd, EPOLL_CTL_DEL, source->fd, NULL);
}

void loop_close(struct source *source)
{
    if (source->fd < 0)
        return;
    /* said explicitly: a child between fork and exec may still hold the description */
    epoll_ctl(epoll_fd, EPOLL_CTL_DEL, source->fd, NULL);
    close(source->fd);
    source->fd = -1;
}

void loop_free_later(void *memory)
{
    struct corpse *corpse = memory;
    if (corpse == NULL)
        return;
    /* the first word of every such object is a list link, which nobody follows any more */
    corpse->next = corpses;
    corpses = corpse;
}

static void arm(int64_t deadline_ms)
{
    if (deadline_ms == armed_ms || timer.fd < 0)
        return;
    struct itimerspec spec = {0};
    if (deadline_ms != NEVER) {
        int64_t at = deadline_ms < 1 ? 1 : deadline_ms;
        spec.it_value.tv_sec = (time_t)(at / 1000);
        spec.it_value.tv_nsec = (long)(at % 1000) * 1000000;
    }
    timerfd_settime(timer.fd, TFD_TIMER_ABSTIME, &spec, NULL);
    armed_ms = deadline_ms;
}

void loop_turn(int64_t deadline_ms)
{
    struct epoll_event events[BATCH];
    if (deadline_ms != 0)
        arm(deadline_ms);
    int n = epoll_wait(epoll_fd, events, BATCH, deadline_ms == 0 ? 0 : -1);
    if (n < 0 && errno == EINTR) /* frozen meanwhile: look at what came before anybody judges the time */
        n = epoll_wait(epoll_fd, events, BATCH, 0);
    for (int i = 0; i < n; i++) {
        struct source *source = events[i].data.ptr;
        if (source->fd >= 0)
            source->ready(source, events[i].events);
    }
    while (corpses != NULL) {
        struct corpse *next = corpses->next;
        free(corpses);
        corpses = next;
    }
}

int64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int64_t now_ms(void) { return now_us() / 1000; }
