/* Doubly linked lists whose links live in their members. Must never allocate. */
#ifndef CLOCHE_LIST_H
#define CLOCHE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *next, *prev;
};

#define container_of(ptr, type, member) ((type *)(void *)((char *)(ptr) - offsetof(type, member)))

/* Safe against the removal of the member at hand, not of the next one. */
#define list_each(at, following, head) \
    for (struct list *at = (head)->next, *following = at->next; at != (head); at = following, following = at->next)

static inline void list_init(struct list *head) { head->next = head->prev = head; }
static inline bool list_empty(const struct list *head) { return head->next == head; }
static inline bool list_linked(const struct list *link) { return link->next != NULL && link->next != link; }

static inline void list_append(struct list *head, struct list *link)
{
    link->prev = head->prev;
    link->next = head;
    head->prev->next = link;
    head->prev = link;
}

static inline void list_remove(struct list *link)
{
    if (link->next == NULL)
        return;
    link->prev->next = link->next;
    link->next->prev = link->prev;
    list_init(link);
}

#endif
