/* Logs against a model: whatever the cap and the pieces, head and tail are what they should be. */
#include "check.h"
#include "../log.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static unsigned char byte_at(uint64_t offset) { return (unsigned char)(offset * 131 + offset / 251); }

static void pour(struct log *log, size_t n, size_t piece)
{
    while (n > 0) {
        size_t space, part;
        unsigned char *at = log_space(log, &space);
        CHECK(space > 0);
        part = piece < space ? piece : space;
        part = part < n ? part : n;
        for (size_t i = 0; i < part; i++)
            at[i] = byte_at(log->total + i);
        log_commit(log, at, part);
        n -= part;
    }
}

/* Read all that is held from offset on; returns how much, and checks every byte. */
static uint64_t read_from(const struct log *log, uint64_t offset, uint64_t *first)
{
    uint64_t count = 0;
    const unsigned char *bytes = NULL;
    *first = log_held(log, offset);
    for (;;) {
        offset = log_held(log, offset);
        size_t n = log_view(log, offset, &bytes);
        if (n == 0)
            break;
        for (size_t i = 0; i < n; i++)
            CHECK(bytes[i] == byte_at(offset + i));
        offset += n;
        count += n;
    }
    CHECK(offset >= log->total);
    return count;
}

static void one(size_t cap, size_t total, size_t piece)
{
    struct log log;
    uint64_t first, held = total < cap ? total : cap;
    log_init(&log, cap);
    for (int part = 0; part < 3; part++) {
        pour(&log, total / 3, piece);
        read_from(&log, 0, &first);
    }
    pour(&log, total - total / 3 * 3, piece);
    CHECK(log.total == total);
    CHECK(read_from(&log, 0, &first) == held);
    CHECK(log_memory_bytes(&log) <= cap);
    log_close(&log);
    CHECK(read_from(&log, 0, &first) == held);
    for (uint64_t offset = 0; offset < total; offset += total / 7 + 1) {
        read_from(&log, offset, &first);
        CHECK(first >= offset);
    }
    log_drop(&log);
    CHECK(log.total == total && read_from(&log, 0, &first) == 0);
}

static void spilled(void)
{
    char name[] = "/tmp/cloche-log-XXXXXX";
    unsigned char bytes[300];
    struct log log;
    int fd = mkstemp(name);
    unlink(name);
    log_init(&log, 100);
    log_spill_to(&log, fd);
    pour(&log, 10000, 77);
    CHECK(log_spilled(&log, 0) && log_spilled(&log, 9999) && !log_spilled(&log, 10000));
    for (uint64_t offset = 0; offset < 10000; offset += 123) {
        ssize_t n = log_read_spill(&log, offset, bytes, sizeof bytes);
        CHECK(n == (ssize_t)(10000 - offset < sizeof bytes ? 10000 - offset : sizeof bytes));
        for (ssize_t i = 0; i < n; i++)
            CHECK(bytes[i] == byte_at(offset + (uint64_t)i));
    }
    log_drop(&log);
}

/* A disk that is full: the log goes on with what memory holds. */
static void spill_fails(void)
{
    uint64_t first;
    struct log log;
    log_init(&log, 100);
    log_spill_to(&log, open("/dev/full", O_RDWR));
    pour(&log, 1000, 64);
    CHECK(log.spill_fd == -1 && log.total == 1000 && read_from(&log, 0, &first) == 100);
    log_drop(&log);
}

void test_logs(void)
{
    static const size_t caps[] = {0, 1, 2, 3, 100, 4096, 8192, 8193, 20000, 65536};
    static const size_t totals[] = {0, 1, 2, 99, 4095, 4096, 4097, 8192, 20001, 100000};
    static const size_t pieces[] = {1, 7, 4096, 100000};
    for (size_t i = 0; i < sizeof caps / sizeof *caps; i++)
        for (size_t j = 0; j < sizeof totals / sizeof *totals; j++)
            for (size_t k = 0; k < sizeof pieces / sizeof *pieces; k++)
                one(caps[i], totals[j], pieces[k]);
    spilled();
    spill_fails();
}
