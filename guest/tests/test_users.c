/* Users and groups as `docker exec -u` reads them, from files that may hold anything. */
#include "check.h"
#include "../user.h"

#include <stdlib.h>
#include <string.h>

static const char passwd[] = "root:x:0:0:root:/root:/bin/sh\n"
                             "# a comment\n"
                             "broken line\n"
                             ":::::\n"
                             "app:x:1000:1001:App,,,:/home/app:/bin/sh\n"
                             "1234:x:77:78::/numeric:/bin/sh\n"
                             "nohome:x:5:6:::\n"
                             "toolarge:x:4294967295:0::/:\n"
                             "last:x:9:9::/last:/bin/sh";
static const char group[] = "root:x:0:\n"
                            "wheel:x:10:app,root\n"
                            "docker:x:999:someone,app,other\n"
                            "appx:x:12:apple,xapp\n"
                            "app:x:1001:\n"
                            "bad:x:abc:app\n";

static struct identity who;
static const char *why;

static bool resolve(const char *spec) { return identity_from(passwd, group, spec, &who, &why); }

static bool is(uid_t uid, gid_t gid, int groups, const char *home)
{
    return who.uid == uid && who.gid == gid && who.group_count == groups && strcmp(who.home, home) == 0;
}

static void known(void)
{
    CHECK(resolve("") && is(0, 0, 1, "/root") && who.groups[0] == 10);
    CHECK(resolve("root") && is(0, 0, 1, "/root"));
    CHECK(resolve("app") && is(1000, 1001, 2, "/home/app") && who.groups[0] == 10 && who.groups[1] == 999);
    CHECK(resolve("1000") && is(1000, 1001, 2, "/home/app"));
    CHECK(resolve("app:wheel") && is(1000, 10, 0, "/home/app"));
    CHECK(resolve("app:10") && is(1000, 10, 0, "/home/app"));
    CHECK(resolve("app:") && is(1000, 1001, 2, "/home/app"));
    CHECK(resolve("1234") && is(77, 78, 0, "/numeric")); /* a name before a number */
    CHECK(resolve("nohome") && is(5, 6, 0, "/"));
    CHECK(resolve("last") && is(9, 9, 0, "/last"));
}

static void unknown(void)
{
    CHECK(resolve("4711") && is(4711, 0, 0, "/"));
    CHECK(resolve("4711:4712") && is(4711, 4712, 0, "/"));
    CHECK(resolve("4294967294") && is(4294967294u, 0, 0, "/"));
    CHECK(!resolve("nobody") && strstr(why, "user") != NULL);
    CHECK(!resolve("app:nogroup") && strstr(why, "group") != NULL);
    CHECK(!resolve("4294967295") && !resolve("99999999999") && !resolve("-1") && !resolve("1 "));
    CHECK(identity_from(NULL, NULL, "", &who, &why) && is(0, 0, 0, "/"));
    CHECK(identity_from(NULL, NULL, "7:8", &who, &why) && is(7, 8, 0, "/"));
    CHECK(!identity_from("", "", "app", &who, &why));
}

/* More groups than there is room for, and a home that is too long. */
static void bounds(void)
{
    char *many = calloc(1, 64 * 1024), line[600] = "u:x:1:1::/";
    for (int i = 0; i < 1000; i++)
        sprintf(many + strlen(many), "g%d:x:%d:u\n", i, i);
    memset(line + strlen(line), 'h', 550);
    CHECK(identity_from(line, many, "u", &who, &why) && is(1, 1, GROUPS_MAX, "/"));
    free(many);
}

static void random_text(void)
{
    unsigned seed = 7;
    static const char letters[] = "::\n,,ar01x";
    for (int round = 0; round < 20000; round++) {
        char *text = malloc(41);
        for (int i = 0; i < 40; i++) {
            seed = seed * 1103515245u + 12345u;
            text[i] = letters[(seed >> 16) % (sizeof letters - 1)];
        }
        text[40] = 0;
        identity_from(text, text, round % 2 ? "a" : "0:r", &who, &why);
        free(text);
    }
}

void test_users(void)
{
    known();
    unknown();
    bounds();
    random_text();
}
