/*
 * Who a command runs as, from the image's own /etc/passwd and /etc/group, as `docker exec -u` reads them.
 * Must never use the C library's name service: it would want shared objects that the image does not have.
 */
#ifndef CLOCHE_USER_H
#define CLOCHE_USER_H

#include <stdbool.h>
#include <sys/types.h>

#define GROUPS_MAX 128

struct identity {
    uid_t uid;
    gid_t gid;
    gid_t groups[GROUPS_MAX]; /* supplementary */
    int group_count;
    char home[512];
};

/*
 * spec is "", name, uid, name:group, uid:gid, ...; "" is 0. A number needs no entry (its group is then 0,
 * its home "/"); a name does. Supplementary groups are those that list the user, unless spec names a group.
 * False: *error says why, in words.
 */
bool identity_resolve(const char *spec, struct identity *who, const char **error);
/* The same over the text of the two files, which may be NULL. */
bool identity_from(const char *passwd, const char *group, const char *spec, struct identity *who,
                   const char **error);

#endif
