/* The command line: what is right is read, what is wrong is refused. */
#include "check.h"
#include "../options.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static struct options o;

static bool reads(char *first, char *second)
{
    char *argv[] = {"cloche-guest", "--listen-fd=3", first, second, NULL};
    int argc = second != NULL ? 4 : first != NULL ? 3 : 2;
    return options_read(&o, argc, argv);
}

void test_options(void)
{
    int quiet = open("/dev/null", O_WRONLY), was = dup(2);
    dup2(quiet, 2);
    CHECK(reads(NULL, NULL) && o.listen_fd == 3 && !o.cgroup && !o.own_caps && strcmp(o.cwd, "/") == 0);
    CHECK(reads("--caps=a80425fb", "--harden") && o.own_caps && o.caps == 0xa80425fb && o.harden);
    CHECK(reads("--ttl-ms=10", "--idle-ms=20") && o.ttl_ms == 10 && o.idle_ms == 20);
    CHECK(reads("--heartbeat-ms=5", "--no-new-privs") && o.heartbeat_ms == 5 && o.no_new_privs);
    CHECK(reads("--user=a:b", "--cwd=/x") && strcmp(o.user, "a:b") == 0 && strcmp(o.cwd, "/x") == 0);
    CHECK(reads("--cgroup", "--stdio") && o.cgroup && o.stdio);
    CHECK(!reads("--ttl-ms=", NULL) && !reads("--ttl-ms=1x", NULL) && !reads("--ttl-ms=-1", NULL));
    CHECK(!reads("--listen-fd=99999", NULL) && !reads("--cgroup=1", NULL) && !reads("what", NULL));
    CHECK(!reads("--ttl-ms=9999999999999999999", NULL) && !reads("--cwd=", NULL));
    dup2(was, 2);
    close(was);
    close(quiet);
}
