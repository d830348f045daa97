/* A byte log with head, tail and spill; see log.h. */
#include "log.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FIRST_BYTES 4096

static unsigned char nowhere[4096]; /* takes bytes that nothing can hold */

void log_init(struct log *log, size_t cap_bytes)
{
    if (cap_bytes > LOG_CAP_BYTES_MAX)
        cap_bytes = LOG_CAP_BYTES_MAX;
    *log = (struct log){.head_max = cap_bytes / 2, .tail_max = cap_bytes - cap_bytes / 2, .spill_fd = -1};
}

void log_spill_to(struct log *log, int fd) { log->spill_fd = fd; }

/* Double a block, from FIRST_BYTES up to max; false when it cannot grow. */
static bool grow(unsigned char **block, size_t *capacity, size_t max)
{
    size_t wanted = *capacity == 0 ? FIRST_BYTES : *capacity * 2;
    if (wanted > max)
        wanted = max;
    if (wanted <= *capacity)
        return false;
    unsigned char *larger = realloc(*block, wanted);
    if (larger == NULL)
        return false;
    *block = larger;
    *capacity = wanted;
    return true;
}

unsigned char *log_space(struct log *log, size_t *bytes)
{
    uint64_t beyond = log->total - log->head_bytes;
    if (beyond == 0 && log->head_bytes < log->head_max) {
        if (log->head_bytes < log->head_capacity || grow(&log->head, &log->head_capacity, log->head_max)) {
            *bytes = log->head_capacity - log->head_bytes;
            return log->head + log->head_bytes;
        }
        log->head_max = log->head_bytes;
    }
    /* the ring may grow only before it wraps, so that its layout stays linear */
    if (beyond == log->tail_capacity && !grow(&log->tail, &log->tail_capacity, log->tail_max))
        log->tail_max = log->tail_capacity;
    if (log->tail_capacity == 0) {
        *bytes = sizeof nowhere;
        return nowhere;
    }
    size_t index = (size_t)(beyond % log->tail_capacity);
    *bytes = log->tail_capacity - index;
    return log->tail + index;
}

static void spill(struct log *log, const unsigned char *at, size_t n)
{
    uint64_t offset = log->total;
    while (n > 0) {
        ssize_t done = pwrite(log->spill_fd, at, n, (off_t)offset);
        if (done <= 0) { /* the disk is full, say: go on with what memory holds */
            close(log->spill_fd);
            log->spill_fd = -1;
            return;
        }
        at += done;
        n -= (size_t)done;
        offset += (uint64_t)done;
    }
}

void log_commit(struct log *log, unsigned char *at, size_t n)
{
    if (log->spill_fd >= 0)
        spill(log, at, n);
    if (log->head != NULL && at == log->head + log->head_bytes && log->total == log->head_bytes)
        log->head_bytes += n;
    log->total += n;
}

uint64_t log_held(const struct log *log, uint64_t offset)
{
    if (offset >= log->total || offset < log->head_bytes)
        return offset;
    uint64_t kept = log->total - log->head_bytes;
    if (kept > log->tail_capacity)
        kept = log->tail_capacity;
    uint64_t first = log->total - kept;
    return offset < first ? first : offset;
}

size_t log_view(const struct log *log, uint64_t offset, const unsigned char **bytes)
{
    if (offset >= log->total)
        return 0;
    if (offset < log->head_bytes) {
        *bytes = log->head + offset;
        return log->head_bytes - (size_t)offset;
    }
    size_t index = (size_t)((offset - log->head_bytes) % log->tail_capacity);
    uint64_t left = log->total - offset;
    *bytes = log->tail + index;
    return left < log->tail_capacity - index ? (size_t)left : log->tail_capacity - index;
}

bool log_spilled(const struct log *log, uint64_t offset)
{
    return log->spill_fd >= 0 && offset < log->total;
}

ssize_t log_read_spill(const struct log *log, uint64_t offset, unsigned char *to, size_t n)
{
    uint64_t left = log->total - offset;
    return pread(log->spill_fd, to, left < n ? (size_t)left : n, (off_t)offset);
}

size_t log_memory_bytes(const struct log *log) { return log->head_capacity + log->tail_capacity; }

static void trim(unsigned char **block, size_t *capacity, size_t used)
{
    if (used == 0) {
        free(*block);
        *block = NULL;
        *capacity = 0;
    } else if (used < *capacity) {
        unsigned char *smaller = realloc(*block, used);
        *block = smaller != NULL ? smaller : *block;
        *capacity = smaller != NULL ? used : *capacity;
    }
}

void log_close(struct log *log)
{
    uint64_t beyond = log->total - log->head_bytes;
    trim(&log->head, &log->head_capacity, log->head_bytes);
    if (beyond < log->tail_capacity) /* else the ring is full, and its layout stands */
        trim(&log->tail, &log->tail_capacity, (size_t)beyond);
    log->closed = true;
}

void log_drop(struct log *log)
{
    free(log->head);
    free(log->tail);
    if (log->spill_fd >= 0)
        close(log->spill_fd);
    uint64_t total = log->total;
    log_init(log, 0);
    log->total = total;
    log->closed = log->dropped = true;
}
