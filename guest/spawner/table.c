/* The live sandboxes: who works on which, and which ranges of ids are taken. One lock; nothing slow under it. */
#include "spawner.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
#define BUCKETS 16384u
static struct sandbox *slots[SLOTS], *buckets[BUCKETS];
static unsigned count, count_public, next_slot;

/* Each installation starts elsewhere, so that two on one host do not share ranges. */
uint32_t base_id(unsigned slot)
{
    uint32_t start = (uint32_t)strtoul(settings.instance, NULL, 16) % RANGES;
    return RANGE_FIRST + (start + slot) % RANGES * RANGE_IDS;
}

static struct sandbox **bucket_of(const char *id)
{
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (; *id != 0; id++)
        hash = (hash ^ (unsigned char)*id) * 16777619u;
    return &buckets[hash % BUCKETS];
}

static struct sandbox *find(const char *id)
{
    struct sandbox *s = *bucket_of(id);
    while (s != NULL && strcmp(s->id, id) != 0)
        s = s->same_hash;
    return s;
}

static void put(struct sandbox *s)
{
    struct sandbox **bucket = bucket_of(s->id);
    s->same_hash = *bucket;
    *bucket = s;
    slots[s->slot] = s;
    count++;
    count_public += s->public;
}

int table_reserve(const char *id, bool public, struct sandbox **out, struct failure *f)
{
    struct sandbox *s = calloc(1, sizeof *s);
    int result = 0;
    if (s == NULL)
        return fail(f, "remember the sandbox");
    strcpy(s->id, id);
    s->pidfd = -1;
    s->public = public;
    pthread_mutex_lock(&lock);
    if (find(id) != NULL) {
        result = fail_with(f, "exists", EEXIST, "there is a sandbox %s already", id);
    } else if (count >= SLOTS) {
        result = fail_with(f, "host_limit", EAGAIN, "%u sandboxes are alive, which is the most", count);
    } else {
        while (slots[next_slot % SLOTS] != NULL)
            next_slot++;
        s->slot = next_slot++ % SLOTS;
        put(s);
    }
    pthread_mutex_unlock(&lock);
    if (result != 0)
        free(s);
    *out = result == 0 ? s : NULL;
    return result;
}

/* Takes a copy. -1 when the slot is taken or the record is nonsense. */
int table_adopt(const struct sandbox *found)
{
    struct sandbox *s = malloc(sizeof *s);
    if (s == NULL)
        return -1;
    *s = *found;
    s->state = S_RUNNING;
    pthread_mutex_lock(&lock);
    bool free_slot = s->slot < SLOTS && slots[s->slot] == NULL && find(s->id) == NULL;
    if (free_slot)
        put(s);
    pthread_mutex_unlock(&lock);
    if (!free_slot)
        free(s);
    return free_slot ? 0 : -1;
}

void table_running(struct sandbox *s)
{
    pthread_mutex_lock(&lock);
    s->state = S_RUNNING;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

struct sandbox *table_take(const char *id)
{
    pthread_mutex_lock(&lock);
    struct sandbox *s = find(id);
    while (s != NULL && s->state != S_RUNNING) {
        pthread_cond_wait(&changed, &lock);
        s = find(id);
    }
    if (s != NULL)
        s->state = S_ENDING;
    pthread_mutex_unlock(&lock);
    return s;
}

struct sandbox *table_take_slot(unsigned slot)
{
    pthread_mutex_lock(&lock);
    while (slot < SLOTS && slots[slot] != NULL && slots[slot]->state == S_CREATING)
        pthread_cond_wait(&changed, &lock); /* watched already, in a moment it runs */
    struct sandbox *s = slot < SLOTS ? slots[slot] : NULL;
    if (s != NULL && s->state == S_RUNNING)
        s->state = S_ENDING;
    else
        s = NULL;
    pthread_mutex_unlock(&lock);
    return s;
}

unsigned table_silent(unsigned from, unsigned *found, unsigned most)
{
    unsigned n = 0;
    pthread_mutex_lock(&lock);
    for (unsigned i = from; i < SLOTS && n < most; i++)
        if (slots[i] != NULL && slots[i]->pidfd < 0 && slots[i]->state == S_RUNNING && sandbox_gone(slots[i]))
            found[n++] = i;
    pthread_mutex_unlock(&lock);
    return n;
}

unsigned table_overdue(unsigned *found, unsigned most)
{
    unsigned n = 0;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0, seen = 0; i < SLOTS && seen < count && n < most; i++) {
        if (slots[i] == NULL)
            continue;
        seen++;
        if (slots[i]->state == S_RUNNING && pause_is_over(slots[i]))
            found[n++] = i;
    }
    pthread_mutex_unlock(&lock);
    return n;
}

void table_release(struct sandbox *s)
{
    pthread_mutex_lock(&lock);
    struct sandbox **link = bucket_of(s->id);
    while (*link != s)
        link = &(*link)->same_hash;
    *link = s->same_hash;
    slots[s->slot] = NULL;
    count--;
    count_public -= s->public;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    free(s);
}

/* A living sandbox gets its link. */
void table_now_public(struct sandbox *s)
{
    pthread_mutex_lock(&lock);
    count_public += !s->public;
    s->public = true;
    pthread_mutex_unlock(&lock);
}

void table_not_public(struct sandbox *s)
{
    pthread_mutex_lock(&lock);
    count_public -= s->public;
    s->public = false;
    pthread_mutex_unlock(&lock);
}

unsigned table_count(void)
{
    pthread_mutex_lock(&lock);
    unsigned n = count;
    pthread_mutex_unlock(&lock);
    return n;
}

unsigned table_count_public(void)
{
    pthread_mutex_lock(&lock);
    unsigned n = count_public;
    pthread_mutex_unlock(&lock);
    return n;
}
