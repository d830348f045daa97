/*
 * The event loop: descriptors that report, one timer on CLOCK_BOOTTIME, and frees put off until no event
 * of the batch at hand can name what is freed. Must never block but in epoll_wait.
 */
#ifndef CLOCHE_LOOP_H
#define CLOCHE_LOOP_H

#include <stdint.h>
#include <sys/epoll.h>

#define NEVER INT64_MAX

struct source {
    int fd; /* -1: not open */
    void (*ready)(struct source *source, uint32_t events);
};

int loop_open(void);
/* Watch the source's descriptor; -1 with errno when that cannot be. */
int loop_add(struct source *source, uint32_t events);
void loop_change(struct source *source, uint32_t events);
/* Stop watching but keep it open; loop_add resumes. */
void loop_pause(struct source *source);
/* Stop watching and close; fine on one that is not open. */
void loop_close(struct source *source);
/* Free memory that holds a source once the batch of events at hand is done. */
void loop_free_later(void *memory);
/* Wait for one batch, at most until deadline_ms (CLOCK_BOOTTIME, or NEVER, or 0 for no wait). */
void loop_turn(int64_t deadline_ms);

int64_t now_ms(void); /* CLOCK_BOOTTIME */
int64_t now_us(void);

#endif
