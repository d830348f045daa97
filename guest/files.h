/* What the requests about files share. */
#ifndef CLOCHE_FILES_H
#define CLOCHE_FILES_H

#include "guest.h"
#include "path.h"
#include "user.h"

#define PART_NAME_BYTES 40

void reply_errno(struct request *r, int error);
/* The path in a field, to be freed; NULL after an ERROR was sent. */
char *request_path(struct request *r, uint16_t tag);
/* Whose a new file shall be (root's when the request names nobody); false after an ERROR was sent. */
bool request_owner(struct request *r, uid_t *uid, gid_t *gid);
/* path_open_parent, making the folder when it is missing. */
int open_parent_made(const char *path, char *name, uid_t uid, gid_t gid);
/* A name for something unfinished that nobody else has. */
void part_name(char *name);

#endif
