/*
 * What a hostile program inside a sandbox tries, one thing per call; built for the tests alone, static.
 * It says on standard output how each attempt went.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int say(long result)
{
    printf("%s\n", result < 0 ? strerror(errno) : "done");
    fflush(stdout);
    return result < 0;
}

/* PID RESOURCE VALUE: change another process's limit */
static int limit(char **v)
{
    struct rlimit value = {strtoul(v[2], NULL, 10), strtoul(v[2], NULL, 10)};
    return say(syscall(SYS_prlimit64, atoi(v[0]), atoi(v[1]), &value, NULL));
}

/* COUNT SECONDS: hold terminals */
static int terminals(char **v)
{
    int got = 0;
    while (got < atoi(v[0]) && open("/dev/ptmx", O_RDWR | O_NOCTTY) >= 0)
        got++;
    printf("%d\n", got);
    fflush(stdout);
    sleep((unsigned)atoi(v[1]));
    return 0;
}

/* EVENTS SECONDS: hold asynchronous requests */
static int requests(char **v)
{
    unsigned long context = 0;
    int result = say(syscall(SYS_io_setup, atoi(v[0]), &context));
    sleep((unsigned)atoi(v[1]));
    return result;
}

/* BYTES SECONDS: hold memory that no process has mapped */
static int memory(char **v)
{
    static char block[65536];
    int fd = memfd_create("probe", 0);
    for (long at = 0; at < atol(v[0]); at += (long)sizeof block)
        if (write(fd, block, sizeof block) < 0)
            return say(-1);
    say(0);
    sleep((unsigned)atoi(v[1]));
    return 0;
}

/* COUNT LEAVE: sessions that ignore signals and are somebody else every two milliseconds */
static int hydra(char **v)
{
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    for (int i = 0; i < atoi(v[0]); i++)
        if (fork() == 0)
            for (;;) {
                setsid();
                usleep(2000);
                if (fork() != 0)
                    _exit(0);
            }
    puts("on");
    fflush(stdout);
    while (atoi(v[1]) == 0)
        pause();
    return 0;
}

/* PROCESSES SECONDS: make orphans as fast as it goes */
static int orphans(char **v)
{
    for (int i = 0; i < atoi(v[0]); i++)
        if (fork() == 0)
            for (time_t end = time(NULL) + atoi(v[1]); time(NULL) < end;) {
                if (vfork() == 0) {
                    vfork();
                    _exit(0);
                }
                while (waitpid(-1, NULL, WNOHANG) > 0) {
                }
            }
    puts("on");
    fflush(stdout);
    while (wait(NULL) > 0) {
    }
    return 0;
}

/* NUMBER A B: any system call */
static int call(char **v)
{
    return say(syscall(strtol(v[0], NULL, 0), strtol(v[1], NULL, 0), strtol(v[2], NULL, 0), 0, 0));
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int arguments, (*run)(char **);
    } attempts[] = {{"limit", 3, limit},   {"terminals", 2, terminals}, {"requests", 2, requests}, {"memory", 2, memory},
                    {"hydra", 2, hydra},   {"orphans", 2, orphans},     {"call", 3, call}};
    for (size_t i = 0; i < sizeof attempts / sizeof *attempts; i++)
        if (argc == 2 + attempts[i].arguments && strcmp(argv[1], attempts[i].name) == 0)
            return attempts[i].run(argv + 2);
    return 2;
}
