/*
 * Networks: a veth pair per sandbox, one table of rules and one gateway process (names, policies) for all of them. Rules
 * and gateway come with the first link and go when the last has been gone for a while. A link alone leads nowhere: what a
 * sandbox may reach is in the sets of the table, which the gateway fills.
 *
 * Every host end has the same gateway address; a sandbox's address is a route of 32 bits to its link, so that the
 * kernel itself refuses an address that is taken. What may be reached is decided in the rules that the client wrote.
 */
#include "spawner.h"

#include <errno.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include "sys.h"

#define READY_MS 20000
#define END_MS 3000
#define ADDRESS_TRIES 64
#define GATEWAYS 256 /* the first addresses of the pool are gateways of installations */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool started;
static pid_t resolver_pid;
static int resolver_pidfd = -1;
static time_t unused_since, resolver_started;

static void link_name(char *out, size_t size, unsigned slot)
{
    snprintf(out, size, "cl%.4sx%x", settings.instance, slot);
}

/* Runs in a copy of the process: only system calls until exec, in the host's mount namespace. */
static _Noreturn void become(char *const *argv, int out, int log)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    if (setns(host_mount_ns_fd, CLONE_NEWNS) == 0 && dup2(null_fd, 0) == 0 && dup2(out, 1) == 1 && dup2(log, 2) == 2)
        execvp(argv[0], argv);
    _exit(127);
}

static pid_t launch(char *const *argv, int out)
{
    int log = openat(run_fd, "network.log", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    pid_t pid = log < 0 ? -1 : fork();
    if (pid == 0)
        become(argv, out < 0 ? log : out, log);
    if (log >= 0)
        close(log);
    return pid;
}

static int run_nft(char *const *argv)
{
    int status = -1;
    pid_t pid = launch(argv, -1);
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return pid > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void unload_rules(void)
{
    char table[32];
    snprintf(table, sizeof table, "cloche_%s", settings.instance);
    char *argv[] = {"nft", "delete", "table", "inet", table, NULL};
    run_nft(argv);
}

static int load_rules(struct failure *f)
{
    char *argv[] = {"nft", "-f", (char *)settings.nft_file, NULL};
    int status = run_nft(argv);
    if (status > 0 && status != 127) { /* a table of another version, whose sets have other types */
        unload_rules();
        status = run_nft(argv);
    }
    if (status == 0)
        return 0;
    return fail_with(f, status == 127 ? "no_nft" : "network", 0, "nft could not load the rules (status %d)", status);
}

static void remember_resolver(void)
{
    char text[64];
    int size = snprintf(text, sizeof text, "%d %llu\n", resolver_pid, (unsigned long long)process_start_time(resolver_pid));
    write_file_at(run_fd, "resolver.pid", text, (size_t)size, 0600);
}

/* It says one byte on its standard output when it listens. */
static int start_resolver(struct failure *f)
{
    int ends[2];
    char byte;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return fail(f, "make a pipe");
    resolver_pid = launch(settings.resolver, ends[1]);
    close(ends[1]);
    resolver_started = time(NULL);
    struct pollfd ready = {.fd = ends[0], .events = POLLIN};
    bool listens = resolver_pid > 0 && poll(&ready, 1, READY_MS) == 1 && read(ends[0], &byte, 1) == 1;
    close(ends[0]);
    if (listens) {
        resolver_pidfd = (int)syscall(SYS_pidfd_open, resolver_pid, 0);
        remember_resolver();
        return 0;
    }
    if (resolver_pid > 0) {
        kill(resolver_pid, SIGKILL);
        waitpid(resolver_pid, NULL, 0);
    }
    return fail_with(f, "network", 0, "the name server for public networks does not start (see network.log)");
}

static void stop_resolver(void)
{
    if (resolver_pidfd < 0)
        return;
    struct pollfd end = {.fd = resolver_pidfd, .events = POLLIN};
    syscall(SYS_pidfd_send_signal, resolver_pidfd, SIGTERM, NULL, 0);
    if (poll(&end, 1, END_MS) != 1) {
        syscall(SYS_pidfd_send_signal, resolver_pidfd, SIGKILL, NULL, 0);
        poll(&end, 1, END_MS);
    }
    waitpid(resolver_pid, NULL, WNOHANG); /* not our child if it was adopted */
    close(resolver_pidfd);
    resolver_pidfd = -1;
}

/* The file says that there may be rules, from before they are loaded until after they are gone. */
static void take_down(void)
{
    stop_resolver();
    unload_rules();
    unlinkat(run_fd, "network.sock", 0);
    unlinkat(run_fd, "resolver.pid", 0);
}

static int bring_up(struct failure *f)
{
    if (write_file_at(run_fd, "resolver.pid", "", 0, 0600) != 0)
        return fail(f, "note the name server");
    if (load_rules(f) == 0 && start_resolver(f) == 0)
        return 0;
    take_down();
    return -1;
}

int network_start(struct failure *f)
{
    pthread_mutex_lock(&lock);
    int result = 0;
    if (!started) {
        if (settings.resolver == NULL || settings.nft_file == NULL)
            result = fail_with(f, "network", 0, "this spawner was started without public networks");
        else
            result = bring_up(f);
        started = result == 0;
    }
    unused_since = 0;
    pthread_mutex_unlock(&lock);
    return result;
}

void network_stop(void)
{
    pthread_mutex_lock(&lock);
    if (started)
        take_down();
    started = false;
    pthread_mutex_unlock(&lock);
}

/* Called often by the main thread. */
void network_tick(void)
{
    struct failure ignored;
    bool stop = false;
    if (pthread_mutex_trylock(&lock) != 0)
        return; /* busy starting */
    if (started) {
        time_t now = time(NULL);
        if (table_count_public() > 0)
            unused_since = 0;
        else if (unused_since == 0)
            unused_since = now;
        stop = unused_since != 0 && (now - unused_since) * 1000 > (time_t)settings.idle_ms;
        struct pollfd end = {.fd = resolver_pidfd, .events = POLLIN};
        bool gone = resolver_pidfd < 0 || poll(&end, 1, 0) == 1;
        if (!stop && gone && now - resolver_started > 1) {
            stop_resolver();
            start_resolver(&ignored);
        }
    }
    pthread_mutex_unlock(&lock);
    if (stop && table_count_public() == 0)
        network_stop();
}

static void adopt_resolver(void)
{
    char text[64];
    if (read_file_at(run_fd, "resolver.pid", text, sizeof text) <= 0)
        return;
    char *end;
    pid_t pid = (pid_t)strtol(text, &end, 10);
    uint64_t start_time = strtoull(end, NULL, 10);
    int pidfd = pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
    if (pidfd >= 0 && process_start_time(pid) == start_time) {
        resolver_pid = pid;
        resolver_pidfd = pidfd;
    } else if (pidfd >= 0) {
        close(pidfd);
    }
}

/* Rules and name server that a dead spawner left are ours from now on: kept while used, removed otherwise. */
void network_adopted(void)
{
    struct failure ignored;
    if (settings.resolver == NULL)
        return;
    adopt_resolver();
    if (table_count_public() > 0) {
        load_rules(&ignored); /* the sets keep what is in them */
        started = true;
    } else if (faccessat(run_fd, "resolver.pid", F_OK, 0) == 0) {
        started = true;
        network_stop();
    }
}

int network_make(struct sandbox *s, struct failure *f)
{
    char name[16], file[96];
    uint32_t size = 1u << (32 - settings.pool_bits);
    uint32_t first = (uint32_t)strtoul(settings.instance, NULL, 16) + s->slot;
    link_name(name, sizeof name, s->slot);
    link_delete(name); /* of a dead namesake */
    if (link_create(name, s->pid) != 0)
        return fail(f, "make a network link");
    snprintf(file, sizeof file, "/proc/sys/net/ipv6/conf/%s/disable_ipv6", name);
    put_text_at(-1, file, "1"); /* absent where the kernel has no IPv6 */
    if (address_add(name, settings.gateway) != 0 || link_set_up(name) != 0)
        return fail(f, "set up the network link");
    for (uint32_t i = 0; i < ADDRESS_TRIES; i++) {
        s->address = settings.pool + GATEWAYS + (first + i * SLOTS) % (size - GATEWAYS - 1);
        if (route_add(name, s->address, 32, 0) == 0)
            return 0;
        if (errno != EEXIST)
            return fail(f, "route to the sandbox");
    }
    return fail_with(f, "network", EADDRNOTAVAIL, "no address of the pool is free");
}

/* Twice is no error. The file `native` says that there is a link before there is one, so that it is looked for. */
int network_attach(struct sandbox *s, struct failure *f)
{
    char name[16];
    link_name(name, sizeof name, s->slot);
    if (s->public && s->address != 0 && if_nametoindex(name) != 0)
        return network_start(f);
    table_now_public(s);
    s->address = 0;
    int folder = openat(sandboxes_fd, s->id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int result = network_start(f);
    if (result == 0 && (folder < 0 || write_native(folder, s, f) != 0))
        result = fail(f, "write down the sandbox's network");
    if (result == 0)
        result = network_make(s, f);
    if (result == 0 && inside_network(s->pid, s->address, settings.gateway) != 0)
        result = fail(f, "set the network up inside");
    if (result == 0)
        result = write_native(folder, s, f);
    if (result != 0) {
        network_remove(s);
        table_not_public(s);
    }
    if (folder >= 0)
        close(folder);
    return result;
}

void network_remove(const struct sandbox *s)
{
    char name[16];
    if (!s->public)
        return;
    link_name(name, sizeof name, s->slot);
    link_delete(name);
}
