/* Reads the guest's command line. Must never start anything. */
#include "options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The part of argument after "name=", or NULL. */
static const char *value_of(const char *argument, const char *name)
{
    size_t bytes = strlen(name);
    return strncmp(argument, name, bytes) == 0 && argument[bytes] == '=' ? argument + bytes + 1 : NULL;
}

static bool number(const char *text, int base, uint64_t *value)
{
    char *end;
    if (text == NULL || *text == 0 || *text == '-')
        return false;
    *value = strtoull(text, &end, base);
    return *end == 0;
}

static bool read_flag(struct options *o, const char *argument)
{
    static const struct {
        const char *name;
        size_t offset;
    } flags[] = {
        {"--stdio", offsetof(struct options, stdio)},
        {"--cgroup", offsetof(struct options, cgroup)},
        {"--harden", offsetof(struct options, harden)},
        {"--no-new-privs", offsetof(struct options, no_new_privs)},
    };
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        if (strcmp(argument, flags[i].name) == 0) {
            *(bool *)((char *)o + flags[i].offset) = true;
            return true;
        }
    }
    return false;
}

static bool read_value(struct options *o, const char *argument)
{
    const char *value;
    uint64_t n;
    if (number(value_of(argument, "--listen-fd"), 10, &n) && n < 4096)
        o->listen_fd = (int)n;
    else if (number(value_of(argument, "--caps"), 16, &n)) {
        o->caps = n;
        o->own_caps = true;
    } else if (number(value_of(argument, "--ttl-ms"), 10, &n) && n < INT64_MAX / 4)
        o->ttl_ms = (int64_t)n;
    else if (number(value_of(argument, "--idle-ms"), 10, &n) && n < INT64_MAX / 4)
        o->idle_ms = (int64_t)n;
    else if (number(value_of(argument, "--heartbeat-ms"), 10, &n) && n < INT64_MAX / 4)
        o->heartbeat_ms = (int64_t)n;
    else if ((value = value_of(argument, "--user")) != NULL)
        o->user = value;
    else if ((value = value_of(argument, "--cwd")) != NULL && *value != 0)
        o->cwd = value;
    else
        return false;
    return true;
}

bool options_read(struct options *o, int argc, char **argv)
{
    *o = (struct options){.listen_fd = -1, .user = "", .cwd = "/"};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--protocol-version") == 0) {
            printf("%d\n", PROTOCOL_VERSION);
            exit(0);
        }
        if (!read_flag(o, argv[i]) && !read_value(o, argv[i])) {
            fprintf(stderr, "cloche-guest: unknown or wrong option: %s\n", argv[i]);
            return false;
        }
    }
    if (o->listen_fd < 0 && !o->stdio) {
        fprintf(stderr, "cloche-guest: give --listen-fd=N or --stdio\n");
        return false;
    }
    return true;
}
