/*
 * Pausing: the sandbox's processes are frozen where they are. The file `paused` in the run folder says that it was asked
 * for and until when the sandbox may live (`until MS` of CLOCK_BOOTTIME; 0: for ever), and is written before anything
 * is frozen: a spawner that adopts the sandbox finishes what was begun. The guest cannot end a sandbox whose time is over
 * while it is frozen itself, so the main thread looks. Must never leave a sandbox half frozen: it is undone, or it holds.
 */
#include "spawner.h"

#include <signal.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int64_t boottime_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int open_folder(const char *id)
{
    return openat(sandboxes_fd, id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static int write_mark(const struct sandbox *s)
{
    char text[48];
    int dir = open_folder(s->id);
    if (dir < 0)
        return -1;
    int size = snprintf(text, sizeof text, "until %lld\n", (long long)s->paused_until_ms);
    int result = write_file_at(dir, "paused.new", text, (size_t)size, 0600);
    if (result == 0)
        result = renameat(dir, "paused.new", dir, "paused");
    close(dir);
    return result;
}

static void remove_mark(const struct sandbox *s)
{
    int dir = open_folder(s->id);
    if (dir < 0)
        return;
    unlinkat(dir, "paused", 0);
    close(dir);
}

/* ttl_ms: what is left to live; 0: no end. Again of one that is paused: the new end counts. */
int sandbox_pause(struct sandbox *s, uint64_t ttl_ms, struct failure *f)
{
    bool before = s->paused;
    s->paused_until_ms = ttl_ms == 0 || ttl_ms > INT64_MAX / 2 ? 0 : boottime_ms() + (int64_t)ttl_ms;
    if (write_mark(s) != 0)
        return fail(f, "write down that the sandbox is paused");
    s->paused = true;
    if (cgroup_freeze(s->id, true, f) == 0)
        return 0;
    if (!before) {
        struct failure ignored;
        cgroup_freeze(s->id, false, &ignored);
        remove_mark(s);
        s->paused = false;
    }
    return -1;
}

/* The signal tells the guest why no time seems to have passed; it is pending when the guest wakes. */
int sandbox_resume(struct sandbox *s, struct failure *f)
{
    if (!s->paused)
        return 0;
    sandbox_signal(s, SIGUSR1);
    if (cgroup_freeze(s->id, false, f) != 0)
        return -1;
    s->paused = false;
    remove_mark(s);
    return 0;
}

/* What a spawner before us was asked for. */
void pause_adopt(struct sandbox *s)
{
    char path[ID_BYTES + 16], text[64];
    struct failure ignored;
    snprintf(path, sizeof path, "%s/paused", s->id);
    if (read_file_at(sandboxes_fd, path, text, sizeof text) <= 0)
        return;
    s->paused = true;
    s->paused_until_ms = strncmp(text, "until ", 6) == 0 ? strtoll(text + 6, NULL, 10) : 0;
    cgroup_freeze(s->id, true, &ignored);
}

bool pause_is_over(const struct sandbox *s)
{
    return s->paused && s->paused_until_ms != 0 && s->paused_until_ms <= boottime_ms();
}
