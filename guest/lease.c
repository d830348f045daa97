/*
 * The lease: the right of the sandbox to live, on CLOCK_BOOTTIME. Must never be extended by anything that
 * runs inside. Three limits, each off when 0: ttl from the start, idle from the last request (a request that
 * waits for its answer counts as one), heartbeat from the last heartbeat or new connection.
 */
#include "guest.h"

void lease_start(void)
{
    int64_t now = now_ms();
    guest.started_ms = guest.last_request_ms = guest.last_heartbeat_ms = now;
    guest.ttl_until_ms = guest.options.ttl_ms > 0 ? now + guest.options.ttl_ms : NEVER;
}

static bool busy(void)
{
    list_each(at, following, &guest.connections) {
        struct connection *c = container_of(at, struct connection, link);
        list_each(link, after, &c->streams) {
            if (container_of(link, struct stream, link)->kind->counts_as_busy)
                return true;
        }
    }
    return false;
}

int64_t lease_deadline_ms(void)
{
    int64_t deadline = guest.ttl_until_ms;
    if (guest.options.heartbeat_ms > 0 && guest.last_heartbeat_ms + guest.options.heartbeat_ms < deadline)
        deadline = guest.last_heartbeat_ms + guest.options.heartbeat_ms;
    if (guest.options.idle_ms > 0) {
        if (busy())
            guest.last_request_ms = now_ms();
        if (guest.last_request_ms + guest.options.idle_ms < deadline)
            deadline = guest.last_request_ms + guest.options.idle_ms;
    }
    return deadline;
}

bool lease_expired(void) { return lease_deadline_ms() <= now_ms(); }

/* Exit status of a guest whose lease ran out: which limit it was. docs/protocol.md has the numbers. */
int lease_status(void)
{
    int64_t now = now_ms();
    if (guest.ttl_until_ms <= now)
        return 10;
    if (guest.options.heartbeat_ms > 0 && guest.last_heartbeat_ms + guest.options.heartbeat_ms <= now)
        return 12;
    return 11;
}

/* The host let the sandbox go on: nobody could ask for anything meanwhile. The ttl went on. */
void lease_resumed(void) { guest.last_request_ms = guest.last_heartbeat_ms = now_ms(); }

void request_heartbeat(struct request *r)
{
    guest.last_heartbeat_ms = now_ms();
    reply_empty(r->connection, r->id);
}

void request_extend(struct request *r)
{
    uint64_t ttl_ms = request_number(r, F_TTL_MS, 0);
    guest.ttl_until_ms = ttl_ms == 0 || ttl_ms > INT64_MAX / 2 ? NEVER : now_ms() + (int64_t)ttl_ms;
    reply_empty(r->connection, r->id);
}

void request_ping(struct request *r)
{
    struct buffer *out = &r->connection->out;
    size_t mark = reply_begin(r->connection, r->id);
    int64_t left = lease_deadline_ms();
    put_number(out, F_RUNNING, commands_running_count);
    put_number(out, F_CONNECTIONS, guest.connection_count);
    put_number(out, F_DURATION_US, (uint64_t)(now_us() - guest.started_ms * 1000));
    if (left != NEVER)
        put_number(out, F_TTL_MS, (uint64_t)(left > now_ms() ? left - now_ms() : 0));
    if (guest.ttl_until_ms != NEVER)
        put_number(out, F_TTL_ALONE_MS, (uint64_t)(guest.ttl_until_ms > now_ms() ? guest.ttl_until_ms - now_ms() : 0));
    reply_end(r->connection, mark);
}
