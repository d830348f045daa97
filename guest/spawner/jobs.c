/* Slow work, done by a few threads, so that creates and deletes overlap. The queue is bounded: beyond it, no. */
#include "spawner.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "sys.h"

#define SECUREBITS_NO_SETUID_FIXUP (1 << 2)
#define CAPABILITY_VERSION_3 0x20080522
#define CAPABILITY_SYS_RESOURCE 24

struct job {
    struct job *next;
    struct client *client; /* NULL: the sandbox in this slot ended */
    unsigned slot;
    struct frame frame;    /* its body follows the job */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t arrived = PTHREAD_COND_INITIALIZER;
static struct job *first, **last = &first;
static unsigned waiting, busy;

static int add(struct job *job)
{
    pthread_mutex_lock(&lock);
    bool full = waiting >= JOBS_MAX && job->client != NULL;
    if (!full) {
        *last = job;
        last = &job->next;
        waiting++;
        pthread_cond_signal(&arrived);
    }
    pthread_mutex_unlock(&lock);
    return full ? -1 : 0;
}

int jobs_add(struct client *client, const struct frame *frame)
{
    struct job *job = malloc(sizeof *job + frame->body_bytes);
    if (job == NULL)
        return -1;
    *job = (struct job){.client = client, .frame = *frame};
    memcpy(job + 1, frame->body, frame->body_bytes);
    job->frame.body = (unsigned char *)(job + 1);
    client_hold(client);
    if (add(job) == 0)
        return 0;
    client_drop(client);
    free(job);
    return -1;
}

void jobs_add_ended(unsigned slot)
{
    struct job *job = calloc(1, sizeof *job);
    if (job == NULL)
        return;
    job->slot = slot;
    add(job);
}

bool jobs_idle(void)
{
    pthread_mutex_lock(&lock);
    bool idle = waiting == 0 && busy == 0;
    pthread_mutex_unlock(&lock);
    return idle;
}

static void close_pidfd(const struct sandbox *s)
{
    if (s->pidfd >= 0)
        close(s->pidfd);
}

static void put_error(struct buffer *out, uint32_t id, const struct failure *f)
{
    size_t mark = frame_begin(out, A_ERROR, id);
    put_text(out, W_CODE, f->code);
    put_text(out, W_MESSAGE, f->message);
    put_number(out, W_ERRNO, (uint64_t)f->error);
    frame_end(out, mark);
}

static void create(struct partner *partner, struct buffer *out, const struct frame *frame)
{
    struct request r;
    struct sandbox *s = NULL;
    struct failure f;
    bool made = request_parse(&r, frame, &f) == 0 && table_reserve(r.id, r.network == NETWORK_PUBLIC, &s, &f) == 0 &&
                sandbox_create(partner, s, &r, &f) == 0;
    if (made) {
        size_t mark = frame_begin(out, A_REPLY, frame->id);
        put_number(out, W_PID, (uint64_t)s->pid);
        put_number(out, W_START_TIME, s->start_time);
        put_number(out, W_BASE_ID, base_id(s->slot));
        put_number(out, W_ADDRESS, s->address);
        frame_end(out, mark);
        server_watch(s);
        table_running(s);
    } else {
        if (s != NULL) {
            close_pidfd(s);
            table_release(s);
        }
        put_error(out, frame->id, &f);
    }
    request_free(&r);
}

static int remove_named(const char *id, struct failure *f)
{
    struct sandbox *s = table_take(id);
    if (s != NULL)
        server_unwatch(s);
    int result = sandbox_remove(id, s, false, f);
    if (s == NULL)
        return result;
    if (result < 0) {
        server_watch(s);
        table_running(s); /* still there: it can be asked for again */
        return result;
    }
    close_pidfd(s);
    table_release(s);
    return result;
}

static void delete(struct buffer *out, const struct frame *frame)
{
    struct fields fields = fields_of(frame);
    struct field field;
    struct failure f;
    char *id = NULL;
    int result = -1;
    if (fields_next(&fields, &field) && field.tag == W_ID)
        id = field_text(&field);
    if (id == NULL || !id_valid(id))
        fail_with(&f, "bad_request", EINVAL, "the request lacks a valid id");
    else
        result = remove_named(id, &f);
    free(id);
    if (result < 0) {
        put_error(out, frame->id, &f);
        return;
    }
    size_t mark = frame_begin(out, A_REPLY, frame->id);
    put_number(out, W_EXISTED, (uint64_t)result);
    frame_end(out, mark);
}

static int pause_or_resume(struct sandbox *s, bool pause, uint64_t ttl_ms, struct failure *f)
{
    server_unwatch(s); /* an end that shows meanwhile shows again when it is watched again */
    int result = pause ? sandbox_pause(s, ttl_ms, f) : sandbox_resume(s, f);
    server_watch(s);
    table_running(s);
    return result;
}

static void pause_resume(struct buffer *out, const struct frame *frame)
{
    struct fields fields = fields_of(frame);
    struct field field;
    struct failure f;
    char *id = NULL;
    uint64_t ttl_ms = 0;
    int result = -1;
    while (fields_next(&fields, &field))
        if (field.tag == W_TTL_MS)
            ttl_ms = field_number(&field, 0);
        else if (field.tag == W_ID && id == NULL)
            id = field_text(&field);
    struct sandbox *s = id != NULL && id_valid(id) ? table_take(id) : NULL;
    if (s == NULL)
        fail_with(&f, "no_sandbox", ENOENT, "there is no live sandbox of that name");
    else
        result = pause_or_resume(s, frame->type == R_PAUSE, ttl_ms, &f);
    free(id);
    if (result != 0) {
        put_error(out, frame->id, &f);
        return;
    }
    frame_end(out, frame_begin(out, A_REPLY, frame->id));
}

static int attach(const char *id, uint32_t *address, struct failure *f)
{
    struct sandbox *s = id != NULL && id_valid(id) ? table_take(id) : NULL;
    if (s == NULL)
        return fail_with(f, "no_sandbox", ENOENT, "there is no live sandbox of that name");
    server_unwatch(s); /* an end that shows meanwhile shows again when it is watched again */
    int result = network_attach(s, f);
    *address = s->address;
    server_watch(s);
    table_running(s);
    return result;
}

static void attach_network(struct buffer *out, const struct frame *frame)
{
    struct fields fields = fields_of(frame);
    struct field field;
    struct failure f;
    uint32_t address = 0;
    char *id = fields_next(&fields, &field) && field.tag == W_ID ? field_text(&field) : NULL;
    int result = attach(id, &address, &f);
    free(id);
    if (result != 0) {
        put_error(out, frame->id, &f);
        return;
    }
    size_t mark = frame_begin(out, A_REPLY, frame->id);
    put_number(out, W_ADDRESS, address);
    frame_end(out, mark);
}

/* The event may be late, and the slot another's by now. */
static void end(unsigned slot)
{
    struct sandbox *s = table_take_slot(slot);
    if (s == NULL)
        return;
    bool gone = sandbox_gone(s);
    if (!gone && !pause_is_over(s)) {
        table_running(s);
        return;
    }
    if (gone) {
        sandbox_ended(s);
    } else {
        server_unwatch(s);
        sandbox_overdue(s);
    }
    close_pidfd(s);
    table_release(s);
}

static void run(struct partner *partner, struct job *job)
{
    struct buffer out = {0};
    if (job->client == NULL) {
        end(job->slot);
        return;
    }
    if (job->frame.type == R_CREATE)
        create(partner, &out, &job->frame);
    else if (job->frame.type == R_DELETE)
        delete(&out, &job->frame);
    else if (job->frame.type == R_ATTACH)
        attach_network(&out, &job->frame);
    else
        pause_resume(&out, &job->frame);
    client_send(job->client, &out);
    client_drop(job->client);
    buffer_free(&out);
}

/*
 * A worker changes its effective user without losing its capabilities. CAP_SYS_RESOURCE goes: an overlay keeps the
 * identity of its maker, and would let sandboxes write beyond quotas and into the reserve of the file system.
 */
void worker_identity(void)
{
    struct {
        uint32_t version;
        int pid;
    } header = {CAPABILITY_VERSION_3, 0};
    uint32_t sets[6];
    if (prctl(PR_SET_SECUREBITS, SECUREBITS_NO_SETUID_FIXUP) != 0 || syscall(SYS_capget, &header, sets) != 0)
        _exit(71);
    sets[0] &= ~(1u << CAPABILITY_SYS_RESOURCE);
    if (syscall(SYS_capset, &header, sets) != 0)
        _exit(71);
}

static void *work(void *argument)
{
    struct partner *partner = argument;
    worker_identity();
    for (;;) {
        pthread_mutex_lock(&lock);
        while (first == NULL)
            pthread_cond_wait(&arrived, &lock);
        struct job *job = first;
        if ((first = job->next) == NULL)
            last = &first;
        waiting--;
        busy++;
        pthread_mutex_unlock(&lock);
        run(partner, job);
        free(job);
        pthread_mutex_lock(&lock);
        busy--;
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

void jobs_start(unsigned workers)
{
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 128 << 10);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    for (unsigned i = 0; i < workers; i++) {
        struct partner *partner = partner_start(&attributes);
        if (partner == NULL || pthread_create(&thread, &attributes, work, partner) != 0)
            _exit(72);
    }
    pthread_attr_destroy(&attributes);
}
