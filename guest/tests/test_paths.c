/* Paths: the last component is split off right, and "/" is never left. Works in a folder of its own. */
#include "check.h"
#include "../path.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool splits(const char *path, const char *expected)
{
    char name[NAME_MAX + 1];
    int fd = path_open_parent(path, name);
    if (fd < 0)
        return expected == NULL;
    close(fd);
    return expected != NULL && strcmp(name, expected) == 0;
}

static void parents(void)
{
    char *name = malloc(NAME_MAX + 3);
    CHECK(splits("/etc", "etc") && splits("/etc/", "etc") && splits("//etc//", "etc") && splits("etc", "etc"));
    CHECK(splits("/etc/passwd", "passwd") && splits("/../../etc", "etc") && splits("/etc/...", "..."));
    CHECK(splits("/", NULL) && splits("", NULL) && splits("/etc/..", NULL) && splits("/etc/.", NULL));
    CHECK(splits("/no/such/file", NULL) && errno == ENOENT);
    memset(name, 'x', NAME_MAX + 2);
    name[NAME_MAX + 1] = 0;
    CHECK(splits(name, NULL) && errno == ENAMETOOLONG);
    name[NAME_MAX] = 0;
    CHECK(splits(name, name));
    free(name);
    char *deep = malloc(PATH_MAX + 10);
    memset(deep, '/', PATH_MAX + 8);
    strcpy(deep + PATH_MAX + 5, "x");
    CHECK(splits(deep, NULL) && errno == ENAMETOOLONG);
    free(deep);
}

static void in_root(void)
{
    CHECK(path_open("/../../../etc", O_PATH, 0) >= 0);
    CHECK(path_open("/proc/self/root", O_PATH, 0) < 0 && errno == ELOOP);
    CHECK(path_open("/proc/self/cwd", O_PATH, 0) < 0 && errno == ELOOP);
}

static void folders(const char *base)
{
    char path[PATH_MAX];
    struct stat s;
    snprintf(path, sizeof path, "%s/a//b/./c/", base);
    int fd = path_make_dirs(path, 0710, geteuid(), getegid());
    CHECK(fd >= 0 && fstat(fd, &s) == 0 && (s.st_mode & 07777) == 0710);
    close(fd);
    fd = path_make_dirs(path, 0777, 0, 0);
    CHECK(fd >= 0 && fstat(fd, &s) == 0 && (s.st_mode & 07777) == 0710);
    close(fd);
    snprintf(path, sizeof path, "%s/file", base);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    CHECK(path_make_dirs(path, 0755, 0, 0) < 0 && errno == ENOTDIR);
    strcat(path, "/x");
    CHECK(path_make_dirs(path, 0755, 0, 0) < 0);
}

static void whole_files(const char *base)
{
    char path[PATH_MAX];
    size_t bytes = 0;
    snprintf(path, sizeof path, "%s/text", base);
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    for (int i = 0; i < 3000; i++)
        CHECK(write(fd, "abc", 3) == 3);
    close(fd);
    char *text = path_read_file(path, 1 << 20, &bytes);
    CHECK(text != NULL && bytes == 9000 && text[9000] == 0 && text[8999] == 'c');
    free(text);
    CHECK(path_read_file(path, 1000, &bytes) == NULL && errno == EFBIG);
    CHECK(path_read_file(base, 1000, &bytes) == NULL && errno == EISDIR);
    CHECK(path_read_file("/no/such", 1000, &bytes) == NULL && errno == ENOENT);
}

void test_paths(void)
{
    char base[] = "/tmp/cloche-paths-XXXXXX", command[64];
    CHECK(mkdtemp(base) != NULL);
    parents();
    in_root();
    folders(base);
    whole_files(base);
    snprintf(command, sizeof command, "rm -rf %s", base);
    CHECK(system(command) == 0);
}
