/* Users and groups of the image; see user.h. */
#include "user.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "path.h"

#define FILE_BYTES_MAX (4u << 20)
#define ID_MAX 4294967294u

struct span {
    const char *at;
    size_t bytes;
};

static bool span_is(struct span s, struct span text)
{
    return s.bytes == text.bytes && memcmp(s.at, text.at, s.bytes) == 0;
}

static bool span_number(struct span s, uint32_t *value)
{
    uint64_t n = 0;
    if (s.bytes == 0 || s.bytes > 10)
        return false;
    for (size_t i = 0; i < s.bytes; i++) {
        if (s.at[i] < '0' || s.at[i] > '9')
            return false;
        n = n * 10 + (uint64_t)(s.at[i] - '0');
    }
    if (n > ID_MAX)
        return false;
    *value = (uint32_t)n;
    return true;
}

/* Take the next line off text; false at the end. */
static bool next_line(const char **text, struct span *line)
{
    if (*text == NULL || **text == 0)
        return false;
    const char *end = strchr(*text, '\n');
    line->at = *text;
    line->bytes = end != NULL ? (size_t)(end - *text) : strlen(*text);
    *text = end != NULL ? end + 1 : line->at + line->bytes;
    return true;
}

/* The n-th field of a line that is separated by mark. */
static bool span_field(struct span line, char mark, int n, struct span *field)
{
    const char *at = line.at, *end = line.at + line.bytes;
    for (;;) {
        const char *stop = memchr(at, mark, (size_t)(end - at));
        if (stop == NULL)
            stop = end;
        if (n-- == 0) {
            *field = (struct span){at, (size_t)(stop - at)};
            return true;
        }
        if (stop == end)
            return false;
        at = stop + 1;
    }
}

/* Find the line whose name is wanted, or whose id is it when that is a number; names win, as in Docker. */
static bool find(const char *text, struct span wanted, struct span *line)
{
    uint32_t number, id;
    bool numeric = span_number(wanted, &number), found = false;
    struct span at, name, field;
    while (next_line(&text, &at)) {
        if (!span_field(at, ':', 0, &name) || !span_field(at, ':', 2, &field) || !span_number(field, &id))
            continue;
        if (span_is(name, wanted)) {
            *line = at;
            return true;
        }
        if (numeric && !found && id == number) {
            *line = at;
            found = true;
        }
    }
    return found;
}

static void add_memberships(const char *group, struct span user, struct identity *who)
{
    struct span line, members, member, field;
    uint32_t gid;
    while (next_line(&group, &line)) {
        if (!span_field(line, ':', 3, &members) || !span_field(line, ':', 2, &field) ||
            !span_number(field, &gid))
            continue;
        for (int i = 0; span_field(members, ',', i, &member); i++) {
            if (span_is(member, user) && who->group_count < GROUPS_MAX) {
                who->groups[who->group_count++] = gid;
                break;
            }
        }
    }
}

static bool apply_user(const char *passwd, struct span user, struct identity *who, struct span *name,
                       const char **error)
{
    struct span line, field;
    uint32_t number;
    if (find(passwd, user, &line)) {
        span_field(line, ':', 0, name);
        if (span_field(line, ':', 2, &field) && span_number(field, &number))
            who->uid = number;
        if (span_field(line, ':', 3, &field) && span_number(field, &number))
            who->gid = number;
        if (span_field(line, ':', 5, &field) && field.bytes > 0 && field.bytes < sizeof who->home)
            snprintf(who->home, sizeof who->home, "%.*s", (int)field.bytes, field.at);
        return true;
    }
    if (span_number(user, &number)) {
        who->uid = number;
        return true;
    }
    *error = "there is no such user in /etc/passwd";
    return false;
}

bool identity_from(const char *passwd, const char *group, const char *spec, struct identity *who,
                   const char **error)
{
    *who = (struct identity){.home = "/"};
    struct span whole = {spec, strlen(spec)}, user, wanted = {NULL, 0}, line, field, name = {NULL, 0};
    span_field(whole, ':', 0, &user);
    bool group_named = span_field(whole, ':', 1, &wanted) && wanted.bytes > 0;
    if (user.bytes == 0)
        user = (struct span){"0", 1};
    if (!apply_user(passwd, user, who, &name, error))
        return false;
    if (!group_named) {
        if (name.at != NULL)
            add_memberships(group, name, who);
        return true;
    }
    uint32_t gid;
    bool known = find(group, wanted, &line) && span_field(line, ':', 2, &field) && span_number(field, &gid);
    if (!known && !span_number(wanted, &gid)) {
        *error = "there is no such group in /etc/group";
        return false;
    }
    who->gid = gid;
    return true;
}

bool identity_resolve(const char *spec, struct identity *who, const char **error)
{
    size_t bytes;
    char *passwd = path_read_file("/etc/passwd", FILE_BYTES_MAX, &bytes);
    char *group = path_read_file("/etc/group", FILE_BYTES_MAX, &bytes);
    bool good = identity_from(passwd, group, spec, who, error);
    free(passwd);
    free(group);
    return good;
}
