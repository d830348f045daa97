/*
 * cloche-spawner: makes and removes native sandboxes for one installation. What its parts share.
 *
 * One process, root, started on demand and gone when it is idle. The main thread waits (clients, ends of sandboxes),
 * workers do the slow things. The truth is on disk and in the kernel: a spawner that is killed loses nothing,
 * the next one adopts what runs. docs/design/0001-native-runtime.md has the reasons.
 */
#ifndef CLOCHE_SPAWNER_H
#define CLOCHE_SPAWNER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "frame.h"

#define SPAWNER_VERSION 1
#define ID_BYTES 64               /* longest id and its NUL */
#define NAME_BYTES 192            /* a path relative to a folder that is held open */
#define TARGET_BYTES 1024         /* longest path that a volume is put on, and its NUL */
#define RANGE_IDS 65536u          /* ids of one sandbox */
#define RANGE_FIRST 0x70000000u   /* above what distributions, podman and systemd-nspawn hand out */
#define RANGES 32767u
#define SLOTS RANGES              /* live sandboxes of one installation at most */
#define VOLUMES_MAX 16             /* of one sandbox */
#define JOBS_MAX 8192             /* requests that wait */
#define CLIENTS_MAX 1024
#define FD_GUEST_LISTEN 3         /* numbers in a new sandbox's first process */
#define FD_CHILD_CONTROL 4
#define FD_CHILD_GUEST 5
#define FD_FIRST_FREE 10          /* the spawner's own descriptors start here */

enum request_type { R_HELLO = 1, R_CREATE = 2, R_DELETE = 3, R_STATUS = 4, R_SHUTDOWN = 5, R_PAUSE = 6, R_RESUME = 7,
                    R_ATTACH = 10 };
enum answer_type { A_REPLY = 50, A_ERROR = 51 };

enum request_tag {
    W_VERSION = 1,      /* number */
    W_ID = 2,           /* text */
    W_RECORD = 3,       /* bytes: record.json */
    W_LAYER = 4,        /* text, repeated, the lowest first: below the state folder, relative to it */
    W_HOSTNAME = 5,     /* text */
    W_HOSTS = 6,        /* bytes: /etc/hosts */
    W_RESOLV = 7,       /* bytes: /etc/resolv.conf */
    W_MEMORY = 8,       /* number: bytes; absent: the shared pool */
    W_CPU_US = 9,       /* number: microseconds of CPU per 100 ms */
    W_PIDS = 10,        /* number */
    W_NETWORK = 11,     /* number: enum network */
    W_ARG = 12,         /* text, repeated: the guest's */
    W_ENV = 13,         /* text, repeated: the guest's */
    W_POOL = 14,        /* number: bytes that all sandboxes without a memory limit share */
    W_SHM = 15,         /* number: bytes of /dev/shm */
    W_VOLUME_SOURCE = 16, /* text, repeated: a folder of the host, every link in it resolved; its target follows */
    W_VOLUME_TARGET = 17, /* text: where it is inside */
    W_TTL_MS = 18,      /* number: how long a paused sandbox may live; 0: for ever */
    W_DISK = 25,        /* number: bytes that the writable layer may hold */
    W_DISK_TMPFS = 26,  /* number: 1: by a tmpfs, else by the store's file system */
    W_CODE = 30,        /* text: what kind of error */
    W_MESSAGE = 31,     /* text */
    W_ERRNO = 32,       /* number */
    W_PID = 33,         /* number */
    W_START_TIME = 34,  /* number: field 22 of /proc/PID/stat */
    W_BASE_ID = 35,     /* number: uid and gid on the host of root inside */
    W_EXISTED = 36,     /* number: 1 if there was something to delete */
    W_LIVE = 37,        /* number: live sandboxes */
    W_ADDRESS = 38,     /* number: IPv4, host order */
    W_ENFORCED = 39,    /* text: which limits hold: "memory cpu pids" */
};

enum network { NETWORK_NONE = 0, NETWORK_PUBLIC = 1 };

struct settings {
    char instance[9];
    const char *state_dir, *run_dir, *guest_path;
    const char *nft_file;         /* ruleset for public networks, written by the client */
    char **resolver;              /* argv of the name server for public networks, or NULL */
    uint32_t pool, pool_bits, gateway; /* addresses of public networks, host order */
    unsigned idle_ms, workers;
};

extern struct settings settings;
extern int store_fd, sandboxes_fd, uppers_fd, run_fd; /* folders */
extern int guest_fd, null_fd, host_mount_ns_fd, own_mount_ns_fd;
extern int host_state_fd, host_run_fd;             /* the two folders as the host's mounts have them */

enum state { S_CREATING, S_RUNNING, S_ENDING };

struct sandbox {
    char id[ID_BYTES];
    struct sandbox *same_hash;    /* the table's */
    enum state state;
    unsigned slot;
    pid_t pid;
    uint64_t start_time;
    int pidfd;                    /* -1 also where there is no descriptor left for it: then we look now and then */
    bool adopted, pooled, public; /* public: it has a link; what it may reach is said elsewhere */
    uint32_t address;
    uint64_t pool_kills;          /* what the shared memory limit had killed when it began */
    bool paused;
    int64_t paused_until_ms;      /* CLOCK_BOOTTIME; 0: no end */
};

struct request {                  /* a create request, taken apart; texts are owned */
    char *id, *hostname;
    struct field record, hosts, resolv;
    char **layers, **argv, **envp, **volume_sources, **volume_targets;
    size_t layer_count, arg_count, env_count, volume_count, target_count;
    uint64_t memory, cpu_us, pids, pool, shm;
    enum network network;
    uint64_t disk;                /* bytes that the writable layer may hold; 0: no limit */
    bool disk_tmpfs;
};

struct client;

struct failure {                  /* what went wrong, in words for a person */
    const char *code;
    int error;
    char message[200];
};

/* failure.c: all return -1, so that `return fail(...)` reads well */
int fail(struct failure *f, const char *what);
int fail_with(struct failure *f, const char *code, int error, const char *format, ...);

/* request.c */
int request_parse(struct request *r, const struct frame *frame, struct failure *f);
void request_free(struct request *r);
bool id_valid(const char *id);

/* space.c: the spawner's own mount namespace */
int space_make(struct failure *f);

/* table.c: live sandboxes; one lock inside */
int table_reserve(const char *id, bool public, struct sandbox **out, struct failure *f);
int table_adopt(const struct sandbox *found);
void table_running(struct sandbox *s);
/* The sandbox if it is there and was running (it is ending now, and ours); waits while others work on it. */
struct sandbox *table_take(const char *id);
struct sandbox *table_take_slot(unsigned slot);
/* Fills slots with those that are paused and whose time is over; returns how many. */
unsigned table_overdue(unsigned *found, unsigned most);
void table_release(struct sandbox *s);
/* Fills slots with those that have no pidfd and whose process is gone, looking from slot `from` on. */
unsigned table_silent(unsigned from, unsigned *found, unsigned most);
unsigned table_count(void);
unsigned table_count_public(void);
void table_now_public(struct sandbox *s);
void table_not_public(struct sandbox *s);
uint32_t base_id(unsigned slot);

/* cgroup.c */
int cgroup_start(struct failure *f);
int cgroup_make(const struct sandbox *s, const struct request *r, int *dir, struct failure *f);
int cgroup_enter(const struct sandbox *s, const struct request *r, struct failure *f);
void cgroup_kill(const char *id);
void cgroup_thaw_for_death(const char *id);
int cgroup_freeze(const char *id, bool frozen, struct failure *f);
int cgroup_remove(const char *id);
uint64_t cgroup_oom_kills(const char *id);
uint64_t cgroup_pool_kills(void);
const char *cgroup_enforced(void);
void cgroup_stop(void);

/* overlay.c */
int overlay_make_folders(const struct sandbox *s, const struct request *r, struct failure *f);
int overlay_mount(const struct sandbox *s, const struct request *r, int userns, int *out, struct failure *f);

/* volume.c */
int volumes_open(const struct request *r, int userns, int *out, struct failure *f);

/* store.c */
int store_make(const struct sandbox *s, const struct request *r, struct failure *f);
int store_remove(const char *id);
int store_tmpfs(uint64_t bytes, struct failure *f);

/* child.c: the first process of a sandbox, until it becomes the guest. Never returns. */
struct birth {
    struct sandbox *sandbox;
    const struct request *request;
    int control, listen, log, cgroup;
};
_Noreturn void child_main(const struct birth *b);
const char *child_step(int step);
int child_network(uint32_t address, uint32_t gateway, bool public);
int inside_network(pid_t pid, uint32_t address, uint32_t gateway);
extern struct sock_fprog *seccomp_program;

/* partner.c: a thread that clones for a worker */
struct partner;
extern unsigned descriptors_low;
void descriptors_raise(void);
int descriptor_to_keep(int fd);
struct partner *partner_start(const pthread_attr_t *attributes);
int partner_clone(struct partner *p, struct birth *birth, struct failure *f);
void partner_wait(struct partner *p);

/* create.c, destroy.c */
int act_as(uint32_t id);
int sandbox_create(struct partner *partner, struct sandbox *s, const struct request *r, struct failure *f);
int sandbox_remove(const char *id, struct sandbox *s, bool keep_record, struct failure *f);
void sandbox_ended(struct sandbox *s);
bool sandbox_gone(const struct sandbox *s);
void sandbox_signal(const struct sandbox *s, int signal_number);
void sandbox_overdue(struct sandbox *s);
void adopt_all(void);

/* pause.c */
int64_t boottime_ms(void);
int sandbox_pause(struct sandbox *s, uint64_t ttl_ms, struct failure *f);
int sandbox_resume(struct sandbox *s, struct failure *f);
void pause_adopt(struct sandbox *s);
bool pause_is_over(const struct sandbox *s);

/* remove.c */
int remove_tree(int parent, const char *name);
int remove_entries(int dir, const char *const *keep);

/* file.c */
int write_native(int folder, const struct sandbox *s, struct failure *f);
int write_file_at(int dir, const char *name, const void *data, size_t size, mode_t mode);
int read_file_at(int dir, const char *name, char *out, size_t size);
int put_text_at(int dir, const char *name, const char *text);
uint64_t process_start_time(pid_t pid);
/* The wait status of one that is over and not yet reaped by its parent. */
int process_wait_status(pid_t pid);

/* netlink.c, network.c */
int link_create(const char *name, pid_t peer_of);
int link_delete(const char *name);
int link_set_up(const char *name);
int address_add(const char *link, uint32_t address);
int route_add(const char *link, uint32_t to, unsigned bits, uint32_t via);
int network_start(struct failure *f);
int network_make(struct sandbox *s, struct failure *f);
int network_attach(struct sandbox *s, struct failure *f);
void network_remove(const struct sandbox *s);
void network_tick(void);
void network_stop(void);
void network_adopted(void);

/* jobs.c, server.c */
void jobs_start(unsigned workers);
void worker_identity(void);
int jobs_add(struct client *client, const struct frame *frame);
void jobs_add_ended(unsigned slot);
bool jobs_idle(void);
int server_start(void);
int server_run(int listen_fd);
void server_watch(const struct sandbox *s);
void server_unwatch(const struct sandbox *s);
void client_send(struct client *client, const struct buffer *message);
void client_hold(struct client *client);
void client_drop(struct client *client);

#endif
