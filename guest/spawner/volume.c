/*
 * Folders of the host that a sandbox sees, read-only. The path comes with every link in it resolved and is opened without
 * following any; so is each folder above, to tell whether the store or the run folder is in reach. Must never show a
 * sandbox those two, what is mounted below the folder, or a file that it could write to.
 */
#include "spawner.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "sys.h"

#define STRICT (CLOCHE_RESOLVE_NO_SYMLINKS | CLOCHE_RESOLVE_NO_MAGICLINKS)

static bool same_folder(const struct stat *a, const struct stat *b) { return a->st_dev == b->st_dev && a->st_ino == b->st_ino; }

/* Whether folder is top or below it, by what the folders are, not by their names. */
static int is_below(int folder, int top)
{
    struct stat here, wanted, before = {0};
    int at = openat(folder, ".", O_PATH | O_DIRECTORY | O_CLOEXEC), result = -1;
    if (at < 0 || fstat(top, &wanted) != 0) {
        close(at);
        return -1;
    }
    while (fstat(at, &here) == 0) {
        result = same_folder(&here, &wanted);
        if (result != 0 || same_folder(&here, &before))
            break; /* found, or the root, which is its own parent */
        before = here;
        int up = openat(at, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
        close(at);
        if ((at = up) < 0)
            return -1;
        result = -1;
    }
    close(at);
    return result;
}

static int check_place(int folder, const char *source, struct failure *f)
{
    const int ours[] = {host_state_fd, host_run_fd};
    for (int i = 0; i < 2; i++) {
        int below = is_below(folder, ours[i]), above = is_below(ours[i], folder);
        if (below < 0 || above < 0)
            return fail(f, "look where the volume's folder is");
        if (below || above)
            return fail_with(f, "bad_volume", EPERM, "volume %.120s: our own folders must stay out of reach", source);
    }
    return 0;
}

static int clone_folder(int folder, const char *source, int userns, struct failure *f)
{
    struct kernel_mount_attr attr = {
        .set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_IDMAP,
        .userns_fd = (uint64_t)userns,
    };
    int tree = sys_open_tree(folder, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
    if (tree < 0)
        return fail_with(f, "bad_volume", errno, "volume %.120s: %s", source, strerror(errno));
    if (sys_mount_setattr(tree, &attr) == 0)
        return tree;
    fail_with(f, "bad_volume", errno, "volume %.120s: its file system does not support id-mapped mounts (%s)", source,
              strerror(errno));
    close(tree);
    return -1;
}

static int open_one(const char *source, int userns, struct failure *f)
{
    int folder = sys_openat2(AT_FDCWD, source, O_PATH | O_DIRECTORY | O_CLOEXEC, 0, STRICT), tree = -1;
    if (folder < 0)
        return fail_with(f, "bad_volume", errno, "volume %.120s: %s", source,
                         errno == ELOOP ? "a part of the path is a symbolic link" : strerror(errno));
    if (check_place(folder, source, f) == 0)
        tree = clone_folder(folder, source, userns, f);
    close(folder);
    return tree;
}

/* Fills out with one detached mount per volume. The thread visits the host's mount namespace meanwhile. */
int volumes_open(const struct request *r, int userns, int *out, struct failure *f)
{
    int result = 0;
    if (r->volume_count == 0)
        return 0;
    if (unshare(CLONE_FS) != 0 || setns(host_mount_ns_fd, CLONE_NEWNS) != 0)
        return fail(f, "visit the host's mounts");
    for (size_t i = 0; i < r->volume_count && result == 0; i++)
        result = (out[i] = open_one(r->volume_sources[i], userns, f)) < 0 ? -1 : 0;
    if (setns(own_mount_ns_fd, CLONE_NEWNS) != 0)
        _exit(70); /* this thread must not go on among the host's mounts */
    return result;
}
