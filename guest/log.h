/*
 * The bytes a command wrote to one stream, by offset: the beginning and the end in memory under a cap, all
 * of it in an unlinked file when asked to spill. Must never refuse bytes: what does not fit is dropped from
 * the middle, so that a command is never blocked by its output.
 */
#ifndef CLOCHE_LOG_H
#define CLOCHE_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define LOG_CAP_BYTES_MAX (64u << 20)

struct log {
    uint64_t total;            /* bytes that ever came */
    unsigned char *head;       /* offsets 0 … head_bytes */
    size_t head_bytes, head_capacity, head_max;
    unsigned char *tail;       /* a ring that starts at offset head_bytes */
    size_t tail_capacity, tail_max;
    int spill_fd;              /* -1: none */
    bool closed;               /* no more bytes will come */
    bool dropped;              /* memory was given back: nothing is held */
};

void log_init(struct log *log, size_t cap_bytes);
/* Keep all bytes in this file too; the log owns the descriptor. */
void log_spill_to(struct log *log, int fd);
/* Where the next bytes go, and how many fit there (at least 1). */
unsigned char *log_space(struct log *log, size_t *bytes);
/* Say that n bytes were put there. */
void log_commit(struct log *log, unsigned char *at, size_t n);
/* The first byte held in memory at or after offset. */
uint64_t log_held(const struct log *log, uint64_t offset);
/* A view of the bytes in memory from offset, which log_held gave; 0 at the end. */
size_t log_view(const struct log *log, uint64_t offset, const unsigned char **bytes);
/* Whether offset can be read from the spill file, and reading it. */
bool log_spilled(const struct log *log, uint64_t offset);
ssize_t log_read_spill(const struct log *log, uint64_t offset, unsigned char *to, size_t n);
/* No more bytes will come: give back the memory that was not used. */
void log_close(struct log *log);
size_t log_memory_bytes(const struct log *log);
/* Give memory and file back; the total stays known. */
void log_drop(struct log *log);

#endif
