/*
 * A sandbox's root file system: image layers below, a folder of its own above.
 *
 * Everything lies under one id-mapped view of the state folder, so that files keep the image's ids on disk while root
 * inside is nobody outside. The caller must act as the range's first id (fsuid) with all capabilities: the overlay
 * takes its creator's identity, and as plain root it would silently come out read-only. Device nodes that an image
 * carries are dead (nodev). `volatile`: without it, unmounting would sync the whole file system of the store.
 */
#include "spawner.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/xattr.h>

#include "sys.h"

#define LIST_BYTES 4096
#define LAYERS_MAX 500 /* of the kernel */
#define JOINED_BYTES 256 /* the kernel's limit for one string in fsconfig */

/* The top folder of the image may have any mode and owner (buildah's have 0555); the sandbox's / must look like it. */
static int copy_attributes(int from, int to)
{
    struct stat st;
    char names[LIST_BYTES], value[LIST_BYTES];
    if (fstat(from, &st) != 0 || fchown(to, st.st_uid, st.st_gid) != 0 || fchmod(to, st.st_mode & 07777) != 0)
        return -1;
    ssize_t size = flistxattr(from, names, sizeof names);
    for (char *name = names; size > 0 && name < names + size; name += strlen(name) + 1) {
        ssize_t n = fgetxattr(from, name, value, sizeof value);
        if (n < 0 || strncmp(name, "trusted.overlay.", 16) == 0)
            continue;
        if (fsetxattr(to, name, value, (size_t)n, 0) != 0 && errno != ENOTSUP)
            return -1;
    }
    return 0;
}

static int like_the_image(const struct request *r, int own, struct failure *f)
{
    int result = 0;
    const char *image = r->layers[r->layer_count - 1];
    int from = openat(store_fd, image, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int to = openat(own, "upper", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (from < 0 && errno == ENOENT)
        result = fail_with(f, "no_layer", ENOENT, "layer %s is gone from the store", image);
    else if (from < 0 || to < 0 || copy_attributes(from, to) != 0)
        result = fail(f, "copy the attributes of the image's /");
    close(from);
    close(to);
    return result;
}

int overlay_make_folders(const struct sandbox *s, const struct request *r, struct failure *f)
{
    if (store_make(s, r, f) != 0)
        return -1;
    if (r->disk_tmpfs)
        return 0; /* its layer is made when it is mounted */
    int own = openat(uppers_fd, s->id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), result = 0;
    if (own < 0 || mkdirat(own, "upper", 0755) != 0 || mkdirat(own, "work", 0755) != 0) {
        result = fail(f, "make the sandbox's writable layer");
        close(own);
        return result;
    }
    result = like_the_image(r, own, f);
    close(own);
    return result;
}

static bool kernel_is_at_least(unsigned major, unsigned minor)
{
    struct utsname name;
    unsigned found_major = 0, found_minor = 0;
    if (uname(&name) != 0 || sscanf(name.release, "%u.%u", &found_major, &found_minor) != 2)
        return false;
    return found_major > major || (found_major == major && found_minor >= minor);
}

/* Before Linux 6.15 an overlay takes no layers from a mount that is attached nowhere: path says where to, for a while. */
static int attach_view(int view, char *path, size_t size, unsigned slot)
{
    path[0] = 0;
    if (kernel_is_at_least(6, 15))
        return 0;
    snprintf(path, size, "/views/%u", slot);
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return -1;
    return sys_move_mount(view, "", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH);
}

static void detach_view(const char *path)
{
    if (path[0] == 0)
        return;
    umount2(path, MNT_DETACH);
    rmdir(path);
}

static int open_view(int userns, struct failure *f)
{
    struct kernel_mount_attr attr = {.set = MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t)userns};
    int view = sys_open_tree(AT_FDCWD, "/store", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (view >= 0 && sys_mount_setattr(view, &attr) == 0)
        return view;
    fail(f, "make an id-mapped view of the store (its file system must support id-mapped mounts)");
    close(view);
    return -1;
}

struct layers {
    int *fds;
    size_t count;
};

struct places {
    int view, writable; /* writable: of its own, or -1 */
    const char *id;
};

/* The highest layer comes first. Before Linux 6.7 they are one string; any option is accepted until the creation. */
static int set_layers(int fs, const struct layers *lower, struct failure *f)
{
    char one[40], joined[LIST_BYTES] = "";
    bool single = kernel_is_at_least(6, 7);
    size_t used = 0;
    for (size_t i = lower->count; i-- > 0;) {
        snprintf(one, sizeof one, "/proc/self/fd/%d", lower->fds[i]);
        if (single) {
            if (sys_fsconfig(fs, FSCONFIG_SET_STRING, "lowerdir+", one) != 0)
                return fail(f, "add a layer");
            continue;
        }
        used += (size_t)snprintf(joined + used, sizeof joined - used, "%s%s", used ? ":" : "", one);
        if (used >= JOINED_BYTES)
            return fail_with(f, "unsupported", E2BIG, "this kernel takes no more than 14 image layers");
    }
    if (used > 0 && sys_fsconfig(fs, FSCONFIG_SET_STRING, "lowerdir", joined) != 0)
        return fail(f, "set the layers");
    return 0;
}

/* Below `writable`, a mount of its own (tmpfs), or in the view of the store. */
static int set_folder(int fs, const char *option, const struct places *at, struct failure *f)
{
    char path[NAME_BYTES];
    const char *name = strcmp(option, "upperdir") == 0 ? "upper" : "work";
    if (at->writable >= 0)
        snprintf(path, sizeof path, "/proc/self/fd/%d/%s", at->writable, name);
    else
        snprintf(path, sizeof path, "/proc/self/fd/%d/uppers/%s/%s", at->view, at->id, name);
    return sys_fsconfig(fs, FSCONFIG_SET_STRING, option, path) == 0 ? 0 : fail(f, option);
}

static int mount_layers(const struct places *at, const struct layers *lower, struct failure *f)
{
    int fs = sys_fsopen("overlay"), mounted = -1;
    if (fs < 0)
        return fail(f, "open an overlay");
    if (set_layers(fs, lower, f) == 0 && set_folder(fs, "upperdir", at, f) == 0 &&
        set_folder(fs, "workdir", at, f) == 0) {
        sys_fsconfig(fs, FSCONFIG_SET_FLAG, "volatile", NULL);
        /* a writable layer may become a snapshot's: whole files, and no folder that points to another */
        sys_fsconfig(fs, FSCONFIG_SET_STRING, "metacopy", "off");
        sys_fsconfig(fs, FSCONFIG_SET_STRING, "redirect_dir", "off");
        sys_fsconfig(fs, FSCONFIG_SET_STRING, "index", "off");
        if (sys_fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL) != 0 ||
            (mounted = sys_fsmount(fs, MOUNT_ATTR_NODEV)) < 0)
            fail(f, "mount the overlay");
    }
    close(fs);
    return mounted;
}

static int open_layers(const struct request *r, int view, struct layers *lower, size_t most, struct failure *f)
{
    if (r->layer_count + 1 > most)
        return fail_with(f, "unsupported", E2BIG, "an image has at most %zu layers", most - 1);
    if (kernel_is_at_least(6, 7)) { /* before it there is too little room for names */
        int skeleton = sys_openat2(view, "skeleton", O_PATH | O_DIRECTORY | O_CLOEXEC, 0, CLOCHE_RESOLVE_IN_ROOT);
        if (skeleton < 0)
            return fail(f, "open the lowest layer");
        lower->fds[lower->count++] = skeleton;
    }
    for (size_t i = 0; i < r->layer_count; i++) {
        int fd = sys_openat2(view, r->layers[i], O_PATH | O_DIRECTORY | O_CLOEXEC, 0, CLOCHE_RESOLVE_IN_ROOT);
        if (fd < 0)
            return fail_with(f, "no_layer", errno, "layer %s: %s", r->layers[i], strerror(errno));
        lower->fds[lower->count++] = fd;
    }
    return 0;
}

/* A writable layer of its own, where the limit asks for one. */
static int open_writable(const struct sandbox *s, const struct request *r, int userns, char *path, size_t size,
                         struct failure *f)
{
    struct kernel_mount_attr attr = {.set = MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t)userns};
    path[0] = 0;
    int own = store_tmpfs(r->disk, f);
    if (own < 0)
        return -1;
    if (like_the_image(r, own, f) == 0) { /* before its ids are mapped: then the host's root is nobody in it */
        if (sys_mount_setattr(own, &attr) == 0 && attach_view(own, path, size, s->slot + SLOTS) == 0)
            return own;
        fail(f, "map the ids of the sandbox's tmpfs");
    }
    close(own);
    return -1;
}

int overlay_mount(const struct sandbox *s, const struct request *r, int userns, int *out, struct failure *f)
{
    int fds[LAYERS_MAX];
    char attached[32], attached_own[32] = "";
    struct layers lower = {fds, 0};
    struct places at = {.view = open_view(userns, f), .writable = -1, .id = s->id};
    *out = -1;
    if (at.view < 0)
        return -1;
    if (attach_view(at.view, attached, sizeof attached, s->slot) != 0)
        fail(f, "attach the view of the store");
    else if ((!r->disk_tmpfs || (at.writable = open_writable(s, r, userns, attached_own, sizeof attached_own, f)) >= 0) &&
             open_layers(r, at.view, &lower, LAYERS_MAX, f) == 0)
        *out = mount_layers(&at, &lower, f);
    for (size_t i = 0; i < lower.count; i++)
        close(fds[i]);
    detach_view(attached);
    detach_view(attached_own);
    if (at.writable >= 0)
        close(at.writable);
    close(at.view);
    return *out < 0 ? -1 : 0;
}
