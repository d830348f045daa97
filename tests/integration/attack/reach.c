/*
 * What a hostile program tries to reach its neighbours and the host by, one thing per call; built for the tests alone,
 * static. It says on standard output how each attempt went.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/ptrace.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int say(long result)
{
    printf("%s\n", result < 0 ? strerror(errno) : "done");
    fflush(stdout);
    return result < 0;
}

/* KEY: make shared memory, with a word in it, that outlives this process */
static int shm_make(char **v)
{
    int id = shmget(atoi(v[0]), 4096, IPC_CREAT | 0666);
    char *at = id < 0 ? (char *)-1 : shmat(id, NULL, 0);
    if (at != (char *)-1)
        strcpy(at, "mine");
    return say(at == (char *)-1 ? -1 : 0);
}

/* KEY: find shared memory of somebody else */
static int shm_find(char **v) { return say(shmget(atoi(v[0]), 4096, 0)); }

static socklen_t abstract_name(struct sockaddr_un *address, const char *name)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    strncpy(address->sun_path + 1, name, sizeof address->sun_path - 2);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
}

/* NAME SECONDS: listen on an abstract socket */
static int listen_at(char **v)
{
    struct sockaddr_un address;
    socklen_t size = abstract_name(&address, v[0]);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    int result = bind(fd, (struct sockaddr *)&address, size) == 0 ? listen(fd, 1) : -1;
    say(result);
    sleep((unsigned)atoi(v[1]));
    return result != 0;
}

/* NAME: connect to an abstract socket */
static int connect_to(char **v)
{
    struct sockaddr_un address;
    socklen_t size = abstract_name(&address, v[0]);
    return say(connect(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&address, size));
}

/* COUNT SECONDS: hold inotify instances; says how many */
static int watchers(char **v)
{
    int got = 0;
    while (got < atoi(v[0]) && inotify_init1(0) >= 0)
        got++;
    printf("%d\n", got);
    fflush(stdout);
    sleep((unsigned)atoi(v[1]));
    return 0;
}

/* PROCESSES SECONDS: hold every descriptor that each of these processes may have; says when */
static int files(char **v)
{
    for (int i = 0; i < atoi(v[0]); i++)
        if (fork() == 0) {
            while (open("/dev/null", O_RDONLY) >= 0) {
            }
            sleep((unsigned)atoi(v[1]));
            _exit(0);
        }
    sleep(1);
    say(0);
    sleep((unsigned)atoi(v[1]));
    return 0;
}

/* FAMILY TYPE PROTOCOL: a socket */
static int make_socket(char **v) { return say(socket(atoi(v[0]), atoi(v[1]), atoi(v[2]))); }

/* PID: attach to a process */
static int attach(char **v) { return say(ptrace(PTRACE_SEIZE, atoi(v[0]), 0, 0)); }

/* PATH: open for writing and truncate */
static int overwrite(char **v)
{
    int fd = open(v[0], O_WRONLY);
    return say(fd < 0 ? -1 : write(fd, "x", 1));
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int arguments, (*run)(char **);
    } attempts[] = {{"shm-make", 1, shm_make}, {"shm-find", 1, shm_find}, {"listen", 2, listen_at},
                    {"connect", 1, connect_to}, {"watchers", 2, watchers}, {"files", 2, files},
                    {"socket", 3, make_socket}, {"attach", 1, attach},     {"overwrite", 1, overwrite}};
    for (size_t i = 0; i < sizeof attempts / sizeof *attempts; i++)
        if (argc == 2 + attempts[i].arguments && strcmp(argv[1], attempts[i].name) == 0)
            return attempts[i].run(argv + 2);
    return 2;
}
